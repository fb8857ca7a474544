"""The server's socket, with large messages received into their own memory.

`websockets` keeps the rules, the queue, its limits, pings and closing. Large messages go past it: in its stream each is
replaced by a small one, which holds a place in the queue and is changed back when it is read. What stands in for them
is a secret of the connection, so that a client cannot send it.

Not in this room: what a message means; how frames are told apart, see `openenv.policy.framing`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.frames import Frame, Opcode

from openenv.policy.framing import FrameSplitter

__all__ = ["PolicySocket"]

_END_OF_REQUEST = b"\r\n\r\n"


class PolicySocket(ServerConnection):
    """A connection of a policy server; ``create_connection`` of `websockets`. The arguments are those of its class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._newest = b""
        self._stand_in = secrets.token_bytes(16)
        self._large: deque[bytearray] = deque()

    def data_received(self, data: bytes) -> None:
        self._newest = data
        super().data_received(data)

    def take_large(self, largest: int | None) -> None:
        """From now on take large messages out of the stream. To be called once, when the handshake is over.

        A client that has sent frames already, which none does that waits for metadata, is served without.

        Args:
            largest: bytes of the largest message; None for no limit.
        """
        if self._newest.endswith(_END_OF_REQUEST):
            self.transport.set_protocol(_Splitting(self, FrameSplitter(masked=True, largest=largest)))
        self._newest = b""

    def large_received(self, message: bytearray) -> None:
        """A large message has come: put its stand-in where it was."""
        self._large.append(message)
        super().data_received(Frame(Opcode.BINARY, self._stand_in).serialize(mask=True))

    async def next_message(self) -> str | bytes | bytearray:
        """The next message, as ``recv`` has it. Raises what that raises."""
        message = await self.recv()
        return self._large.popleft() if message == self._stand_in else message


class _Splitting(asyncio.BufferedProtocol):
    """Stands between the TCP connection and `PolicySocket`."""

    def __init__(self, connection: PolicySocket, splitter: FrameSplitter) -> None:
        self._connection = connection
        self._splitter = splitter

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._splitter.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        for item in self._splitter.received(nbytes):
            if isinstance(item, bytearray):
                self._connection.large_received(item)
            else:
                self._connection.data_received(item)

    def eof_received(self) -> None:
        self._connection.eof_received()

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)
