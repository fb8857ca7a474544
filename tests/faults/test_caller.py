"""The caller misbehaves: cancels, is interrupted, shares its client, forks it, drops it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from types import FrameType

import pytest

from faults.harness import Driver, Interrupted, World, check_error
from openenv import GenericEnvClient
from openenv.core.exceptions import (
    CallTimeoutError,
    ForeignLoopError,
    OpenEnvError,
    Outcome,
    SessionClosedError,
    SessionLostError,
)

ASYNC = ("async",)
SYNC = ("sync",)


@pytest.mark.guarantee("G1", "G2", "G3", "G4", hazards=("H3", "H12"), clients=ASYNC)
async def test_wait_for_around_a_step_then_the_next_call(world: World) -> None:
    driver, gate = world.driver(), world.gate()
    await driver.reset()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(driver.step("block", gate.path, mark="given-up"), 0.2)
    for call in (driver.step, driver.state):
        with pytest.raises(SessionLostError) as lost:
            await call()
    assert lost.value.reason == "cancelled"
    gate.open()
    await world.seen("step", mark="given-up", phase="end")
    await driver.reset()
    assert (await driver.step())["count"] == 1
    assert world.oracle.times("given-up") == 1


@pytest.mark.guarantee("G1", "G2", "G4", hazards=("H7", "H13"), clients=ASYNC)
async def test_cancel_while_a_large_send_is_blocked(world: World) -> None:
    driver = world.driver()
    await driver.reset()
    world.proxy.hold("request")
    action = os.urandom(6_000_000).hex()  # 12 MB: more than every buffer on the way
    step = asyncio.create_task(driver.step("echo", action, mark="stalled"))
    await world.wait(world.proxy.wait_for_held, "request")
    assert not step.done()
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    world.proxy.heal()
    for call in (driver.state, driver.step):
        with pytest.raises(SessionLostError):
            await call()
    await driver.reset()
    for _ in range(3):
        await driver.step()
    assert (await driver.state())["step_count"] == 3


@pytest.mark.guarantee("G1", "G4", "G6", hazards=("H13",))
async def test_a_send_that_is_blocked_has_the_deadline_of_its_call(world: World) -> None:
    driver = world.driver(step_timeout_s=0.5)
    await driver.reset()
    world.proxy.hold("request")
    with pytest.raises(CallTimeoutError):
        await driver.step("echo", "x" * 12_000_000, mark="stalled")
    world.proxy.heal()
    with pytest.raises(SessionLostError):
        await driver.step()
    await driver.reset()
    await driver.step()


@pytest.mark.server(counting_capacity=1)
@pytest.mark.parametrize("moment", ["before the handshake", "in the handshake"])
@pytest.mark.guarantee("G6", "G8", "G12", hazards=("H18",), clients=ASYNC)
async def test_cancel_during_connect_at_capacity_one_leaks_no_slot(world: World, moment: str) -> None:
    driver = world.driver()
    world.proxy.hold("request" if moment == "before the handshake" else "reply")
    connect = asyncio.create_task(driver.connect())
    await world.wait(world.proxy.wait_for_held, "both")
    connect.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connect
    world.proxy.heal()
    other = world.driver()
    async with asyncio.timeout(30):
        while True:  # upstream frees the slot of a handshake that came through when it sees the end
            with contextlib.suppress(OpenEnvError):
                await other.reset()
                break
    await other.step()


@pytest.mark.server(counting_capacity=1)
@pytest.mark.guarantee("G6", "G8", "G12", hazards=("H18",))
async def test_a_connect_that_timed_out_leaks_no_slot(world: World) -> None:
    driver = world.driver(connect_timeout_s=0.3)
    world.proxy.hold("reply")
    for _ in range(3):
        with pytest.raises(OpenEnvError):
            await driver.connect()
    world.proxy.heal()
    other = world.driver()
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(OpenEnvError):
                await other.reset()
                break
    await other.step()


# ---------------------------------------------------------------- signals


class Arm:
    """While ``armed``, a signal raises; one that comes late does nothing."""

    armed = True


@contextlib.contextmanager
def on_signal(number: int) -> Iterator[Arm]:
    arm = Arm()

    def handler(signum: int, frame: FrameType | None) -> None:
        if arm.armed:
            arm.armed = False
            raise Interrupted if number == signal.SIGALRM else KeyboardInterrupt

    before = signal.signal(number, handler)
    try:
        yield arm
    finally:
        arm.armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(number, before)


def later(number: int, delay: float) -> threading.Timer | None:
    """Deliver a signal to this process in ``delay`` seconds."""
    if number == signal.SIGALRM:
        signal.setitimer(signal.ITIMER_REAL, delay)
        return None
    timer = threading.Timer(delay, os.kill, (os.getpid(), number))
    timer.start()
    return timer


@pytest.mark.parametrize("number", [signal.SIGALRM, signal.SIGINT], ids=["alarm", "ctrl-c"])
@pytest.mark.guarantee("G1", "G2", "G3", "G4", "G5", hazards=("H5", "H6", "H32"), clients=SYNC)
def test_signals_in_a_blocking_step_at_many_moments(world: World, number: signal.Signals) -> None:
    driver = world.driver()
    client = driver.sync  # type: ignore[attr-defined]
    chance = random.Random(7)
    interrupted = lost = 0
    for round_no in range(120):
        if driver.episode is None:
            mark = driver.new_mark("r")
            driver.reset_answered(mark, client.reset(mark=mark))
        timer = None
        mark, made_in = driver.new_mark(), driver.episode
        with on_signal(number) as arm:
            try:
                timer = later(number, chance.uniform(0.0001, 0.004))
                result = client.step({"op": "sleep" if round_no % 2 else "inc", "arg": 0.001, "mark": mark})
                driver.step_answered(mark, made_in, result)
                arm.armed = False
            except (Interrupted, KeyboardInterrupt) as error:
                interrupted += 1
                if all(told.mark != mark for told in driver.told):
                    driver.step_failed(mark, made_in, error)
            finally:
                if timer is not None:
                    timer.join()
        try:
            mark = driver.new_mark()
            driver.step_answered(mark, made_in, client.step({"mark": mark}))
        except SessionLostError as error:
            check_error(error)
            lost += 1
            driver.step_failed(mark, made_in, error)
            driver.episode = None
    assert interrupted > 20
    assert 0 < lost < interrupted


@pytest.mark.guarantee("G1", "G3", "G4", hazards=("H6",), clients=SYNC)
async def test_a_signal_in_a_long_step_gives_its_answer_to_nobody(world: World) -> None:
    driver, gate = world.driver(), world.gate()
    await driver.reset()
    client = driver.sync  # type: ignore[attr-defined]
    with on_signal(signal.SIGALRM):
        later(signal.SIGALRM, 0.2)
        with pytest.raises(Interrupted):
            client.step({"op": "block", "arg": gate.path, "mark": "long"})
    gate.open()
    await world.seen("step", mark="long", phase="end")
    for call in (driver.step, driver.state):
        with pytest.raises(SessionLostError):
            await call()
    await driver.reset()
    for _ in range(3):
        await driver.step()


# ---------------------------------------------------------------- sharing


@pytest.mark.guarantee("G2", "G4", "G7", hazards=("H4", "H5"))
async def test_two_callers_step_at_once(world: World) -> None:
    driver = world.driver()
    await driver.reset()

    async def walk() -> list[int]:
        return [(await driver.step())["count"] for _ in range(25)]

    one, other = await asyncio.gather(walk(), walk())
    assert sorted(one + other) == list(range(1, 51))
    assert one == sorted(one)
    assert other == sorted(other)


@pytest.mark.guarantee("G4", "G7", hazards=("H4", "H5"))
async def test_a_state_poller_beside_a_stepping_caller(world: World) -> None:
    driver = world.driver()
    first = await driver.reset()
    over = asyncio.Event()

    async def poll() -> int:
        polls = 0
        while not over.is_set():
            assert (await driver.state())["env"] == first["env"]
            polls += 1
        return polls

    poller = asyncio.create_task(poll())
    assert [(await driver.step())["count"] for _ in range(40)] == list(range(1, 41))
    over.set()
    assert await poller > 10


@pytest.mark.guarantee("G2", "G4", "G7", hazards=("H4", "H5"))
async def test_eight_callers_on_one_client(world: World) -> None:
    driver = world.driver()
    await driver.reset()

    async def walk() -> list[int]:
        return [(await driver.step())["count"] for _ in range(12)]

    counts = await asyncio.gather(*(walk() for _ in range(8)))
    assert sorted(itertools.chain(*counts)) == list(range(1, 97))


@pytest.mark.guarantee("G2", "G3", "G5", "G7", hazards=("H4", "H5"))
async def test_eight_callers_lose_their_session_together(world: World) -> None:
    driver, gate = world.driver(), world.gate()
    await driver.reset()
    calls = [asyncio.create_task(driver.step("block", gate.path)) for _ in range(8)]
    await world.seen("step")
    world.proxy.cut()
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(error, SessionLostError) for error in errors), errors
    outcomes = sorted(error.outcome for error in errors)
    assert outcomes == sorted([Outcome.UNKNOWN] + 7 * [Outcome.NOT_APPLIED])


@pytest.mark.guarantee("G7", "G8", "G12", hazards=("H3", "H18"))
async def test_three_first_calls_race_for_one_session(world: World) -> None:
    driver = world.driver()
    await asyncio.gather(driver.step(), driver.state(), driver.step())
    assert len(world.oracle.envs()) == 1
    assert world.proxy.accepted == 1
    await driver.close()
    await world.wait(world.oracle.wait_for_all_closed)


@pytest.mark.guarantee("G1", "G4", "G7")
async def test_a_step_queued_behind_a_reset_acts_in_the_episode_it_was_made_for(world: World) -> None:
    """Three tasks: a step in flight, a cut, a reset, and a step that was made before the reset."""
    driver, gate = world.driver(), world.gate()
    await driver.reset()
    step = asyncio.create_task(driver.step("block", gate.path))
    await world.seen("step")
    reset = asyncio.create_task(driver.reset())
    await asyncio.sleep(0)
    stale = asyncio.create_task(driver.step(mark="stale"))
    await asyncio.sleep(0.05)
    world.proxy.cut()
    with pytest.raises(SessionLostError):
        await step
    await reset
    with pytest.raises(SessionLostError):
        await stale
    assert world.oracle.times("stale") == 0


# ---------------------------------------------------------------- closing


@pytest.mark.guarantee("G3", "G6", "G8")
async def test_close_with_a_step_in_flight_does_not_wait_for_it(world: World) -> None:
    driver, gate = world.driver(), world.gate()
    await driver.reset()
    step = asyncio.create_task(driver.step("block", gate.path, mark="running"))
    await world.seen("step", mark="running")
    await driver.close()  # the gate is shut: a close that waited for the step would never return
    with pytest.raises(SessionClosedError) as closed:
        await step
    assert closed.value.outcome is Outcome.UNKNOWN


@pytest.mark.guarantee("G1", "G5", hazards=("H3",))
async def test_no_call_after_close_opens_anything(world: World) -> None:
    driver = world.driver()
    await driver.reset()
    await driver.step()
    await driver.close()
    for call in (driver.step, driver.state, driver.step):
        with pytest.raises(SessionClosedError):
            await call()
    assert world.proxy.accepted == 1
    assert len(world.oracle.envs()) == 1
    await driver.reset()
    assert (await driver.step())["count"] == 1


@pytest.mark.guarantee("G1", "G5", "G12", hazards=("H3",), clients=ASYNC)
async def test_a_child_session_ends_with_its_parent(world: World) -> None:
    parent = world.driver()
    await parent.reset()
    child = Driver(f"{parent.name}.child", await parent.client.new_session())
    world.drivers.append(child)
    seen = await child.reset()
    await child.step()
    await parent.close()
    with pytest.raises(SessionClosedError):
        await child.step()
    await world.seen("close", env=seen["env"])
    assert len(world.oracle.envs()) == 2


@pytest.mark.guarantee("G1", "G7", clients=ASYNC)
async def test_a_child_session_survives_the_loss_of_its_parent(world: World) -> None:
    parent = world.driver()
    await parent.reset()
    child = Driver(f"{parent.name}.child", await parent.client.new_session())
    world.drivers.append(child)
    await child.reset()
    world.proxy.cut("rst", 1)
    await parent.noticed()
    with pytest.raises(SessionLostError):
        await parent.step()
    assert (await child.step())["count"] == 1


# ---------------------------------------------------------------- loops, processes, the end


@pytest.mark.guarantee("G1", "G7", hazards=("H3",), clients=ASYNC)
async def test_a_second_event_loop_is_refused_before_anything_is_sent(world: World) -> None:
    driver = world.driver()
    first = await driver.reset()
    sent = world.proxy.passed("request")

    def elsewhere() -> None:
        with pytest.raises(ForeignLoopError) as foreign:
            asyncio.run(_await(driver.client.step({"mark": "foreign"})))
        check_error(foreign.value)

    await world.wait(elsewhere)
    assert world.proxy.passed("request") == sent
    assert (await driver.step())["env"] == first["env"]


async def _await(call: object) -> object:
    return await call  # type: ignore[misc]


@pytest.mark.guarantee("G1", "G5", "G7", "G12", hazards=("H3",), clients=ASYNC)
async def test_a_session_whose_event_loop_was_closed_is_lost(world: World) -> None:
    driver = world.driver()
    first = await world.wait(lambda: asyncio.run(driver.reset()))
    for call in (driver.step, driver.state):
        with pytest.raises(SessionLostError) as lost:
            await call()
    assert lost.value.reason == "loop_closed"
    await world.seen("close", env=first["env"])
    with warnings.catch_warnings():  # asyncio complains of every transport that outlived its loop
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    await driver.reset()
    assert (await driver.step())["count"] == 1


@pytest.mark.guarantee("G1", "G7", hazards=("H3", "H33"), clients=ASYNC)
async def test_blocking_use_of_a_session_that_lives_on_a_loop_is_refused(world: World) -> None:
    driver = world.driver()
    first = await driver.reset()
    with pytest.raises(ForeignLoopError):
        await world.wait(driver.client.sync().step, {"mark": "wrong face"})
    with pytest.raises(ForeignLoopError):
        await world.wait(lambda: driver.client.step({"mark": "bare call"}))
    assert (await driver.step())["env"] == first["env"]
    assert world.oracle.envs() == [first["env"]]


@pytest.mark.guarantee("G2", "G7", hazards=("H8",), clients=ASYNC)
async def test_a_call_that_is_awaited_twice_runs_once(world: World) -> None:
    driver = world.driver()
    await driver.reset()
    call = driver.client.step({"mark": "once"})
    first, second = await call, await call
    assert first.observation["count"] == second.observation["count"] == 1
    assert world.oracle.times("once") == 1


@pytest.mark.guarantee("G2", "G7", hazards=("H8",), clients=ASYNC)
async def test_a_reset_whose_result_nobody_looks_at_is_sent(world: World) -> None:
    """A notebook: synchronous code under a running loop."""
    client = GenericEnvClient(base_url=world.proxy.url)
    handle = client.reset(mark="unseen")
    assert client.step({"mark": "seen"}).observation["count"] == 1  # touching it runs it, on the I/O thread
    assert world.oracle.episode_of("seen") == "unseen"
    assert handle.observation["mark"] == "unseen"
    assert len(world.oracle.of("reset", mark="unseen")) == 1
    client.close().result()


@pytest.mark.guarantee("G8", "G12")
async def test_a_dropped_client_lets_its_session_go(world: World) -> None:
    driver = world.driver()
    seen = await driver.reset()
    world.drivers.remove(driver)
    del driver

    def is_closed() -> bool:
        gc.collect()  # the thread that made the last call may have held on to it a moment longer
        return world.oracle.closes(seen["env"]) == 1

    await world.wait(world.oracle.wait_until, is_closed)


SCRIPT = """
import asyncio, os, sys
from openenv import GenericEnvClient
from openenv.core.exceptions import ForkedClientError
url, kind, what = sys.argv[1:]
client = GenericEnvClient(base_url=url, io="thread" if kind == "sync" else "auto")
sync = client.sync()
runner = asyncio.Runner()
def run(name, *args, **kwargs):
    if kind == "sync":
        return getattr(sync, name)(*args, **kwargs)
    async def call():
        return await getattr(client, name)(*args, **kwargs)
    return runner.run(call())
