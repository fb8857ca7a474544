"""Our client of tools, async and blocking, on upstream's server and on ours: broken connections, and what it makes of
them. Which environment a call ran on, and how often, is what the server's log says."""

from __future__ import annotations

import asyncio
import gc
import itertools
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from interop.sides import OURS, UPSTREAM, Driver, Mirror, Servers, Side, mirror_server
from interop.tools import Player, proxied, ran_on
from openenv.core.env_server.mcp_types import CallToolAction, ListToolsAction
from openenv.core.exceptions import (
    CallTimeoutError,
    ConnectError,
    OutcomeUnknownError,
    SessionClosedError,
    SessionLostError,
    ToolCallError,
)
from openenv.core.generic_client import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient
from openenv.testing.proxy import FaultProxy

SIDES = [OURS, UPSTREAM]
MODES = ["async", "sync"]


@pytest.fixture(params=SIDES, ids=str)
def side(request: pytest.FixtureRequest) -> Side:
    chosen: Side = request.param
    return chosen


@pytest.fixture
def server(side: Side, servers: Servers) -> Mirror:
    return servers(side, "tool_app:app")


@pytest.fixture(scope="module")
def singles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Side], Mirror]]:
    """Servers with one place. Who takes it, gives it back."""
    started: dict[Side, Mirror] = {}
    with ExitStack() as stack:

        def get(side: Side) -> Mirror:
            if side not in started:
                directory = tmp_path_factory.mktemp("single")
                serving = mirror_server(side, directory, "tool_app:app", MAX_CONCURRENT_ENVS="1")
                started[side] = stack.enter_context(serving)
            return started[side]

        yield get


@pytest.fixture
def single(side: Side, singles: Callable[[Side], Mirror]) -> Iterator[Mirror]:
    """A server with one place, which is free before and after."""
    server = singles(side)
    yield server
    server.wait_for("close", len(server.events("init")))
    with MCPToolClient(server.url).sync() as newcomer:
        newcomer.list_tools()


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def player(server: Mirror, mode: str) -> Iterator[Player]:
    player = Player(server.url, mode)
    yield player
    player.end()


def fresh_mark() -> str:
    return uuid.uuid4().hex


def touch(path: Path) -> None:
    path.write_text("go on")


# ------------------------------------------------------------------ without faults


def test_all_calls_meet_one_environment(player: Player, server: Mirror) -> None:
    mark = fresh_mark()
    begun = player.do("reset", episode_id="E")
    number = begun.observation.metadata["env_no"]
    assert player.tool("inc", by=2, mark=mark) == {"env_no": number, "count": 2}
    assert player.tool("inc_async") == {"env_no": number, "count": 3}
    stepped = player.do("step", CallToolAction(tool_name="inc", arguments={"mark": mark}))
    assert stepped.observation.result["data"] == {"env_no": number, "count": 4}
    assert stepped.observation.error is None
    state = player.do("state")
    assert (state.episode_id, state.step_count, state.env_no) == ("E", 4, number)
    assert ran_on(server, mark) == [number, number]


def test_tools_are_told_complete(player: Player) -> None:
    listed = player.do("list_tools")
    inc = next(tool for tool in listed if tool.name == "inc")
    assert inc.description == "Add to the counter."
    assert inc.input_schema["properties"]["by"] == {"default": 1, "type": "integer"}
    assert (inc.title, inc.output_schema["type"]) == ("Add", "object")
    assert inc.annotations["idempotentHint"] is False
    assert inc.meta == {"fastmcp": {"tags": []}}
    by_step = player.do("step", ListToolsAction()).observation.tools
    assert [(tool.name, tool.input_schema) for tool in by_step] == [(tool.name, tool.input_schema) for tool in listed]
    assert player.do("get_tool", "inc") == inc
    assert [player.do("has_tool", name) for name in ("greet", "nope")] == [True, False]


def test_a_tool_may_have_an_argument_called_name(player: Player) -> None:
    assert player.tool("greet", name="Ada") == "Hello, Ada!"


