"""`VectorEnv`: several sessions as a `gymnasium.vector.VectorEnv`."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import gymnasium
import numpy as np
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError, ResetNeeded
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from openenv.core.client_types import ClientSession, StepResult
from openenv.integrations.gymnasium.batch import Batch, Work
from openenv.integrations.gymnasium.session import EnvSession, OnLoss, Source, TimeStep, open_clients
from openenv.integrations.gymnasium.setting import SINGLE, make_setting, make_spec, metadata_of

__all__ = ["VectorEnv"]

logger = logging.getLogger("openenv.client")

Arrays = np.ndarray[Any, Any]
Stepped = tuple[Any, Arrays, Arrays, Arrays, dict[str, Any]]


class VectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Environments behind a network as one vector environment, a session each.

    Calls of all sessions run at the same time; between ``step_async()`` and ``step_wait()`` the caller may compute.
    Results are as `gymnasium.vector.SyncVectorEnv` makes them of the same environments: batches of the space's dtype,
    rewards of float64, infos with their masks, ``final_obs`` and ``final_info`` where the autoreset mode wants them.

    **A lost session ends its own episode only**: for that sub-environment ``truncations`` is True, the reward 0, the
    observation the last one again, and ``infos["session_lost"]`` True (see `GymnasiumEnv`). The others go on, and its
    next reset, automatic or not, opens a new session.

    Args:
        client: base URL or callable that makes a client, for ``num_envs`` clients; one client, which gets further
            sessions of its server; or a list of ``num_envs`` clients. All are closed with this environment.
        num_envs: number of sub-environments.
        env_id: see `GymnasiumEnv`.
        env_kwargs: likewise.
        autoreset_mode: what happens after the end of an episode: a reset instead of the next step (``NextStep``), in
            the same step (``SameStep``), or nothing before ``reset(options={"reset_mask": ...})`` (``Disabled``). It
            is declared in ``metadata["autoreset_mode"]``.
        observation_space: of one sub-environment; read from the server if it is not given.
        action_space: likewise.
        to_action: see `GymnasiumEnv`.
        to_observation: likewise.
        render_mode: likewise.
        reset_options: likewise; automatic resets have them too.
        on_session_lost: likewise.

    Raises:
        ValueError: arguments that do not go together, or a server that does not tell its spaces.
        InvalidActionError: the server has no such environment, or lets nobody choose.
        ConnectError: the server could not be asked for its spaces.
    """

    def __init__(
        self,
        client: Source | Sequence[Source],
        num_envs: int,
        env_id: str | None = None,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        observation_space: gymnasium.Space[Any] | None = None,
        action_space: gymnasium.Space[Any] | None = None,
        to_action: Callable[[Any], Any] | None = None,
        to_observation: Callable[[StepResult[Any]], Any] | None = None,
        render_mode: str | None = None,
        reset_options: Mapping[str, Any] | None = None,
        on_session_lost: OnLoss = "truncate",
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, not {num_envs}")
        self.num_envs = num_envs
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        own = ("self", "client", "num_envs", "autoreset_mode", "__class__")
        given = {key: value for key, value in locals().items() if key not in (*own, "own")}
        clients = open_clients(client, num_envs)
        setting = make_setting(clients[0], **given)
        if isinstance(client, str):
            self.spec = make_spec(setting.told, SINGLE, {"client": str(client), **given})
        self._sessions = [EnvSession(one, setting, number) for number, one in enumerate(clients)]
        self._foreign = setting.translation.foreign
        self.single_observation_space = setting.told.observation_space
        self.single_action_space = setting.told.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.render_mode = setting.told.render_mode
        self.metadata = {**metadata_of(setting.told), "autoreset_mode": self.autoreset_mode}
        self._observations: list[Any] = [None] * num_envs
        self._ended: Arrays = np.zeros(num_envs, np.bool_)
        self._pending: tuple[str, Batch] | None = None

    @property
    def sessions(self) -> tuple[ClientSession, ...]:
        """The clients' sessions: their numbers, and how often each was resumed and lost."""
        return tuple(one.session for one in self._sessions)

    # ------------------------------------------------------------------ reset

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in all sub-environments, or in those of a mask.

        A step that is pending is waited for first, and its results are dropped; with a mask it is refused.

        Args:
            seed: of the first sub-environment, the others get the following ones; or one for each.
            options: see `GymnasiumEnv`. ``reset_mask``, a bool array ``[num_envs]``, chooses sub-environments; the
                observations of the others are returned again.

        Returns:
            Observations and infos.

        Raises:
            ResetNeeded: a sub-environment that the mask leaves out has no episode.
            OpenEnvError: as the client's ``reset()``, after all have answered; all then need a reset.
        """
        if (options or {}).get("reset_mask") is None:
            self._drop_pending()
        self.reset_async(seed, options)
        return self.reset_wait()

    def reset_async(
        self, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> None:
        """Begin a reset, see `reset`; `reset_wait` gives its results.

        Raises:
            AlreadyPendingCallError: another call is pending.
        """
        self._require_idle("reset_async")
        seeds = self._seeds(seed)
        told = copy.deepcopy(dict(options or {}))
        mask = self._mask(told.pop("reset_mask", None))
        unseen = [i for i in range(self.num_envs) if not mask[i] and self._observations[i] is None]
        if unseen:
            raise ResetNeeded(f"Sub-environments {unseen} have no episode, and the mask leaves them out.")
        super().reset(seed=seed if isinstance(seed, int) else None)

        def work(index: int) -> Work:
            return lambda: self._sessions[index].reset(seeds[index], told)

        self._begin("reset", [work(i) if mask[i] else None for i in range(self.num_envs)])

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """The results of a `reset_async`.

        Args:
            timeout: seconds; None for no limit.

        Raises:
            NoAsyncCallError: there was none.
            TimeoutError: not all have answered; wait again.
        """
        infos: dict[str, Any] = {}
        results = self._collect("reset", timeout)
        with self._whole():
            for index, (observation, info) in results.items():
                self._observations[index] = observation
                self._ended[index] = False
                infos = self._add_info(infos, info, index)
            return self._batched(), infos

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            return [int(seed) + i for i in range(self.num_envs)]
        seeds = list(seed)
        if len(seeds) != self.num_envs:
            raise ValueError(f"{len(seeds)} seeds were given for {self.num_envs} sub-environments")
        return seeds

    def _mask(self, mask: Any) -> Arrays:
        if mask is None:
            return np.ones(self.num_envs, np.bool_)
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            raise TypeError("reset_mask must be an array of bool")
        if mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(f"reset_mask must have shape ({self.num_envs},) and choose one at least, not {mask}")
        return mask

    # ------------------------------------------------------------------ step

    def step(self, actions: Any) -> Stepped:
        """Apply an action to each sub-environment, at most once.

        Args:
            actions: a batch, an element of ``action_space``; it is copied.

        Returns:
            Observations, rewards, terminations, truncations and infos.

        Raises:
            ResetNeeded: a sub-environment has no episode: no reset yet, or ended with autoreset disabled.
            ValueError: an action does not fit its space.
            OpenEnvError: as the client's ``step()``, after all have answered. What the others answered is then gone,
                so all need a reset.
        """
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Begin a step, see `step`; `step_wait` gives its results.

        Raises:
            AlreadyPendingCallError: another call is pending.
        """
        self._require_idle("step_async")
        chosen = copy.deepcopy(list(iterate(self.action_space, actions)))  # the caller may write into its batch now
        if len(chosen) != self.num_envs:
            raise ValueError(f"{len(chosen)} actions were given for {self.num_envs} sub-environments")
        idle = [i for i in range(self.num_envs) if self._observations[i] is None]
        if self.autoreset_mode is AutoresetMode.DISABLED:
            idle += np.flatnonzero(self._ended).tolist()
        if idle:
            raise ResetNeeded(f"Sub-environments {idle} have no episode to step in: reset them first.")

        def work(index: int) -> Work:
            return lambda: self._advance(index, chosen[index])

        self._begin("step", [work(i) for i in range(self.num_envs)])

    async def _advance(self, index: int, action: Any) -> tuple[TimeStep, TimeStep | None]:
        """What a sub-environment returns, and the end of its episode if that was followed by a reset at once."""
        session = self._sessions[index]
        if self._ended[index] and self.autoreset_mode is AutoresetMode.NEXT_STEP:
            observation, info = await session.reset()
            return TimeStep(observation, info=info), None
        made = await session.step(action)
        if made.ended and self.autoreset_mode is AutoresetMode.SAME_STEP:
            observation, info = await session.reset()
            return TimeStep(observation, made.reward, made.terminated, made.truncated, info), made
        return made, None

    def step_wait(self, timeout: float | None = None) -> Stepped:
        """The results of a `step_async`.

        Args:
            timeout: seconds; None for no limit.

        Raises:
            NoAsyncCallError: there was none.
            TimeoutError: not all have answered; wait again.
        """
        rewards = np.zeros(self.num_envs, np.float64)
        terminations, truncations = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.bool_)
        infos: dict[str, Any] = {}
        results = self._collect("step", timeout)
        with self._whole():
            for index, (made, final) in results.items():
                self._observations[index] = made.observation
                rewards[index], terminations[index], truncations[index] = made.reward, made.terminated, made.truncated
                if final is not None:
                    infos = self._add_info(infos, {"final_obs": final.observation, "final_info": final.info}, index)
                infos = self._add_info(infos, made.info, index)
            self._ended = terminations | truncations
            return self._batched(), rewards, terminations, truncations, infos

    # ------------------------------------------------------------------ the rest

    def render(self) -> tuple[Any, ...]:
        """Draw all sub-environments as they stand.

        Returns:
            For each an image ``[height, width, 3]``, or text.

        Raises:
            NotImplementedError: they draw nothing.
            SessionLostError: a session is gone.
        """
        if self.render_mode is None or self._foreign:
            raise NotImplementedError("The environments of this server draw nothing: they have no render mode.")
        self._require_idle("render")
        self._begin("render", [one.render for one in self._sessions])
        return tuple(self._collect("render", None).values())

    def call(self, name: str, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: methods of an environment do not cross the network.

        Raises:
            NotImplementedError: always.
        """
        self._refuse("call", name)

    def get_attr(self, name: str) -> NoReturn:
        """Refused: attributes of an environment do not cross the network.

        Raises:
            NotImplementedError: always.
        """
        self._refuse("get_attr", name)

    def set_attr(self, name: str, values: Any) -> NoReturn:
        """Refused: attributes of an environment do not cross the network.

        Raises:
            NotImplementedError: always.
        """
        self._refuse("set_attr", name)

    def _refuse(self, what: str, name: str) -> NoReturn:
        raise NotImplementedError(
            f"{what}({name!r}): the sub-environments run on a server; only reset, step and render cross the network. "
            "Let the environment put what you need into its info, or take it as an option of reset."
        )

    def close_extras(self, **kwargs: Any) -> None:
        """End the sessions. A dropped environment, and the end of the process, do the same."""
        ends = Batch([one.close for one in self._sessions])
        pending, self._pending = self._pending, None
        if pending is not None:
            try:
                pending[1].wait()
            except Exception as error:  # what the calls in flight were told: that their session is closed
                logger.debug("a call ended with its session: %s", error)
        ends.wait()

    def _begin(self, what: str, works: Sequence[Work | None]) -> None:
        self._pending = what, Batch(works)

    def _collect(self, what: str, timeout_s: float | None) -> dict[int, Any]:
        if self._pending is None or self._pending[0] != what:
            raise NoAsyncCallError(f"{what}_wait() was called, but no {what}_async() is pending", what)
        try:
            results = self._pending[1].wait(timeout_s)
        except Exception as error:  # raised on; it decides what may be waited for again
            if not (isinstance(error, TimeoutError) and self._pending[1].running):
                self._pending = None
                if what != "render":
                    self._forget()
            raise
        self._pending = None
        return results

    @contextmanager
    def _whole(self) -> Generator[None]:
        """Results of all, or of none: infos of several shapes, for one, make no batch."""
        try:
            yield
        except BaseException:  # an interrupt too
            self._forget()
            raise

    def _forget(self) -> None:
        """Let nothing go on from where it stands: some are a step on, and nobody saw it."""
        self._observations = [None] * self.num_envs

    def _require_idle(self, what: str) -> None:
        if self.closed:
            raise ClosedEnvironmentError(f"{what}() was called after close()")
        if self._pending is not None:
            pending = self._pending[0]
            raise AlreadyPendingCallError(
                f"{what}() was called while {pending}() is pending: wait for it first", pending
            )

    def _drop_pending(self) -> None:
        if self._pending is None or self.closed:
            return
        what = self._pending[0]
        logger.warning("reset() drops the results of a %s() that nobody waited for", what)
        try:
            self._collect(what, None)
        except Exception as error:  # it is dropped like a result would be; the reset is told the session's state
            logger.debug("the dropped %s() had failed: %s", what, error)

    def _batched(self) -> Any:
        out: Any = create_empty_array(self.single_observation_space, self.num_envs, fn=np.zeros)
        return concatenate(self.single_observation_space, self._observations, out)
