"""Bare calls: values without a running loop, handles under one."""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import threading
import warnings
from collections.abc import AsyncIterator
from typing import Any

import pytest

from openenv.core.exceptions import EnvExecutionError, SessionLostError
from openenv.core.pending import PendingCall
from support.clients import CountClient, CountServer, act


def test_without_a_loop_a_bare_call_is_its_value(server: CountServer) -> None:
    with server.client() as client:
        assert client.reset(seed=4).observation.count == 0
        assert client.step(act()).observation.count == 1
        assert client.state().step_count == 1
        assert client.connect() is client
        child = client.new_session()
        assert child.reset().observation.count == 0
        assert client.disconnect() is None
    server.env.log.wait_for("close", 2)
    assert server.env.log.of("reset")[0]["seed"] == 4


@pytest.fixture
async def client(server: CountServer) -> AsyncIterator[CountClient]:
    client = server.client()
    await client.reset()
    yield client
    await client.close()


@pytest.fixture
async def threaded(server: CountServer) -> AsyncIterator[CountClient]:
    """A client whose session is on the I/O thread, so that handles can be awaited and touched in turn."""
    client = server.client(io="thread")
    await client.reset()
    yield client
    await client.close()


async def test_awaited_twice_it_runs_once(server: CountServer, client: CountClient) -> None:
    handle = client.step(act(mark=1))
    assert isinstance(handle, PendingCall)
    assert inspect.isawaitable(handle)
    assert "not begun" in repr(handle)
    first = await handle
    assert await handle is first
    assert "finished" in repr(handle)
    assert server.marks() == [1]


async def test_awaited_by_two_tasks_it_runs_once(server: CountServer, client: CountClient) -> None:
    handle = client.step(act(mark=1))

    async def wait() -> Any:
        return await handle

    one, two = await asyncio.gather(wait(), wait())
    assert one is two
    assert server.marks() == [1]


async def test_touched_it_runs_on_the_io_thread_once(server: CountServer, threaded: CountClient) -> None:
    handle = threaded.step(act(mark=1))
    assert handle.observation.count == 1
    assert handle.reward == 0.5
    assert handle.result().observation.count == 1
    assert (await handle).observation.count == 1
    assert server.marks() == [1]


async def test_a_client_that_is_only_touched_never_needs_await(server: CountServer) -> None:
    client = server.client()
    assert client.reset().observation.count == 0
    assert client.step(act()).observation.count == 1
    assert client.close().result() is None
    await asyncio.to_thread(server.env.log.wait_for, "close")


async def test_dropped_unused_it_warns_and_is_never_sent(server: CountServer, client: CountClient) -> None:
    handle = client.step(act(mark="dropped"))
    client._pending.clear()
    handles = [handle]
    del handle
    with pytest.warns(RuntimeWarning, match=r"step\(\) was never awaited or used"):
        handles.clear()
    await client.step(act(mark="kept"))
    assert server.marks() == ["kept"]


async def test_unused_calls_run_before_the_next_one_in_order(server: CountServer, client: CountClient) -> None:
    client.step(act(mark=1))
    client.step(act(mark=2))
    assert (await client.step(act(mark=3))).observation.count == 3
    assert server.marks() == [1, 2, 3]


async def test_unused_calls_run_before_a_touched_one(server: CountServer, threaded: CountClient) -> None:
    threaded.step(act(mark=1))
    assert threaded.step(act(mark=2)).observation.count == 2
    assert server.marks() == [1, 2]


async def test_the_error_of_an_unused_call_waits_for_whoever_looks(server: CountServer, client: CountClient) -> None:
    failing = client.step(act("raise", mark=1))
    assert (await client.step(act(mark=2))).observation.count == 1
    for _ in range(2):
        with pytest.raises(EnvExecutionError):
            await failing
    assert server.marks() == [1, 2]


async def test_an_unused_reset_is_sent_and_the_step_after_it_acts_in_its_episode(
    server: CountServer, client: CountClient
) -> None:
    await client.step(act())
    client.reset(seed=9)
    assert (await client.step(act())).observation.count == 1
    assert [one["seed"] for one in server.env.log.of("reset")] == [None, 9]


