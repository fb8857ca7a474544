"""Which thread runs what, and what an environment may raise."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from openenv.core.env_server.interfaces import Action, Environment, Observation, State
from openenv.core.env_server.runner import Crash, EnvRunner, EnvThread


def name() -> str:
    return threading.current_thread().name


class Probe(Environment[Action, Observation, State]):
    def __init__(self) -> None:
        self.where = {"init": name()}
        self.closes = 0

    def reset(self, seed: int | None = None, **kwargs: Any) -> Any:
        self.where["reset"] = name()
        return {"seed": seed, **kwargs}

    def step(self, action: Any) -> Any:  # type: ignore[override]
        self.where["step"] = name()
        return action() if callable(action) else action

    @property
    def state(self) -> State:
        self.where["state"] = name()
        return State()

    def close(self) -> None:
        self.closes += 1
        self.where["close"] = name()


class AsyncProbe(Probe):
    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Any:
        self.where["reset_async"] = name()
        return {"seed": seed}

    async def step_async(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
        self.where["step_async"] = name()
        await asyncio.sleep(0)
        return action() if callable(action) else action


@pytest.fixture
def thread() -> Iterator[EnvThread]:
    made = EnvThread("test")
    yield made
    made.stop()
    made._thread.join(5)
    assert not made._thread.is_alive()


async def built(factory: Callable[[], Any], thread: EnvThread) -> EnvRunner:
    runner = EnvRunner(factory, thread)
    await runner.build(lambda env: None)
    return runner


async def call(runner: EnvRunner, method: str, *args: Any, **kwargs: Any) -> Any:
    return await runner.call(method, lambda: (args, kwargs), lambda value: (value, name()))


async def test_everything_of_a_sync_env_runs_on_its_thread(thread: EnvThread) -> None:
    env = Probe()
    runner = await built(lambda: env, thread)
    env.where["init"] = "openenv-env-test"
    assert await call(runner, "reset", seed=3) == ({"seed": 3}, "openenv-env-test")
    assert await call(runner, "step", "x") == ("x", "openenv-env-test")
    await runner.on_thread(lambda env: env.state)
    await runner.close()
    assert set(env.where) == {"init", "reset", "step", "state", "close"}
    assert set(env.where.values()) == {"openenv-env-test"}


async def test_the_constructor_runs_on_the_thread(thread: EnvThread) -> None:
    seen: list[Probe] = []

    def factory() -> Probe:
        seen.append(Probe())
        return seen[-1]

    await built(factory, thread)
    assert seen[0].where["init"] == "openenv-env-test"


async def test_async_methods_run_on_the_loop_and_the_rest_on_the_thread(thread: EnvThread) -> None:
    env = AsyncProbe()
    runner = await built(lambda: env, thread)
    assert await call(runner, "reset", seed=1) == ({"seed": 1}, "openenv-env-test")
    assert await call(runner, "step", "x") == ("x", "openenv-env-test")
    await runner.on_thread(lambda env: env.state)
    await runner.close()
    assert env.where["reset_async"] == env.where["step_async"] == name()
    assert env.where["state"] == env.where["close"] == "openenv-env-test"
    assert "step" not in env.where


@pytest.mark.parametrize("kind", [Probe, AsyncProbe])
@pytest.mark.parametrize(
    "error", [ValueError("no"), SystemExit(1), KeyboardInterrupt(), StopIteration(), GeneratorExit()]
)
async def test_whatever_an_env_raises_is_a_crash_of_its_call(
    kind: type[Probe], error: BaseException, thread: EnvThread
) -> None:
    def raising() -> None:
        raise error

    runner = await built(kind, thread)
    with pytest.raises(Crash) as caught:
        await call(runner, "step", raising)
    cause = caught.value.cause
    assert cause is error or (isinstance(error, StopIteration) and isinstance(cause, RuntimeError))
    assert (await call(runner, "step", "again"))[0] == "again"
    await runner.close()


async def test_an_env_that_raises_cancelled_error_is_a_crash_and_not_a_cancellation(thread: EnvThread) -> None:
    def raising() -> None:
        raise asyncio.CancelledError

    runner = await built(AsyncProbe, thread)
    with pytest.raises(Crash):
        await call(runner, "step", raising)
    await runner.close()


async def test_arguments_that_the_signature_lacks_are_named_once(
    thread: EnvThread, caplog: pytest.LogCaptureFixture
) -> None:
    class Narrow(Probe):
        def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
            return {"seed": seed}

    runner = await built(Narrow, thread)
    for _ in range(2):
        assert (await call(runner, "reset", seed=7, task="x", level=2))[0] == {"seed": 7}
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "Narrow.reset() does not take 'level', 'task'" in warnings[0]
    await runner.close()


async def test_arguments_reach_a_signature_with_kwargs(thread: EnvThread, caplog: pytest.LogCaptureFixture) -> None:
    runner = await built(Probe, thread)
    assert (await call(runner, "reset", seed=7, task="x"))[0] == {"seed": 7, "task": "x"}
    assert caplog.records == []
    await runner.close()


async def test_an_async_def_without_the_suffix_is_explained(thread: EnvThread) -> None:
    class Wrong(Probe):
        async def step(self, action: Any) -> Any:  # type: ignore[override]
            return action

    runner = await built(Wrong, thread)
    with pytest.raises(Crash, match="step_async"):
        await call(runner, "step", 1)
    await runner.close()


async def test_close_runs_once_and_its_errors_are_logged(thread: EnvThread, caplog: pytest.LogCaptureFixture) -> None:
    class Bad(Probe):
        def close(self) -> None:
            super().close()
            raise SystemExit(1)

    env = Bad()
    runner = await built(lambda: env, thread)
    await runner.close()
    await runner.close()
    assert env.closes == 1
    assert "Bad.close() raised" in caplog.text


async def test_an_env_that_the_check_refuses_is_closed(thread: EnvThread) -> None:
    env = Probe()

    def refuse(made: Any) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await EnvRunner(lambda: env, thread).build(refuse)
    assert env.closes == 1


async def test_jobs_run_in_order_also_if_nobody_waits(thread: EnvThread) -> None:
    done: list[int] = []
    gate = threading.Event()
    first = thread.run(lambda: (gate.wait(5), done.append(1)))
    second = thread.run(lambda: done.append(2))
    first.cancel()
    gate.set()
    await second
    assert done == [1, 2]


async def test_a_failed_job_that_nobody_waits_for_is_logged(
    thread: EnvThread, caplog: pytest.LogCaptureFixture
) -> None:
    thread.post(lambda: 1 / 0)
    await thread.run(lambda: None)
    assert "background job" in caplog.text


def test_a_result_for_a_loop_that_is_closed_is_dropped() -> None:
    thread = EnvThread("late")
    gate = threading.Event()

    async def start() -> None:
        thread.run(lambda: gate.wait(5))

    asyncio.run(start())
    gate.set()
    thread.stop()
    thread._thread.join(5)
    assert not thread._thread.is_alive()


def test_threads_are_daemons() -> None:
    assert EnvThread()._thread.daemon


async def test_an_async_env_that_blocks_the_loop_is_named(
    thread: EnvThread, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openenv.core.env_server.runner.BLOCKED_LOOP_S", 0.02)
    runner = await built(AsyncProbe, thread)
    await call(runner, "step", "quick")
    assert caplog.records == []
    await call(runner, "step", lambda: time.sleep(0.05))
    assert "AsyncProbe.step_async() blocked the event loop for" in caplog.text
    await runner.close()


async def test_an_async_env_sees_a_cancellation_and_awaits_real_things(thread: EnvThread) -> None:
    seen: list[str] = []

    class Waiting(AsyncProbe):
        async def step_async(self, action: Any, timeout_s: float | None = None, **kwargs: Any) -> Any:
            await asyncio.wait_for(asyncio.sleep(0.01), 5)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 0.01)
            seen.append("waits")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

    runner = await built(Waiting, thread)
    task = asyncio.create_task(call(runner, "step", 1))
    while not seen:
        await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["waits", "cancelled"]
    await runner.close()
