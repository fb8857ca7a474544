"""Frames that should not be: from a client to our server, and from a server to our client."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from faults.harness import Driver, SyncDriver, World
from openenv import GenericEnvClient
from openenv.core.exceptions import ActionValidationError, OpenEnvError, Outcome, ServerError, SessionLostError

OURS = ("ours",)
ASYNC = ("async",)


def frame(kind: str, **data: Any) -> str:
    return json.dumps({"type": kind, "data": data} if data or kind != "state" else {"type": kind})


BAD_FRAMES: dict[str, tuple[str | bytes, str]] = {
    "not json": ("{nope", "INVALID_JSON"),
    "empty": ("", "INVALID_JSON"),
    "binary": (b'{"type": "state"}', "INVALID_JSON"),
    "array": ("[]", "INVALID_JSON"),
    "string": ('"step"', "INVALID_JSON"),
    "null": ("null", "INVALID_JSON"),
    "number": ("7", "INVALID_JSON"),
    "100,000 nested arrays": ("[" * 100_000 + "]" * 100_000, "INVALID_JSON"),
    "nested in an action": ('{"type":"step","data":{"arg":' + "[" * 100_000 + "]" * 100_000 + "}}", "INVALID_JSON"),
    "5,000 digits": ('{"type":"step","data":{"arg":' + "9" * 5_000 + "}}", "INVALID_JSON"),
    "unknown type": (frame("jump", a=1), "UNKNOWN_TYPE"),
    "no type": ("{}", "UNKNOWN_TYPE"),
    "type is a number": ('{"type": 7, "data": {}}', "UNKNOWN_TYPE"),
    "type is a list": ('{"type": ["step"], "data": {}}', "UNKNOWN_TYPE"),
    "step without data": ('{"type": "step"}', "VALIDATION_ERROR"),
    "data is a list": ('{"type": "step", "data": []}', "VALIDATION_ERROR"),
    "extra key in the envelope": ('{"type": "step", "data": {}, "seq": 1}', "VALIDATION_ERROR"),
    "data in a state": ('{"type": "state", "data": {}}', "VALIDATION_ERROR"),
    "unknown field": (frame("step", colour="red"), "VALIDATION_ERROR"),
    "field of a wrong type": (frame("step", op=7), "VALIDATION_ERROR"),
    "validator raises": (frame("step", op="refused"), "VALIDATION_ERROR"),
    "validator crashes": (frame("step", op="validator_crash"), "VALIDATION_ERROR"),
    "a megabyte of rubbish": ("x" * 1_000_000, "INVALID_JSON"),
    "lone surrogate in a wrong field": ('{"type": "step", "data": {"\\ud800": 1}}', "VALIDATION_ERROR"),
}


async def talk(socket: ClientConnection, text: str | bytes) -> dict[str, Any]:
    await socket.send(text)
    async with asyncio.timeout(30):
        answer: dict[str, Any] = json.loads(await socket.recv())
    return answer


def ws_url(world: World) -> str:
    return world.server.url.replace("http", "ws") + "/ws"


@pytest.mark.parametrize("name", BAD_FRAMES)
@pytest.mark.guarantee("G8", "G9", servers=OURS, clients=ASYNC)
async def test_a_bad_frame_costs_one_error_frame(world: World, name: str) -> None:
    bad, code = BAD_FRAMES[name]
    bystander = world.driver(direct=True)
    await bystander.reset()
    async with connect(ws_url(world)) as socket:
        first = await talk(socket, frame("reset", mark="raw"))
        for _ in range(3):
            answer = await talk(socket, bad)
            assert answer["type"] == "error"
            assert answer["data"]["code"] == code
            assert answer["data"]["message"]
            assert len(json.dumps(answer)) < 10_000
            assert "Traceback" not in json.dumps(answer)
        seen = await talk(socket, frame("step", mark=f"after {name}"))
        assert seen["data"]["observation"]["env"] == first["data"]["observation"]["env"]
        assert seen["data"]["observation"]["count"] == 1
    assert (await bystander.step())["count"] == 1
    assert len(world.oracle.of("step")) == 2


@pytest.mark.parametrize(
    ("text", "echo"),
    [
        ('{"type":"step","data":{"op":"echo","arg":1,"arg":2,"mark":"m"}}', "2"),
        ('{"type":"step","data":{"op":"echo","arg":NaN,"mark":"m"}}', "nan"),
        ('{"type":"step","data":{"op":"echo","arg":-Infinity,"mark":"m"}}', "-inf"),
        ('{"data":{"mark":"m","arg":"\\u0000\\ud83d\\ude00","op":"echo"},"type":"step"}', repr("\x00\U0001f600")),
    ],
    ids=["duplicate keys", "NaN", "infinity", "escapes"],
)
@pytest.mark.guarantee("G9", "G10", servers=OURS, clients=ASYNC)
async def test_odd_json_is_read_or_refused_and_never_changed(world: World, text: str, echo: str) -> None:
    async with connect(ws_url(world)) as socket:
        await talk(socket, frame("reset", mark="raw"))
        answer = await talk(socket, text)
        assert answer["type"] == "observation"
        seen = answer["data"]["observation"]["echo"]
        assert (repr(seen) if isinstance(seen, str) else str(seen)) == echo


@pytest.mark.guarantee("G8", "G9", servers=OURS, clients=ASYNC)
async def test_fragments_are_one_frame(world: World) -> None:
    async with connect(ws_url(world)) as socket:
        await talk(socket, frame("reset", mark="raw"))
        text = frame("step", op="echo", arg="x" * 100, mark="fragments")
        await socket.send(text[i : i + 7] for i in range(0, len(text), 7))
        answer = json.loads(await socket.recv())
        assert answer["data"]["observation"]["echo"] == "x" * 100
    assert world.oracle.times("fragments") == 1


def handshake(world: World) -> socket.socket:
    """A WebSocket whose frames are written by hand."""
    raw = socket.create_connection(("127.0.0.1", world.server.port), timeout=30)
    raw.sendall(
        b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    head = b""
    while b"\r\n\r\n" not in head:
        head += raw.recv(1)
    assert b" 101 " in head
    return raw


def masked(first_byte: int, payload: bytes) -> bytes:
    length = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + struct.pack("!H", len(payload))
    return bytes([first_byte]) + length + b"\0\0\0\0" + payload


RUDE = {
    "invalid UTF-8": masked(0x81, b'{"type": "\xff\xfe"}'),
    "unmasked": b"\x81\x02{}",
    "reserved bit": masked(0xC1, b"{}"),
    "unknown opcode": masked(0x83, b"{}"),
    "continuation of nothing": masked(0x80, b"{}"),
    "a length that never comes": b"\x81\xff\x00\x00\x00\x00\x00\x00\xff\xff\0\0\0\0abc",
    "a length over all limits": b"\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0abc",
    "garbage": bytes(range(256)),
}


@pytest.mark.parametrize("name", RUDE)
@pytest.mark.guarantee("G8", "G9", "G12", servers=OURS, clients=ASYNC)
async def test_a_socket_that_breaks_websocket_rules_hurts_only_itself(world: World, name: str) -> None:
    bystander = world.driver(direct=True)
    first = await bystander.reset()

    def be_rude() -> None:
        with handshake(world) as raw:
            raw.sendall(masked(0x81, frame("reset", mark="rude").encode()))
            assert raw.recv(1)
            raw.sendall(RUDE[name])

    await world.wait(be_rude)
    await world.seen("close", phase="end")
    assert world.oracle.closes(first["env"]) == 0
    assert (await bystander.step())["count"] == 1


@pytest.mark.guarantee("G4", "G8", "G9", servers=OURS, clients=ASYNC)
async def test_200_pipelined_steps_are_answered_in_order(world: World) -> None:
    async with connect(ws_url(world)) as socket:
        await talk(socket, frame("reset", mark="raw"))
        for number in range(200):
            await socket.send(frame("step", mark=f"pipe-{number}"))
        answers = [json.loads(await socket.recv())["data"]["observation"] for _ in range(200)]
    assert [answer["mark"] for answer in answers] == [f"pipe-{number}" for number in range(200)]
    assert [answer["count"] for answer in answers] == list(range(1, 201))


@pytest.mark.parametrize("end", ["abort", "close"])
@pytest.mark.guarantee("G8", "G9", "G12", hazards=("H9",), servers=OURS, clients=ASYNC)
async def test_frames_that_wait_when_their_client_is_gone_do_not_run(world: World, end: str) -> None:
    gate = world.gate()
    async with connect(ws_url(world)) as socket:
        await talk(socket, frame("reset", mark="raw"))
        await socket.send(frame("step", op="block", arg=gate.path, mark="running"))
        for number in range(50):
            await socket.send(frame("step", mark=f"queued-{number}"))
        await world.seen("step", mark="running")
        if end == "abort":
            socket.transport.abort()
        else:
            await socket.close()
    bystander = world.driver(direct=True)
    await bystander.reset()  # the end has reached the server before this has
    await asyncio.sleep(0.1)
    gate.open()
    await world.seen("close", phase="end")
    assert world.oracle.times("running") == 1
    assert sum(world.oracle.times(f"queued-{number}") for number in range(50)) == 0


@pytest.mark.guarantee("G9", servers=OURS, clients=ASYNC)
async def test_a_client_that_never_reads_hurts_nobody(world: World) -> None:
    async with connect(ws_url(world), max_queue=1) as deaf:
        await talk(deaf, frame("reset", mark="raw"))
        for _ in range(20):
            await deaf.send(frame("step", op="big", arg=3_000_000))
        bystander = world.driver(direct=True)
        await bystander.reset()
        assert [(await bystander.step())["count"] for _ in range(10)] == list(range(1, 11))
        deaf.transport.abort()
    await world.wait(world.oracle.wait_until, lambda: len(world.oracle.alive()) == 1)


# ---------------------------------------------------------------- a server that lies


def observation(mark: str = "", **fields: Any) -> str:
    seen = {"mark": mark, "env": "scripted", "count": 1, **fields}
    return json.dumps({"type": "observation", "data": {"observation": seen, "reward": 1.0, "done": False}})


LIES: dict[str, list[str | bytes]] = {
    "state for a step": [json.dumps({"type": "state", "data": {"step_count": 3}})],
    "unknown type": [json.dumps({"type": "surprise", "data": {}})],
    "no type": ["{}"],
    "not json": ["{nope"],
    "an array": ["[]"],
    "empty": [""],
    "binary rubbish": [b"\x00\xff\xfe"],
    "data is a list": [json.dumps({"type": "observation", "data": []})],
    "100,000 nested arrays": ["[" * 100_000 + "]" * 100_000],
    "5,000 digits": ['{"type": "observation", "data": ' + "9" * 5000 + "}"],
    "mcp for a step": [json.dumps({"type": "mcp", "data": {}})],
}


class Script:
    """A server that answers the first step with what it is told to, and everything else properly."""

    def __init__(self, answers: list[str | bytes], *, before: list[str | bytes] | None = None) -> None:
        self.answers = answers
        self.before = before or []
        self.steps: list[str] = []
        self.opened = itertools.count(1)
        self.sessions = 0
        self.go = threading.Event()

    def __call__(self, socket: ServerConnection) -> None:
        self.sessions = next(self.opened)
        with contextlib.suppress(ConnectionClosed):
            self._answer_all(socket, self.sessions == 1)

    def _answer_all(self, socket: ServerConnection, first: bool) -> None:
        for text in socket:
            request = json.loads(text)
            data = request.get("data", {})
            if request["type"] == "step":
                self.steps.append(data["mark"])
                if first:
                    first = False
                    for answer in self.answers:
                        socket.send(answer)
                    continue
            if request["type"] == "state":
                socket.send(json.dumps({"type": "state", "data": {"step_count": 0}}))
                continue
            if request["type"] == "close":
                return
            socket.send(observation(data.get("mark", "")))
            if first and self.before:
                self.go.wait(30)
                for answer in self.before:
                    socket.send(answer)


@contextmanager
def scripted(script: Script) -> Iterator[str]:
    with serve(script, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()


def driver_for(url: str, kind: str) -> Driver:
    client = GenericEnvClient(base_url=url, message_timeout_s=30, connect_timeout_s=30)
    return (SyncDriver if kind == "sync" else Driver)("scripted", client)


@pytest.fixture
def link_client(link: Any) -> str:
    return str(link.client)


@pytest.mark.parametrize("name", LIES)
@pytest.mark.guarantee("G1", "G3", "G4", "G5", hazards=("H4",), servers=OURS)
async def test_a_reply_that_does_not_fit_its_request_loses_the_session(link_client: str, name: str) -> None:
    script = Script(LIES[name])
    with scripted(script) as url:
        driver = driver_for(url, link_client)
        await driver.reset()
        with pytest.raises(SessionLostError) as lost:
            await driver.step(mark="lied-to")
        assert (lost.value.reason, lost.value.outcome) == ("protocol", Outcome.UNKNOWN)
        with pytest.raises(SessionLostError):
            await driver.state()
        await driver.reset()
        await driver.step(mark="after")
        await driver.finish()
    assert script.steps == ["lied-to", "after"]
    assert script.sessions == 2


@pytest.mark.parametrize("extra", [observation("stale"), "{nope", json.dumps({"type": "state", "data": {}})])
@pytest.mark.guarantee("G1", "G4", "G5", hazards=("H4",), servers=OURS)
async def test_a_frame_that_nobody_asked_for_loses_the_session(link_client: str, extra: str) -> None:
    script = Script([], before=[extra])
    with scripted(script) as url:
        driver = driver_for(url, link_client)
        await driver.reset()
        script.go.set()
        await driver.noticed()
        for _ in range(2):
            with pytest.raises(SessionLostError) as lost:
                await driver.step(mark="shifted")
        assert lost.value.reason == "protocol"
        await driver.reset()
        await driver.step(mark="after")
        await driver.finish()
    assert script.steps == ["after"]


@pytest.mark.guarantee("G1", "G4", "G5", hazards=("H4",), servers=OURS)
async def test_two_answers_to_one_step_shift_nothing(link_client: str) -> None:
    script = Script([observation("doubled"), observation("doubled", count=2)])
    with scripted(script) as url:
        driver = driver_for(url, link_client)
        await driver.reset()
        await driver.step(mark="doubled")
        await driver.noticed()
        with pytest.raises(SessionLostError):
            await driver.step(mark="next")
        await driver.reset()
        await driver.step(mark="after")
        await driver.finish()
    assert script.steps == ["doubled", "after"]


ERRORS = {
    "no code": {"message": "odd"},
    "no message": {"code": "EXECUTION_ERROR"},
    "nothing": {},
    "odd types": {"message": 7, "code": ["x"], "errors": "many"},
    "unknown code": {"message": "odd", "code": "TEAPOT"},
    "validation without errors": {"message": "odd", "code": "VALIDATION_ERROR"},
    "validation with odd errors": {"message": "o", "code": "VALIDATION_ERROR", "errors": [{"loc": "abc"}, 7]},
    "loc is a number": {"message": "o", "code": "VALIDATION_ERROR", "errors": [{"loc": 3, "msg": None}]},
    "unknown message": {"message": "odd", "code": "UNKNOWN_TYPE"},
    "applied is odd": {"message": "odd", "code": "EXECUTION_ERROR", "applied": "yes", "error_type": 9},
}


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.guarantee("G3", "G4", "G5", servers=OURS)
async def test_odd_error_frames_are_typed_errors_with_a_text(link_client: str, name: str) -> None:
    script = Script([json.dumps({"type": "error", "data": ERRORS[name]})])
    with scripted(script) as url:
        driver = driver_for(url, link_client)
        await driver.reset()
        with pytest.raises(ServerError):
            await driver.step(mark="refused")
        await driver.step(mark="after")
        await driver.finish()
    assert script.steps == ["refused", "after"]


PAYLOADS: dict[str, Any] = {
    "nothing": {},
    "observation is null": {"observation": None},
    "observation is a list": {"observation": [1, 2]},
    "observation is a text": {"observation": "hello"},
    "reward is a text": {"observation": {"mark": "odd"}, "reward": "high"},
    "done is a number": {"observation": {"mark": "odd"}, "reward": 1, "done": 7},
}


@pytest.mark.parametrize("name", PAYLOADS)
@pytest.mark.guarantee("G3", "G4", "G5", servers=OURS)
async def test_odd_observations_are_given_over_or_typed_errors(link_client: str, name: str) -> None:
    script = Script([json.dumps({"type": "observation", "data": PAYLOADS[name]})])
    with scripted(script) as url:
        driver = driver_for(url, link_client)
        await driver.reset()
        try:
            await driver._checked(driver._run("step", {"mark": "odd"}))
        except OpenEnvError as error:
            outcome = error.outcome
        else:
            outcome = Outcome.APPLIED
        assert outcome is Outcome.APPLIED
        await driver.step(mark="after")
        await driver.finish()
    assert script.steps == ["odd", "after"]


@pytest.mark.guarantee("G3", "G5", "G9", servers=OURS)
async def test_a_typed_error_for_an_action_that_does_not_fit(world: World) -> None:
    driver = world.driver()
    first = await driver.reset()
    with pytest.raises(ActionValidationError) as refused:
        await driver._checked(driver._run("step", {"op": 7, "colour": "red"}))
    assert {"op", "colour"} == {error["loc"][-1] for error in refused.value.errors}
    assert (await driver.step())["env"] == first["env"]
