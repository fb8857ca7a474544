"""Wiring: an environment factory becomes a FastAPI app. The rules live in the modules that this one connects.

`create_app` is what env packages call. `HTTPEnvServer` adds the routes to an app of your own.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, WebSocket

from openenv.core.env_server.arguments import (
    class_of,
    concurrency_of,
    mode_of,
    name_of,
    require_factory,
    require_models,
)
from openenv.core.env_server.env_metadata import load_environment_metadata
from openenv.core.env_server.frames import FrameReader
from openenv.core.env_server.gradio_tab import gradio_is_here, mount_tab
from openenv.core.env_server.http import HTTPRoutes
from openenv.core.env_server.lasting_loop import LastingLoop
from openenv.core.env_server.mcp import McpRoutes
from openenv.core.env_server.mcp_sessions import IDLE_S, HeldSessions, wanted_session
from openenv.core.env_server.observing import Observer
from openenv.core.env_server.runner import EnvThread
from openenv.core.env_server.security import Edge, EdgePolicy
from openenv.core.env_server.sessions import SessionManager, Setup
from openenv.core.env_server.settings import flag, number
from openenv.core.env_server.signals import early_drain
from openenv.core.env_server.tools import Tools
from openenv.core.env_server.types import (
    Action,
    ConcurrencyConfig,
    EnvironmentMetadata,
    Observation,
    ServerCapacityStatus,
    ServerMode,
    SessionInfo,
    State,
)
from openenv.core.env_server.v1_options import V1Options
from openenv.core.env_server.visitors import WebOptions
from openenv.core.env_server.web import CustomTab, WebRoutes
from openenv.core.env_server.ws import PlainSocket
from openenv.core.env_server.ws_v1 import V1Server
from openenv.core.exceptions import ConcurrencyConfigurationError, SessionNotFoundError

__all__ = ["HTTPEnvServer", "create_app", "create_fastapi_app"]

logger = logging.getLogger("openenv.server")

Factory = Callable[[], Any]


class HTTPEnvServer:
    """Serves environments of one kind, one per session.

    Args:
        env: makes an environment: its class, or a callable without arguments.
        action_cls: its action class; None for `Action`, as where tools are all that it has.
        observation_cls: its observation class; None for `Observation`.
        max_concurrent_envs: most environments alive at any moment; 1 by default.
        concurrency_config: the same and more, instead of ``max_concurrent_envs``.
        env_name: name in the task routes; the class name by default.
        state_cls: its state class.
        reset_observation_cls: class of the observation that reset returns, if it is another one.
        strict_http: refuse ``/step`` and ``/state`` without a session header (409); by default
            ``OPENENV_STRICT_HTTP`` decides.
        drain_grace_s: seconds that running calls may take after SIGTERM; by default
            ``OPENENV_DRAIN_GRACE_S``, else 10.
        v1: what is offered of ``openenv.v1``, and its times and bounds; by default the environment variables
            decide, see `V1Options.from_environ`.
        allowed_origins: origins of web pages that may use the server beside its own, as ``https://ui.example`` or
            ``https://*.ui.example``; ``*`` for all. Those of ``OPENENV_ALLOWED_ORIGINS`` are added.
        allowed_hosts: names under which the server is reached, beside the local ones; ``*`` for any. Those of
            ``OPENENV_ALLOWED_HOSTS`` are added. Without any, ``Host`` is checked on the loopback interface only.
        token: what ``Authorization: Bearer`` must carry, except for ``/health``; by default
            ``OPENENV_SERVER_TOKEN`` decides, else nothing is asked for.
        expose_errors: tell clients type and text of what an environment raised; by default
            ``OPENENV_EXPOSE_ERRORS`` decides, else yes.
        allow_ws_simulation: answer reset, step and state on ``/ws`` in production mode too, as other OpenEnv servers
            do. If not, ``/ws`` serves tools only, and an agent that can reach the server cannot begin its episode anew.
        mcp_idle_s: seconds after which a session opened over POST ``/mcp``, of either kind, ends that has no socket
            or stream and gets no request; by default the session timeout of ``concurrency_config``, else half an hour.

    Raises:
        TypeError: ``env`` is not a factory, or a model class cannot be one.
        ValueError: both capacity arguments were given, or an origin or the token cannot be used.
        ConcurrencyConfigurationError: the class does not allow more than one session.
    """

    def __init__(
        self,
        env: Factory,
        action_cls: type[Action] | None,
        observation_cls: type[Observation] | None,
        max_concurrent_envs: int | None = None,
        concurrency_config: ConcurrencyConfig | None = None,
        env_name: str | None = None,
        state_cls: type[State] = State,
        *,
        reset_observation_cls: type[Observation] | None = None,
        strict_http: bool | None = None,
        drain_grace_s: float | None = None,
        v1: V1Options | None = None,
        allowed_origins: Sequence[str] | None = None,
        allowed_hosts: Sequence[str] | None = None,
        token: str | None = None,
        expose_errors: bool | None = None,
        allow_ws_simulation: bool = True,
        mcp_idle_s: float | None = None,
    ) -> None:
        action_cls = Action if action_cls is None else action_cls
        observation_cls = Observation if observation_cls is None else observation_cls
        require_factory(env)
        require_models(action_cls, observation_cls)
        self.concurrency_config = concurrency_of(max_concurrent_envs, concurrency_config)
        self.action_cls = action_cls
        self.observation_cls = observation_cls
        self.reset_observation_cls = reset_observation_cls
        self.state_cls = state_cls
        self.env_class = class_of(env)
        self.seen_class: type[Any] | None = None  # of an environment that was made
        self.factory_name = name_of(env, self.env_class)
        self.env_name = env_name or self.factory_name
        self.strict_http = flag("OPENENV_STRICT_HTTP") if strict_http is None else strict_http
        if self.env_class is not None:
            self._check(self.env_class, self.factory_name)
        grace = number(os.environ, "OPENENV_DRAIN_GRACE_S", 10.0) if drain_grace_s is None else drain_grace_s
        options = V1Options.from_environ() if v1 is None else v1
        self.edge = EdgePolicy.make(allowed_origins, allowed_hosts, token)
        shared = getattr(self.env_class, "REQUIRES_SINGLE_THREAD_EXECUTOR", False)
        self.mode = ServerMode.SIMULATION
        self.web: WebRoutes | None = None
        self.sessions = SessionManager(
            Setup(
                factory=env,
                name=self.factory_name,
                check=self._look_at,
                thread=EnvThread("shared") if shared else None,
                expose_errors=flag("OPENENV_EXPOSE_ERRORS", default=True) if expose_errors is None else expose_errors,
            ),
            max_sessions=self.max_concurrent_envs,
            drain_grace_s=grace,
            evict_after_s=options.evict_after_s,
        )
        self.tools = Tools(action_cls, self.sessions.setup.expose_errors)
        self.mcp_idle_s = self.concurrency_config.session_timeout or IDLE_S if mcp_idle_s is None else mcp_idle_s
        self.held = HeldSessions(self.sessions, self.mcp_idle_s, options.max_reply_bytes)
        self.allow_ws_simulation = allow_ws_simulation
        self.reader = FrameReader(action_cls, self.tools)
        self.v1 = V1Server(self.sessions, self.reader, options, self.concurrency_config.session_timeout)

    def _look_at(self, env: Any) -> None:
        """See whether a new environment may be served, and tell one with tools how."""
        self._check(env, type(env).__name__)
        self.seen_class = type(env)
        if hasattr(type(env), "mcp_call"):
            env._mode = env._mode or self.mode.value
            env._expose_errors = self.sessions.setup.expose_errors

    def _check(self, env: object, name: str) -> None:
        """Refuse several sessions of a class that allows one; an instance tells where a factory hides its class."""
        if self.max_concurrent_envs > 1 and not getattr(env, "SUPPORTS_CONCURRENT_SESSIONS", False):
            raise ConcurrencyConfigurationError(name, self.max_concurrent_envs)

    # ------------------------------------------------------------ what is going on

    @property
    def max_concurrent_envs(self) -> int:
        """Most environments alive at any moment."""
        return self.concurrency_config.max_concurrent_envs

    @property
    def active_sessions(self) -> int:
        """Environments alive now, also those that are being built or closed."""
        return self.sessions.active

    @property
    def is_concurrency_safe(self) -> bool:
        """Whether the environment class says that it may live several times in one process."""
        return bool(getattr(self.env_class, "SUPPORTS_CONCURRENT_SESSIONS", False))

    def get_capacity_status(self) -> ServerCapacityStatus:
        """How full the server is."""
        return self.sessions.capacity

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Have an observer told what happens to the sessions; see `openenv.core.env_server.observing`.

        Args:
            observer: called with each `SessionEvent`, on the server's event loop; it must not block.

        Returns:
            What ends that.
        """
        return self.sessions.setup.observers.add(observer)

    def limit_sessions(self, max_concurrent_envs: int) -> None:
        """Change how many environments may live at once; before the app has started.

        Args:
            max_concurrent_envs: the new number.

        Raises:
            ValueError: it is below 1.
            ConcurrencyConfigurationError: the class does not allow more than one session.
        """
        former = self.concurrency_config
        self.concurrency_config = ConcurrencyConfig(
            max_concurrent_envs=max_concurrent_envs, session_timeout=former.session_timeout
        )
        try:
            if self.env_class is not None:
                self._check(self.env_class, self.factory_name)
        except ConcurrencyConfigurationError:
            self.concurrency_config = former
            raise
        self.sessions.max_sessions = max_concurrent_envs

    def get_session_info(self, session_id: str) -> SessionInfo | None:
        """What is known of an open session; None if there is none of this id."""
        try:
            return self.sessions.get(session_id).info
        except SessionNotFoundError:
            return None

    # ------------------------------------------------------------ routes

    def register_routes(self, app: FastAPI, mode: ServerMode | str = ServerMode.SIMULATION) -> None:
        """Add the routes to an app, the drain to its shutdown, and the checks of `EdgePolicy` before all its routes.

        Args:
            app: the app; not yet started.
            mode: ``production`` leaves out ``/reset``, ``/step`` and ``/state``.

        Raises:
            ValueError: there is no such mode.
        """
        self.mode = mode_of(mode)
        self.reader.simulation = self.allow_ws_simulation or self.mode is ServerMode.SIMULATION
        app.add_middleware(Edge, policy=self.edge)
        app.add_middleware(LastingLoop, started=lambda: self.sessions.started)
        timeout = self.concurrency_config.session_timeout

        @app.websocket("/ws")
        async def ws(socket: WebSocket) -> None:
            if self.v1.wanted(socket) and wanted_session(socket.headers, socket.query_params.get("session_id")) is None:
                await self.v1.serve(socket)
            else:
                await PlainSocket(socket, self.sessions, self.held, self.reader, timeout).serve()

        http = HTTPRoutes(self)
        http.register(app, self.mode)
        McpRoutes(self, http).register(app)
        app.state.openenv_server = self
        outer = app.router.lifespan_context

        @asynccontextmanager
        async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
            async with outer(app) as state:
                managers = [self.sessions] if self.web is None else [self.web.visitors, self.sessions]
                for manager in managers:
                    manager.start()
                with early_drain(lambda: [manager.begin_drain() for manager in managers]):
                    yield state
                await asyncio.gather(*(manager.drain() for manager in managers))

        app.router.lifespan_context = lifespan

    def add_web(
        self, app: FastAPI, options: WebOptions, *, title: str | None = None, custom: CustomTab | None = None
    ) -> WebRoutes:
        """Add the web page to an app whose routes were registered.

        Args:
            app: the app; not yet started.
            options: how many visitors, and for how long.
            title: its heading, instead of the environment's own.
            custom: a tab of the environment's own.
        """

        def known() -> EnvironmentMetadata:
            return load_environment_metadata(self.sessions.setup.factory, self.env_name)

        self.web = WebRoutes(self, options, load_metadata=known, title=title, custom=custom)
        self.web.register(app)
        return self.web


