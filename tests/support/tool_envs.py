"""An environment with tools that writes down everything that happens to it, and calls to it over ``/mcp``."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from fastmcp import Context, FastMCP
from fastmcp.exceptions import ToolError

from openenv.core.env_server.http_server import HTTPEnvServer, create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Action, Observation, State
from support.envs import Log
from support.live import LiveServer, serve

_numbers = itertools.count(1)


class ToolsEnv(MCPEnvironment):
    """Counts its tool calls. Make one log for each test with `fresh_tools`."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    log: Log
    gate: threading.Event

    def __init__(self) -> None:
        self.env_no = next(_numbers)
        self.count = 0
        self.episode: str | None = None
        super().__init__(self.build())
        self.log.add("init", self.env_no)

    def build(self) -> FastMCP[Any]:
        server: FastMCP[Any] = FastMCP("tools", instructions="Count.")

        @server.tool
        def inc(by: int = 1) -> dict[str, Any]:
            """Add to the counter."""
            return self._count("inc", by)

        @server.tool
        async def inc_async(ctx: Context, by: int = 1) -> dict[str, Any]:
            """Add to the counter, on the event loop."""
            await asyncio.sleep(0)
            return {**self._count("inc_async", by), "session": ctx.session_id}

        @server.tool
        def wait() -> int:
            """Holds its thread until the test opens the gate."""
            self.log.add("wait", self.env_no)
            assert self.gate.wait(30)
            return int(self._count("waited", 1)["count"])

        @server.tool
        async def wait_async() -> int:
            """Waits for the gate without a thread."""
            self.log.add("wait", self.env_no)
            try:
                while not self.gate.is_set():
                    await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                self.log.add("cancelled", self.env_no)
                raise
            return int(self._count("waited", 1)["count"])

        @server.tool
        def boom(text: str = "tool boom") -> None:
            """Fails."""
            raise ValueError(text)

        @server.tool
        def refuse() -> None:
            """Fails, with words that name other reasons."""
            raise ToolError("argument not found: invalid, unknown tool, timed out")

        @server.tool
        def loop_inside() -> int:
            """Has an event loop of its own, as tools that wrap async libraries have."""
            return asyncio.run(asyncio.sleep(0, 5))

        @server.tool
        def nan() -> dict[str, float]:
            """Returns what JSON has no word for."""
            return {"x": float("nan")}

        return server

    def _count(self, tool: str, by: int) -> dict[str, Any]:
        self.count += by
        self.log.add("tool", self.env_no, tool=tool, count=self.count)
        return {"env_no": self.env_no, "count": self.count, "thread": threading.current_thread().name}

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        self.log.add("reset", self.env_no)
        self.count, self.episode = 0, episode_id
        return Observation(metadata={"env_no": self.env_no})

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        self.log.add("step", self.env_no)
        return Observation(metadata={"thread": threading.current_thread().name})

    @property
    def state(self) -> State:
        return State(episode_id=self.episode, step_count=self.count)

    def close(self) -> None:
        self.log.add("close", self.env_no)
        super().close()


def fresh_tools(base: type[ToolsEnv] = ToolsEnv) -> type[ToolsEnv]:
    """The class with a log and a gate of its own."""
    return type("ToolsEnv", (base,), {"log": Log(), "gate": threading.Event()})


class ToolServer:
    """A running server, its environments' log, and JSON-RPC to it."""

    def __init__(self, url: LiveServer, env: type[ToolsEnv], server: HTTPEnvServer) -> None:
        self.url = url
        self.env = env
        self.server = server
        self.http = httpx.Client(base_url=str(url), timeout=30)
        self._ids = itertools.count(1)

    def __enter__(self) -> ToolServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def post(self, method: str, params: dict[str, Any] | None = None, **headers: str) -> httpx.Response:
        """One request. Names of headers have underscores here."""
        body = {"jsonrpc": "2.0", "id": next(self._ids), "method": method, "params": params or {}}
        return self.http.post("/mcp", json=body, headers={name.replace("_", "-"): v for name, v in headers.items()})

    def ask(self, method: str, params: dict[str, Any] | None = None, **headers: str) -> dict[str, Any]:
        """One request; its response."""
        response: dict[str, Any] = self.post(method, params, **headers).json()
        return response

    def create(self) -> str:
        """A session without a token; its id."""
        session_id: str = self.ask("openenv/session/create")["result"]["session_id"]
        return session_id

    def create_with_token(self) -> tuple[str, str]:
        """A session, and its token."""
        response = self.post("openenv/session/create", OpenEnv_Features="token, idempotency")
        return response.json()["result"]["session_id"], response.headers["OpenEnv-Session-Token"]

    def call(
        self, name: str, session_id: str | None = None, headers: dict[str, str] | None = None, **arguments: Any
    ) -> Any:
        """Call a tool; its response."""
        params: dict[str, Any] = {"name": name, "arguments": arguments}
        if session_id is not None:
            params["session_id"] = session_id
        return self.ask("tools/call", params, **(headers or {}))

    def events(self, event: str) -> list[dict[str, Any]]:
        """What happened, of one kind."""
        return [one for one in self.env.log.events if one["event"] == event]


@contextmanager
def tool_server(slots: int = 4, base: type[ToolsEnv] = ToolsEnv, **options: Any) -> Iterator[ToolServer]:
    """Serve a fresh `ToolsEnv`; its gate is opened at the end."""
    env = fresh_tools(base)
    app = create_app(env, Action, Observation, max_concurrent_envs=slots, **options)
    with serve(app) as url:
        server = ToolServer(url, env, app.state.openenv_server)
        try:
            yield server
        finally:
            env.gate.set()
            server.http.close()
