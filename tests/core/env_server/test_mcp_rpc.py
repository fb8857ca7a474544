"""OpenEnv's JSON-RPC on POST ``/mcp``, on WS ``/mcp`` and in ``mcp`` frames, against a real server."""

from __future__ import annotations

import concurrent.futures
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_types import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Tool,
)
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.generic_client import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient
from support.envs import CountAction, CountObservation, fresh_env
from support.live import serve
from support.tool_envs import ToolsEnv, ToolServer, tool_server
from support.v1 import Raw


@pytest.fixture
def tools() -> Iterator[ToolServer]:
    with tool_server() as server:
        yield server


def frame(ws: ClientConnection, method: str, params: dict[str, Any] | None = None, request_id: Any = 1) -> Any:
    request = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}}
    ws.send(json.dumps({"type": "mcp", "data": request}))
    reply = json.loads(ws.recv(30))
    assert reply["type"] == "mcp"
    return reply["data"]


def bare(ws: ClientConnection, method: str, params: dict[str, Any] | None = None, request_id: Any = 1) -> Any:
    ws.send(json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}}))
    return json.loads(ws.recv(30))


def mcp_ws(tools: ToolServer) -> str:
    return tools.url.ws.removesuffix("/ws") + "/mcp"


# ------------------------------------------------------------------- the methods


def test_a_session_keeps_its_environment(tools: ToolServer) -> None:
    session = tools.create()
    assert tools.call("inc", session)["result"]["data"]["count"] == 1
    assert tools.call("inc_async", session)["result"]["data"]["count"] == 2
    assert tools.ask("openenv/session/close", {"session_id": session})["result"] == {
        "session_id": session,
        "closed": True,
    }
    tools.env.log.wait_for("close")
    assert [one["event"] for one in tools.env.log.events] == ["init", "tool", "tool", "close"]
    error = tools.call("inc", session)["error"]
    assert (error["code"], error["message"], error["data"]) == (-32602, f"Unknown session_id: {session}", None)


def test_results_have_the_shapes_that_other_clients_know(tools: ToolServer) -> None:
    session = tools.create()
    body = tools.post("tools/call", {"session_id": session, "name": "inc"}).json()
    data = body["result"].pop("data")
    (content,) = body["result"].pop("content")
    assert set(content) == {"type", "text", "annotations", "meta"}
    assert json.loads(content["text"]) == data
    assert body == {
        "jsonrpc": "2.0",
        "id": body["id"],
        "result": {"structured_content": data, "meta": body["result"]["meta"], "is_error": False},
    }
    listed = tools.ask("tools/list", {"session_id": session})["result"]["tools"]
    assert set(listed[0]) == {
        *("name", "title", "description", "inputSchema", "outputSchema", "icons", "annotations", "meta", "execution")
    }


@pytest.mark.parametrize(
    ("tool", "arguments", "error_type", "text"),
    [
        ("boom", {}, "execution_error", "Error calling tool 'boom': tool boom"),
        ("nope", {}, "tool_not_found", "Unknown tool: 'nope'"),
        ("inc", {"by": "x"}, "invalid_args", "by"),
        ("nan", {}, "execution_error", "'x' is NaN"),
    ],
)
def test_a_failed_call_is_an_internal_error(
    tools: ToolServer, tool: str, arguments: dict[str, Any], error_type: str, text: str
) -> None:
    error = tools.call(tool, tools.create(), **arguments)["error"]
    assert error["code"] == -32603
    assert text in error["message"]
    assert error["data"]["error_type"] == error_type
    assert error["data"]["content"][0]["text"] == error["message"]


def test_what_a_tool_raised_can_be_kept_inside() -> None:
    with tool_server(expose_errors=False) as tools:
        session = tools.create()
        error = tools.call("boom", session, text="secret")["error"]
        assert "secret" not in json.dumps(error)
        assert "timed out" in tools.call("refuse", session)["error"]["message"]  # said to the agent on purpose
        with connect(tools.url.ws) as ws:
            action = {"type": "call_tool", "tool_name": "boom", "arguments": {"text": "secret"}}
            ws.send(json.dumps({"type": "step", "data": action}))
            seen = ws.recv(30)
            assert "secret" not in str(seen)
            assert json.loads(seen)["data"]["observation"]["error"]["error_type"] == "execution_error"


