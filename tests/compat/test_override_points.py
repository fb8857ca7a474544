"""What subclasses of a client override, and what programs put in the place of its methods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import AsyncMock, Mock, patch

import pytest

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from openenv.core.env_server.mcp_types import (
    CallToolAction,
    CallToolObservation,
    ListToolsAction,
    ListToolsObservation,
    Tool,
    ToolError,
    ToolErrorType,
)
from openenv.core.exceptions import ProviderError, SessionLostError, ToolCallError
from openenv.core.generic_client import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient
from support.clients import CountServer, count_server

URL = "http://localhost:8000"


@pytest.fixture
def server() -> Iterator[CountServer]:
    with count_server() as made:
        yield made


class Recording(GenericEnvClient):
    """Overrides every point, and calls up."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[str] = []

    async def _connect_async(self) -> Any:
        self.seen.append("connect")
        return await super()._connect_async()

    async def _reset_async(self, **kwargs: Any) -> Any:
        self.seen.append("reset")
        return await super()._reset_async(**kwargs)

    async def _step_async(self, action: Any, **kwargs: Any) -> Any:
        self.seen.append("step")
        return await super()._step_async(action, **kwargs)

    async def _state_async(self) -> Any:
        self.seen.append("state")
        return await super()._state_async()

    async def _disconnect_async(self) -> None:
        self.seen.append("disconnect")
        await super()._disconnect_async()

    async def _close_async(self) -> None:
        self.seen.append("close")
        await super()._close_async()


EVERY_POINT = ["connect", "reset", "step", "state", "close", "disconnect"]


async def test_each_call_goes_through_its_override_point(server: CountServer) -> None:
    async with Recording(base_url=server.url) as client:
        await client.reset()
        result = await client.step({"op": "inc"})
        await client.state()
    assert result.observation["count"] == 1
    assert client.seen == EVERY_POINT
    assert len(server.env.log.of("step")) == 1


def test_so_do_blocking_calls(server: CountServer) -> None:
    with Recording(base_url=server.url).sync() as client:
        client.reset()
        client.step({"op": "inc"})
        client.state()
    assert client.async_client.seen == EVERY_POINT
    with Recording(base_url=server.url) as bare:
        bare.reset()
        bare.step({"op": "inc"})
        bare.state()
    assert bare.seen == EVERY_POINT


class Tapped(GenericEnvClient):
    """Sees every frame."""

    frames: list[tuple[str, str]]

    async def _send_and_receive(self, message: Any) -> dict[str, Any]:
        reply = await super()._send_and_receive(message)
        self.frames.append((message["type"], reply["type"]))
        return reply


async def test_frames_pass_through_an_overridden_exchange_and_are_safe_there(server: CountServer) -> None:
    client = Tapped(base_url=server.url, resume=False)
    client.frames = []
    await client.reset(seed=3)
    await client.step({"op": "inc"}, timeout_s=30.0)
    await client.state()
    assert client.frames == [("reset", "observation"), ("step", "observation"), ("state", "state")]
    client._ws.transport.abort()
    await client._ws.wait_closed()
    with pytest.raises(SessionLostError):
        await client.step({"op": "inc"})
    assert len(server.env.log.of("init")) == 1  # no other environment came in its place
    await client.close()


async def test_the_halves_of_an_exchange_can_be_replaced() -> None:
    client = GenericEnvClient(base_url=URL)
    told = {"type": "observation", "data": {"observation": {"x": 1}, "reward": 2.0, "done": True}}
    with patch.object(client, "_send") as send, patch.object(client, "_receive", return_value=told):
        result = await client.reset(seed=5)
    assert (result.observation, result.reward, result.done) == ({"x": 1}, 2.0, True)
    send.assert_awaited_once_with({"type": "reset", "data": {"seed": 5}})


async def test_one_half_alone_still_reaches_the_server(server: CountServer) -> None:
    class Counted(GenericEnvClient):
        received = 0

        async def _receive(self) -> dict[str, Any]:
            self.received += 1
            return await super()._receive()

    async with Counted(base_url=server.url) as client:
        await client.reset()
        result = await client.step({"op": "inc"})
    assert (client.received, result.observation["count"]) == (2, 1)
    with pytest.raises(RuntimeError, match="there was none"):
        await client._receive()


def test_points_can_be_replaced_from_outside() -> None:
    with (
        patch.object(GenericEnvClient, "_connect_async", new_callable=AsyncMock) as connect,
        patch.object(GenericEnvClient, "_close_async", new_callable=AsyncMock) as close,
    ):
        client = GenericEnvClient(base_url=URL)
        with client as entered:
            assert entered is client
        with client.sync():
            pass
    assert (connect.await_count, close.await_count) == (2, 2)


# ---------------------------------------------------------------- names that programs look at


