"""What the programs share: a small environment, one with tools, and a server for an app."""

import contextlib
import socket
import threading
import time
import warnings

import uvicorn
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

warnings.simplefilter("ignore")


class CounterAction(Action):
    by: int = 1


class CounterObservation(Observation):
    count: int


class CounterEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        self._state = State(episode_id="none", step_count=0)
        self._count = 0

    def reset(self, seed=None, episode_id=None, **kwargs):
        self._count = seed or 0
        self._state = State(episode_id=episode_id or "none", step_count=0)
        return CounterObservation(count=self._count, reward=0.0)

    def step(self, action, timeout_s=None, **kwargs):
        self._count += action.by
        self._state.step_count += 1
        return CounterObservation(count=self._count, reward=float(action.by), done=self._count >= 5)

    @property
    def state(self):
        return self._state


@contextlib.contextmanager
def serving(app):
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)


def tools_app():
    from fastmcp import FastMCP
    from openenv.core.env_server import create_app
    from openenv.core.env_server.mcp_environment import MCPEnvironment
    from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation

    class ToolsEnvironment(MCPEnvironment):
        def __init__(self):
            mcp = FastMCP("tools")

            @mcp.tool
            def add(a: int, b: int) -> int:
                """Add two numbers."""
                return a + b

            super().__init__(mcp)
            self._state = State(episode_id="e", step_count=0)

        def reset(self, seed=None, episode_id=None, **kwargs):
            self._state = State(episode_id=episode_id or "e", step_count=0)
            return Observation(done=False, reward=0.0)

        def _step_impl(self, action, timeout_s=None, **kwargs):
            return Observation(metadata={"error": type(action).__name__})

        def step(self, action, timeout_s=None, **kwargs):
            self._state.step_count += 1
            return super().step(action, timeout_s=timeout_s, **kwargs)

        @property
        def state(self):
            return self._state

    return create_app(ToolsEnvironment, CallToolAction, CallToolObservation, env_name="tools")
