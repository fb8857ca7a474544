"""Frame by frame: the same frames are sent to upstream's server and to ours, and what comes back is compared as bytes.

Success frames are the same, byte for byte. Error frames have upstream's type, code and keys; texts that come from
pydantic or ``json`` vary with their versions, and ours may have more keys. Where upstream ends the session over one
bad frame, ours answers and keeps it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from interop.sides import OURS, UPSTREAM, Mirror, Side, mirror_server

Twins = tuple[Mirror, Mirror]


def dial(server: Mirror, path: str = "/ws") -> ClientConnection:
    return connect(server.url.replace("http", "ws") + path, compression=None, max_size=None, proxy=None)


def converse(server: Mirror, frames: list[str | bytes], path: str = "/ws") -> list[str]:
    """Send frames one by one; what came back for each, and ``closed CODE REASON`` from where the socket ended."""
    answers: list[str] = []
    with dial(server, path) as socket:
        for frame in frames:
            try:
                with suppress(ConnectionClosed):  # what came before the end is still there to be read
                    socket.send(frame)
                answers.append(str(socket.recv(timeout=30)))
            except ConnectionClosed as closed:
                end = closed.rcvd
                answers.append(f"closed {end.code} {end.reason!r}" if end else "cut")
                break
    return answers


def step(op: str, arg: Any = None, **more: Any) -> str:
    return json.dumps({"type": "step", "data": {"op": op, "arg": arg, **more}}, ensure_ascii=False)


RESET = json.dumps({"type": "reset"})
STATE = json.dumps({"type": "state"})
CLOSE = json.dumps({"type": "close"})

GOOD = {
    "a whole episode": [
        RESET,
        step("inc"),
        step("inc"),
        step("done"),
        step("inc"),  # past its end
        STATE,
        RESET,
        STATE,
    ],
    "reset arguments": [
        json.dumps({"type": "reset", "data": {"seed": 3, "episode_id": "E é", "level": [1, {"a": None}]}}),
        json.dumps({"type": "reset", "data": {"seed": "not checked", "episode_id": 5}}),
        json.dumps({"type": "reset", "data": {}}),
    ],
    "no reset at all": [STATE, step("inc"), STATE],
    "rewards": [
        step("reward", reward) for reward in (True, False, 3, 0, -1, 0.5, 0.0, -0.0, 1e-10, 1e300, 2**60, None)
    ],
    "metadata": [step("metadata", value) for value in ({}, {"k": 1}, {"deep": [{"é": None}]})],
    "text": [
        step("echo", text) for text in ("é", "日本", "\U0001f600", '"\\/\b\f\n\r\t', "\x00\x1f\x7f", "\u2028\u2029")
    ],
    "numbers": [step("echo", number) for number in (1e22, 1e16, 123456789012345678901234567890, 0.1, -0.0, 5e-324)],
    "shapes": [step("echo", value) for value in ([], {}, [[]], {"": {}}, {"b": 1, "a": 2}, [None, True, False])],
    "escapes of the client": [r'{"type":"step","data":{"op":"echo","arg":"\u00e9\ud83d\ude00\/"}}'],
    "spaces and order": ['  { "data" : { "arg" : 1 , "op" : "echo" } , "type" : "step" }\n'],
    "a key twice": ['{"type":"state","type":"step","data":{"op":"inc"},"data":{"op":"echo","arg":"last"}}'],
    "mcp without tools": [
        json.dumps({"type": "mcp", "data": {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}}),
        json.dumps(
            {"type": "mcp", "data": {"jsonrpc": "2.0", "id": "x", "method": "tools/call", "params": {"name": "a"}}}
        ),
        STATE,
    ],
    "a close": [RESET, CLOSE],
    "large": [step("big", 3_000_000), step("echo", "é" * 1_000_000)],
}


@pytest.mark.parametrize("frames", GOOD.values(), ids=GOOD.keys())
def test_success_frames_are_the_same_bytes(frames: list[str | bytes], twins: Twins) -> None:
    theirs, ours = (converse(server, frames) for server in twins)
    assert len(theirs) == len(frames)
    assert '"error","data"' not in "".join(theirs)
    assert ours == theirs


def test_small_numbers_are_spelled_differently_and_mean_the_same(twins: Twins) -> None:
    """Upstream's frames are spelled by pydantic's JSON writer, ours by Python's: ``1e-7`` and ``1e-07``."""
    small = [1e-5, 1.5e-5, -9.999e-5, 1e-7, 1.2345678901234567e-9]
    theirs, ours = (converse(server, [step("echo", small), step("reward", 1e-7)]) for server in twins)
    assert ours != theirs
    assert [json.loads(one) for one in ours] == [json.loads(one) for one in theirs]
    assert json.loads(ours[0])["data"]["observation"]["echo"] == small


BAD_BUT_SURVIVED = {
    "not JSON": "not json",
    "empty": "",
    "trailing junk": STATE + " x",
    "unknown type": '{"type":"zzz"}',
    "no type": "{}",
    "null type": '{"type":null}',
    "number as type": '{"type":5}',
    "step without data": '{"type":"step"}',
    "action without a field": '{"type":"step","data":{}}',
    "action with one field too many": step("inc", bogus=1),
    "action of a wrong type": '{"type":"step","data":{"op":5}}',
    "envelope with one key too many": '{"type":"step","data":{"op":"inc"},"request_id":"r1"}',
    "reset with null": '{"type":"reset","data":null}',
    "reset with a list": '{"type":"reset","data":[1]}',
    "state with data": '{"type":"state","data":{}}',
    "close with one key too many": '{"type":"close","why":1}',
    "the environment raises": step("raise", "a door"),
    "the environment raises without a word": step("raise"),
    "a result that is not JSON": step("object"),
    "a mcp frame without data": '{"type":"mcp"}',
}