@pytest.mark.parametrize(
    ("tool", "arguments", "told"),
    [
        ("boom", {"text": "it broke"}, "it broke"),
        ("refuse", {"why": "not now"}, "not now"),
        ("nope", {}, "Unknown tool"),
        ("inc", {"by": "many"}, "valid integer"),
    ],
)
def test_a_failed_call_leaves_the_session(
    player: Player, side: Side, tool: str, arguments: dict[str, Any], told: str
) -> None:
    before = player.tool("inc")
    with pytest.raises(ToolCallError, match=told) as caught:
        player.tool(tool, **arguments)
    error = caught.value
    assert error.tool == tool
    if side.is_ours:
        assert told in error.content[0]["text"]
        assert error.error_type in ("execution_error", "tool_not_found", "invalid_args")
    assert player.tool("inc") == {**before, "count": before["count"] + 1}


def test_calls_of_one_client_run_one_at_a_time(player: Player, server: Mirror, tmp_path: Path) -> None:
    mark, gate = fresh_mark(), tmp_path / "gate"
    calls = [player.start("call_tool", "wait", path=str(gate), mark=mark) for _ in range(4)]
    server.wait_for("waiting", mark=mark)
    touch(gate)
    assert sorted(call.result(40)["count"] for call in calls) == [1, 2, 3, 4]
    assert [one["running"] for one in server.events("waiting", mark=mark)] == [1, 1, 1, 1]


def test_children_have_sessions_of_their_own_and_end_with_their_parent(server: Mirror, mode: str) -> None:
    parent = Player(server.url, mode)
    number = parent.tool("inc")["env_no"]
    child = parent.do("new_session")
    numbers = [number, parent.start("call_tool", "inc", of=child).result(40)["env_no"]]
    assert numbers[0] != numbers[1]
    parent.end()
    for one in numbers:
        server.wait_for("close", env_no=one)


def test_a_closed_client_says_so(server: Mirror, mode: str) -> None:
    player = Player(server.url, mode)
    number = player.tool("inc")["env_no"]
    player.do("close")
    assert server.events("close", env_no=number)  # confirmed, not only asked for
    for method, args in (("call_tool", ("inc",)), ("list_tools", ()), ("step", (ListToolsAction(),)), ("state", ())):
        with pytest.raises(SessionClosedError):
            player.do(method, *args)
    assert player.do("reset").observation.metadata["env_no"] != number
    player.end()


def test_another_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="production"):
        MCPToolClient("http://localhost:1", mode="simulation")


# ------------------------------------------------------------------ upstream's client on our server


@pytest.fixture
def theirs(drivers: Callable[[Side, str], Driver], mode: str) -> Iterator[Driver]:
    """Upstream's clients."""
    driver = drivers(UPSTREAM, mode)
    yield driver
    driver.forget()


UPSTREAMS = "openenv.core.mcp_client:MCPToolClient"


def test_upstreams_client_on_our_server(theirs: Driver, servers: Servers) -> None:
    server = servers(OURS, "tool_app:app")
    with FaultProxy("127.0.0.1", server.port) as proxy:
        theirs.new(proxy.url, kind=UPSTREAMS)
        number = theirs.reset(episode_id="E").value["observation"]["metadata"]["env_no"]
        listed = theirs.call("list_tools").value
        assert [tool["name"] for tool in listed][:3] == ["inc", "inc_async", "greet"]
        assert listed[0]["input_schema"]["properties"]["by"] == {"default": 1, "type": "integer"}
        for count, tool in enumerate(["inc", "inc_async"], start=1):
            assert theirs.call("call_tool", tool).value == {"env_no": number, "count": count}
        assert theirs.call("call_tool", "boom", kwargs={"text": "it broke"}).raised == "RuntimeError"
        assert theirs.state().value["episode_id"] == "E"
        proxy.cut()
        assert theirs.call("call_tool", "inc").value == {"env_no": number, "count": 3}
        theirs.call("noticed")
        assert theirs.state().value["step_count"] == 3
        _ = theirs.call("close").value
        server.wait_for("close", env_no=number)


def test_twenty_cycles_of_upstreams_client(theirs: Driver, singles: Callable[[Side], Mirror]) -> None:
    server = singles(OURS)
    before = len(server.events("init"))
    for _ in range(20):
        theirs.new(server.url, kind=UPSTREAMS)
        _ = theirs.call("connect")
        assert len(theirs.call("list_tools").value) == 7
        _ = theirs.call("close").value
    assert len(server.events("init")) == before + 20
    server.wait_for("close", before + 20)


# ------------------------------------------------------------------ the socket drops, the session stays


