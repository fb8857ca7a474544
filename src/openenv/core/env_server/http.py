"""The HTTP routes: ``/reset``, ``/step``, ``/state``, and what a server says of itself.

HTTP has no session of its own, so ``POST /reset`` opens one and names it in the ``OpenEnv-Session`` response header.
Requests with that header act on it; it ends after a minute without any. Requests without it are answered as other
OpenEnv servers do, from an environment made for that one request; they count towards capacity all the same, and
carry a ``Warning``. A program that knows nothing of the header would soon fill a small server with sessions that it
never names, so one that no request has named yet ends for the next newcomer, if every slot is taken.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel
from pydantic.errors import PydanticUserError

from openenv.core.env_server.bodies import answered, json_response, parse
from openenv.core.env_server.calls import Call, CallError, Work, env_raised, run_call
from openenv.core.env_server.interfaces import Environment, default_metadata
from openenv.core.env_server.runner import Crash, EnvRunner
from openenv.core.env_server.sessions import EndReason, Session
from openenv.core.env_server.tasks import TaskRoutes
from openenv.core.env_server.types import (
    HealthResponse,
    ResetRequest,
    ResetResponse,
    SchemaResponse,
    ServerMode,
    StepRequest,
    StepResponse,
)
from openenv.core.exceptions import SessionNotFoundError
from openenv.core.wire.json_codec import dump_model, encode
from openenv.core.wire.messages import CallKind

if TYPE_CHECKING:
    from openenv.core.env_server.http_server import HTTPEnvServer

__all__ = ["SESSION_HEADER", "HTTPRoutes", "model_schema"]

logger = logging.getLogger("openenv.server")

SESSION_HEADER = "OpenEnv-Session"
HTTP_IDLE_S = 60.0
"""An HTTP session ends after this many seconds without a request."""
_NO_SESSION = (
    "no OpenEnv-Session header: this answer comes from an environment made for this one request; "
    "POST /reset opens a session and returns the header"
)

T = TypeVar("T")


class HTTPRoutes:
    """The HTTP routes of one server."""

    def __init__(self, server: HTTPEnvServer) -> None:
        self._server = server
        self._sessions = server.sessions
        self._metadata: bytes | None = None
        self._metadata_lock = asyncio.Lock()
        self._warned = False

    def register(self, app: FastAPI, mode: ServerMode) -> None:
        """Add the routes that the mode has."""
        if mode is ServerMode.SIMULATION:
            self._add(app, "POST", "/reset", self.reset, "Begin an episode in a session", ResetRequest, ResetResponse)
            self._add(app, "POST", "/step", self.step, "Take a step", StepRequest, StepResponse)
            self._add(app, "GET", "/state", self.state, "Read the state", None, self._server.state_cls)
        app.add_api_route("/health", self.health, methods=["GET"], response_model=HealthResponse, tags=["Server"])
        app.add_api_route("/schema", self.schema, methods=["GET"], response_model=SchemaResponse, tags=["Server"])
        app.add_api_route("/metadata", self.metadata, methods=["GET"], tags=["Server"])
        TaskRoutes(self._server, self).register(app)

    def _add(
        self,
        app: FastAPI,
        method: str,
        path: str,
        handler: Callable[[Request], Coroutine[Any, Any, Response]],
        summary: str,
        body: type[BaseModel] | None,
        answer: type[BaseModel],
    ) -> None:
        extra: dict[str, Any] = {
            "responses": {"200": {"content": {"application/json": {"schema": _documented(answer)}}}}
        }
        if body is not None:
            extra["requestBody"] = {"content": {"application/json": {"schema": _documented(body)}}}
        app.add_api_route(path, handler, methods=[method], summary=summary, tags=["Environment"], openapi_extra=extra)

    # ------------------------------------------------------------ the environment

    async def reset(self, request: Request) -> Response:
        """``POST /reset``: reset the session of the header, or open one."""
        return await answered(self._reset(request))

    async def _reset(self, request: Request) -> Response:
        body = await parse(request, ResetRequest)
        given = {name: getattr(body, name) for name in ("seed", "episode_id") if getattr(body, name) is not None}
        call = Call(CallKind.RESET, {**given, **(body.model_extra or {})})
        named = self._named_session(request)
        session = named or await self._open()
        try:
            reply = await self.bounded(session.call(self._work(call)))
        except CallError:
            if named is None:
                session.end(EndReason.CLOSED)
            raise
        if named is None and not self._server.strict_http:  # there, every client has to know of the header
            session.claimed = False  # from now on: until it is answered, this request itself is in need of it
        return json_response(reply, headers={SESSION_HEADER: session.id})

    async def step(self, request: Request) -> Response:
        """``POST /step``: step in the session of the header, or in a throw-away environment."""
        return await answered(self._step(request))

    async def _step(self, request: Request) -> Response:
        body = await parse(request, StepRequest)
        given = {name: getattr(body, name) for name in ("timeout_s", "request_id") if getattr(body, name) is not None}
        return await self._call(request, Call(CallKind.STEP, body.action, {**given, **(body.model_extra or {})}))

    async def state(self, request: Request) -> Response:
        """``GET /state``: the state of the session of the header, or of a throw-away environment."""
        return await answered(self._call(request, Call(CallKind.STATE)))

    async def _call(self, request: Request, call: Call) -> Response:
        session = self._named_session(request)
        if session is not None:
            return json_response(await self.bounded(session.call(self._work(call))))
        if self._server.strict_http:
            return json_response(encode({"detail": _NO_SESSION, "code": "SESSION_ERROR"}), status=409)
        if not self._warned:
            self._warned = True
            logger.warning("%s %s: %s (further ones are not logged)", request.method, request.url.path, _NO_SESSION)
        reply = await self.throw_away(self._work(call))
        return json_response(reply, headers={"Warning": f'299 openenv "{_NO_SESSION}"'})

    def _work(self, call: Call) -> Work:
        async def work(runner: EnvRunner) -> bytes:
            return await run_call(
                runner, call, self._server.action_cls, self._state if call.kind is CallKind.STATE else _observation
            )

        return work

    def _state(self, data: dict[str, Any]) -> bytes:
        return encode(dump_model(self._server.state_cls.model_validate(data)))

    # ------------------------------------------------------------ sessions

    def _named_session(self, request: Request) -> Session | None:
        name = request.headers.get(SESSION_HEADER)
        if not name:
            return None
        session = self._sessions.get(name[:200])
        if not session.evictable:  # opened elsewhere: its id is no secret, and gives no right to it
            raise SessionNotFoundError(session.id)
        session.claimed = True
        return session

    async def _open(self) -> Session:
        limit = min(HTTP_IDLE_S, self._server.concurrency_config.session_timeout or HTTP_IDLE_S)
        session = await self._sessions.open(idle_timeout_s=limit, evictable=True)
        await self.bounded(session.ready())
        return session

    async def throw_away(self, work: Work) -> bytes:
        """Run one request on an environment of its own, and close that before answering.

        Raises:
            CallError: the request was refused or failed.
            OpenEnvError: there was no environment for it.
        """
        session = await self._sessions.open()
        try:
            await self.bounded(session.ready())
            return await self.bounded(session.call(work))
        finally:
            session.end(EndReason.CLOSED)
            await self._sessions.or_drained(session.closed)

    async def bounded(self, waiting: Coroutine[Any, Any, T]) -> T:
        """Wait for something of a session, but not longer than a draining server waits for it.

        Raises:
            CallError: the server stops and the call has not returned.
        """
        return await self._sessions.bounded(waiting)

    # ------------------------------------------------------------ the server

    async def health(self) -> HealthResponse:
        """``GET /health``: never waits for an environment."""
        return HealthResponse()

    async def schema(self) -> SchemaResponse:
        """``GET /schema``: JSON Schemas of the environment's models."""
        server = self._server
        return SchemaResponse(
            action=model_schema(server.action_cls),
            observation=model_schema(server.observation_cls),
            state=model_schema(server.state_cls),
            reset_observation=model_schema(server.reset_observation_cls or server.observation_cls),
        )

    async def metadata(self) -> Response:
        """``GET /metadata``: what the environment says of itself, asked once."""
        return await answered(self._read_metadata())

    async def _read_metadata(self) -> Response:
        async with self._metadata_lock:
            if self._metadata is None:
                made = self._server.env_class or self._server.seen_class
                if made is not None and getattr(made, "get_metadata", None) is Environment.get_metadata:
                    self._metadata = encode(default_metadata(made.__name__))
                else:
                    self._metadata = await self.throw_away(_ask_metadata)
        return json_response(self._metadata)


async def _ask_metadata(runner: EnvRunner) -> bytes:
    try:
        return await runner.call("get_metadata", lambda: ((), {}), encode)
    except Crash as crash:
        raise env_raised(crash.cause, f"{runner.name}.get_metadata") from crash.cause


# ---------------------------------------------------------------- bodies


def model_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema of a model; a bare object where a field of it has none."""
    try:
        return model.model_json_schema()
    except PydanticUserError:  # arbitrary types are allowed in actions, observations and states
        return {"title": model.__name__, "type": "object", "description": "This model has fields without a JSON Schema"}


def _documented(model: type[BaseModel]) -> dict[str, Any]:
    """A schema for inside an OpenAPI document, where references into a schema of its own do not resolve."""
    schema = model_schema(model)
    return {"title": model.__name__, "type": "object"} if "$defs" in schema else schema


def _observation(data: dict[str, Any]) -> bytes:
    reward = data["reward"]
    body = {
        "observation": data["observation"],
        "reward": reward if reward is None else float(reward),
        "done": data["done"],
        "metadata": data.get("metadata"),
    }
    return encode(body)
