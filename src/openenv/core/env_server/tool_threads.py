"""Threads for tools outside a server: a thread that works while it waits, and a loop in the background."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from openenv.core.env_server.runner import Crash

__all__ = ["Bench", "background_loop"]

T = TypeVar("T")

_lock = threading.Lock()
_background: tuple[int, asyncio.AbstractEventLoop] | None = None


class Bench:
    """Jobs for a thread that waits for something else."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Hand a job to the waiting thread, and its result to the calling event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def do() -> None:
            try:
                value = work()
            except StopIteration as raised:  # a future cannot carry it
                loop.call_soon_threadsafe(_fail, future, Crash(raised))
            except Exception as raised:  # any error of the job belongs to whoever waits for it
                loop.call_soon_threadsafe(_fail, future, raised)
            else:
                loop.call_soon_threadsafe(_succeed, future, value)

        self._jobs.put(do)
        return future

    def serve(self, until: concurrent.futures.Future[Any]) -> None:
        """Work until something is done; on the thread that waits for it."""
        until.add_done_callback(lambda _: self._jobs.put(None))
        try:
            while (job := self._jobs.get()) is not None:
                job()
        except BaseException:  # a signal, or SystemExit of a job: what was waited for is not wanted any more
            until.cancel()
            raise


def _succeed(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def background_loop() -> asyncio.AbstractEventLoop:
    """An event loop that runs in a thread of its own, the same for the whole process."""
    global _background
    with _lock:
        if _background is None or _background[0] != os.getpid():
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="openenv-tools", daemon=True).start()
            _background = (os.getpid(), loop)
        return _background[1]
