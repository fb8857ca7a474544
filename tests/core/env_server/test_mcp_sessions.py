"""Sessions that belong to no socket: attached sockets, tokens, and requests that are run once."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import logging
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from openenv.core.env_server.json_rpc import RpcError, RpcRequest
from openenv.core.env_server.mcp_sessions import KEPT_REPLIES, ReplyCache
from openenv.core.env_server.v1_options import V1Options
from openenv.core.mcp_client import MCPToolClient
from openenv.testing import FaultProxy
from support.tool_envs import ToolServer, tool_server


@pytest.fixture
def tools() -> Iterator[ToolServer]:
    with tool_server() as server:
        yield server


def attach(tools: ToolServer, session: str, token: str | None = None, url: str | None = None) -> ClientConnection:
    address = url or tools.url.ws
    if token is None:
        return connect(f"{address}?session_id={session}")
    headers = {"OpenEnv-Session": session, "OpenEnv-Session-Token": token}
    return connect(address, additional_headers=headers)


def step(ws: ClientConnection, tool: str = "inc", **arguments: Any) -> Any:
    ask(ws, tool, **arguments)
    return json.loads(ws.recv(30))["data"]["observation"]["result"]["data"]


def ask(ws: ClientConnection, tool: str = "inc", **arguments: Any) -> None:
    ws.send(json.dumps({"type": "step", "data": {"type": "call_tool", "tool_name": tool, "arguments": arguments}}))


def ended(ws: ClientConnection) -> tuple[list[dict[str, Any]], int, str]:
    """What came, and how it ended."""
    seen = []
    with pytest.raises(ConnectionClosed) as closed:  # noqa: PT012
        while True:
            seen.append(json.loads(ws.recv(30)))
    assert closed.value.rcvd is not None
    return seen, closed.value.rcvd.code, closed.value.rcvd.reason


def state(ws: ClientConnection) -> Any:
    ws.send('{"type":"state"}')
    return json.loads(ws.recv(30))["data"]


# ------------------------------------------------------------------- attaching


def test_a_session_outlives_its_sockets(tools: ToolServer) -> None:
    session = tools.create()
    with attach(tools, session) as ws:
        assert step(ws)["count"] == 1
        assert tools.call("inc", session)["result"]["data"]["count"] == 2
    with attach(tools, session) as ws:
        assert step(ws)["count"] == 3
        assert state(ws)["step_count"] == 3
        ws.send('{"type":"close"}')
        assert ended(ws) == ([], 1000, "")
    with (
        FaultProxy("127.0.0.1", tools.url.port) as proxy,
        attach(tools, session, url=f"ws://127.0.0.1:{proxy.port}/ws") as ws,
    ):
        assert step(ws)["count"] == 4
        proxy.cut()
        with pytest.raises(ConnectionClosed):
            ws.recv(30)
    assert tools.call("inc", session)["result"]["data"]["count"] == 5
    assert len(tools.env.log.of("init")) == 1
    assert tools.env.log.of("close") == []


def test_what_cannot_be_attached(tools: ToolServer) -> None:
    with attach(tools, "nope") as ws:
        ((refused,), code, _) = ended(ws)
        assert refused["data"] == {"message": "Unknown session_id: nope", "code": "SESSION_ERROR"}
        assert code == 1000
    session = tools.create()
    with attach(tools, session) as ws, attach(tools, session) as second:
        ((refused,), code, _) = ended(second)
        text = f"Session {session} already has an attached WebSocket"
        assert refused["data"] == {"message": text, "code": "SESSION_ERROR"}
        assert step(ws)["count"] == 1


def test_the_session_of_a_socket_cannot_be_attached(tools: ToolServer) -> None:
    with connect(tools.url.ws) as ws:
        ws.send('{"type":"mcp","data":{"jsonrpc":"2.0","id":1,"method":"openenv/session/create"}}')
        own = json.loads(ws.recv(30))["data"]["result"]["session_id"]
        with attach(tools, own) as second:
            assert ended(second)[0][0]["data"]["message"] == f"Unknown session_id: {own}"


def test_a_close_waits_for_the_socket(tools: ToolServer) -> None:
    session = tools.create()
    with attach(tools, session) as ws:
        told = tools.ask("openenv/session/close", {"session_id": session})["result"]
        assert told == {"session_id": session, "closed": False, "closing": True}
        assert step(ws)["count"] == 1
        assert tools.call("inc", session)["result"]["data"]["count"] == 2
    tools.env.log.wait_for("close")
    assert "Unknown session_id" in tools.call("inc", session)["error"]["message"]


def test_an_attached_session_is_not_idle() -> None:
    with tool_server(mcp_idle_s=0.5) as tools, contextlib.ExitStack() as stack:
        ws = attached_in_time(tools, stack)
        for _ in range(2):  # each of these sessions waits out the same time
            ended_before = len(tools.env.log.of("close"))
            tools.create()
            tools.env.log.wait_for("close", ended_before + 1)
        assert step(ws)["count"] == 2
        ended_before = len(tools.env.log.of("close"))
        ws.close()
        tools.env.log.wait_for("close", ended_before + 1)


def attached_in_time(tools: ToolServer, stack: contextlib.ExitStack) -> ClientConnection:
    """A socket on a new session: on a machine that stalls, one may be idle for too long before it is attached."""
    for _ in range(20):
        ws = stack.enter_context(attach(tools, tools.create()))
        with contextlib.suppress(ConnectionClosed, KeyError):
            assert step(ws)["count"] == 1
            return ws
        ws.close()
    raise AssertionError("no session could be attached in time")


def test_a_draining_server_tells_the_attached_socket() -> None:
    with tool_server() as tools:
        session = tools.create()
        with attach(tools, session) as ws:
            assert step(ws)["count"] == 1
            tools.url.server.should_exit = True
            assert ended(ws)[1] == 1012
    assert len(tools.env.log.of("close")) == 1


# ------------------------------------------------------------------- tokens


def test_only_those_who_ask_get_a_token(tools: ToolServer) -> None:
    response = tools.post("openenv/session/create")
    assert not any(name.startswith("openenv") for name in response.headers)
    response = tools.post("openenv/session/create", OpenEnv_Features="nonsense")
    assert not any(name.startswith("openenv") for name in response.headers)
    response = tools.post("openenv/session/create", OpenEnv_Features="idempotency, token, more")
    assert response.headers["OpenEnv-Features"] == "token, idempotency"
    assert len(response.headers["OpenEnv-Session-Token"]) >= 43
    assert set(response.json()["result"]) == {"session_id"}
    response = tools.post("openenv/session/create", OpenEnv_Features="idempotency")
    assert response.headers["OpenEnv-Features"] == "idempotency"
    assert "OpenEnv-Session-Token" not in response.headers


@pytest.mark.parametrize("given", [None, "", "wrong"])
def test_without_its_token_a_session_is_unknown(tools: ToolServer, given: str | None) -> None:
    session, token = tools.create_with_token()
    _, foreign = tools.create_with_token()
    for wrong in (given, foreign):
        headers = {} if wrong is None else {"OpenEnv_Session_Token": wrong}
        for method in ("tools/list", "tools/call", "openenv/session/close"):
            error = tools.ask(method, {"session_id": session, "name": "inc"}, **headers)["error"]
            assert (error["code"], error["message"]) == (-32602, f"Unknown session_id: {session}")
        with attach(tools, session, wrong) as ws:
            assert ended(ws)[0][0]["data"]["message"] == f"Unknown session_id: {session}"
    assert tools.call("inc", session, {"OpenEnv_Session_Token": token})["result"]["data"]["count"] == 1
    told = tools.ask("openenv/session/close", {"session_id": session}, OpenEnv_Session_Token=token)
    assert told["result"]["closed"] is True


def test_tokens_are_not_logged(tools: ToolServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "openenv")
    session, token = tools.create_with_token()
    with attach(tools, session, token) as ws:
        step(ws)
    with attach(tools, session, "x" + token) as ws:
        ended(ws)
    assert token not in caplog.text


def test_the_newest_holder_of_the_token_wins(tools: ToolServer) -> None:
    session, token = tools.create_with_token()
    with attach(tools, session, token) as first:
        assert step(first)["count"] == 1
        with attach(tools, session, token) as second:
            assert step(second)["count"] == 2
            assert ended(first)[1:] == (4000, "replaced")
            assert step(second)["count"] == 3
        assert len(tools.env.log.of("init")) == 1


def test_a_call_of_the_former_holder_goes_on_and_its_reply_goes_to_nobody(tools: ToolServer) -> None:
    session, token = tools.create_with_token()
    with attach(tools, session, token) as first:
        ask(first, "wait")
        ask(first, "inc", by=100)  # still waiting when the other one comes: dropped
        tools.env.log.wait_for("wait")
        with attach(tools, session, token) as second:
            assert ended(first) == ([], 4000, "replaced")
            ask(second, "inc")
            tools.env.gate.set()
            assert json.loads(second.recv(30))["data"]["observation"]["result"]["data"]["count"] == 2
    assert [one["tool"] for one in tools.env.log.of("tool")] == ["waited", "inc"]


# ------------------------------------------------------------------- once


def keyed(tools: ToolServer, session: str, key: str, name: str = "inc", **arguments: Any) -> dict[str, Any]:
    return dict(tools.call(name, session, {"Idempotency_Key": key}, **arguments))


def test_a_key_is_run_once(tools: ToolServer) -> None:
    session, key = tools.create(), str(uuid.uuid4())
    first = keyed(tools, session, key)
    again = keyed(tools, session, key)
    assert again["id"] == first["id"] + 1
    assert again["result"] == first["result"]
    assert keyed(tools, session, str(uuid.uuid4()))["result"]["data"]["count"] == 2
    assert keyed(tools, tools.create(), key)["result"]["data"]["count"] == 1
    error = keyed(tools, session, key, by=2)["error"]
    assert error["code"] == -32602
    failed = keyed(tools, session, "b", "boom")
    assert keyed(tools, session, "b", "boom")["error"] == failed["error"]
    assert keyed(tools, session, "x" * 201)["error"]["code"] == -32602
    assert len(tools.env.log.of("tool")) == 3


def test_a_duplicate_waits_for_the_call_that_runs(tools: ToolServer) -> None:
    session, key = tools.create(), str(uuid.uuid4())
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(keyed, tools, session, key, "wait") for _ in range(3)]
        tools.env.log.wait_for("wait")
        tools.env.gate.set()
        assert [call.result(30)["result"]["data"] for call in calls] == [1, 1, 1]
    assert len(tools.env.log.of("wait")) == 1


def test_a_call_whose_connection_is_cut_is_answered_to_whoever_comes_again(tools: ToolServer) -> None:
    session, key = tools.create(), str(uuid.uuid4())
    with (
        FaultProxy("127.0.0.1", tools.url.port) as proxy,
        ToolServer(tools.url, tools.env, tools.server) as cut,
        concurrent.futures.ThreadPoolExecutor(2) as pool,
    ):
        cut.http.base_url = f"http://127.0.0.1:{proxy.port}"
        lost = pool.submit(keyed, cut, session, key, "wait")
        tools.env.log.wait_for("wait")
        proxy.cut()
        assert isinstance(lost.exception(30), Exception)
        again = pool.submit(keyed, tools, session, key, "wait")
        tools.env.gate.set()
        assert again.result(30)["result"]["data"] == 1
    assert len(tools.env.log.of("wait")) == 1


def test_a_reply_that_is_not_kept_is_unknown() -> None:
    with tool_server(v1=V1Options(max_reply_bytes=1500)) as tools:
        session = tools.create()
        first = keyed(tools, session, "a")
        for key in "bcdefgh":
            keyed(tools, session, key)
        error = keyed(tools, session, "a")["error"]
        assert first["result"]["data"]["count"] == 1
        assert (error["code"], error["data"]) == (-32000, {"outcome": "unknown"})
        assert keyed(tools, session, "h")["result"]["data"]["count"] == 8
        assert len(tools.env.log.of("tool")) == 8


async def test_the_cache_is_bounded_and_never_forgets_what_runs() -> None:
    cache = ReplyCache(max_bytes=10**9)
    runs: list[str] = []
    gate = asyncio.Event()

    async def ask(key: str, waits: bool = False) -> bytes:
        async def run() -> bytes:
            runs.append(key)
            if waits:
                await gate.wait()
            return b"{}"

        return await cache.once(key, RpcRequest("tools/call", {"name": key}), run)

    waiting = asyncio.create_task(ask("slow", waits=True))
    await asyncio.sleep(0)
    for number in range(KEPT_REPLIES * 2):
        assert await ask(str(number)) == b"{}"
    assert await ask(str(KEPT_REPLIES * 2 - 1)) == b"{}"
    with pytest.raises(RpcError) as unknown:
        await ask("0")
    assert unknown.value.rpc_data == {"outcome": "unknown"}
    gate.set()
    assert await asyncio.gather(waiting, ask("slow")) == [b"{}", b"{}"]
    assert len(runs) == len(set(runs)) == KEPT_REPLIES * 2 + 1


# ------------------------------------------------------------------- opened once


@pytest.mark.parametrize("arrived", [0, 1])
def test_a_create_that_comes_again_with_its_key_opens_one_session(tools: ToolServer, arrived: int) -> None:
    asked = {"OpenEnv_Features": "token, idempotency", "Idempotency_Key": "one"}
    answers = [tools.post("openenv/session/create", **asked) for _ in range(2)]
    (session,) = {answer.json()["result"]["session_id"] for answer in answers}
    tokens = [answer.headers["OpenEnv-Session-Token"] for answer in answers]
    assert len(tools.env.log.of("init")) == 1

    def call(token: str) -> dict[str, Any]:
        asked = {"session_id": session, "name": "inc"}
        return dict(tools.post("tools/call", asked, OpenEnv_Session_Token=token).json())

    assert call(tokens[arrived])["result"]["data"]["count"] == 1
    assert "Unknown session_id" in call(tokens[1 - arrived])["error"]["message"]
    assert call(tokens[arrived])["result"]["data"]["count"] == 2
    late = tools.post("openenv/session/create", **asked)
    assert late.json()["error"]["code"] == -32602
    assert "OpenEnv-Session-Token" not in late.headers
    assert len(tools.env.log.of("init")) == 1
    other = tools.post("openenv/session/create", **{**asked, "Idempotency_Key": "two"})
    assert other.json()["result"]["session_id"] != session


def test_without_the_feature_a_key_means_nothing_to_a_create(tools: ToolServer) -> None:
    sessions = {
        tools.post("openenv/session/create", Idempotency_Key="one").json()["result"]["session_id"] for _ in range(2)
    }
    assert len(sessions) == 2


async def test_a_client_whose_create_lost_its_answer_gets_the_session_that_it_made(tools: ToolServer) -> None:
    with FaultProxy("127.0.0.1", tools.url.port) as proxy:
        proxy.cut_on_reply()
        async with MCPToolClient(f"http://127.0.0.1:{proxy.port}") as client:
            assert (await client.call_tool("inc"))["count"] == 1
        tools.env.log.wait_for("close")
    assert len(tools.env.log.of("init")) == 1