async def test_create_task_gather_and_wait_for(server: CountServer, client: CountClient) -> None:
    task = asyncio.create_task(client.step(act(mark=1)))
    assert (await task).observation.count == 1
    results = await asyncio.gather(*(client.step(act(mark=mark)) for mark in (2, 3, 4)))
    assert [one.observation.count for one in results] == [2, 3, 4]
    assert (await asyncio.wait_for(client.step(act(mark=5)), 30)).observation.count == 5
    assert (await asyncio.shield(client.step(act(mark=6)))).observation.count == 6
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(client.state()) for _ in range(3)]
    assert [one.result().step_count for one in tasks] == [6, 6, 6]
    assert server.marks() == [1, 2, 3, 4, 5, 6]


def test_asyncio_run_of_a_handle(server: CountServer) -> None:
    async def make() -> Any:
        return client.reset()

    client = server.client(io="thread")
    handle = asyncio.run(make())
    assert handle.observation.count == 0
    client.close()


async def test_a_cancelled_call_has_no_result_for_a_second_look(server: CountServer, client: CountClient) -> None:
    handle = client.step(act("sleep", mark="slow"))
    task = asyncio.ensure_future(handle)
    await asyncio.to_thread(server.env.log.wait_for, "step")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(RuntimeError, match="was cancelled"):
        await handle
    with pytest.raises(SessionLostError, match="cancelled"):
        await client.step(act(mark="next"))
    assert server.marks() == ["slow"]


async def test_touching_a_call_that_is_being_awaited_is_told(server: CountServer, threaded: CountClient) -> None:
    handle = threaded.step(act("sleep"))
    task = asyncio.ensure_future(handle)
    await asyncio.to_thread(server.env.log.wait_for, "step")
    with pytest.raises(RuntimeError, match="is being awaited"):
        handle.result()
    server.env.release.set()
    assert (await task).observation.count == 1


async def test_asyncio_may_ask_it_what_it_asks_every_coroutine(client: CountClient) -> None:
    handle = client.state()
    for name in ("cr_code", "cr_frame", "gi_running", "_private"):
        assert not hasattr(handle, name)
    assert "not begun" in repr(handle)  # asking did not run it
    assert (await handle).step_count == 0


async def test_a_closed_handle_does_not_warn(client: CountClient) -> None:
    handle = client.state()
    handle.close()
    client._pending.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del handle
        gc.collect()


async def test_the_time_of_one_call_does_not_end_one_that_was_made_before_it(
    server: CountServer, client: CountClient
) -> None:
    task = asyncio.create_task(client.step(act("sleep", mark=1)))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await client.state()
    assert not task.done()
    server.env.release.set()
    assert (await task).observation.count == 1
    assert (await client.step(act(mark=2))).observation.count == 2
    assert server.marks() == [1, 2]


async def test_a_call_that_another_one_began_ends_with_its_own_task(server: CountServer, client: CountClient) -> None:
    handle = client.step(act("sleep", mark=1))
    state = asyncio.create_task(_awaited(client.state()))
    task = asyncio.create_task(_awaited(handle))
    await asyncio.to_thread(server.env.log.wait_for, "step")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(SessionLostError):
        await state


async def _awaited(handle: Any) -> Any:
    return await handle


def test_begun_by_two_threads_at_once_it_runs_once() -> None:
    runs: list[int] = []
    made: list[PendingCall[None]] = []
    others: list[threading.Thread] = []

    async def here() -> None:
        runs.append(1)

    def begun_elsewhere(frame: Any, event: str, arg: Any) -> Any:
        """The other thread begins it between any two function calls of this one."""
        if event == "call" and not others and frame.f_code.co_name == "_run_here":
            sys.settrace(None)
            others.append(threading.Thread(target=lambda: asyncio.run(_awaited(made[0]))))
            others[0].start()
            others[0].join(0.5)
        return None

    made.append(PendingCall("step", here=here, blocking=lambda: None, started=lambda _: []))
    sys.settrace(begun_elsewhere)
    try:
        asyncio.run(_awaited(made[0]))
    finally:
        sys.settrace(None)
    others[0].join(20)
    assert not others[0].is_alive()
    assert runs == [1]
