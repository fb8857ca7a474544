"""JSON-RPC as the ``/mcp`` route speaks it: requests to bytes, and what a response means. Pure.

Sessions of this route belong to nobody's socket: a request names its session in ``params.session_id``. What a
server of ours does beyond that travels in HTTP headers, so that bodies stay as every server knows them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from openenv.core.exceptions import (
    CapacityError,
    EnvironmentFactoryError,
    OpenEnvError,
    Outcome,
    ServerError,
    ToolCallError,
)
from openenv.core.wire.json_codec import MalformedFrame

__all__ = [
    "FEATURES_HEADER",
    "IDEMPOTENCY_HEADER",
    "SESSION_HEADER",
    "STILL_INITIALIZING",
    "TOKEN_HEADER",
    "UNKNOWN_SESSION",
    "HeldSession",
    "McpFeature",
    "Response",
    "RpcMethod",
    "offered_features",
    "read_features",
    "request_body",
    "session_error",
    "told_session",
    "tool_error",
]

FEATURES_HEADER = "OpenEnv-Features"
TOKEN_HEADER = "OpenEnv-Session-Token"
SESSION_HEADER = "OpenEnv-Session"
IDEMPOTENCY_HEADER = "Idempotency-Key"

UNKNOWN_SESSION = "Unknown session_id"
"""How every server begins to say that it has no such session."""

_NO_TOOL = "Unknown tool"

STILL_INITIALIZING = "still initializing"

_NOT_RUN = frozenset({-32700, -32600, -32601, -32602})
"""Error codes of JSON-RPC 2.0, section 5.1, for a request that was refused before it ran."""


class McpFeature(StrEnum):
    """What a server of ours does beyond the plain ``/mcp``, if a client asks for it."""

    TOKEN = "token"
    """The session wants a secret beside its id; the newest socket that shows it is attached."""
    IDEMPOTENCY = "idempotency"
    """A request that comes again with its key is not run again."""


class RpcMethod(StrEnum):
    """The methods that a client calls."""

    CREATE = "openenv/session/create"
    CLOSE = "openenv/session/close"
    LIST = "tools/list"
    CALL = "tools/call"


@dataclass(frozen=True, slots=True)
class HeldSession:
    """A session that a client has made over HTTP, and that it may come back to over any connection.

    Attributes:
        session_id: its public id.
        token: its secret; empty where the server has none.
        features: what the server does for it.
    """

    session_id: str
    token: str = field(default="", repr=False)
    features: frozenset[McpFeature] = frozenset()

    @property
    def idempotent(self) -> bool:
        """Whether a request may be sent again with its key."""
        return McpFeature.IDEMPOTENCY in self.features


def offered_features() -> str:
    """The value of the header by which a client offers what it can use."""
    return ", ".join(feature.value for feature in McpFeature)


def read_features(header: str) -> frozenset[McpFeature]:
    """What the server's header lists; unknown names are ignored."""
    names = {name.strip().lower() for name in header.split(",")}
    return frozenset(feature for feature in McpFeature if feature.value in names)


# ------------------------------------------------------------------ requests


def request_body(request_id: int | str, method: RpcMethod, session_id: str | None = None, params: bytes = b"") -> bytes:
    """Build the body of a request.

    Args:
        request_id: comes back in the response.
        method: what is asked.
        session_id: the session it is asked of; None for none.
        params: further parameters, as an encoded JSON object.
    """
    inner = params.strip()[1:-1].strip()
    if session_id is not None:
        inner = b'"session_id":%b' % _text(session_id) + (b"," + inner if inner else b"")
    return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":{%b}}' % (_text(request_id), _text(method.value), inner)


