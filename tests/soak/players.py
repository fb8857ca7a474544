"""Clients that play and write down what they were told; and the comparison of that with the server's log."""

from __future__ import annotations

import asyncio
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

from faults.harness import check_error
from openenv import GenericEnvClient, OpenEnvError
from openenv.core.exceptions import Outcome

KINDS = ("plain", "v1")
_making = threading.Lock()

Move = tuple[str, tuple[Any, ...], dict[str, Any]]


def make_client(url: str, kind: str, **options: Any) -> GenericEnvClient:
    """A client that offers ``openenv.v1``, or one that does not; with the default times unless told otherwise."""
    with _making:
        before = os.environ.pop("OPENENV_FEATURES", None)
        try:
            if kind == "plain":
                os.environ["OPENENV_FEATURES"] = "none"
            return GenericEnvClient(base_url=url, **options)
        finally:
            os.environ.pop("OPENENV_FEATURES", None)
            if before is not None:
                os.environ["OPENENV_FEATURES"] = before


class Book:
    """Where players write what they were told. One line a step: mark, episode, outcome; kept on disk, not in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._file = path.open("w", encoding="utf-8")
        self._lock = threading.Lock()

    def told(self, mark: str, episode: str, outcome: str) -> None:
        with self._lock:
            self._file.write(f"{mark}\t{episode}\t{outcome}\n")

    def count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def complain(self, text: str) -> None:
        with self._lock:
            self.wrong.append(text)

    def close(self) -> None:
        self._file.close()


class Player:
    """Plays episode after episode: one client, and a new one now and then."""

    def __init__(self, name: str, url: str, kind: str, book: Book, stop: threading.Event) -> None:
        self.name, self._url, self._kind, self._book, self._stop = name, url, kind, book, stop
        self._random = random.Random(name)
        self._marks = 0

    def _mark(self) -> str:
        self._marks += 1
        return f"{self.name}.{self._marks}"

    def moves(self) -> Generator[Move, Any, None]:
        """What to call next; each call's result is sent in, its error thrown in."""
        while not self._stop.is_set():
            try:
                yield from self._episode()
            except OpenEnvError as error:
                self._failed(error)
            yield "sleep", (self._random.uniform(0.0, 0.2),), {}
            if self._random.random() < 0.1:
                yield "renew", (), {}

    def _episode(self) -> Generator[Move, Any, None]:
        episode = self._mark()
        result = yield "reset", (), {"mark": episode}
        self._book.count(f"{self._kind}: resets")
        env = self._check(result, episode, None, 0)
        for count in range(1, self._random.randrange(2, 40)):
            if self._stop.is_set():
                return
            mark = self._mark()
            patience = {"timeout_s": self._random.uniform(0.0, 0.01)} if self._random.random() < 0.01 else {}
            try:
                result = yield "step", ({"op": "inc", "mark": mark},), patience
            except OpenEnvError as error:
                self._book.told(mark, episode, error.outcome.value)
                self._book.count(f"{self._kind}: steps that failed")
                raise
            self._book.told(mark, episode, "answered")
            self._book.count(f"{self._kind}: steps")
            self._check(result, mark, env, count)
            yield "sleep", (self._random.uniform(0.05, 0.4),), {}

    def _check(self, result: Any, mark: str, env: str | None, count: int) -> str:
        seen = result.observation
        if seen["mark"] != mark:
            self._book.complain(f"G4: the answer of {seen['mark']} was given to {mark}")
        if env is not None and seen["env"] != env:
            self._book.complain(f"G1: {mark} ran on {seen['env']}, not on {env}")
        if seen["count"] != count:
            self._book.complain(f"G2: {mark} was step {seen['count']}, not {count}")
        return str(seen["env"])

    def _failed(self, error: OpenEnvError) -> None:
        self._book.count(f"{self._kind}: {type(error).__name__}")
        try:
            check_error(error)
        except AssertionError as wrong:
            self._book.complain(f"G5: {wrong}")

    # ---------------------------------------------------------------- two ways to make the moves

    async def play(self) -> None:
        """Play with the asynchronous client."""
        client = make_client(self._url, self._kind)
        moves, move = self.moves(), None
        result: Any = None
        error: BaseException | None = None
        while True:
            try:
                move = moves.throw(error) if error is not None else moves.send(result)
            except StopIteration:
                break
            result = error = None
            name, args, kwargs = move
            try:
                if name == "sleep":
                    await asyncio.sleep(*args)
                elif name == "renew":
                    await client.close()
                    client = make_client(self._url, self._kind)
                else:
                    result = await getattr(client, name)(*args, **kwargs)
            except Exception as raised:  # whatever it is goes to the player, who knows what is allowed
                error = raised
        await client.close()

    def play_blocking(self) -> None:
        """Play with the blocking client."""
        client = make_client(self._url, self._kind).sync()
        moves, move = self.moves(), None
        result: Any = None
        error: BaseException | None = None
        while True:
            try:
                move = moves.throw(error) if error is not None else moves.send(result)
            except StopIteration:
                break
            result = error = None
            name, args, kwargs = move
            try:
                if name == "sleep":
                    time.sleep(*args)
                elif name == "renew":
                    client.close()
                    client = make_client(self._url, self._kind).sync()
                else:
                    result = getattr(client, name)(*args, **kwargs)
            except Exception as raised:  # as above
                error = raised
        client.close()


# ---------------------------------------------------------------- the verdict


def verify(log: Path, book: Path) -> tuple[list[str], dict[str, int]]:
    """Compare what players were told with what ran. Returns what is wrong, and what was counted."""
    ran: Counter[str] = Counter()
    at: dict[str, str | None] = {}
    reset: dict[str, str] = {}
    closed: Counter[str] = Counter()
    built = 0
    wrong: list[str] = []
    for event in _events(log):
        env, kind, begin = event["env"], event["event"], event["phase"] == "begin"
        if kind == "step" and begin:
            ran[event["mark"]] += 1
            at[event["mark"]] = reset.get(env)
        elif kind == "reset" and not begin:
            reset[env] = event["mark"]
        elif kind == "init" and not begin:
            built += 1
        elif kind == "close" and begin:
            closed[env] += 1
            reset.pop(env, None)
        if closed[env] and kind != "close":
            wrong.append(f"G8: {kind} on {env} after its close")
    wrong += [f"G8: {env} was closed {times} times" for env, times in closed.items() if times != 1]
    told: Counter[str] = Counter()
    with book.open(encoding="utf-8") as lines:
        for line in lines:
            mark, episode, outcome = line.rstrip("\n").split("\t")
            told[outcome] += 1
            times = ran[mark]
            if times > 1:
                wrong.append(f"G2: {mark} ran {times} times")
            if outcome in ("answered", Outcome.APPLIED) and times != 1:
                wrong.append(f"G3: {mark} was told to be {outcome}, and did not run")
            if outcome == Outcome.NOT_APPLIED and times:
                wrong.append(f"G3: {mark} was told not to be applied, and ran")
            if times and at[mark] != episode:
                wrong.append(f"G1: {mark} of {episode} ran in {at[mark]}")
    if built != len(closed):
        wrong.append(f"G8: {built} environments were built, {len(closed)} closed")
    counted = {f"steps told {outcome}": count for outcome, count in sorted(told.items())}
    return wrong, {"environments": built, "steps that ran": sum(ran.values()), **counted}


def _events(log: Path) -> Iterator[dict[str, Any]]:
    with log.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
