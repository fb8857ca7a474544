"""The server under attack: full, blocked, raising, draining, abandoned."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect

from faults.harness import Driver, World
from openenv.core.exceptions import (
    ActionValidationError,
    CallTimeoutError,
    CapacityError,
    ConnectError,
    EnvExecutionError,
    EnvironmentFactoryError,
    InvalidActionError,
    OpenEnvError,
    Outcome,
    SessionLostError,
)

BOTH = ("v1", "ours")
OURS = ("ours",)
PLAIN = ("ours", "upstream")
ASYNC = ("async",)


def http(world: World, timeout_s: float = 30.0) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=world.server.url, trust_env=False, timeout=timeout_s)


# ---------------------------------------------------------------- capacity


@pytest.mark.server(counting_capacity=2)
@pytest.mark.guarantee("G5", "G8", hazards=("H14",))
async def test_a_full_server_is_a_typed_error_at_the_first_call(world: World) -> None:
    for _ in range(2):
        await world.driver().reset()
    late = world.driver(connect_timeout_s=0.5)  # that is how long a client waits for a slot, where it may
    with pytest.raises(CapacityError) as full:
        await late.reset()
    if world.is_ours:
        assert (full.value.active, full.value.max) == (2, 2)
    await world.drivers[0].close()
    async with asyncio.timeout(30):
        while True:
            try:
                await late.reset()
                break
            except CapacityError:
                await asyncio.sleep(0.02)
    assert (await late.step())["count"] == 1
    assert len(world.oracle.envs()) == 3


@pytest.mark.server(counting_capacity=16)
@pytest.mark.guarantee("G5", "G6", "G8", "G9", servers=OURS)
async def test_500_connects_at_once(world: World) -> None:
    players = [world.driver(direct=True) for _ in range(500)]
    results = await asyncio.gather(*(player.reset() for player in players), return_exceptions=True)
    kinds = Counter(type(result).__name__ for result in results)
    assert kinds == {"dict": 16, "CapacityError": 484}
    async with http(world) as client:
        assert (await client.get("/health")).status_code == 200
    steps = [player.step() for player, result in zip(players, results, strict=True) if isinstance(result, dict)]
    assert {step["count"] for step in await asyncio.gather(*steps)} == {1}
    assert len(world.oracle.envs()) == 16


@pytest.mark.server(own=True, counting_capacity=3)
@pytest.mark.guarantee("G8", "G9", servers=BOTH)
async def test_slow_closes_and_many_clients_never_exceed_the_capacity(world: World) -> None:
    world.plan(close=("sleep", 0.05), init=("sleep", 0.02))
    async with http(world) as client:

        async def play() -> int:
            driver = world.driver(direct=True)
            with contextlib.suppress(CapacityError):
                await driver.reset()
                await driver.step()
                await driver.close()
            return (await client.post("/reset", json={"mark": "http"})).status_code

        statuses = await asyncio.gather(*(play() for _ in range(40)))
    assert set(statuses) <= {200, 503}
    assert world.oracle.most_alive() == 3
    world.abandoned = True  # an HTTP session has no end but its time


# ---------------------------------------------------------------- sockets that want nothing


@pytest.mark.server(counting_capacity=2)
@pytest.mark.guarantee("G8", "G9", "G12", servers=OURS)
async def test_handshakes_that_never_finish_take_no_slot(world: World) -> None:
    half = b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    sockets = [socket.create_connection(("127.0.0.1", world.server.port)) for _ in range(60)]
    for number, one in enumerate(sockets):
        one.sendall(half[: number * 2])
    driver = world.driver(direct=True)
    await driver.reset()
    assert (await driver.step())["count"] == 1
    assert len(world.oracle.envs()) == 1
    for one in sockets:
        one.close()
    assert (await driver.step())["count"] == 2


@pytest.mark.server(own=True, counting_capacity=3, counting_session_timeout=0.5)
@pytest.mark.guarantee("G8", "G12", servers=OURS, clients=ASYNC)
async def test_sockets_that_never_speak_are_closed_and_give_their_slots_back(world: World) -> None:
    url = world.server.url.replace("http", "ws") + "/ws"
    async with connect(url) as one, connect(url) as two, connect(url) as three:
        for silent in (one, two, three):
            async with asyncio.timeout(30):
                await silent.wait_closed()
            assert (silent.close_code, silent.close_reason) == (4001, "idle")
    await world.wait(world.oracle.wait_for_all_closed)
    await world.driver().reset()
    assert len(world.oracle.envs()) == 4


@pytest.mark.server(counting_capacity=1)
@pytest.mark.guarantee("G8", "G12", hazards=("H9", "H10"), servers=PLAIN)  # a lease: see test_resume.py
async def test_a_client_that_dies_in_a_long_step_frees_its_slot_when_the_step_ends(world: World) -> None:
    gate = world.gate()
    script = (
        "import sys; from openenv import GenericEnvClient; c = GenericEnvClient(base_url=sys.argv[1]).sync();"
        "c.reset(mark='dying'); c.step({'op': 'block', 'arg': sys.argv[2], 'mark': 'long'})"
    )
    client = subprocess.Popen([sys.executable, "-c", script, world.server.url, gate.path])
    await world.seen("step", mark="long")
    client.kill()
    client.wait()
    late = world.driver()
    with pytest.raises(CapacityError):
        await late.reset()
    assert world.oracle.of("close") == []  # an environment is never closed under its own step
    gate.open()
    await world.seen("close", phase="end")
    async with asyncio.timeout(30):
        while True:
            try:
                await late.reset()
                break
            except CapacityError:
                await asyncio.sleep(0.02)
    assert world.oracle.times("long") == 1


# ---------------------------------------------------------------- blocking


@pytest.mark.parametrize("what", ["step", "reset", "init", "state", "close", "metadata"])
@pytest.mark.server(own=True)
@pytest.mark.guarantee("G9", hazards=("H23",), servers=BOTH)
async def test_what_blocks_costs_its_own_session_only(world: World, what: str) -> None:
    bystander = world.driver(direct=True)
    await bystander.reset()
    blocked, gate = world.driver(direct=True), world.gate()
    if what != "init":
        await blocked.reset()
    async with http(world) as client:

        async def round_trip() -> float:
            begin = time.perf_counter()
            assert (await client.get("/health")).status_code == 200
            await bystander.step()
            return time.perf_counter() - begin

        idle = statistics.median([await round_trip() for _ in range(20)])
        if what in ("init", "state", "close", "metadata"):
            world.plan(**{what: ("block", gate.path)})
        match what:
            case "step":
                call = asyncio.create_task(blocked.step("block", gate.path, mark="blocked"))
            case "reset" | "init":
                call = asyncio.create_task(blocked.reset(op="block", arg=gate.path))
            case "state":
                call = asyncio.create_task(blocked.state())
            case "close":
                call = asyncio.create_task(blocked.close())
            case _:
                call = asyncio.create_task(client.get("/metadata"))
        await world.seen(
            *{"step": ("step", 21), "metadata": ("init", 3), "init": ("init", 2), "reset": ("reset", 3)}.get(
                what, (what,)
            )
        )
        busy = statistics.median([await round_trip() for _ in range(20)])  # none of it waits for the gate
        assert busy < 20 * idle
        assert call.done() == (what == "close")  # a client's close waits for nobody
        gate.open()
        await call
    assert (await bystander.step())["count"] == 41


@pytest.mark.server(own=True, counting_async=1)
@pytest.mark.guarantee("G4", "G9", servers=BOTH)
async def test_async_environments_wait_beside_each_other(world: World) -> None:
    world.mixed_threads = True
    gate = world.gate()
    players = [world.driver(direct=True) for _ in range(8)]
    await asyncio.gather(*(player.reset() for player in players))
    waiting = [asyncio.create_task(player.step("block", gate.path)) for player in players[:7]]
    await world.seen("step", 7)
    for count in range(1, 6):
        assert (await players[7].step())["count"] == count
    gate.open()
    assert {seen["count"] for seen in await asyncio.gather(*waiting)} == {1}


# ---------------------------------------------------------------- raising


@pytest.mark.parametrize("op", ["raise", "exit", "interrupt"])
@pytest.mark.guarantee("G3", "G5", "G8", "G9", servers=BOTH)
async def test_an_environment_that_raises_in_step_or_reset_keeps_its_session(world: World, op: str) -> None:
    driver, bystander = world.driver(), world.driver()
    first = await driver.reset()
    await bystander.reset()
    with pytest.raises(EnvExecutionError) as raised:
        await driver.step(op, "because")
    assert raised.value.error_type == {"raise": "RuntimeError", "exit": "SystemExit"}.get(op, "KeyboardInterrupt")
    assert raised.value.outcome is Outcome.UNKNOWN
    assert (await driver.step())["env"] == first["env"]
    with pytest.raises(EnvExecutionError):
        await driver.reset(op=op, arg="because")
    assert (await driver.reset())["env"] == first["env"]
    assert (await bystander.step())["count"] == 1
    assert len(world.oracle.envs()) == 2


@pytest.mark.parametrize("op", ["raise", "exit", "interrupt"])
@pytest.mark.server(own=True)
@pytest.mark.guarantee("G5", "G8", "G9", servers=BOTH)
async def test_an_environment_that_raises_in_state_close_or_constructor(world: World, op: str) -> None:
    driver, bystander = world.driver(), world.driver()
    first = await driver.reset()
    await bystander.reset()
    world.plan(state=(op, "state"), close=(op, "close"))
    with pytest.raises(EnvExecutionError):
        await driver.state()
    assert (await driver.step())["env"] == first["env"]
    await driver.close()
    await world.seen("close", env=first["env"])
    world.plan(init=(op, "init"))
    with pytest.raises(EnvironmentFactoryError):
        await driver.reset()
    world.plan()
    assert (await driver.reset())["env"] != first["env"]
    assert (await bystander.step())["count"] == 1
    assert world.oracle.closes(first["env"]) == 1


@pytest.mark.server(counting_capacity=1)
@pytest.mark.guarantee("G8", servers=BOTH)
async def test_constructors_that_raise_leak_no_slot(world: World) -> None:
    world.plan(init=("raise", "no"))
    for _ in range(5):
        with pytest.raises(EnvironmentFactoryError):
            await world.driver().reset()
    world.plan()
    await world.driver().reset()


@pytest.mark.guarantee("G3", "G9", servers=BOTH)
async def test_a_move_that_is_not_allowed_changes_nothing(world: World) -> None:
    driver = world.driver()
    await driver.reset()
    await driver.step()
    with pytest.raises(InvalidActionError) as refused:
        await driver.step("invalid", "the knight is pinned")
    assert "the knight is pinned" in str(refused.value)
    assert refused.value.outcome is Outcome.NOT_APPLIED
    assert (await driver.step())["count"] == 2
    assert "Traceback" not in world.server.output[-2000:] or "pinned" not in world.server.output


@pytest.mark.parametrize("op", ["refused", "validator_crash"])
@pytest.mark.guarantee("G3", "G9", servers=BOTH)
async def test_a_validator_that_raises_costs_one_call(world: World, op: str) -> None:
    driver = world.driver()
    first = await driver.reset()
    with pytest.raises(ActionValidationError) as refused:
        await driver.step(op, mark="refused")
    assert refused.value.outcome is Outcome.NOT_APPLIED
    assert (await driver.step())["env"] == first["env"]
    assert world.oracle.times("refused") == 0


@pytest.mark.server(own=True)
@pytest.mark.guarantee("G3", "G5")
async def test_an_environment_that_ends_its_process(world: World) -> None:
    driver, other = world.driver(direct=True), world.driver(direct=True)
    await driver.reset()
    await other.reset()
    crash = asyncio.create_task(driver.step("crash"))
    await driver.noticed()
    await other.noticed()
    if not world.keeps_sessions:
        with pytest.raises(ConnectError):
            await other.reset(timeout_s=0.4)
    await world.wait(world.server.restart)  # only then a client that would resume knows
    await world.cut_short(crash, outcome=Outcome.UNKNOWN, kept=False)
    await world.cut_short(other.step(), kept=False)
    await driver.reset()
    assert (await driver.step())["count"] == 1
    world.abandoned = True  # the process that ended closed nothing


# ---------------------------------------------------------------- data


@pytest.mark.parametrize("op", ["nan", "inf", "bytes", "np", "bigint", "object"])
@pytest.mark.guarantee("G3", "G9", "G10", servers=BOTH)
async def test_odd_values_arrive_or_name_their_field(world: World, op: str) -> None:
    driver = world.driver()
    first = await driver.reset()
    if op in ("bytes", "object"):
        with pytest.raises(EnvExecutionError, match="echo") as problem:
            await driver.step(op)
        assert problem.value.outcome is Outcome.APPLIED
    else:
        _check_arrived(op, await driver.step(op))
    after = await driver.step()
    assert (after["env"], after["count"]) == (first["env"], 2)


def _check_arrived(op: str, seen: dict[str, object]) -> None:
    echo = seen["echo"]
    if op == "nan":
        assert seen["reward"] != seen["reward"]
        assert str(echo) == "[nan, nan]"
    elif op == "inf":
        assert (seen["reward"], echo) == (float("inf"), [float("inf"), float("-inf")])
    elif op == "bigint":
        assert echo == 10**30
    else:
        assert echo == {"array": [0, 1, 2], "scalar": 7}


@pytest.mark.parametrize(
    "value", [b"\x00\xff", object(), {1, 2}, "\ud800"], ids=["bytes", "object", "set", "surrogate"]
)
@pytest.mark.guarantee("G3", "G9", "G10")
async def test_an_action_without_a_json_form_names_its_field_and_is_not_sent(world: World, value: object) -> None:
    driver = world.driver()
    first = await driver.reset()
    sent = world.proxy.passed("request")
    with pytest.raises(ActionValidationError) as refused:
        await driver.step("echo", {"deep": [1, value]}, mark="odd")
    assert "arg" in str(refused.value)
    assert refused.value.outcome is Outcome.NOT_APPLIED
    assert world.proxy.passed("request") == sent
    assert (await driver.step())["env"] == first["env"]


# ---------------------------------------------------------------- time


@pytest.mark.server(own=True, counting_session_timeout=3.0)
@pytest.mark.guarantee("G1", "G8", hazards=("H20", "H21"), servers=BOTH)
async def test_a_step_longer_than_the_session_timeout_is_not_idle(world: World) -> None:
    driver = world.driver()
    first = await driver.reset()
    assert (await driver.step("sleep", 3.5))["env"] == first["env"]
    assert (await driver.step())["count"] == 2
    assert world.oracle.envs() == [first["env"]]


@pytest.mark.server(own=True, counting_session_timeout=3.0)
@pytest.mark.guarantee("G1", "G5", "G8", "G12", hazards=("H20",), servers=BOTH)
async def test_a_pause_longer_than_the_session_timeout_is_told(world: World) -> None:
    driver = world.driver()
    first = await driver.reset()
    await world.seen("close", env=first["env"])
    await driver.noticed()
    for _ in range(2):
        with pytest.raises(SessionLostError) as lost:
            await driver.step()
    assert (lost.value.reason, lost.value.close_code) == ("idle", 4001)
    await driver.reset()
    assert (await driver.step())["count"] == 1
    assert world.oracle.closes(first["env"]) == 1


@pytest.mark.server(own=True, drain_grace_s=10)
@pytest.mark.guarantee("G1", "G5", "G8", servers=BOTH)
async def test_sigterm_with_five_live_sessions_and_a_long_step(world: World) -> None:
    players = [world.driver(direct=True, step_timeout_s=10.0) for _ in range(5)]
    firsts = await asyncio.gather(*(player.reset() for player in players))
    gate = world.gate()
    step = asyncio.create_task(players[0].step("block", gate.path, mark="long"))
    await world.seen("step", mark="long")
    world.server.terminate()
    await world.seen("close", 4, phase="end")
    assert world.oracle.closes(firsts[0]["env"]) == 0
    gate.open()
    assert await world.wait(world.server.wait, 30) in (0, -15)
    with contextlib.suppress(SessionLostError, CallTimeoutError):  # told, or the answer, or cut off before either
        await step
    for player in players[1:]:
        with pytest.raises(SessionLostError) as lost:
            await player.step()
        assert lost.value.close_code == (4002 if world.keeps_sessions else 1012)
    assert [world.oracle.closes(first["env"]) for first in firsts] == [1] * 5
    assert "Traceback" not in world.server.output
    assert "ERROR" not in world.server.output


@pytest.mark.server(own=True, drain_grace_s=0.5)
@pytest.mark.guarantee("G5", "G6", "G8", servers=BOTH)
async def test_sigterm_with_a_step_that_never_returns(world: World) -> None:
    stuck, idle = world.driver(direct=True, step_timeout_s=4.0), world.driver(direct=True)
    await stuck.reset()
    seen = await idle.reset()
    step = asyncio.create_task(stuck.step("block", world.gate().path, mark="stuck"))
    await world.seen("step", mark="stuck")
    world.server.terminate()
    assert await world.wait(world.server.wait, 30) in (0, -15)  # the gate is shut
    with pytest.raises(CallTimeoutError if world.keeps_sessions else SessionLostError) as lost:
        await step  # uvicorn closes its socket before its end is known, so a client that would resume waits on
    assert lost.value.outcome is Outcome.UNKNOWN
    assert world.oracle.closes(seen["env"]) == 1
    assert "Traceback" not in world.server.output


def _measures(pid: int) -> tuple[int, int, int]:
    """Descriptors, threads and resident kB of a process."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"]), int(status["VmRSS"].split()[0])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="counts threads and descriptors in /proc")
