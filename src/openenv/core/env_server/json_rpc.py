"""JSON-RPC 2.0 as OpenEnv speaks it: requests in, responses out. No sessions, no sockets, no tools.

Requests that carry no ``id`` are notifications and are not answered; an ``id`` of null is one, as other OpenEnv
servers have it. Parameters go by name. Section numbers are those of the JSON-RPC 2.0 specification.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

from pydantic import ValidationError

from openenv.core.env_server.calls import CallError, clip, refusal
from openenv.core.env_server.mcp_types import JsonRpcErrorCode, JsonRpcRequest
from openenv.core.exceptions import OpenEnvError, SessionCapacityError, SessionNotFoundError
from openenv.core.wire.json_codec import MalformedFrame, parse_json
from openenv.core.wire.messages import WSErrorCode

__all__ = [
    "CLOSE",
    "CREATE",
    "RpcError",
    "RpcRequest",
    "as_rpc_error",
    "failure",
    "is_batch",
    "read_document",
    "success",
]

CREATE = "openenv/session/create"
CLOSE = "openenv/session/close"
MAX_BATCH = 100


class RpcError(CallError):
    """A request that is answered with an error.

    Attributes:
        rpc_code: code of the error.
        rpc_data: its ``data``.
    """

    def __init__(self, rpc_code: int, message: str, rpc_data: Any = None, *, trace: str | None = None) -> None:
        self.rpc_code = int(rpc_code)
        self.rpc_data = rpc_data
        super().__init__(WSErrorCode.EXECUTION_ERROR, message, trace=trace)

    @property
    def hidden(self) -> RpcError:
        """The same without an environment's own words."""
        return self if self.trace is None else RpcError(self.rpc_code, super().hidden.message)


@dataclass(frozen=True, slots=True)
class RpcRequest:
    """A request.

    Attributes:
        method: what is asked for.
        params: its arguments.
        id: comes back in the response.
        silent: it is a notification.
    """

    method: str
    params: dict[str, Any]
    id: str | int | None = None
    silent: bool = False

    @classmethod
    def read(cls, value: Any) -> RpcRequest:
        """Read a decoded request.

        Raises:
            RpcError: it is none (section 4).
        """
        if not isinstance(value, dict):
            raise RpcError(JsonRpcErrorCode.INVALID_REQUEST, "Invalid request: a request is a JSON object")
        try:
            request = JsonRpcRequest.model_validate(value)
        except ValidationError as error:
            raise RpcError(JsonRpcErrorCode.INVALID_REQUEST, f"Invalid request: {error}") from error
        return cls(request.method, request.params, request.id, "id" not in value)

    def text(self, name: str) -> str | None:
        """A parameter that must be text, if it is there.

        Raises:
            RpcError: it is something else.
        """
        value = self.params.get(name)
        if value is None or value == "":
            return None
        if not isinstance(value, str):
            raise RpcError(JsonRpcErrorCode.INVALID_PARAMS, f"Invalid params - '{name}' must be a string")
        return value

    @property
    def unknown_method(self) -> RpcError:
        """The answer to a method that does not exist."""
        return RpcError(JsonRpcErrorCode.METHOD_NOT_FOUND, f"Method not found: {clip(self.method, 100)}")


def read_document(document: str | bytes) -> Any:
    """Parse what was received; a batch comes as a list, which is not empty (section 6).

    Raises:
        RpcError: it is not JSON, or a batch of wrong size.
    """
    try:
        value = parse_json(document)
    except MalformedFrame as error:
        raise RpcError(JsonRpcErrorCode.PARSE_ERROR, f"Parse error: {error}") from error
    if is_batch(value) and not 0 < len(value) <= MAX_BATCH:
        text = f"Invalid request: a batch has 1 to {MAX_BATCH} requests, not {len(value)}"
        raise RpcError(JsonRpcErrorCode.INVALID_REQUEST, text)
    return value


def is_batch(value: Any) -> TypeGuard[list[Any]]:
    """Whether a document is several requests."""
    return isinstance(value, list)


def success(request_id: str | int | None, result: Any) -> dict[str, Any]:
    """The response to a request that worked."""
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def failure(request_id: str | int | None, error: RpcError) -> dict[str, Any]:
    """The response to a request that failed."""
    told = {"code": error.rpc_code, "message": error.message, "data": error.rpc_data}
    return {"jsonrpc": "2.0", "id": request_id, "error": told}


def as_rpc_error(error: CallError | OpenEnvError) -> RpcError:
    """The JSON-RPC form of what any part of the server may say instead of an answer."""
    match error:
        case RpcError():
            return error
        case CallError():
            data = {"code": str(error.code), **error.extra} if error.extra else None
            return RpcError(JsonRpcErrorCode.SERVER_ERROR, error.message, data, trace=error.trace)
        case SessionNotFoundError():
            text = f"Unknown session_id: {clip(error.session_id, 200)}"
            return RpcError(JsonRpcErrorCode.INVALID_PARAMS, text)
        case SessionCapacityError():
            data = {"active_sessions": error.active_sessions, "max_sessions": error.max_sessions}
            return RpcError(JsonRpcErrorCode.SERVER_ERROR, str(error), data)
        case _:
            told = refusal(error)
            return RpcError(JsonRpcErrorCode.SERVER_ERROR, told.message, told.extra or None)
