"""The asyncio transport, on `websockets`."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidProxy,
    InvalidStatus,
    InvalidURI,
    ProxyError,
    SecurityError,
    WebSocketException,
)
from websockets.frames import Close, CloseCode, Frame, Opcode
from websockets.typing import Subprotocol

from openenv.core.exceptions import ConnectError
from openenv.core.session.events import DialFailure, Drop, Oversized
from openenv.core.transport.address import Address
from openenv.core.transport.base import DialError, TransportClosed
from openenv.core.wire.frames import is_text

__all__ = [
    "RETRYABLE_STATUS",
    "WebSocketConnector",
    "WebSocketTransport",
    "drop_of",
    "may_pass",
    "reason_of",
    "user_agent",
]

CLOSE_TIMEOUT_S = 0.4
"""How long a peer has to answer a close frame, and to let go of the TCP connection, before it is cut."""

RETRYABLE_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})

_STATUS_HINTS = {
    401: "the server wants a token: a private Space needs one, as token=..., HF_TOKEN or `hf auth login`",
    403: "the server refused it: a private Space for which this token is not good, a foreign origin, or no /ws route",
    404: "no environment server at this path: a wrong address or Space name, or a private Space without a token",
    429: "too many requests: the host is limiting this client",
    500: "the server failed while it answered the handshake",
    502: "the host cannot reach the server: it may be starting, or it has crashed",
    503: "the server is not ready: a sleeping Space wakes up in a minute or two",
    504: "the host waited too long for the server: it may still be starting",
}


class _Dial(connect):
    """Follows redirects, but takes no header of the caller to another host: any of them may be a secret."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        location = exc.response.headers.get("Location", "") if isinstance(exc, InvalidStatus) else ""
        if isinstance(exc, InvalidStatus) and location.lower().startswith(("http://", "https://")):
            del exc.response.headers["Location"]
            exc.response.headers["Location"] = "ws" + location[4:]  # hosts do not tell a handshake from a page
        target = super().process_redirect(exc)
        if isinstance(target, str):
            old, new = urlsplit(self.uri), urlsplit(target)
            if (old.scheme, old.hostname, old.port) != (new.scheme, new.hostname, new.port):
                self.additional_headers = None
        return target


