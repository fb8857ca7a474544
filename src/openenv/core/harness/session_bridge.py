"""A session's tools as MCP messages, in the same process: for an agent that speaks JSON-RPC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from openenv.core.env_server.mcp_types import RESERVED_TOOL_NAMES, JsonRpcErrorCode, JsonRpcResponse, McpMethod
from openenv.core.exceptions import SessionLostError
from openenv.core.harness.sessions import ResourceSession

__all__ = ["SessionMCPBridge"]


class _Refused(Exception):
    def __init__(self, code: JsonRpcErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class SessionMCPBridge:
    """Answers ``tools/list`` and ``tools/call`` with the tools of one session.

    Args:
        session: the session.
    """

    def __init__(self, session: ResourceSession) -> None:
        self.session = session

    def handle_request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer one JSON-RPC request.

        A tool that fails is told in the answer, as an error.

        Args:
            request: the request.

        Returns:
            The response.

        Raises:
            SessionLostError: the environment is gone. That is for whoever runs the rollout; the agent is not told, as
                it could only go on with nothing.
        """
        number = request.get("id")
        try:
            result = self._answer(request)
        except SessionLostError:
            raise
        except _Refused as refused:
            return _error(refused.code, str(refused), number)
        except KeyError as missing:
            message = str(missing.args[0]) if missing.args else "Method not found"
            return _error(JsonRpcErrorCode.METHOD_NOT_FOUND, message, number)
        except ValueError as wrong:
            return _error(JsonRpcErrorCode.INVALID_PARAMS, str(wrong), number)
        except Exception as failure:  # the tool's, whatever it is: the agent reads it and goes on
            return _error(JsonRpcErrorCode.INTERNAL_ERROR, str(failure), number)
        return JsonRpcResponse.success(result, number).model_dump()

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if request.get("jsonrpc") != "2.0":
            raise _Refused(JsonRpcErrorCode.INVALID_REQUEST, "Invalid Request")
        method, params = request.get("method"), request.get("params") or {}
        if method == McpMethod.TOOLS_LIST:
            return {
                "tools": [
                    {"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema}
                    for tool in self.session.list_tools()
                ]
            }
        if method != McpMethod.TOOLS_CALL:
            raise _Refused(JsonRpcErrorCode.METHOD_NOT_FOUND, "Method not found")
        if "name" not in params:
            raise _Refused(JsonRpcErrorCode.INVALID_PARAMS, "Missing tool name")
        name = params["name"]
        if name in RESERVED_TOOL_NAMES:
            raise _Refused(JsonRpcErrorCode.INVALID_PARAMS, f"Reserved orchestration tool: {name}")
        result = self.session.call_tool(name, dict(params.get("arguments") or {}))
        return {"data": result.data, "done": result.done, "metadata": dict(result.metadata), "error": result.error}


def _error(code: JsonRpcErrorCode, message: str, number: Any) -> dict[str, Any]:
    return JsonRpcResponse.error_response(code, message=message, request_id=number).model_dump()
