"""The connection is lost: cut, reset, black-holed, or the server is gone."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from contextlib import nullcontext

import pytest

from faults.harness import Driver, World
from openenv.core.exceptions import (
    CallTimeoutError,
    CapacityError,
    ConnectError,
    MessageTooLargeError,
    Outcome,
    SessionLostError,
)

PLAIN = ("ours", "upstream")

cut_modes = pytest.mark.parametrize("mode", ["rst", "fin"])


@cut_modes
@pytest.mark.parametrize("noticed", ["while idle", "by the send"])
@pytest.mark.guarantee("G1", "G5", hazards=("H1", "H2", "H3", "H15", "H16"))
async def test_cut_between_two_steps(world: World, mode: str, noticed: str) -> None:
    driver = world.driver()
    first = await driver.reset()
    await driver.step()
    world.proxy.cut(mode)  # blocks this loop: an async client has not read the end yet
    if noticed == "while idle":
        await driver.noticed()
    for call in (driver.step, driver.step, driver.state):
        lost = await world.cut_short(call())
        assert lost is None or lost.steps == 1
    assert lost is None or lost.outcome is Outcome.NOT_APPLIED
    again = await world.reset_after(driver)
    assert (await driver.state())["env"] == again["env"]
    assert world.oracle.envs() == list(dict.fromkeys([first["env"], again["env"]]))


@cut_modes
@pytest.mark.guarantee("G1", "G5", hazards=("H1", "H3"))
async def test_cut_between_reset_and_first_step(world: World, mode: str) -> None:
    driver = world.driver()
    first = await driver.reset(episode_id="first")
    world.proxy.cut(mode)
    lost = await world.cut_short(driver.step())
    assert lost is None or lost.episode_id == "first"
    assert world.oracle.envs() == [first["env"]]
    await world.reset_after(driver)


@cut_modes
@pytest.mark.guarantee("G1", "G5", hazards=("H3",))
async def test_state_after_a_cut_is_never_that_of_a_fresh_environment(world: World, mode: str) -> None:
    driver = world.driver()
    first = await driver.reset()
    world.proxy.cut(mode)
    for _ in range(2):
        await world.cut_short(driver.state())
    assert world.oracle.envs() == [first["env"]]
    assert len(world.oracle.of("state")) == (2 if world.keeps_sessions else 0)


@cut_modes
@pytest.mark.guarantee("G2", "G3", "G5", hazards=("H2", "H9"))
async def test_cut_after_delivery_and_before_the_reply(world: World, mode: str) -> None:
    driver = world.driver()
    await driver.reset()
    world.proxy.cut_on_reply(mode)
    await world.cut_short(driver.step(mark="delivered"), outcome=Outcome.UNKNOWN)
    await world.cut_short(driver.step(), outcome=Outcome.NOT_APPLIED)
    await world.reset_after(driver)
    assert world.oracle.times("delivered") == 1


@cut_modes
@pytest.mark.guarantee("G2", "G3", "G4", "G5", hazards=("H2", "H9"))
async def test_cut_inside_the_reply(world: World, mode: str) -> None:
    driver = world.driver()
    await driver.reset()
    for offset in (1, 3, 40):
        world.proxy.cut_after(offset, "reply", mode)
        await world.cut_short(driver.step(mark=f"cut-{offset}"), outcome=Outcome.UNKNOWN)
        assert world.oracle.times(f"cut-{offset}") == 1
        await world.reset_after(driver)


@cut_modes
@pytest.mark.guarantee("G2", "G3", "G5")
async def test_cut_inside_the_request(world: World, mode: str) -> None:
    driver = world.driver()
    await driver.reset()
    for offset in (1, 5, 60):
        world.proxy.cut_after(offset, "request", mode)
        await world.cut_short(driver.step(mark=f"cut-{offset}"), outcome=Outcome.UNKNOWN)
        await world.reset_after(driver)
        assert world.oracle.times(f"cut-{offset}") == (1 if world.keeps_sessions else 0)


@pytest.mark.guarantee("G5", "G6", hazards=("H11", "H12"))
async def test_a_dead_peer_is_noticed_by_pings_and_nothing_stalls_after_that(world: World) -> None:
    quick = world.driver(websocket_ping_interval_s=0.7, websocket_ping_timeout_s=0.7)
    slow = world.driver(websocket_ping_interval_s=3.0, websocket_ping_timeout_s=3.0)
    for driver in (quick, slow):
        await driver.reset()
    world.proxy.black_hole()
    begin = time.monotonic()

    steps = [asyncio.create_task(driver.step()) for driver in (quick, slow)]

    async def until_noticed(driver: Driver) -> float:
        await driver.noticed()
        return time.monotonic() - begin

    quick_s, slow_s = await asyncio.gather(until_noticed(quick), until_noticed(slow))
    assert quick_s < slow_s / 2  # 1.4 s against 6 s: a close timeout added to both would spoil the ratio
    if world.keeps_sessions:
        world.proxy.heal()
    for step in steps:
        await world.cut_short(step, outcome=Outcome.UNKNOWN)
    begin = time.monotonic()
    for driver in (quick, slow):
        await world.cut_short(driver.step())
    assert time.monotonic() - begin < quick_s
    world.proxy.heal()
    await world.reset_after(quick)


@pytest.mark.guarantee("G5", "G6", hazards=("H11", "H12", "H13"))
async def test_after_a_timeout_in_a_black_hole_neither_call_nor_close_stalls(world: World) -> None:
    driver = world.driver(step_timeout_s=1.0)
    await driver.reset()
    world.proxy.black_hole()
    begin = time.monotonic()
    with pytest.raises(CallTimeoutError) as timeout:
        await driver.step()
    waited = time.monotonic() - begin
    assert timeout.value.outcome is Outcome.UNKNOWN
    assert timeout.value.setting == "step_timeout_s"
    begin = time.monotonic()
    with pytest.raises(CallTimeoutError if world.keeps_sessions else SessionLostError) as next_call:
        await driver.step(timeout_s=0.1)
    assert next_call.value.outcome is Outcome.NOT_APPLIED
    await driver.close()
    assert time.monotonic() - begin < waited


@pytest.mark.guarantee("G6", hazards=("H11",))
async def test_close_in_a_black_hole_does_not_wait_for_the_peer(world: World) -> None:
    waiting, closing = world.driver(step_timeout_s=3.0), world.driver()
    await waiting.reset()
    await closing.reset()
    world.proxy.black_hole()
    timeout = asyncio.create_task(waiting.step())
    await closing.close()
    assert not timeout.done()  # a second against three
    with pytest.raises(CallTimeoutError):
        await timeout


@pytest.mark.guarantee("G3", "G4", "G5", hazards=("H3", "H4", "H10", "H12"))
async def test_a_reply_later_than_the_timeout_is_given_to_nobody_else(world: World) -> None:
    driver, gate = world.driver(step_timeout_s=0.4), world.gate()
    await driver.reset()
    with pytest.raises(CallTimeoutError) as late:
        await driver.step("block", gate.path, mark="late")
    assert late.value.outcome is Outcome.UNKNOWN
    await world.after_giving_up(driver, "late", gate)
    await driver.reset()
    for _ in range(3):
        await driver.step()
    assert world.oracle.times("late") == 1


@pytest.mark.guarantee("G3", "G4", "G5", hazards=("H4",))
async def test_a_reply_that_was_on_its_way_at_the_timeout_is_given_to_nobody(world: World) -> None:
    driver = world.driver(step_timeout_s=0.4)
    await driver.reset()
    world.proxy.hold("reply")
    with pytest.raises(CallTimeoutError):
        await driver.step(mark="held")
    world.proxy.heal()
    await driver.reset()
    await driver.step()
    await driver.state()
    assert world.oracle.times("held") == 1


@pytest.mark.server(own=True)
@pytest.mark.guarantee("G1", "G5", hazards=("H27b",))
async def test_server_killed_and_restarted_on_the_same_port(world: World) -> None:
    driver = world.driver()
    await driver.reset()
    await driver.step()
    await world.wait(world.server.restart)
    for _ in range(2):
        with pytest.raises(SessionLostError):
            await driver.step()
    again = await driver.reset()
    assert again["env"].startswith(f"{world.server.pid}.")
    assert (await driver.step())["count"] == 1
    world.abandoned = True  # the killed process closed nothing


@pytest.mark.server(own=True)
@pytest.mark.guarantee("G1", "G3", "G5")
async def test_server_killed_under_a_step(world: World) -> None:
    driver, gate = world.driver(step_timeout_s=3.0), world.gate()
    await driver.reset()
    step = asyncio.create_task(driver.step("block", gate.path, mark="killed"))
    await world.seen("step", mark="killed")
    world.server.kill()
    with pytest.raises(CallTimeoutError if world.keeps_sessions else SessionLostError) as lost:
        await step  # a server that is gone may come back: only the caller's own time ends that hope
    assert lost.value.outcome is Outcome.UNKNOWN
    with pytest.raises(CallTimeoutError if world.keeps_sessions else ConnectError):
        await driver.reset(timeout_s=0.5)
    with pytest.raises(CallTimeoutError if world.keeps_sessions else SessionLostError) as refused:
        await driver.step(timeout_s=0.5)
    assert refused.value.outcome is Outcome.NOT_APPLIED
    assert world.oracle.times("killed") == 1


@pytest.mark.server(own=True)
@pytest.mark.guarantee("G3", "G6")
async def test_server_stopped_for_less_than_the_timeouts(world: World) -> None:
    driver = world.driver(direct=True, websocket_ping_interval_s=5, websocket_ping_timeout_s=20)
    first = await driver.reset()
    world.server.suspend()
    step = asyncio.create_task(driver.step())
    await asyncio.sleep(0.3)
    assert not step.done()
    world.server.resume()
    assert (await step)["env"] == first["env"]
    assert (await driver.step())["count"] == 2


@pytest.mark.server(own=True)
@pytest.mark.guarantee("G1", "G3", "G5", "G6", hazards=("H11",))
async def test_server_stopped_for_longer_than_the_timeouts(world: World) -> None:
    driver = world.driver(direct=True, websocket_ping_interval_s=0.5, websocket_ping_timeout_s=2.5)
    await driver.reset()
    world.server.suspend()
    step = asyncio.create_task(driver.step(mark="stopped"))
    await driver.noticed()
    world.server.resume()
    await world.cut_short(step, outcome=Outcome.UNKNOWN)
    await world.reset_after(driver)
    assert world.oracle.times("stopped") <= 1


@pytest.mark.server(own=True, arguments=("--ws-ping-interval", "0.3", "--ws-ping-timeout", "0.3"))
@pytest.mark.guarantee("G1", "G5", "G6", servers=("ours", "upstream"))
async def test_a_trainer_that_blocks_longer_than_the_servers_pings(world: World) -> None:
    driver, on_thread, on_loop = world.driver(), world.driver(io="thread", kind="async"), world.driver(kind="async")
    unkept = world.driver(kind="async", resume=False)
    for each in (driver, on_thread, on_loop, unkept):
        await each.reset()
    world.oracle.wait_for("close", env=unkept.env)  # blocks this loop until the server has given up on it
    for each in (on_loop, driver) if not world.keeps_sessions and driver.kind == "async" else ():
        world.oracle.wait_for("close", env=each.env)  # and on these, which a plain server does not keep
    await world.cut_short(unkept.step(), kept=False)
    await world.cut_short(on_loop.step())
    await world.cut_short(on_thread.step(), kept=True)
    await world.cut_short(driver.step(), kept=True if driver.kind == "sync" else None)


@cut_modes
@pytest.mark.guarantee("G1", "G5")
async def test_a_loss_after_done_is_a_loss(world: World, mode: str) -> None:
    driver = world.driver()
    await driver.reset()
    assert (await driver.step("done"))["done"]
    world.proxy.cut(mode)
    for call in (driver.step, driver.state):
        await world.cut_short(call())
    await world.reset_after(driver)


@cut_modes
@pytest.mark.guarantee("G1", "G3", hazards=("H9",))
async def test_a_reset_whose_socket_dies_is_resumed_or_starts_over_in_a_new_session(world: World, mode: str) -> None:
    driver = world.driver()
    await driver.reset()
    await driver.step()
    world.proxy.cut_on_reply(mode)
    again = await driver.reset(mark="cut-reset")
    assert (await driver.step())["env"] == again["env"]
    assert len(world.oracle.of("reset", mark="cut-reset")) == (1 if world.keeps_sessions else 2)
    assert (await driver.step())["count"] == 2


@pytest.mark.guarantee("G1", "G3", "G6")
async def test_the_first_reset_of_a_client_survives_a_cut_of_its_handshake(world: World) -> None:
    driver = world.driver()
    world.proxy.cut_on_reply("rst")
    seen = await driver.reset()
    assert world.oracle.envs()[-1] == seen["env"]
    assert (await driver.step())["count"] == 1


@pytest.mark.server(counting_capacity=1)
@pytest.mark.guarantee("G6", "G8", hazards=("H10",), servers=PLAIN)
async def test_at_capacity_one_reset_waits_for_the_slot_of_the_old_session(world: World) -> None:
    driver, gate = world.driver(), world.gate()
    await driver.reset()
    step = asyncio.create_task(driver.step("block", gate.path, mark="slow"))
    await world.seen("step", mark="slow")
    world.proxy.cut()
    with pytest.raises(SessionLostError):
        await step
    reset = asyncio.create_task(driver.reset())
    await world.wait(world.proxy.wait_for_connections, 3)  # it was refused once, and came again
    assert not reset.done()
    gate.open()
    seen = await reset
    assert (await driver.step())["env"] == seen["env"]
    assert world.oracle.times("slow") == 1


@pytest.mark.server(counting_capacity=1)
@pytest.mark.guarantee("G5", "G6", "G8", hazards=("H10",), servers=PLAIN)
async def test_at_capacity_one_reset_says_that_the_slot_did_not_come_free(world: World) -> None:
    driver, gate = world.driver(), world.gate()
    await driver.reset()
    step = asyncio.create_task(driver.step("block", gate.path, mark="slow"))
    await world.seen("step", mark="slow")
    world.proxy.cut()
    with pytest.raises(SessionLostError):
        await step
    with pytest.raises((CapacityError, CallTimeoutError)) as full:
        await driver.reset(timeout_s=1.0)
    assert isinstance(full.value, CapacityError)
    with pytest.raises(SessionLostError):
        await driver.step()
    gate.open()
    await driver.reset()


@pytest.mark.guarantee("G5", "G9", "G10")
async def test_an_observation_over_the_clients_limit_costs_its_call_only(world: World) -> None:
    driver = world.driver(max_message_size_mb=0.1)
    first = await driver.reset()
    with pytest.raises(MessageTooLargeError) as large:
        await driver.step("big", 200_000, mark="large")
    assert large.value.outcome is Outcome.APPLIED
    assert large.value.limit == 100_000
    assert large.value.size is not None
    assert large.value.size > 200_000
    assert (await driver.step())["env"] == first["env"]
    assert (await driver.step())["count"] == 3
    assert world.oracle.times("large") == 1


@pytest.mark.guarantee("G1", "G5")
async def test_an_observation_far_over_the_clients_limit(world: World) -> None:
    driver = world.driver(max_message_size_mb=0.1)
    await driver.reset()
    with pytest.raises(MessageTooLargeError) as large:
        await driver.step("big", 3_000_000, mark="large")
    assert large.value.outcome is Outcome.APPLIED
    await world.cut_short(driver.step())  # a server that knows the limit does not send it
    await world.reset_after(driver)
    assert world.oracle.times("large") == 1


@pytest.mark.server(arguments=("--ws-max-size", "100000"))
@pytest.mark.guarantee("G1", "G3", "G5")
async def test_an_action_over_the_servers_limit(world: World) -> None:
    driver = world.driver(direct=True)  # a proxy that is reset while it writes loses the server's last words
    told = 0
    for attempt in range(5):
        await driver.reset()
        with pytest.raises((MessageTooLargeError, SessionLostError)) as failed:
            await driver.step("echo", "x" * 200_000, mark=f"large-{attempt}")
        if isinstance(failed.value, MessageTooLargeError):  # else the reset of its TCP connection was quicker
            told += 1
            assert failed.value.outcome is Outcome.NOT_APPLIED
            assert failed.value.size is not None
            assert failed.value.size > 200_000
        await world.cut_short(driver.step())
    assert told > 0
    await driver.reset()
    assert (await driver.step())["count"] == 1
    assert len(world.oracle.of("step")) == (6 if world.keeps_sessions else 1)


@pytest.mark.guarantee("G1", "G5", hazards=("H27", "H30"))
async def test_refused_reconnects_change_nothing_and_connect_clears_no_loss(world: World) -> None:
    driver = world.driver()
    first = await driver.reset()
    world.proxy.refuse("closed")
    world.proxy.cut()
    for _ in range(2):
        with pytest.raises((ConnectError, CallTimeoutError)):
            await driver.reset(timeout_s=0.4)
        with pytest.raises((SessionLostError, CallTimeoutError) if world.keeps_sessions else SessionLostError) as lost:
            await driver.step(timeout_s=0.2)  # the fate of a reset on the broken socket may still become known
        assert lost.value.outcome is Outcome.NOT_APPLIED
    world.proxy.heal()
    await driver.connect()
    with pytest.raises(SessionLostError):
        await driver.step()
    assert world.oracle.times(first["mark"]) == 0
    assert [event.mark for event in world.oracle.of("step")] == []
    await driver.reset()
    assert (await driver.step())["count"] == 1


@pytest.mark.parametrize("fault", ["closed", "rst", "silent"])
@pytest.mark.guarantee("G5", "G6", "G8")
async def test_a_server_that_cannot_be_reached_is_a_connect_error(world: World, fault: str) -> None:
    driver = world.driver(connect_timeout_s=0.6)
    if fault == "silent":
        world.proxy.black_hole()
    else:
        world.proxy.refuse(fault)
    for call in (driver.connect, driver.step, driver.state, driver.reset):
        with pytest.raises(ConnectError):
            await call()
    with pytest.raises(SessionLostError):  # the caller has asked for an episode that never came
        await driver.step()
    assert world.oracle.of("reset") == []
    assert world.oracle.of("step") == []
    world.proxy.heal()
    await driver.reset()
    assert (await driver.step())["count"] == 1


@pytest.mark.guarantee("G1", "G4")
async def test_delays_reorder_nothing(world: World) -> None:
    driver = world.driver()
    world.proxy.delay(0.05)
    await driver.reset()
    assert [(await driver.step())["count"] for _ in range(5)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.guarantee("G1", "G2", "G3", "G4", "G5", hazards=("H1", "H2", "H9"))
async def test_random_cuts_under_eight_players(world: World, seed: int) -> None:
    chance = random.Random(seed)
    players = [world.driver() for _ in range(8)]
    over = asyncio.Event()

    async def cut_at_random() -> None:
        while not over.is_set():
            await asyncio.sleep(chance.uniform(0.0, 0.04))
            number = chance.randint(1, max(1, await world.wait(lambda: world.proxy.accepted)))
            await world.wait(world.proxy.cut, chance.choice(["rst", "fin"]), number)

    async def play(player: object) -> int:
        answered = 0
        while answered < 40:
            try:
                await player.reset()  # type: ignore[attr-defined]
                for _ in range(10):
                    await player.step()  # type: ignore[attr-defined]
                    answered += 1
            except SessionLostError:
                assert not world.keeps_sessions
            except ConnectError:
                continue
        return answered

    cutter = asyncio.create_task(cut_at_random())
    assert min(await asyncio.gather(*map(play, players))) >= 40
    over.set()
    await cutter


@pytest.mark.parametrize("direction", ["request", "reply"])
@pytest.mark.guarantee("G1", "G2", "G3", "G4", "G5", hazards=("H2", "H9"))
async def test_cut_at_byte_after_byte_of_an_episode(world: World, direction: str) -> None:
    """From the handshake over the reset to the second step, at every 23rd byte."""
    driver = world.driver()
    await driver.reset()
    await driver.step()
    await driver.close()
    length = world.proxy.passed(direction)
    for offset in range(0, length, 23):
        world.proxy.heal()
        world.proxy.cut_after(offset, direction, "fin" if offset % 2 else "rst")
        driver = world.driver()
        with nullcontext() if world.keeps_sessions else contextlib.suppress(SessionLostError):
            await driver.reset()
            await driver.step()
        await driver.reset()
        await driver.step()
        await driver.close()
