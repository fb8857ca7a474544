"""Request frames, as both dialects of ``/ws`` have them: from a decoded frame to what is to be run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from openenv.core.env_server import json_rpc
from openenv.core.env_server.calls import Call, CallError, Work, clip, run_call, validation_error
from openenv.core.env_server.json_rpc import RpcError, RpcRequest, as_rpc_error, failure, success
from openenv.core.env_server.mcp_types import JsonRpcErrorCode, WSMCPMessage
from openenv.core.env_server.runner import EnvRunner
from openenv.core.env_server.tools import TOOL_METHODS, Tools, named_tool
from openenv.core.env_server.types import Action, WSCloseMessage, WSResetMessage, WSStateMessage, WSStepMessage
from openenv.core.exceptions import SessionNotFoundError
from openenv.core.wire.frames import decode
from openenv.core.wire.json_codec import MalformedFrame
from openenv.core.wire.messages import REPLY_TYPE, CallKind, WSErrorCode

__all__ = ["DECODE_HERE_BYTES", "Answer", "Frame", "FrameReader", "ToolFrame", "decode_frame", "own_session"]

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


@dataclass(frozen=True, slots=True)
class ToolFrame:
    """An ``mcp`` frame that asks for tools: answered by `Tools.work`."""

    request: RpcRequest


@dataclass(slots=True)
class FrameReader:
    """Reads the frames of one server's sockets.

    Attributes:
        action_cls: the environment's action class.
        tools: answers ``mcp`` frames.
        simulation: whether reset, step and state are served.
    """

    action_cls: type[Action]
    tools: Tools
    simulation: bool = True

    def read(self, message: Mapping[str, Any], session_id: str) -> Call | ToolFrame | Answer | None:
        """Read a decoded frame.

        Args:
            message: the frame.
            session_id: name of the session that the socket is for.

        Returns:
            A call for the environment or its tools, an answer, or None for the client's close.

        Raises:
            CallError: it is no request, or does not fit.
        """
        kind = message.get("type", "")
        try:
            match kind:
                case "close":
                    WSCloseMessage.model_validate(message)
                    return None
                case "mcp":
                    return _read_mcp(WSMCPMessage.model_validate(message).data, session_id)
                case "reset" | "step" | "state" if not self.simulation:
                    text = f"Unknown message type: {kind} (this server serves tools; simulation calls are switched off)"
                    raise CallError(WSErrorCode.UNKNOWN_TYPE, text)
                case "reset":
                    return Call(CallKind.RESET, WSResetMessage.model_validate(message).data)
                case "step":
                    return Call(CallKind.STEP, WSStepMessage.model_validate(message).data)
                case "state":
                    WSStateMessage.model_validate(message)
                    return Call(CallKind.STATE)
        except ValidationError as error:
            raise validation_error(error) from error
        raise CallError(WSErrorCode.UNKNOWN_TYPE, f"Unknown message type: {clip(str(kind), 100)}")

    def work(self, asked: Call | ToolFrame, reply: Callable[[str, dict[str, Any]], bytes]) -> Work:
        """What a session runs for a frame.

        Args:
            asked: as read.
            reply: encodes a reply of a type; runs on the session's thread.
        """
        if isinstance(asked, ToolFrame):
            return self.tools.work(asked.request, lambda response: reply("mcp", response))
        kind = REPLY_TYPE[asked.kind]

        async def work(runner: EnvRunner) -> bytes:
            return await run_call(runner, asked, self.action_cls, lambda data: reply(kind, data))

        return work


def _read_mcp(data: Mapping[str, Any], session_id: str) -> ToolFrame | Answer:
    request_id = None
    try:
        request = RpcRequest.read(data)
        request_id = request.id
        if request.method in TOOL_METHODS:
            named_tool(request)  # refused here, where the answer has the request's id
            return ToolFrame(request)
        return Answer("mcp", success(request_id, own_session(request, session_id)))
    except RpcError as error:
        return Answer("mcp", failure(request_id, error))


def own_session(request: RpcRequest, session_id: str) -> dict[str, Any]:
    """The result of a session method that came on a session's own socket.

    Raises:
        RpcError: it is no such method, or the socket may not ask for that.
    """
    match request.method:
        case json_rpc.CREATE:
            return {"session_id": session_id}
        case json_rpc.CLOSE:
            named = request.text("session_id")
            if named is None:
                raise RpcError(JsonRpcErrorCode.INVALID_PARAMS, "Invalid params - 'session_id' is required")
            if named != session_id:
                raise as_rpc_error(SessionNotFoundError(named))
            text = "Cannot close active WebSocket-managed session via MCP method"
            raise RpcError(JsonRpcErrorCode.INVALID_REQUEST, text)
    raise request.unknown_method
