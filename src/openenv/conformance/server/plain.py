"""Checks of the plain dialect (P1 to P22) that any server can be asked for. Those about capacity are in ``slots``."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

from websockets.exceptions import ConnectionClosed

from openenv.conformance.report import Note, Skip, Violation
from openenv.conformance.server.target import Plain, Target, check, error_of, observation_of
from openenv.conformance.socket import Frame, short

__all__: list[str] = []

_KNOWN = {"observation", "reward", "done", "metadata"}
_OVER = 17 * 1024 * 1024


@check("P1")
def _silence(target: Target) -> None:
    """nothing is said before the first request"""
    with target.plain() as one:
        if one.subprotocol is not None:
            raise Violation("unasked-subprotocol", f"the server chose {one.subprotocol!r}, which was not offered")
        one.quiet("before it was asked anything")
        one.alive("a silent start")


@check("P2", probe=True)
def _pipelined(target: Target) -> None:
    """frames that are sent together are answered in order"""
    with target.plain() as one:
        for frame in ({"type": "reset"}, _inc("a"), {"type": "state"}, _inc("b")):
            one.send(frame)
        kinds, replies = [], []
        for _ in range(4):
            replies.append(one.recv("the answer to a pipelined frame"))
            kinds.append(replies[-1]["type"])
        if kinds != ["observation", "observation", "state", "observation"]:
            raise Violation("out-of-order", f"reset, step, state and step were answered by {', '.join(kinds)}")
        counts = [one.count(replies[at]) for at in (0, 1, 3)]
        if counts != [0, 1, 2]:
            raise Violation("out-of-order", f"the environment had counted {counts} where 0, 1, 2 was due")
        one.quiet("after the last answer")


def _inc(mark: str) -> Frame:
    return {"type": "step", "data": {"op": "inc", "arg": mark}}


@check("P3")
def _observation(target: Target) -> None:
    """the shape of answers to reset and step"""
    with target.plain() as one:
        frames = [one.ask({"type": "reset"})]
        try:
            frames.append(one.ask(target.step_frame()))
        except Skip:
            pass  # reset alone can be asked of any environment
        for frame in frames:
            if frame["type"] == "error" and frame is not frames[0] and not target.probe:
                raise Note("action-refused", f"the action that was given is refused: {short(frame)}")
            data = observation_of(frame)
            reward, done = data.get("reward", "missing"), data.get("done")
            if not (reward is None or isinstance(reward, bool | int | float)):
                raise Violation("bad-reward", f"'reward' must be a number or null: {short(frame)}")
            if not isinstance(done, bool):
                raise Violation("bad-done", f"'done' must be true or false: {short(frame)}")
            if more := sorted(set(data) - _KNOWN) or sorted(set(frame) - {"type", "data"}):
                raise Note("more-members", f"an answer has more than the dialect knows: {', '.join(more)}")


@check("P4")
def _state(target: Target) -> None:
    """state is an object, and takes no data"""
    with target.plain() as one:
        frame = one.ask({"type": "state"})
        if frame["type"] != "state" or not isinstance(frame.get("data"), dict):
            raise Violation("bad-state", f"state was answered by {short(frame)}")
        error_of(one.ask({"type": "state", "data": {}}), "VALIDATION_ERROR")
        one.alive("a state with data")


@check("P5", probe=True)
def _own_environment(target: Target) -> None:
    """two sockets do not meet"""
    with target.plain() as one, target.plain() as two:
        one.ask({"type": "reset"})
        two.ask({"type": "reset"})
        first, second, other = one.step(), one.step(), two.step()
        if (one.count(second), two.count(other)) != (2, 1) or one.env(first) != one.env(second):
            raise Violation("mixed-environments", "steps on one socket were counted on another, or not where they ran")
        if one.env(second) == two.env(other):
            raise Violation("shared-environment", f"two sockets were answered by environment {one.env(second)!r}")


@check("P6")
def _no_order(target: Target) -> None:
    """state and step before a reset"""
    with target.plain() as one:
        one.alive("nothing")
        frame = one.ask(target.step_frame())
        if frame["type"] == "error" and not target.probe:  # the environment's own rules may forbid it
            error_of(frame, "EXECUTION_ERROR", "VALIDATION_ERROR")
            one.alive("a step before any reset")
        else:
            observation_of(frame)


@check("P6", probe=True)
def _past_done(target: Target) -> None:
    """a step after done"""
    with target.plain() as one:
        one.ask({"type": "reset"})
        if observation_of(one.step("done"))["done"] is not True:
            raise Violation("bad-done", "the op 'done' was answered without done")
        observation_of(one.step())


@check("P7")
def _closed_envelopes(target: Target) -> None:
    """unknown members of a request"""
    with target.plain() as one:
        for frame in (
            {"type": "reset", "data": {}, "request_id": "r1"},
            {"type": "step", "data": {"op": "inc"}, "id": 1},
            {"type": "state", "seq": 1},
            {"type": "close", "why": "x"},
        ):
            error_of(one.ask(frame), "VALIDATION_ERROR")
        one.alive("requests with unknown members")


@check("P8")
def _step_data(target: Target) -> None:
    """step without data, and with what is no action"""
    with target.plain() as one:
        frames: list[Frame] = [{"type": "step"}, {"type": "step", "data": None}, {"type": "step", "data": [1]}]
        for frame in frames:
            error_of(one.ask(frame), "VALIDATION_ERROR")
        one.alive("steps without an action")


@check("P8", probe=True)
def _step_action(target: Target) -> None:
    """the data of step is the action itself"""
    with target.plain() as one:
        one.ask({"type": "reset"})
        for data in ({"op": "inc", "bogus": 1}, {"action": {"op": "inc"}}):
            error_of(one.ask({"type": "step", "data": data}), "VALIDATION_ERROR")
        seen = one.step("echo", {"n": [1, None, "é"]})
        if observation_of(seen)["observation"].get("echo") != {"n": [1, None, "é"]}:
            raise Violation("changed-value", f"the action's value came back as {short(seen)}")
        if one.count(seen) != 1:
            raise Violation("bad-action-run", "a step with a wrong action was run")


@check("P9")
def _reset_data(target: Target) -> None:
    """reset without data, with arguments, and with null"""
    with target.plain() as one:
        for frame in ({"type": "reset"}, {"type": "reset", "data": {}}, {"type": "reset", "data": {"seed": 3}}):
            observation_of(one.ask(frame))
        error_of(one.ask({"type": "reset", "data": None}), "VALIDATION_ERROR")
        one.alive("a reset with null")


@check("P10")
def _invalid_json(target: Target) -> None:
    """text that is not JSON"""
    with target.plain() as one:
        for text in ("not json", "", '{"type":"state"} x', '{"type":"state"'):
            error_of(one.ask(text), "INVALID_JSON")
            one.alive(f"the frame {text!r}")


@check("P11")
def _unknown_type(target: Target) -> None:
    """a type that is missing or unknown"""
    with target.plain() as one:
        frames: list[Frame] = [{"type": "zzz"}, {}, {"type": None}, {"type": 5}, {"data": {}}]
        for frame in frames:
            error_of(one.ask(frame), "UNKNOWN_TYPE")
        one.alive("frames of unknown type")


@check("P12")
def _validation_error(target: Target) -> None:
    """the list of errors"""
    with target.plain() as one:
        errors = error_of(one.ask({"type": "step"}), "VALIDATION_ERROR").get("errors")
        if not isinstance(errors, list) or not errors or not all(_is_error(entry) for entry in errors):
            raise Violation("bad-errors", f"'errors' must be a list of type, loc and msg, and is {short(errors)}")
        one.alive("a VALIDATION_ERROR")


def _is_error(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    shapes = (("type", str), ("loc", list), ("msg", str))
    return all(isinstance(entry.get(name), kind) for name, kind in shapes)


@check("P13", probe=True)
def _execution_error(target: Target) -> None:
    """an environment that raises"""
    with target.plain() as one:
        one.ask({"type": "reset"})
        one.step()
        error = error_of(one.step("raise", "kaput"), "EXECUTION_ERROR")
        if one.count(one.step()) != 2:
            raise Violation("session-lost", "the environment after an EXECUTION_ERROR is another, or was reset")
        if "kaput" not in error["message"]:
            raise Note("hidden-message", f"the message does not say what was raised: {error['message']!r}")


@check("P15")
def _close(target: Target) -> None:
    """close is answered by the end of the socket alone"""
    with target.plain() as one:
        one.ask({"type": "reset"})
        one.send({"type": "close"})
        code, _, frames = one.closed()
        if frames:
            raise Violation("close-answered", f"close was answered by {short(frames[0])}")
        if code != 1000:
            raise Violation("wrong-close-code", f"close was answered by close code {code}, not 1000")


@check("P18")
def _session_error(target: Target) -> None:
    """attaching to a session that does not exist"""
    with target.plain("?session_id=there-is-none") as one:
        error_of(one.recv("SESSION_ERROR"), "SESSION_ERROR")
        if (code := one.closed()[0]) != 1000:
            raise Violation("wrong-close-code", f"the close code is {code}, not 1000")


@check("P19")
def _mcp(target: Target) -> None:
    """mcp frames carry JSON-RPC, and their failures"""
    with target.plain() as one:
        _rpc(one.ask({"type": "mcp", "data": {"jsonrpc": "2.0", "id": 7, "method": "nope"}}), 7, -32601)
        _rpc(one.ask({"type": "mcp", "data": {}}), None, -32600)
        error_of(one.ask({"type": "mcp"}), "VALIDATION_ERROR")
        one.alive("mcp frames")


def _rpc(frame: Frame, number: int | None, code: int) -> None:
    data = frame.get("data")
    if frame["type"] != "mcp" or not isinstance(data, dict) or data.get("jsonrpc") != "2.0":
        raise Violation("bad-rpc", f"an mcp frame was answered by {short(frame)}")
    error = data.get("error")
    if data.get("id") != number or not isinstance(error, dict):
        raise Violation("bad-rpc", f"a JSON-RPC error with id {number} was due: {short(frame)}")
    if error.get("code") != code:
        raise Violation("wrong-rpc-code", f"JSON-RPC error {code} was due, and {error.get('code')} came")


@check("P20")
def _size(target: Target) -> None:
    """a frame of 17 MiB"""
    payload = json.dumps({"type": "zzz", "padding": "x" * _OVER}).encode()
    header = b"\x81\xff" + struct.pack("!Q", len(payload)) + bytes(4)  # text, masked with zeros
    with target.plain() as one:
        one.ask({"type": "state"})
        try:
            one.ws.socket.sendall(header + payload[:1000])
            if not _refused(one, 0.5):  # most servers refuse when they read the length
                one.ws.socket.sendall(payload[1000:])  # may break off: then what the server said is lost
                if not _refused(one, one.timeout_s * 3):
                    raise Violation("no-answer", "a frame of 17 MiB was neither answered nor refused")
        except OSError:
            raise Note("abrupt-end", "the connection was reset, so its close code is not known") from None


def _refused(one: Plain, seconds: float) -> bool:
    """Whether the frame was answered or refused in this time."""
    try:
        error_of(json.loads(one.ws.recv(seconds)), "UNKNOWN_TYPE", "VALIDATION_ERROR")
    except TimeoutError:
        return False
    except ConnectionClosed as closed:
        code = closed.rcvd.code if closed.rcvd else "missing"
        if code != 1009:
            raise Violation("wrong-close-code", f"a frame of 17 MiB: the close code is {code}, not 1009") from None
    return True


@check("P21")
def _non_object(target: Target) -> None:
    """JSON that is no object"""
    for text in ("[1]", "5", "null", '"s"'):
        with target.plain() as one:
            one.ask({"type": "reset"})
            _survives(one, text, "non-object-fatal")


@check("P21")
def _binary(target: Target) -> None:
    """a binary frame"""
    with target.plain() as one:
        one.ask({"type": "reset"})
        _survives(one, b"\x00\x01", "binary-fatal")


def _survives(one: Plain, frame: str | bytes, name: str) -> None:
    try:
        error_of(one.ask(frame))
        one.alive(f"the frame {frame!r}")
    except Violation as said:
        raise Violation(name, f"the frame {frame!r} ended the session: {said.text}") from None


@check("P22", probe=True)
def _values_out(target: Target) -> None:
    """a reward that is NaN"""
    with target.plain() as one:
        frame = one.step("nan")
        if frame["type"] == "error":
            error_of(frame)
        elif (reward := observation_of(frame).get("reward")) is None:
            raise Violation("nan-to-null", "the reward NaN arrived as null")
        elif not (isinstance(reward, float) and math.isnan(reward)):
            raise Violation("changed-value", f"the reward NaN arrived as {reward!r}")
        one.alive("a reward that is NaN")


@check("P22", probe=True)
def _values_back(target: Target) -> None:
    """NaN and infinity in an action"""
    with target.plain() as one:
        frame = one.ask('{"type":"step","data":{"op":"echo","arg":[NaN,Infinity,-Infinity]}}')
        if frame["type"] == "error":
            error_of(frame)
            return
        echo = observation_of(frame)["observation"].get("echo")
        if echo == [None, None, None]:
            raise Violation("nan-to-null", "NaN and infinities in an action came back as null")
        if not (isinstance(echo, list) and len(echo) == 3 and echo[0] != echo[0] and echo[1:] == [math.inf, -math.inf]):
            raise Violation("changed-value", f"NaN and infinities came back as {short(echo)}")
