"""Standard MCP at ``/mcp``: the clients of the official SDK and of FastMCP, and what the transport promises."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastmcp import Client, Context, FastMCP
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import ToolError
from mcp import ClientSession, McpError
from mcp.client.streamable_http import streamable_http_client
from mcp.types import JSONRPCMessage, JSONRPCResponse, TextContent

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_transport import KEPT_EVENTS, Events
from openenv.testing import FaultProxy
from support.envs import LOG_VARIABLE, CountAction, CountObservation, fresh_env
from support.live import serve, serve_process
from support.tool_envs import ToolsEnv, ToolServer, tool_server

ACCEPT = {"Accept": "application/json, text/event-stream"}


@pytest.fixture
def tools() -> Iterator[ToolServer]:
    with tool_server() as server:
        yield server


@asynccontextmanager
async def sdk(url: str, port: int | None = None) -> AsyncIterator[ClientSession]:
    """A session of the official SDK."""
    address = url if port is None else f"http://127.0.0.1:{port}"
    async with (
        streamable_http_client(f"{address}/mcp") as (reader, writer, _),
        ClientSession(reader, writer) as session,
    ):
        await session.initialize()
        yield session


def initialize(version: str = "2025-11-25") -> dict[str, Any]:
    client = {"name": "raw", "version": "1"}
    params = {"protocolVersion": version, "capabilities": {}, "clientInfo": client}
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}


def opened(tools: ToolServer) -> dict[str, str]:
    """Open a session by hand; the headers of its further requests."""
    response = tools.http.post("/mcp", json=initialize(), headers=ACCEPT)
    assert response.status_code == 200, response.text
    headers = {**ACCEPT, "Mcp-Session-Id": response.headers["Mcp-Session-Id"], "MCP-Protocol-Version": "2025-11-25"}
    done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert tools.http.post("/mcp", json=done, headers=headers).status_code == 202
    return headers


def result(response: httpx.Response) -> Any:
    (data,) = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: {")]
    return json.loads(data)


async def wait_for(tools: ToolServer, event: str, count: int = 1) -> None:
    await asyncio.to_thread(tools.env.log.wait_for, event, count)


# ------------------------------------------------------------------- stock clients


async def test_the_official_client_keeps_one_environment(tools: ToolServer) -> None:
    async with sdk(tools.url) as session:
        names = {tool.name for tool in (await session.list_tools()).tools}
        assert {"inc", "inc_async"} <= names
        assert not names & {"reset", "step", "state", "close"}
        first = await session.call_tool("inc", {"by": 2})
        second = await session.call_tool("inc_async", {})
        assert first.structuredContent is not None
        assert second.structuredContent is not None
        assert [first.structuredContent["count"], second.structuredContent["count"]] == [2, 3]
        assert first.structuredContent["env_no"] == second.structuredContent["env_no"]
        failed = await session.call_tool("boom", {})
        assert failed.isError
        assert isinstance(failed.content[0], TextContent)
        assert "tool boom" in failed.content[0].text
        assert (await session.call_tool("inc", {})).structuredContent["count"] == 4  # type: ignore[index]
        assert tools.env.log.of("close") == []
    await wait_for(tools, "close")
    assert [one["event"] for one in tools.env.log.events] == ["init", "tool", "tool", "tool", "close"]


async def test_the_client_of_fastmcp(tools: ToolServer) -> None:
    async with Client(StreamableHttpTransport(f"{tools.url}/mcp")) as client:
        assert "inc" in [tool.name for tool in await client.list_tools()]
        assert (await client.call_tool("inc", {"by": 2})).data["count"] == 2
        assert (await client.call_tool("inc_async", {})).data["count"] == 3
        with pytest.raises(ToolError, match="Unknown tool: 'reset'"):
            await client.call_tool("reset", {})
    await wait_for(tools, "close")
    assert tools.env.log.of("reset") == []
    assert len(tools.env.log.of("init")) == 1


async def test_a_sync_tool_runs_on_its_environments_thread(tools: ToolServer) -> None:
    async with sdk(tools.url) as session:
        called = await session.call_tool("inc", {})
    assert called.structuredContent is not None
    assert called.structuredContent["thread"] == tools.env.log.of("init")[0]["thread"]


async def test_what_a_server_has_beside_tools() -> None:
    class Rich(ToolsEnv):
        def build(self) -> FastMCP[Any]:
            server = super().build()

            @server.resource("count://now")
            def now() -> str:
                return str(self.count)

            @server.prompt
            def ask() -> str:
                return "Count on."

            @server.tool
            async def chatty(ctx: Context) -> str:
                await ctx.info("half way")
                await ctx.report_progress(1, 2)
                return "done"

            return server

    with tool_server(base=Rich) as tools:
        seen: list[Any] = []

        async def logged(message: Any) -> None:
            seen.append(message.data)

        async def progressed(progress: float, total: float | None, message: str | None) -> None:
            seen.append((progress, total))

        transport = StreamableHttpTransport(f"{tools.url}/mcp")
        async with Client(transport, log_handler=logged, progress_handler=progressed) as client:
            await client.call_tool("inc", {})
            assert (await client.read_resource("count://now"))[0].text == "1"  # type: ignore[union-attr]
            assert "Count on." in str((await client.get_prompt("ask")).messages[0].content)
            assert (await client.call_tool("chatty", {})).data == "done"
        assert (1.0, 2.0) in seen
        assert "half way" in str(seen)


async def test_thirty_clients_at_once() -> None:
    with tool_server(slots=30) as tools:

        async def play(number: int) -> list[int]:
            async with Client(StreamableHttpTransport(f"{tools.url}/mcp")) as client:
                turns = [("inc" if (turn + number) % 2 else "inc_async") for turn in range(4)]
                return [(await client.call_tool(tool, {"by": number})).data["count"] for tool in turns]

        counts = await asyncio.gather(*[play(number) for number in range(1, 31)])
        assert counts == [[number * turn for turn in range(1, 5)] for number in range(1, 31)]
        await wait_for(tools, "close", 30)
        assert tools.server.active_sessions == 0


async def test_calls_of_one_session_run_one_at_a_time(tools: ToolServer) -> None:
    async with sdk(tools.url) as session:
        calls = [asyncio.create_task(session.call_tool(tool, {})) for tool in ("wait", "wait_async") * 2]
        await wait_for(tools, "wait")
        assert (await session.list_tools()).tools  # the session answers meanwhile
        assert len(tools.env.log.of("wait")) == 1
        tools.env.gate.set()
        counts = [(await call).structuredContent["result"] for call in calls]  # type: ignore[index]
    assert sorted(counts) == [1, 2, 3, 4]
    events = [one["event"] for one in tools.env.log.events if one["event"] in ("wait", "tool")]
    assert events == ["wait", "tool"] * 4


# ------------------------------------------------------------------- cut streams


@pytest.mark.parametrize("tool", ["wait", "wait_async"])
async def test_a_call_survives_its_stream(tools: ToolServer, tool: str) -> None:
    with FaultProxy("127.0.0.1", tools.url.port) as proxy:
        async with sdk(tools.url, proxy.port) as session:
            before = await session.call_tool("inc", {})
            call = asyncio.create_task(session.call_tool(tool, {}))
            await wait_for(tools, "wait")
            await asyncio.to_thread(proxy.cut)
            tools.env.gate.set()
            result = await asyncio.wait_for(call, 30)
            assert not result.isError
            assert result.structuredContent == {"result": 2}
            after = await session.call_tool("inc", {})
    assert before.structuredContent is not None
    assert after.structuredContent is not None
    assert after.structuredContent["env_no"] == before.structuredContent["env_no"]
    assert after.structuredContent["count"] == 3
    assert len(tools.env.log.of("wait")) == 1
    assert len(tools.env.log.of("init")) == 1


def test_an_answer_can_be_read_again(tools: ToolServer) -> None:
    headers = opened(tools)
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "inc", "arguments": {}}}
    response = tools.http.post("/mcp", json=call, headers=headers)
    first = next(line for line in response.text.splitlines() if line.startswith("id: ")).removeprefix("id: ")
    again = tools.http.get("/mcp", headers={**headers, "Last-Event-ID": first})
    assert result(again) == result(response)
    assert len(tools.env.log.of("tool")) == 1
    last = [line for line in response.text.splitlines() if line.startswith("id: ")][-1].removeprefix("id: ")
    for nothing in (last, "999", "x", "-1"):
        seen = tools.http.get("/mcp", headers={**headers, "Last-Event-ID": nothing})
        assert (seen.status_code, "data: {" in seen.text) == (200, False)


async def test_events_are_bounded_and_tail_to_the_answer() -> None:
    events = Events()
    first = await events.store_event("a", None)
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event.event_id)

    replay = asyncio.create_task(events.replay_events_after(first, send))
    await asyncio.sleep(0)
    answer = JSONRPCMessage(JSONRPCResponse(jsonrpc="2.0", id="a", result={}))
    other = JSONRPCMessage(JSONRPCResponse(jsonrpc="2.0", id="b", result={}))
    await events.store_event("b", other)
    last = await events.store_event("a", answer)
    assert await asyncio.wait_for(replay, 10) is None
    assert sent == [last]
    for _ in range(KEPT_EVENTS):
        await events.store_event("b", other)
    await events.replay_events_after(first, send)
    assert sent == [last]


# ------------------------------------------------------------------- sessions


def test_delete_ends_the_session_and_its_environment(tools: ToolServer) -> None:
    headers = opened(tools)
    response = tools.http.delete("/mcp", headers=headers)
    assert response.status_code == 200
    assert [one["event"] for one in tools.env.log.events] == ["init", "close"]
    assert tools.server.active_sessions == 0
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    for again in (tools.http.post("/mcp", json=ping, headers=headers), tools.http.get("/mcp", headers=headers)):
        assert again.status_code == 404
        assert again.json()["error"]["message"] == "Session not found"
    assert tools.http.delete("/mcp", headers=headers).status_code == 404


def test_a_session_can_be_opened_again_and_again_at_capacity_one() -> None:
    with tool_server(slots=1) as tools:
        for _ in range(10):
            assert tools.http.delete("/mcp", headers=opened(tools)).status_code == 200
        assert len(tools.env.log.of("close")) == 10


def test_the_sessions_of_the_dialects_do_not_meet(tools: ToolServer) -> None:
    standard, own = opened(tools), tools.create()
    error = tools.call("inc", standard["Mcp-Session-Id"])["error"]
    assert "Unknown session_id" in error["message"]
    response = tools.http.post(
        "/mcp",
        json={"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
        headers={**standard, "Mcp-Session-Id": own},
    )
    assert response.status_code == 404
    assert tools.call("inc", own)["result"]["data"]["count"] == 1


async def test_a_full_server_says_so_in_json_rpc() -> None:
    with tool_server(slots=1) as tools:
        tools.create()
        async with (
            streamable_http_client(f"{tools.url}/mcp") as (reader, writer, _),
            ClientSession(reader, writer) as session,
        ):
            with pytest.raises(McpError, match="capacity: 1/1") as caught:
                await session.initialize()
        assert caught.value.error.code == -32000
        assert caught.value.error.data == {"active_sessions": 1, "max_sessions": 1}
        assert len(tools.env.log.of("init")) == 1


def test_an_environment_without_tools_says_so() -> None:
    env = fresh_env()
    with serve(create_app(env, CountAction, CountObservation)) as url:
        error = httpx.post(f"{url}/mcp", json=initialize(), headers=ACCEPT).json()["error"]
        assert (error["code"], error["message"]) == (-32603, "Environment does not support MCP")
    assert env.log.of("init") == []


def test_a_hidden_factory_without_tools_is_closed_again() -> None:
    env = fresh_env()
    app = create_app(lambda: env(), CountAction, CountObservation)
    with serve(app) as url:
        error = httpx.post(f"{url}/mcp", json=initialize(), headers=ACCEPT).json()["error"]
        assert (error["code"], error["message"]) == (-32603, "Environment does not support MCP")
        env.log.wait_for("close")
    assert [one["event"] for one in env.log.events] == ["init", "close"]


def test_an_idle_session_ends() -> None:
    with tool_server(mcp_idle_s=3.0) as tools:
        headers = opened(tools)
        tools.env.log.wait_for("close")
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        assert tools.http.post("/mcp", json=ping, headers=headers).status_code == 404


async def test_an_open_stream_keeps_its_session() -> None:
    with tool_server(mcp_idle_s=3.0) as tools:
        async with sdk(tools.url) as session:
            await session.call_tool("inc", {})
            for _ in range(2):
                await asyncio.to_thread(opened, tools)
            await wait_for(tools, "close", 2)
            again = await session.call_tool("inc", {})
            assert again.structuredContent is not None
            assert again.structuredContent["count"] == 2


async def test_a_stopping_server_ends_its_streams(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with serve_process("support.tool_app:app", env={LOG_VARIABLE: str(log)}) as (url, process):
        async with sdk(url) as session:
            await session.call_tool("inc", {})
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 30) in (0, -signal.SIGTERM)
            assert process.stdout is not None
            assert "Traceback" not in process.stdout.read()
    assert [json.loads(line)["event"] for line in log.read_text().splitlines()] == ["init", "tool", "close"]


# ------------------------------------------------------------------- at the door


def test_requests_that_are_not_let_in(tools: ToolServer) -> None:
    headers = opened(tools)
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    evil = {**headers, "Origin": "https://evil.example"}
    assert tools.http.post("/mcp", json=ping, headers=evil).status_code == 403
    assert tools.http.get("/mcp", headers=evil).status_code == 403
    assert tools.http.delete("/mcp", headers=evil).status_code == 403
    assert tools.http.post("/mcp", json=initialize(), headers={**ACCEPT, "Host": "evil.example"}).status_code == 403
    text = {**headers, "Content-Type": "text/plain"}
    assert tools.http.post("/mcp", content=json.dumps(ping), headers=text).status_code == 415
    assert tools.http.post("/mcp", json=ping, headers=headers).status_code == 200


def test_requests_that_fit_no_session(tools: ToolServer) -> None:
    version = {**ACCEPT, "MCP-Protocol-Version": "2025-11-25"}
    response = tools.http.post("/mcp", json={"jsonrpc": "2.0", "id": 2, "method": "tools/list"}, headers=version)
    assert (response.status_code, response.json()["error"]["code"]) == (400, -32600)
    assert tools.http.get("/mcp").status_code == 405
    assert tools.http.delete("/mcp").status_code == 405
    assert tools.env.log.events == []
    response = tools.http.post("/mcp", json=initialize())  # does not accept streams
    assert response.status_code == 406
    tools.env.log.wait_for("close")


def test_a_state_is_no_resource(tools: ToolServer) -> None:
    headers = opened(tools)
    for method in ("resources/list", "resources/templates/list", "prompts/list"):
        answer = result(tools.http.post("/mcp", json={"jsonrpc": "2.0", "id": 5, "method": method}, headers=headers))
        assert all(value == [] for value in answer["result"].values())
    for method in ("reset", "step", "state", "openenv/session/create"):
        answer = result(tools.http.post("/mcp", json={"jsonrpc": "2.0", "id": 6, "method": method}, headers=headers))
        assert answer["error"]["code"] in (-32601, -32602)