def _text(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


# ------------------------------------------------------------------ responses


@dataclass(frozen=True, slots=True)
class Response:
    """A JSON-RPC response: a result or, with a code that is not None, an error.

    Attributes:
        result: the result.
        code: the error's code.
        message: the error's text.
        data: what else the error tells.
    """

    result: Any = None
    code: int | None = None
    message: str = ""
    data: Any = None

    @classmethod
    def read(cls, body: Mapping[str, Any], request_id: int | str | None = None) -> Response:
        """Read a decoded response.

        Args:
            body: the response.
            request_id: the id it must carry; None: any.

        Raises:
            MalformedFrame: it is no JSON-RPC response, or one to another request.
        """
        if body.get("jsonrpc") != "2.0" or ("result" in body) == ("error" in body):
            raise MalformedFrame("the answer is not a JSON-RPC 2.0 response")
        if "error" not in body:
            if request_id is not None and body.get("id") != request_id:
                raise MalformedFrame(f"the answer has the id {body.get('id')!r}, where {request_id!r} was asked")
            return cls(result=body["result"])
        error = body["error"]
        if not isinstance(error, dict) or not isinstance(error.get("code"), int):
            raise MalformedFrame("the error of a JSON-RPC response has no code")
        return cls(code=error["code"], message=str(error.get("message") or ""), data=error.get("data"))

    def as_dict(self) -> dict[str, Any]:
        """The same as a dict, without its id."""
        if not self.is_error:
            return {"jsonrpc": "2.0", "result": self.result}
        return {"jsonrpc": "2.0", "error": {"code": self.code, "message": self.message, "data": self.data}}

    @property
    def is_error(self) -> bool:
        """Whether the request failed."""
        return self.code is not None

    @property
    def session_unknown(self) -> bool:
        """The server has no such session, so it ran nothing."""
        return self.is_error and self.message.startswith(UNKNOWN_SESSION)

    @property
    def session_not_ready(self) -> bool:
        """The session is still being made; another try may go better."""
        return self.is_error and STILL_INITIALIZING in self.message

    @property
    def outcome_unknown(self) -> bool:
        """The request was sent again, and its reply is not kept any more."""
        return self.is_error and isinstance(self.data, dict) and self.data.get("outcome") == "unknown"

    @property
    def outcome(self) -> Outcome:
        """What became of a request that failed: as the server says, else by the code."""
        told = self.data.get("outcome") if isinstance(self.data, dict) else None
        if told in set(Outcome):
            return Outcome(told)
        never = self.code in _NOT_RUN or self.message.startswith(_NO_TOOL)
        return Outcome.NOT_APPLIED if never else Outcome.UNKNOWN


def told_session(response: Response) -> str | None:
    """The session id that the answer to a create request tells; None if it tells none."""
    told = response.result.get("session_id") if isinstance(response.result, dict) else None
    return told if isinstance(told, str) and told else None


def session_error(response: Response, url: str) -> OpenEnvError:
    """The typed error for a session that could not be made.

    Args:
        response: the server's refusal.
        url: the server's address, for the text.
    """
    data = response.data if isinstance(response.data, dict) else {}
    if "max_sessions" in data or "active_sessions" in data:
        active, most = data.get("active_sessions"), data.get("max_sessions")
        return CapacityError(
            active=active if isinstance(active, int) else None, max=most if isinstance(most, int) else None, url=url
        )
    if "factory_name" in data:
        return EnvironmentFactoryError(str(data["factory_name"] or ""), response.message or None)
    return ServerError(response.message, code=str(response.code), outcome=Outcome.NOT_APPLIED, data=data)


def tool_error(tool: str, response: Response) -> ToolCallError:
    """The typed error for a tool call that the server answered with a JSON-RPC error."""
    data = response.data if isinstance(response.data, dict) else {}
    content, structured = data.get("content"), data.get("structured_content")
    error_type = data.get("error_type")
    return ToolCallError(
        response.message,
        tool=tool,
        content=content if isinstance(content, list) else [],
        structured_content=structured if isinstance(structured, dict) else None,
        error_type=error_type if isinstance(error_type, str) else None,
        code=str(response.code),
        outcome=response.outcome,
        data=data,
    )
