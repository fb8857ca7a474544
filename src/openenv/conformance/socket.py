"""A socket of the checker that grades servers: it writes and reads frames, keeps no rules, and never waits for ever."""

from __future__ import annotations

import json
import socket
import struct
import time
from typing import Any, Self

from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from openenv.conformance.report import NotGraded, Violation

__all__ = ["QUIET_S", "SUBPROTOCOL", "Frame", "Socket", "read_json", "short"]

Frame = dict[str, Any]
SUBPROTOCOL = "openenv.v1"
QUIET_S = 0.25
"""How long a server is listened to where it should say nothing, in seconds."""


def short(value: Any, length: int = 160) -> str:
    """A value for a text, not too long."""
    text = value if isinstance(value, str) else json.dumps(value, default=repr)
    return text if len(text) <= length else f"{text[:length]} ... ({len(text)} characters)"


def read_json(raw: str | bytes, who: str = "the server") -> Frame:
    """Read a frame.

    Raises:
        Violation: it is not a text frame that holds a JSON object with a 'type'.
    """
    if isinstance(raw, bytes):
        raise Violation("binary-frame", f"{who} sent a binary frame")
    try:
        frame = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Violation("bad-json", f"{who} sent text that is not JSON: {short(raw)} ({error})") from None
    if not isinstance(frame, dict) or not isinstance(frame.get("type"), str):
        raise Violation("bad-envelope", f"{who} sent a frame that is no object with a 'type': {short(raw)}")
    return frame


class Socket:
    """One connection to a server. A context manager: it is cut at the end.

    Args:
        url: address of the route, ``ws://...``.
        offers: subprotocols to offer.
        timeout_s: bound of every wait, in seconds.

    Raises:
        NotGraded: nobody listens there.
        Violation: the handshake is refused.
    """

    def __init__(self, url: str, *, offers: tuple[str, ...] = (), timeout_s: float = 10.0) -> None:
        self.timeout_s = timeout_s
        try:
            connection = connect(
                url,
                subprotocols=[Subprotocol(one) for one in offers] or None,
                max_size=None,
                compression=None,
                open_timeout=timeout_s,
                close_timeout=1.0,
                ping_interval=None,
                proxy=None,
            )
            self.ws: ClientConnection = connection.__enter__()  # newer versions connect here; `cut` is the way out
        except InvalidHandshake as error:
            raise Violation("handshake", f"the handshake with {url} failed: {error}") from None
        except (OSError, EOFError, ValueError) as error:  # ValueError: a URL that is none
            raise NotGraded(f"cannot connect to {url}: {error or type(error).__name__}") from None

    @property
    def subprotocol(self) -> str | None:
        return self.ws.subprotocol

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()

    def send(self, frame: Frame | str | bytes) -> None:
        """Write one frame.

        Raises:
            Violation: the server has closed the socket.
        """
        try:
            self.ws.send(frame if isinstance(frame, str | bytes) else json.dumps(frame))
        except ConnectionClosed as closed:
            raise Violation("closed", f"the server closed the socket: {_code(closed)}") from None

    def recv(self, what: str = "an answer", timeout_s: float | None = None) -> Frame:
        """Read one frame.

        Args:
            what: what is waited for, for the text of a violation.
            timeout_s: the bound, if not the socket's.

        Raises:
            Violation: it does not come in time, the socket is closed, or it is no frame.
        """
        return read_json(self.recv_raw(what, timeout_s))

    def recv_raw(self, what: str = "an answer", timeout_s: float | None = None) -> str | bytes:
        """Read one frame as it came."""
        limit = self.timeout_s if timeout_s is None else timeout_s
        try:
            return self.ws.recv(limit)
        except TimeoutError:
            raise Violation("no-answer", f"{what} did not come within {limit:g} s") from None
        except ConnectionClosed as closed:
            raise Violation("closed", f"the socket was closed ({_code(closed)}) where {what} was due") from None

    def ask(self, frame: Frame | str | bytes, what: str = "") -> Frame:
        """Write one frame and read the next."""
        self.send(frame)
        return self.recv(what or f"the answer to {short(frame if not isinstance(frame, bytes) else repr(frame), 80)}")

    def quiet(self, when: str, seconds: float = QUIET_S) -> None:
        """Listen for a while.

        Raises:
            Violation: the server says something.
        """
        try:
            raw = self.ws.recv(seconds)
        except TimeoutError:
            return
        except ConnectionClosed as closed:
            raise Violation("closed", f"the socket was closed ({_code(closed)}) {when}") from None
        raise Violation("unasked-frame", f"the server sent {short(str(raw))} {when}")

    def closed(self, timeout_s: float | None = None) -> tuple[int, str, list[Frame]]:
        """Wait for the end of the socket.

        Returns:
            Code (1006 for none), reason, and the frames that came before it.

        Raises:
            Violation: the socket stays open.
        """
        limit = self.timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit
        frames = []
        try:
            while True:
                frames.append(read_json(self.ws.recv(max(0.001, deadline - time.monotonic()))))
                if time.monotonic() > deadline:
                    raise TimeoutError
        except TimeoutError:
            raise Violation("not-closed", f"the server did not close the socket within {limit:g} s") from None
        except ConnectionClosed as closed:
            return (closed.rcvd.code, closed.rcvd.reason, frames) if closed.rcvd else (1006, "", frames)

    def ping(self) -> None:
        """See that the server answers a ping.

        Raises:
            Violation: it does not.
        """
        try:
            answered = self.ws.ping().wait(self.timeout_s)
        except ConnectionClosed as closed:
            raise Violation("closed", f"the socket was closed ({_code(closed)})") from None
        if not answered:
            raise Violation("no-pong", f"a ping was not answered within {self.timeout_s:g} s")

    def close(self, code: int = 1000, reason: str = "") -> None:
        """End the socket with a close frame."""
        self.ws.close(code, reason)

    def cut(self) -> None:
        """Reset the connection: no close frame, and what is unread is gone."""
        try:
            self.ws.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.ws.socket.shutdown(socket.SHUT_RD)
        except OSError:
            pass  # it is gone already
        self.ws.socket.close()


def _code(closed: ConnectionClosed) -> str:
    return f"code {closed.rcvd.code} {closed.rcvd.reason!r}" if closed.rcvd else "without a close frame"
