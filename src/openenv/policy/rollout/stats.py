"""What happened in a rollout: episodes, steps, time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Episode", "RolloutStats", "Timing"]

Timing = Literal["env", "infer", "feedback"]
WINDOW = 100
"""Episodes that the running means look back on."""


@dataclass(frozen=True, slots=True)
class Episode:
    """An episode that has ended.

    Attributes:
        number: counted from 0, over all envs.
        env: which env it was in.
        reward: sum of its rewards.
        steps: env steps.
        success: what the env said of it; False if it says nothing.
        terminated: it came to its own end.
        truncated: it was cut short.
    """

    number: int
    env: int
    reward: float
    steps: int
    success: bool
    terminated: bool
    truncated: bool


@dataclass
class RolloutStats:
    """Counts and times of a rollout.

    Attributes:
        episodes: ended; lost ones are not among them.
        vector_steps: steps of all envs together.
        env_steps: steps of single envs.
        lost: episodes that ended because their session was lost.
        replaced: connections to the policy server that were lost or left, with all chunks.
        inferred: chunks that came.
        reused: observations that were not sent a second time.
        stopped: the server ended the run.
        seconds: time spent in the envs, waiting for actions, and sending feedback.
        recent: the last episodes, up to 100.
    """

    episodes: int = 0
    vector_steps: int = 0
    env_steps: int = 0
    lost: int = 0
    replaced: int = 0
    inferred: int = 0
    reused: int = 0
    stopped: bool = False
    seconds: dict[Timing, float] = field(default_factory=lambda: {"env": 0.0, "infer": 0.0, "feedback": 0.0})
    recent: deque[Episode] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _began: float = field(default_factory=time.perf_counter, repr=False)

    def add(self, episode: Episode) -> None:
        """Count an episode."""
        self.episodes += 1
        self.recent.append(episode)

    @property
    def mean_reward(self) -> float:
        """Of the last episodes; NaN before the first."""
        return sum(one.reward for one in self.recent) / len(self.recent) if self.recent else float("nan")

    @property
    def mean_steps(self) -> float:
        """Length of the last episodes; NaN before the first."""
        return sum(one.steps for one in self.recent) / len(self.recent) if self.recent else float("nan")

    @property
    def success_rate(self) -> float:
        """Of the last episodes; NaN before the first."""
        return sum(one.success for one in self.recent) / len(self.recent) if self.recent else float("nan")

    @property
    def steps_per_second(self) -> float:
        """Steps of single envs in a second, since the rollout was made."""
        return self.env_steps / max(time.perf_counter() - self._began, 1e-9)

    @property
    def reuse_share(self) -> float:
        """Share of the observations asked with that the server already had."""
        return self.reused / self.inferred if self.inferred else 0.0

    def summary(self) -> Mapping[str, Any]:
        """All of it as plain values, for a log or a file."""
        return {
            "episodes": self.episodes,
            "mean_reward": round(self.mean_reward, 4),
            "mean_steps": round(self.mean_steps, 2),
            "success_rate": round(self.success_rate, 4),
            "env_steps": self.env_steps,
            "steps_per_second": round(self.steps_per_second, 1),
            "lost": self.lost,
            "replaced": self.replaced,
            "reuse_share": round(self.reuse_share, 4),
            "stopped": self.stopped,
            **{f"{name}_s": round(seconds, 3) for name, seconds in self.seconds.items()},
        }
