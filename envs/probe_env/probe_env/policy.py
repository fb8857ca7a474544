"""A policy whose numbers tell for whom, for which step and column they are."""

from __future__ import annotations

import numpy as np

from openenv.policy import Observations, Transitions
from probe_env.vector import Array

__all__ = ["ProbePolicy"]


class ProbePolicy:
    """Answers env j with ``10000 * k + 10 * j + d`` for step k and column d. It learns nothing.

    Args:
        action_horizon: steps of a chunk.
        action_dim: width of an action, at most 9.
        max_feedbacks: after so many the run is over; None for never.

    Attributes:
        feedbacks: how many came.
        transitions: of how many envs.
    """

    def __init__(self, action_horizon: int = 4, action_dim: int = 7, max_feedbacks: int | None = None) -> None:
        self.action_horizon = action_horizon
        self.action_dim = action_dim
        self.feedbacks = 0
        self.transitions = 0
        self._max = max_feedbacks

    @property
    def finished(self) -> bool:
        """Whether the run is over."""
        return self._max is not None and self.feedbacks >= self._max

    def act(self, observations: Observations) -> Array:
        """Chunks ``[n, H, d]`` of float64."""
        env = np.array([key.env for key in observations.keys], np.float64)[:, None, None] * 10
        step = np.arange(self.action_horizon)[None, :, None] * 10_000
        numbers: Array = env + step + np.arange(self.action_dim)
        return numbers

    def feedback(self, transitions: Transitions) -> None:
        """Count."""
        self.feedbacks += 1
        self.transitions += len(transitions)
