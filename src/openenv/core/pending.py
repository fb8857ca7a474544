"""Calls made without ``await`` under a running event loop: they wait for what the caller does with them."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar, cast

__all__ = ["PendingCall"]

T = TypeVar("T")


class PendingCall(Coroutine[Any, Any, T], Generic[T]):
    """A call that has not begun.

    Awaited, it runs on the awaiting event loop. Touched (``call.observation``), it runs on the I/O thread and the
    toucher waits. Either way it runs once, and every further look sees the same result. A call that nobody looked
    at runs before the client's next one.

    Args:
        name: the method, for messages.
        here: makes the coroutine that runs the call on the event loop it is awaited on.
        blocking: runs the call on the I/O thread and waits for it.
        started: called when the call begins, before it runs; gives back what must run first.
    """

    def __init__(
        self,
        name: str,
        *,
        here: Callable[[], Coroutine[Any, Any, T]],
        blocking: Callable[[], T],
        started: Callable[[PendingCall[T]], list[PendingCall[Any]]],
    ) -> None:
        self._name = name
        self._here = here
        self._blocking = blocking
        self._started = started
        self._first: dict[str, object] = {}  # its setdefault is one step for every thread
        self._finished = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._awaited = 0
        self._unseen: asyncio.Task[T] | None = None
        self._inner: Generator[Any, Any, T] | None = None

    @property
    def _begun(self) -> bool:
        return bool(self._first)

    def _begin(self) -> bool:
        """Whether this caller is the one that runs it."""
        me = object()
        return self._first.setdefault("begun", me) is me

    # ------------------------------------------------------------------ awaiting

    def __await__(self) -> Generator[Any, Any, T]:
        return self._shared().__await__()

    async def _shared(self) -> T:
        if self._begin():
            return await self._run_here()
        self._awaited += 1
        try:
            await self._wait()
        except asyncio.CancelledError:
            unseen = self._unseen
            if unseen is not None and self._awaited == 1:  # nobody else waits for it
                unseen.get_loop().call_soon_threadsafe(unseen.cancel)
            raise
        finally:
            self._awaited -= 1
        return self._outcome()

    async def _wait(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if not self._finished:  # looked at after the waiter was left: another thread may finish meanwhile
            await waiter

    async def _run_here(self) -> T:
        try:
            for earlier in self._started(self):
                await earlier.run_unseen()
            self._value = await self._here()
        except BaseException as error:  # raised on; those who ask again get the same
            self._error = error
            raise
        finally:
            self._finish()
        return self._value

    async def run_unseen(self) -> None:
        """Run a call that nobody has looked at. Its error, if any, is kept for whoever looks later.

        It runs in a task of its own: the cancellation of the caller that runs it first is none of this call.
        """
        if self._begin():
            self._unseen = asyncio.get_running_loop().create_task(self._run_here())
            self._unseen.add_done_callback(lambda task: task.cancelled() or task.exception())
        await self._wait()

    def _finish(self) -> None:
        self._finished = True
        for waiter in self._waiters:
            try:
                waiter.get_loop().call_soon_threadsafe(_wake, waiter)
            except RuntimeError:
                pass  # its event loop was closed: nobody waits
        self._waiters.clear()

    def _outcome(self) -> T:
        if self._error is None:
            return cast("T", self._value)
        if isinstance(self._error, asyncio.CancelledError):
            raise RuntimeError(f"{self._name}() was cancelled before it ended; it has no result.")
        raise self._error

    # a coroutine to create_task(), wait_for() and asyncio.run()

    def send(self, value: Any) -> Any:
        if self._inner is None:
            self._inner = self.__await__()
        return self._inner.send(value)

    def throw(self, typ: Any, val: Any = None, tb: Any = None) -> Any:
        error = typ if val is None else val
        if self._inner is None:
            self.close()  # a task that was cancelled before its first step: the call is never made
            raise error
        return self._inner.throw(error)

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()
        elif self._begin():
            self._error = asyncio.CancelledError()
            self._finish()

    # ------------------------------------------------------------------ touching

    def result(self) -> T:
        """Run the call on the I/O thread and wait for its result.

        Raises:
            RuntimeError: it is being awaited at this moment.
        """
        if self._finished:
            return self._outcome()
        if not self._begin():
            raise RuntimeError(f"{self._name}() is being awaited; await it here as well.")
        try:
            for earlier in self._started(self):
                earlier.result_unseen()
            self._value = self._blocking()
        except BaseException as error:  # raised on, and kept: every further look sees the same
            self._error = error
            raise
        finally:
            self._finish()
        return self._value

    def result_unseen(self) -> None:
        """As `run_unseen`, on the I/O thread."""
        try:
            self.result()
        except Exception:  # kept in self._error; the client's session state tells the next call
            pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "cr_", "gi_", "ag_")):  # asyncio asks every coroutine for these
            raise AttributeError(name)
        return getattr(self.result(), name)

    def __repr__(self) -> str:
        how = "finished" if self._finished else "running" if self._begun else "not begun"
        return f"<{self._name}() call, {how}: await it, or use its result>"

    def __del__(self) -> None:
        if self.__dict__.get("_first") == {}:
            warnings.warn(f"{self._name}() was never awaited or used, so it was never run.", RuntimeWarning, 2, self)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
