"""What an author of an environment with tools implements: `MCPEnvironment`, an environment around a FastMCP server.

Needs the extra ``mcp``. How tools are run is in `openenv.core.env_server.tool_host`.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from openenv.core.env_server.interfaces import Environment, Transform
from openenv.core.env_server.mcp_types import (
    RESERVED_TOOL_NAMES,
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Tool,
    ToolError,
)
from openenv.core.env_server.runner import EnvThread
from openenv.core.env_server.tools import ToolFailed
from openenv.core.env_server.types import Observation

try:
    from openenv.core.env_server.tool_host import ToolHost, mode_tool, server_tools
except ImportError as error:
    if (error.name or "").partition(".")[0] not in ("fastmcp", "mcp"):
        raise
    raise ImportError(
        "environments with MCP tools need FastMCP 3: pip install 'openenv[mcp]'", name=error.name
    ) from error

if TYPE_CHECKING:
    from fastmcp import Client
    from fastmcp.client.client import CallToolResult
    from mcp.types import Tool as MCPTool

__all__ = ["MCP_TOOL_CALL_TIMEOUT", "MCPEnvironment", "get_server_tools"]

MCP_TOOL_CALL_TIMEOUT = 30.0
"""Seconds that a tool call may take, where its caller says nothing else; read at each call."""

MODES = ("production", "simulation")

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def get_server_tools(mcp_server: Any) -> dict[str, Any]:
    """The tools of a FastMCP server, by name. Blocks; may be called under a running event loop."""
    return dict(server_tools(mcp_server))


class MCPEnvironment(Environment[Any, Any, Any]):
    """An environment whose actions are tool calls.

    `ListToolsAction` and `CallToolAction` are answered from the server's tools, every other action goes to
    `_step_impl`. Over a network the tools can also be reached as JSON-RPC and as standard MCP, at ``/mcp``; ``reset``,
    ``step`` and ``state`` cannot be reached that way.

    An ``async def`` tool runs on the event loop and promises not to block it. Any other tool runs on the environment's
    own thread, as its constructor, `reset` and `_step_impl` do. One call runs at a time.

    Args:
        mcp_server: a FastMCP server with the tools.
        transform: as for `Environment`.

    Attributes:
        mcp_server: the server; None after `close`.
        mcp_client: a client of it, whose session is kept open; None after `close`.

    Raises:
        ValueError: a tool has one of `RESERVED_TOOL_NAMES`.
    """

    mcp_server: Any = None
    mcp_client: Client[Any] | None = None
    _mode: str | None = None
    _expose_errors: bool = True
    _host: ToolHost | None = None
    _bound: tuple[EnvThread, asyncio.AbstractEventLoop] | None = None
    _early_tools: tuple[tuple[str | None, Callable[..., Any]], ...] = ()

    def __init__(self, mcp_server: Any, transform: Transform[Any] | None = None) -> None:
        super().__init__(transform=transform)
        _refuse_reserved(get_server_tools(mcp_server))
        self.mcp_server = mcp_server
        self._host = ToolHost(
            mcp_server,
            timeout_s=lambda: MCP_TOOL_CALL_TIMEOUT,
            mode=lambda: self._mode,
            exposes=lambda: self._expose_errors,
        )
        self.mcp_client = self._host.client
        if self._bound is not None:
            self._host.bind(*self._bound)
        for mode, function in self._early_tools:
            self.tool(mode)(function)

    @property
    def tool_host(self) -> ToolHost:
        """What runs the tools.

        Raises:
            RuntimeError: the environment is closed, or ``super().__init__(mcp_server)`` was never called.
        """
        if self._host is None:
            raise RuntimeError(
                f"{type(self).__name__} has no MCP server: it is closed, or its __init__ does not call "
                "super().__init__(mcp_server)"
            )
        return self._host

    @asynccontextmanager
    async def mcp_session(self) -> AsyncIterator[Client[Any]]:
        """The client in its session, which stays open after the block.

        Raises:
            RuntimeError: the environment is closed.
        """
        yield await self.tool_host.session()

    # ------------------------------------------------------------ registering tools

    def tool(self, mode: str | None = None) -> Callable[[FunctionT], FunctionT]:
        """Decorate a function to make it a tool.

        Args:
            mode: ``production`` or ``simulation`` for a tool that only servers in this mode have; two functions of one
                name, one for each, are one tool. None for a tool of both.

        Raises:
            ValueError: there is no such mode, or the function's name is reserved.
        """
        if mode is not None and mode not in MODES:
            raise ValueError(f"Invalid mode '{mode}'. Mode must be one of {', '.join(MODES)}, or None.")

        def register(function: FunctionT) -> FunctionT:
            name = function.__name__
            _refuse_reserved({name: function})
            if self._host is None:  # before super().__init__(): kept until then
                self._early_tools = (*self._early_tools, (mode, function))
            elif mode is None:
                self.mcp_server.tool(function)
            else:
                self._host.mode_tools.setdefault(name, {})[mode] = mode_tool(function)
            return function

        return register

    # ------------------------------------------------------------ code mode

    @property
    def supports_code_mode(self) -> bool:
        """Whether `execute_code` may be used."""
        return True

    def get_callables(self) -> dict[str, Callable[..., Any]]:
        """The functions behind the tools that the present mode has, by name."""
        host = self.tool_host
        tools = {**get_server_tools(self.mcp_server), **{name: host.mode_tool(name) for name in host.mode_tools}}
        functions = {name: getattr(tool, "fn", None) for name, tool in tools.items()}
        return {name: function for name, function in functions.items() if callable(function)}

    def execute_code(self, code: str) -> Observation:
        """Run Python code that calls tools as functions, in this very process: only for code that may do anything.

        Args:
            code: what to run; what it binds to ``result`` is its result.

        Returns:
            An observation whose metadata has ``result``, or ``error`` if the code raised.
        """
        namespace: dict[str, Any] = dict(self.get_callables())
        metadata: dict[str, Any]
        try:
            exec(code, namespace)
        except SyntaxError as error:
            metadata = {"error": f"Syntax error: {error}"}
        except Exception as error:  # whatever the code raised is its outcome
            metadata = {"error": str(error) or type(error).__name__}
        else:
            metadata = {"result": namespace.get("result")}
        return Observation(done=False, reward=0.0, metadata=metadata)

    # ------------------------------------------------------------ steps

    @abstractmethod
    def _step_impl(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        """Apply an action that is no tool call; as `Environment.step`."""

    def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """Call a tool, list the tools, or apply another action.

        Args:
            action: a `CallToolAction`, a `ListToolsAction`, or an action for `_step_impl`.
            timeout_s: seconds that a tool may take; `MCP_TOOL_CALL_TIMEOUT` by default.
            kwargs: for `_step_impl`.

        Returns:
            A `CallToolObservation`, which tells also of a call that failed; a `ListToolsObservation`; or what
            `_step_impl` returned.

        Raises:
            ToolFailed: the tools cannot be listed.
        """
        if isinstance(action, ListToolsAction):
            return self.tool_host.run(self._async_handle_list_tools)
        if isinstance(action, CallToolAction):
            return self.tool_host.run(lambda: self._async_handle_call_tool(action, timeout_s))
        return self._step_impl(action, timeout_s=timeout_s, **kwargs)

    async def step_async(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        """As `step`, on an event loop; what a server calls. A class that overrides `step` alone has that called."""
        cls = type(self)
        if cls.step is not MCPEnvironment.step and cls.step_async is MCPEnvironment.step_async:
            return await self._on_thread(lambda: self.step(action, timeout_s=timeout_s, **kwargs))
        if isinstance(action, ListToolsAction):
            return await self._async_handle_list_tools()
        if isinstance(action, CallToolAction):
            return await self._async_handle_call_tool(action, timeout_s)
        return await self._on_thread(lambda: self._step_impl(action, timeout_s=timeout_s, **kwargs))

    async def _async_handle_list_tools(self) -> ListToolsObservation:
        tools = await self.tool_host.list_tools()
        shown = [Tool(name=one.name, description=one.description or "", input_schema=one.inputSchema) for one in tools]
        return ListToolsObservation(tools=shown)

    async def _async_handle_call_tool(
        self, action: CallToolAction, timeout_s: float | None = None
    ) -> CallToolObservation:
        try:
            result = await self.tool_host.call(action.tool_name, action.arguments, timeout_s)
        except ToolFailed as failed:
            error = ToolError(error_type=failed.error_type, message=str(failed))
            return CallToolObservation(tool_name=action.tool_name, error=error)
        return CallToolObservation(tool_name=action.tool_name, result=result)

    async def _on_thread(self, work: Callable[[], Any]) -> Any:
        if self._host is not None:
            value = await self._host.on_thread(work, None)
        else:  # an environment without tools of its own may still step
            value = work() if self._bound is None else await self._bound[0].run(work)
        return await value if inspect.isawaitable(value) else value

    # ------------------------------------------------------------ JSON-RPC

    async def mcp_tools(self) -> list[MCPTool]:
        """All tools, as MCP describes them.

        Raises:
            ToolFailed: they cannot be listed.
        """
        return await self.tool_host.list_tools()

    async def mcp_call(self, name: str, arguments: Mapping[str, Any]) -> CallToolResult:
        """Call a tool.

        Raises:
            ToolFailed: it failed.
        """
        return await self.tool_host.call(name, dict(arguments))

    # ------------------------------------------------------------ its place, and its end

    def bind_thread(self, thread: EnvThread, loop: asyncio.AbstractEventLoop) -> None:
        """Called by a server before the first call.

        Args:
            thread: the environment's own.
            loop: the server's event loop.
        """
        self._bound = (thread, loop)
        if self._host is not None:
            self._host.bind(thread, loop)

    def unbind_thread(self) -> None:
        """Called by a server after `close`, also where that was overridden and does not call ``super().close()``."""
        host, self._host = self._host, None
        if host is not None:
            host.close()

    def close(self) -> None:
        """End the MCP session. A subclass that overrides it calls ``super().close()``."""
        self.unbind_thread()
        self.mcp_client = None
        self.mcp_server = None


def _refuse_reserved(tools: Mapping[str, Any]) -> None:
    reserved = sorted(RESERVED_TOOL_NAMES & tools.keys())
    if reserved:
        raise ValueError(
            f"MCP tools cannot use reserved names: {reserved}. Reserved names are: {sorted(RESERVED_TOOL_NAMES)}"
        )