def test_protocol_client_keeps_production_session_after_close(server: Mirror, mode: str) -> None:
    with proxied(server, mode) as (proxy, player):
        number = player.do("reset", episode_id="mine").observation.metadata["env_no"]
        plain = GenericEnvClient(base_url=proxy.url, resume=False).sync()
        elsewhere = plain.reset().observation["metadata"]["env_no"]
        assert player.tool("inc")["count"] == 1
        for count, cut in zip(itertools.count(2, 2), ("rst", "fin"), strict=False):
            proxy.cut(cut)
            assert player.tool("inc") == {"env_no": number, "count": count}
            stepped = player.do("step", CallToolAction(tool_name="inc"))
            assert stepped.observation.result["data"] == {"env_no": number, "count": count + 1}
        state = player.do("state")
        assert (state.episode_id, state.step_count) == ("mine", 5)
        assert (player.client.session.resumes, player.client.session.losses) == (2, 0)
        assert not server.events("close", env_no=number)
        for _ in range(2):
            with pytest.raises(SessionLostError):
                plain.step({"type": "call_tool", "tool_name": "inc", "arguments": {}})
        plain.close()
    assert server.wait_for("close", env_no=elsewhere)
    assert len(server.wait_for("close", env_no=number)) == 1


def test_a_step_cut_in_flight_is_told_once_and_not_sent_again(server: Mirror, mode: str, tmp_path: Path) -> None:
    """Upstream's server ends the running call before it lets the session be attached again; the client waits."""
    mark, gate = fresh_mark(), tmp_path / "gate"
    with proxied(server, mode, connect_timeout_s=1.0) as (proxy, player):
        number = player.do("reset").observation.metadata["env_no"]
        action = CallToolAction(tool_name="wait", arguments={"path": str(gate), "mark": mark})
        step = player.start("step", action)
        server.wait_for("waiting", mark=mark)
        proxy.cut()
        with pytest.raises(OutcomeUnknownError):
            step.result(40)
        state = player.start("state")
        with pytest.raises(TimeoutError):
            state.result(1.5)  # longer than the time for connecting: the server is there, and the session is busy
        touch(gate)
        assert (state.result(40).env_no, state.result().step_count) == (number, 1)
        assert player.tool("inc") == {"env_no": number, "count": 2}
    assert ran_on(server, mark) == [number]


@pytest.mark.parametrize("op", ["reset", "state"])
def test_what_acts_once_however_often_it_runs_is_sent_again(server: Mirror, mode: str, op: str) -> None:
    with proxied(server, mode) as (proxy, player):
        number = player.do("reset").observation.metadata["env_no"]
        player.tool("inc")
        proxy.cut_after(0, "reply", "rst", connection=player_socket(player))
        answer = player.do(op)
        where = answer.env_no if op == "state" else answer.observation.metadata["env_no"]
        assert where == number
        assert player.tool("inc") == {"env_no": number, "count": 2 if op == "state" else 1}
        assert player.client.session.resumes == 1


def player_socket(player: Player) -> int:
    """The number of the proxy's connection that carries the player's WebSocket: the first is the HTTP one."""
    assert player.client._ws is not None
    return 2


def test_the_newest_socket_wins_over_one_that_the_server_still_believes_in(server: Mirror, mode: str) -> None:
    with proxied(server, mode) as (proxy, player):
        number = player.do("reset").observation.metadata["env_no"]
        proxy.hold("both", player_socket(player))
        with pytest.raises(CallTimeoutError):
            player.do("state", timeout_s=0.3)
        state = player.start("state")
        if not server.side.is_ours:  # it knows no newer holder, and waits for the end of the old socket
            with pytest.raises(TimeoutError):
                state.result(0.5)
            proxy.heal()
        assert state.result(40).env_no == number
        assert player.client.session.losses == 0


def test_refused_attaches_never_end_the_session(server: Mirror, mode: str) -> None:
    with proxied(server, mode, connect_timeout_s=1.5) as (proxy, player):
        number = player.do("reset").observation.metadata["env_no"]
        player.tool("inc")
        proxy.refuse("closed")
        proxy.cut()
        with pytest.raises(ConnectError):
            player.do("state")
        with pytest.raises(ConnectError):
            player.tool("inc")
        proxy.heal()
        assert player.do("state").env_no == number
        assert player.tool("inc") == {"env_no": number, "count": 2}
        assert not server.events("close", env_no=number)


def test_an_attach_is_tried_again_until_its_time_is_over(server: Mirror, mode: str) -> None:
    with proxied(server, mode) as (proxy, player):
        number = player.do("reset").observation.metadata["env_no"]
        accepted = proxy.accepted
        proxy.refuse("rst")
        proxy.cut()
        state = player.start("state")
        proxy.wait_for_connections(accepted + 2)
        proxy.heal()
        assert state.result(40).env_no == number


