"""Where a policy's code runs: one call at a time, and never on the event loop unless it is a coroutine."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

__all__ = ["PolicyRunner"]

T = TypeVar("T")


class PolicyRunner:
    """Runs the calls of one policy, one after the other, in the order they were asked for."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="openenv-policy")
        self._policy = threading.RLock()
        self._counting = threading.Lock()
        self._turn = asyncio.Lock()
        self._learning = 0

    @property
    def is_learning(self) -> bool:
        """Whether a learn step is in flight."""
        return self._learning > 0

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Keep plain methods of the policy from being called while this is held, by whatever thread."""
        with self._counted(True), self._policy:
            yield

    async def call(
        self,
        function: Callable[..., Any],
        prepare: Callable[[], Any],
        finish: Callable[[Any], T],
        *,
        learns: bool = False,
    ) -> T:
        """Call a function of the policy, when its turn has come.

        Args:
            function: of one argument; plain or async.
            prepare: makes the argument, off the loop.
            finish: makes the result of what the function returned, off the loop.
            learns: count it as a learn step.

        Raises:
            Exception: whatever one of the three raised.
        """
        try:
            with self._counted(learns):
                return await self._in_turn(function, prepare, finish)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancels us: it comes from a future or a task of the policy's own.
            raise RuntimeError("a call of the policy was cancelled from within") from error

    async def _in_turn(self, function: Callable[..., Any], prepare: Callable[[], Any], finish: Callable[[Any], T]) -> T:
        async with self._turn:
            if inspect.iscoroutinefunction(function):
                returned = function(await self._off_loop(prepare))
            else:
                returned = await self._off_loop(lambda: self._run(function, prepare(), finish))
                if not isinstance(returned, _Unfinished):
                    return cast(T, returned)
                returned = returned.awaitable
            result = await returned
            return await self._off_loop(lambda: finish(result))

    async def _off_loop(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, _without_stop_iteration, function)

    def _run(self, function: Callable[[Any], Any], argument: Any, finish: Callable[[Any], T]) -> T | _Unfinished:
        with self._policy:
            returned = function(argument)
            return _Unfinished(returned) if inspect.isawaitable(returned) else finish(returned)

    @contextmanager
    def _counted(self, learns: bool) -> Iterator[None]:
        with self._counting:
            self._learning += learns
        try:
            yield
        finally:
            with self._counting:
                self._learning -= learns

    def close(self) -> None:
        """Take no more calls. One that runs is left to end by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Unfinished:
    """What a plain function returned that has to be awaited on the loop."""

    awaitable: Awaitable[Any]


def _without_stop_iteration(function: Callable[[], T]) -> T:
    """A future cannot carry StopIteration: whoever waited for it would wait for ever (asyncio before 3.12)."""
    try:
        return function()
    except StopIteration as error:
        raise RuntimeError("the policy raised StopIteration") from error
