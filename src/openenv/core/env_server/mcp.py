"""The ``/mcp`` routes that speak OpenEnv's own JSON-RPC: POST, and a WebSocket with a private session.

Four methods: ``tools/list``, ``tools/call``, ``openenv/session/create`` and ``openenv/session/close``. None reaches
reset, step or state. What standard MCP clients send to the same path is handed to
`openenv.core.env_server.mcp_stream`.

Answers have HTTP status 200, errors too, for so other OpenEnv servers have it; 400 tells of what is no JSON-RPC
request, 202 has no body because only notifications came.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response, WebSocket

from openenv.core.env_server.bodies import PARSE_HERE_BYTES, BodyRefused, json_response, read_body
from openenv.core.env_server.calls import CallError, Work
from openenv.core.env_server.frames import DECODE_HERE_BYTES, Frame, FrameReader, own_session
from openenv.core.env_server.http import HTTPRoutes
from openenv.core.env_server.json_rpc import (
    CLOSE,
    CREATE,
    RpcError,
    RpcRequest,
    as_rpc_error,
    failure,
    is_batch,
    read_document,
    success,
)
from openenv.core.env_server.mcp_sessions import (
    FEATURES_HEADER,
    KEY_HEADER,
    TOKEN_HEADER,
    HeldSession,
    HeldSessions,
)
from openenv.core.env_server.mcp_stream import McpStreams
from openenv.core.env_server.mcp_types import JsonRpcErrorCode
from openenv.core.env_server.runner import EnvRunner
from openenv.core.env_server.sessions import EVICTION_WAIT_S, SessionManager
from openenv.core.env_server.tools import TOOL_METHODS
from openenv.core.env_server.ws import FrameHandler, PlainSocket
from openenv.core.exceptions import OpenEnvError
from openenv.core.wire.json_codec import encode

if TYPE_CHECKING:
    from openenv.core.env_server.http_server import HTTPEnvServer

__all__ = ["McpRoutes", "McpSocket"]

FEATURES = ("token", "idempotency")
MAX_KEY = 200
_BAD_REQUEST = (JsonRpcErrorCode.PARSE_ERROR, JsonRpcErrorCode.INVALID_REQUEST)


class McpRoutes:
    """``/mcp`` of one server.

    Args:
        server: whose tools they are.
        http: runs requests in throw-away environments.
    """

    def __init__(self, server: HTTPEnvServer, http: HTTPRoutes) -> None:
        self._server = server
        self._http = http
        self._tools = server.tools
        self._held = server.held
        self._streams = McpStreams(server, http, server.mcp_idle_s)

    def register(self, app: FastAPI) -> None:
        """Add the routes."""
        streams = self._streams
        app.add_api_route("/mcp", self.post, methods=["POST"], summary="List and call tools", tags=["Tools"])
        app.add_api_route("/mcp", streams.get, methods=["GET"], summary="Read an MCP stream", tags=["Tools"])
        app.add_api_route("/mcp", streams.delete, methods=["DELETE"], summary="End an MCP session", tags=["Tools"])

        @app.websocket("/mcp")
        async def mcp_socket(socket: WebSocket) -> None:
            timeout = self._server.concurrency_config.session_timeout
            server = self._server
            await McpSocket(socket, server.sessions, self._held, server.reader, timeout).serve()

    async def post(self, request: Request) -> Response:
        """``POST /mcp``: requests for tools, and for sessions to use them in."""
        try:
            body = await read_body(request, self._server.v1.options.max_message_bytes)
            large = len(body) > PARSE_HERE_BYTES
            document = await asyncio.to_thread(read_document, body) if large else read_document(body)
        except BodyRefused as refused:
            told = RpcError(JsonRpcErrorCode.INVALID_REQUEST, refused.message)
            return json_response(encode(failure(None, told)), refused.status)
        except RpcError as error:
            return json_response(encode(failure(None, error)), 400)
        if self._streams.wants(request, document):
            return await self._streams.post(request, document, body)
        if is_batch(document):
            answers = [await _Answering(self, request).answer(one) for one in document]
            replies = [reply for reply in answers if reply is not None]
            return json_response(b"[" + b",".join(replies) + b"]") if replies else Response(status_code=202)
        answering = _Answering(self, request, single=True)
        reply = await answering.answer(document)
        if reply is None:
            return Response(status_code=202)
        return json_response(reply, answering.status, answering.headers)

    # ------------------------------------------------------------ what it asks for

    async def open(self, wanted: frozenset[str], key: str | None) -> tuple[HeldSession, dict[str, str]]:
        """Open a session, one for each key. Returns it, and the headers that tell its token, if that is wanted."""
        uses = [feature for feature in FEATURES if feature in wanted]
        with_token = "token" in uses
        if key is None or "idempotency" not in uses:
            opening = self._held.open(with_token)
        else:
            opening = self._held.open_once(key, with_token)
        held, token = await self._http.bounded(opening)
        headers = {FEATURES_HEADER: ", ".join(uses)} if uses else {}
        return held, headers if token is None else {**headers, TOKEN_HEADER: token}

    def find(self, session_id: str, token: str | None) -> HeldSession:
        """A session that may be used."""
        return self._held.find(session_id, token)

    async def close(self, held: HeldSession) -> dict[str, Any]:
        """End a session, or let it end when its socket has left. Returns what to tell, when its place is free."""
        told = held.close()
        if told["closed"]:
            await asyncio.wait({held.session.closed}, timeout=EVICTION_WAIT_S)
        return told

    def work(self, request: RpcRequest) -> Work:
        """What a session runs for a request."""
        return self._tools.work(request, encode)

    async def in_session(self, held: HeldSession, work: Work) -> bytes:
        """Run it in a session."""
        return await self._http.bounded(held.session.call(work))

    async def alone(self, work: Work) -> bytes:
        """Run it in an environment made for it."""
        return await self._http.throw_away(work)


class _Answering:
    """One HTTP request, and what is to be said beside its answer."""

    def __init__(self, routes: McpRoutes, http: Request, single: bool = False) -> None:
        self._routes = routes
        self._token = http.headers.get(TOKEN_HEADER)
        self._key = http.headers.get(KEY_HEADER) if single else None
        self._wanted = frozenset(part.strip().lower() for part in http.headers.get(FEATURES_HEADER, "").split(","))
        self._single = single
        self.status = 200
        self.headers: dict[str, str] = {}

    async def answer(self, value: Any) -> bytes | None:
        """The encoded response to a decoded request; None to a notification."""
        request: RpcRequest | None = None
        try:
            request = RpcRequest.read(value)
            reply = await self._answer(request)
        except (CallError, OpenEnvError) as error:
            told = as_rpc_error(error)
            if request is None and self._single and told.rpc_code in _BAD_REQUEST:
                self.status = 400
            reply = encode(failure(None if request is None else request.id, told))
        return None if request is not None and request.silent else reply

    async def _answer(self, request: RpcRequest) -> bytes:
        routes, named = self._routes, request.text("session_id")
        if request.method in TOOL_METHODS:
            work = routes.work(request)
            if named is None:
                return await routes.alone(work)
            return await self._once(routes.find(named, self._token), request, work)
        if request.method == CREATE:
            if request.silent or not self._single:
                text = "a session is opened by a request of its own, with an id"
                raise RpcError(JsonRpcErrorCode.INVALID_REQUEST, text)
            held, self.headers = await routes.open(self._wanted, self._checked_key())
            return encode(success(request.id, {"session_id": held.session.id}))
        if request.method == CLOSE:
            if named is None:
                raise RpcError(JsonRpcErrorCode.INVALID_PARAMS, "Invalid params - 'session_id' is required")
            return encode(success(request.id, await routes.close(routes.find(named, self._token))))
        raise request.unknown_method

    async def _once(self, held: HeldSession, request: RpcRequest, work: Work) -> bytes:
        key = self._checked_key()
        if key is None:
            return await self._routes.in_session(held, work)
        return await held.replies.once(key, request, lambda: self._routes.in_session(held, work))

    def _checked_key(self) -> str | None:
        if self._key is not None and not 0 < len(self._key) <= MAX_KEY:
            raise RpcError(JsonRpcErrorCode.INVALID_PARAMS, f"The {KEY_HEADER} must have 1 to {MAX_KEY} characters")
        return self._key


class McpSocket(PlainSocket):
    """WS ``/mcp``: bare JSON-RPC, in a session of the socket's own, which ends with it.

    Args:
        socket: not yet accepted.
        manager: owns the sessions.
        held: not used; a socket of this route attaches to nothing.
        reader: has the tools.
        idle_timeout_s: seconds of silence after which the session ends; None for never.
    """

    def __init__(
        self,
        socket: WebSocket,
        manager: SessionManager,
        held: HeldSessions,
        reader: FrameReader,
        idle_timeout_s: float | None,
    ) -> None:
        super().__init__(socket, manager, held, reader, idle_timeout_s)
        self._wanted = None

    def _handler(self, frame: Frame, session_id: str) -> FrameHandler:
        return _RpcHandler(frame, self._reader, session_id)

    def _error_frame(self, error: OpenEnvError | CallError) -> bytes:
        return _spaced(failure(None, as_rpc_error(error)))


class _RpcHandler(FrameHandler):
    """One frame of it."""

    async def __call__(self, runner: EnvRunner) -> bytes:
        try:
            small = len(self._frame) <= DECODE_HERE_BYTES
            document = self._document() if small else await runner.on_thread(lambda env: self._document())
        except RpcError as error:
            return _spaced(failure(None, error))
        if not is_batch(document):
            return await self._answer(runner, document)
        answers = [await self._answer(runner, one) for one in document]
        return b"[" + b", ".join(reply for reply in answers if reply) + b"]" if any(answers) else b""

    def _document(self) -> Any:
        if isinstance(self._frame, bytes):
            raise RpcError(JsonRpcErrorCode.PARSE_ERROR, "Parse error: frames must be text, not binary")
        return read_document(self._frame)

    async def _answer(self, runner: EnvRunner, value: Any) -> bytes:
        request: RpcRequest | None = None
        try:
            request = RpcRequest.read(value)
            if request.method in TOOL_METHODS:
                reply = await self._reader.tools.work(request, _spaced)(runner)
            else:
                reply = _spaced(success(request.id, own_session(request, self._session_id)))
        except RpcError as error:
            reply = _spaced(failure(None if request is None else request.id, error))
        return b"" if request is not None and request.silent else reply


def _spaced(value: Any) -> bytes:
    """As other OpenEnv servers write it on this route."""
    return json.dumps(value).encode()