def create_fastapi_app(
    env: Factory,
    action_cls: type[Action] | None,
    observation_cls: type[Observation] | None,
    max_concurrent_envs: int | None = None,
    concurrency_config: ConcurrencyConfig | None = None,
    env_name: str | None = None,
    state_cls: type[State] = State,
    *,
    mode: ServerMode | str | None = None,
    reset_observation_cls: type[Observation] | None = None,
    strict_http: bool | None = None,
    drain_grace_s: float | None = None,
    v1: V1Options | None = None,
    allowed_origins: Sequence[str] | None = None,
    allowed_hosts: Sequence[str] | None = None,
    token: str | None = None,
    expose_errors: bool | None = None,
    allow_ws_simulation: bool = True,
    mcp_idle_s: float | None = None,
) -> FastAPI:
    """Make an app that serves environments.

    Args:
        env: makes an environment: its class, or a callable without arguments.
        action_cls: its action class; None for `Action`, as where tools are all that it has.
        observation_cls: its observation class; None for `Observation`.
        max_concurrent_envs: most sessions at once; 1 by default.
        concurrency_config: the same and more, instead of ``max_concurrent_envs``.
        env_name: name in the task routes.
        state_cls: its state class.
        mode: ``simulation`` or ``production``; by default ``OPENENV_MODE`` decides, else simulation.
        reset_observation_cls: class of the observation that reset returns, if it is another one.
        strict_http: see `HTTPEnvServer`.
        drain_grace_s: see `HTTPEnvServer`.
        v1: see `HTTPEnvServer`.
        allowed_origins: see `HTTPEnvServer`.
        allowed_hosts: see `HTTPEnvServer`.
        token: see `HTTPEnvServer`.
        expose_errors: see `HTTPEnvServer`.
        allow_ws_simulation: see `HTTPEnvServer`.
        mcp_idle_s: see `HTTPEnvServer`.

    Returns:
        The app; its server is ``app.state.openenv_server``.

    Raises:
        TypeError: ``env`` is not a factory, or a model class cannot be one.
        ValueError: no such mode, or both capacity arguments were given.
        ConcurrencyConfigurationError: the class does not allow more than one session.
    """
    chosen = mode_of(mode if mode is not None else os.environ.get("OPENENV_MODE") or ServerMode.SIMULATION)
    server = HTTPEnvServer(
        env,
        action_cls,
        observation_cls,
        max_concurrent_envs,
        concurrency_config,
        env_name,
        state_cls,
        reset_observation_cls=reset_observation_cls,
        strict_http=strict_http,
        drain_grace_s=drain_grace_s,
        v1=v1,
        allowed_origins=allowed_origins,
        allowed_hosts=allowed_hosts,
        token=token,
        expose_errors=expose_errors,
        allow_ws_simulation=allow_ws_simulation,
        mcp_idle_s=mcp_idle_s,
    )
    app = FastAPI(title="OpenEnv Environment HTTP API", version="1.0.0")
    server.register_routes(app, chosen)
    return app


