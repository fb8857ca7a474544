"""How an environment gets into its FastMCP server: the two doors that FastMCP has for this.

A middleware sees each call begin, end and fail; a transform hands out the tools to run. Both act only inside a session
that was opened for an environment (`current_host` says for which); whoever uses the server in another way sees it as it
is. What they open to is `openenv.core.env_server.tool_host`.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import anyio
import fastmcp.server.dependencies
import fastmcp.tools.function_tool
import fastmcp.utilities.types
from fastmcp import FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.server.transforms import GetToolNext, Transform
from fastmcp.tools import Tool as FastTool
from fastmcp.tools.base import ToolResult
from fastmcp.tools.function_tool import FunctionTool
from mcp import types as mcp_types

from openenv.core.env_server.mcp_types import RESERVED_TOOL_NAMES, ToolErrorType
from openenv.core.env_server.runner import watched
from openenv.core.env_server.tool_threads import Bench
from openenv.core.env_server.tools import ToolFailed
from openenv.core.wire.json_codec import non_finite_path

__all__ = [
    "CALL_KEY",
    "Gate",
    "ToolCall",
    "awaits",
    "call_number",
    "current_bench",
    "current_gate",
    "current_host",
    "forget_closed",
    "install",
    "moved_to_thread",
    "run_in_time",
    "watched_on_loop",
]

T = TypeVar("T")
Gate = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Runs a call of an MCP session when it is its turn."""


CALL_KEY = "openenv/call"


class Host(Protocol):
    """What the doors need of a `ToolHost`."""

    @property
    def mode_tools(self) -> Mapping[str, Any]: ...

    def mode_tool(self, name: str) -> FastTool | None: ...

    def placed(self, tool: FunctionTool) -> FunctionTool: ...

    def exposes(self) -> bool: ...

    async def serve(self, context: MiddlewareContext[Any], call_next: CallNext[Any, ToolResult]) -> ToolResult: ...

    async def on_thread(self, work: Callable[[], T], bench: Bench | None) -> T: ...


current_host: contextvars.ContextVar[Host | None] = contextvars.ContextVar("openenv_tool_host", default=None)
current_gate: contextvars.ContextVar[Gate | None] = contextvars.ContextVar("openenv_tool_gate", default=None)
current_call: contextvars.ContextVar[ToolCall | None] = contextvars.ContextVar("openenv_tool_call", default=None)
current_bench: contextvars.ContextVar[Bench | None] = contextvars.ContextVar("openenv_tool_bench", default=None)


@dataclass(slots=True)
class ToolCall:
    """One call of a tool.

    Attributes:
        arguments: those of a call of ours, with NaN and infinities, which MCP's own JSON turns into null.
        failure: what it raised, before the protocol made text of that.
        began: whether its function was entered; None where nobody can see that.
    """

    host: Host
    name: str
    timeout_s: float | None
    bench: Bench | None = None
    arguments: dict[str, Any] | None = None
    failure: BaseException | None = None
    began: bool | None = None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


async def run_in_time(
    call: ToolCall, context: MiddlewareContext[Any], call_next: CallNext[Any, ToolResult]
) -> ToolResult:
    """Run a call inside its time."""
    current_call.set(call)
    if call.timeout_s is not None:
        call.scope.deadline = anyio.current_time() + call.timeout_s
    try:
        with call.scope:
            result = await call_next(_as_called(call, context))
            _refuse_non_finite(result)
            return result
    except BaseException as raised:  # raised on: only noted, for whoever asks what it was
        call.failure = raised
        if isinstance(raised, ToolError) and raised.__cause__ is not None and not call.host.exposes():
            raise ToolError(f"Error calling tool '{call.name}': the server's log has it") from raised
        raise
    if call.timeout_s is not None and anyio.current_time() >= call.scope.deadline:
        call.failure = ToolFailed(
            ToolErrorType.TIMEOUT, f"Tool '{call.name}' timed out after {call.timeout_s:g} seconds"
        )
    else:
        call.failure = ToolFailed(ToolErrorType.EXECUTION_ERROR, f"Tool '{call.name}' was cancelled")
    raise ToolError(str(call.failure)) from call.failure


def _as_called(call: ToolCall, context: MiddlewareContext[Any]) -> MiddlewareContext[Any]:
    if non_finite_path(call.arguments) is None:
        return context
    return context.copy(message=context.message.model_copy(update={"arguments": call.arguments}))


def _refuse_non_finite(result: Any) -> None:
    """MCP has JSON without NaN: refused here, where it can still be told, instead of turning into null."""
    structured = getattr(result, "structured_content", None)
    path = non_finite_path(structured)
    if path is not None:
        raise ToolError(
            f"The tool ran, but its result cannot be told: '{path}' is NaN or infinite, which MCP cannot carry"
        )


