"""The I/O thread: results reach their waiter, and a waiter that leaves is told of or cancelled, once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import threading
import weakref
from collections.abc import Iterator

import pytest

from openenv.core.transport.io_thread import IoThread


class Interrupt(Exception):
    """Raised by a signal handler."""


@pytest.fixture
def interrupting() -> Iterator[None]:
    def handle(*_: object) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGUSR1, handle)
    yield
    signal.signal(signal.SIGUSR1, before)


def interrupt_main() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


async def value(it: object) -> object:
    return it


async def fail() -> None:
    raise LookupError("mine")


def test_results_and_errors_come_back() -> None:
    told: list[str] = []
    thread = IoThread.shared()
    assert thread is IoThread.shared()
    assert IoThread.owns(thread.loop)
    assert thread.run(lambda: value(3), lambda _: told.append("interrupted")) == 3
    with pytest.raises(LookupError, match="mine"):
        thread.run(fail, lambda _: told.append("interrupted"))
    assert told == []


def test_an_error_does_not_hold_its_callers_frame() -> None:
    class Held:
        pass

    def call() -> weakref.ref[Held]:
        held = Held()
        with contextlib.suppress(LookupError):
            IoThread.shared().run(fail, lambda _: held)
        return weakref.ref(held)

    gc.disable()
    try:
        held = call()
        IoThread.shared().run(lambda: value(None), lambda _: None)  # the loop has let go of its task
        assert held() is None
    finally:
        gc.enable()


@pytest.mark.usefixtures("interrupting")
def test_an_interrupted_waiter_cancels_the_work() -> None:
    cancelled = threading.Event()
    told: list[str] = []

    async def work() -> None:
        interrupt_main()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(Interrupt):
        IoThread.shared().run(work, lambda _: told.append("interrupted"))
    assert cancelled.wait(20)
    assert told == []


@pytest.mark.usefixtures("interrupting")
def test_work_that_ends_although_its_waiter_has_left_is_told() -> None:
    told = threading.Event()

    async def work() -> str:
        interrupt_main()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            return "finished all the same"
        return ""

    with pytest.raises(Interrupt):
        IoThread.shared().run(work, lambda _: told.set())
    assert told.wait(20)


def test_the_thread_outlives_what_ends_an_event_loop() -> None:
    async def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        IoThread.shared().run(leave, lambda _: None)
    assert IoThread.shared().run(lambda: value(4), lambda _: None) == 4


async def test_the_bridge_brings_results_errors_and_cancellation() -> None:
    thread = IoThread.shared()
    told = threading.Event()
    assert await thread.bridge(lambda: value(3), lambda _: told.set()) == 3
    with pytest.raises(LookupError):
        await thread.bridge(fail, lambda _: told.set())
    started, cancelled = threading.Event(), threading.Event()

    async def work() -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    task = asyncio.create_task(thread.bridge(work, lambda _: told.set()))
    await asyncio.to_thread(started.wait, 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(cancelled.wait, 20)
    assert not told.is_set()


async def test_a_result_whose_waiter_is_cancelled_at_that_moment_is_told() -> None:
    thread = IoThread.shared()
    told, ready = threading.Event(), threading.Event()

    async def work() -> None:
        ready.set()

    task = asyncio.create_task(thread.bridge(work, lambda _: told.set()))
    await asyncio.sleep(0)
    assert ready.wait(20)  # this loop is blocked meanwhile, so the result waits for it
    thread.run(lambda: value(None), lambda _: None)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(told.wait, 20)


def test_a_blocking_call_on_the_thread_itself_is_refused() -> None:
    async def misuse() -> None:
        IoThread.shared().run(lambda: value(1), lambda: None)

    with pytest.raises(RuntimeError, match="on the I/O thread"):
        IoThread.shared().run(misuse, lambda: None)
