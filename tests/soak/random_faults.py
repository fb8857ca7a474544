"""Many clients, a proxy that does them harm at random, and a log that tells whether they were told the truth."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from openenv.testing import ProxyProcess, ServerProcess
from soak.measure import Part, Sampler, Series, say
from soak.players import KINDS, Book, Player, verify

CLIENTS = 64
LONG_HOLE_S = 50.0
LONG_HOLE_EVERY_S = 240.0
LEASE_GRACE_S = 600.0


class Vandal:
    """Does harm to a proxy's connections and to the server behind it."""

    def __init__(self, proxy: ProxyProcess, server: ServerProcess, seed: int) -> None:
        self._proxy, self._server, self._random = proxy, server, random.Random(seed)
        self.done: Counter[str] = Counter()
        self._acts = [
            (8, "cut one", self._cut_one),
            (1, "cut all", self._cut_all),
            (6, "cut on reply", self._cut_on_reply),
            (6, "cut inside", self._cut_inside),
            (2, "hold replies", lambda: self._for_a_while("hold", "reply")),
            (2, "hold requests", lambda: self._for_a_while("hold", "request")),
            (2, "black hole", lambda: self._for_a_while("black_hole")),
            (2, "delay", lambda: self._for_a_while("delay", self._random.uniform(0.01, 0.3))),
            (1, "refuse", lambda: self._for_a_while("refuse", self._random.choice(["rst", "closed"]))),
            (1, "stop the server", self._stop_server),
        ]

    def act(self) -> None:
        """Do one thing, and heal the network."""
        weights = [weight for weight, _, _ in self._acts]
        _, name, act = self._random.choices(self._acts, weights)[0]
        act()
        self._proxy.heal()
        self.done[name] += 1

    def long_hole(self, stop: threading.Event) -> None:
        """Let nothing through for longer than pings take to notice."""
        self._proxy.black_hole()
        stop.wait(LONG_HOLE_S)
        self._proxy.heal()
        self.done["long black hole"] += 1

    def _one(self) -> int:
        """A connection that is probably open: one of the newest."""
        accepted = self._proxy.accepted
        return max(1, accepted - self._random.randrange(CLIENTS))

    def _mode(self) -> str:
        return self._random.choice(["rst", "fin"])

    def _cut_one(self) -> None:
        self._proxy.cut(self._mode(), self._one())  # type: ignore[arg-type]

    def _cut_all(self) -> None:
        self._proxy.cut(self._mode())  # type: ignore[arg-type]

    def _cut_on_reply(self) -> None:
        self._proxy.cut_on_reply(self._mode(), self._one())  # type: ignore[arg-type]
        self._pause(0.5)

    def _cut_inside(self) -> None:
        way = self._random.choice(["request", "reply"])
        self._proxy.cut_after(self._random.randrange(400), way, self._mode(), self._one())  # type: ignore[arg-type]
        self._pause(0.5)

    def _for_a_while(self, name: str, *arguments: object) -> None:
        getattr(self._proxy, name)(*arguments)
        self._pause(self._random.choice([0.1, 0.5, 3.0]))

    def _stop_server(self) -> None:
        self._server.suspend()
        self._pause(self._random.uniform(0.1, 3.0))
        self._server.resume()

    def _pause(self, seconds: float) -> None:
        time.sleep(self._random.uniform(0.2, 1.0) * seconds)


def run_faults(minutes: float, folder: Path, seed: int) -> Part:
    """Let 64 clients, on both dialects and of both kinds, play through random faults."""
    part = Part(f"{CLIENTS} clients, {minutes:g} minutes of random faults, seed {seed}")
    log = folder / "events.jsonl"
    environ = {"OPENENV_COUNTING_CAPACITY": "1024", "OPENENV_COUNTING_LOG": str(log)}
    with (
        ServerProcess("openenv.testing.counting:app", environ=environ) as server,
        ProxyProcess("127.0.0.1", server.port) as proxy,
    ):
        book, stop = Book(folder / "told.tsv"), threading.Event()
        vandal = Vandal(proxy, server, seed)
        part.series = [Series("server", server.pid), Series("clients", os.getpid())]
        for one in part.series:
            one.start()
        players = [Player(f"p{n}", proxy.url, KINDS[n % 2], book, stop) for n in range(CLIENTS)]
        began = time.monotonic()
        with ThreadPoolExecutor(CLIENTS) as pool:
            jobs = [pool.submit(one.play_blocking) for one in players[: CLIENTS // 2]]
            jobs.append(pool.submit(asyncio.run, _play_all(players[CLIENTS // 2 :])))
            _harm(minutes * 60, vandal, part, book, stop)
            stop.set()
            proxy.heal()
            say("faults: the network is whole; clients finish")
            for job in jobs:
                job.result(timeout=180)
        part.seconds = time.monotonic() - began
        book.close()
        say("faults: waiting for what is left to be freed")
        for one in part.series:
            one.settle(LEASE_GRACE_S + 60)
        _judge(part, server, log, book, vandal)
    return part


async def _play_all(players: list[Player]) -> None:
    await asyncio.gather(*(player.play() for player in players))


def _harm(seconds: float, vandal: Vandal, part: Part, book: Book, stop: threading.Event) -> None:
    began = time.monotonic()
    shown = next_hole = 0.0
    next_hole = LONG_HOLE_EVERY_S / 2

    def passed() -> float:
        return time.monotonic() - began

    with Sampler(part.series, lambda: passed() / seconds, max(0.5, seconds / 1000)):
        while passed() < seconds and not book.wrong:
            if passed() > next_hole and seconds - passed() > LONG_HOLE_S:
                vandal.long_hole(stop)
                next_hole += LONG_HOLE_EVERY_S
            vandal.act()
            time.sleep(0.3)
            if passed() - shown > max(10.0, seconds / 30):
                shown = passed()
                steps = sum(count for what, count in book.counts.items() if what.endswith(": steps"))
                say(f"faults: {shown:.0f} of {seconds:.0f} s, {sum(vandal.done.values())} faults, {steps} steps")


def _judge(part: Part, server: ServerProcess, log: Path, book: Book, vandal: Vandal) -> None:
    wrong, counted = verify(log, book.path)
    part.facts = {"faults": dict(sorted(vandal.done.items())), **counted, **dict(sorted(book.counts.items()))}
    part.problems = book.wrong[:50] + wrong[:50]
    part.problems += [p for s in part.series for p in s.problems(load_ratio=1.5, memory_ratio=1.25)]
    for word in ("Exception in ASGI", "never retrieved", "never awaited", "Traceback"):
        if word in server.output:
            part.problems.append(f"the server wrote '{word}': {server.output[-2000:]}")