@pytest.mark.server(own=True, counting_capacity=4, lease_grace_s=0.1)
@pytest.mark.guarantee("G8", "G12", hazards=("H31",), servers=BOTH)
async def test_many_cycles_leave_nothing_behind(world: World) -> None:
    async def cycle(times: int) -> None:
        for number in range(times):
            driver = world.driver(direct=True)
            await driver.reset()
            await driver.step()
            if number % 3:
                await driver.finish()
            else:
                driver.client._ws.transport.abort()  # what a crash of the client looks like
                await driver.finish()
            world.drivers.remove(driver)
            await world.wait(world.oracle.wait_until, lambda: len(world.oracle.alive()) < 3)

    await cycle(100)
    await world.wait(world.oracle.wait_for_all_closed)
    before = [_measures(world.server.pid), _measures(os.getpid())]
    await cycle(200)
    await world.wait(world.oracle.wait_for_all_closed)
    await asyncio.sleep(0.1)
    after = [_measures(world.server.pid), _measures(os.getpid())]
    for (files, threads, kilobytes), (files_now, threads_now, kilobytes_now) in zip(before, after, strict=True):
        assert files_now <= files + 3
        assert threads_now <= threads + 3
        assert kilobytes_now < 1.2 * kilobytes
    assert len(world.oracle.envs()) == 300


