"""Where the steps come from: a Gymnasium vector env, or clients of environment servers. Each stepped in lockstep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from openenv.core.exceptions import SessionLostError
from openenv.policy.rollout.spaces import ActionMap, ObservationMap

__all__ = ["Clients", "GymnasiumVector", "Source", "Stepped"]

Array: TypeAlias = "npt.NDArray[Any]"


@dataclass(frozen=True, slots=True)
class Stepped:
    """What a step of all envs brought.

    Attributes:
        rewards: ``[n]``.
        terminated: ``bool [n]``.
        truncated: ``bool [n]``.
        lost: ``bool [n]``: the session of this env is gone; its other values mean nothing.
        success: ``bool [n]``, of episodes that ended.
    """

    rewards: Array
    terminated: Array
    truncated: Array
    lost: Array
    success: Array


class Source(Protocol):
    """Envs that are stepped together.

    Attributes:
        num_envs: how many there are.
    """

    num_envs: int

    def reset(self, seed: int | None) -> None:
        """Begin an episode in every env."""

    def observe(self, envs: Sequence[int]) -> Mapping[str, Any]:
        """The current observations of some envs, in the form of the link; terminal ones until `renew`."""

    def step(self, actions: Array) -> Stepped:
        """Make one step in every env; ``actions`` is ``[n, *da]``, as the server sent them.

        An env that begins its episode with this step is given its last action again, which it does not take.
        """

    def renew(self, envs: Sequence[int]) -> bool:
        """Begin new episodes. Returns whether they have begun; otherwise they do with the next `step`."""

    def close(self) -> None:
        """Let go of the envs."""


class GymnasiumVector:
    """A Gymnasium vector env, in whichever autoreset mode it declares.

    Args:
        env: the vector env. Its ``metadata["autoreset_mode"]`` says how it resets; without it, in the next step.
        obs: from a batch of observations to ``images``, ``states`` and ``text``; default `ObservationMap`.
        act: from actions of the server ``[n, *da]`` to what ``env.step`` takes; default `ActionMap`.
    """

    def __init__(
        self,
        env: Any,
        obs: Callable[[Any], Mapping[str, Any]] | None = None,
        act: Callable[[Array], Any] | None = None,
    ) -> None:
        self.num_envs: int = env.num_envs
        self._env = env
        mode = env.metadata.get("autoreset_mode", "NextStep")
        self._mode = str(getattr(mode, "value", mode)).replace("_", "").lower()
        if self._mode not in ("nextstep", "samestep", "disabled"):
            raise ValueError(f"the vector env declares the autoreset mode {mode!r}, which is none of Gymnasium's")
        self._obs = obs or ObservationMap(env.single_observation_space)
        self._act = act or ActionMap(env.single_action_space)
        self._now: Mapping[str, Any] = {}
        self._terminal: dict[int, Mapping[str, Any]] = {}

    def reset(self, seed: int | None) -> None:
        observations, _ = self._env.reset(seed=seed)
        self._now = self._obs(observations)
        self._terminal.clear()

    def observe(self, envs: Sequence[int]) -> Mapping[str, Any]:
        rows = rows_of(self._now, envs)
        for place, env in enumerate(envs):
            if env in self._terminal:
                _put(rows, place, self._terminal[env])
        return rows

    def step(self, actions: Array) -> Stepped:
        observations, rewards, terminated, truncated, infos = self._env.step(self._act(actions))
        self._now = self._obs(observations)
        self._terminal.clear()
        ended = np.asarray(terminated) | np.asarray(truncated)
        if self._mode == "samestep" and ended.any():
            final = infos["final_obs"]
            for env in np.flatnonzero(ended).tolist():
                self._terminal[env] = self._obs(_batch_of_one(final[env]))
        lost = np.asarray(infos.get("session_lost", np.zeros(self.num_envs, bool)), bool)
        success = _success(infos, ended)
        return Stepped(np.asarray(rewards), np.asarray(terminated), np.asarray(truncated), lost, success)

    def renew(self, envs: Sequence[int]) -> bool:
        if self._mode == "samestep":
            for env in envs:
                self._terminal.pop(env, None)
            return True
        if self._mode == "nextstep":
            return False
        mask = np.zeros(self.num_envs, bool)
        mask[list(envs)] = True
        observations, _ = self._env.reset(options={"reset_mask": mask})
        self._now = self._obs(observations)
        return True

    def close(self) -> None:
        self._env.close()


def _success(infos: Mapping[str, Any], ended: Array) -> Array:
    final = infos.get("final_info", infos)
    for name in ("is_success", "success"):
        if isinstance(final, Mapping) and name in final:
            return np.asarray(final[name], bool) & ended
    return np.zeros(len(ended), bool)


class Clients:
    """Sessions of environment servers, stepped at once, each in a thread of its own.

    Args:
        clients: blocking clients (``EnvClient(...).sync()``), one session each.
        obs: from a list of observations, one a client, to ``images``, ``states`` and ``text`` with a row for each.
        act: from one action of the server ``[*da]`` to what the client's ``step`` takes.
        seeded: pass seeds to ``reset()``.
    """

    def __init__(
        self,
        clients: Sequence[Any],
        obs: Callable[[Sequence[Any]], Mapping[str, Any]],
        act: Callable[[Array], Any],
        *,
        seeded: bool = True,
    ) -> None:
        if not clients:
            raise ValueError("there must be a client")
        self.num_envs = len(clients)
        self._clients = list(clients)
        self._obs = obs
        self._act = act
        self._seeded = seeded
        self._seed: int | None = None
        self._episodes = [0] * self.num_envs
        self._last: list[Any] = [None] * self.num_envs
        self._threads = ThreadPoolExecutor(self.num_envs, "openenv-rollout")

    def reset(self, seed: int | None) -> None:
        self._seed = seed
        self._episodes = [0] * self.num_envs
        self.renew(range(self.num_envs))

    def renew(self, envs: Sequence[int]) -> bool:
        list(self._threads.map(self._reset, envs))
        return True

    def _reset(self, env: int) -> None:
        arguments = {}
        if self._seeded and self._seed is not None:  # every episode has a seed of its own, whoever had the others
            arguments["seed"] = self._seed + env + self.num_envs * self._episodes[env]
        self._episodes[env] += 1
        self._last[env] = self._clients[env].reset(**arguments).observation

    def observe(self, envs: Sequence[int]) -> Mapping[str, Any]:
        return self._obs([self._last[env] for env in envs])

    def step(self, actions: Array) -> Stepped:
        results = list(self._threads.map(self._step, range(self.num_envs), actions))
        lost = np.array([result is None for result in results])
        rewards = np.array([0.0 if result is None else float(result.reward or 0.0) for result in results])
        terminated = np.array([result is not None and bool(result.terminated) for result in results])
        truncated = np.array([result is not None and bool(result.truncated) for result in results])
        for env, result in enumerate(results):
            if result is not None:
                self._last[env] = result.observation
        success = np.array([_metadata(result).get("success") is True for result in results])
        return Stepped(rewards, terminated, truncated, lost, success & (terminated | truncated))

    def _step(self, env: int, action: Array) -> Any:
        try:
            return self._clients[env].step(self._act(action))
        except SessionLostError:
            return None  # its last good observation stays

    def close(self) -> None:
        list(self._threads.map(lambda client: client.close(), self._clients))
        self._threads.shutdown()


def _metadata(result: Any) -> Mapping[str, Any]:
    found = getattr(result, "metadata", None)
    return found if isinstance(found, Mapping) else {}


def _batch_of_one(observation: Any) -> Any:
    if isinstance(observation, Mapping):
        return {key: _batch_of_one(value) for key, value in observation.items()}
    if isinstance(observation, tuple):
        return tuple(map(_batch_of_one, observation))
    return [observation] if isinstance(observation, str) else np.asarray(observation)[None]


def rows_of(batch: Mapping[str, Any], envs: Sequence[int]) -> dict[str, Any]:
    """Some rows of a batch in the form of the link, as copies."""
    which = list(envs)
    rows: dict[str, Any] = {
        group: {name: np.asarray(values)[which] for name, values in batch.get(group, {}).items()}
        for group in ("images", "states")
    }
    text = batch.get("text", "")
    rows["text"] = text if isinstance(text, str) else np.asarray(text)[which]
    return rows


def _put(rows: dict[str, Any], place: int, one: Mapping[str, Any]) -> None:
    for group in ("images", "states"):
        for name, values in one.get(group, {}).items():
            rows[group][name][place] = values[0]
    text = one.get("text", "")
    if not isinstance(text, str):
        texts = rows["text"].astype(object)
        texts[place] = text[0]
        rows["text"] = texts.astype(str)
