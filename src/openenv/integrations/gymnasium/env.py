"""`GymnasiumEnv`: one session as a `gymnasium.Env`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, SupportsFloat, TypeVar

import gymnasium

from openenv.core.client_types import ClientSession, StepResult
from openenv.integrations.gymnasium.session import EnvSession, OnLoss, Source, as_client
from openenv.integrations.gymnasium.setting import SINGLE, make_setting, make_spec, metadata_of

__all__ = ["GymnasiumEnv"]

T = TypeVar("T")


class GymnasiumEnv(gymnasium.Env[Any, Any]):
    """An environment behind a network as a Gymnasium environment.

    A server of ``envs/gymnasium_env`` tells its spaces. For any other, give the two spaces and two functions::

        env = GymnasiumEnv(
            lambda: SudokuEnv(base_url=url),
            observation_space=Box(0, 4, (4, 4), np.int8),
            action_space=MultiDiscrete([4, 4, 4]),
            to_action=lambda move: SudokuAction(row=move[0] + 1, col=move[1] + 1, value=move[2] + 1),
            to_observation=lambda result: np.array(result.observation.board, np.int8),
            reset_options={"size": 4},
        )

    When the connection breaks, the client resumes its session where the server keeps it, and nobody notices. Where not,
    ``step()`` returns the last observation again with reward 0, ``truncated=True`` and ``info["session_lost"]`` True;
    ``session_lost_reason`` and ``session_lost_outcome`` stand beside it. A call without an answer in its time ends the
    episode likewise. The next ``reset()`` opens a new session.

    A reward that the environment does not give is 0. Numbers of numpy come back as Python's.

    Args:
        client: base URL, a client of any class (closed with this environment), or a callable that makes one.
        env_id: which registered environment of the server; None for the one that it serves by itself.
        env_kwargs: what the server makes that one with, as ``{"is_slippery": False}``.
        observation_space: of the observations; read from the server if it is not given.
        action_space: likewise.
        to_action: makes of an action what the client's ``step()`` takes.
        to_observation: makes an observation of the client's `StepResult`.
        render_mode: the mode in which the environment draws. With ``env_id`` it is made so; else it is that of the
            server's, which is the default, and another is refused.
        reset_options: options of every ``reset()``; those of a call come on top. With ``to_action`` they are the
            arguments of the client's ``reset()``, else the options of the environment's.
        on_session_lost: ``truncate`` ends the episode as told above; ``raise`` lets `SessionLostError` through.

    Raises:
        ValueError: arguments that do not go together, or a server that does not tell its spaces.
        InvalidActionError: the server has no such environment, or lets nobody choose.
        ConnectError: the server could not be asked for its spaces.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array", "ansi"]}  # noqa: RUF012  # as Gymnasium declares it

    def __init__(
        self,
        client: Source,
        env_id: str | None = None,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        observation_space: gymnasium.Space[Any] | None = None,
        action_space: gymnasium.Space[Any] | None = None,
        to_action: Callable[[Any], Any] | None = None,
        to_observation: Callable[[StepResult[Any]], Any] | None = None,
        render_mode: str | None = None,
        reset_options: Mapping[str, Any] | None = None,
        on_session_lost: OnLoss = "truncate",
    ) -> None:
        given = {key: value for key, value in locals().items() if key not in ("self", "client", "__class__")}
        self._client = as_client(client)
        setting = make_setting(self._client, **given)
        self._session = EnvSession(self._client, setting)
        self._foreign = setting.translation.foreign
        self.observation_space = setting.told.observation_space
        self.action_space = setting.told.action_space
        self.render_mode = setting.told.render_mode
        self.metadata = metadata_of(setting.told)
        if isinstance(client, str):  # a client's session is its own: from that no second environment is made
            self.spec = make_spec(setting.told, SINGLE, {"client": str(client), **given})

    @property
    def session(self) -> ClientSession:
        """The client's session: its number, and how often it was resumed and lost."""
        return self._session.session

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; opens a new session if there is none or the old one is lost.

        Args:
            seed: given to the environment; None lets it go on with its own random numbers.
            options: see ``reset_options``.

        Returns:
            Observation and info.

        Raises:
            OpenEnvError: as the client's ``reset()``.
        """
        super().reset(seed=seed)
        return self._run(lambda: self._session.reset(seed, options))

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Apply an action, at most once.

        Returns:
            Observation, reward, terminated, truncated and info.

        Raises:
            ResetNeeded: no episode has begun, or its session was lost.
            ValueError: the action does not fit its space.
            InvalidActionError: the environment does not allow it; nothing changed.
            OpenEnvError: as the client's ``step()``.
        """
        made = self._run(lambda: self._session.step(action))
        return made.observation, made.reward, made.terminated, made.truncated, made.info

    def render(self) -> Any:
        """Draw the environment as it stands.

        Returns:
            An image ``[height, width, 3]`` of uint8, or text for ``ansi``.

        Raises:
            NotImplementedError: the environment draws nothing.
            SessionLostError: the session is gone.
        """
        if self.render_mode is None or self._foreign:
            raise NotImplementedError("The environment of this server draws nothing: it has no render mode.")
        return self._run(self._session.render)

    def close(self) -> None:
        """End the session; may be repeated. A dropped environment, and the end of the process, do the same."""
        self._run(self._session.close)

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._client._blocking(work)

    def __str__(self) -> str:
        return f"<GymnasiumEnv {self.spec.id if self.spec else ''} at {self._client!r}>"
