"""The envs as a source of steps for `openenv.policy.rollout`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from openenv.policy.rollout import Stepped
from probe_env.vector import Array, ProbeVectorEnv

__all__ = ["ProbeSource"]


class ProbeSource:
    """Steps probe envs with the numbers that a server sends, unchanged. They are reset when they are told to.

    Args:
        env: the envs.
    """

    def __init__(self, env: ProbeVectorEnv) -> None:
        self.num_envs = env.num_envs
        self._env = env

    def reset(self, seed: int | None) -> None:
        self._env.reset()

    def observe(self, envs: Sequence[int]) -> dict[str, Any]:
        return self._env.observe(envs)

    def step(self, actions: Array) -> Stepped:
        step = self._env.step(actions)
        nothing = np.zeros(self.num_envs, np.bool_)
        return Stepped(step.rewards, step.terminated, step.truncated, nothing, step.terminated)

    def renew(self, envs: Sequence[int]) -> bool:
        self._env.reset(envs)
        return True

    def close(self) -> None:
        """Nothing to let go of."""