def test_a_tool_past_its_time(tools: ToolServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("openenv.core.env_server.mcp_environment.MCP_TOOL_CALL_TIMEOUT", 0.05)
    session = tools.create()
    for tool in ("wait_async", "wait"):
        error = tools.call(tool, session)["error"]
        assert error["data"]["error_type"] == "timeout", tool
    monkeypatch.undo()
    tools.env.gate.set()
    assert tools.call("inc", session)["result"]["data"]["count"] == 2  # behind the call that was given up


def test_one_request_alone_has_a_counted_environment_of_its_own() -> None:
    with tool_server(slots=1) as tools:
        assert tools.call("inc")["result"]["data"]["count"] == 1
        assert tools.call("inc")["result"]["data"]["count"] == 1
        tools.env.log.wait_for("close", 2)
        session = tools.create()
        error = tools.call("inc")["error"]
        assert (error["code"], error["data"]) == (-32000, {"active_sessions": 1, "max_sessions": 1})
        assert tools.ask("openenv/session/create")["error"]["data"] == {"active_sessions": 1, "max_sessions": 1}
        assert len(tools.env.log.of("init")) == 3
        tools.ask("openenv/session/close", {"session_id": session})
        tools.env.log.wait_for("close", 3)
    assert tools.server.active_sessions == 0


def test_a_factory_that_fails() -> None:
    class Broken(ToolsEnv):
        def __init__(self) -> None:
            raise RuntimeError("secret cause")

    with tool_server(base=Broken) as tools:
        error = tools.ask("openenv/session/create")["error"]
        assert (error["code"], error["data"]) == (-32000, {"factory_name": "ToolsEnv"})
        assert "secret" not in json.dumps(error)
        with connect(mcp_ws(tools)) as ws:
            reply = json.loads(ws.recv(30))
            assert (reply["id"], reply["error"]["data"]) == (None, {"factory_name": "ToolsEnv"})
            with pytest.raises(Exception, match="1000"):
                ws.recv(30)
        assert tools.server.active_sessions == 0


# ------------------------------------------------------------------- the rules of JSON-RPC


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, -32700),
        (b"{", 400, -32700),
        (b"[" * 100_000, 400, -32700),
        (b'{"a":' + b"1" * 5000 + b"}", 400, -32700),
        (b"\xff", 400, -32700),
        (b"5", 400, -32600),
        (b"[]", 400, -32600),
        (b"{}", 400, -32600),
        (b'{"jsonrpc":"1.0","method":"tools/list","id":1}', 400, -32600),
        (b'{"jsonrpc":"2.0","method":"tools/list","id":1,"extra":1}', 400, -32600),
        (b'{"jsonrpc":"2.0","method":"tools/list","id":1,"params":[1]}', 400, -32600),
        (b'{"jsonrpc":"2.0","method":"nope","id":1}', 200, -32601),
        (b'{"jsonrpc":"2.0","method":"reset","id":1}', 200, -32601),
        (b'{"jsonrpc":"2.0","method":"tools/call","id":1}', 200, -32602),
        (b'{"jsonrpc":"2.0","method":"tools/call","id":1,"params":{"name":3}}', 200, -32602),
        (b'{"jsonrpc":"2.0","method":"tools/call","id":1,"params":{"name":"inc","arguments":[]}}', 200, -32602),
        (b'{"jsonrpc":"2.0","method":"tools/list","id":1,"params":{"session_id":"nope"}}', 200, -32602),
        (b'{"jsonrpc":"2.0","method":"tools/list","id":1,"params":{"session_id":{}}}', 200, -32602),
        (b'{"jsonrpc":"2.0","method":"openenv/session/close","id":1}', 200, -32602),
    ],
)
def test_what_is_wrong_has_its_code(tools: ToolServer, body: bytes, status: int, code: int) -> None:
    response = tools.http.post("/mcp", content=body, headers={"Content-Type": "application/json"})
    answer = response.json()
    assert (response.status_code, answer["error"]["code"]) == (status, code)
    assert answer["id"] == (1 if status == 200 else None)
    assert tools.env.log.of("tool") == []
    assert tools.server.active_sessions == 0


