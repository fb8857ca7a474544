"""An event loop that outlives a request, for apps that are tested with Starlette's `TestClient` outside of a block.

There each request gets an event loop of its own, which ends with it and takes every session along. Used as a block,
``with TestClient(app) as client``, and by every real server, the app is started, and nothing here is used.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["LastingLoop"]


class LastingLoop:
    """ASGI middleware: requests of a `TestClient` to an app that nobody has started run on a loop that lasts.

    Args:
        app: what comes after it.
        started: whether the app was started.
    """

    def __init__(self, app: ASGIApp, started: Callable[[], bool]) -> None:
        self._app = app
        self._started = started

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = scope.get("client")
        if scope["type"] == "lifespan" or not client or client[0] != "testclient" or self._started():
            await self._app(scope, receive, send)
            return
        here = asyncio.get_running_loop()

        async def ask() -> Message:
            message: Message = await _on(here, receive())
            return message

        async def tell(message: Message) -> None:
            await _on(here, send(message))

        await _on(_loop(), self._app(scope, ask, tell))


async def _on(loop: asyncio.AbstractEventLoop, work: Any) -> Any:
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))


_lock = threading.Lock()
_shared: asyncio.AbstractEventLoop | None = None


def _loop() -> asyncio.AbstractEventLoop:
    global _shared
    with _lock:
        if _shared is None:
            _shared = asyncio.new_event_loop()
            threading.Thread(target=_shared.run_forever, name="openenv-test-client", daemon=True).start()
        return _shared
