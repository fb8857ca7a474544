"""Types of tool use: the two tool actions and their observations, JSON-RPC envelopes, and the ``mcp`` frames.

Types only. What answers them, an environment with an MCP server inside, is not in this room.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from openenv.core.env_server.types import Action, BaseMessage, Observation

__all__ = [
    "RESERVED_TOOL_NAMES",
    "CallToolAction",
    "CallToolObservation",
    "JsonRpcError",
    "JsonRpcErrorCode",
    "JsonRpcRequest",
    "JsonRpcResponse",
    "ListToolsAction",
    "ListToolsObservation",
    "McpMethod",
    "Tool",
    "ToolError",
    "ToolErrorType",
    "WSMCPMessage",
    "WSMCPResponse",
]

RESERVED_TOOL_NAMES: frozenset[str] = frozenset({"reset", "step", "state", "close"})
"""Names that no tool may have: they belong to the session itself."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


# ------------------------------------------------------------------ JSON-RPC


class JsonRpcErrorCode(IntEnum):
    """Error codes of JSON-RPC 2.0, section 5.1."""

    PARSE_ERROR = -32700
    INVALID_REQUEST = -32600
    METHOD_NOT_FOUND = -32601
    INVALID_PARAMS = -32602
    INTERNAL_ERROR = -32603
    SERVER_ERROR = -32000


_CODE_TEXT = {
    JsonRpcErrorCode.PARSE_ERROR: "Parse error",
    JsonRpcErrorCode.INVALID_REQUEST: "Invalid request",
    JsonRpcErrorCode.METHOD_NOT_FOUND: "Method not found",
    JsonRpcErrorCode.INVALID_PARAMS: "Invalid params",
    JsonRpcErrorCode.INTERNAL_ERROR: "Internal error",
    JsonRpcErrorCode.SERVER_ERROR: "Server error",
}


class McpMethod(str, Enum):  # noqa: UP042 - str() of a member is part of the surface that env packages know
    """The MCP methods that an environment answers."""

    TOOLS_LIST = "tools/list"
    TOOLS_CALL = "tools/call"


class JsonRpcError(_Strict):
    """The ``error`` member of a JSON-RPC response.

    Attributes:
        code: one of `JsonRpcErrorCode`, or a code of the server's own.
        message: what went wrong, in one line.
        data: anything more the server told.
    """

    code: int
    message: str
    data: Any = None

    @classmethod
    def from_code(cls, code: JsonRpcErrorCode, message: str | None = None, data: Any = None) -> JsonRpcError:
        """Make an error for a standard code.

        Args:
            code: the code.
            message: the text; by default the standard name of the code.
            data: anything more.
        """
        return cls(code=int(code), message=_CODE_TEXT[code] if message is None else message, data=data)


class JsonRpcRequest(_Strict):
    """A JSON-RPC 2.0 request.

    Attributes:
        jsonrpc: always ``"2.0"``.
        method: the method, as ``tools/call``.
        params: its arguments by name.
        id: comes back in the response.
    """

    jsonrpc: Literal["2.0"]
    method: str
    params: dict[str, Any] = Field(default_factory=dict)
    id: str | int | None = None


class JsonRpcResponse(_Strict):
    """A JSON-RPC 2.0 response: a result, or an error.

    Its dump has ``jsonrpc``, ``id``, and exactly one of ``result`` and ``error``.
    """

    jsonrpc: Literal["2.0"] = "2.0"
    result: Any = None
    error: JsonRpcError | None = None
    id: str | int | None = None

    @model_serializer(mode="wrap")
    def _one_of_two(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        dumped: dict[str, Any] = handler(self)
        dumped.pop("error" if self.error is None else "result", None)
        return dumped

    @classmethod
    def success(cls, result: Any, request_id: str | int | None = None) -> JsonRpcResponse:
        """The response to a request that worked."""
        return cls(result=result, id=request_id)

    @classmethod
    def error_response(
        cls,
        code: JsonRpcErrorCode,
        message: str | None = None,
        data: Any = None,
        request_id: str | int | None = None,
    ) -> JsonRpcResponse:
        """The response to a request that failed. Arguments as in `JsonRpcError.from_code`."""
        return cls(error=JsonRpcError.from_code(code, message, data), id=request_id)


# --------------------------------------------------------------------- tools


class Tool(_Strict):
    """A tool as an agent sees it.

    Attributes:
        name: its name, unique within the environment.
        description: what it does.
        input_schema: JSON Schema of its arguments.
    """

    name: str
    description: str
    input_schema: dict[str, Any]


class ToolErrorType(str, Enum):  # noqa: UP042 - as McpMethod
    """Why a tool call failed."""

    EXECUTION_ERROR = "execution_error"
    INVALID_ARGS = "invalid_args"
    TRANSPORT_ERROR = "transport_error"
    TOOL_NOT_FOUND = "tool_not_found"
    TIMEOUT = "timeout"


class ToolError(_Strict):
    """A failed tool call, told inside an observation."""

    error_type: ToolErrorType
    message: str


class ListToolsAction(Action):
    """Ask the environment for its tools."""

    type: Literal["list_tools"] = "list_tools"


class CallToolAction(Action):
    """Call one tool.

    Attributes:
        tool_name: the tool.
        arguments: its arguments by name.
    """

    type: Literal["call_tool"] = "call_tool"
    tool_name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class ListToolsObservation(Observation):
    """The answer to `ListToolsAction`."""

    tools: list[Tool]


class CallToolObservation(Observation):
    """The answer to `CallToolAction`: a result, or an error.

    Attributes:
        tool_name: the tool that was called.
        result: what it returned.
        error: why it failed, or None.
    """

    tool_name: str
    result: Any = None
    error: ToolError | None = None


# -------------------------------------------------------------------- frames


class WSMCPMessage(BaseMessage):
    """A JSON-RPC request on an environment's own WebSocket."""

    type: Literal["mcp"] = "mcp"
    data: dict[str, Any]


class WSMCPResponse(_Strict):
    """The answer to `WSMCPMessage`."""

    type: Literal["mcp"] = "mcp"
    data: dict[str, Any]