def test_listing_tools_on_an_outage_raises(server: Mirror, mode: str) -> None:
    with proxied(server, mode, connect_timeout_s=1.5) as (proxy, player):
        player.do("connect")
        proxy.refuse("closed")
        proxy.cut()
        for method, args in (("list_tools", ()), ("has_tool", ("inc",))):
            with pytest.raises(ConnectError):
                player.do(method, *args)
        proxy.heal()
        assert player.do("has_tool", "inc")


# ------------------------------------------------------------------ tool calls cut in flight


def cut_call(proxy: FaultProxy, player: Player, mark: str) -> int | None:
    """Call a tool while a cut is due. Returns the environment that answered; None if its fate was told unknown."""
    try:
        return int(player.tool("inc", mark=mark)["env_no"])
    except OutcomeUnknownError:
        return None


@pytest.mark.parametrize("offset", [0, 1, 90, 200, 330, 460])
def test_a_request_cut_at_any_byte_runs_once_or_its_fate_is_told(server: Mirror, mode: str, offset: int) -> None:
    mark = fresh_mark()
    with proxied(server, mode) as (proxy, player):
        number = player.tool("inc")["env_no"]
        proxy.cut_after(offset, "request")
        answered = cut_call(proxy, player, mark)
        proxy.heal()
        count = player.tool("inc")["count"]
        runs = ran_on(server, mark)
        assert runs in ([], [number])
        assert count == 2 + len(runs)
        assert player.client.session.losses == 0
    if server.side.is_ours:
        assert (answered, runs) == (number, [number])  # exactly once
    else:
        assert answered == (number if runs and answered else None)


@pytest.mark.parametrize("offset", [0, 1, 60, 150])
def test_a_reply_cut_at_any_byte_is_fetched_or_told_as_unknown(server: Mirror, mode: str, offset: int) -> None:
    mark = fresh_mark()
    with proxied(server, mode) as (proxy, player):
        number = player.tool("inc")["env_no"]
        proxy.cut_after(offset, "reply")
        answered = cut_call(proxy, player, mark)
        assert answered == (number if server.side.is_ours else None)
        assert player.tool("inc") == {"env_no": number, "count": 3}  # told once, and the session goes on
        assert player.client.session.losses == 0
    assert ran_on(server, mark) == [number]


def test_a_call_that_still_runs_is_waited_for_and_not_run_again(servers: Servers, mode: str, tmp_path: Path) -> None:
    server, mark, gate = servers(OURS, "tool_app:app"), fresh_mark(), tmp_path / "gate"
    with proxied(server, mode) as (proxy, player):
        call = player.start("call_tool", "wait", path=str(gate), mark=mark)
        server.wait_for("waiting", mark=mark)
        accepted = proxy.accepted
        proxy.cut()
        proxy.wait_for_connections(accepted + 1)
        touch(gate)
        assert call.result(40)["count"] == 1
    assert len(ran_on(server, mark)) == 1
    assert len(server.events("waiting", mark=mark)) == 1


def test_a_call_given_up_is_told_to_the_next_one_once(server: Mirror, tmp_path: Path) -> None:
    mark, gate = fresh_mark(), tmp_path / "gate"
    player = Player(server.url, "async")
    number = player.tool("inc")["env_no"]
    call = player.start("call_tool", "wait", path=str(gate), mark=mark)
    server.wait_for("waiting", mark=mark)
    call.cancel()
    touch(gate)
    server.wait_for("tool", mark=mark)
    with pytest.raises(OutcomeUnknownError):
        player.tool("inc")
    assert player.tool("inc") == {"env_no": number, "count": 3}
    assert ran_on(server, mark) == [number]
    player.end()


def test_a_call_past_its_time_costs_nothing_but_itself(server: Mirror, mode: str, tmp_path: Path) -> None:
    mark, gate = fresh_mark(), tmp_path / "gate"
    player = Player(server.url, mode, tool_timeout_s=0.4)
    number = player.tool("inc_async")["env_no"]
    with pytest.raises(CallTimeoutError) as caught:
        player.tool("wait", path=str(gate), mark=mark)
    assert (caught.value.outcome, caught.value.setting) == ("unknown", "tool_timeout_s")
    touch(gate)
    server.wait_for("tool", mark=mark)
    assert player.tool("inc_async") == {"env_no": number, "count": 3}
    player.end()


