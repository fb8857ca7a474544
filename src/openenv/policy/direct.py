"""The blocking agent's own transport: the calling thread owns the socket.

It is for a server that is reached over plain TCP. Behind TLS, a proxy or a redirect, and on systems other than Linux,
the connection is one of `IoThreadTransport`, to which all calls are then handed on.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import sys
import time
from collections.abc import Sequence

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.protocol import State
from websockets.uri import WebSocketURI, parse_uri

from openenv.core.exceptions import ForkedClientError
from openenv.core.transport.aio import WebSocketConnector, drop_of, user_agent
from openenv.core.transport.base import DialError, TransportClosed
from openenv.core.transport.io_thread import IoThread
from openenv.core.wire.arrays import Buffer
from openenv.policy.socket_link import SocketLink
from openenv.policy.transport import Frame, IoThreadTransport

try:
    from websockets.proxy import get_proxy
except ImportError:  # before websockets 16
    from websockets.uri import get_proxy  # type: ignore[attr-defined, no-redef]

__all__ = ["DIRECT_SWITCH", "DirectTransport", "is_available", "is_wanted"]

DIRECT_SWITCH = "OPENENV_POLICY_DIRECT"
"""Environment variable: 0 is never, where an agent's ``direct_socket`` does not say otherwise."""

_REDIRECTS = frozenset({300, 301, 302, 303, 307, 308})
_LARGEST_RESPONSE = 1 << 20
_CHUNK = 1 << 16


def is_available() -> bool:
    """Whether this system has what the transport is made of."""
    return hasattr(select, "epoll") and hasattr(os, "eventfd") and sys.platform == "linux"


def is_wanted(direct_socket: bool | None) -> bool:
    """Whether an agent uses this transport, by its argument and the environment."""
    if direct_socket is None:
        direct_socket = os.environ.get(DIRECT_SWITCH, "1").strip().lower() not in ("0", "false", "no", "off")
    return direct_socket and is_available()


class _Redirected(Exception):
    """The server names another address."""


class DirectTransport:
    """See `openenv.policy.transport.Transport`.

    Args:
        connector: where to dial, and with what.
    """

    def __init__(self, connector: WebSocketConnector) -> None:
        self._connector = connector
        self._pid = os.getpid()
        self._link: SocketLink | None = None
        self._other = IoThreadTransport(connector)
        self._through_other = False

    def check(self) -> None:
        if self._pid != os.getpid():
            raise ForkedClientError

    def dial(self, timeout_s: float | None) -> None:
        self.abort()
        began = time.monotonic()
        uri = parse_uri(self._connector.address.url)
        self._through_other = uri.secure or not (self._connector.address.loopback or get_proxy(uri) is None)
        if not self._through_other:
            try:
                self._link = IoThread.shared().run(lambda: _dial(self._connector, uri, timeout_s), _let_go)
            except _Redirected:
                self._through_other = True
                timeout_s = None if timeout_s is None else max(began + timeout_s - time.monotonic(), 0.001)
        if self._through_other:
            self._other.dial(timeout_s)

    def send(self, parts: Sequence[Buffer], timeout_s: float | None) -> None:
        if self._through_other:
            self._other.send(parts, timeout_s)
        else:
            self._open().send(parts, timeout_s)

    def receive(self, timeout_s: float | None) -> Frame:
        return self._other.receive(timeout_s) if self._through_other else self._open().receive(timeout_s)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()
        self._other.close()

    def abort(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.abort()
        self._other.abort()

    def _open(self) -> SocketLink:
        link = self._link
        if link is None:
            raise TransportClosed(drop_of(ConnectionAbortedError("the connection was let go")))
        return link

    def __del__(self) -> None:
        if hasattr(self, "_other"):
            self.abort()


# ------------------------------------------------------------------ opening, on the I/O thread


def _let_go(task: asyncio.Task[SocketLink]) -> None:
    """Whoever dialled was interrupted."""
    if not task.cancelled() and task.exception() is None:
        task.result().abort()


async def _dial(connector: WebSocketConnector, uri: WebSocketURI, timeout_s: float | None) -> SocketLink:
    async with asyncio.timeout(timeout_s):
        try:
            sock = await _connected(uri.host, uri.port)
            try:
                return await _shake_hands(sock, connector, uri)
            except BaseException:  # raised on; nobody else would close it
                sock.close()
                raise
        except (TimeoutError, OSError, WebSocketException, EOFError, ValueError) as error:
            raise DialError(connector.failure(error)) from error


async def _connected(host: str, port: int) -> socket.socket:
    """A TCP connection to the first of the host's addresses that answers."""
    loop = asyncio.get_running_loop()
    failure = OSError(f"{host} has no address")
    for family, kind, proto, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, proto)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(sock, address)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:  # raised on; nobody else would close it
            sock.close()
            raise
        else:
            return sock
    raise failure


async def _shake_hands(sock: socket.socket, connector: WebSocketConnector, uri: WebSocketURI) -> SocketLink:
    """Open the WebSocket. Bytes that follow the response belong to the link."""
    loop = asyncio.get_running_loop()
    limit = connector.max_message_bytes
    largest = None if limit is None else 2 * limit + 1_000_000
    protocol = ClientProtocol(uri, max_size=largest)
    request = protocol.connect()
    request.headers["User-Agent"] = user_agent()
    for name, value in connector.headers.items():
        request.headers[name] = value
    protocol.send_request(request)
    await loop.sock_sendall(sock, b"".join(protocol.data_to_send()))
    response = b""
    while protocol.handshake_exc is None:
        data = await loop.sock_recv(sock, _CHUNK)
        if not data:
            protocol.receive_eof()
            break
        response += data
        head, gap, rest = response.partition(b"\r\n\r\n")
        if not gap and len(response) < _LARGEST_RESPONSE:
            continue
        is_upgrade = response.split(b"\r\n", 1)[0].split(b" ")[1:2] == [b"101"]
        protocol.receive_data(head + gap if is_upgrade else response)
        response = b""
        if protocol.state is State.OPEN:
            return SocketLink(
                sock,
                protocol,
                rest,
                largest=largest,
                ping_interval_s=connector.ping_interval_s,
                ping_timeout_s=connector.ping_timeout_s,
            )
    error = protocol.handshake_exc
    if error is None:
        raise EOFError("the connection was closed during the opening handshake")
    if isinstance(error, InvalidStatus) and error.response.status_code in _REDIRECTS:
        raise _Redirected
    raise error
