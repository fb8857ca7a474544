"""The one I/O thread of a process: an event loop that all blocking clients share.

It goes on while the trainer computes, so pings are answered, and it costs one thread whatever the number
of clients.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar, cast

__all__ = ["IoThread"]

logger = logging.getLogger("openenv.client")

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
        shared = cls._shared
        if shared is not None and shared.pid == os.getpid():
            return shared  # without the guard, which a signal handler that raises or calls could leave or find held
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
        while not self.loop.is_closed():
            try:
                self.loop.run_forever()
            except BaseException:  # SystemExit of a user's hook leaves the loop, and has reached its caller by then
                logger.debug("the I/O thread goes on", exc_info=True)

    async def bridge(
        self, work: Callable[[], Coroutine[Any, Any, T]], interrupted: Callable[[asyncio.Task[Any]], object]
    ) -> T:
        """Run a coroutine on the I/O thread and await it on another event loop.

        Args:
            work: makes the coroutine; called on the I/O thread.
            interrupted: as for `run`.
        """
        here = asyncio.get_running_loop()
        done: asyncio.Future[None] = here.create_future()

        def told() -> None:
            if not done.done():
                done.set_result(None)

        handover = _Handover(work, lambda: here.call_soon_threadsafe(told), interrupted)
        try:
            self.loop.call_soon_threadsafe(handover.start)
            await done
            return handover.take()
        except BaseException as error:  # raised on; the call has to know that its waiter has left
            handover.leave(self.loop, error)
            raise
        finally:
            del handover  # its error holds this frame

    def run(self, work: Callable[[], Coroutine[Any, Any, T]], interrupted: Callable[[asyncio.Task[Any]], object]) -> T:
        """Run a coroutine on the I/O thread and wait for it.

        A signal handler may raise at any moment of the wait. So no lock of `threading` or `concurrent.futures` is
        shared with the I/O thread: their ``with`` blocks can be left with the lock held.

        Args:
            work: makes the coroutine; called on the I/O thread.
            interrupted: called on the I/O thread with the task of the coroutine when the waiting thread was interrupted
                (Ctrl-C, a signal handler that raises) although it had finished: its outcome reached nobody.

        Raises:
            RuntimeError: called on the I/O thread itself, which would wait for ever.
        """
        if threading.current_thread() is self.thread:
            raise RuntimeError("A blocking call was made on the I/O thread; await it instead.")
        done = threading.Lock()
        done.acquire()
        handover = _Handover(work, done.release, interrupted)
        try:
            self.loop.call_soon_threadsafe(handover.start)
            done.acquire()
            return handover.take()
        except BaseException as error:  # raised on; the call has to know that its waiter has left
            handover.leave(self.loop, error)
            raise
        finally:
            del handover  # its error holds this frame


class _Handover(Generic[T]):
    """One result, from the I/O thread to one waiter elsewhere.

    Either the task hands its result over or the waiter leaves; whichever is first says so in ``_first``, whose
    ``setdefault`` is one step for every thread.
    """

    def __init__(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        wake: Callable[[], object],
        interrupted: Callable[[asyncio.Task[Any]], object],
    ) -> None:
        self._work = work
        self._wake = wake
        self._interrupted = interrupted
        self._first: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None
        self._value: T | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        """On the I/O thread: run the coroutine, unless its waiter has left already."""
        if not self._first:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            self._value = await self._work()
        except BaseException as error:  # whatever it is, it is for the waiter, as if it had made the call itself
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # this frame would hold the error
            self._error = error
        if self._first.setdefault("came", "result") != "result":
            return self._not_taken()
        try:
            self._wake()
        except RuntimeError:  # the event loop of the waiter was closed
            self._not_taken()

    def take(self) -> T:
        """In the waiter, once it was woken."""
        try:
            if self._error is not None:
                raise self._error
            return cast("T", self._value)
        finally:
            del self  # its error holds this frame too

    def leave(self, loop: asyncio.AbstractEventLoop, error: BaseException) -> None:
        """In the waiter: it stops waiting because of this error, which may be the result itself."""
        if error is self._error:
            return
        if self._first.setdefault("came", "end of waiting") != "result":
            loop.call_soon_threadsafe(self._cancel)
        else:
            loop.call_soon_threadsafe(self._not_taken)

    def _not_taken(self) -> None:
        if self._task is not None and not isinstance(self._error, asyncio.CancelledError):
            self._interrupted(self._task)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


def _after_fork() -> None:
    """A forked child has no I/O thread, and a guard that may be held by a thread that is not there."""
    IoThread._guard = threading.Lock()
    IoThread._shared = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
