"""A small policy that learns from what rollout clients feed back: REINFORCE on a linear softmax policy, in numpy alone.

It can be served as it is: ``openenv policy serve learner:Reinforce``.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, ClassVar

import numpy as np

from openenv.policy import EnvKey, Observations, Transitions


class Reinforce:
    """Chooses one of two actions by a linear softmax of the state, and makes those more likely that led to more reward.

    Args:
        seed: of its weights and its choices.
        episodes: after so many the run is over.
        batch: episodes from which it makes one step.
        rate: size of a step (Adam).
        discount: of rewards to come.

    Attributes:
        weights: ``[5, 2]``, of the four values of the state and a constant.
        returns: reward of each episode that ended, in order.
        seen: transitions that it was given.
    """

    action_horizon = 1
    action_dim = 1
    metadata: ClassVar = {"algorithm": "REINFORCE", "policy": "linear softmax"}

    def __init__(
        self, seed: int = 0, episodes: int = 600, batch: int = 8, rate: float = 0.05, discount: float = 0.99
    ) -> None:
        self._random = np.random.default_rng(seed)
        self.weights = self._random.normal(0, 0.01, (5, 2))
        self.returns: list[float] = []
        self.seen = 0
        self._episodes, self._batch, self._rate, self._discount = episodes, batch, rate, discount
        self._now: dict[EnvKey, list[tuple[np.ndarray[Any, Any], int, float]]] = defaultdict(list)
        self._ready: list[list[tuple[np.ndarray[Any, Any], int, float]]] = []
        self._moments = np.zeros((2, 5, 2))
        self._steps = 0

    @property
    def finished(self) -> bool:
        """Whether the run is over."""
        return len(self.returns) >= self._episodes

    def act(self, observations: Observations) -> np.ndarray[Any, Any]:
        """Chunks of one action, ``[n, 1, 1]``."""
        chances = self._chances(self._features(observations))
        chosen = self._random.random(len(chances)) < chances[:, 1]
        return chosen.astype(np.float32)[:, None, None]

    def feedback(self, told: Transitions) -> None:
        """Collect episodes; learn when there are enough."""
        rows = self._features(told.observations)
        for row, key in enumerate(told.keys):
            self._now[key].append((rows[row], int(told.actions[row, 0, 0]), float(told.rewards[row])))
            self.seen += 1
            if not (told.terminated[row] or told.truncated[row]):
                continue
            episode = self._now.pop(key)
            about = told.info[row].get("episode", {})
            if about.get("mask", True):  # a lost session is no result
                self.returns.append(float(about.get("r", sum(reward for *_, reward in episode))))
                self._ready.append(episode)
        if len(self._ready) >= self._batch:
            self._learn()

    def connection_closed(self, connection: int) -> None:
        """What was collected for this connection is void; its episodes go on under another one."""
        for key in [key for key in self._now if key.connection == connection]:
            del self._now[key]

    def _features(self, observations: Observations) -> np.ndarray[Any, Any]:
        rows = observations.states["obs"].astype(np.float64)
        return np.concatenate([rows, np.ones((len(rows), 1))], axis=1)

    def _chances(self, features: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        scores = features @ self.weights
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances: np.ndarray[Any, Any] = powers / powers.sum(axis=1, keepdims=True)
        return chances

    def _learn(self) -> None:
        episodes, self._ready = self._ready, []
        features = np.array([row for episode in episodes for row, _, _ in episode])
        actions = np.array([action for episode in episodes for _, action, _ in episode])
        gains: list[float] = []
        for episode in episodes:
            gain, column = 0.0, []
            for *_, reward in reversed(episode):
                gain = reward + self._discount * gain
                column.append(gain)
            gains += reversed(column)
        worth = np.array(gains)
        worth = (worth - worth.mean()) / (worth.std() + 1e-8)
        wrong = np.eye(2)[actions] - self._chances(features)
        slope = features.T @ (wrong * worth[:, None]) / len(worth)
        self._steps += 1
        self._moments[0] = 0.9 * self._moments[0] + 0.1 * slope
        self._moments[1] = 0.999 * self._moments[1] + 0.001 * slope**2
        first, second = self._moments[0] / (1 - 0.9**self._steps), self._moments[1] / (1 - 0.999**self._steps)
        self.weights = self.weights + self._rate * first / (np.sqrt(second) + 1e-8)
