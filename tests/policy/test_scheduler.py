"""When a batch runs: decided without sockets and clocks, and carried out on events."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import pytest

from openenv.policy.scheduler import InferQueue, Scheduler


@dataclass(frozen=True)
class Infer:
    connection: int
    envs: int = 1
    since: float = 0.0


def queue(*connections: int, size: int | None = None) -> InferQueue[Infer]:
    queue: InferQueue[Infer] = InferQueue(size, warn_after_s=5.0)
    for connection in connections:
        queue.opened(connection)
    return queue


def test_nothing_is_ready_before_an_infer() -> None:
    assert not queue().ready
    assert not queue(1, 2).ready


def test_every_open_connection_is_waited_for() -> None:
    waiting = queue(1, 2, 3)
    waiting.put(Infer(2))
    waiting.put(Infer(3))
    assert not waiting.ready
    waiting.put(Infer(1))
    assert waiting.ready
    assert waiting.take() == [Infer(2), Infer(3), Infer(1)]  # first come, first served
    assert not waiting.ready


def test_a_connection_that_comes_is_waited_for_and_one_that_goes_is_not() -> None:
    waiting = queue(1)
    waiting.put(Infer(1))
    assert waiting.ready
    waiting.opened(2)
    assert not waiting.ready
    waiting.closed(2)
    assert waiting.ready


def test_what_a_closed_connection_had_queued_goes_with_it() -> None:
    waiting = queue(1, 2)
    waiting.put(Infer(1))
    waiting.closed(1)
    assert not waiting.ready
    waiting.put(Infer(2))
    assert waiting.take() == [Infer(2)]


def test_the_last_connection_goes() -> None:
    waiting = queue(1)
    waiting.put(Infer(1))
    waiting.closed(1)
    assert not waiting.ready
    assert waiting.warning(99.0) is None


def test_a_batch_size_counts_envs() -> None:
    waiting = queue(1, 2, 3, size=4)
    waiting.put(Infer(1, envs=3))
    assert not waiting.ready
    waiting.put(Infer(3, envs=2))
    assert waiting.ready  # without connection 2
    assert waiting.take() == [Infer(1, 3), Infer(3, 2)]


def test_a_batch_size_is_not_forced() -> None:
    waiting = queue(1, size=4)
    waiting.put(Infer(1, envs=3))
    warning = waiting.warning(5.0)
    assert warning is not None
    assert "3 of 4 envs" in warning
    assert "mini_infer_batch_size" in warning
    assert not waiting.ready
    waiting.opened(2)
    waiting.put(Infer(1, envs=3))
    waiting.take()
    waiting.put(Infer(1, envs=3))
    warning = waiting.warning(5.0)
    assert warning is not None
    assert "mini_infer_batch_size" not in warning  # another connection has yet to ask


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_size_is_positive(size: int) -> None:
    with pytest.raises(ValueError, match="mini_infer_batch_size"):
        InferQueue(size)


def test_it_warns_once_for_each_batch_and_names_who_is_missing() -> None:
    waiting = queue(1, 2, 3)
    assert waiting.warning_at() is None
    waiting.put(Infer(1, since=10.0))
    waiting.put(Infer(3, since=14.0))
    assert waiting.warning_at() == 15.0
    assert waiting.warning(14.9) is None
    warning = waiting.warning(15.0)
    assert warning is not None
    assert "[2]" in warning
    assert waiting.warning(20.0) is None
    assert waiting.warning_at() is None
    waiting.closed(2)
    waiting.take()
    waiting.put(Infer(1, since=30.0))
    assert waiting.warning_at() == 35.0


class Ran:
    def __init__(self, waiting: InferQueue[Infer]) -> None:
        self.now = 0.0
        self.batches: asyncio.Queue[list[Infer]] = asyncio.Queue()
        self.scheduler = Scheduler(waiting, self.batches.put, lambda: self.now)

    async def __aenter__(self) -> Ran:
        self.task = asyncio.create_task(self.scheduler.serve())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


async def test_events_wake_it() -> None:
    waiting = queue(1, 2)
    async with Ran(waiting) as ran:
        waiting.put(Infer(1))
        ran.scheduler.wake()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert ran.batches.empty()
        waiting.closed(2)
        ran.scheduler.wake()
        async with asyncio.timeout(5):
            assert await ran.batches.get() == [Infer(1)]


async def test_what_comes_while_a_batch_runs_is_the_next_batch() -> None:
    waiting = queue(1)
    release = asyncio.Event()
    began: asyncio.Queue[list[Infer]] = asyncio.Queue()

    async def run(batch: list[Infer]) -> None:
        began.put_nowait(batch)
        await release.wait()

    scheduler = Scheduler(waiting, run, lambda: 0.0)
    task = asyncio.create_task(scheduler.serve())
    async with asyncio.timeout(5):
        waiting.put(Infer(1))
        scheduler.wake()
        await began.get()
        waiting.opened(2)
        waiting.put(Infer(1, envs=7))
        waiting.put(Infer(2))
        scheduler.wake()
        release.set()
        assert await began.get() == [Infer(1, envs=7), Infer(2)]
    task.cancel()
    await asyncio.wait([task])


async def test_a_long_wait_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    waiting: InferQueue[Infer] = InferQueue(warn_after_s=0.01)
    waiting.opened(1)
    waiting.opened(2)
    loop = asyncio.get_running_loop()
    logged = asyncio.Event()
    handler = logging.Handler()
    handler.emit = lambda record: logged.set()  # type: ignore[method-assign]
    logging.getLogger("openenv.policy").addHandler(handler)
    ran: asyncio.Queue[list[Infer]] = asyncio.Queue()
    scheduler = Scheduler(waiting, ran.put, loop.time)
    task = asyncio.create_task(scheduler.serve())
    try:
        waiting.put(Infer(1, since=loop.time()))
        scheduler.wake()
        async with asyncio.timeout(5):
            await logged.wait()
        assert "connection(s) [2]" in caplog.text
        assert ran.empty()
        assert not waiting.ready
    finally:
        logging.getLogger("openenv.policy").removeHandler(handler)
        task.cancel()
        await asyncio.wait([task])
