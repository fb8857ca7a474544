"""One standard MCP session over Streamable HTTP: the official SDK's transport, around one environment.

The SDK reads and writes HTTP here; FastMCP answers; the environment's session decides when a call runs. What an MCP
session adds is a store of the events it has sent, so that a client whose stream was cut gets the rest of it.

Needs the extra ``mcp``; imported when a client opens the first such session.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from mcp.server.streamable_http import (
    EventCallback,
    EventMessage,
    EventStore,
    StreamableHTTPServerTransport,
)
from mcp.types import JSONRPCError, JSONRPCMessage, JSONRPCResponse
from starlette.types import Receive, Scope, Send

from openenv.core.env_server.runner import Crash, EnvRunner
from openenv.core.env_server.sessions import EndReason, Session
from openenv.core.env_server.tool_doors import Gate
from openenv.core.env_server.tool_host import ToolHost
from openenv.core.exceptions import SessionCreationError

__all__ = ["Events", "StreamSession"]

logger = logging.getLogger("openenv.server")

RETRY_MS = 500
"""When a client whose stream was cut may come back."""
LAST_ANSWER_S = 2.0
KEPT_EVENTS = 1000
KEPT_BYTES = 32 * 1024 * 1024


@dataclass(slots=True)
class _Event:
    number: int
    stream: str
    message: JSONRPCMessage | None
    size: int

    @property
    def last(self) -> bool:
        """Whether it answers the request that its stream is for."""
        return self.message is not None and isinstance(self.message.root, JSONRPCResponse | JSONRPCError)


class Events(EventStore):
    """What one MCP session has sent, up to a bound.

    A client that comes back is told from here all that follows, also what is yet to come, until the answer to its
    request. (The SDK's own way, to replay and then to listen anew, would lose what comes between the two.)
    """

    def __init__(self) -> None:
        self._events: deque[_Event] = deque()
        self._size = 0
        self._stored = 0
        self._changed = asyncio.Event()

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Keep an event. Returns its id."""
        self._stored += 1
        size = 0 if message is None else len(message.model_dump_json(by_alias=True, exclude_none=True))
        self._events.append(_Event(self._stored, stream_id, message, size))
        self._size += size
        while len(self._events) > KEPT_EVENTS or (self._size > KEPT_BYTES and len(self._events) > 1):
            self._size -= self._events.popleft().size
        self._changed.set()
        return str(self._stored)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send what followed an event on its stream, until that stream ends."""
        seen = int(last_event_id) if last_event_id.isdecimal() and len(last_event_id) < 20 else -1
        known = next((event for event in self._events if event.number == seen), None)
        if known is None:
            return None
        while not known.last:
            for event in [one for one in self._events if one.stream == known.stream and one.number > known.number]:
                known = event
                if event.message is not None:
                    await send_callback(EventMessage(event.message, str(event.number)))
            if not known.last:
                self._changed.clear()
                await self._changed.wait()
        return None


class StreamSession:
    """An MCP session and its environment.

    Args:
        session: the environment.
        host: its tools.

    Attributes:
        id: its secret name.
    """

    def __init__(self, session: Session, host: ToolHost) -> None:
        self.id = secrets.token_hex(32)
        self.session = session
        self._host = host
        self._in_flight = 0
        self._answering = 0
        self._transport = StreamableHTTPServerTransport(self.id, event_store=Events(), retry_interval=RETRY_MS)
        self._connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(), name=f"openenv-mcp-{session.id}", context=contextvars.Context())
        self._ending: asyncio.Task[None] | None = None
        session.closed.add_done_callback(lambda _: self._end())

    async def connected(self) -> None:
        """Wait until it can be served.

        Raises:
            SessionCreationError: it cannot; the log says why.
        """
        await asyncio.wait({self._connected, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not self._connected.done():
            raise SessionCreationError("the environment's MCP server could not be started")

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. While there is one, the session is not idle."""
        answers = scope["method"] == "POST"
        self._in_flight += 1
        self._answering += answers
        self.session.pinned = True
        self.session.touch()
        try:
            await self._transport.handle_request(scope, receive, send)
        finally:
            self._in_flight -= 1
            self._answering -= answers
            self.session.pinned = self._in_flight > 0
            self.session.touch()

    def _end(self) -> None:
        self._ending = asyncio.get_running_loop().create_task(self._wind_up())

    async def _wind_up(self) -> None:
        """Let the last answers out, and the open streams end by themselves: the SDK takes it for a fault if they are
        closed under it."""
        late = time.monotonic() + LAST_ANSWER_S
        while self._answering and time.monotonic() < late:
            await asyncio.sleep(0.01)
        for sender, _ in tuple(self._transport._request_streams.values()):
            sender.close()
        await asyncio.sleep(0.01)
        self._task.cancel()

    async def _run(self) -> None:
        """Answer, until the session ends."""
        server = self._host.server
        try:
            with self._host.entered(_gate(self.session)):
                async with server._lifespan_manager(), self._transport.connect() as (reader, writer):
                    self._connected.set_result(None)
                    options = server._mcp_server.create_initialization_options()
                    await server._mcp_server.run(reader, writer, options)
        except asyncio.CancelledError:
            pass  # the environment is closed, or the loop ends
        except Exception:  # the author's lifespan or middleware may raise anything; the session is over
            logger.exception("an MCP session failed")
        finally:
            await self._transport.terminate()
            self.session.end(EndReason.CLOSED)


def _gate(session: Session) -> Gate:
    """Runs calls of an MCP session as calls of the environment's session: one at a time, and none after its end."""

    async def gate(run: Callable[[], Awaitable[Any]]) -> Any:
        result: list[Any] = []
        failure: list[BaseException] = []

        async def begin(env: Any) -> None:
            result.append(await run())

        async def work(runner: EnvRunner) -> bytes:
            try:
                await runner.free()
                await runner.awaited(begin, "tools/call")
                runner.steps += 1
            except Crash as crash:
                failure.append(crash.cause)
            return b""

        await session.call(work)
        if failure:
            raise failure[0]
        return result[0]

    return gate
