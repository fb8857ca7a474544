"""An environment that counts, and writes down everything that happens to it, for tests on any side."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.exceptions import InvalidActionError

LOG_VARIABLE = "COUNT_ENV_LOG"
"""Names a file to which every event is appended as one JSON line, for environments in another process."""

_numbers = itertools.count(1)


class CountAction(Action):
    """``op`` says what to do: see `CountEnv.step`."""

    op: str = "inc"
    arg: Any = None


class CountObservation(Observation):
    """Which instance answered, and how many steps it has run."""

    env_no: int
    count: int
    echo: Any = None


class CountState(State):
    """The same, as a state."""

    env_no: int = 0


class Log:
    """What happened to all `CountEnv` of this process: dicts with ``event``, ``env_no``, ``thread`` and more."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._changed = threading.Condition()

    def add(self, event: str, env_no: int, **more: Any) -> None:
        """Write an event down, in memory and in the file of `LOG_VARIABLE`."""
        entry = {"event": event, "env_no": env_no, "thread": threading.current_thread().name, **more}
        path = os.environ.get(LOG_VARIABLE)
        if path:
            with open(path, "a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")
        with self._changed:
            self.events.append(entry)
            self._changed.notify_all()

    def of(self, event: str, env_no: int | None = None) -> list[dict[str, Any]]:
        """The events of a kind, of one instance or of all."""
        return [one for one in self.events if one["event"] == event and env_no in (None, one["env_no"])]

    def wait_for(self, event: str, count: int = 1, env_no: int | None = None, timeout_s: float = 20.0) -> None:
        """Block until there are ``count`` such events."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self.of(event, env_no)) >= count, timeout_s)
        assert came, f"waited for {count} x {event!r}; there was {self.events}"


class CountEnv(Environment[CountAction, CountObservation, CountState]):
    """Counts its steps. Does not call ``super().__init__()``, as half of all environments.

    Class attributes `log` (new for every subclass made by `fresh_env`) and `release` (sleeping steps wait for it).
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    log = Log()
    release = threading.Event()

    def __init__(self) -> None:
        self.env_no = next(_numbers)
        self.count = 0
        self.closed = False
        self.episode_id: str | None = None
        self.log.add("init", self.env_no)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> CountObservation:
        self.log.add("reset", self.env_no, seed=seed)
        self.count = 0
        self.episode_id = episode_id
        return CountObservation(env_no=self.env_no, count=0, echo=kwargs or None)

    def step(self, action: CountAction, timeout_s: float | None = None, **kwargs: Any) -> CountObservation:
        """Ops: inc, echo, sleep (``arg`` seconds, or until `release`), raise, exit, nan, inf, bytes, np, big,
        object, invalid, done, meta, reward (``arg``)."""
        assert not self.closed, "step on a closed environment"
        self.log.add("step", self.env_no, op=action.op, mark=action.metadata.get("mark"))
        if action.op == "invalid":
            raise InvalidActionError(str(action.arg or "not allowed"))
        if action.op == "raise":
            raise ValueError(str(action.arg or "env boom"))
        if action.op == "exit":
            raise SystemExit(3)
        if action.op == "sleep":
            self.release.wait(action.arg)
            self.log.add("slept", self.env_no)
        self.count += 1
        return self._observe(action)

    def _observe(self, action: CountAction) -> CountObservation:
        seen = CountObservation(env_no=self.env_no, count=self.count, reward=0.5)
        match action.op:
            case "echo":
                seen.echo = action.arg
            case "nan" | "inf":
                seen.reward = float(action.op)
                seen.echo = [float(action.op), -float(action.op)]
            case "bytes":
                seen.echo = {"raw": b"\x00\xff"}
            case "object":
                seen.echo = {"deep": [1, object()]}
            case "np":
                import numpy

                seen.reward = numpy.float32(0.25)
                seen.echo = {"array": numpy.arange(3), "scalar": numpy.int64(7)}
            case "big":
                seen.echo = "x" * int(action.arg)
            case "done":
                seen.done = True
            case "meta":
                seen.metadata = {"k": 1}
            case "reward":
                seen.reward = action.arg
        return seen

    @property
    def state(self) -> CountState:
        self.log.add("state", self.env_no)
        return CountState(episode_id=self.episode_id, step_count=self.count, env_no=self.env_no)

    def close(self) -> None:
        self.closed = True
        self.log.add("close", self.env_no)


def fresh_env() -> type[CountEnv]:
    """A subclass with a log and a release event of its own."""
    return type("CountEnv", (CountEnv,), {"log": Log(), "release": threading.Event()})


def read_log(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The events that another process has written."""
    try:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    except FileNotFoundError:
        return []


def wait_for_log(path: str | os.PathLike[str], event: str, count: int, timeout_s: float = 20.0) -> None:
    """Poll the file of another process until it holds ``count`` such events."""
    deadline = time.monotonic() + timeout_s
    while sum(one["event"] == event for one in read_log(path)) < count:
        assert time.monotonic() < deadline, f"waited for {count} x {event!r}; there was {read_log(path)}"
        time.sleep(0.02)
