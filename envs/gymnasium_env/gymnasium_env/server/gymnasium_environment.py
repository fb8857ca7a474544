"""The environment: one instance is one Gymnasium environment, which it hands on as it is."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from gymnasium_env.models import GymnasiumAction, GymnasiumObservation, GymnasiumState
from openenv.core.env_server.interfaces import Environment, EnvironmentMetadata
from openenv.core.exceptions import InvalidActionError
from openenv.gymnasium import space_to_schema, value_from_wire, value_to_wire

__all__ = ["GymnasiumEnvironment"]

Gym = gymnasium.Env[Any, Any]
Choice = tuple[str, dict[str, Any]] | None


class GymnasiumEnvironment(Environment[GymnasiumAction, GymnasiumObservation, GymnasiumState]):
    """A Gymnasium environment behind ``reset``, ``step`` and ``state``.

    Args:
        make: makes it, as ``lambda: gymnasium.make("CartPole-v1")``; called on the session's own thread.
        others: whether ``reset()`` may choose any other that is registered.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True  # each has a Gymnasium environment of its own

    def __init__(self, make: Callable[[], Gym], others: bool = False) -> None:
        super().__init__()
        self._make = make
        self._others = others
        self._choice: Choice = None
        self._env = make()
        self._state = _told_of(self._env)
        self._last: GymnasiumObservation | None = None

    def reset(  # type: ignore[override]  # no **kwargs: the server then names arguments that do not exist
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        *,
        env_id: str | None = None,
        env_kwargs: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
        render: bool = False,
    ) -> GymnasiumObservation:
        """Begin an episode.

        Args:
            seed: given to the environment; None lets it go on with its own random numbers.
            episode_id: name of the episode; None makes one up.
            env_id: play this registered environment instead of the server's; to be said at every reset, so that an
                episode never depends on what its session played before.
            env_kwargs: what ``gymnasium.make`` is given with ``env_id``.
            options: given to the environment.
            render: draw the first moment.

        Raises:
            InvalidActionError: there is no such environment, it may not be chosen, or there is no drawing to be had.
        """
        self._choose(env_id, env_kwargs)
        self._require_drawing(render)
        obs, info = self._env.reset(seed=seed, options=options)
        state = self._state
        state.episode_id, state.step_count = episode_id or uuid.uuid4().hex, 0
        state.seed = state.seed if seed is None else seed
        return self._observe(render, obs, info)

    def _choose(self, env_id: str | None, env_kwargs: dict[str, Any] | None) -> None:
        """Have the environment that is wanted. The one before is closed once the new one is there."""
        if env_id is None and env_kwargs:
            raise InvalidActionError("env_kwargs are for an environment of your choice: say its env_id too")
        choice = None if env_id is None else (env_id, env_kwargs or {})
        if choice == self._choice:
            return
        made = self._make() if choice is None else self._made(*choice)
        try:
            state = _told_of(made)
        except TypeError as error:
            made.close()
            raise InvalidActionError(f"{env_id} cannot be served: {error}") from error
        self._env.close()
        self._env, self._state, self._choice, self._last = made, state, choice, None

    def _made(self, env_id: str, env_kwargs: dict[str, Any]) -> Gym:
        if not self._others:
            raise InvalidActionError(f"This server plays {self._state.env_id or 'its own environment'} and no other.")
        if ":" in env_id:  # a client's word imports no modules
            raise InvalidActionError(f"{env_id!r} names a module; choose among what is registered on the server")
        try:
            return gymnasium.make(env_id, **env_kwargs)
        except (gymnasium.error.Error, TypeError) as error:
            raise InvalidActionError(f"{env_id} cannot be made: {error}") from error

    def step(self, action: GymnasiumAction, timeout_s: float | None = None, **kwargs: Any) -> GymnasiumObservation:
        """Apply an action, or look.

        Args:
            action: what to do.
            timeout_s: not used.

        Raises:
            InvalidActionError: the action is not in the action space, there was no reset yet, or there is no drawing to
                be had. Nothing has changed.
        """
        if self._last is None:
            raise InvalidActionError("There is no episode yet; call reset() first.")
        self._require_drawing(action.render)
        if action.action is None:
            return self._look(action.render)
        space = self._env.action_space
        try:
            chosen = value_from_wire(space, action.action)
        except ValueError as error:
            raise InvalidActionError(f"This is no action of {space}: {error}") from error
        if not _admissible(space, chosen):
            raise InvalidActionError(f"This is no action of {space}: {chosen!r}")
        obs, reward, terminated, truncated, info = self._env.step(chosen)
        self._state.step_count += 1
        return self._observe(action.render, obs, info, reward, bool(terminated), bool(truncated))

    @property
    def state(self) -> GymnasiumState:
        """What the environment is, and where its episode stands."""
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        """What ``GET /metadata`` tells."""
        name = self._state.env_id or type(self._env.unwrapped).__name__
        return EnvironmentMetadata(
            name="gymnasium_env", description=f"The Gymnasium environment {name}.", version="0.1.0"
        )

    def close(self) -> None:
        """Close the Gymnasium environment."""
        self._env.close()

    def _observe(
        self,
        render: bool,
        obs: Any,
        info: dict[str, Any],
        reward: Any = None,
        terminated: bool = False,
        truncated: bool = False,
    ) -> GymnasiumObservation:
        self._last = GymnasiumObservation(
            obs=value_to_wire(self._env.observation_space, obs),
            info=info,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            done=terminated or truncated,
        )
        return self._look(render, reward) if render else self._last

    def _look(self, render: bool, reward: Any = None) -> GymnasiumObservation:
        """The last observation again, with a drawing of the present moment."""
        assert self._last is not None
        drawn = self._env.render() if render else None
        return self._last.model_copy(
            update={
                "reward": reward,
                "frame": drawn if isinstance(drawn, np.ndarray) else None,
                "text": drawn if isinstance(drawn, str) else None,
            }
        )

    def _require_drawing(self, render: bool) -> None:
        mode = self._env.render_mode
        if render and mode not in ("rgb_array", "ansi"):
            raise InvalidActionError(
                f'This environment has render_mode={mode!r}; its server draws if it is made with "rgb_array" or "ansi".'
            )


def _told_of(env: Gym) -> GymnasiumState:
    """What is known of an environment before its first episode.

    Raises:
        TypeError: a space of it has no schema.
    """
    fps = env.metadata.get("render_fps")
    return GymnasiumState(
        env_id=None if env.spec is None else env.spec.id,
        observation_space=space_to_schema(env.observation_space),
        action_space=space_to_schema(env.action_space),
        render_mode=env.render_mode,
        render_fps=None if fps is None else float(fps),
        reward_threshold=None if env.spec is None else env.spec.reward_threshold,
    )


def _admissible(space: gymnasium.Space[Any], value: Any) -> bool:
    """Whether a value, whose structure is right, may be given to the environment.

    The bounds of a `Box` are left to the environment: on this side of the network too, some clip and some do not care.
    """
    if isinstance(space, spaces.Box):
        return bool(np.can_cast(value.dtype, space.dtype, "same_kind"))
    if isinstance(space, spaces.Dict):
        return all(_admissible(child, value[key]) for key, child in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return all(_admissible(child, item) for child, item in zip(space.spaces, value, strict=True))
    return bool(space.contains(value))
