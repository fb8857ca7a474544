"""Reads the log of `openenv.testing.counting`: what really happened on the server, whatever a client was told."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Event", "Oracle"]

_POLL_S = 0.01


@dataclass(frozen=True)
class Event:
    """One line of the log.

    Attributes:
        event: ``init``, ``reset``, ``step``, ``state`` or ``close``.
        phase: ``begin``, then ``end`` or ``raised``.
        env: which environment.
        pid: its process.
        thread: where it ran.
        time: seconds, on the clock of that machine.
        mark: name of the request, where it has one.
        op: what a step was asked to do.
        episode: what a reset was told.
    """

    event: str
    phase: str
    env: str
    pid: int = 0
    thread: str = ""
    time: float = 0.0
    mark: str = ""
    op: str = ""
    episode: str | None = None
    seed: int | None = field(default=None, compare=False)


class Oracle:
    """Answers questions about one log. What was appended since is read before every answer.

    Args:
        path: the log.
        since: byte offset to start at; an oracle that starts at the log's present size sees one test only.
    """

    def __init__(self, path: str | os.PathLike[str], *, since: int = 0) -> None:
        self.path = Path(path)
        self._offset = since
        self._events: list[Event] = []
        self._reading = threading.Lock()

    @classmethod
    def from_now(cls, path: str | os.PathLike[str]) -> Oracle:
        """An oracle that sees only what happens from now on."""
        return cls(path, since=Path(path).stat().st_size if Path(path).exists() else 0)

    @property
    def events(self) -> list[Event]:
        """All events, oldest first."""
        with self._reading:
            if self.path.exists():
                with self.path.open("rb") as file:
                    file.seek(self._offset)
                    whole, newline, _ = file.read().rpartition(b"\n")  # what follows is still being written
                self._offset += len(whole) + len(newline)
                self._events += [Event(**json.loads(line)) for line in whole.splitlines()]
            return list(self._events)

    def of(self, event: str, *, env: str | None = None, mark: str | None = None, phase: str = "begin") -> list[Event]:
        """The events of a kind, of one environment or one request if it is named."""
        return [
            one
            for one in self.events
            if one.event == event and one.phase == phase and env in (None, one.env) and mark in (None, one.mark)
        ]

    # ---------------------------------------------------------------- questions

    def times(self, mark: str) -> int:
        """How often the step of this mark ran, on any environment."""
        return len(self.of("step", mark=mark))

    def env_of(self, mark: str) -> str:
        """The environment on which the marked step or reset ran; it must be one.

        Raises:
            LookupError: there is none, or several.
        """
        envs = {one.env for one in self.events if one.mark == mark and one.event in ("step", "reset")}
        if len(envs) != 1:
            raise LookupError(f"{mark!r} ran on {sorted(envs) or 'no environment'}")
        return envs.pop()

    def episode_of(self, mark: str) -> str | None:
        """Mark of the last reset that had completed on its environment when the marked step began; None if none had.

        Raises:
            LookupError: the step did not run exactly once.
        """
        steps = self.of("step", mark=mark)
        if len(steps) != 1:
            raise LookupError(f"{mark!r} ran {len(steps)} times")
        return self._reset_before(steps[0])

    def _reset_before(self, step: Event) -> str | None:
        resets = [
            one
            for one in self.events
            if one.event == "reset" and one.phase == "end" and one.env == step.env and one.time <= step.time
        ]
        return resets[-1].mark if resets else None

    def envs(self) -> list[str]:
        """Environments that were constructed, oldest first."""
        return [one.env for one in self.of("init")]

    def built(self) -> list[str]:
        """Environments whose constructor returned, oldest first."""
        return [one.env for one in self.of("init", phase="end")]

    def was_reset(self, env: str) -> bool:
        """Whether a reset of this environment began."""
        return bool(self.of("reset", env=env))

    def closes(self, env: str) -> int:
        """How often ``close()`` of this environment was called."""
        return len(self.of("close", env=env))

    def alive(self) -> list[str]:
        """Environments whose constructor returned and whose close has not, oldest first."""
        events = self.events
        closed = {one.env for one in events if one.event == "close" and one.phase != "begin"}
        return [one.env for one in events if one.event == "init" and one.phase == "end" and one.env not in closed]

    def most_alive(self) -> int:
        """Most environments that were alive at one moment, from the begin of a constructor to the end of its close."""
        now = most = 0
        for one in self.events:
            if one.event == "init" and one.phase == "begin":
                now += 1
                most = max(most, now)
            elif (one.event, one.phase) in (("init", "raised"), ("close", "end"), ("close", "raised")):
                now -= 1
        return most

    def problems(self) -> list[str]:
        """What must never be, whatever the test: empty if the server kept its rules.

        A second close, anything after a close, a thread other than the constructor's, two calls at once.
        """
        events = self.events
        envs = dict.fromkeys(one.env for one in events)
        return [problem for env in envs for problem in self._problems_of(env, events)]

    @staticmethod
    def _problems_of(env: str, events: list[Event]) -> Iterator[str]:
        events = [one for one in events if one.env == env]
        threads = {one.thread for one in events}
        if len(threads) > 1:
            yield f"{env} ran on {sorted(threads)}"
        closed = False
        running: str | None = None
        for one in events:
            if closed and not (one.event == "close" and one.phase != "begin"):
                yield f"{env}: {one.event} {one.mark} after close"
            if one.phase != "begin":
                if one.event != running:
                    yield f"{env}: {one.event} ended while {running} ran"
                running = None
            else:
                running = one.event
            closed = closed or one.event == "close"

    # ---------------------------------------------------------------- events

    def wait_until(self, true: Callable[[], Any], what: str = "it", timeout_s: float = 30.0) -> None:
        """Look at the log again and again until a condition holds.

        Raises:
            TimeoutError: it does not; the text has the log.
        """
        deadline = time.monotonic() + timeout_s
        while not true():
            if time.monotonic() > deadline:
                lines = "\n".join(f"{e.event} {e.phase} {e.env} {e.mark} {e.op} {e.thread}" for e in self.events[-60:])
                raise TimeoutError(f"waited {timeout_s:g} s for {what}; the log:\n{lines}")
            time.sleep(_POLL_S)

    def wait_for(
        self,
        event: str,
        count: int = 1,
        *,
        env: str | None = None,
        mark: str | None = None,
        phase: str = "begin",
        timeout_s: float = 30.0,
    ) -> list[Event]:
        """Wait until there are this many such events, and return them.

        Raises:
            TimeoutError: there are not.
        """
        what = f"{count} x {event} {phase} {mark or env or ''}"
        self.wait_until(lambda: len(self.of(event, env=env, mark=mark, phase=phase)) >= count, what, timeout_s)
        return self.of(event, env=env, mark=mark, phase=phase)

    def wait_for_all_closed(self, timeout_s: float = 30.0) -> None:
        """Wait until every environment that was built is closed, and its ``close()`` has returned.

        Raises:
            TimeoutError: one was not.
        """
        self.wait_until(lambda: not self.alive(), "every close", timeout_s)
