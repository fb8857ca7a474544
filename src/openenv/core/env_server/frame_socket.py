"""A WebSocket as both dialects of ``/ws`` use it: whole frames, and one exception for a peer that is gone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from fastapi import WebSocket
from starlette.websockets import WebSocketDisconnect

from openenv.core.env_server.frames import Frame
from openenv.core.wire.frames import is_text

__all__ = ["FrameSocket", "PeerGone", "running"]


class PeerGone(Exception):
    """Nothing more can be sent on the socket."""


class FrameSocket:
    """One WebSocket.

    Args:
        socket: not yet accepted.
    """

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._ahead: deque[Frame | None] = deque()

    async def accept(self, subprotocol: str | None = None) -> None:
        """Accept the handshake.

        Raises:
            PeerGone: the peer has left.
        """
        try:
            await self._socket.accept(subprotocol=subprotocol)
        except (WebSocketDisconnect, OSError) as error:
            raise PeerGone from error

    async def receive(self) -> Frame | None:
        """Wait for the next frame; None when the peer is gone."""
        return self._ahead.popleft() if self._ahead else await self._next()

    async def look_ahead(self) -> Frame | None:
        """Wait for a frame without taking it: `receive` gives it later, after those that were looked at before."""
        frame = await self._next()
        self._ahead.append(frame)
        return frame

    @property
    def ahead(self) -> int:
        """Frames that were looked at and not taken."""
        return len(self._ahead)

    async def _next(self) -> Frame | None:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            return None
        text = message.get("text")
        return text if text is not None else bytes(message.get("bytes") or b"")

    async def send(self, frame: bytes) -> None:
        """Send a frame, text or binary as its first byte says.

        Raises:
            PeerGone: the peer has left.
        """
        text = is_text(frame)
        await _sent(self._socket.send_text(frame.decode("utf-8")) if text else self._socket.send_bytes(frame))

    async def close(self, code: int, reason: str = "") -> None:
        """Close the socket.

        Raises:
            PeerGone: the peer has left.
        """
        await _sent(self._socket.close(code, reason))


async def _sent(sending: Coroutine[Any, Any, None]) -> None:
    try:
        await sending
    except (RuntimeError, WebSocketDisconnect, OSError) as error:  # RuntimeError: the socket is being closed
        raise PeerGone from error


@asynccontextmanager
async def running(*works: Coroutine[Any, Any, None]) -> AsyncIterator[tuple[asyncio.Task[None], ...]]:
    """Run coroutines beside the block; at its end, cancel those that still run, and raise what one of them raised."""
    tasks = tuple(asyncio.create_task(work) for work in works)
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
