"""The frames that ``openenv.v1`` adds to the plain dialect: opening, resuming, giving up.

Each frame is a small value with ``frame()`` (to a JSON object) and ``read()`` (from the ``data`` of one). Unknown
members are ignored; a missing or wrong one is a `MalformedFrame`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Self

from openenv.core.wire.json_codec import MAX_DEPTH, MalformedFrame

__all__ = [
    "PROTOCOL",
    "SUBPROTOCOL",
    "Cancel",
    "CloseCode",
    "Lease",
    "Lost",
    "LostReason",
    "Open",
    "Opened",
    "Queued",
    "Release",
    "Resume",
    "Resumed",
    "V1ErrorCode",
    "Welcome",
]

SUBPROTOCOL = "openenv.v1"
PROTOCOL = 1


class CloseCode(IntEnum):
    """Close codes that end a session for good (E24). Any other end of a socket is only the socket's."""

    CLOSED = 1000
    CAPACITY = 1013
    REPLACED = 4000
    IDLE = 4001
    DRAINING = 4002
    PROTOCOL = 4003

    @classmethod
    def final(cls, code: int | None, reason: str) -> CloseCode | None:
        """Read a close: 1000 is final only with the reason ``closed``, since proxies also close with 1000."""
        if code is None or code not in set(cls) or (code == cls.CLOSED and reason != "closed"):
            return None
        return cls(code)


class LostReason(StrEnum):
    """Why a session cannot be resumed (E20)."""

    EXPIRED = "expired"
    EVICTED = "evicted"
    UNKNOWN = "unknown"
    EPOCH = "epoch"
    CLOSED = "closed"
    CRASHED = "crashed"
    IDLE = "idle"
    NEVER_CALLED = "never_called"


class V1ErrorCode(StrEnum):
    """Codes of error frames that only ``openenv.v1`` has."""

    BUSY = "BUSY"
    CANCELLED = "CANCELLED"
    REPLY_TOO_LARGE = "REPLY_TOO_LARGE"
    SEQ_MISMATCH = "SEQ_MISMATCH"
    SEQ_OUT_OF_ORDER = "SEQ_OUT_OF_ORDER"


@dataclass(frozen=True, slots=True)
class Welcome:
    """The server's first frame (E2).

    Attributes:
        server: name and version of the server's software.
        features: what it implements.
        epoch: names this server process.
        max_message_bytes: largest frame it reads; None if it does not say.
        max_depth: deepest nesting it reads.
        grace_s: how long it keeps a session whose socket is gone, in seconds.
        protocol: version of the protocol.
    """

    server: str
    features: tuple[str, ...]
    epoch: str
    max_message_bytes: int | None = None
    max_depth: int = MAX_DEPTH
    grace_s: float = 0.0
    protocol: int = PROTOCOL

    def frame(self) -> dict[str, Any]:
        limits = {"max_message_bytes": self.max_message_bytes, "max_depth": self.max_depth}
        data = {
            "protocol": self.protocol,
            "server": self.server,
            "features": list(self.features),
            "limits": {name: limit for name, limit in limits.items() if limit is not None},
            "epoch": self.epoch,
            "grace_s": self.grace_s,
        }
        return {"type": "welcome", "data": data}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        limits = data.get("limits")
        limits = limits if isinstance(limits, dict) else {}
        return cls(
            protocol=_int(data, "protocol"),
            server=_text(data, "server", ""),
            features=_texts(data, "features"),
            epoch=_text(data, "epoch"),
            max_message_bytes=_int(limits, "max_message_bytes", None),
            max_depth=_int(limits, "max_depth", MAX_DEPTH) or MAX_DEPTH,
            grace_s=_number(data, "grace_s", 0.0),
        )


@dataclass(frozen=True, slots=True)
class Open:
    """Ask for a new session (E3).

    Attributes:
        uses: features the client will use.
        max_message_bytes: largest reply it takes; None for any.
        wait_for_slot_s: how long it would wait for a free slot, in seconds.
    """

    uses: tuple[str, ...] = ()
    max_message_bytes: int | None = None
    wait_for_slot_s: float = 0.0

    def frame(self) -> dict[str, Any]:
        data: dict[str, Any] = {"uses": list(self.uses), "wait_for_slot_s": self.wait_for_slot_s}
        if self.max_message_bytes is not None:
            data["max_message_bytes"] = self.max_message_bytes
        return {"type": "open", "data": data}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            uses=_texts(data, "uses"),
            max_message_bytes=_int(data, "max_message_bytes", None),
            wait_for_slot_s=_number(data, "wait_for_slot_s", 0.0),
        )