def create_app(
    env: Factory,
    action_cls: type[Action] | None,
    observation_cls: type[Observation] | None,
    env_name: str | None = None,
    max_concurrent_envs: int | None = None,
    concurrency_config: ConcurrencyConfig | None = None,
    gradio_builder: Callable[..., Any] | None = None,
    custom_tab_name: str = "Custom",
    custom_tab_primary: bool = False,
    show_default_tab: bool = True,
    title_override: str | None = None,
    state_cls: type[State] = State,
    *,
    mode: ServerMode | str | None = None,
    reset_observation_cls: type[Observation] | None = None,
    strict_http: bool | None = None,
    drain_grace_s: float | None = None,
    v1: V1Options | None = None,
    allowed_origins: Sequence[str] | None = None,
    allowed_hosts: Sequence[str] | None = None,
    token: str | None = None,
    expose_errors: bool | None = None,
    allow_ws_simulation: bool = True,
    mcp_idle_s: float | None = None,
    web: WebOptions | None = None,
) -> FastAPI:
    """Make an app that serves environments; what env packages call.

    For the arguments that are not listed, for what it returns and what it raises see `create_fastapi_app`; mind that
    the order of the positional arguments differs.

    Args:
        gradio_builder: makes a tab of the page's from Gradio blocks, see `openenv.core.env_server.gradio_tab`.
        custom_tab_name: label of that tab.
        custom_tab_primary: show that tab first.
        show_default_tab: False leaves out the tab to play in, where there is a ``gradio_builder``.
        title_override: heading of the page.
        web: serve the web page, with these settings; by default ``ENABLE_WEB_INTERFACE`` decides whether, and the
            environment variables how (see `WebOptions`).

    Raises:
        TypeError: ``gradio_builder`` did not return Gradio blocks.
    """
    app = create_fastapi_app(
        env,
        action_cls,
        observation_cls,
        max_concurrent_envs,
        concurrency_config,
        env_name,
        state_cls,
        mode=mode,
        reset_observation_cls=reset_observation_cls,
        strict_http=strict_http,
        drain_grace_s=drain_grace_s,
        v1=v1,
        allowed_origins=allowed_origins,
        allowed_hosts=allowed_hosts,
        token=token,
        expose_errors=expose_errors,
        allow_ws_simulation=allow_ws_simulation,
        mcp_idle_s=mcp_idle_s,
    )
    options = web or (WebOptions.from_environ() if flag("ENABLE_WEB_INTERFACE") else None)
    if options is not None:
        server: HTTPEnvServer = app.state.openenv_server
        builder = gradio_builder if gradio_builder is not None and gradio_is_here() else None
        tab = CustomTab(name=custom_tab_name, path="custom/", primary=custom_tab_primary, alone=not show_default_tab)
        page = server.add_web(app, options, title=title_override, custom=tab if builder is not None else None)
        if builder is not None:
            mount_tab(app, builder, page.manager, page.title)
    return app
