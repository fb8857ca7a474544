"""The one I/O thread of a process: an event loop that all blocking clients share.

It goes on while the trainer computes, so pings are answered, and it costs one thread whatever the number
of clients.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["IoThread"]

T = TypeVar("T")

RESOLVER_THREADS = 2
"""Threads for name look-ups; asyncio's own default grows with the machine."""


class IoThread:
    """An event loop on a daemon thread. Use `IoThread.shared()`."""

    _shared: IoThread | None = None
    _guard = threading.Lock()

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(ThreadPoolExecutor(RESOLVER_THREADS, thread_name_prefix="openenv-resolve"))
        self.thread = threading.Thread(target=self._run, name="openenv-io", daemon=True)
        self.thread.start()

    @classmethod
    def shared(cls) -> IoThread:
        """The I/O thread of this process; started when it is first needed, and anew in a forked child."""
        with cls._guard:
            if cls._shared is None or cls._shared.pid != os.getpid():
                cls._shared = cls()
            return cls._shared

    @classmethod
    def owns(cls, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether this is the loop of the I/O thread."""
        return cls._shared is not None and cls._shared.loop is loop

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    async def bridge(
        self, work: Callable[[], Coroutine[Any, Any, T]], interrupted: Callable[[BaseException | None], object]
    ) -> T:
        """Run a coroutine on the I/O thread and await it on another event loop.

        Args:
            work: makes the coroutine; called on the I/O thread.
            interrupted: as for `run`.
        """
        future: Future[T] = Future()
        self.loop.call_soon_threadsafe(_start, work, future, interrupted)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel() and not future.cancelled():
                self.loop.call_soon_threadsafe(interrupted, future.exception())
            raise

    def run(
        self, work: Callable[[], Coroutine[Any, Any, T]], interrupted: Callable[[BaseException | None], object]
    ) -> T:
        """Run a coroutine on the I/O thread and wait for it.

        Args:
            work: makes the coroutine; called on the I/O thread.
            interrupted: called on the I/O thread when the waiting thread was interrupted (Ctrl-C, a signal handler
                that raises) although the coroutine had finished: its result reached nobody. Its argument is the
                coroutine's error, if it had one.

        Raises:
            RuntimeError: called on the I/O thread itself, which would wait for ever.
        """
        if threading.current_thread() is self.thread:
            raise RuntimeError("A blocking call was made on the I/O thread; await it instead.")
        future: Future[T] = Future()
        try:
            self.loop.call_soon_threadsafe(_start, work, future, interrupted)
            return future.result()
        except BaseException as error:
            if future.done() and not future.cancelled() and future.exception() is error:
                raise
            if not future.cancel() and not future.cancelled():
                self.loop.call_soon_threadsafe(interrupted, future.exception())
            raise


def _start(
    work: Callable[[], Coroutine[Any, Any, T]], future: Future[T], interrupted: Callable[[BaseException | None], object]
) -> None:
    """Run on the I/O thread: start the coroutine and tie its fate to the future, both ways."""
    if future.cancelled():
        return
    loop = asyncio.get_running_loop()
    task = loop.create_task(work())

    def waiter_gone(future: Future[T]) -> None:
        if future.cancelled():
            loop.call_soon_threadsafe(task.cancel)

    def finished(task: asyncio.Task[T]) -> None:
        error = None if task.cancelled() else task.exception()
        if not future.set_running_or_notify_cancel():
            if not task.cancelled():
                interrupted(error)
        elif task.cancelled():
            future.set_exception(asyncio.CancelledError())
        elif error is not None:
            future.set_exception(error)
        else:
            future.set_result(task.result())

    task.add_done_callback(finished)
    future.add_done_callback(waiter_gone)


def _after_fork() -> None:
    """A forked child has no I/O thread, and a guard that may be held by a thread that is not there."""
    IoThread._guard = threading.Lock()
    IoThread._shared = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
