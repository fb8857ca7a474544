"""The ``/ws`` route on a real server: order, threads, ends, refusals."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect as async_connect
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from openenv.core.env_server import ws as ws_module
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.types import ConcurrencyConfig
from support.envs import CountAction, CountEnv, CountObservation, CountState, fresh_env
from support.frames import PickyAction, call
from support.live import LiveServer, serve

# ---------------------------------------------------------------- order, threads, ends


def test_pipelined_frames_are_answered_in_order(ws: ClientConnection) -> None:
    for mark in range(200):
        ws.send(json.dumps({"type": "step", "data": {"op": "echo", "arg": mark}}))
    seen = [json.loads(ws.recv(20))["data"]["observation"] for _ in range(200)]
    assert [one["echo"] for one in seen] == list(range(200))
    assert [one["count"] for one in seen] == list(range(1, 201))


def test_one_thread_a_session_for_everything(live: LiveServer, env: type[CountEnv]) -> None:
    threads = []
    with connect(live.ws) as one, connect(live.ws) as two:
        for ws in (one, two, one):
            call(ws, "reset")
            call(ws, "step", op="inc")
            call(ws, "state")
    env.log.wait_for("close", 2)
    for env_no in {event["env_no"] for event in env.log.events}:
        names = {event["thread"] for event in env.log.events if event["env_no"] == env_no}
        assert len(names) == 1, "constructor, reset, step, state and close share a thread"
        threads += names
    assert len(set(threads)) == 2


def test_the_shared_thread_runs_all_sessions_of_a_class_that_asks_for_it() -> None:
    env = fresh_env()
    env.REQUIRES_SINGLE_THREAD_EXECUTOR = True
    app = create_app(env, CountAction, CountObservation, max_concurrent_envs=2)
    with serve(app) as url, connect(url.ws) as one, connect(url.ws) as two:
        call(one, "reset")
        call(two, "reset")
        assert len(env.log.of("init")) == 2
    env.log.wait_for("close", 2)
    assert {event["thread"] for event in env.log.events} == {"openenv-env-shared"}


def test_the_thread_of_a_session_ends_with_it(live: LiveServer, env: type[CountEnv]) -> None:
    with connect(live.ws) as ws:
        call(ws, "reset")
        name = env.log.events[0]["thread"]
        assert name in {thread.name for thread in threading.enumerate()}
    env.log.wait_for("close")
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(10)
            assert not thread.is_alive()


@pytest.mark.parametrize("how", ["close frame", "close", "reset"])
def test_every_end_closes_the_env_once(live: LiveServer, env: type[CountEnv], how: str) -> None:
    with connect(live.ws) as ws:
        call(ws, "reset")
        if how == "close frame":
            ws.send('{"type":"close"}')
            with pytest.raises(ConnectionClosed) as caught:
                ws.recv(20)
            assert caught.value.rcvd is not None
            assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1000, "")
        elif how == "reset":
            ws.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            ws.socket.shutdown(socket.SHUT_RD)
            ws.socket.close()
    env.log.wait_for("close")
    with connect(live.ws) as ws:
        call(ws, "reset")
    env.log.wait_for("close", 2)
    assert len(env.log.of("close")) == 2


def test_a_peer_that_is_gone_is_noticed_while_its_step_runs_and_its_queue_is_dropped(
    live: LiveServer, env: type[CountEnv]
) -> None:
    with connect(live.ws) as ws:
        ws.send('{"type":"step","data":{"op":"sleep","arg":30}}')
        for _ in range(5):
            ws.send('{"type":"step","data":{"op":"inc"}}')
        env.log.wait_for("step")
    assert env.log.of("close") == []
    env.release.set()
    env.log.wait_for("close")
    assert [event["op"] for event in env.log.of("step")] == ["sleep"]
    assert [event["event"] for event in env.log.events][-2:] == ["slept", "close"]


def test_a_peer_that_leaves_while_the_constructor_runs(env: type[CountEnv]) -> None:
    entered, go = threading.Event(), threading.Event()

    class Slow(env):  # type: ignore[valid-type, misc]
        def __init__(self) -> None:
            entered.set()
            go.wait(20)
            super().__init__()

    app = create_app(Slow, CountAction, CountObservation)
    with serve(app) as url:
        with connect(url.ws):
            assert entered.wait(20)
        with connect(url.ws) as second:
            assert json.loads(second.recv(20))["data"]["code"] == "CAPACITY_REACHED"
        go.set()
        env.log.wait_for("close")
    assert [event["event"] for event in env.log.events] == ["init", "close"]


def test_a_session_that_blocks_holds_up_nobody_else(live: LiveServer, env: type[CountEnv]) -> None:
    with connect(live.ws) as blocked, connect(live.ws) as free:
        blocked.send('{"type":"step","data":{"op":"sleep","arg":60}}')
        env.log.wait_for("step")
        assert httpx.get(f"{live}/health").json() == {"status": "healthy"}
        assert call(free, "step", op="inc")["data"]["observation"]["count"] == 1
        assert env.log.of("slept") == []
        env.release.set()
        assert json.loads(blocked.recv(20))["data"]["observation"]["count"] == 1


# ---------------------------------------------------------------- refusals


def test_a_full_server_says_so_and_closes_normally(live: LiveServer, env: type[CountEnv]) -> None:
    with ExitStack() as stack:
        for _ in range(4):
            call(stack.enter_context(connect(live.ws)), "reset")
        with connect(live.ws) as ws:
            assert ws.recv(20) == (
                '{"type":"error","data":{"message":"Server at capacity: 4/4 sessions active. Cannot accept new '
                'connections.","code":"CAPACITY_REACHED","active_sessions":4,"max_sessions":4}}'
            )
            with pytest.raises(ConnectionClosed) as caught:
                ws.recv(20)
            assert caught.value.rcvd is not None
            assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (1000, "")
        assert len(env.log.of("init")) == 4


def test_a_slot_is_free_again_only_after_close_has_returned(env: type[CountEnv]) -> None:
    closing, go = threading.Event(), threading.Event()

    class Slow(env):  # type: ignore[valid-type, misc]
        def close(self) -> None:
            closing.set()
            go.wait(20)
            super().close()

    app = create_app(Slow, CountAction, CountObservation)
    server = app.state.openenv_server
    with serve(app) as url:
        with connect(url.ws) as ws:
            call(ws, "reset")
        assert closing.wait(20)
        with connect(url.ws) as ws:
            assert json.loads(ws.recv(20))["data"]["code"] == "CAPACITY_REACHED"
        assert server.active_sessions == 1
        go.set()
        env.log.wait_for("close")


def test_a_factory_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    class CEnv(CountEnv):
        def __init__(self) -> None:
            raise RuntimeError("private detail")

    app = create_app(CEnv, CountAction, CountObservation)
    with serve(app) as url:
        for _ in range(2):
            with connect(url.ws) as ws:
                assert ws.recv(20) == (
                    '{"type":"error","data":{"message":"Environment factory \'CEnv\' failed to create instance.",'
                    '"code":"FACTORY_ERROR","factory_name":"CEnv"}}'
                )
                with pytest.raises(ConnectionClosed) as caught:
                    ws.recv(20)
                assert caught.value.rcvd is not None
                assert caught.value.rcvd.code == 1000
    assert "private detail" in caplog.text


def test_an_unknown_session_id_is_refused_and_an_empty_one_is_none(live: LiveServer, env: type[CountEnv]) -> None:
    with connect(f"{live.ws}?session_id=nope") as ws:
        assert ws.recv(20) == ('{"type":"error","data":{"message":"Unknown session_id: nope","code":"SESSION_ERROR"}}')
        with pytest.raises(ConnectionClosed) as caught:
            ws.recv(20)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1000
    assert env.log.events == []
    with connect(f"{live.ws}?session_id=") as ws:
        assert call(ws, "reset")["type"] == "observation"


def test_a_frame_over_the_limit_ends_the_session_with_1009(env: type[CountEnv]) -> None:
    app = create_app(env, CountAction, CountObservation)
    with serve(app, ws_max_size=1000) as url, connect(url.ws) as ws:
        call(ws, "reset")
        ws.send("x" * 2000)
        with pytest.raises(ConnectionClosed) as caught:
            ws.recv(20)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009
        env.log.wait_for("close")


def test_an_idle_socket_is_closed_with_4001(env: type[CountEnv]) -> None:
    config = ConcurrencyConfig(max_concurrent_envs=1, session_timeout=3.0)
    app = create_app(env, CountAction, CountObservation, concurrency_config=config)
    with serve(app) as url, connect(url.ws) as ws:
        call(ws, "reset")
        ws.send('{"type":"step","data":{"op":"sleep","arg":3.5}}')
        assert json.loads(ws.recv(20))["type"] == "observation", "a running step is never idle"
        with pytest.raises(ConnectionClosed) as caught:
            ws.recv(20)
        assert caught.value.rcvd is not None
        assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (4001, "idle")
        env.log.wait_for("close")
    assert len(env.log.of("close")) == 1
    assert [event["event"] for event in env.log.events] == ["init", "reset", "step", "slept", "close"]


def test_an_async_environment(env: type[CountEnv], caplog: pytest.LogCaptureFixture) -> None:
    class Async(env):  # type: ignore[valid-type, misc]
        async def reset_async(self, seed: int | None = None, **kwargs: Any) -> CountObservation:  # type: ignore[override]
            await asyncio.sleep(0)
            return self.reset(seed=seed, **kwargs)

        async def step_async(self, action: CountAction, **kwargs: Any) -> CountObservation:  # type: ignore[override]
            await asyncio.sleep(0)
            return self.step(action)

    app = create_app(Async, PickyAction, CountObservation, max_concurrent_envs=2, state_cls=CountState)
    with serve(app) as url, connect(url.ws) as ws:
        assert call(ws, "reset", seed=1)["data"]["observation"]["count"] == 0
        assert call(ws, "step", op="inc")["data"]["observation"]["count"] == 1
        for op in ("exit", "raise"):
            assert call(ws, "step", op=op)["data"]["code"] == "EXECUTION_ERROR"
        assert call(ws, "step", op="invalid")["data"]["errors"][0]["type"] == "invalid_action"
        assert call(ws, "step", op="bytes")["data"]["applied"] is True
        assert call(ws, "state")["data"]["step_count"] == 2
    env.log.wait_for("close")
    on_loop = {event["thread"] for event in env.log.events if event["event"] in ("reset", "step")}
    elsewhere = {event["thread"] for event in env.log.events if event["event"] in ("init", "state", "close")}
    assert on_loop == {"live-server"}
    assert len(elsewhere) == 1
    assert on_loop & elsewhere == set()


async def test_an_inbox_is_bounded_and_lets_go_when_shut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ws_module, "MAX_WAITING_FRAMES", 2)
    inbox = ws_module.Inbox()
    await inbox.put("1")
    await inbox.put("2")
    third = asyncio.create_task(inbox.put("3"))
    await asyncio.sleep(0.01)
    assert not third.done()
    assert await inbox.get() == "1"
    await third
    fourth = asyncio.create_task(inbox.put("4"))
    await asyncio.sleep(0.01)
    assert not fourth.done()
    inbox.shut()
    await fourth
    assert await inbox.get() is None


def test_whatever_clients_do_every_env_is_closed_once_and_capacity_holds(env: type[CountEnv]) -> None:
    most = 0
    alive = 0
    guard = threading.Lock()

    class Counted(env):  # type: ignore[valid-type, misc]
        def __init__(self) -> None:
            nonlocal most, alive
            with guard:
                alive += 1
                most = max(most, alive)
            super().__init__()

        def close(self) -> None:
            nonlocal alive
            super().close()
            with guard:
                alive -= 1

    app = create_app(Counted, CountAction, CountObservation, max_concurrent_envs=8)
    server = app.state.openenv_server

    async def client(url: LiveServer, seed: int) -> None:
        rolls = random.Random(seed)
        try:
            async with async_connect(url.ws, proxy=None) as ws:
                for _ in range(rolls.randrange(4)):
                    await ws.send(json.dumps({"type": "step", "data": {"op": "sleep", "arg": 0.01}}))
                    if rolls.random() < 0.7:
                        await ws.recv()
                if rolls.random() < 0.5:
                    ws.transport.abort()
                elif rolls.random() < 0.5:
                    await ws.send('{"type":"close"}')
        except ConnectionClosed:
            pass  # refused: the server is full

    async def crowd(url: LiveServer) -> None:
        for start in range(0, 200, 40):
            await asyncio.gather(*[client(url, seed) for seed in range(start, start + 40)])

    with serve(app) as url:
        asyncio.run(crowd(url))
        env.log.wait_for("close", len(env.log.of("init")))
    assert server.active_sessions == 0
    assert alive == 0
    assert 1 <= most <= 8
    closed = [event["env_no"] for event in env.log.of("close")]
    assert sorted(closed) == sorted(event["env_no"] for event in env.log.of("init"))
