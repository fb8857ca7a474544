"""Apps under Starlette's `TestClient`, as a block and not: without one each request has an event loop of its own."""

from __future__ import annotations

import time
from typing import Any

import pytest
from fastapi import FastAPI
from fastmcp import Context, FastMCP
from starlette.testclient import TestClient

from openenv.core.env_server.http_server import HTTPEnvServer, create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Observation, State
from support.envs import CountAction, CountObservation, fresh_env


class Desk(MCPEnvironment):
    """Tools of both kinds; no model of its own."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server: FastMCP[Any] = FastMCP("desk")

        @server.tool
        async def visits(ctx: Context) -> int:
            count = int(await ctx.get_state("visits") or 0) + 1
            await ctx.set_state("visits", count)
            return count

        super().__init__(server)

        @self.tool(mode="production")
        def live(query: str) -> str:
            return f"live {query}"

        @self.tool(mode="simulation")
        def recorded(query: str) -> str:
            return f"recorded {query}"

    def reset(self, **kwargs: Any) -> Observation:  # type: ignore[override]
        return Observation()

    def _step_impl(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Observation()

    @property
    def state(self) -> State:
        return State()


def rpc(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def post(client: TestClient, method: str, **params: Any) -> Any:
    answer = client.post("/mcp", json=rpc(method, **params))
    assert answer.status_code == 200
    return answer.json()


@pytest.fixture(params=["bare", "block"])
def client(request: pytest.FixtureRequest) -> Any:
    client = TestClient(create_fastapi_app(Desk, None, None))
    if request.param == "bare":
        yield client
    else:
        with client:
            yield client


def test_a_session_outlives_the_request_that_opened_it(client: TestClient) -> None:
    session = post(client, "openenv/session/create")["result"]["session_id"]
    for count in (1, 2):
        told = post(client, "tools/call", name="visits", arguments={}, session_id=session)
        assert told["result"]["data"] == count
    with client.websocket_connect(f"/ws?session_id={session}") as socket:
        socket.send_json({"type": "mcp", "data": rpc("tools/call", name="visits", arguments={})})
        assert socket.receive_json()["data"]["result"]["data"] == 3
        closing = post(client, "openenv/session/close", session_id=session)["result"]
        assert closing == {"session_id": session, "closed": False, "closing": True}
        socket.send_json({"type": "close"})
    until = time.monotonic() + 30
    while "error" not in (told := post(client, "tools/list", session_id=session)):  # the socket has not left quite yet
        assert time.monotonic() < until
    assert told["error"]["code"] == -32602


def test_plain_routes_and_sockets(client: TestClient) -> None:
    assert client.post("/reset").status_code == 200
    assert client.get("/state").json()["step_count"] == 0
    assert set(client.get("/schema").json()) >= {"action", "observation", "state"}
    for _ in range(2):  # the slot is free again each time
        with client.websocket_connect("/ws") as socket:
            socket.send_json({"type": "reset", "data": {"seed": 1}})
            assert socket.receive_json()["type"] == "observation"


def test_each_environment_is_closed_once_without_a_block() -> None:
    env = fresh_env()
    app = create_fastapi_app(env, CountAction, CountObservation)

    @app.get("/own")
    def own() -> dict[str, int]:
        return {"own": 1}

    client = TestClient(app)
    assert client.get("/own").json() == {"own": 1}
    with client.websocket_connect("/ws") as socket:
        socket.send_json({"type": "reset"})
        socket.receive_json()
        socket.send_json({"type": "close"})
    env.log.wait_for("close")
    assert client.post("/step", json={"action": {"op": "inc"}}).json()["observation"]["count"] == 1
    assert (len(env.log.of("init")), len(env.log.of("close"))) == (2, 2)


@pytest.mark.parametrize(
    ("mode", "here", "elsewhere"), [("production", "live", "recorded"), ("simulation", "recorded", "live")]
)
def test_a_tool_of_the_other_mode_is_told_apart_from_one_that_nobody_has(mode: str, here: str, elsewhere: str) -> None:
    app = FastAPI()
    HTTPEnvServer(Desk, CallToolAction, CallToolObservation).register_routes(app, mode=mode)
    client = TestClient(app)
    assert post(client, "tools/call", name=here, arguments={"query": "a"})["result"]["data"] == f"{here} a"
    refused = post(client, "tools/call", name=elsewhere, arguments={"query": "a"})["error"]["message"]
    assert refused == f"Tool '{elsewhere}' not available in {mode} mode"
    assert "Unknown tool" in post(client, "tools/call", name="nobodys", arguments={})["error"]["message"]
