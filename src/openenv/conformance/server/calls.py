"""Checks of numbered calls (E7 to E12) and of giving up (E13)."""

from __future__ import annotations

import json

from openenv.conformance.report import Note, Violation
from openenv.conformance.server.target import V1, Target, check, error_of, observation_of
from openenv.conformance.socket import QUIET_S, Frame, short

__all__: list[str] = []

SLEEP_S = 0.6
_SMALL = 4000


def numbered(frame: Frame, seq: int) -> Frame:
    """See that a frame answers call ``seq``."""
    if frame.get("seq") != seq:
        raise Violation("wrong-seq", f"number {seq} was due on {short(frame)}")
    return frame


def _pass_over(one: V1) -> None:
    """Whether the second of two equal frames gets an answer of its own is the server's choice."""
    try:
        one.ws.recv(QUIET_S)
    except TimeoutError:
        pass


@check("E7", "seq")
def _numbers(target: Target) -> None:
    """every answer has the number of its request"""
    with target.v1().open("seq") as one:
        numbered(one.call("reset"), 1)
        numbered(one.call("state"), 2)
        numbered(one.call("mcp", jsonrpc="2.0", id=1, method="nope"), 3)
        numbered(one.call("step", no_such_field=1), 4)
        numbered(one.call("reset"), 5)


@check("E7", "seq")
def _no_number(target: Target) -> None:
    """a request without a number is refused"""
    with target.v1().open("seq") as one:
        one.call("reset")
        error_of(one.ask({"type": "reset"}))
        numbered(one.call("state"), 2)


@check("E8", "seq", probe=True)
def _replay(target: Target) -> None:
    """the last request again is answered by the cached bytes, and not run"""
    with target.v1().open("seq") as one:
        one.call("reset")
        text = one.request("step", op="inc")
        one.send(text)
        one.answer()
        first = one.raw
        one.send(text)
        one.answer()
        if one.raw != first:
            raise Violation("not-replayed", f"the answer was {short(first)} and at the second time {short(one.raw)}")
        if (count := one.count(one.step())) != 2:
            raise Violation("run-twice", f"after a request that was sent twice, the environment has counted {count}")


@check("E8", "seq", probe=True)
def _replay_while_running(target: Target) -> None:
    """the running request again waits for its one reply"""
    with target.v1().open("seq") as one:
        one.call("reset")
        text = one.request("step", op="sleep", arg=SLEEP_S)
        one.send(text)
        one.send(text)
        numbered(one.answer(), 2)
        _pass_over(one)
        if (count := one.count(one.step())) != 2:
            raise Violation("run-twice", f"after a request that was sent twice, the environment has counted {count}")


@check("E8", "seq", probe=True)
def _other_bytes(target: Target) -> None:
    """the last number with another request"""
    with target.v1().open("seq") as one:
        one.call("reset")
        one.step("echo", "a")
        error_of(one.call("step", 2, op="echo", arg="b"), "SEQ_MISMATCH", applied=False)
        if (count := one.count(one.call("step", 3, op="inc"))) != 2:
            raise Violation("mismatch-run", f"a request with a used number was run: {count} counted")


@check("E8", "seq", probe=True)
def _out_of_order(target: Target) -> None:
    """numbers that are lower, or leave a gap"""
    with target.v1().open("seq") as one:
        error_of(one.call("reset", 2), "SEQ_OUT_OF_ORDER", applied=False)
        one.call("reset", 1)
        one.call("step", 2, op="inc")
        for seq in (1, 4, 0, -3):
            frame = one.call("step", seq, op="inc")
            codes = ("SEQ_OUT_OF_ORDER",) if seq > 0 else ("SEQ_OUT_OF_ORDER", "VALIDATION_ERROR")
            error_of(frame, *codes, applied=False)
        if (count := one.count(one.call("step", 3, op="inc"))) != 2:
            raise Violation("out-of-order-run", f"a request out of order was run: {count} counted")


@check("E9", "seq", probe=True)
def _bytes(target: Target) -> None:
    """the same JSON in other bytes is another request"""
    with target.v1().open("seq") as one:
        one.call("reset")
        one.step()
        one.send(json.dumps({"type": "step", "seq": 2, "data": {"op": "inc", "arg": None}}, indent=1))
        error_of(one.answer(), "SEQ_MISMATCH", applied=False)