# ------------------------------------------------------------------ the session is gone


def test_a_restarted_server_is_a_lost_session_until_a_reset(side: Side, mode: str, tmp_path: Path) -> None:
    told: list[SessionLostError] = []
    with mirror_server(side, tmp_path, "tool_app:app") as first:
        player = Player(first.url, mode, on_session_lost=told.append)
        player.do("reset", episode_id="E")
        player.tool("inc")
        port = first.port
    again = tmp_path / "again"
    again.mkdir()
    with mirror_server(side, again, "tool_app:app", port=port) as second:
        for method, args in (("call_tool", ("inc",)), ("list_tools", ()), ("state", ()), ("call_tool", ("inc",))):
            with pytest.raises(SessionLostError) as caught:
                player.do(method, *args)
            assert (caught.value.reason, caught.value.episode_id) == ("gone", "E")
        player.do("connect")
        with pytest.raises(SessionLostError):
            player.tool("inc")  # connect() alone clears no loss
        assert not second.events("tool")
        player.do("reset")
        assert player.tool("inc")["count"] == 1
        assert len(second.events("init")) == 1
        assert (len(told), player.client.session.losses) == (1, 1)
        player.end()
        second.wait_for("close")


def test_where_no_client_may_reset_a_new_session_is_the_new_episode(mode: str, tmp_path: Path) -> None:
    with mirror_server(OURS, tmp_path, "tool_app:app", TOOL_NO_SIMULATION="1") as server:
        player = Player(server.url, mode)
        player.do("reset")  # of a fresh session: there is nothing to do
        first = player.tool("inc")
        player.do("reset")
        second = player.tool("inc")
        assert (first["count"], second["count"]) == (1, 1)
        assert first["env_no"] != second["env_no"]
        assert not server.events("reset")
        server.wait_for("close", env_no=first["env_no"])
        player.end()
        server.wait_for("close", env_no=second["env_no"])


# ------------------------------------------------------------------ nothing is left behind


def test_twenty_cycles_at_capacity_one(single: Mirror, mode: str) -> None:
    before = len(single.events("init"))
    for cycle in range(20):
        player = Player(single.url, mode)
        if cycle % 2:
            player.do("connect")
        assert len(player.do("list_tools")) == 7
        player.end()
        assert len(single.events("close")) == len(single.events("init"))  # 0 active
    assert len(single.events("init")) == before + 20


def test_a_connect_that_is_given_up_leaves_nothing(single: Mirror) -> None:
    """The server has made the session, and its answer is on the way, when the caller goes."""
    before = len(single.events("init"))
    with proxied(single, "async") as (proxy, player):
        proxy.hold("reply")
        connect = player.start("connect")
        proxy.wait_for_held("reply")
        connect.cancel()
        proxy.heal()
        single.wait_for("close", before + 1)
        assert player.tool("inc")["count"] == 1
        assert len(single.events("init")) == before + 2


@pytest.mark.parametrize("loop_first", [False, True], ids=["client first", "loop first"])
def test_a_client_that_is_dropped_gives_its_session_back(single: Mirror, mode: str, loop_first: bool) -> None:
    player = Player(single.url, mode)
    number = player.do("reset").observation.metadata["env_no"]
    if loop_first:
        player.let_go()
        del player
    else:
        del player.client
    gc.collect()
    single.wait_for("close", env_no=number)
    if not loop_first:
        player.let_go()


FORGETFUL = """
import asyncio, sys
from openenv.core.mcp_client import MCPToolClient
client = MCPToolClient(sys.argv[1])
if sys.argv[2] == "sync":
    client.sync().reset()
else:
    async def play():
        await client.reset()
    asyncio.run(play())
"""


def test_a_program_that_ends_gives_its_session_back(single: Mirror, mode: str) -> None:
    before = len(single.events("close"))
    subprocess.run([sys.executable, "-c", FORGETFUL, single.url, mode], check=True, timeout=60)
    single.wait_for("close", before + 1)


def test_the_session_survives_the_event_loop(server: Mirror) -> None:
    client = MCPToolClient(server.url)

    async def play() -> Any:
        return await client.call_tool("inc")

    async def stop() -> None:
        await client.close()

    first = asyncio.run(play())
    second = asyncio.run(play())
    assert second == {**first, "count": 2}
    asyncio.run(stop())
    server.wait_for("close", env_no=first["env_no"])
