"""The right to come back to a session, as its server keeps it. Pure: no sockets, no clock.

A session has a public id and a secret token. Whoever presents the token may attach to the session, and is told a new
token for the next time. The old one stays good until it is certain that the new one arrived: a client whose answer
was lost comes again with the old one. Of tokens only hashes are kept (clauses E5, E20, E22 of ``openenv.v1``).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from openenv.core.wire.v1 import LostReason

__all__ = ["EndedSessions", "Ghost", "Granted", "Refused", "TokenRing", "digest_of"]

KEPT_ENDINGS = 10_000
"""Of how many ended sessions it is remembered why they ended."""


@dataclass(frozen=True, slots=True)
class Granted:
    """The holder may attach; ``token`` is for its next resume."""

    token: str


@dataclass(frozen=True, slots=True)
class Ghost:
    """A dial that its client gave up long ago: it changes nothing."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Not a token of this session."""


@dataclass(slots=True)
class _Token:
    digest: bytes
    attempt: int = 0


class TokenRing:
    """The tokens of one session: the one in force, and the one that was told last and is not yet known to have come.

    Args:
        draw: makes a token; a random one of 256 bits by default.

    Attributes:
        first: the first token, to be told once to the client that opened the session.
    """

    __slots__ = ("_current", "_draw", "_told", "first")

    def __init__(self, draw: Callable[[], str] = lambda: secrets.token_urlsafe(32)) -> None:
        self._draw = draw
        self.first = draw()
        self._current = _Token(digest_of(self.first))
        self._told: _Token | None = None

    def present(self, token: str, attempt: int) -> Granted | Ghost | Refused:
        """A client wants to resume.

        Args:
            token: what it holds.
            attempt: its count of resumes with this token. A lower one than was seen before belongs to an older dial
                that was overtaken; an equal one to another holder of the same token.
        """
        if not self.holds(token):
            return Refused()
        if self._told is not None and _same(self._told.digest, token):
            self.arrived()
        if attempt < self._current.attempt:
            return Ghost()
        self._current.attempt = attempt
        new = self._draw()
        self._told = _Token(digest_of(new))
        return Granted(new)

    def arrived(self) -> None:
        """The client that was told the newest token has spoken: the older one is void."""
        if self._told is not None:
            self._current, self._told = self._told, None

    def holds(self, token: str) -> bool:
        """Whether this is a token of the session."""
        current = _same(self._current.digest, token)
        told = self._told is not None and _same(self._told.digest, token)
        return current or told


class EndedSessions:
    """Why sessions ended, for the clients that come back to them. Forgets the oldest.

    Args:
        kept: how many to remember.
    """

    __slots__ = ("_kept", "_reasons")

    def __init__(self, kept: int = KEPT_ENDINGS) -> None:
        self._kept = kept
        self._reasons: OrderedDict[bytes, LostReason] = OrderedDict()

    def add(self, session: str, reason: LostReason) -> None:
        """Note why a session ended."""
        self._reasons[digest_of(session)[:16]] = reason
        while len(self._reasons) > self._kept:
            self._reasons.popitem(last=False)

    def reason(self, session: str) -> LostReason:
        """Why a session ended; `LostReason.UNKNOWN` if that is not known."""
        return self._reasons.get(digest_of(session)[:16], LostReason.UNKNOWN)


def digest_of(text: str) -> bytes:
    """What is kept of a token or an id, instead of it.

    Args:
        text: the token or id, of any characters.
    """
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _same(digest: bytes, text: str) -> bool:
    return hmac.compare_digest(digest, digest_of(text))
