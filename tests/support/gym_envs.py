"""Gymnasium environments for tests: one of images, one of every kind of space, and one that writes down what it ran."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from support.live import LiveServer

__all__ = ["FRAME", "Log", "Logged", "Mixed", "Picture", "Serving", "plain", "register"]

Serving = Callable[..., LiveServer]
"""Starts the server of an environment, by its name and arguments."""

FRAME = (84, 84, 4)


class Picture(gymnasium.Env[Any, Any]):
    """Noise that depends on the seed and the actions, as four stacked grey frames."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 12}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(0, 255, FRAME, np.uint8)
        self.action_space = spaces.Discrete(3, start=-1)
        self.render_mode = render_mode
        self._seen = np.zeros(FRAME, np.uint8)

    def _look(self) -> tuple[Any, dict[str, Any]]:
        self._seen = self.np_random.integers(0, 256, FRAME, np.uint8)
        return self._seen, {"mean": self._seen.mean(axis=(0, 1)), "corner": int(self._seen[0, 0, 0])}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        seen, info = self._look()
        return seen, {**info, "options": options or {}}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action not in self.action_space:
            raise ValueError(f"no such action: {action}")
        for _ in range(action + 1):
            self.np_random.random()
        seen, info = self._look()
        return seen, float(seen[0, 0, 0]) * action, bool(seen[0, 0, 0] > 240), False, info

    def render(self) -> Any:
        return self._seen[:, :, :3].copy()


class Mixed(gymnasium.Env[Any, Any]):
    """Every kind of space that goes into a Dict, in both directions: it returns what it was given."""

    def __init__(self) -> None:
        self.action_space = self._space()
        self.observation_space = self._space()

    @staticmethod
    def _space() -> spaces.Dict:
        return spaces.Dict(
            {
                "flags": spaces.MultiBinary((2, 3)),
                "dials": spaces.MultiDiscrete([3, 4], start=[1, -2]),
                "pair": spaces.Tuple((spaces.Discrete(4), spaces.Box(-1, 1, (2, 2), np.float64))),
                "word": spaces.Text(5, charset="abcäß"),
                "deep": spaces.Dict({"level": spaces.Box(-np.inf, np.inf, (1,), np.float32)}),
            }
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return plain(self.observation_space, self.observation_space.sample()), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return plain(self.observation_space, action), 1.0, False, False, {}


class Log:
    """What ran in which environment, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[int, str, Any]] = []
        self.news = threading.Condition()
        self.numbers = itertools.count()

    def add(self, number: int, event: str, value: Any = None) -> None:
        with self.news:
            self.events.append((number, event, value))
            self.news.notify_all()

    def of(self, event: str) -> list[tuple[int, Any]]:
        """Number of the environment and value of each event of a kind."""
        return [(number, value) for number, kind, value in self.events if kind == event]

    def wait_for(self, done: Callable[[], bool]) -> None:
        with self.news:
            assert self.news.wait_for(done, 30), self.events


class Logged(gymnasium.Env[Any, Any]):
    """Counts its steps: the observation is the pair of its number and the count. An episode ends when it is told to.

    Action 0 goes on, 1 terminates, 2 truncates, 3 raises, 4 waits for the gate.
    """

    def __init__(self, log: Log) -> None:
        self.observation_space = spaces.Box(-1, 10_000, (2,), np.int32)
        self.action_space = spaces.Discrete(5)
        self.gate = threading.Event()
        self._log = log
        self._number = next(log.numbers)
        self._count = 0
        log.add(self._number, "init", self)

    def _seen(self) -> Any:
        return np.array([self._number, self._count], np.int32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._count = 0
        self._log.add(self._number, "reset", (seed, options))
        return self._seen(), {"reset": True}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._log.add(self._number, "step", int(action))
        if action == 3:
            raise RuntimeError("told to raise")
        if action == 4:
            assert self.gate.wait(30)
        self._count += 1
        return self._seen(), 1.0, action == 1, action == 2, {"count": self._count}

    def close(self) -> None:
        self._log.add(self._number, "close")


def plain(space: gymnasium.Space[Any], value: Any) -> Any:
    """Numbers of a Discrete are Python's after the wire; everything else is what it was."""
    if isinstance(space, spaces.Discrete):
        return int(value)
    if isinstance(space, spaces.Dict):
        return {key: plain(child, value[key]) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(plain(child, item) for child, item in zip(space.spaces, value, strict=True))
    if isinstance(space, spaces.Sequence) and not space.stack:
        return tuple(plain(space.feature_space, item) for item in value)
    if isinstance(space, spaces.OneOf):
        return int(value[0]), plain(space.spaces[value[0]], value[1])
    return value


def register() -> None:
    """Make them known to Gymnasium, once."""
    if "test/Picture-v0" not in gymnasium.registry:
        gymnasium.register("test/Picture-v0", Picture, max_episode_steps=20)
        gymnasium.register("test/Mixed-v0", Mixed, max_episode_steps=20)


register()
