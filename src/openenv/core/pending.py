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
        self._begun = False
        self._finished = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._inner: Generator[Any, Any, T] | None = None

    # ------------------------------------------------------------------ awaiting

    def __await__(self) -> Generator[Any, Any, T]:
        return self._shared().__await__()

    async def _shared(self) -> T:
        if not self._begun:
            return await self._run_here()
        while not self._finished:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        return self._outcome()

    async def _run_here(self) -> T:
        self._begun = True
        try:
            for earlier in self._started(self):
                await earlier.run_unseen()
            self._value = await self._here()
        except BaseException as error:  # raised on, and kept: every further look sees the same
            self._error = error
            raise
        finally:
            self._finish()
        return self._value

    async def run_unseen(self) -> None:
        """Run a call that nobody has looked at. Its error, if any, is kept for whoever looks later."""
        try:
            await self._shared()
        except Exception:  # kept in self._error; the client's session state tells the next call
            pass

    def _finish(self) -> None:
        self._finished = True
        for waiter in self._waiters:
            waiter.get_loop().call_soon_threadsafe(_wake, waiter)
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
        elif not self._begun:
            self._begun = True
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
        if self._begun:
            raise RuntimeError(f"{self._name}() is being awaited; await it here as well.")
        self._begun = True
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
        if not self.__dict__.get("_begun", True):
            warnings.warn(f"{self._name}() was never awaited or used, so it was never run.", RuntimeWarning, 2, self)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
