"""Standard MCP over Streamable HTTP, on the same ``/mcp`` as OpenEnv's own JSON-RPC: who is served, in which session.

A request belongs here if it is an ``initialize``, or carries ``Mcp-Session-Id`` or ``MCP-Protocol-Version``; nothing of
the other dialect does. Each MCP session is a session of the session manager, with an environment of its own. What it
offers is what the environment's MCP server has; reset, step and state are not among that.

(Model Context Protocol, revision 2025-11-25, "Transports": session management, resumability.)
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response
from starlette.types import Message, Receive, Scope, Send

from openenv.core.env_server.bodies import json_response
from openenv.core.env_server.calls import CallError
from openenv.core.env_server.http import HTTPRoutes
from openenv.core.env_server.json_rpc import RpcError, as_rpc_error, failure
from openenv.core.env_server.mcp_types import JsonRpcErrorCode
from openenv.core.env_server.runner import EnvRunner
from openenv.core.env_server.sessions import EVICTION_WAIT_S, EndReason, Session
from openenv.core.exceptions import OpenEnvError
from openenv.core.wire.json_codec import encode

if TYPE_CHECKING:
    from openenv.core.env_server.http_server import HTTPEnvServer
    from openenv.core.env_server.mcp_transport import StreamSession
    from openenv.core.env_server.tool_host import ToolHost

__all__ = ["McpStreams"]

SESSION_HEADER = "Mcp-Session-Id"
VERSION_HEADER = "MCP-Protocol-Version"


class McpStreams:
    """The standard MCP sessions of one server.

    Args:
        server: whose tools they are.
        http: waits with regard to the drain.
        idle_timeout_s: seconds without a request after which a session ends; None for never.
    """

    def __init__(self, server: HTTPEnvServer, http: HTTPRoutes, idle_timeout_s: float | None) -> None:
        self._server = server
        self._http = http
        self._idle_timeout_s = idle_timeout_s
        self._streams: dict[str, StreamSession] = {}

    def wants(self, request: Request, document: Any = None) -> bool:
        """Whether a request is one of standard MCP.

        Args:
            request: its headers are looked at.
            document: its body, decoded.
        """
        named = SESSION_HEADER in request.headers or VERSION_HEADER in request.headers
        return named or (isinstance(document, dict) and document.get("method") == "initialize")

    async def post(self, request: Request, document: Any, body: bytes) -> Response:
        """``POST``: a message of the client."""
        session_id = request.headers.get(SESSION_HEADER)
        if session_id is not None:
            stream = self._find(session_id)
            return _unknown() if stream is None else _Handed(stream, body)
        if not isinstance(document, dict) or document.get("method") != "initialize":
            text = f"the first request must be 'initialize'; later ones carry {SESSION_HEADER}"
            return json_response(encode(failure(None, RpcError(JsonRpcErrorCode.INVALID_REQUEST, text))), 400)
        try:
            stream = await self._http.bounded(self._open())
        except (CallError, OpenEnvError) as error:
            request_id = document.get("id")
            told = request_id if isinstance(request_id, str | int) else None
            return json_response(encode(failure(told, as_rpc_error(error))))
        return _Handed(stream, body, opens=True)

    async def get(self, request: Request) -> Response:
        """``GET``: a stream for what the server says unasked, or the rest of one that was cut."""
        return await self._other(request)

    async def delete(self, request: Request) -> Response:
        """``DELETE``: the end of a session. Answered when its environment is closed."""
        return await self._other(request, ends=True)

    async def _other(self, request: Request, ends: bool = False) -> Response:
        session_id = request.headers.get(SESSION_HEADER)
        if session_id is None:
            return json_response(b'{"detail":"Method Not Allowed"}', 405, {"Allow": "POST"})
        stream = self._find(session_id)
        if stream is None:
            return _unknown()
        if not ends:
            return _Handed(stream)
        stream.session.end(EndReason.CLOSED)
        await asyncio.wait({stream.session.closed}, timeout=EVICTION_WAIT_S)
        return Response(status_code=200)

    # ------------------------------------------------------------ sessions

    def _find(self, session_id: str) -> StreamSession | None:
        stream = self._streams.get(session_id)
        return None if stream is None or stream.session.machine.over else stream

    async def _open(self) -> StreamSession:
        """Open a session.

        Raises:
            OpenEnvError: there is no place for it, or no environment.
            RpcError: the environment has no tools.
        """
        none = RpcError(JsonRpcErrorCode.INTERNAL_ERROR, "Environment does not support MCP")
        env_class = self._server.env_class
        if env_class is not None and not hasattr(env_class, "mcp_call"):
            raise none
        session = await self._server.sessions.open(idle_timeout_s=self._idle_timeout_s)
        try:
            session.pinned = True  # until its first request has been served
            await session.ready()
            host = await _host(session)
            if host is None:
                raise none
            transport = await asyncio.to_thread(import_module, "openenv.core.env_server.mcp_transport")
            stream: StreamSession = transport.StreamSession(session, host)
            await stream.connected()
        except BaseException:  # raised on: nobody else would end it
            session.end(EndReason.CLOSED)
            raise
        self._streams[stream.id] = stream
        session.ending.add_done_callback(lambda _: self._streams.pop(stream.id, None))
        return stream


async def _host(session: Session) -> ToolHost | None:
    found: list[ToolHost | None] = []

    async def work(runner: EnvRunner) -> bytes:
        found.append(await runner.on_thread(lambda env: getattr(env, "_host", None)))
        return b""

    await session.call(work)
    return found[0]


def _unknown() -> Response:
    error = RpcError(JsonRpcErrorCode.INVALID_REQUEST, "Session not found")
    return json_response(encode(failure(None, error)), 404)


class _Handed(Response):
    """An answer that the SDK's transport writes."""

    def __init__(self, stream: StreamSession, body: bytes | None = None, opens: bool = False) -> None:
        super().__init__()
        self._stream = stream
        self._sent = body
        self._opens = opens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        status = 500

        async def body_first() -> Message:
            body, self._sent = self._sent, None
            return await receive() if body is None else {"type": "http.request", "body": body, "more_body": False}

        async def watched(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self._stream.serve(scope, body_first, watched)
        finally:
            if self._opens and status >= 400:  # refused by the transport: nobody knows of the session
                self._stream.session.end(EndReason.CLOSED)
