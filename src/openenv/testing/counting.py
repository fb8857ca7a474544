"""An environment that counts its steps and writes down everything that happens to it.

Its log is the truth in a test: on which environment did an action run, and how often. `openenv.testing.oracle`
reads it. Serve it with ``uvicorn openenv.testing.counting:app``; the variables are

``OPENENV_COUNTING_LOG``
    file to which every event is appended as one JSON line. Without it nothing is written.
``OPENENV_COUNTING_PLAN``
    JSON file, read again before every constructor, reset, state, close and metadata, that says what these do
    first: ``{"init": ["block", "/tmp/gate"], "close": ["raise", "boom"]}``; see `behave` for what there is.
``OPENENV_COUNTING_CAPACITY``
    most sessions at once, 64 by default.
``OPENENV_COUNTING_SESSION_TIMEOUT``
    seconds after which an idle session ends.
``OPENENV_COUNTING_ASYNC``
    ``1`` serves `AsyncCountingEnv`.

This module runs on any OpenEnv server: it uses no more than the names that they all have.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State

if TYPE_CHECKING:
    from fastapi import FastAPI

    app: FastAPI

__all__ = ["AsyncCountingEnv", "CountingAction", "CountingEnv", "CountingObservation", "CountingState", "behave"]

_numbers = itertools.count(1)
_POLL_S = 0.005


class CountingAction(Action):
    """What to do.

    Attributes:
        op: one of `behave`'s, or what the observation shall hold: ``inc``, ``echo`` (``arg`` comes back), ``done``,
            ``big`` (``arg`` characters), ``nan``, ``inf``, ``bytes``, ``np`` (an array and a scalar), ``bigint``,
            ``object`` (has no JSON form), ``reward`` (``arg``). With ``refused`` the validator of this class
            raises ValueError, with ``validator_crash`` something else.
        arg: its argument.
        mark: name of this very request, for the log; also in the observation that answers it.
    """

    op: str = "inc"
    arg: Any = None
    mark: str = ""

    @model_validator(mode="after")
    def _check(self) -> CountingAction:
        if self.op == "refused":
            raise ValueError("this action is refused by its validator")
        if self.op == "validator_crash":
            raise RuntimeError("the validator of this action crashed")
        return self


class CountingObservation(Observation):
    """Which environment answered, how many steps it has run since its reset, and which request this answers."""

    env: str = ""
    count: int = 0
    mark: str = ""
    episode: str | None = None
    echo: Any = None


class CountingState(State):
    """Which environment answered."""

    env: str = ""
    mark: str = ""


def behave(op: str, arg: Any) -> None:
    """Do what a test wants to happen in the middle of a call.

    ``sleep`` ``arg`` seconds; ``block`` until the file ``arg`` exists; ``raise`` RuntimeError with the text ``arg``;
    ``invalid`` raises the error for a move that is not allowed; ``exit`` raises SystemExit; ``interrupt``
    KeyboardInterrupt; ``crash`` ends the process on the spot. Anything else does nothing.
    """
    match op:
        case "sleep":
            time.sleep(arg)
        case "block":
            while not os.path.exists(arg):
                time.sleep(_POLL_S)
        case "raise":
            raise RuntimeError(str(arg or "boom"))
        case "invalid":
            from openenv.core.exceptions import InvalidActionError

            raise InvalidActionError(str(arg or "not allowed"))
        case "exit":
            raise SystemExit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "crash":
            os._exit(9)


def _planned(call: str) -> tuple[str, Any]:
    path = os.environ.get("OPENENV_COUNTING_PLAN")
    if not path:
        return "", None
    try:
        with open(path, encoding="utf-8") as file:
            op, arg = json.load(file).get(call, ("", None))
    except FileNotFoundError:
        return "", None
    return op, arg


class CountingEnv(Environment[CountingAction, CountingObservation, CountingState]):
    """Counts, and logs the begin and the end of its constructor and of every reset, step, state and close.

    ``reset(mark=..., op=..., arg=...)`` marks the reset in the log, and does `behave` in the middle of it.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.env = f"{os.getpid()}.{next(_numbers)}"
        self.count = 0
        self.mark = ""
        self.episode: str | None = None
        with self._noted("init"):
            behave(*_planned("init"))

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        mark: str = "",
        op: str = "",
        arg: Any = None,
        **kwargs: Any,
    ) -> CountingObservation:
        with self._noted("reset", mark=mark, episode=episode_id, seed=seed):
            behave(*_planned("reset"))
            behave(op, arg)
            return self._dealt(mark, episode_id, kwargs)

    def step(self, action: CountingAction, timeout_s: float | None = None, **kwargs: Any) -> CountingObservation:
        with self._noted("step", mark=action.mark, op=action.op):
            behave(action.op, action.arg)
            return self._counted(action)

    @property
    def state(self) -> CountingState:
        with self._noted("state"):
            behave(*_planned("state"))
        return CountingState(episode_id=self.episode, step_count=self.count, env=self.env, mark=self.mark)

    def get_metadata(self) -> EnvironmentMetadata:
        behave(*_planned("metadata"))
        return EnvironmentMetadata(name="CountingEnv", description="counts its steps", version="1.0.0")

    def close(self) -> None:
        with self._noted("close"):
            behave(*_planned("close"))

    def _dealt(self, mark: str, episode: str | None, extra: dict[str, Any]) -> CountingObservation:
        self.count = 0
        self.mark = mark
        self.episode = episode
        return CountingObservation(env=self.env, count=0, mark=mark, episode=episode, echo=extra or None)

    def _counted(self, action: CountingAction) -> CountingObservation:
        self.count += 1
        self.mark = action.mark
        seen = CountingObservation(
            env=self.env, count=self.count, mark=action.mark, episode=self.episode, reward=1.0, echo=None
        )
        _fill(seen, action.op, action.arg)
        return seen

    @contextmanager
    def _noted(self, event: str, **more: Any) -> Iterator[None]:
        self._log(event, "begin", **more)
        phase = "raised"
        try:
            yield
            phase = "end"
        finally:
            self._log(event, phase, **more)

    def _log(self, event: str, phase: str, **more: Any) -> None:
        path = os.environ.get("OPENENV_COUNTING_LOG")
        if not path:
            return
        entry = {
            "event": event,
            "phase": phase,
            "env": self.env,
            "pid": os.getpid(),
            "thread": threading.current_thread().name,
            "time": time.monotonic(),
            **more,
        }
        line = (json.dumps(entry) + "\n").encode()
        target = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(target, line)  # one write: lines of several threads and processes do not mix
        finally:
            os.close(target)


