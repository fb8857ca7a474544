"""Standard MCP clients on our ``/mcp``: each lists, calls, has one environment, and survives a stream that is cut.

Version 1 of the official Python SDK and FastMCP's client are in `tests/core/env_server/test_mcp_stream.py`, too.
Version 2 has an environment of its own (``make mcp2``), and the TypeScript SDK needs Node (``make node-sdk``). What is
not set up is skipped, unless ``OPENENV_MCP2_REQUIRED`` or ``OPENENV_NODE_REQUIRED`` is set: then its test fails.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from interop.sides import OURS, ROOT, SHARED, Mirror, Servers
from openenv.testing.proxy import FaultProxy

NODE = Path(__file__).parent / "node"
MCP2 = ROOT / ".mcp2"
NODE_SDK = ROOT / ".node-sdk"


def need(ready: bool, what: str, variable: str) -> None:
    """Skip what is not set up; fail where it was promised."""
    if ready:
        return
    if os.environ.get(variable):
        pytest.fail(what)
    pytest.skip(what)


def sdk2() -> list[str]:
    need((MCP2 / ".ready").exists(), "version 2 of the MCP SDK is not set up: run `make mcp2`", "OPENENV_MCP2_REQUIRED")
    return [str(MCP2 / "bin" / "python"), str(SHARED / "sdk2_client.py")]


def typescript() -> list[str]:
    node = shutil.which("node")
    ready = node is not None and (NODE_SDK / ".ready").exists()
    what = "the TypeScript SDK is not set up: install Node 20 or later with npm, and run `make node-sdk`"
    need(ready, what, "OPENENV_NODE_REQUIRED")
    return [str(node), str(NODE_SDK / "client.mjs")]


class Running:
    """A client in a process of its own, and what it says."""

    def __init__(self, command: list[str], url: str, gate: Path) -> None:
        self.told: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            [*command, url, str(gate)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self.told.append(json.loads(line))
                self._news.notify_all()

    def end(self) -> list[dict[str, Any]]:
        """Wait for its end; everything it said."""
        code = self._process.wait(60)
        self._reader.join(10)
        assert self._process.stderr is not None
        assert code == 0, f"{self.told} and then {self._process.stderr.read()}"
        return self.told

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def server(servers: Servers) -> Mirror:
    return servers(OURS, "tool_app:app")


@pytest.mark.parametrize("client", [sdk2, typescript], ids=lambda one: one.__name__)
def test_a_standard_client_keeps_one_environment_and_survives_a_cut_stream(
    client: Any, server: Mirror, tmp_path: Path
) -> None:
    command, gate = client(), tmp_path / "gate"
    waits = len(server.events("waiting"))
    with (
        FaultProxy("127.0.0.1", server.port) as proxy,
        Running(command, f"{proxy.url}/mcp", gate) as running,
    ):
        server.wait_for("waiting", waits + 1)
        proxy.cut()
        gate.write_text("go on")
        told = running.end()
    tools, inc, inc_async, boom, wait, again, closed = told
    assert tools["tools"] == ["big", "boom", "greet", "inc", "inc_async", "refuse", "wait"]
    number = inc["result"]["env_no"]
    results = [one["result"] for one in (inc, inc_async, wait, again)]
    assert results == [{"env_no": number, "count": count} for count in (1, 2, 3, 4)]
    assert [one["failed"] for one in (inc, inc_async, boom, wait, again)] == [False, False, True, False, False]
    assert closed == {"closed": True}
    assert len(server.events("waiting")) == waits + 1  # answered once, and not run again
    assert len(server.wait_for("close", env_no=number)) == 1


async def test_version_one_of_the_sdk_and_the_client_of_fastmcp(server: Mirror) -> None:
    from fastmcp import Client
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    async with (
        streamable_http_client(f"{server.url}/mcp") as (read, write, _),
        ClientSession(read, write) as session,
        Client(f"{server.url}/mcp") as fast,
    ):
        await session.initialize()
        assert len((await session.list_tools()).tools) == len(await fast.list_tools()) == 7
        first, second = await session.call_tool("inc", {}), await session.call_tool("inc_async", {})
        assert first.structuredContent is not None
        number = first.structuredContent["env_no"]
        assert second.structuredContent == {"env_no": number, "count": 2}
        other = (await fast.call_tool("inc", {})).data
        assert other["count"] == 1
        assert other["env_no"] != number
    await asyncio.to_thread(server.wait_for, "close", env_no=number)
