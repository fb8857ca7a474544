"""The MCP server of one environment, and the inner MCP sessions in which its tools run.

A `ToolHost` keeps one session open to a FastMCP server, for as long as the environment lives, and calls tools in it.
It decides where a tool runs: an ``async def`` on the event loop, everything else on the environment's own thread,
where its constructor, ``reset`` and ``step`` run too. So a tool that blocks holds up neither the loop nor another
session, and objects that belong to a thread stay on it.

How it gets into a FastMCP server is in `openenv.core.env_server.tool_doors`; what an environment is, in
`openenv.core.env_server.mcp_environment`.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import itertools
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from fastmcp import Client, FastMCP
from fastmcp.client.client import CallToolResult
from fastmcp.exceptions import DisabledError, NotFoundError, ToolError, ValidationError
from fastmcp.server.middleware import CallNext, MiddlewareContext
from fastmcp.tools import Tool as FastTool
from fastmcp.tools.base import ToolResult
from fastmcp.tools.function_tool import FunctionTool
from mcp import McpError
from mcp import types as mcp_types

from openenv.core.env_server.mcp_types import ToolErrorType
from openenv.core.env_server.runner import EnvThread
from openenv.core.env_server.tool_doors import (
    CALL_KEY,
    Gate,
    ToolCall,
    awaits,
    call_number,
    current_bench,
    current_gate,
    current_host,
    forget_closed,
    install,
    moved_to_thread,
    run_in_time,
    watched_on_loop,
)
from openenv.core.env_server.tool_threads import Bench, background_loop
from openenv.core.env_server.tools import ToolFailed

__all__ = ["Gate", "ToolHost", "mode_tool", "server_tools"]

logger = logging.getLogger("openenv.server")

T = TypeVar("T")
_CLOSE_S = 5.0
"""How long ``close()`` waits for an inner session to end."""


class ToolHost:
    """The tools of one environment.

    Args:
        server: its FastMCP server.
        timeout_s: tells how many seconds a call may take that does not bring its own limit; None for any.
        mode: tells which of the tools of one mode are there, those of ``production`` or of ``simulation``.
        exposes: tells whether callers may see what a tool raised; if not, only the log has it.

    Attributes:
        client: the client whose session is kept open; None after `close`.
        mode_tools: tools of one mode, by name and mode.
    """

    def __init__(
        self,
        server: FastMCP[Any],
        *,
        timeout_s: Callable[[], float | None],
        mode: Callable[[], str | None],
        exposes: Callable[[], bool],
    ) -> None:
        self.server = server
        self.client: Client[Any] | None = Client(server)
        self.mode_tools: dict[str, dict[str, FastTool]] = {}
        self._timeout_s = timeout_s
        self._mode = mode
        self.exposes = exposes
        self._thread: EnvThread | None = None
        self._own_thread = False
        self._home: asyncio.AbstractEventLoop | None = None
        self._sessions: dict[asyncio.AbstractEventLoop, _InnerSession] = {}
        self._calls: dict[str, ToolCall] = {}
        self._placed: dict[Callable[..., Any], Callable[..., Any]] = {}
        self._numbers = itertools.count(1)
        install(server)

    # ------------------------------------------------------------ where it lives

    def bind(self, thread: EnvThread, loop: asyncio.AbstractEventLoop) -> None:
        """Say which thread is the environment's, and which loop serves it."""
        self._thread, self._home = thread, loop

    @property
    def thread(self) -> EnvThread:
        """The environment's thread; without a server around it, one made for its tools."""
        if self._thread is None:
            self._thread, self._own_thread = EnvThread("tools"), True
        return self._thread

    def run(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine from code that cannot await. Tools that are not async run on the calling thread meanwhile.

        Raises:
            Exception: what it raised.
        """
        loop = self._home
        if loop is None or loop.is_closed() or not loop.is_running() or _runs_here(loop):
            loop = background_loop()
        bench = Bench()

        async def on_bench() -> T:
            current_bench.set(bench)
            return await start()

        future = asyncio.run_coroutine_threadsafe(on_bench(), loop)
        bench.serve(future)
        return future.result()

    # ------------------------------------------------------------ calls

    async def session(self) -> Client[Any]:
        """The client in its session on this event loop, opened at its first use.

        Raises:
            ToolFailed: it cannot be opened, or the environment is closed.
        """
        if self.client is None:
            raise ToolFailed(ToolErrorType.TRANSPORT_ERROR, "the environment is closed")
        loop = asyncio.get_running_loop()
        inner = self._sessions.get(loop)
        if inner is None or inner.over:
            self._sessions = {at: one for at, one in self._sessions.items() if not at.is_closed() and not one.over}
            client = self.client if not self._sessions else self.client.new()
            inner = self._sessions[loop] = _InnerSession(client, self)
        return await inner.opened()

    async def list_tools(self) -> list[mcp_types.Tool]:
        """All tools, as MCP describes them.

        Raises:
            ToolFailed: they cannot be listed.
        """
        client = await self.session()
        try:
            return await client.list_tools()
        except Exception as error:  # middleware of the author's server may raise anything
            raise ToolFailed(ToolErrorType.EXECUTION_ERROR, f"The tools cannot be listed: {error}") from error

    async def call(self, name: str, arguments: dict[str, Any], timeout_s: float | None = None) -> CallToolResult:
        """Call a tool.

        Args:
            name: the tool.
            arguments: its arguments by name.
            timeout_s: seconds that it may take; None for the default.

        Raises:
            ToolFailed: there is no such tool, or the call failed, or it took too long.
        """
        call = ToolCall(
            self, name, self._timeout_s() if timeout_s is None else timeout_s, current_bench.get(), arguments
        )
        number = str(next(self._numbers))
        self._calls[number] = call
        try:
            client = await self.session()
            result = await client.call_tool(name, arguments, raise_on_error=False, meta={CALL_KEY: number})
        except asyncio.CancelledError:
            call.scope.cancel()
            raise
        except ToolFailed:
            raise
        except Exception as error:  # the session died, or the server refused the request as a whole
            kind = _kind(call.failure, ToolErrorType.TRANSPORT_ERROR)
            raise ToolFailed(kind, str(error) or type(error).__name__) from error
        finally:
            del self._calls[number]
        if result.is_error:
            raise _failed(result, call)
        return result

    async def serve(self, context: MiddlewareContext[Any], call_next: CallNext[Any, ToolResult]) -> ToolResult:
        """Run a call that has come through an MCP session of this environment. For the middleware."""
        known = self._calls.get(call_number(context))
        if known is not None:
            return await run_in_time(known, context, call_next)
        call = ToolCall(self, context.message.name, self._timeout_s())
        gate = current_gate.get()
        if gate is None:
            return await run_in_time(call, context, call_next)
        try:
            return cast(ToolResult, await gate(lambda: run_in_time(call, context, call_next)))
        except asyncio.CancelledError:
            call.scope.cancel()
            raise

    async def on_thread(self, work: Callable[[], T], bench: Bench | None) -> T:
        """Run a function on the environment's thread. One that is given up goes on to its end, and the next call
        waits for it; one that has not begun is not run any more."""
        given_up = False

        def run() -> T:
            if given_up:
                raise ToolFailed(ToolErrorType.TIMEOUT, "the call was given up before it began")
            return work()

        job = (bench or self.thread).run(run)
        try:
            return await asyncio.shield(job)
        except asyncio.CancelledError:
            given_up = True
            job.add_done_callback(_ignore)
            if bench is None:
                self.thread.hold(job)
            raise

    def placed(self, tool: FunctionTool) -> FunctionTool:
        """The tool, made to run on the environment's thread if it does not await."""
        placed = self._placed.get(tool.fn)
        if placed is None:  # one for each function, for FastMCP caches what it knows of a function
            placed = self._placed[tool.fn] = watched_on_loop(tool.fn) if awaits(tool.fn) else moved_to_thread(tool.fn)
        return tool.model_copy(update={"fn": placed, "run_in_thread": False})

    # ------------------------------------------------------------ tools of one mode

    def mode_tool(self, name: str) -> FastTool | None:
        """The tool of this name that only the present mode has."""
        return self.mode_tools.get(name, {}).get(self._mode() or "")

    @contextmanager
    def entered(self, gate: Gate) -> Iterator[None]:
        """Let MCP sessions that are opened inside the block belong to this environment.

        Args:
            gate: runs each of their calls, when it is its turn.
        """
        tokens = current_host.set(self), current_gate.set(gate)
        try:
            yield
        finally:
            current_host.reset(tokens[0])
            current_gate.reset(tokens[1])

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """End the inner sessions; from the environment's thread, or any other."""
        self.client = None
        for inner in self._sessions.values():
            inner.close()
        self._sessions.clear()
        self._placed.clear()
        if self._own_thread and self._thread is not None:
            self._thread.stop()
        forget_closed()


class _InnerSession:
    """One MCP session of an environment with its own server, in memory, on one event loop."""

    def __init__(self, client: Client[Any], host: ToolHost) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._host = host
        self._opened: asyncio.Future[Client[Any]] = self._loop.create_future()
        self._stop = asyncio.Event()
        self._ended = threading.Event()
        self._task = self._loop.create_task(self._hold(), name="openenv-mcp-session", context=contextvars.Context())

    @property
    def over(self) -> bool:
        """Whether it can be used no more."""
        return self._task.done() or (self._opened.done() and not self._client.is_connected())

    async def opened(self) -> Client[Any]:
        """Wait for it.

        Raises:
            ToolFailed: it could not be opened.
        """
        return await asyncio.shield(self._opened)

    async def _hold(self) -> None:
        """One task opens and closes it, as cancel scopes want it; calls come from any other."""
        current_host.set(self._host)
        try:
            async with self._client:
                self._opened.set_result(self._client)
                await self._stop.wait()
        except Exception as error:  # the author's lifespan may raise anything
            logger.exception("the MCP session of an environment failed")
            if not self._opened.done():
                self._opened.set_exception(ToolFailed(ToolErrorType.TRANSPORT_ERROR, f"No MCP session: {error}"))
                self._opened.exception()  # it may be that nobody waits any more
        finally:
            self._opened.cancel()
            self._ended.set()

    def close(self) -> None:
        """End it, and wait for that where its loop can go on meanwhile."""
        if self._loop.is_closed():
            return
        try:
            self._loop.call_soon_threadsafe(self._stop.set)
        except RuntimeError:
            return  # the loop has closed just now
        if self._loop.is_running() and not _runs_here(self._loop) and not self._ended.wait(_CLOSE_S):
            logger.warning("an inner MCP session has not ended for %g s", _CLOSE_S)


def _failed(result: CallToolResult, call: ToolCall) -> ToolFailed:
    texts = [block.text for block in result.content if isinstance(block, mcp_types.TextContent)]
    kind = _kind(call.failure, ToolErrorType.EXECUTION_ERROR)
    failed = ToolFailed(
        kind,
        "\n".join(texts) or f"Tool '{call.name}' failed",
        result.content,
        result.structured_content,
        never_ran=kind is ToolErrorType.INVALID_ARGS and call.began is False,
    )
    failed.__cause__ = call.failure if isinstance(call.failure, Exception) else None
    return failed


def _kind(failure: BaseException | None, otherwise: ToolErrorType) -> ToolErrorType:
    """Why a call failed, told by the class of what was raised."""
    match failure:
        case ToolFailed():
            return failure.error_type
        case NotFoundError() | DisabledError():
            return ToolErrorType.TOOL_NOT_FOUND
        case ValidationError():
            return ToolErrorType.INVALID_ARGS
        case ToolError(__cause__=McpError() as cause) if cause.error.code == mcp_types.CONNECTION_CLOSED:
            return ToolErrorType.TIMEOUT  # -32000: a tool that has a time limit of its own
        case None:
            return otherwise
        case _:
            return ToolErrorType.EXECUTION_ERROR


# ---------------------------------------------------------------- looking at a server


def mode_tool(function: Callable[..., Any]) -> FastTool:
    """A tool for one mode. Its result is structured also where the function does not say what it returns."""
    if inspect.signature(function).return_annotation is not inspect.Signature.empty:
        return FastTool.from_function(function)
    schema = {"type": "object", "properties": {"result": {}}, "required": ["result"], "x-fastmcp-wrap-result": True}
    return FastTool.from_function(function, output_schema=schema)


def server_tools(server: Any) -> dict[str, FastTool]:
    """The tools of a FastMCP server, by name. Blocks; may be called under a running loop."""
    future = asyncio.run_coroutine_threadsafe(server.list_tools(), background_loop())
    return {tool.name: tool for tool in future.result()}


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _ignore(job: asyncio.Future[Any]) -> None:
    if not job.cancelled():
        job.exception()