def call_number(context: MiddlewareContext[Any]) -> str:
    request = context.fastmcp_context.request_context if context.fastmcp_context else None
    meta = request.meta if request is not None else None
    return str((meta.model_extra or {}).get(CALL_KEY, "")) if meta is not None else ""


# ---------------------------------------------------------------- the two doors into a FastMCP server


class _Guard(Middleware):
    """Sees calls begin and fail."""

    async def on_call_tool(
        self, context: MiddlewareContext[mcp_types.CallToolRequestParams], call_next: CallNext[Any, ToolResult]
    ) -> ToolResult:
        host = current_host.get()
        return await (call_next(context) if host is None else host.serve(context, call_next))

    async def on_read_resource(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        return await self._in_turn(context, call_next)

    async def on_get_prompt(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        return await self._in_turn(context, call_next)

    async def _in_turn(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        gate = current_gate.get()
        return await (call_next(context) if gate is None else gate(lambda: call_next(context)))


class _Placing(Transform):
    """Hands out the tools: those of the mode, none with a reserved name, each to run where it should."""

    async def list_tools(self, tools: Sequence[FastTool]) -> Sequence[FastTool]:
        host = current_host.get()
        if host is None:
            return tools
        kept = [tool for tool in tools if tool.name not in RESERVED_TOOL_NAMES and tool.name not in host.mode_tools]
        return [*kept, *(tool for name in host.mode_tools if (tool := host.mode_tool(name)) is not None)]

    async def get_tool(self, name: str, call_next: GetToolNext, *, version: Any = None) -> FastTool | None:
        host = current_host.get()
        if host is None:
            return await call_next(name, version=version)
        if name in RESERVED_TOOL_NAMES:
            return None
        tool = host.mode_tool(name) if name in host.mode_tools else await call_next(name, version=version)
        call = current_call.get()
        if call is None or not isinstance(tool, FunctionTool):
            return tool
        call.began = None if call.began is None and inspect.isasyncgenfunction(tool.fn) else bool(call.began)
        return host.placed(tool)


_installing = threading.Lock()


def install(server: FastMCP[Any]) -> None:
    """Go through both doors, once a server: several environments may share one."""
    with _installing:
        if not any(isinstance(one, _Guard) for one in server.middleware):
            server.middleware.insert(0, _Guard())
            server.add_transform(_Placing())


def moved_to_thread(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    async def moved(*args: Any, **kwargs: Any) -> Any:
        call = current_call.get()
        assert call is not None, "only calls of a host are moved"
        call.began = True
        context = contextvars.copy_context()

        def work() -> Any:
            value = context.run(fn, *args, **kwargs)
            return context.run(list, value) if inspect.isgenerator(value) else value

        value = await call.host.on_thread(work, call.bench)
        return await value if inspect.isawaitable(value) else value

    return moved


def watched_on_loop(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function, named in the log where it holds up the event loop."""
    if inspect.isasyncgenfunction(fn):
        return fn

    @functools.wraps(fn)
    async def on_loop(*args: Any, **kwargs: Any) -> Any:
        call = current_call.get()
        if call is not None:
            call.began = True
        return await watched(fn(*args, **kwargs), f"the tool {getattr(fn, '__name__', '')}")

    return on_loop


def awaits(fn: Any) -> bool:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn)


# ---------------------------------------------------------------- what FastMCP remembers

_FORGET_AFTER_S = 1.0
_FORGET_AFTER_CLOSED = 16
_forgetting = threading.Lock()
_forgotten_at = 0.0
_closed = 0


def forget_closed() -> None:
    """An environment was closed: let go of it.

    FastMCP keeps what it knows of the last 5000 functions, and a tool that is a closure keeps its environment alive
    with it. One function cannot be taken out of its caches, so they are emptied: at once, or in a burst after 16.
    Tools in use are looked at again, which takes a millisecond each.
    """
    global _forgotten_at, _closed
    with _forgetting:
        _closed += 1
        now = time.monotonic()
        if _closed < _FORGET_AFTER_CLOSED and now - _forgotten_at < _FORGET_AFTER_S:
            return
        _forgotten_at, _closed = now, 0
    for module, name in (
        (fastmcp.utilities.types, "get_cached_typeadapter"),
        (fastmcp.server.dependencies, "without_injected_parameters"),
        (fastmcp.tools.function_tool, "_wrap_body_errors"),
    ):
        clear = getattr(getattr(module, name, None), "cache_clear", None)
        if clear is not None:  # another version may remember in another way
            clear()
