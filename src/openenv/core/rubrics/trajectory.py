"""Rubrics that score a whole episode, once its outcome is known."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from openenv.core.rubrics.base import Rubric

__all__ = ["ExponentialDiscountingTrajectoryRubric", "TrajectoryRubric"]


class TrajectoryRubric(Rubric):
    """Gathers the steps of an episode; gives a fixed reward until the observation says ``done``, then the score.

    The steps are kept until `reset`; an environment calls it through ``_reset_rubric()``.

    Args:
        intermediate_reward: the reward of a step that does not end the episode.
    """

    _trajectory: list[tuple[Any, Any]]

    def __init__(self, intermediate_reward: float = 0.0) -> None:
        self.intermediate_reward = intermediate_reward
        self._trajectory = []

    @abstractmethod
    def score_trajectory(self, trajectory: list[tuple[Any, Any]]) -> Any:
        """Score a finished episode.

        Args:
            trajectory: its steps, each an action and the observation that followed.

        Returns:
            The score, mostly from 0 to 1.
        """
        raise NotImplementedError

    @abstractmethod
    def compute_step_rewards(self) -> list[float]:
        """Spread the score over the steps: one reward for each."""
        raise NotImplementedError

    def forward(self, action: Any, observation: Any) -> Any:
        """See `Rubric.forward`."""
        self._trajectory.append((action, observation))
        if getattr(observation, "done", False):
            return self.score_trajectory(self._trajectory)
        return self.intermediate_reward

    def reset(self) -> Any:
        """Forget the steps, and the parts' last episode."""
        self._trajectory = []
        return super().reset()

    @property
    def trajectory(self) -> list[tuple[Any, Any]]:
        """The steps so far; a copy."""
        return list(self._trajectory)

    def state_dict(self) -> dict[str, Any]:
        """See `Rubric.state_dict`; the steps are not in it."""
        return {"intermediate_reward": self.intermediate_reward}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Rubric.load_state_dict`."""
        self.intermediate_reward = state.get("intermediate_reward", self.intermediate_reward)


class ExponentialDiscountingTrajectoryRubric(TrajectoryRubric):
    """Spreads the score back over the steps: with T steps, step t gets ``gamma ** (T - 1 - t)`` of it.

    Args:
        gamma: discount factor, 0 to 1. 1 gives every step the whole score, 0 the last step only.
        intermediate_reward: the reward of a step that does not end the episode.

    Raises:
        ValueError: ``gamma`` is not from 0 to 1.
    """

    def __init__(self, gamma: float = 0.99, intermediate_reward: float = 0.0) -> None:
        super().__init__(intermediate_reward)
        if not 0.0 <= gamma <= 1.0:
            raise ValueError(f"gamma must be in [0, 1], not {gamma}")
        self.gamma = gamma

    def compute_step_rewards(self) -> list[float]:
        """See `TrajectoryRubric.compute_step_rewards`."""
        if not self._trajectory:
            return []
        score = self.score_trajectory(self._trajectory)
        last = len(self._trajectory) - 1
        return [score * self.gamma ** (last - step) for step in range(last + 1)]

    def state_dict(self) -> dict[str, Any]:
        """See `Rubric.state_dict`."""
        return {**super().state_dict(), "gamma": self.gamma}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Rubric.load_state_dict`."""
        super().load_state_dict(state)
        self.gamma = state.get("gamma", self.gamma)