def test_a_page_cannot_post_what_is_no_json(tools: ToolServer) -> None:
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "inc"}})
    response = tools.http.post("/mcp", content=body, headers={"Content-Type": "text/plain"})
    assert response.status_code == 415
    assert response.json()["error"]["code"] == -32600
    response = tools.http.post("/mcp", json=json.loads(body), headers={"Origin": "https://evil.example"})
    assert response.status_code == 403
    assert tools.env.log.events == []


def test_a_notification_is_run_and_not_answered(tools: ToolServer) -> None:
    session = tools.create()
    body = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "inc", "session_id": session}}
    response = tools.http.post("/mcp", json=body)
    assert (response.status_code, response.content) == (202, b"")
    assert tools.call("inc", session)["result"]["data"]["count"] == 2
    response = tools.http.post("/mcp", json={"jsonrpc": "2.0", "method": "openenv/session/create"})
    assert (response.status_code, response.content) == (202, b"")
    assert len(tools.env.log.of("init")) == 1


def test_an_id_of_null_is_answered(tools: ToolServer) -> None:
    answer = tools.http.post("/mcp", json={"jsonrpc": "2.0", "id": None, "method": "nope"}).json()
    assert (answer["id"], answer["error"]["code"]) == (None, -32601)


def test_a_batch_is_answered_by_a_batch(tools: ToolServer) -> None:
    session = tools.create()
    call = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "inc", "session_id": session}}
    batch = [{**call, "id": 1}, call, {**call, "id": 2}, 5, {"jsonrpc": "2.0", "id": 3, "method": "nope"}]
    first, second, third, fourth = tools.http.post("/mcp", json=batch).json()
    assert (first["id"], first["result"]["data"]["count"]) == (1, 1)
    assert (second["id"], second["result"]["data"]["count"]) == (2, 3)
    assert (third["id"], third["error"]["code"]) == (None, -32600)
    assert (fourth["id"], fourth["error"]["code"]) == (3, -32601)
    response = tools.http.post("/mcp", json=[call, call])
    assert (response.status_code, response.content) == (202, b"")
    assert tools.call("inc", session)["result"]["data"]["count"] == 6


# ------------------------------------------------------------------- frames and the socket


@pytest.mark.parametrize("params", [{}, {"arguments": {}}, {"name": 3}, {"name": "inc", "arguments": []}])
def test_a_frame_whose_parameters_do_not_fit_is_answered_as_one(tools: ToolServer, params: dict[str, Any]) -> None:
    with connect(tools.url.ws) as ws:
        assert frame(ws, "tools/call", params, 7)["error"]["code"] == -32602
        assert frame(ws, "tools/call", {"name": "inc"})["result"]["data"]["count"] == 1
    with Raw(tools.url.ws) as client:
        client.open()
        reply = client.call("mcp", 1, jsonrpc="2.0", id=7, method="tools/call", params=params)
        assert (reply["type"], reply["seq"], reply["data"]["id"]) == ("mcp", 1, 7)
        assert reply["data"]["error"]["code"] == -32602