class AsyncCountingEnv(CountingEnv):
    """The same with `reset_async` and `step_async`, which run on the server's loop; they await and never block."""

    async def reset_async(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        mark: str = "",
        op: str = "",
        arg: Any = None,
        **kwargs: Any,
    ) -> CountingObservation:
        with self._noted("reset", mark=mark, episode=episode_id, seed=seed):
            await _behave_async(op, arg)
            return self._dealt(mark, episode_id, kwargs)

    async def step_async(
        self, action: CountingAction, timeout_s: float | None = None, **kwargs: Any
    ) -> CountingObservation:
        with self._noted("step", mark=action.mark, op=action.op):
            await _behave_async(action.op, action.arg)
            return self._counted(action)


async def _behave_async(op: str, arg: Any) -> None:
    if op == "sleep":
        await asyncio.sleep(arg)
    elif op == "block":
        while not os.path.exists(arg):
            await asyncio.sleep(_POLL_S)
    else:
        behave(op, arg)


def _fill(seen: CountingObservation, op: str, arg: Any) -> None:
    match op:
        case "echo":
            seen.echo = arg
        case "done":
            seen.done = True
        case "big":
            seen.echo = "x" * int(arg)
        case "nan" | "inf":
            seen.reward = float(op)
            seen.echo = [float(op), -float(op)]
        case "bytes":
            seen.echo = {"raw": b"\x00\xff"}
        case "np":
            import numpy

            seen.echo = {"array": numpy.arange(3), "scalar": numpy.int64(7)}
        case "bigint":
            seen.echo = 10**30
        case "object":
            seen.echo = {"deep": [1, object()]}
        case "reward":
            seen.reward = arg


def _make_app() -> FastAPI:
    from openenv.core.env_server.http_server import create_app
    from openenv.core.env_server.types import ConcurrencyConfig

    timeout = os.environ.get("OPENENV_COUNTING_SESSION_TIMEOUT")
    capacity = int(os.environ.get("OPENENV_COUNTING_CAPACITY", "64"))
    config = ConcurrencyConfig(max_concurrent_envs=capacity, session_timeout=float(timeout) if timeout else None)
    env = AsyncCountingEnv if os.environ.get("OPENENV_COUNTING_ASYNC") == "1" else CountingEnv
    return create_app(env, CountingAction, CountingObservation, concurrency_config=config, state_cls=CountingState)


def __getattr__(name: str) -> Any:
    if name == "app":  # made when uvicorn asks for it: importing this module reads no variables
        globals()["app"] = made = _make_app()
        return made
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
