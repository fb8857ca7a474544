"""Request frames, as both dialects of ``/ws`` have them: from a decoded frame to what is to be run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from openenv.core.env_server.calls import Call, CallError, clip, validation_error
from openenv.core.env_server.mcp_types import JsonRpcErrorCode, JsonRpcRequest, McpMethod, WSMCPMessage
from openenv.core.env_server.types import WSCloseMessage, WSResetMessage, WSStateMessage, WSStepMessage
from openenv.core.wire.frames import decode
from openenv.core.wire.json_codec import MalformedFrame
from openenv.core.wire.messages import CallKind, WSErrorCode

__all__ = ["DECODE_HERE_BYTES", "Answer", "Frame", "decode_frame", "read_request"]

DECODE_HERE_BYTES = 16 * 1024
"""Longest frame whose envelope is parsed on the event loop; the action in it is validated on the session's thread."""

Frame = str | bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """A frame that is answered without the environment: the ``type`` and ``data`` of the reply."""

    kind: str
    data: Mapping[str, Any]


def decode_frame(frame: Frame, *, binary: bool = False) -> dict[str, Any]:
    """Parse a frame.

    Args:
        frame: as it came.
        binary: whether binary frames are agreed on.

    Raises:
        CallError: it is not an object.
    """
    if isinstance(frame, bytes) and not binary:
        raise CallError(WSErrorCode.INVALID_JSON, "Invalid JSON: frames must be text, not binary")
    try:
        return decode(frame, binary=binary)
    except MalformedFrame as error:
        raise CallError(WSErrorCode.INVALID_JSON, f"Invalid JSON: {error}") from error


def read_request(message: Mapping[str, Any]) -> Call | Answer | None:
    """Read a decoded frame.

    Returns:
        A call for the environment, an answer, or None for the client's close.

    Raises:
        CallError: it is no request, or does not fit.
    """
    kind = message.get("type", "")
    try:
        match kind:
            case "reset":
                return Call(CallKind.RESET, WSResetMessage.model_validate(message).data)
            case "step":
                return Call(CallKind.STEP, WSStepMessage.model_validate(message).data)
            case "state":
                WSStateMessage.model_validate(message)
                return Call(CallKind.STATE)
            case "close":
                WSCloseMessage.model_validate(message)
                return None
            case "mcp":
                return _mcp_answer(WSMCPMessage.model_validate(message).data)
    except ValidationError as error:
        raise validation_error(error) from error
    raise CallError(WSErrorCode.UNKNOWN_TYPE, f"Unknown message type: {clip(str(kind), 100)}")


def _mcp_answer(data: Mapping[str, Any]) -> Answer:
    """Answer an mcp frame of an environment that has no tools."""
    try:
        request = JsonRpcRequest.model_validate(data)
    except ValidationError as error:
        code, text, request_id = JsonRpcErrorCode.INVALID_REQUEST, f"Invalid request: {clip(str(error))}", None
    else:
        request_id = request.id
        if request.method in {method.value for method in McpMethod}:
            code, text = JsonRpcErrorCode.INTERNAL_ERROR, "Environment does not support MCP"
        else:
            code, text = JsonRpcErrorCode.METHOD_NOT_FOUND, f"Method not found: {clip(request.method, 100)}"
    failure = {"code": int(code), "message": text, "data": None}
    return Answer("mcp", {"jsonrpc": "2.0", "id": request_id, "error": failure})
