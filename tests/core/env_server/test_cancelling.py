"""Ending a call early: before it begins, by the hook, by cancelling what it awaits, and what the next call sees."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from openenv.core.env_server import cancelling
from openenv.core.env_server.calls import Call, CallError, run_call
from openenv.core.env_server.runner import EnvRunner, EnvThread
from openenv.core.env_server.sessions import EndReason, Session, SessionManager, Setup
from openenv.core.wire.json_codec import encode
from openenv.core.wire.messages import CallKind
from support.envs import CountAction, CountEnv, CountObservation, fresh_env


@pytest.fixture
def env() -> Iterator[type[CountEnv]]:
    made = fresh_env()
    yield made
    made.release.set()


class AsyncEnv(CountEnv):
    """``op``: wait for ever, clean up (slowly) when cancelled, or refuse to be cancelled."""

    async def step_async(self, action: CountAction, timeout_s: float | None = None, **kwargs: Any) -> CountObservation:
        self.log.add("step", self.env_no, op=action.op)
        if action.op in ("wait", "stubborn", "clean"):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.log.add("cancelled", self.env_no)
                if action.op == "clean":
                    await asyncio.sleep(0.01)
                if action.op != "stubborn":
                    raise
        self.count += 1
        return CountObservation(env_no=self.env_no, count=self.count)


def of(env: type[CountEnv], base: type[CountEnv], **more: Any) -> type[CountEnv]:
    return type(base.__name__, (base,), {"log": env.log, "release": env.release, **more})


async def opened(env: type[CountEnv], thread: EnvThread | None = None) -> Session:
    manager = SessionManager(Setup(env, "CountEnv", thread=thread), max_sessions=4)
    manager.start()
    session = await manager.open()
    await session.ready()
    return session


def step(session: Session, op: str = "inc", arg: Any = None) -> asyncio.Task[bytes | CallError]:
    return session.start(_work(Call(CallKind.STEP, {"op": op, "arg": arg})))


def _work(call: Call) -> Any:
    async def work(runner: EnvRunner) -> bytes:
        try:
            return await run_call(runner, call, CountAction, encode)
        finally:
            task = asyncio.current_task()
            assert task is not None
            runner.cancels_left = task.cancelling()  # type: ignore[attr-defined]

    return work


async def came(env: type[CountEnv], event: str, count: int = 1) -> None:
    await asyncio.to_thread(env.log.wait_for, event, count)


async def error(task: asyncio.Task[bytes | CallError]) -> tuple[str, bool | None]:
    told = await task
    assert isinstance(told, CallError), told
    return str(told.code), told.applied


async def ended(session: Session) -> None:
    session.end(EndReason.CLOSED)
    await session.closed


# ---------------------------------------------------------------- what awaits


@pytest.mark.parametrize("op", ["wait", "clean"])
async def test_an_env_that_awaits_is_cancelled(env: type[CountEnv], op: str) -> None:
    session = await opened(of(env, AsyncEnv))
    task = step(session, op)
    await came(env, "step")
    assert session.cancel()
    assert session.cancel()  # again: nothing more happens
    assert await error(task) == ("CANCELLED", None)
    assert len(env.log.of("cancelled")) == 1
    assert isinstance(await step(session), bytes)
    await ended(session)


async def test_one_that_will_not_be_cancelled_gives_its_result_and_the_next_call_is_untouched(
    env: type[CountEnv],
) -> None:
    session = await opened(of(env, AsyncEnv))
    task = step(session, "stubborn")
    await came(env, "step")
    assert session.cancel()
    assert isinstance(await task, bytes)
    assert session._runner.cancels_left == 0  # type: ignore[attr-defined]  # or its timeouts would misread it
    again = step(session, "stubborn")
    await came(env, "step", 2)
    assert len(env.log.of("cancelled")) == 1
    session.cancel()
    assert isinstance(await again, bytes)
    await ended(session)


async def test_the_end_of_the_loop_is_no_cancel_of_a_caller(env: type[CountEnv]) -> None:
    session = await opened(of(env, AsyncEnv))
    task = step(session, "wait")
    await came(env, "step")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await ended(session)


# ---------------------------------------------------------------- before it begins


async def test_a_call_that_waits_for_its_thread_is_never_run(env: type[CountEnv]) -> None:
    thread = EnvThread("shared")
    first, second = await opened(env, thread), await opened(env, thread)
    busy = step(first, "sleep", 20)
    await came(env, "step")
    for call in (Call(CallKind.STEP, {"op": "inc"}), Call(CallKind.RESET), Call(CallKind.STATE)):
        waiting = second.start(_work(call))
        assert second.cancel()
        env.release.set()
        assert await error(waiting) == ("CANCELLED", False)
    assert isinstance(await busy, bytes)
    assert [event["event"] for event in env.log.events if event["event"] != "init"] == ["step", "slept"]
    assert isinstance(await step(second), bytes)
    await ended(first)
    await ended(second)
    thread.stop()


# ---------------------------------------------------------------- the hook


def _set(self: Any) -> None:
    self.log.add("cancel", self.env_no)
    self.release.set()


async def _set_async(self: Any) -> None:
    _set(self)


def _boom(self: Any) -> None:
    _set(self)
    raise SystemExit(3)


@pytest.mark.parametrize("hook", [_set, _set_async, _boom])
async def test_the_hook_of_a_sync_env_runs_beside_its_call(env: type[CountEnv], hook: Any) -> None:
    session = await opened(of(env, CountEnv, cancel=hook))
    task = step(session, "sleep", 20)
    await came(env, "step")
    assert session.cancel()
    assert session.cancel()
    assert isinstance(await task, bytes)
    assert len(env.log.of("cancel")) == 1
    await ended(session)


async def test_the_hook_of_an_async_env_takes_the_place_of_cancelling(env: type[CountEnv]) -> None:
    gate: list[asyncio.Event] = [asyncio.Event()]

    class Gentle(CountEnv):
        async def cancel(self) -> None:  # type: ignore[override]
            gate[0].set()

        async def step_async(self, action: CountAction, *_: Any, **__: Any) -> CountObservation:
            self.log.add("step", self.env_no)
            await gate[0].wait()
            return CountObservation(env_no=self.env_no, count=7)

    session = await opened(of(env, Gentle))
    task = step(session)
    await came(env, "step")
    assert session.cancel()
    assert b'"count":7' in await task  # type: ignore[operator]
    await ended(session)


def _needs_more(self: Any, order: int) -> None:
    raise AssertionError("not the hook")


@pytest.mark.parametrize("members", [{}, {"cancel": _needs_more}, {"cancel": "no method"}])
async def test_without_a_hook_the_call_goes_on(env: type[CountEnv], members: dict[str, Any]) -> None:
    session = await opened(of(env, CountEnv, **members))
    task = step(session, "sleep", 20)
    await came(env, "step")
    assert not session.cancel()
    assert not session.cancel()
    env.release.set()
    assert isinstance(await task, bytes)
    await ended(session)


async def test_a_refused_move_stays_one_after_a_cancel(env: type[CountEnv]) -> None:
    def late(self: Any, action: CountAction, timeout_s: float | None = None, **kwargs: Any) -> Any:
        if action.op == "refuse":
            self.log.add("step", self.env_no)
            self.release.wait(20)
            action.op = "invalid"
        return CountEnv.step(self, action)

    session = await opened(of(env, CountEnv, cancel=_set, step=late))
    task = step(session, "refuse")
    await came(env, "step")
    session.cancel()
    assert await error(task) == ("VALIDATION_ERROR", False)
    await ended(session)


async def test_the_next_call_waits_for_the_hook(env: type[CountEnv]) -> None:
    go = threading.Event()

    def slow(self: Any) -> None:
        self.release.set()
        go.wait(20)
        self.log.add("cancel", self.env_no)

    session = await opened(of(env, CountEnv, cancel=slow))
    task = step(session, "sleep", 20)
    await came(env, "step")
    session.cancel()
    await came(env, "slept")
    await asyncio.sleep(0.02)
    assert not task.done()
    go.set()
    await task
    assert env.log.events[-1]["event"] == "cancel"
    await ended(session)


async def test_a_hook_that_hangs_is_named_and_left(
    env: type[CountEnv], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cancelling, "HOOK_S", 0.01)
    go = threading.Event()

    def hang(self: Any) -> None:
        self.release.set()
        go.wait(20)

    session = await opened(of(env, CountEnv, cancel=hang))
    task = step(session, "sleep", 20)
    await came(env, "step")
    session.cancel()
    assert isinstance(await task, bytes)
    assert "hook has not returned" in caplog.text
    go.set()
    await ended(session)


async def test_nothing_to_cancel(env: type[CountEnv]) -> None:
    session = await opened(env)
    assert not session.cancel()
    assert isinstance(await step(session), bytes)
    await ended(session)
    assert not session.cancel()
