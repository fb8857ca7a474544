"""The routes of the web page: its files, what it is told, its socket, and the ``/web`` routes that other OpenEnv
servers have for programs.

Whoever comes has a session of their own (see `openenv.core.env_server.visitors`). The page opens one over ``/web/ws``
when an episode begins; a program with ``POST /web/reset``, which names it in a header and in a cookie. What the page
is told is made in `openenv.core.env_server.web_page`.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response, WebSocket
from pydantic import BaseModel

from openenv._version import __version__
from openenv.core.env_server.bodies import answered, json_response, parse
from openenv.core.env_server.calls import Call, CallError, Work, env_raised, run_call
from openenv.core.env_server.frames import FrameReader
from openenv.core.env_server.gradio_tab import WebInterfaceManager
from openenv.core.env_server.http import SESSION_HEADER, model_schema
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_types import CallToolAction, ListToolsAction
from openenv.core.env_server.runner import Crash, EnvRunner
from openenv.core.env_server.security import HUB, SPACES
from openenv.core.env_server.sessions import EndReason, Session
from openenv.core.env_server.types import Action, EnvironmentMetadata, ResetRequest
from openenv.core.env_server.visitors import Visitors, WebOptions, visitor_link
from openenv.core.env_server.web_page import display_description, display_title, reset_schema, split_front_matter
from openenv.core.env_server.ws_v1 import V1Server
from openenv.core.exceptions import OpenEnvError, SessionCapacityError, SessionCreationError, SessionNotFoundError
from openenv.core.wire.json_codec import encode
from openenv.core.wire.messages import CallKind, WSErrorCode

if TYPE_CHECKING:
    from openenv.core.env_server.http_server import HTTPEnvServer

__all__ = ["COOKIE", "CustomTab", "WebRoutes"]

logger = logging.getLogger("openenv.server")

COOKIE = "openenv_web"
_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_NO_SESSION = (
    "This request names no session of yours: POST /web/reset opens one, and names it in the OpenEnv-Session header "
    "and in a cookie; send either back"
)


class CustomTab(BaseModel):
    """A tab of the environment's own.

    Attributes:
        name: its label.
        path: where it is, seen from the page.
        primary: whether it is shown first.
        alone: whether it replaces the tab to play in.
    """

    name: str
    path: str
    primary: bool = False
    alone: bool = False


class WebStep(BaseModel):
    """The body of ``POST /web/step``: an action, or a message for an environment that turns messages into actions."""

    action: dict[str, Any] | None = None
    message: Any = None


class WebRoutes:
    """The web page of one server.

    Args:
        server: whose environments it shows.
        options: how many visitors, and for how long.
        title: its heading, instead of the environment's own.
        custom: a tab of the environment's own.
        load_metadata: what is known of the environment before one is made, with its README.
    """

    def __init__(
        self,
        server: HTTPEnvServer,
        options: WebOptions,
        *,
        load_metadata: Callable[[], EnvironmentMetadata],
        title: str | None = None,
        custom: CustomTab | None = None,
    ) -> None:
        self._server = server
        self._options = options
        self._title = title
        self._custom = custom
        self._load_metadata = load_metadata
        beside = server.is_concurrency_safe or server.max_concurrent_envs > 1
        self.visitors = Visitors(server.sessions, options, beside=beside)
        reader = FrameReader(server.action_cls, server.tools)
        self._v1 = V1Server(self.visitors, reader, visitor_link(server.v1.options, options), options.idle_s)
        self._metadata: EnvironmentMetadata | None = None
        self._asking = asyncio.Lock()
        space = bool(os.environ.get("SPACE_HOST") or os.environ.get("SPACE_ID"))
        self._headers = _page_headers(framed_by=f"'self' {HUB} {SPACES}" if space else "'self'")

    def register(self, app: FastAPI) -> None:
        """Add the routes."""

        @app.websocket("/web/ws")
        async def ws(socket: WebSocket) -> None:
            if self._v1.wanted(socket):
                await self._v1.serve(socket)
            else:
                await socket.close(1002, "this socket speaks openenv.v1")

        # relative, so that it holds under whatever path a proxy serves the app
        for path in ("/", "/web"):
            app.add_api_route(path, _to_page, methods=["GET"], include_in_schema=False)
        for method, path, handler in (
            ("GET", "/web/metadata", self.metadata),
            ("GET", "/web/page", self.page),
            ("GET", "/web/state", self.state),
            ("POST", "/web/reset", self.reset),
            ("POST", "/web/step", self.step),
        ):
            app.add_api_route(path, handler, methods=[method], tags=["Web page"])
        app.add_api_route("/web/", self.file, methods=["GET"], include_in_schema=False)
        app.add_api_route("/web/{name}", self.file, methods=["GET"], include_in_schema=False)

    # ------------------------------------------------------------ the page

    @property
    def title(self) -> str:
        """The heading, as far as it is known before an environment is made."""
        known = self._load_metadata()
        return display_title(known.name, self._title, split_front_matter(known.readme_content or "")[0])

    @property
    def manager(self) -> WebInterfaceManager:
        """What a tab of the environment's own plays with."""
        server = self._server
        return WebInterfaceManager(
            server.sessions.setup.factory,
            server.action_cls,
            server.observation_cls,
            self._load_metadata(),
            sessions=self.visitors,
            idle_timeout_s=self._options.idle_s,
        )

    async def file(self, request: Request, name: str = "index.html") -> Response:
        """A file of the page."""
        found = _files().get(name)
        if found is None:
            return json_response(b'{"detail":"Not Found"}', 404)
        body, kind, tag = found
        headers = {**self._headers, "ETag": tag}
        if request.headers.get("If-None-Match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type=kind)

    async def page(self) -> Response:
        """``GET /web/page``: all that the page needs before a session is opened."""
        return await answered(self._page())

    async def _page(self) -> Response:
        server = self._server
        told = await self._tell()
        settings, readme = split_front_matter(told.readme_content or "")
        body = {
            "title": display_title(told.name, self._title, settings),
            "emoji": settings.get("emoji", ""),
            "name": told.name,
            "description": display_description(told.description, settings, readme),
            "version": told.version,
            "author": told.author,
            "readme": readme,
            "action": model_schema(server.action_cls),
            "reset": reset_schema(server.env_class),
            "tools": server.action_cls in (Action, CallToolAction, ListToolsAction),
            "idle_s": self._options.idle_s,
            "custom": self._custom.model_dump() if self._custom is not None else None,
            "server": f"openenv {__version__}",
        }
        return json_response(encode(body), headers={"Cache-Control": "no-store"})

    async def metadata(self) -> Response:
        """``GET /web/metadata``: what the environment says of itself, with its README."""

        async def answer() -> Response:
            return json_response(encode((await self._tell()).model_dump(mode="json")))

        return await answered(answer())

    async def _tell(self) -> EnvironmentMetadata:
        async with self._asking:
            if self._metadata is None:
                known = await asyncio.to_thread(self._load_metadata)
                own = getattr(self._server.env_class, "get_metadata", None)
                if own is Environment.get_metadata:
                    self._metadata = known
                else:
                    try:
                        said = await self._ask()
                    except SessionCapacityError:
                        return known  # it is asked when there is a place
                    except (OpenEnvError, CallError) as error:
                        logger.warning("the page does without the environment's own metadata for now: %s", error)
                        return known  # it is asked again
                    said = {field: value for field, value in said.items() if value is not None}
                    self._metadata = known.model_copy(update=said)
            return self._metadata

    async def _ask(self) -> dict[str, Any]:
        said: dict[str, Any] = {}

        def note(metadata: Any) -> bytes:
            said.update(EnvironmentMetadata.model_validate(metadata, from_attributes=True).model_dump())
            return b""

        async def work(runner: EnvRunner) -> bytes:
            try:
                return await runner.call("get_metadata", lambda: ((), {}), note)
            except Crash as crash:
                raise env_raised(crash.cause, f"{runner.name}.get_metadata") from crash.cause

        session = await self.visitors.open(idle_timeout_s=self._options.idle_s)
        try:
            await self.visitors.bounded(session.ready())
            await self.visitors.bounded(session.call(work))
        finally:
            session.end(EndReason.CLOSED)
        return said

    # ------------------------------------------------------------ programs

    async def reset(self, request: Request) -> Response:
        """``POST /web/reset``: begin an episode in the caller's session; opens one where there is none."""
        return await answered(self._reset(request))

    async def _reset(self, request: Request) -> Response:
        body = await parse(request, ResetRequest)
        given = {name: getattr(body, name) for name in ("seed", "episode_id") if getattr(body, name) is not None}
        call = Call(CallKind.RESET, {**given, **(body.model_extra or {})})
        named = self._named(request)
        session = named or await self.visitors.open(idle_timeout_s=self._options.idle_s, evictable=True)
        try:
            await self.visitors.bounded(session.ready())
            reply = await self.visitors.bounded(session.call(self._work(call)))
        except SessionNotFoundError:
            if named is None:  # it was made, and made way before its first call
                raise SessionCreationError("the session has ended") from None
            raise
        except BaseException:  # raised on; nobody was told of a session that was opened for this request
            if named is None:
                session.end(EndReason.CLOSED)
            raise
        response = json_response(reply, headers={SESSION_HEADER: session.id})
        # without a path it holds for /web as the caller sees it, below whatever prefix
        response.headers["Set-Cookie"] = f"{COOKIE}={session.id}; HttpOnly; SameSite=Strict"
        return response

    async def step(self, request: Request) -> Response:
        """``POST /web/step``: a step in the caller's session."""
        return await answered(self._step(request))

    async def _step(self, request: Request) -> Response:
        body = await parse(request, WebStep)
        session = self._named(request)
        if session is None:
            return _no_session()

        async def work(runner: EnvRunner) -> bytes:
            action = body.action or {}
            if "message" in body.model_fields_set:
                action = await runner.on_thread(lambda env: _as_action(env, body.message))
            return await self._work(Call(CallKind.STEP, action))(runner)

        return json_response(await self.visitors.bounded(session.call(work)))

    async def state(self, request: Request) -> Response:
        """``GET /web/state``: the state of the caller's session."""
        return await answered(self._state(request))

    async def _state(self, request: Request) -> Response:
        session = self._named(request)
        if session is None:
            return _no_session()
        return json_response(await self.visitors.bounded(session.call(self._work(Call(CallKind.STATE)))))

    def _work(self, call: Call) -> Work:
        async def work(runner: EnvRunner) -> bytes:
            return await run_call(runner, call, self._server.action_cls, encode)

        return work

    def _named(self, request: Request) -> Session | None:
        """The session that a request names, if it is one of this route; None if it names none that lives."""
        name = request.headers.get(SESSION_HEADER) or request.cookies.get(COOKIE)
        try:
            session = self.visitors.get((name or "")[:200])
        except SessionNotFoundError:
            return None
        return session if session.evictable else None


def _no_session() -> Response:
    return json_response(encode({"detail": _NO_SESSION, "code": "SESSION_ERROR"}), status=409)


async def _to_page(request: Request) -> Response:
    query = f"?{request.url.query}" if request.url.query else ""
    return Response(status_code=307, headers={"Location": f"web/{query}"})


def _as_action(env: Any, message: Any) -> dict[str, Any]:
    """The fields of the action that a message stands for."""
    convert = getattr(env, "message_to_action", None)
    if convert is None:
        return {"message": message}
    try:
        action = convert(message)
        tokens: Any = getattr(action, "tokens", None)
        if hasattr(tokens, "tolist"):
            return {"tokens": tokens.tolist()}
        fields: dict[str, Any] = action.model_dump(exclude={"metadata"})
        return fields
    except Exception as error:  # the env author's code raised: one refused request
        raise CallError(WSErrorCode.VALIDATION_ERROR, f"message_to_action raised {type(error).__name__}") from error


def _page_headers(framed_by: str) -> dict[str, str]:
    rules = {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data: blob:",
        "connect-src": "'self'",
        "frame-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": framed_by,
    }
    return {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in rules.items()),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }


@functools.cache
def _files() -> Mapping[str, tuple[bytes, str, str]]:
    """The files of the page by name: their bytes, type and entity tag."""
    found = {}
    for file in resources.files(__package__).joinpath("web_static").iterdir():
        kind = _KINDS.get(file.name.rpartition(".")[2])
        if kind is not None:
            body = file.read_bytes()
            found[file.name] = (body, kind, f'"{hashlib.sha256(body).hexdigest()[:16]}"')
    return found