@dataclass(frozen=True, slots=True)
class Opened:
    """The session is there. ``session`` is public, ``token`` is the secret that resumes it (E5)."""

    session: str
    token: str = field(repr=False)

    def frame(self) -> dict[str, Any]:
        return {"type": "opened", "data": {"session": self.session, "token": self.token}}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        return cls(session=_text(data, "session"), token=_text(data, "token"))


@dataclass(frozen=True, slots=True)
class Queued:
    """The client waits for a slot; ``position`` counts from 1 (E28)."""

    position: int

    def frame(self) -> dict[str, Any]:
        return {"type": "queued", "data": {"position": self.position}}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        return cls(position=_int(data, "position"))


@dataclass(frozen=True, slots=True)
class Lease:
    """What a client keeps to come back to its session."""

    session: str
    token: str = field(repr=False)
    epoch: str = ""


@dataclass(frozen=True, slots=True)
class Resume:
    """Come back to a session (E20).

    Attributes:
        lease: which one, and the right to it.
        last_reply: number of the last reply that arrived.
        attempt: counts the resumes with this token, from 1.
    """

    lease: Lease
    last_reply: int
    attempt: int

    def frame(self) -> dict[str, Any]:
        data = {
            "session": self.lease.session,
            "token": self.lease.token,
            "epoch": self.lease.epoch,
            "last_reply": self.last_reply,
            "attempt": self.attempt,
        }
        return {"type": "resume", "data": data}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        lease = Lease(_text(data, "session"), _text(data, "token"), _text(data, "epoch", ""))
        return cls(lease=lease, last_reply=_int(data, "last_reply"), attempt=_int(data, "attempt"))


@dataclass(frozen=True, slots=True)
class Resumed:
    """The session is back.

    Attributes:
        token: the secret for the next resume.
        last_seq: number of the last call the server started.
        running: whether that call still runs.
    """

    token: str = field(repr=False)
    last_seq: int = 0
    running: bool = False

    def frame(self) -> dict[str, Any]:
        data = {"token": self.token, "last_seq": self.last_seq, "running": self.running}
        return {"type": "resumed", "data": data}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        return cls(token=_text(data, "token"), last_seq=_int(data, "last_seq"), running=data.get("running") is True)


@dataclass(frozen=True, slots=True)
class Lost:
    """The session cannot be resumed. ``reason`` is a `LostReason`, or a word of a newer server."""

    reason: str

    def frame(self) -> dict[str, Any]:
        return {"type": "lost", "data": {"reason": self.reason}}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        return cls(reason=_text(data, "reason"))


@dataclass(frozen=True, slots=True)
class Release:
    """The client does not want a session any more; has no reply (E3, E25)."""

    session: str
    token: str = field(repr=False)

    def frame(self) -> dict[str, Any]:
        return {"type": "release", "data": {"session": self.session, "token": self.token}}

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        return cls(session=_text(data, "session"), token=_text(data, "token"))


@dataclass(frozen=True, slots=True)
class Cancel:
    """The caller of call ``seq`` gave up (E13)."""

    seq: int

    def frame(self) -> dict[str, Any]:
        return {"type": "cancel", "seq": self.seq}


def _required(data: Mapping[str, Any], name: str) -> MalformedFrame:
    return MalformedFrame(f"'{name}' is missing or of the wrong type" if name in data else f"'{name}' is missing")


def _text(data: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = data.get(name, default)
    if not isinstance(value, str):
        raise _required(data, name)
    return value


def _texts(data: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = data.get(name, [])
    if not isinstance(value, list):
        raise _required(data, name)
    return tuple(item for item in value if isinstance(item, str))


_MISSING: Any = object()


def _int(data: Mapping[str, Any], name: str, default: Any = _MISSING) -> Any:
    value = data.get(name, default)
    if value is default and default is not _MISSING:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _required(data, name)
    return value


def _number(data: Mapping[str, Any], name: str, default: float) -> float:
    value = data.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise _required(data, name)
    return float(value)