@pytest.mark.parametrize("frame", BAD_BUT_SURVIVED.values(), ids=BAD_BUT_SURVIVED.keys())
def test_error_frames_have_upstreams_codes_and_keys(frame: str, twins: Twins) -> None:
    frames = [RESET, step("inc"), frame, step("inc")]
    theirs, ours = (converse(server, frames) for server in twins)
    assert ours[:2] == theirs[:2]
    assert ours[3] == theirs[3]  # the session went on, alike
    their_error, our_error = json.loads(theirs[2]), json.loads(ours[2])
    assert their_error["type"] == our_error["type"] == "error"
    assert our_error["data"]["code"] == their_error["data"]["code"]
    assert our_error["data"].keys() >= their_error["data"].keys()
    assert our_error["data"].keys() - their_error["data"].keys() <= {"error_type", "applied"}
    if "errors" in their_error["data"]:
        assert [(one["type"], one["loc"]) for one in our_error["data"]["errors"]] == [
            (one["type"], one["loc"]) for one in their_error["data"]["errors"]
        ]
        assert [one.keys() for one in our_error["data"]["errors"]] == [
            one.keys() for one in their_error["data"]["errors"]
        ]
    if frame not in (BAD_BUT_SURVIVED["a result that is not JSON"],):
        assert our_error["data"]["message"] == their_error["data"]["message"]


FATAL_UPSTREAM = {
    "a list": "[1]",
    "a number": "5",
    "null": "null",
    "a string": '"s"',
    "binary": b'{"type":"state"}',
    "a validator that raises": step("inc", even=3),
}


@pytest.mark.parametrize("frame", FATAL_UPSTREAM.values(), ids=FATAL_UPSTREAM.keys())
def test_one_bad_frame_costs_upstream_the_session_and_us_one_error(frame: str | bytes, twins: Twins) -> None:
    frames = [RESET, frame, step("inc")]
    theirs, ours = (converse(server, frames) for server in twins)
    assert json.loads(theirs[1])["data"]["code"] == "SESSION_ERROR"
    assert theirs[2] == "closed 1000 ''"
    assert json.loads(ours[1])["data"]["code"] in ("INVALID_JSON", "VALIDATION_ERROR")
    assert json.loads(ours[2])["data"]["observation"]["count"] == 1


def test_numbers_that_are_none_become_null_there_and_stay_here(twins: Twins) -> None:
    theirs, ours = (converse(server, [step("nan")])[0] for server in twins)
    assert json.loads(theirs)["data"]["reward"] is None
    assert '"reward":NaN' in ours
    assert '"echo":[Infinity]' in ours


def test_pipelined_frames_are_answered_in_order(twins: Twins) -> None:
    for server in twins:
        with dial(server) as socket:
            for number in range(50):
                socket.send(step("echo", number))
            echoes = [json.loads(socket.recv(timeout=30))["data"]["observation"]["echo"] for _ in range(50)]
        assert echoes == list(range(50))


@pytest.mark.parametrize("path", ["/ws?session_id=nope", "/ws?session_id=", "/ws?other=1"])
def test_queries(path: str, twins: Twins) -> None:
    theirs, ours = (converse(server, [STATE, STATE], path) for server in twins)
    assert ours == theirs


@pytest.mark.parametrize("path", ["/ws/", "/nothing"])
def test_unknown_paths_are_refused_at_the_handshake(path: str, twins: Twins) -> None:
    for server in twins:
        with pytest.raises(InvalidStatus) as refused, dial(server, path):
            pass
        assert refused.value.response.status_code == 403


def test_a_message_over_16_mib_ends_the_session(twins: Twins) -> None:
    frames = [RESET, step("echo", "y" * (17 * 1024 * 1024))]
    for server in twins:
        end = converse(server, frames)[1]
        # A server that closes with our bytes unread may reset the connection, and its close frame with it.
        assert end in ("closed 1009 'frame with 17825843 bytes exceeds limit of 16777216 bytes'", "cut")


@pytest.mark.parametrize("side", [UPSTREAM, OURS], ids=str)
def test_capacity_and_factory_refusals(side: Side, tmp_path: Path) -> None:
    with (
        mirror_server(side, tmp_path, MAX_CONCURRENT_ENVS="1") as full,
        mirror_server(side, tmp_path, MIRROR_BROKEN="1") as broken,
    ):
        with dial(full) as first:
            first.send(RESET)
            assert first.recv(timeout=30)
            with dial(full) as second:
                assert second.recv(timeout=30) == (
                    '{"type":"error","data":{"message":"Server at capacity: 1/1 sessions active. Cannot accept new '
                    'connections.","code":"CAPACITY_REACHED","active_sessions":1,"max_sessions":1}}'
                )
                with pytest.raises(ConnectionClosed) as closed:
                    second.recv(timeout=30)
                assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1000, "")  # type: ignore[union-attr]
        with dial(broken) as socket:
            assert socket.recv(timeout=30) == (
                '{"type":"error","data":{"message":"Environment factory \'MirrorEnv\' failed to create instance.",'
                '"code":"FACTORY_ERROR","factory_name":"MirrorEnv"}}'
            )
