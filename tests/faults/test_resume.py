"""Sessions that outlive their sockets, and calls that outlive their callers: what is particular to them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from faults.harness import Driver, World
from openenv.core.exceptions import (
    CallTimeoutError,
    MessageTooLargeError,
    Outcome,
    OutcomeUnknownError,
    SessionClosedError,
    SessionLostError,
)
from support.v1 import Raw

V1 = ("v1",)
ASYNC = ("async",)
cut_modes = pytest.mark.parametrize("mode", ["rst", "fin"])


def ws_url(world: World) -> str:
    return world.server.url.replace("http", "ws") + "/ws"


# ---------------------------------------------------------------- the socket


@cut_modes
@pytest.mark.parametrize("running", [False, True], ids=["idle", "in a step"])
@pytest.mark.guarantee("G1", "G2", "G4", servers=V1)
async def test_the_reply_to_a_resume_is_lost(world: World, mode: Any, running: bool) -> None:
    """The token that was told is lost with it; the one before it still opens the session."""
    driver, gate = world.driver(), world.gate()
    await driver.reset()
    step = asyncio.create_task(driver.step("block", gate.path)) if running else None
    if step is not None:
        await world.seen("step")
    offsets = range(0, 500, 50)  # from the handshake over welcome to the last byte of resumed
    for resumes, offset in enumerate(offsets, start=1):
        world.proxy.cut_after(offset, "reply", mode)
        world.proxy.cut(mode)
        await driver.resumed(resumes)
        world.proxy.heal()
    assert world.proxy.accepted > 1.5 * len(offsets)  # most were cut twice
    gate.open()
    if step is not None:
        assert (await step)["env"] == driver.env
    assert (await driver.step())["env"] == driver.env
    assert driver.client.session.losses == 0
    assert driver.client.session.resumes >= 1
    assert world.oracle.envs() == [driver.env]


@pytest.mark.parametrize("way", ["request", "reply", "both"])
@pytest.mark.guarantee("G1", "G2", "G4", "G6", servers=V1)
async def test_a_resume_while_the_old_socket_is_still_open(world: World, way: Any) -> None:
    """A black hole, one way: the client gives its socket up, the server knows nothing of that; later all comes."""
    driver = world.driver(websocket_ping_interval_s=0.2, websocket_ping_timeout_s=0.3)
    await driver.reset()
    world.proxy.hold(way, 1)
    step = asyncio.create_task(driver.step(mark="held"))
    await driver.resumed()
    assert (await step)["count"] == 1
    world.proxy.heal()  # what the old socket still had on its way
    assert [(await driver.step())["count"] for _ in range(5)] == [2, 3, 4, 5, 6]
    assert world.oracle.times("held") == 1
    assert driver.client.session.losses == 0


@pytest.mark.guarantee("G1", "G4", "G5", servers=V1)
async def test_of_two_holders_of_a_session_the_newest_wins_and_there_is_no_ping_pong(world: World) -> None:
    driver = world.driver()
    first = await driver.reset()
    await driver.step()
    lease = driver.client._machine.lease
    script = (
        "import sys; from support.v1 import Raw; url, session, token, epoch = sys.argv[1:];"
        "raw = Raw(url); raw.session, raw.token, raw.epoch, raw.seq = session, token, epoch, 2;"
        "raw.send(raw.resume_frame()); assert raw.recv()['type'] == 'resumed'; print('mine', flush=True);"
        "sys.stdin.readline(); seen = raw.step('inc', mark='thief')['data']['observation'];"
        "print(seen['env'], seen['count'], flush=True); sys.stdin.readline(); raw.send({'type': 'close'}); raw.closed()"
    )
    command = [sys.executable, "-c", script, ws_url(world), lease.session, lease.token, lease.epoch]
    environ = {**os.environ, "PYTHONPATH": "tests"}
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert (await world.wait(other.stdout.readline)).strip() == "mine"
        for call in (driver.step, driver.state, driver.step):
            with pytest.raises(SessionLostError) as lost:
                await call()
            assert (lost.value.reason, lost.value.close_code) == ("replaced", 4000)
        again = await driver.reset()
        assert again["env"] != first["env"]
        other.stdin.write("\n")
        other.stdin.flush()
        assert (await world.wait(other.stdout.readline)).split() == [first["env"], "2"]  # its session was not released
        assert (await driver.step())["env"] == again["env"]
        other.stdin.write("\n")
    assert other.returncode == 0
    assert world.proxy.accepted == 2  # the loser dialled for its reset, and for nothing else


@pytest.mark.guarantee("G2", "G5", "G9", servers=V1, clients=ASYNC)
async def test_a_second_request_while_one_runs_is_busy_and_does_not_run(world: World) -> None:
    gate = world.gate()
    with await world.wait(Raw, ws_url(world)) as raw:
        raw.open()
        raw.call("reset", mark="raw")
        raw.ask("step", op="block", arg=gate.path, mark="first")
        await world.seen("step", mark="first")
        refused = await world.wait(raw.call, "step", mark="second")
        assert (refused["type"], refused["seq"]) == ("error", 3)
        assert (refused["data"]["code"], refused["data"]["applied"]) == ("BUSY", False)
        gate.open()
        assert (await world.wait(raw.recv))["seq"] == 2
        assert (await world.wait(raw.call, "step", 3, mark="third"))["data"]["observation"]["count"] == 2
        raw.send({"type": "close"})
    assert world.oracle.times("second") == 0


# ---------------------------------------------------------------- giving up


@pytest.mark.guarantee("G2", "G3", "G4", servers=V1)
async def test_a_cancel_that_comes_before_its_request(world: World) -> None:
    """The request is cut off on its way; after the resume the client says only that it gave up."""
    driver = world.driver(step_timeout_s=0.5)
    await driver.reset()
    world.proxy.hold("request")
    with pytest.raises(CallTimeoutError) as late:
        await driver.step(mark="never-came")
    assert late.value.outcome is Outcome.UNKNOWN
    world.proxy.cut()
    world.proxy.heal()
    assert await driver.settle() is None
    assert (await driver.step())["count"] == 1
    assert world.oracle.times("never-came") == 0
    assert driver.client.session.losses == 0


@pytest.mark.guarantee("G2", "G3", "G4", servers=V1)
async def test_a_cancel_that_comes_after_the_reply(world: World) -> None:
    driver = world.driver(step_timeout_s=0.5)
    await driver.reset()
    world.proxy.hold("reply")
    with pytest.raises(CallTimeoutError):
        await driver.step(mark="answered")
    await world.seen("step", mark="answered", phase="end")
    world.proxy.heal()
    seen = await driver.settle()
    assert seen is not None
    assert seen["mark"] == "answered"
    assert await driver.settle() is None
    assert [(await driver.step())["count"] for _ in range(3)] == [2, 3, 4]


@pytest.mark.guarantee("G1", "G3", "G6", servers=V1)
async def test_a_timeout_during_the_resume(world: World) -> None:
    """Of the call that was under way nobody knows; one made meanwhile was not sent. Both are sorted out afterwards."""
    driver, gate = world.driver(step_timeout_s=1.0), world.gate()
    await driver.reset()
    step = asyncio.create_task(driver.step("block", gate.path, mark="under-way"))
    await world.seen("step", mark="under-way")
    world.proxy.refuse()
    world.proxy.cut()
    with pytest.raises(CallTimeoutError) as late:
        await step
    assert late.value.outcome is Outcome.UNKNOWN
    with pytest.raises(CallTimeoutError) as unsent:
        await driver.step(timeout_s=0.2)
    assert unsent.value.outcome is Outcome.NOT_APPLIED
    world.proxy.heal()
    await world.after_giving_up(driver, "under-way", gate)
    assert driver.client.session.losses == 0


@pytest.mark.parametrize("reachable", [True, False])
@pytest.mark.guarantee("G1", "G6", "G8", servers=V1)
async def test_a_reset_while_the_connection_is_gone(world: World, reachable: bool) -> None:
    """It comes back to the session if that can be reached in its time; else the episode begins in a new one."""
    driver = world.driver(connect_timeout_s=30.0 if reachable else 1.0)
    await driver.reset()
    await driver.step()
    if reachable:
        world.proxy.refuse()
        world.proxy.cut()
        await driver.noticed()
        reset = asyncio.create_task(driver.reset())
        await asyncio.sleep(0.1)
        world.proxy.heal()
        assert (await reset)["env"] == world.oracle.envs()[0]
        assert len(world.oracle.envs()) == 1
    else:
        world.proxy.refuse()
        world.proxy.cut()
        await driver.noticed()
        reset = asyncio.create_task(driver.reset())
        async with asyncio.timeout(30):
            while not driver.client.session.losses:
                await asyncio.sleep(0.01)
        world.proxy.heal()
        again = await reset
        assert again["env"] == world.oracle.envs()[1]
        await world.seen("close", env=world.oracle.envs()[0])  # it released the old one
    assert (await driver.step())["count"] == 1


@pytest.mark.guarantee("G3", "G6", "G8", servers=V1)
async def test_close_with_a_call_in_flight_ends_the_session_for_good(world: World) -> None:
    driver, gate = world.driver(), world.gate()
    first = await driver.reset()
    step = asyncio.create_task(driver.step("block", gate.path))
    await world.seen("step")
    await driver.close()
    with pytest.raises(SessionClosedError) as closed:
        await step
    assert closed.value.outcome is Outcome.UNKNOWN
    gate.open()
    await world.seen("close", env=first["env"])


@pytest.mark.guarantee("G8", "G12", servers=V1)
async def test_close_while_the_connection_is_gone_leaves_no_lease(world: World) -> None:
    driver = world.driver()
    first = await driver.reset()
    world.proxy.refuse()
    world.proxy.cut()
    await driver.noticed()
    world.proxy.heal()
    await driver.close()
    await world.seen("close", env=first["env"])


# ---------------------------------------------------------------- cancel()


async def give_up(world: World, driver: Driver, mark: str) -> float:
    """Give up a step of ten seconds; when it began."""
    began = time.monotonic()
    with pytest.raises(CallTimeoutError):
        await driver.step("nap", 10.0, mark=mark, timeout_s=0.3)
    return began


@pytest.mark.server(counting_cancel=1)
@pytest.mark.guarantee("G3", "G6", servers=V1)
async def test_the_cancel_hook_ends_a_step_of_ten_seconds_before_half_of_it(world: World) -> None:
    driver = world.driver()
    await driver.reset()
    began = await give_up(world, driver, "hooked")
    seen = await driver.settle()
    assert time.monotonic() - began < 5
    assert seen is not None
    assert seen["mark"] == "hooked"
    assert (await driver.step())["count"] == 2


@pytest.mark.server(counting_async=1)
@pytest.mark.guarantee("G3", "G6", servers=V1)
async def test_the_step_of_an_environment_that_awaits_is_cancelled(world: World) -> None:
    world.mixed_threads = True
    driver = world.driver()
    await driver.reset()
    began = time.monotonic()
    with pytest.raises(CallTimeoutError):
        await driver.step("sleep", 10.0, mark="awaiting", timeout_s=0.3)
    with pytest.raises(OutcomeUnknownError) as unknown:
        await driver.settle()
    assert time.monotonic() - began < 5
    assert unknown.value.outcome is Outcome.UNKNOWN
    assert (await driver.step())["count"] == 1


@pytest.mark.guarantee("G3", "G6", servers=V1)
async def test_without_a_hook_the_step_goes_on_and_settle_has_its_result(world: World) -> None:
    driver, gate = world.driver(), world.gate()
    await driver.reset()
    with pytest.raises(CallTimeoutError):
        await driver.step("block", gate.path, mark="unhooked", timeout_s=0.3)
    with pytest.raises(CallTimeoutError):
        await driver.settle(timeout_s=0.3)
    gate.open()
    seen = await driver.settle()
    assert seen is not None
    assert seen["mark"] == "unhooked"
    assert (await driver.step())["count"] == 2


# ---------------------------------------------------------------- slots


@pytest.mark.server(own=True, counting_capacity=1, evict_after_s=30)
@pytest.mark.guarantee("G6", "G8", hazards=("H10",), servers=V1)
async def test_ones_own_lease_never_locks_one_out(world: World) -> None:
    """Capacity 1, a reset that gave up on the old session, and leases that are safe from others for half a minute."""
    driver = world.driver(connect_timeout_s=0.5, reset_timeout_s=20.0)
    await driver.reset()
    world.proxy.refuse()
    world.proxy.cut()
    await driver.noticed()
    begin = time.monotonic()
    reset = asyncio.create_task(driver.reset())
    async with asyncio.timeout(15):
        while not driver.client.session.losses:
            await asyncio.sleep(0.01)
    world.proxy.heal()
    again = await reset
    assert time.monotonic() - begin < 20
    assert again["env"] == world.oracle.envs()[1]


TRAINER = (
    "import sys; from openenv import GenericEnvClient\n"
    "games = [GenericEnvClient(base_url=sys.argv[1]).sync() for _ in range(4)]\n"
    "for game in games: game.reset()\n"
    "print('playing', flush=True); sys.stdin.read()"
)


@pytest.mark.server(own=True, counting_capacity=4, evict_after_s=1.0)
@pytest.mark.guarantee("G8", "G12", servers=V1)
async def test_a_trainer_that_was_killed_has_its_slots_again_after_the_eviction_time(world: World) -> None:
    command = [sys.executable, "-c", TRAINER, world.server.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as trainer:
        assert trainer.stdout is not None
        assert await world.wait(trainer.stdout.readline) == b"playing\n"
        trainer.send_signal(signal.SIGKILL)
    begin = time.monotonic()
    games = [world.driver(direct=True) for _ in range(4)]
    await asyncio.gather(*(game.reset() for game in games))
    assert time.monotonic() - begin >= 0.9  # not before it: the trainer might have come back
    first_closed = world.oracle.of("close", phase="end")[0].time
    last_reset = world.oracle.of("reset", phase="end")[-1].time
    assert last_reset - first_closed < 5  # and all of them with the first; a lease is kept for ten minutes
    assert len(world.oracle.of("close")) == 4
    for game in games:
        assert (await game.step())["count"] == 1


@pytest.mark.server(own=True, counting_capacity=1)
@pytest.mark.guarantee("G8", "G12", servers=V1)
async def test_a_client_that_does_not_use_resume_leaves_no_lease(world: World) -> None:
    driver = world.driver(resume=False)
    first = await driver.reset()
    world.proxy.cut()
    with pytest.raises(SessionLostError):
        await driver.step()
    await world.seen("close", env=first["env"])
    await driver.reset()
    assert driver.client.features == {"seq", "cancel"}


# ---------------------------------------------------------------- size, restart, drain


@pytest.mark.server(own=True, max_reply_bytes=100_000)
@pytest.mark.guarantee("G2", "G3", "G10", servers=V1)
async def test_a_reply_that_is_too_large_to_be_kept_is_an_error_after_the_resume(world: World) -> None:
    driver = world.driver()
    first = await driver.reset()
    world.proxy.cut_on_reply()
    with pytest.raises(MessageTooLargeError) as large:
        await driver.step("big", 300_000, mark="large")
    assert large.value.outcome is Outcome.APPLIED
    assert (await driver.step())["env"] == first["env"]
    assert (await driver.step())["count"] == 3
    assert world.oracle.times("large") == 1


@pytest.mark.server(own=True)
@pytest.mark.guarantee("G1", "G5", servers=V1)
async def test_a_server_that_was_restarted_says_so(world: World) -> None:
    driver = world.driver()
    await driver.reset()
    await world.wait(world.server.restart)
    for call in (driver.step, driver.state):
        with pytest.raises(SessionLostError) as lost:
            await call()
        assert (lost.value.reason, lost.value.outcome) == ("epoch", Outcome.NOT_APPLIED)
    await driver.reset()
    assert (await driver.step())["count"] == 1
    world.abandoned = True  # the killed process closed nothing


@pytest.mark.server(own=True, drain_grace_s=5)
@pytest.mark.guarantee("G5", "G8", servers=V1)
async def test_a_drain_is_final(world: World) -> None:
    """A client that is told 4002 does not come back for its session."""
    driver = world.driver()
    first = await driver.reset()
    world.server.terminate()
    await driver.noticed()
    for call in (driver.step, driver.state):
        with pytest.raises(SessionLostError) as lost:
            await call()
        assert (lost.value.reason, lost.value.close_code) == ("draining", 4002)
    assert await world.wait(world.server.wait, 30) in (0, -15)
    assert world.oracle.closes(first["env"]) == 1
    assert world.proxy.accepted == 1
