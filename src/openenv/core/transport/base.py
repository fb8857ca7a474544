"""What a transport is: it moves whole frames over one connection, and says how that connection ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from openenv.core.session.events import DialFailure, Drop, Oversized, PostFailure

__all__ = ["Connector", "DialError", "FrameTransport", "PostError", "TransportClosed"]


class TransportClosed(Exception):
    """The connection has ended.

    Attributes:
        drop: how.
    """

    def __init__(self, drop: Drop) -> None:
        self.drop = drop
        super().__init__(drop.detail)


class DialError(Exception):
    """A connection could not be opened.

    Attributes:
        failure: why, and whether another try may go better.
    """

    def __init__(self, failure: DialFailure) -> None:
        self.failure = failure
        super().__init__(str(failure.error))


class PostError(Exception):
    """An HTTP request has no answer.

    Attributes:
        failure: why, and whether the server may have got it.
    """

    def __init__(self, failure: PostFailure) -> None:
        self.failure = failure
        super().__init__(str(failure.error))


class FrameTransport(Protocol):
    """One open connection. All methods belong to the event loop that opened it.

    Attributes:
        subprotocol: the WebSocket subprotocol that both ends agreed on; None for the plain dialect.
    """

    subprotocol: str | None

    async def send(self, data: bytes) -> None:
        """Write one frame, text or binary as its first byte says, and wait until the connection can take more.

        Raises:
            TransportClosed: the connection has ended; the frame may have left or not.
        """
        ...

    async def receive(self) -> str | bytes | Oversized:
        """Wait for the next frame.

        Returns:
            Text, or bytes for a binary frame, or `Oversized` for a frame that was read and thrown away.

        Raises:
            TransportClosed: the connection has ended and every frame before its end was received.
        """
        ...

    async def close(self, goodbye: bytes | None = None) -> bool:
        """End the connection within about a second, whatever the peer does.

        Args:
            goodbye: a last text frame.

        Returns:
            Whether the peer has answered, so that it has seen the last frame.
        """
        ...

    def abort(self) -> None:
        """End the connection at once, without a word."""
        ...

    def farewell(self, goodbye: bytes) -> None:
        """Write a last frame straight to the socket and let go of it; for finalizers, from any thread, best effort."""
        ...


Connector = Callable[[], Awaitable[FrameTransport]]
"""Dials once. Raises `DialError`."""