def test_attributes_that_programs_read() -> None:
    client = GenericEnvClient(base_url="http://localhost:8000/", connect_timeout_s=3, message_timeout_s=7)
    assert (client.base_url, client._base_url, client._ws_url) == (URL, URL, "ws://localhost:8000/ws")
    assert (client._connect_timeout, client._message_timeout, client._provider) == (3, 7, None)
    assert client.sync()._async is client
    for name in ("mode", "_mode", "base_url"):
        with pytest.raises(AttributeError):
            setattr(client, name, "production")


def test_an_own_socket_can_be_kept_in_the_client() -> None:
    client = GenericEnvClient(base_url=URL)
    assert client._ws is None
    with patch.object(client, "_ws", "mine"):
        assert client._ws == "mine"
    assert client._ws is None


def test_a_wrong_mode_tells_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENENV_CLIENT_MODE", "invalid")
    with pytest.raises(ValueError, match=r"OPENENV_CLIENT_MODE.*invalid"):
        GenericEnvClient(base_url=URL)


# ---------------------------------------------------------------- hooks and tools of clients without a session


def unbuilt() -> MCPToolClient:
    client = MCPToolClient.__new__(MCPToolClient)
    client._ws = None
    return client


def test_hooks_work_on_an_object_that_no_constructor_has_seen() -> None:
    client = unbuilt()
    assert client._step_payload(CallToolAction(tool_name="add", arguments={"a": 5})) == {
        "type": "call_tool",
        "tool_name": "add",
        "arguments": {"a": 5},
    }
    seen = client._parse_result({"observation": {"tool_name": "add", "result": 8}}).observation
    assert isinstance(seen, CallToolObservation)
    assert seen.result == 8
    result = EnvClient._parse_result(GenericEnvClient.__new__(GenericEnvClient), {"observation": {"a": 1}})
    assert result.observation == {"a": 1}


async def test_tools_by_way_of_an_overridden_step() -> None:
    class Watching(MCPToolClient):
        actions: list[Any]

        async def step(self, action: Any, **kwargs: Any) -> Any:  # type: ignore[override]
            self.actions.append(action)
            if isinstance(action, ListToolsAction):
                tool = Tool(name="add", description="", input_schema={})
                return StepResult(observation=ListToolsObservation(tools=[tool]))
            if action.tool_name == "add":
                return StepResult(observation=CallToolObservation(tool_name="add", result={"data": 8}))
            error = ToolError(error_type=ToolErrorType.TOOL_NOT_FOUND, message="Tool 'nope' not found")
            return StepResult(observation=CallToolObservation(tool_name="nope", result=None, error=error))

    client = Watching(base_url=URL)
    client.actions = []
    assert client.use_production_mode
    client.use_production_mode = False
    assert await client.call_tool("add", a=5, b=3) == 8
    assert client.actions == [CallToolAction(tool_name="add", arguments={"a": 5, "b": 3})]
    with pytest.raises(ToolCallError, match="'nope' not found"):
        await client.call_tool("nope")
    assert [tool.name for tool in await client.list_tools()] == ["add"]
    await client.list_tools()
    assert await client.has_tool("add")
    assert await client.get_tool("other") is None
    assert len(client.actions) == 3  # listed once
    await client.list_tools(use_cache=False)
    assert len(client.actions) == 4


async def test_the_same_on_an_object_that_no_constructor_has_seen() -> None:
    client = unbuilt()
    step = AsyncMock(return_value=StepResult(observation=CallToolObservation(tool_name="add", result=8)))
    client.step = step  # type: ignore[method-assign]
    assert await client.call_tool("add", a=5) == 8
    client._tools_cache = [Tool(name="add", description="", input_schema={})]
    assert await client.has_tool("add")
    assert step.await_count == 1


# ---------------------------------------------------------------- providers that are stood in for


@pytest.mark.parametrize(
    ("docker", "start", "stop"), [(True, "start_container", "stop_container"), (False, "start", "stop")]
)
def test_a_failed_start_is_taken_back_by_what_belongs_to_it(docker: bool, start: str, stop: str) -> None:
    provider = Mock(context_timeout_s=None)  # answers to every name, those of the other family too
    getattr(provider, start).side_effect = RuntimeError("no room")
    with pytest.raises(ProviderError, match="no room"):
        GenericEnvClient.from_env("user/my-env", use_docker=docker, provider=provider).sync()
    assert [name for name, _, _ in provider.mock_calls if "stop" in name] == [stop]


def test_a_handle_gives_the_blocking_client_of_a_provider_once() -> None:
    provider = Mock()
    provider.start_container.return_value = URL
    with patch.object(GenericEnvClient, "_connect_async", new_callable=AsyncMock):
        handle = GenericEnvClient.from_docker_image("echo-env:latest", provider=provider, env_vars={"A": "1"})
        provider.start_container.assert_not_called()
        client = handle.sync()
        with pytest.raises(RuntimeError, match="already been resolved"):
            handle.sync()
        assert client.base_url == URL
        client.close()
    provider.start_container.assert_called_once_with("echo-env:latest", env_vars={"A": "1"})
    provider.stop_container.assert_called_once_with()
