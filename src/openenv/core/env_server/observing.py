"""Telling a program what happens to the sessions of its server: a display, a metric, a test.

An observer only looks. It is called on the server's event loop, in the order in which things happen, so it must not
block; what it raises is logged and changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Observer", "Observers", "SessionEvent", "SessionEventKind"]

logger = logging.getLogger("openenv.server")


class SessionEventKind(StrEnum):
    """What happened to a session."""

    OPENED = "opened"
    """Its environment is built."""
    CALLED = "called"
    """One of its calls has returned."""
    LEASED = "leased"
    """Its socket is gone; it is kept for its client."""
    RESUMED = "resumed"
    """Its client has come back."""
    ENDED = "ended"
    """It is over, and its environment is to be closed."""
    CLOSED = "closed"
    """Its environment is closed, and its slot is free."""


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """One thing that happened to one session.

    Attributes:
        kind: what.
        session_id: to which session.
        call: of a call: ``reset``, ``step``, ``state``, ``tools/call`` and the like; empty if it was refused unread.
        seconds: of a call, and of the constructor: how long it took.
        error: of a call that failed: the code that its caller was told; else empty.
        reason: of an end: why, in the words of `openenv.core.env_server.session.EndReason`.
    """

    kind: SessionEventKind
    session_id: str
    call: str = ""
    seconds: float = 0.0
    error: str = ""
    reason: str = ""


Observer = Callable[[SessionEvent], object]


class Observers:
    """Those who look at the sessions of one server."""

    def __init__(self) -> None:
        self._observers: list[Observer] = []

    def add(self, observer: Observer) -> Callable[[], None]:
        """Tell an observer from now on.

        Returns:
            What ends that.
        """
        self._observers.append(observer)
        return lambda: self._observers.remove(observer)

    @property
    def any(self) -> bool:
        """Whether there is anybody to be told."""
        return bool(self._observers)

    def tell(self, event: SessionEvent) -> None:
        """Tell them all."""
        for observer in tuple(self._observers):
            try:
                observer(event)
            except Exception:  # whatever a display has to complain of, no session may suffer from it
                logger.exception("an observer failed at %s of session %s", event.kind, event.session_id)
