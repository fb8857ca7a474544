"""Work of several sessions at the same time, on the I/O thread: begun by one call, collected by another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from openenv.core.exceptions import ForkedClientError
from openenv.core.transport.io_thread import IoThread

__all__ = ["Batch"]

Work = Callable[[], Coroutine[Any, Any, Any]]


class Batch:
    """Coroutines, one a session, that run side by side from now on.

    A wait that is interrupted (Ctrl-C, a time limit) loses nothing: the work goes on and can be waited for again.

    Args:
        works: for each session what makes its coroutine; None where there is nothing to do.
    """

    def __init__(self, works: Sequence[Work | None]) -> None:
        self._io = IoThread.shared()
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._io.loop.call_soon_threadsafe(self._begin, list(works))

    def _begin(self, works: list[Work | None]) -> None:
        for index, work in enumerate(works):
            if work is not None:
                self._tasks[index] = asyncio.get_running_loop().create_task(work())
                self._tasks[index].add_done_callback(_looked_at)

    @property
    def running(self) -> bool:
        """Whether some have not ended."""
        return not self._tasks or not all(task.done() for task in self._tasks.values())

    def wait(self, timeout_s: float | None = None) -> dict[int, Any]:
        """Wait until all have ended.

        Args:
            timeout_s: seconds; None for no limit.

        Returns:
            What each returned, by index.

        Raises:
            TimeoutError: not all have ended yet.
            Exception: the first that was raised, after all have ended; a note says where.
        """
        if IoThread.shared() is not self._io:
            raise ForkedClientError
        self._io.run(lambda: self._all(timeout_s), lambda task: None)
        results: dict[int, Any] = {}
        for index, task in self._tasks.items():
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error is not None:
                error.add_note(f"This was sub-environment {index}.")
                raise error
            results[index] = task.result()
        return results

    async def _all(self, timeout_s: float | None) -> None:
        if not self._tasks:
            return
        _, running = await asyncio.wait(self._tasks.values(), timeout=timeout_s)
        if running:
            raise TimeoutError(
                f"{len(running)} of {len(self._tasks)} sub-environments have not answered in {timeout_s} s"
            )


def _looked_at(task: asyncio.Task[Any]) -> None:
    """An error that nobody waits for any more, because the batch was dropped, is none to report."""
    if not task.cancelled():
        task.exception()
