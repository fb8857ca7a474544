"""Tool calls as JSON-RPC asks for them: from a request to what a session runs, and back to a response.

Shared by ``mcp`` frames, WS ``/mcp`` and POST ``/mcp``. FastMCP is not imported here, so that a server without tools
does without it; an environment without tools answers that it has none.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from openenv.core.env_server.calls import Work, cancelled_call
from openenv.core.env_server.cancelling import CallCancelled
from openenv.core.env_server.json_rpc import RpcError, RpcRequest, failure, success
from openenv.core.env_server.mcp_types import (
    CallToolAction,
    CallToolObservation,
    JsonRpcErrorCode,
    ListToolsAction,
    ListToolsObservation,
    McpMethod,
    ToolErrorType,
)
from openenv.core.env_server.runner import Crash, EnvRunner
from openenv.core.env_server.types import Action, Observation
from openenv.core.exceptions import Outcome
from openenv.core.wire.json_codec import UnencodableValue, dump_model

__all__ = ["TOOL_METHODS", "ToolFailed", "Tools", "named_tool"]

logger = logging.getLogger("openenv.server")

TOOL_METHODS = frozenset(method.value for method in McpMethod)


class ToolFailed(Exception):
    """A tool call failed; the session goes on.

    Attributes:
        error_type: why.
        content: what the tool said as content blocks, if it did.
        structured: its structured content, if it gave any.
        never_ran: it is certain that the tool did not begin.
    """

    def __init__(
        self,
        error_type: ToolErrorType,
        message: str,
        content: Sequence[Any] = (),
        structured: Any = None,
        *,
        never_ran: bool = False,
    ) -> None:
        self.never_ran = never_ran
        self.error_type = error_type
        self.content = content
        self.structured = structured
        super().__init__(message)


class _HasTools(Protocol):
    def mcp_tools(self) -> Coroutine[Any, Any, Sequence[Any]]: ...

    def mcp_call(self, name: str, arguments: dict[str, Any]) -> Coroutine[Any, Any, Any]: ...


class Tools:
    """The tools of a server's environments.

    Args:
        action_cls: the environment's action class; if it is that of tool calls, an environment without an MCP server
            answers them in its step.
        expose_errors: tell clients what a tool raised.
    """

    def __init__(self, action_cls: type[Action], expose_errors: bool = True) -> None:
        self._by_step = action_cls in (CallToolAction, ListToolsAction)
        self._expose = expose_errors

    def work(self, request: RpcRequest, reply: Callable[[dict[str, Any]], bytes]) -> Work:
        """What a session runs for a request. It answers every failure itself, as JSON-RPC does.

        Args:
            request: for one of `TOOL_METHODS`.
            reply: encodes the response; runs on the session's thread.

        Raises:
            RpcError: the parameters do not fit.
        """
        listing = request.method == McpMethod.TOOLS_LIST
        name, arguments = named_tool(request)

        async def work(runner: EnvRunner) -> bytes:
            runner.running = request.method
            try:
                await runner.free()
                value, dump = await (self._list(runner) if listing else self._call(runner, name, arguments))
                runner.steps += not listing
                return await runner.finish(lambda: reply(success(request.id, _dumped(value, dump))))
            except CallCancelled as cancelled:
                raise cancelled_call(cancelled.applied) from cancelled
            except Crash as crash:
                error = _crashed(crash.cause, runner, request.method)
            except RpcError as raised:
                error = raised
            return reply(failure(request.id, error if self._expose else error.hidden))

        return work

    async def _list(self, runner: EnvRunner) -> tuple[Any, Callable[[Any], Any]]:
        if runner.has("mcp_tools"):
            return await runner.awaited(lambda env: env.mcp_tools(), "tools/list"), _dump_list
        return await self._step(runner, ListToolsAction(), ListToolsObservation), lambda seen: {
            "tools": [dump_model(tool) for tool in seen.tools]
        }

    async def _call(self, runner: EnvRunner, name: str, arguments: dict[str, Any]) -> tuple[Any, Callable[[Any], Any]]:
        if runner.has("mcp_call"):
            return await runner.awaited(lambda env: env.mcp_call(name, arguments), "tools/call"), _dump_result
        action = CallToolAction(tool_name=name, arguments=arguments)
        return await self._step(runner, action, CallToolObservation), dump_model

    async def _step(self, runner: EnvRunner, action: Action, wanted: type[Observation]) -> Observation:
        if not self._by_step:
            raise RpcError(JsonRpcErrorCode.INTERNAL_ERROR, "Environment does not support MCP")
        seen: Any = await runner.call("step", lambda: ((action,), {}), lambda value: value)
        if not isinstance(seen, wanted):
            text = f"the step of a tool action returned {type(seen).__name__}, not {wanted.__name__}"
            raise RpcError(JsonRpcErrorCode.INTERNAL_ERROR, text)
        return seen


def named_tool(request: RpcRequest) -> tuple[str, dict[str, Any]]:
    """The tool that a request of `TOOL_METHODS` is for, and its arguments; no name if it asks which there are.

    Raises:
        RpcError: the parameters do not fit.
    """
    if request.method == McpMethod.TOOLS_LIST:
        return "", {}
    name, arguments = request.text("name"), request.params.get("arguments")
    if name is None:
        raise RpcError(JsonRpcErrorCode.INVALID_PARAMS, "Missing 'name' in params")
    if not isinstance(arguments, dict | None):
        raise RpcError(JsonRpcErrorCode.INVALID_PARAMS, "Invalid params - 'arguments' must be an object")
    return name, arguments or {}


def _dump_list(tools: Any) -> dict[str, Any]:
    return {"tools": [tool.model_dump(mode="json") for tool in tools]}


def _dump_result(result: Any) -> Any:
    return dump_model(CallToolObservation(tool_name="", result=result))["result"]


def _dumped(value: Any, dump: Callable[[Any], Any]) -> Any:
    try:
        return dump(value)
    except UnencodableValue as error:
        raise RpcError(JsonRpcErrorCode.INTERNAL_ERROR, str(error), {"applied": True}) from error


def _crashed(raised: BaseException, runner: EnvRunner, method: str) -> RpcError:
    if not isinstance(raised, ToolFailed):
        trace = uuid.uuid4().hex[:8]
        logger.error(
            "%s of %s raised %s (error %s)", method, runner.name, type(raised).__name__, trace, exc_info=raised
        )
        return RpcError(JsonRpcErrorCode.INTERNAL_ERROR, str(raised) or type(raised).__name__, trace=trace)
    data: dict[str, Any] = {"error_type": raised.error_type.value}
    if raised.content:
        data["content"] = [block.model_dump(mode="json") for block in raised.content]
    if raised.structured is not None:
        data["structured_content"] = raised.structured
    if raised.never_ran:
        data["outcome"] = Outcome.NOT_APPLIED.value
    return RpcError(JsonRpcErrorCode.INTERNAL_ERROR, str(raised), data)
