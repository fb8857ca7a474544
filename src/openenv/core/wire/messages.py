"""The frames of the plain dialect: their types, their shapes, and what an error frame means.

Requests and replies pair by position only, so a reply is checked against the request it answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from openenv.core.exceptions import (
    ActionValidationError,
    EnvExecutionError,
    EnvironmentFactoryError,
    InvalidActionError,
    MessageTooLargeError,
    OpenEnvError,
    Outcome,
    ServerError,
)
from openenv.core.wire.json_codec import MalformedFrame
from openenv.core.wire.v1 import V1ErrorCode

__all__ = [
    "INVALID_ACTION",
    "REPLY_TYPE",
    "CallKind",
    "Reply",
    "WSErrorCode",
    "close_message",
    "error_from_frame",
    "reply_from_frame",
    "request",
]

INVALID_ACTION = "invalid_action"
"""``type`` of the entry in a VALIDATION_ERROR's ``errors`` when the environment refused the move itself."""


class CallKind(StrEnum):
    """The calls a client makes; each is the ``type`` of its request frame."""

    RESET = "reset"
    STEP = "step"
    STATE = "state"
    MCP = "mcp"


REPLY_TYPE: Mapping[CallKind, str] = {
    CallKind.RESET: "observation",
    CallKind.STEP: "observation",
    CallKind.STATE: "state",
    CallKind.MCP: "mcp",
}


class WSErrorCode(StrEnum):
    """Codes of error frames."""

    INVALID_JSON = "INVALID_JSON"
    UNKNOWN_TYPE = "UNKNOWN_TYPE"
    VALIDATION_ERROR = "VALIDATION_ERROR"
    EXECUTION_ERROR = "EXECUTION_ERROR"
    CAPACITY_REACHED = "CAPACITY_REACHED"
    FACTORY_ERROR = "FACTORY_ERROR"
    SESSION_ERROR = "SESSION_ERROR"


@dataclass(frozen=True, slots=True)
class Reply:
    """One frame from the server.

    Attributes:
        kind: its ``type``; an error frame has kind ``error``.
        data: its ``data``.
        seq: number of the request it answers, where calls are numbered.
    """

    kind: str
    data: dict[str, Any] = field(default_factory=dict)
    seq: int | None = None

    @property
    def is_error(self) -> bool:
        return self.kind == "error"

    @property
    def code(self) -> str:
        """The error code, or an empty string."""
        code = self.data.get("code")
        return code if isinstance(code, str) else ""


def request(kind: CallKind, data: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Build a request frame. A state request carries no ``data`` (servers refuse it)."""
    if kind is CallKind.STATE:
        return {"type": kind.value}
    return {"type": kind.value, "data": dict(data or {})}


def close_message() -> dict[str, Any]:
    """The frame that ends a session on purpose. It has no reply."""
    return {"type": "close"}


def reply_from_frame(frame: Mapping[str, Any]) -> Reply:
    """Read a decoded frame as a reply.

    Raises:
        MalformedFrame: it has no ``type``, or its ``data`` is not an object.
    """
    kind = frame.get("type")
    data = frame.get("data")
    if not isinstance(kind, str):
        raise MalformedFrame("the frame has no type")
    if data is None and kind in _BARE:
        data = {}
    if not isinstance(data, dict):
        raise MalformedFrame(f"the data of a '{kind}' frame must be an object")
    seq = frame.get("seq")
    return Reply(kind, data, seq if isinstance(seq, int) and not isinstance(seq, bool) else None)


_BARE = frozenset({"running"})
"""Types of frames from the server that may come without ``data``."""


def error_from_frame(reply: Reply) -> OpenEnvError:
    """The typed error for an error frame that answers a call and leaves the session open."""
    data = reply.data
    message = str(data.get("message") or "")
    rest = {key: value for key, value in data.items() if key not in ("message", "code")}
    applied = data.get("applied")
    applied = applied if isinstance(applied, bool) else None
    match reply.code:
        case WSErrorCode.VALIDATION_ERROR:
            return _validation_error(message, rest)
        case WSErrorCode.EXECUTION_ERROR:
            error_type = data.get("error_type")
            return EnvExecutionError(
                message,
                error_type=error_type if isinstance(error_type, str) else None,
                applied=applied,
                data=rest,
            )
        case WSErrorCode.FACTORY_ERROR:
            return EnvironmentFactoryError(str(data.get("factory_name") or ""), message or None)
        case V1ErrorCode.REPLY_TOO_LARGE:
            size, limit = data.get("size"), data.get("limit")
            return MessageTooLargeError(
                size=size if isinstance(size, int) else None,
                limit=limit if isinstance(limit, int) else None,
                direction="received",
                outcome=Outcome.APPLIED,
            )
        case WSErrorCode.INVALID_JSON | WSErrorCode.UNKNOWN_TYPE:
            return ServerError(message, code=reply.code, outcome=Outcome.NOT_APPLIED, data=rest)
        case _:
            return ServerError(message, code=reply.code, outcome=Outcome.from_applied(applied), data=rest)


def _validation_error(message: str, rest: Mapping[str, Any]) -> OpenEnvError:
    raw = rest.get("errors")
    errors = [error for error in raw if isinstance(error, dict)] if isinstance(raw, list) else []
    if any(error.get("type") == INVALID_ACTION for error in errors):
        return InvalidActionError(message, data=rest)
    places = [_place(error.get("loc")) for error in errors]
    pairs = zip(places, errors, strict=True)
    told = "; ".join(f"{place or 'action'}: {error.get('msg', '')}" for place, error in pairs)
    return ActionValidationError(
        f"Server error: {message}{': ' + told if told else ''}",
        field=places[0] if places else "",
        errors=errors,
        data=rest,
    )


def _place(loc: Any) -> str:
    """Where in an action an error is. A server may send anything there."""
    return ".".join(map(str, loc)) if isinstance(loc, list | tuple) else str(loc or "")
