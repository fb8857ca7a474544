"""The in-memory transport: two ends of one connection inside a process, for tests without sockets."""

from __future__ import annotations

import asyncio

from openenv.core.session.events import Drop, Oversized
from openenv.core.transport.base import TransportClosed

__all__ = ["MemoryTransport", "memory_pair"]


class MemoryTransport:
    """One end. See `FrameTransport`; ``peer`` is the other end."""

    peer: MemoryTransport

    def __init__(self, subprotocol: str | None = None) -> None:
        self.subprotocol = subprotocol
        self._frames: asyncio.Queue[str | bytes | Drop] = asyncio.Queue()
        self._ended: Drop | None = None

    async def send(self, data: bytes) -> None:
        if self._ended is not None:
            raise TransportClosed(self._ended)
        self.peer._frames.put_nowait(data)
        await asyncio.sleep(0)

    async def receive(self) -> str | bytes | Oversized:
        if self._ended is not None and self._frames.empty():
            raise TransportClosed(self._ended)
        frame = await self._frames.get()
        if isinstance(frame, Drop):
            self._ended = frame
            raise TransportClosed(frame)
        return frame

    async def close(self, goodbye: bytes | None = None) -> bool:
        if goodbye is not None and self._ended is None:
            self.peer._frames.put_nowait(goodbye)
        alive = self._ended is None
        self.drop(Drop(1000, "", "the peer closed the connection"))
        return alive

    def abort(self) -> None:
        self.drop(Drop(detail="the connection was cut without a close frame"))

    def farewell(self, goodbye: bytes) -> None:
        self.abort()

    def drop(self, how: Drop) -> None:
        """End the connection for both ends; frames already on their way still arrive."""
        if self._ended is None:
            self._ended = how
            self.peer._frames.put_nowait(how)
            self._frames.put_nowait(how)


def memory_pair(subprotocol: str | None = None) -> tuple[MemoryTransport, MemoryTransport]:
    """Make a connection.

    Args:
        subprotocol: what both ends agreed on.

    Returns:
        Its two ends.
    """
    one, other = MemoryTransport(subprotocol), MemoryTransport(subprotocol)
    one.peer, other.peer = other, one
    return one, other
