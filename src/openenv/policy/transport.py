"""Moving binary frames of the policy link: the one client module here that knows of WebSockets.

`Transport` is what the agents need of it, and all that they use: one connection at a time, dialled, written to and
read from. A message is handed over as the buffers that make it up, so that a transport which writes them one by one
needs no change above; a received frame may be any buffer that does not change afterwards.

The blocking agent's transport is the asynchronous one, run on the process's I/O thread. That thread answers pings while
the caller computes or steps its environments, and both agents share every line that touches the network; it costs two
thread switches an exchange.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from websockets.exceptions import ConnectionClosed

from openenv.core.exceptions import ForeignLoopError, ForkedClientError
from openenv.core.transport.address import Address
from openenv.core.transport.aio import WebSocketConnector, WebSocketTransport, drop_of
from openenv.core.transport.base import TransportClosed
from openenv.core.transport.io_thread import IoThread
from openenv.core.wire.arrays import Buffer

__all__ = ["AsyncTransport", "Frame", "IoThreadTransport", "Transport", "connector_for"]

Frame = bytes | bytearray | memoryview | str
"""A received frame; str for a text frame."""

T = TypeVar("T")


class Transport(Protocol):
    """One connection at a time. Here for the blocking agent; for the asynchronous one every method but `check` and
    `abort` is a coroutine function."""

    def check(self) -> None:
        """Look whether the connection may be used from here; for the asynchronous one, no coroutine either.

        Raises:
            ForkedClientError: it was opened in another process.
            ForeignLoopError: it lives on another event loop, which still runs.
        """
        ...

    def dial(self, timeout_s: float | None) -> None:
        """Open the connection.

        Raises:
            DialError: it failed; says whether another try may go better.
            TimeoutError: it took longer.
        """
        ...

    def send(self, parts: Sequence[Buffer], timeout_s: float | None) -> None:
        """Write one binary frame.

        Raises:
            TransportClosed: there is no connection, or it has ended; the frame may have left or not.
            TimeoutError: it took longer; part of the frame may have left.
        """
        ...

    def receive(self, timeout_s: float | None) -> Frame:
        """Wait for the next frame.

        Raises:
            TransportClosed: there is no connection, or it has ended.
            TimeoutError: it took longer.
        """
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    def close(self) -> None:
        """End the connection with a close frame (1000), within about a second."""
        ...

    def abort(self) -> None:
        """End the connection at once, without a word. May be called from any thread."""
        ...


def connector_for(url: str, api_key: str | None = None, headers: Mapping[str, str] | None = None) -> WebSocketConnector:
    """What dials a policy server: no compression is offered, and no frame is too large [1.1].

    Args:
        url: as ``ws://host:8000``.
        api_key: sent as ``Authorization: Api-Key ...``.
        headers: further headers of the handshake.

    Raises:
        ValueError: not a usable address.
    """
    sent = dict(headers or {})
    if api_key is not None:
        sent["Authorization"] = f"Api-Key {api_key}"
    return WebSocketConnector(Address.parse(url, route="/"), sent)


class AsyncTransport:
    """A WebSocket of the running event loop. See `Transport`.

    Args:
        connector: dials once.
    """

    def __init__(self, connector: WebSocketConnector) -> None:
        self._connector = connector
        self._socket: WebSocketTransport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = os.getpid()

    async def dial(self, timeout_s: float | None) -> None:
        self.abort()
        async with asyncio.timeout(timeout_s):
            self._socket = await self._connector()
        self._loop = asyncio.get_running_loop()

    async def send(self, parts: Sequence[Buffer], timeout_s: float | None) -> None:
        connection = self._open().connection
        frame = parts[0] if len(parts) == 1 else b"".join(parts)
        try:
            async with asyncio.timeout(timeout_s):
                await connection.send(frame, text=False)
        except (ConnectionClosed, OSError) as error:
            if isinstance(error, TimeoutError):  # which is an OSError
                raise
            raise TransportClosed(drop_of(error)) from error

    async def receive(self, timeout_s: float | None) -> Frame:
        connection = self._open().connection
        try:
            async with asyncio.timeout(timeout_s):
                return await connection.recv()
        except (ConnectionClosed, OSError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise TransportClosed(drop_of(error)) from error

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        socket, self._socket = self._socket, None
        if socket is None:
            return
        if self._loop is not asyncio.get_running_loop():
            _abort(socket)
            return
        await socket.close()

    def abort(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            _abort(socket)

    def check(self) -> None:
        if self._pid != os.getpid():
            raise ForkedClientError
        if self._socket is None or self._loop is None or self._loop is asyncio.get_running_loop():
            return
        if self._loop.is_closed():
            self.abort()
        else:
            raise ForeignLoopError(
                "The connection of this agent lives on another event loop. Nothing was sent. Use the agent on the loop "
                "that connected it, or the blocking WebSocketEnvClientAgent, which is bound to none."
            )

    def _open(self) -> WebSocketTransport:
        if self._socket is None:
            raise TransportClosed(drop_of(ConnectionAbortedError("the connection was let go")))
        return self._socket


def _abort(socket: WebSocketTransport) -> None:
    loop = socket.connection.loop
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is loop or loop.is_closed():
        socket.abort()
    else:
        loop.call_soon_threadsafe(socket.abort)


class IoThreadTransport:
    """The asynchronous transport, for a thread that blocks. See `Transport`.

    Args:
        connector: dials once.
    """

    def __init__(self, connector: WebSocketConnector) -> None:
        self._inner = AsyncTransport(connector)
        self._pid = os.getpid()

    def check(self) -> None:
        if self._pid != os.getpid():
            raise ForkedClientError

    def dial(self, timeout_s: float | None) -> None:
        self._run(lambda: self._inner.dial(timeout_s))

    def send(self, parts: Sequence[Buffer], timeout_s: float | None) -> None:
        frame = b"".join(parts)  # here, so that the I/O thread, which others share, is not held up by it
        self._run(lambda: self._inner.send([frame], timeout_s))

    def receive(self, timeout_s: float | None) -> Frame:
        return self._run(lambda: self._inner.receive(timeout_s))

    def sleep(self, seconds: float) -> None:
        self._run(lambda: self._inner.sleep(seconds))

    def close(self) -> None:
        self._run(self._inner.close)

    def abort(self) -> None:
        if self._pid == os.getpid():
            self._inner.abort()

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return IoThread.shared().run(work, lambda task: self._inner.abort())

    def __del__(self) -> None:
        self.abort()  # an agent that was dropped without close() must not keep its connection on the I/O thread
