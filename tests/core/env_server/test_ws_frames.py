"""The frames of ``/ws`` on a real server, byte by byte."""

from __future__ import annotations

import json
import logging
import re

import pytest
from websockets.sync.client import ClientConnection, connect

from openenv.core.env_server.http_server import create_app
from support.envs import CountAction, CountEnv, CountObservation
from support.frames import ask, call, number
from support.live import serve

VERSION = re.compile(r'"url":"https://errors\.pydantic\.dev/[^"]*"')


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