run("reset", mark=what)
run("step", {"mark": what + " one"})
if what == "fork":
    child = os.fork()
    if not child:
        try:
            for name, args in (("step", [{"mark": "child"}]), ("state", []), ("reset", []), ("connect", [])):
                try:
                    run(name, *args)
                except ForkedClientError as error:
                    assert str(error)
                else:
                    os._exit(2)
            del client, sync
            import gc; gc.collect()
        except BaseException:
            import traceback; traceback.print_exc()
            os._exit(3)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run("step", {"mark": "parent"}).observation["count"] == 2
    run("close")
runner.close()
"""


def play(world: World, what: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT, world.proxy.url, world.link.client, what]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.mark.guarantee("G1", "G7", "G12")
async def test_a_forked_child_cannot_touch_its_parents_session(world: World) -> None:
    script = await world.wait(play, world, "fork")
    assert (script.returncode, script.stderr) == (0, "")
    assert world.oracle.times("child") == 0
    assert world.oracle.episode_of("parent") == "fork"
    await world.wait(world.oracle.wait_for_all_closed)
    assert len(world.oracle.envs()) == 1


@pytest.mark.guarantee("G8", "G12")
async def test_an_interpreter_that_exits_with_a_live_client_lets_its_session_go(world: World) -> None:
    script = await world.wait(play, world, "exit")
    assert (script.returncode, script.stderr) == (0, "")
    await world.wait(world.oracle.wait_for_all_closed)
    assert len(world.oracle.envs()) == 1