@check("E10", probe=True)
def _reply_too_large(target: Target) -> None:
    """a reply over the client's limit becomes an error, and the session goes on"""
    with target.v1().open("seq", max_message_bytes=_SMALL) as one:
        one.call("reset")
        frame = one.step("big", 3 * _SMALL)
        error = error_of(frame, "REPLY_TOO_LARGE", applied=True)
        if error.get("limit") != _SMALL or not isinstance(error.get("size"), int) or error["size"] <= _SMALL:
            raise Violation("bad-error", f"size and limit ({_SMALL}) were due in {short(frame)}")
        if one.count(one.step()) != 2:
            raise Violation("session-lost", "the step with the large reply, or the session, is gone")


@check("E11", "seq", probe=True)
def _applied(target: Target) -> None:
    """every error says whether its call was applied"""
    with target.v1().open("seq") as one:
        one.call("reset")
        for frame, values in (
            (one.step("raise", "boom"), (True, False, None)),
            (one.call("step", bogus=1), (False,)),
            (one.call("nope"), (False,)),
        ):
            error = error_of(frame)
            if "applied" not in error or not any(error["applied"] is value for value in values):
                due = " or ".join(json.dumps(value) for value in values)
                raise Violation("no-applied", f"'applied' must be {due} in {short(frame)}")


@check("E12", "seq", probe=True)
def _busy(target: Target) -> None:
    """while a call runs, pings are answered and a second call is refused"""
    with target.v1().open("seq") as one:
        one.call("reset")
        one.send(one.request("step", op="sleep", arg=SLEEP_S * 2))
        one.ping()
        frame = one.call("step", 3, op="inc")
        error_of(frame, "BUSY", applied=False)
        numbered(frame, 3)
        one.seq = 2
        numbered(one.answer(), 2)
        if (count := one.count(one.step())) != 2:
            raise Violation("busy-run", f"a call that was refused with BUSY was run, or was queued: {count} counted")


@check("E13", "cancel", probe=True)
def _cancel_before(target: Target) -> None:
    """a call that is cancelled before it comes is not run"""
    with target.v1().open() as one:
        one.call("reset")
        error_of(numbered(one.ask({"type": "cancel", "seq": 2}), 2), "CANCELLED", applied=False)
        one.send({"type": "cancel", "seq": 2})
        _pass_over(one)
        error_of(numbered(one.call("step", 2, op="inc"), 2), "CANCELLED", applied=False)
        if (count := one.count(one.step())) != 1:
            raise Violation("cancelled-run", f"a call that was cancelled before it came was run: {count} counted")


@check("E13", "cancel", probe=True)
def _cancel_after(target: Target) -> None:
    """a call that is finished is not answered again"""
    with target.v1().open() as one:
        one.call("reset")
        one.step()
        one.send({"type": "cancel", "seq": 2})
        one.quiet("to the cancel of a call that was answered")
        if (count := one.count(one.step())) != 2:
            raise Violation("cancel-changed", f"cancelling a finished call changed something: {count} counted")


@check("E13", "cancel", probe=True)
def _cancel_running(target: Target) -> None:
    """a running call ends once, with its result or with CANCELLED"""
    with target.v1().open() as one:
        one.call("reset")
        one.send(one.request("step", op="sleep", arg=SLEEP_S * 2))
        one.send({"type": "cancel", "seq": 2})
        one.send({"type": "cancel", "seq": 2})
        frame = numbered(one.answer(), 2)
        if frame["type"] == "error":
            error = error_of(frame)
            if "applied" not in error:
                raise Violation("no-applied", f"'applied' is missing in {short(frame)}")
        else:
            observation_of(frame)
        one.send({"type": "cancel", "seq": 2})
        one.quiet("after the answer of a cancelled call")
        observation_of(one.step())


@check("E13", "cancel")
def _cancel_gap(target: Target) -> None:
    """cancelling a number out of order runs nothing, and ends nothing"""
    with target.v1().open() as one:
        one.call("reset")
        frame = one.ask({"type": "cancel", "seq": 9})
        error_of(frame, "SEQ_OUT_OF_ORDER")
        if one.call("state")["type"] != "state":
            raise Note("session-lost", "the session did not outlive the cancel of a far number")