# ---------------------------------------------------------------- HTTP beside the sockets


@pytest.mark.server(own=True, counting_capacity=2)
@pytest.mark.guarantee("G7", "G8", "G9", hazards=("H19", "H24"), servers=OURS, clients=ASYNC)
async def test_calls_of_one_http_session_run_one_at_a_time(world: World) -> None:
    async with http(world) as client:
        reset = await client.post("/reset", json={"mark": "http"})
        assert reset.status_code == 200
        header = {name: value for name, value in reset.headers.items() if "session" in name.lower()}
        assert header
        action = {"action": {"op": "sleep", "arg": 0.05, "mark": "http-step"}}
        steps = await asyncio.gather(*(client.post("/step", json=action, headers=header) for _ in range(5)))
    assert sorted(step.json()["observation"]["count"] for step in steps) == [1, 2, 3, 4, 5]
    assert len(world.oracle.envs()) == 1
    world.abandoned = True  # an HTTP session has no end but its time


@pytest.mark.server(own=True, counting_capacity=1)
@pytest.mark.guarantee("G8", "G12", hazards=("H17",), servers=OURS)
async def test_an_abandoned_http_session_makes_room(world: World) -> None:
    async with http(world) as client:
        assert (await client.post("/reset", json={})).status_code == 200
    driver = world.driver()
    async with asyncio.timeout(60):
        while True:
            try:
                await driver.reset()
                break
            except CapacityError:
                await asyncio.sleep(0.2)
    assert (await driver.step())["count"] == 1