def test_frames_use_the_sockets_own_environment(tools: ToolServer) -> None:
    other = tools.create()
    with connect(tools.url.ws) as ws:
        assert frame(ws, "tools/call", {"name": "inc", "session_id": other})["result"]["data"]["count"] == 1
        step = {"type": "step", "data": {"type": "call_tool", "tool_name": "inc_async", "arguments": {"by": 4}}}
        ws.send(json.dumps(step))
        seen = json.loads(ws.recv(30))["data"]["observation"]
        assert (seen["result"]["data"]["count"], seen["error"]) == (5, None)
        own = frame(ws, "openenv/session/create")["result"]["session_id"]
        refused = frame(ws, "openenv/session/close", {"session_id": own})["error"]
        assert refused["code"] == -32600
        assert frame(ws, "openenv/session/close", {"session_id": other})["error"]["code"] == -32602
        assert tools.call("inc", own)["error"]["message"] == f"Unknown session_id: {own}"
        assert tools.ask("openenv/session/close", {"session_id": own})["error"]["code"] == -32602
        assert frame(ws, "tools/call", {"name": "boom"})["error"]["code"] == -32603
        assert frame(ws, "nope")["error"]["code"] == -32601
        assert "inc" in [tool["name"] for tool in frame(ws, "tools/list")["result"]["tools"]]
    assert tools.call("inc", other)["result"]["data"]["count"] == 1


def test_frames_of_the_numbered_dialect(tools: ToolServer) -> None:
    with Raw(tools.url.ws) as client:
        client.open()
        request = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "inc"}}
        reply = client.call("mcp", 1, **request)
        assert (reply["type"], reply["seq"], reply["data"]["id"]) == ("mcp", 1, 7)
        assert reply["data"]["result"]["data"]["count"] == 1
        again = client.call("mcp", 1, **request)
        assert again == reply
        assert len(tools.env.log.of("tool")) == 1


def test_a_cancelled_call_of_the_numbered_dialect(tools: ToolServer) -> None:
    with Raw(tools.url.ws) as client:
        client.open()
        request = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "wait_async"}}
        client.ask("mcp", 1, **request)
        tools.env.log.wait_for("wait")
        client.send({"type": "cancel", "seq": 1})
        reply = client.recv()
        assert (reply["type"], reply["data"]["code"], reply["data"]["applied"]) == ("error", "CANCELLED", None)
        tools.env.log.wait_for("cancelled")


def test_a_socket_of_bare_requests(tools: ToolServer) -> None:
    with connect(mcp_ws(tools)) as ws:
        assert bare(ws, "tools/call", {"name": "inc"})["result"]["data"]["count"] == 1
        for wrong, code in (("{", -32700), ("5", -32600), ("[]", -32600), ("{}", -32600)):
            ws.send(wrong)
            assert json.loads(ws.recv(30))["error"]["code"] == code
        ws.send(b"{}")
        assert json.loads(ws.recv(30))["error"]["code"] == -32700
        call = {"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "inc"}}
        ws.send(json.dumps(call))
        ws.send(json.dumps([call, {**call, "id": "b"}]))
        (reply,) = json.loads(ws.recv(30))
        assert (reply["id"], reply["result"]["data"]["count"]) == ("b", 4)
        own = bare(ws, "openenv/session/create")["result"]["session_id"]
        assert bare(ws, "openenv/session/close", {"session_id": own})["error"]["code"] == -32600
        assert tools.ask("openenv/session/close", {"session_id": own})["error"]["code"] == -32602
        assert bare(ws, "tools/call", {"name": "inc"})["result"]["data"]["count"] == 5
    tools.env.log.wait_for("close")
    assert len(tools.env.log.of("init")) == 1


def test_a_full_server_tells_the_socket() -> None:
    with tool_server(slots=1) as tools:
        tools.create()
        with connect(mcp_ws(tools)) as ws:
            error = json.loads(ws.recv(30))["error"]
            assert (error["code"], error["data"]) == (-32000, {"active_sessions": 1, "max_sessions": 1})


# ------------------------------------------------------------------- environments without an MCP server


class StepTools(Environment[Action, Observation, State]):
    """Answers tool actions in its step."""

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        return Observation()

    def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        if isinstance(action, CallToolAction):
            return CallToolObservation(tool_name=action.tool_name, result=action.arguments, reward=1.0)
        return ListToolsObservation(tools=[Tool(name="own", description="", input_schema={})])

    @property
    def state(self) -> State:
        return State()


@pytest.mark.parametrize("action_cls", [CallToolAction, ListToolsAction])
def test_tool_actions_of_a_plain_environment(action_cls: type[Action]) -> None:
    with serve(create_app(StepTools, action_cls, CallToolObservation)) as url:
        tools = ToolServer(url, ToolsEnv, None)  # type: ignore[arg-type]
        assert tools.ask("tools/list")["result"] == {"tools": [{"name": "own", "description": "", "input_schema": {}}]}
        result = tools.call("own", x=1)["result"]
        assert (result["result"], result["reward"], result["error"]) == ({"x": 1}, 1.0, None)
        tools.http.close()


def test_an_environment_without_tools_says_so() -> None:
    with serve(create_app(fresh_env(), CountAction, CountObservation)) as url:
        tools = ToolServer(url, ToolsEnv, None)  # type: ignore[arg-type]
        for method in ("tools/list", "tools/call"):
            error = tools.ask(method, {"name": "x"})["error"]
            assert (error["code"], error["message"]) == (-32603, "Environment does not support MCP")
        with connect(url.ws) as ws:
            assert frame(ws, "tools/list")["error"]["message"] == "Environment does not support MCP"
        tools.http.close()


# ------------------------------------------------------------------- at once


def test_calls_of_one_session_run_one_at_a_time(tools: ToolServer) -> None:
    session = tools.create()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(tools.call, tool, session) for tool in ("wait", "wait_async", "wait", "wait_async")]
        tools.env.log.wait_for("wait")
        assert tools.http.get("/health").status_code == 200  # the loop is free
        assert len(tools.env.log.of("wait")) == 1
        tools.env.gate.set()
        counts = sorted(call.result(30)["result"]["data"] for call in calls)
    assert counts == [1, 2, 3, 4]
    events = [one["event"] for one in tools.env.log.events if one["event"] in ("wait", "tool")]
    assert events == ["wait", "tool"] * 4


