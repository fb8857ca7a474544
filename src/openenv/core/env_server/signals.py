"""Hearing of SIGTERM before the server does.

An ASGI application is told of a shutdown only after every open request has been answered. A request whose step never
returns would keep the process alive for ever, so the drain begins with the signal itself: the handler that the
server has installed is called as before, and the drain is started beside it.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["early_drain"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def early_drain(begin: Callable[[], object]) -> Iterator[None]:
    """Call ``begin`` on the running loop when the process is asked to end.

    Does nothing outside the main thread, or where nobody handles the signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    ours = {}
    for number in _SIGNALS:
        before = signal.getsignal(number)
        if callable(before) and before is not signal.default_int_handler:
            ours[number] = (_chained(loop, begin, before), before)
            signal.signal(number, ours[number][0])
    try:
        yield
    finally:
        for number, (handler, before) in ours.items():
            if signal.getsignal(number) is handler:
                signal.signal(number, before)


def _chained(
    loop: asyncio.AbstractEventLoop, begin: Callable[[], object], before: Callable[[int, FrameType | None], Any]
) -> Callable[[int, FrameType | None], None]:
    def handler(number: int, frame: FrameType | None) -> None:
        before(number, frame)
        try:
            loop.call_soon_threadsafe(begin)
        except RuntimeError:
            pass  # the loop is closed: there is nothing left to drain

    return handler
