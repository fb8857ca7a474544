"""Connect, reset, close, again and again: nothing may stay behind, on either side."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from openenv.testing import ServerProcess
from soak.measure import Part, Sampler, Series, say
from soak.players import KINDS, make_client

WORKERS = 8


class Counter:
    """Hands out cycles to workers."""

    def __init__(self, total: int) -> None:
        self.total, self.taken, self.done = total, 0, 0
        self._lock = threading.Lock()

    def take(self) -> int | None:
        with self._lock:
            if self.taken >= self.total:
                return None
            self.taken += 1
            return self.taken

    def finish(self) -> None:
        with self._lock:
            self.done += 1
            if self.done % max(1, self.total // 10) == 0:
                say(f"cycles: {self.done} of {self.total}")

    @property
    def progress(self) -> float:
        return self.done / self.total


def run_cycles(count: int) -> Part:
    """Run ``count`` cycles over a plain and an ``openenv.v1`` link, half of them with blocking clients."""
    part = Part(f"{count} connect/reset/close cycles")
    environ = {"OPENENV_COUNTING_CAPACITY": "64"}
    with ServerProcess("openenv.testing.counting:app", environ=environ) as server:
        _play(server.url, Counter(40))  # imports, the I/O thread, pools
        part.series = [Series("server", server.pid), Series("clients", os.getpid())]
        for one in part.series:
            one.start()
        counter = Counter(count)
        began = time.monotonic()
        with Sampler(part.series, lambda: counter.progress, max(0.2, count / 50_000)):
            _play(server.url, counter)
        part.seconds = time.monotonic() - began
        for one in part.series:
            one.settle(60)
        part.facts = {"cycles": counter.done, "cycles per second": round(counter.done / part.seconds, 1)}
        part.problems = [p for s in part.series for p in s.problems(load_ratio=1.5, memory_ratio=1.15)]
        part.problems += [f"the server wrote: {server.output[-2000:]}"] if server.output.strip() else []
    return part


def _play(url: str, counter: Counter) -> None:
    with ThreadPoolExecutor(WORKERS) as pool:
        jobs = [pool.submit(_cycle_blocking, url, counter) for _ in range(WORKERS // 2)]
        asyncio.run(_cycle_async(url, counter))
        for job in jobs:
            job.result()


def _cycle_blocking(url: str, counter: Counter) -> None:
    while (number := counter.take()) is not None:
        client = make_client(url, KINDS[number % 2]).sync()
        client.connect()
        assert client.reset(seed=number).observation["count"] == 0
        client.close()
        counter.finish()


async def _cycle_async(url: str, counter: Counter) -> None:
    async def work() -> None:
        while (number := counter.take()) is not None:
            client = make_client(url, KINDS[number % 2])
            await client.connect()
            result = await client.reset(seed=number)
            assert result.observation["count"] == 0
            await client.close()
            counter.finish()

    await asyncio.gather(*(work() for _ in range(WORKERS // 2)))