def test_thirty_sessions_at_once_each_see_their_own_state() -> None:
    with tool_server(slots=30) as tools:
        barrier = threading.Barrier(30)

        def session(number: int) -> list[int]:
            own = tools.create()
            barrier.wait(60)
            counts = []
            for turn in range(6):
                tool = "inc" if (turn + number) % 2 else "inc_async"
                counts.append(tools.call(tool, own, by=number)["result"]["data"]["count"])
            tools.ask("openenv/session/close", {"session_id": own})
            return counts

        with concurrent.futures.ThreadPoolExecutor(30) as pool:
            results = list(pool.map(session, range(1, 31)))
        assert results == [[number * turn for turn in range(1, 7)] for number in range(1, 31)]
        tools.env.log.wait_for("close", 30)
        assert len(tools.env.log.of("close")) == 30
        threads = {}
        for one in tools.env.log.events:
            if one["event"] == "init" or one.get("tool") == "inc":
                threads.setdefault(one["env_no"], set()).add(one["thread"])
        assert all(len(names) == 1 for names in threads.values())


def test_a_tool_that_blocks_holds_up_no_other_session(tools: ToolServer) -> None:
    slow, quick = tools.create(), tools.create()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(tools.call, "wait", slow)
        tools.env.log.wait_for("wait")
        assert tools.call("inc", quick)["result"]["data"]["count"] == 1
        assert tools.call("inc_async", quick)["result"]["data"]["count"] == 2
        tools.env.gate.set()
        assert waiting.result(30)["result"]["data"] == 1


def test_a_silent_session_ends() -> None:
    with tool_server(mcp_idle_s=0.2) as tools:
        session = tools.create()
        tools.call("inc", session)
        tools.env.log.wait_for("close")
        assert "Unknown session_id" in tools.call("inc", session)["error"]["message"]