@pytest.mark.server(counting_capacity=2)
@pytest.mark.guarantee("G8", "G9", hazards=("H24",), servers=OURS, clients=ASYNC)
async def test_throw_away_environments_are_closed_and_counted(world: World) -> None:
    driver = world.driver()
    await driver.reset()
    async with http(world) as client:
        answers = [await client.post("/step", json={"action": {"mark": f"http-{n}"}}) for n in range(3)]
        assert [answer.status_code for answer in answers] == [200] * 3
        assert all("Warning" in answer.headers for answer in answers)
        bad = await client.post("/step", content=b"{", headers={"Content-Type": "application/json"})
        assert bad.status_code == 422
    assert len(json.dumps(bad.json())) < 2000
    assert (await driver.step())["count"] == 1
    await driver.close()
    await world.wait(world.oracle.wait_for_all_closed)


@pytest.mark.guarantee("G5", "G9", servers=BOTH)
async def test_errors_of_one_client_are_not_seen_by_another(world: World) -> None:
    good, bad = world.driver(), world.driver()
    await good.reset()
    await bad.reset()

    async def fail(driver: Driver) -> int:
        errors = 0
        for op in ("raise", "invalid", "refused", "validator_crash", "object", "exit") * 3:
            try:
                await driver.step(op)
            except OpenEnvError:
                errors += 1
        return errors

    failing = asyncio.create_task(fail(bad))
    assert [(await good.step())["count"] for _ in range(30)] == list(range(1, 31))
    assert await failing == 18
