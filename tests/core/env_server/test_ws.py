"""The ``/ws`` route on a real server, byte by byte."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from pydantic import field_validator
from websockets.asyncio.client import connect as async_connect
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from openenv.core.env_server import ws as ws_module
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.types import ConcurrencyConfig
from support.envs import CountAction, CountEnv, CountObservation, CountState, fresh_env
from support.live import LiveServer, serve

VERSION = re.compile(r'"url":"https://errors\.pydantic\.dev/[^"]*"')


class PickyAction(CountAction):
    @field_validator("arg")
    @classmethod
    def check(cls, value: Any) -> Any:
        if value == "value error":
            raise ValueError("I do not like it")
        if value == "runtime error":
            raise RuntimeError("validator broke")
        return value


@pytest.fixture
def env() -> Iterator[type[CountEnv]]:
    made = fresh_env()
    yield made
    made.release.set()


@pytest.fixture
def live(env: type[CountEnv]) -> Iterator[LiveServer]:
    app = create_app(env, PickyAction, CountObservation, max_concurrent_envs=4, state_cls=CountState)
    with serve(app) as url:
        yield url
        env.release.set()


@pytest.fixture
def ws(live: LiveServer) -> Iterator[ClientConnection]:
    with connect(live.ws) as socket:
        yield socket


def ask(ws: ClientConnection, frame: str | bytes) -> str:
    ws.send(frame)
    reply = ws.recv(20)
    assert isinstance(reply, str)
    return reply


def call(ws: ClientConnection, kind: str, **data: Any) -> dict[str, Any]:
    message = {"type": kind} if kind == "state" else {"type": kind, "data": data}
    reply: dict[str, Any] = json.loads(ask(ws, json.dumps(message)))
    return reply


def number(ws: ClientConnection) -> int:
    return int(call(ws, "state")["data"]["env_no"])


# ---------------------------------------------------------------- golden frames

GOLDEN = [
    ('{"type": "state"}', '{"type":"state","data":{"episode_id":null,"step_count":0,"env_no":N}}'),
    (
        '{"type": "reset"}',
        '{"type":"observation","data":{"observation":{"metadata":{},"env_no":N,"count":0,"echo":null},'
        '"reward":null,"done":false}}',
    ),
    (
        '{"type": "reset", "data": {"seed": 3, "episode_id": "E1", "zz": 1}}',
        '{"type":"observation","data":{"observation":{"metadata":{},"env_no":N,"count":0,"echo":{"zz":1}},'
        '"reward":null,"done":false}}',
    ),
    (
        '{"type": "step", "data": {"op": "echo", "arg": {"n": [1, null, "\\u00e9"]}}}',
        '{"type":"observation","data":{"observation":{"metadata":{},"env_no":N,"count":1,'
        '"echo":{"n":[1,null,"é"]}},"reward":0.5,"done":false}}',
    ),
    (
        '{"type": "step", "data": {"op": "meta", "metadata": {"q": 1}}}',
        '{"type":"observation","data":{"observation":{"metadata":{"k":1},"env_no":N,"count":2,"echo":null},'
        '"reward":0.5,"done":false,"metadata":{"k":1}}}',
    ),
    (
        '{"type": "step", "data": {"op": "done"}}',
        '{"type":"observation","data":{"observation":{"metadata":{},"env_no":N,"count":3,"echo":null},'
        '"reward":0.5,"done":true}}',
    ),
    (
        '{"type": "step", "data": {"op": "reward", "arg": true}}',
        '{"type":"observation","data":{"observation":{"metadata":{},"env_no":N,"count":4,"echo":null},'
        '"reward":true,"done":false}}',
    ),
    (
        '{"type": "step", "data": {"op": "nan"}}',
        '{"type":"observation","data":{"observation":{"metadata":{},"env_no":N,"count":5,"echo":[NaN,NaN]},'
        '"reward":NaN,"done":false}}',
    ),
    (
        '{"type": "step", "data": {"op": "np"}}',
        '{"type":"observation","data":{"observation":{"metadata":{},"env_no":N,"count":6,'
        '"echo":{"array":[0,1,2],"scalar":7}},"reward":0.25,"done":false}}',
    ),
    ('{"type": "state"}', '{"type":"state","data":{"episode_id":"E1","step_count":6,"env_no":N}}'),
    (
        "not json",
        '{"type":"error","data":{"message":"Invalid JSON: Expecting value: line 1 column 1 (char 0)",'
        '"code":"INVALID_JSON"}}',
    ),
    (
        '{"type":"state"} x',
        '{"type":"error","data":{"message":"Invalid JSON: Extra data: line 1 column 18 (char 17)",'
        '"code":"INVALID_JSON"}}',
    ),
    ('{"type": "zzz"}', '{"type":"error","data":{"message":"Unknown message type: zzz","code":"UNKNOWN_TYPE"}}'),
    ("{}", '{"type":"error","data":{"message":"Unknown message type: ","code":"UNKNOWN_TYPE"}}'),
    ('{"type": null}', '{"type":"error","data":{"message":"Unknown message type: None","code":"UNKNOWN_TYPE"}}'),
    ('{"type": 5}', '{"type":"error","data":{"message":"Unknown message type: 5","code":"UNKNOWN_TYPE"}}'),
    (
        '{"type": "step"}',
        '{"type":"error","data":{"message":"Invalid message","code":"VALIDATION_ERROR","errors":[{"type":"missing",'
        '"loc":["data"],"msg":"Field required","input":{"type":"step"},URL}]}}',
    ),
    (
        '{"type": "step", "data": {"op": "inc", "bogus": 1}}',
        '{"type":"error","data":{"message":"Invalid message","code":"VALIDATION_ERROR","errors":['
        '{"type":"extra_forbidden","loc":["bogus"],"msg":"Extra inputs are not permitted","input":1,URL}]}}',
    ),
    (
        '{"type": "step", "data": {"op": "inc"}, "request_id": "r1"}',
        '{"type":"error","data":{"message":"Invalid message","code":"VALIDATION_ERROR","errors":['
        '{"type":"extra_forbidden","loc":["request_id"],"msg":"Extra inputs are not permitted","input":"r1",URL}]}}',
    ),
    (
        '{"type": "reset", "data": null}',
        '{"type":"error","data":{"message":"Invalid message","code":"VALIDATION_ERROR","errors":['
        '{"type":"dict_type","loc":["data"],"msg":"Input should be a valid dictionary","input":null,URL}]}}',
    ),
    (
        '{"type": "step", "data": {"op": "raise"}}',
        '{"type":"error","data":{"message":"env boom","code":"EXECUTION_ERROR","error_type":"ValueError",'
        '"applied":null}}',
    ),
    (
        '{"type": "step", "data": {"op": "invalid", "arg": "occupied"}}',
        '{"type":"error","data":{"message":"occupied","code":"VALIDATION_ERROR","errors":['
        '{"type":"invalid_action","loc":["action"],"msg":"occupied","input":null}]}}',
    ),
    (
        '{"type": "mcp", "data": {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}}',
        '{"type":"mcp","data":{"jsonrpc":"2.0","id":1,"error":{"code":-32603,'
        '"message":"Environment does not support MCP","data":null}}}',
    ),
    (
        '{"type": "mcp", "data": {"jsonrpc": "2.0", "id": 1, "method": "nope"}}',
        '{"type":"mcp","data":{"jsonrpc":"2.0","id":1,"error":{"code":-32601,'
        '"message":"Method not found: nope","data":null}}}',
    ),
]


def test_the_frames_of_one_session(ws: ClientConnection) -> None:
    env_no = number(ws)
    for sent, expected in GOLDEN:
        reply = VERSION.sub("URL", ask(ws, sent))
        assert reply == expected.replace('"env_no":N', f'"env_no":{env_no}'), sent


def test_a_bad_json_rpc_body_is_an_mcp_answer(ws: ClientConnection) -> None:
    reply = json.loads(ask(ws, '{"type": "mcp", "data": {}}'))
    assert reply["type"] == "mcp"
    assert (reply["data"]["error"]["code"], reply["data"]["id"]) == (-32600, None)
    assert reply["data"]["error"]["message"].startswith("Invalid request: ")
    assert json.loads(ask(ws, '{"type": "mcp"}'))["data"]["code"] == "VALIDATION_ERROR"


# ---------------------------------------------------------------- bad input costs one error frame

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("", "INVALID_JSON"),
        (b'{"type":"state"}', "INVALID_JSON"),
        (b"\xff\xfe", "INVALID_JSON"),
        ("[1]", "INVALID_JSON"),
        ("5", "INVALID_JSON"),
        ("null", "INVALID_JSON"),
        ('"s"', "INVALID_JSON"),
        (DEEP, "INVALID_JSON"),
        ('{"type":"step","data":{"op":"echo","arg":' + DEEP + "}}", "INVALID_JSON"),
        ('{"type":"step","data":{"op":"echo","arg":' + "9" * 5000 + "}}", "INVALID_JSON"),
        ('{"type":"' + "z" * 100_000 + '"}', "UNKNOWN_TYPE"),
        ('{"type":"\\ud800"}', "UNKNOWN_TYPE"),
        ('{"type":["step"]}', "UNKNOWN_TYPE"),
        ('{"type":"close","why":1}', "VALIDATION_ERROR"),
        ('{"type":"state","data":{}}', "VALIDATION_ERROR"),
        ('{"type":"step","data":[1]}', "VALIDATION_ERROR"),
        ('{"type":"step","data":{"op":"\\ud800","x\\ud800":"\\ud800"}}', "VALIDATION_ERROR"),
        ('{"type":"step","data":{"op":"echo","arg":"value error"}}', "VALIDATION_ERROR"),
        ('{"type":"step","data":{"op":"echo","arg":"runtime error"}}', "VALIDATION_ERROR"),
        ('{"type":"step","data":{"op":"exit"}}', "EXECUTION_ERROR"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_bad_input_costs_one_error_frame(ws: ClientConnection, frame: str | bytes, code: str) -> None:
    env_no = number(ws)
    text = ask(ws, frame)
    assert len(text) < 3000
    reply = json.loads(text)
    assert (reply["type"], reply["data"]["code"]) == ("error", code)
    assert reply["data"]["message"]
    again = call(ws, "step", op="inc")
    assert again["data"]["observation"]["env_no"] == env_no
    assert again["data"]["observation"]["count"] == 1


@pytest.mark.parametrize(("op", "field"), [("bytes", "echo.raw"), ("object", "echo.deep[1]")])
def test_a_reply_that_does_not_encode_names_the_field_and_was_applied(
    ws: ClientConnection, op: str, field: str
) -> None:
    data = call(ws, "step", op=op)["data"]
    assert (data["code"], data["applied"], data["error_type"]) == ("EXECUTION_ERROR", True, "UnencodableValue")
    assert field in data["message"]
    assert call(ws, "step", op="inc")["data"]["observation"]["count"] == 2


def test_many_errors_and_large_inputs_are_cut(ws: ClientConnection) -> None:
    fields = {f"field{index}": "x" * 1000 for index in range(1000)}
    data = call(ws, "step", op="inc", **fields)["data"]
    assert len(data["errors"]) == 20
    assert {error["input"] for error in data["errors"]} == {"<str of length 1000, not shown>"}


def test_error_texts_are_cut(ws: ClientConnection) -> None:
    message = call(ws, "step", op="raise", arg="x" * 100_000)["data"]["message"]
    assert message.startswith("xxx")
    assert message.endswith("(100000 characters)")
    assert len(message) < 2100


def test_the_traceback_goes_to_the_log_and_a_refused_move_does_not(
    ws: ClientConnection, caplog: pytest.LogCaptureFixture
) -> None:
    call(ws, "step", op="invalid")
    assert caplog.records == []
    reply = call(ws, "step", op="raise", arg="secret place")
    assert "Traceback" not in json.dumps(reply)
    records = [record for record in caplog.records if record.name == "openenv.server"]
    assert len(records) == 1
    assert records[0].levelno == logging.ERROR
    assert records[0].exc_info is not None


def test_reset_arguments_that_the_env_does_not_take_are_named(caplog: pytest.LogCaptureFixture) -> None:
    class Narrow(CountEnv):
        def reset(self, seed: int | None = None) -> CountObservation:  # type: ignore[override]
            return super().reset(seed=seed)

    app = create_app(Narrow, CountAction, CountObservation)
    with serve(app) as url, connect(url.ws) as ws:
        assert call(ws, "reset", seed=7, task="x")["type"] == "observation"
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warned) == 1
    assert "Narrow.reset() does not take 'task'" in warned[0]


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
    config = ConcurrencyConfig(max_concurrent_envs=1, session_timeout=0.3)
    app = create_app(env, CountAction, CountObservation, concurrency_config=config)
    with serve(app) as url, connect(url.ws) as ws:
        call(ws, "reset")
        ws.send('{"type":"step","data":{"op":"sleep","arg":1.0}}')
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
