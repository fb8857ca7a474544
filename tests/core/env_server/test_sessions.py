"""Sessions and their manager: slots, turns, ends, drain. No sockets here."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from openenv.core.env_server import sessions
from openenv.core.env_server.calls import CallError
from openenv.core.env_server.runner import EnvRunner
from openenv.core.env_server.sessions import EndReason, Session, SessionManager, Setup
from openenv.core.exceptions import (
    EnvironmentFactoryError,
    SessionCapacityError,
    SessionCreationError,
    SessionNotFoundError,
)
from openenv.core.session.server import State
from support.envs import CountEnv, fresh_env


@pytest.fixture
def env() -> Iterator[type[CountEnv]]:
    made = fresh_env()
    yield made
    made.release.set()


def manager(env: Any, max_sessions: int = 2, grace: float = 10.0) -> SessionManager:
    made = SessionManager(Setup(env, "CountEnv"), max_sessions=max_sessions, drain_grace_s=grace)
    made.start()
    return made


async def opened(sessions: SessionManager, **arguments: Any) -> Session:
    session = await sessions.open(**arguments)
    await session.ready()
    return session


async def sleep_in_env(runner: EnvRunner) -> bytes:
    def sleep(env: Any) -> bytes:
        env.log.add("asleep", env.env_no)
        env.release.wait(20)
        return b"slept"

    return await runner.on_thread(sleep)


async def note(runner: EnvRunner) -> bytes:
    def add(env: Any) -> bytes:
        env.log.add("noted", env.env_no)
        return b"noted"

    return await runner.on_thread(add)


async def came(env: type[CountEnv], event: str, count: int = 1) -> None:
    await asyncio.to_thread(env.log.wait_for, event, count)


async def test_a_slot_is_taken_before_the_constructor_and_free_after_close(env: type[CountEnv]) -> None:
    one = manager(env, 1)
    session = await one.open()
    assert one.active == 1
    with pytest.raises(SessionCapacityError) as caught:
        await one.open()
    assert (caught.value.active_sessions, caught.value.max_sessions) == (1, 1)
    await session.ready()
    session.end(EndReason.CLOSED)
    assert one.active == 1
    await session.closed
    assert one.active == 0
    assert [event["event"] for event in env.log.events] == ["init", "close"]


async def test_many_opens_at_once_never_exceed_capacity(env: type[CountEnv]) -> None:
    three = manager(env, 3)
    results = await asyncio.gather(*[opened(three) for _ in range(50)], return_exceptions=True)
    good = [one for one in results if isinstance(one, Session)]
    assert len(good) == len(env.log.of("init")) == 3
    assert all(isinstance(one, SessionCapacityError) for one in results if not isinstance(one, Session))
    await three.drain()


async def test_calls_take_turns_in_the_order_they_came(env: type[CountEnv]) -> None:
    one = manager(env)
    session = await opened(one)
    first = asyncio.create_task(session.call(sleep_in_env))
    second = asyncio.create_task(session.call(note))
    await came(env, "asleep")
    assert session.machine.state is State.RUNNING
    assert env.log.of("noted") == []
    env.release.set()
    assert await first == b"slept"
    assert await second == b"noted"
    await one.drain()


async def test_a_caller_that_gives_up_leaves_the_session_busy_until_the_call_has_returned(
    env: type[CountEnv],
) -> None:
    one = manager(env)
    session = await opened(one)
    caller = asyncio.create_task(session.call(sleep_in_env))
    await came(env, "asleep")
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await asyncio.sleep(0.01)
    assert session.machine.state is State.RUNNING
    following = asyncio.create_task(session.call(note))
    await asyncio.sleep(0.01)
    assert env.log.of("noted") == []
    env.release.set()
    assert await following == b"noted"
    await one.drain()


async def test_an_end_during_a_call_waits_for_it_and_refuses_the_next(env: type[CountEnv]) -> None:
    one = manager(env)
    session = await opened(one)
    running = asyncio.create_task(session.call(sleep_in_env))
    waiting = asyncio.create_task(session.call(note))
    await came(env, "asleep")
    session.end(EndReason.DROPPED)
    session.end(EndReason.CLOSED)
    assert await session.ending is EndReason.DROPPED
    with pytest.raises(SessionNotFoundError):
        one.get(session.id)
    env.release.set()
    assert await running == b"slept"
    with pytest.raises(SessionNotFoundError):
        await waiting
    await session.closed
    assert len(env.log.of("close")) == 1
    assert env.log.of("noted") == []


async def test_an_end_while_the_constructor_runs(env: type[CountEnv]) -> None:
    entered, go = threading.Event(), threading.Event()

    def make() -> CountEnv:
        entered.set()
        go.wait(20)
        return env()

    one = manager(make, 1)
    session = await one.open()
    await asyncio.to_thread(entered.wait, 20)
    session.end(EndReason.DROPPED)
    assert one.active == 1
    go.set()
    with pytest.raises(SessionCreationError):
        await session.ready()
    await session.closed
    assert [event["event"] for event in env.log.events] == ["init", "close"]


@pytest.mark.parametrize("error", [ValueError("private"), SystemExit(1)])
async def test_a_factory_that_raises_frees_its_slot(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    def make() -> CountEnv:
        raise error

    one = manager(make, 1)
    for _ in range(2):
        with pytest.raises(EnvironmentFactoryError) as caught:
            await opened(one)
        assert "private" not in str(caught.value)
    assert one.active == 0
    assert "the environment factory 'CountEnv' failed" in caplog.text


async def test_a_mistake_in_a_call_costs_only_the_call(env: type[CountEnv], caplog: pytest.LogCaptureFixture) -> None:
    async def broken(runner: EnvRunner) -> bytes:
        raise RuntimeError("ours")

    one = manager(env)
    session = await opened(one)
    with pytest.raises(CallError) as caught:
        await session.call(broken)
    assert caught.value.data == {"message": "Internal error", "code": "SESSION_ERROR", "applied": None}
    assert await session.call(note) == b"noted"
    await one.drain()


# ---------------------------------------------------------------- idle


async def test_silence_ends_a_session_and_speech_keeps_it(env: type[CountEnv]) -> None:
    one = manager(env)
    session = await opened(one, idle_timeout_s=3.0)
    loop = asyncio.get_running_loop()
    last = loop.time()
    for _ in range(7):
        await asyncio.sleep(0.5)
        last = loop.time()
        session.touch()
        assert not session.ending.done()
    assert await session.ending is EndReason.IDLE
    assert loop.time() - last >= 2.9
    await session.closed
    assert len(env.log.of("close")) == 1


async def test_a_running_call_is_never_idle(env: type[CountEnv]) -> None:
    one = manager(env)
    session = await opened(one, idle_timeout_s=0.05)
    running = asyncio.create_task(session.call(sleep_in_env))
    await came(env, "asleep")
    await asyncio.sleep(0.3)
    assert not session.ending.done()
    env.release.set()
    assert await running == b"slept"
    assert await session.ending is EndReason.IDLE


async def test_a_session_that_never_heard_anything_ends_and_one_that_did_stays(
    env: type[CountEnv], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openenv.core.env_server.session.SILENT_S", 0.1)
    two = manager(env)
    silent, spoken = await opened(two), await opened(two)
    await spoken.call(note)
    assert await silent.ending is EndReason.IDLE
    await asyncio.sleep(0.2)
    assert not spoken.ending.done()
    await two.drain()


# ---------------------------------------------------------------- drain


async def test_a_drain_closes_each_env_once_and_admits_nobody(env: type[CountEnv]) -> None:
    two = manager(env, 3)
    idle, busy = await opened(two), await opened(two)
    running = asyncio.create_task(busy.call(sleep_in_env))
    await came(env, "asleep")
    draining = asyncio.create_task(two.drain())
    await idle.closed
    with pytest.raises(SessionCreationError, match="shutting down"):
        await two.open()
    assert not draining.done()
    env.release.set()
    await draining
    assert await running == b"slept"
    assert two.active == 0
    assert len(env.log.of("close")) == 2


async def test_a_drain_leaves_what_is_busy_after_the_grace(
    env: type[CountEnv], caplog: pytest.LogCaptureFixture
) -> None:
    two = manager(env, 2, grace=0.2)
    idle, busy = await opened(two), await opened(two)
    running = asyncio.create_task(busy.call(sleep_in_env))
    await came(env, "asleep")
    await two.drain()
    assert idle.closed.done()
    assert f"session {busy.id} (CountEnv) not closed: busy" in caplog.text
    assert not await two.or_drained(running)
    env.release.set()
    await busy.closed
    assert len(env.log.of("close")) == 2


async def test_two_drains_are_one(env: type[CountEnv]) -> None:
    one = manager(env)
    await opened(one)
    assert one.begin_drain() is one.begin_drain()
    await one.drain()
    assert len(env.log.of("close")) == 1


def test_a_loop_that_ends_first_closes_the_env_on_its_thread(env: type[CountEnv]) -> None:
    made = SessionManager(Setup(env, "CountEnv"))

    async def leave() -> None:
        await opened(made)

    asyncio.run(leave())
    env.log.wait_for("close")
    assert made.active == 0
    assert {event["thread"] for event in env.log.events} == {env.log.events[0]["thread"]}


# ---------------------------------------------------------------- eviction


async def test_only_evictable_sessions_make_room_and_the_oldest_first(
    env: type[CountEnv], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "EVICT_AFTER_S", 0.0)
    three = manager(env, 3)
    kept = await opened(three)
    old = await opened(three, evictable=True)
    young = await opened(three, evictable=True)
    young.touch()
    await opened(three)
    assert await old.ending is EndReason.EVICTED
    assert three.active == 3
    await opened(three)
    assert await young.ending is EndReason.EVICTED
    with pytest.raises(SessionCapacityError):
        await three.open()
    assert not kept.ending.done()
    await three.drain()
    assert len(env.log.of("close")) == len(env.log.of("init")) == 5


async def test_a_newcomer_does_not_wait_for_ever_for_an_evicted_env(
    env: type[CountEnv], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "EVICT_AFTER_S", 0.0)
    monkeypatch.setattr(sessions, "EVICTION_WAIT_S", 0.05)
    go = threading.Event()

    class Slow(env):  # type: ignore[valid-type, misc]
        def close(self) -> None:
            go.wait(20)
            super().close()

    one = manager(Slow, 1)
    await opened(one, evictable=True)
    with pytest.raises(SessionCapacityError):
        await one.open()
    go.set()
    await one.drain()
    assert len(env.log.of("close")) == 1