class StepOnly(ToolsEnv):
    """Gives a reward in a sync step, which calls the tools from the environment's own thread."""

    def step(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        seen = super().step(action, timeout_s=timeout_s, **kwargs)
        seen.reward = 0.25
        return seen


class Both(StepOnly):
    """Gives it in both."""

    async def step_async(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        seen = await super().step_async(action, timeout_s=timeout_s, **kwargs)
        seen.reward = 0.5
        return seen


@pytest.mark.parametrize(("base", "reward"), [(StepOnly, 0.25), (Both, 0.5)])
def test_overridden_steps_behind_a_socket(base: type[ToolsEnv], reward: float) -> None:
    with tool_server(base=base) as tools, connect(tools.url.ws) as ws:
        for tool, count in (("inc", 1), ("inc_async", 2), ("loop_inside", None)):
            action = {"type": "call_tool", "tool_name": tool, "arguments": {}}
            ws.send(json.dumps({"type": "step", "data": action}))
            seen = json.loads(ws.recv(30))["data"]
            assert seen["reward"] == reward
            assert seen["observation"]["error"] is None
            assert count is None or seen["observation"]["result"]["data"]["count"] == count
        thread = tools.env.log.of("init")[0]["thread"]
        assert next(one["thread"] for one in tools.env.log.of("tool")) == thread


def test_an_async_tool_that_blocks_the_loop_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openenv.core.env_server.runner.BLOCKED_LOOP_S", 0.0)
    with tool_server() as tools:
        tools.call("inc_async", tools.create())
    assert "the tool inc_async() blocked the event loop" in caplog.text


# ------------------------------------------------------------------- production mode


def test_production_mode_has_no_simulation_routes() -> None:
    with tool_server(mode="production") as tools:
        assert tools.http.post("/reset", json={}).status_code == 404
        with connect(tools.url.ws) as ws:
            ws.send('{"type":"reset"}')
            assert json.loads(ws.recv(30))["type"] == "observation"


@pytest.mark.parametrize("mode", ["production", "simulation"])
def test_the_operator_can_switch_simulation_off_on_the_socket(mode: str) -> None:
    with tool_server(mode=mode, allow_ws_simulation=False) as tools, connect(tools.url.ws) as ws:
        for asked in ({"type": "reset"}, {"type": "step", "data": {}}, {"type": "state"}):
            ws.send(json.dumps(asked))
            reply = json.loads(ws.recv(30))
            assert (reply["type"] == "error") == (mode == "production")
            assert mode == "simulation" or reply["data"]["code"] == "UNKNOWN_TYPE"
        assert frame(ws, "tools/call", {"name": "inc"})["result"]["data"]["count"] == 1
        if mode == "production":
            assert tools.env.log.of("reset") == tools.env.log.of("step") == []
            with Raw(tools.url.ws) as client:
                client.open()
                reply = client.call("reset", 1)
                assert (reply["data"]["code"], reply["data"]["applied"]) == ("UNKNOWN_TYPE", False)


# ------------------------------------------------------------------- arguments


class WeighingEnv(ToolsEnv):
    """Its tool says what it was given."""

    def __init__(self) -> None:
        super().__init__()

        @self.tool()
        def weigh(x: float, more: dict[str, Any] | None = None) -> str:
            return repr((x, more))


@pytest.mark.parametrize("client", [MCPToolClient, GenericEnvClient])
def test_arguments_without_a_word_in_json_reach_the_tool(client: Any) -> None:
    given = {"x": float("nan"), "more": {"at": [float("inf"), None, -float("inf")]}}
    with tool_server(base=WeighingEnv) as server, client(base_url=str(server.url)).sync() as env:
        env.reset()
        if client is MCPToolClient:
            seen = env.call_tool("weigh", **given)
        else:
            action = {"type": "call_tool", "tool_name": "weigh", "arguments": given}
            seen = env.step(action).observation["result"]["data"]
        assert seen == repr((given["x"], given["more"]))


def test_only_a_call_that_never_began_is_told_as_not_applied(tools: ToolServer) -> None:
    session = tools.create()
    assert tools.call("inc", session, by="x")["error"]["data"]["outcome"] == "not_applied"
    assert tools.call("inc_async", session, other=1)["error"]["data"]["outcome"] == "not_applied"
    assert "outcome" not in tools.call("boom", session)["error"]["data"]
    assert tools.call("inc", session)["result"]["data"]["count"] == 1