class _ConnectionLog(logging.LoggerAdapter[logging.Logger]):
    """What `websockets` reports. A dead connection is told of once, by the session machine, so here it is for debugging
    only; and what is for debugging there is left out, since it has headers and frames, and with them tokens."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802
        return level > logging.DEBUG and self.logger.isEnabledFor(logging.DEBUG)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if self.isEnabledFor(level):
            self.logger.log(logging.DEBUG, msg, *args, **kwargs)


_log = _ConnectionLog(logging.getLogger("openenv.client.websockets"), {})


def user_agent() -> str:
    """What this client calls itself."""
    try:
        return f"openenv/{version('openenv')}"
    except PackageNotFoundError:
        return "openenv"


@dataclass(frozen=True)
class WebSocketConnector:
    """Dials one address, once a call.

    Attributes:
        address: where to.
        headers: further headers of the handshake.
        ping_interval_s: seconds between keepalive pings; None for none.
        ping_timeout_s: seconds to wait for a pong before the connection counts as dead; None for ever.
        max_message_bytes: largest reply that is given to a caller; None for no limit. A larger one costs its call,
            not the session; only past twice that the connection ends.
        subprotocols: WebSocket subprotocols to offer.
    """

    address: Address
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ping_interval_s: float | None = 20.0
    ping_timeout_s: float | None = 20.0
    max_message_bytes: int | None = None
    subprotocols: Sequence[str] = ()

    async def __call__(self) -> WebSocketTransport:
        """Open the connection.

        Raises:
            DialError: it failed; says whether another try may go better.
        """
        limit = self.max_message_bytes
        try:
            connection = await _Dial(
                self.address.url,
                subprotocols=[Subprotocol(name) for name in self.subprotocols] or None,
                additional_headers=dict(self.headers) or None,
                user_agent_header=user_agent(),
                compression=None,
                proxy=None if self.address.loopback else True,
                open_timeout=None,
                close_timeout=CLOSE_TIMEOUT_S,
                ping_interval=self.ping_interval_s,
                ping_timeout=self.ping_timeout_s,
                max_size=None if limit is None else 2 * limit + 1_000_000,
                logger=_log,
            )
        except (TimeoutError, OSError, WebSocketException, EOFError, ValueError) as error:
            raise DialError(self.failure(error)) from error
        return WebSocketTransport(connection, limit)

    def failure(self, error: Exception) -> DialFailure:
        """What an error of a handshake means for whoever dials."""
        status = error.response.status_code if isinstance(error, InvalidStatus) else None
        retryable = status in RETRYABLE_STATUS if status is not None else may_pass(error)
        reason = reason_of(error, status)
        message = f"Failed to connect to {self.address.shown}: {reason}{'' if reason.endswith('?') else '.'}"
        connect_error = ConnectError(message, url=self.address.shown, status=status)
        connect_error.__cause__ = error
        return DialFailure(connect_error, retryable=retryable)


def may_pass(error: Exception) -> bool:
    """Whether another try may go better than the one that met this error."""
    if isinstance(error, socket.gaierror):
        return error.errno == socket.EAI_AGAIN
    if isinstance(error, ssl.SSLError):  # a host that starts may cut a TLS handshake, but does not speak something else
        cut = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError)
        return cut or "ALERT_INTERNAL_ERROR" in (error.reason or "")
    if isinstance(error, InvalidURI | InvalidProxy | SecurityError | UnicodeError):
        return False
    return isinstance(error, OSError | EOFError | InvalidHandshake | ProxyError)


def reason_of(error: Exception, status: int | None) -> str:
    """Why a server could not be reached, in words: from the HTTP status, if there was one, or the error."""
    if status is not None:
        hint = _STATUS_HINTS.get(status, "the handshake was refused")
        return f"HTTP {status}, {hint}"
    if isinstance(error, ConnectionRefusedError) or "refused" in str(error).lower():
        return "connection refused: nothing listens there. Is the server up, and is this its port?"
    if isinstance(error, socket.gaierror):
        return f"the host name cannot be resolved ({error.strerror or error})"
    if isinstance(error, ssl.SSLError):
        return _tls_reason(error)
    if isinstance(error, InvalidHandshake):
        return f"the peer does not speak WebSocket there ({error})"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _tls_reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted ({error.verify_message or error})"
    return f"TLS failed ({error.reason or error}). Is it a server without TLS, to be reached with http://?"


class WebSocketTransport:
    """One open WebSocket. See `FrameTransport`."""

    def __init__(self, connection: ClientConnection, max_message_bytes: int | None) -> None:
        self.connection = connection
        self.subprotocol: str | None = connection.subprotocol
        self._limit = max_message_bytes

    async def send(self, data: bytes) -> None:
        try:
            await self.connection.send(data, text=is_text(data))
        except (ConnectionClosed, OSError) as error:
            raise TransportClosed(drop_of(error)) from error

    async def receive(self) -> str | bytes | Oversized:
        try:
            frame = await self.connection.recv(decode=False)
        except (ConnectionClosed, OSError) as error:
            raise TransportClosed(drop_of(error, self._limit)) from error
        if self._limit is not None and len(frame) > self._limit:
            return Oversized(len(frame), self._limit)
        return frame

    async def ping(self) -> float:
        """Send a ping and wait for its pong.

        Returns:
            The round trip, in seconds.

        Raises:
            TransportClosed: the connection ended first.
        """
        try:
            return await (await self.connection.ping())
        except (ConnectionClosed, OSError) as error:
            raise TransportClosed(drop_of(error)) from error

    async def close(self, goodbye: bytes | None = None) -> bool:
        try:
            async with asyncio.timeout(2 * CLOSE_TIMEOUT_S):
                if goodbye is not None:
                    await self.connection.send(goodbye, text=True)
                await self.connection.close()
        except (TimeoutError, ConnectionClosed, OSError):
            pass  # the peer is gone or does not answer: nothing is left to say
        finally:
            self.abort()
        return self.connection.close_code not in (None, 1006)  # 1006: no close frame came from the peer

    def abort(self) -> None:
        if self.connection.loop.is_closed():
            self._release()
        else:
            self.connection.transport.abort()

    def farewell(self, goodbye: bytes) -> None:
        sock = self.connection.transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return
        try:
            if self.connection.transport.get_extra_info("ssl_object") is None:
                frames = (Frame(Opcode.TEXT, goodbye), Frame(Opcode.CLOSE, Close(1000, "").serialize()))
                sock._sock.send(b"".join(frame.serialize(mask=True) for frame in frames), socket.MSG_DONTWAIT)
            sock._sock.shutdown(socket.SHUT_RDWR)
            if self.connection.loop.is_closed():
                self._release()
        except (OSError, AttributeError):
            pass  # best effort: the server notices a closed socket as well

    def _release(self) -> None:
        """Close the socket of an event loop that is gone, for nobody else will."""
        sock = self.connection.transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            sock._sock.close()
        self.connection.transport._sock = None  # type: ignore[attr-defined]


def drop_of(error: Exception, limit: int | None = None) -> Drop:
    """Read how a connection ended. A close code that only we sent is ours."""
    if not isinstance(error, ConnectionClosed):
        return Drop(detail=f"{type(error).__name__}: {error}")
    if error.rcvd is not None and not (error.sent is not None and error.rcvd_then_sent is False):
        text = f" ({error.rcvd.reason})" if error.rcvd.reason else ""
        return Drop(error.rcvd.code, error.rcvd.reason, f"the server closed the connection{text}")
    if error.sent is not None and error.sent.code == CloseCode.MESSAGE_TOO_BIG:
        size = re.search(r"frame with (\d+) bytes exceeds", error.sent.reason)  # not told for a message in fragments
        detail = "a reply was far over this client's size limit"
        found = int(size.group(1)) if size else None
        return Drop(error.sent.code, error.sent.reason, detail, by_us=True, size=found, limit=limit)
    if error.sent is not None:
        silent = "keepalive" in error.sent.reason
        detail = "the server stopped answering pings" if silent else f"the connection failed ({error.sent.reason})"
        return Drop(error.sent.code, error.sent.reason, detail, by_us=True)
    cause = f" ({type(error.__cause__).__name__})" if error.__cause__ is not None else ""
    return Drop(detail=f"the connection was cut without a close frame{cause}")
