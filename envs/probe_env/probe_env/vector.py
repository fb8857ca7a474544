"""The environments: n in lockstep, each with episodes of its own length. No network here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["ENV_ID", "MAX_ENVS", "ProbeVectorEnv", "Step"]

Array: TypeAlias = "npt.NDArray[Any]"
ENV_ID = "probe-v1"
MAX_ENVS = 1000
"""The action values of checkers tell so many envs apart."""


class Step(NamedTuple):
    """What a step of all envs gives, each ``[n]``.

    Attributes:
        rewards: float64, 1.0 a step.
        terminated: bool, whether the episode has ended; such an env waits for its reset.
        truncated: bool, never.
    """

    rewards: Array
    terminated: Array
    truncated: Array


class ProbeVectorEnv:
    """Envs that count their steps: an episode of env i takes 3, 5 or 7 steps, by i modulo 3, whatever the actions.

    There is no autoreset: after the end of an episode `observe` shows its terminal observation until `reset`.

    Args:
        num_envs: how many, at most 1000.
        action_dim: width of an action.

    Raises:
        ValueError: too many envs, or none.
    """

    def __init__(self, num_envs: int, action_dim: int = 1) -> None:
        if not 1 <= num_envs <= MAX_ENVS:
            raise ValueError(f"num_envs must be 1 to {MAX_ENVS}, not {num_envs}")
        self.num_envs = num_envs
        self.lengths: Array = 3 + 2 * (np.arange(num_envs) % 3)
        self._t: Array = np.zeros(num_envs, np.int64)
        self._action: Array = np.zeros((num_envs, action_dim))

    def observe(self, envs: Sequence[int] | None = None) -> dict[str, Any]:
        """The present observations, in buffers of their own.

        Args:
            envs: which; None for all.

        Returns:
            ``images`` (none), ``states`` with ``t`` ``[n, 1]``, the steps of this episode, and ``a`` ``[n, d]``, the
            last action, and ``text`` ``[n]``.
        """
        rows = list(range(self.num_envs)) if envs is None else list(envs)
        states = {"t": self._t[rows, None].astype(np.float64), "a": self._action[rows]}
        return {"images": {}, "states": states, "text": np.array([f"count, env {row}" for row in rows], dtype=np.str_)}

    def step(self, actions: Array) -> Step:
        """One step of every env.

        Args:
            actions: ``[n, d]`` numbers, kept as float64.

        Raises:
            RuntimeError: an env has ended its episode and was not reset.
        """
        if waiting := np.flatnonzero(self._t >= self.lengths).tolist():
            raise RuntimeError(f"envs {waiting} have ended their episode: call reset({waiting})")
        self._action = np.array(actions, np.float64).reshape(self.num_envs, -1)
        self._t += 1
        nothing = np.zeros(self.num_envs, np.bool_)
        return Step(np.ones(self.num_envs), self._t >= self.lengths, nothing)

    def reset(self, envs: Sequence[int] | None = None) -> dict[str, Any]:
        """Begin new episodes.

        Args:
            envs: which; None for all.

        Returns:
            Their observations.
        """
        rows = list(range(self.num_envs)) if envs is None else list(envs)
        self._t[rows] = 0
        self._action[rows] = 0.0
        return self.observe(rows)
