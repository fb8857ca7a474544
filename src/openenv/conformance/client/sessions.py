"""What the scripted server knows of its sessions, and the rules that hold in every scenario. No input or output."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CALLS", "Call", "Fault", "Session", "read_call", "read_object"]

CALLS = ("reset", "step", "state", "mcp")


class Fault(Exception):
    """The client broke a rule.

    Args:
        clause: number of the clause.
        name: short name of the finding.
        text: what was seen.
    """

    def __init__(self, clause: str, name: str, text: str) -> None:
        self.clause = clause
        self.name = name
        self.text = text
        super().__init__(f"{clause} {name}: {text}")


@dataclass(frozen=True, slots=True)
class Call:
    """A request as it came.

    Attributes:
        kind: its type.
        raw: its bytes.
        data: its data; empty if it has none.
        seq: its number; None without.
    """

    kind: str
    raw: str
    data: Mapping[str, Any]
    seq: int | None


@dataclass
class Session:
    """One session of the scripted server.

    Attributes:
        plain: it is of the plain dialect.
        uses: features in use.
        id: its public name.
        token: the secret that was told last.
        last_seq: number of the last request that came.
        last_reply: number of the last reply that was sent and may have arrived.
        was_reset: a reset came.
        fresh: calls in it must begin with a reset, since its client had a session before.
        attempt: of the last resume with this token.
        requests: the bytes of each numbered request.
    """

    plain: bool
    uses: frozenset[str] = frozenset()
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    last_seq: int = 0
    last_reply: int = 0
    was_reset: bool = False
    fresh: bool = False
    attempt: int = 0
    requests: dict[int, str] = field(default_factory=dict)

    @property
    def numbered(self) -> bool:
        return "seq" in self.uses

    def rotate(self) -> str:
        """Make the next token."""
        self.token = secrets.token_urlsafe(32)
        self.attempt = 0
        return self.token

    def take(self, call: Call, told: dict[str, str]) -> None:
        """See that a request may come now, and remember it.

        Args:
            call: the request.
            told: the steps that came so far, and in which session; this one is added.

        Raises:
            Fault: it may not.
        """
        self._number(call)
        if call.kind == "step":
            content = json.dumps(call.data, sort_keys=True)
            if told.setdefault(content, self.id) != self.id and "retry" not in call.data:
                clause = "P27" if self.plain else "E27"
                raise Fault(clause, "sent-again", f"a step was sent again, in another session: {call.raw[:200]}")
        if call.kind == "reset":
            self.was_reset = True
        elif self.fresh and not self.was_reset:
            clause = "P25" if self.plain else "E15a"
            raise Fault(clause, "silent-reconnect", f"a {call.kind} came on a fresh session before any reset")

    def _number(self, call: Call) -> None:
        if not self.numbered:
            if call.seq is not None:
                clause = "P7" if self.plain else "E4"
                raise Fault(clause, "seq-unused", f"a request has a number, though seq is not in use: {call.raw[:200]}")
            return
        if call.seq != self.last_seq + 1:
            text = f"a {call.kind} has number {call.seq}, where {self.last_seq + 1} was due"
            raise Fault("E7", "wrong-seq", text)
        self.last_seq += 1
        self.requests[self.last_seq] = call.raw


def read_object(raw: str | bytes) -> dict[str, Any]:
    """Read a frame.

    Raises:
        Fault: it is not text that holds a JSON object with a type.
    """
    if isinstance(raw, bytes):
        raise Fault("P14", "binary-frame", "the client sent a binary frame")
    try:
        frame = json.loads(raw)
    except (ValueError, RecursionError):
        raise Fault("P14", "bad-json", f"the client sent text that is not JSON: {raw[:200]}") from None
    if not isinstance(frame, dict) or not isinstance(frame.get("type"), str):
        raise Fault("P14", "bad-envelope", f"the client sent a frame that is no object with a type: {raw[:200]}")
    return frame


def read_call(raw: str, frame: dict[str, Any]) -> Call:
    """Read a request.

    Raises:
        Fault: it has not the shape of one.
    """
    kind, data = frame["type"], frame.get("data", {})
    if more := sorted(set(frame) - {"type", "data", "seq"}):
        raise Fault("P7", "more-members", f"a {kind} has members that no server takes: {', '.join(more)}")
    if kind == "state" and "data" in frame:
        raise Fault("P7", "more-members", "a state has data")
    if not isinstance(data, dict) or (kind == "step" and "data" not in frame):
        clause = "P8" if kind == "step" else "P9"
        raise Fault(clause, "bad-data", f"the data of a {kind} must be an object: {raw[:200]}")
    seq = frame.get("seq")
    if seq is not None and (not isinstance(seq, int) or isinstance(seq, bool)):
        raise Fault("E7", "wrong-seq", f"a number must be a whole number: {raw[:200]}")
    return Call(kind, raw, data, seq)
