"""Checks that need a full server: capacity (P16, P17, E3), leases that give way (E19, E25) and the queue (E28).

And E6, which waits longest, so it comes last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from openenv.conformance.report import Note, Violation
from openenv.conformance.server.calls import SLEEP_S
from openenv.conformance.server.opening import FINAL_CODES
from openenv.conformance.server.target import V1, Plain, Target, check, error_of
from openenv.conformance.socket import Frame, Socket, short

__all__: list[str] = []

S = TypeVar("S", bound=Socket)

_SLACK_S = 5.0
_POLL_S = 0.05
_WAITING = 8
_REFUSALS = 3
_REFUSAL_PAUSE_S = 0.15
_QUEUE_S = 30.0


def _plain_session(target: Target) -> tuple[Plain, Frame]:
    one = target.plain()
    try:
        one.send({"type": "state"})
    except Violation:
        pass  # refused and closed already: what it said is there to be read
    return one, one.recv("the answer to state, or a refusal")


def _v1_session(target: Target, *uses: str) -> tuple[V1, Frame]:
    one = target.v1()
    frame = one.ask({"type": "open", "data": {"uses": list(uses)}})
    if frame["type"] == "opened":
        one.took(frame)
    return one, frame


def _filled(
    stack: ExitStack, target: Target, more: Callable[[], tuple[S, Frame]], answer: str
) -> tuple[list[S], S, Frame]:
    """Open sessions until no more are let in. Returns them, the last refused socket, and its refusal.

    The sessions of the check before may still be closing, so one refusal does not say that the server is full.
    """
    held: list[S] = []
    refusals = 0
    deadline = time.monotonic() + target.timeout_s
    while len(held) <= target.fill:
        one, frame = more()
        stack.enter_context(one)
        if frame["type"] == answer:
            held.append(one)
            refusals = 0
            continue
        refusals += 1
        if held and refusals == _REFUSALS:
            return held, one, frame
        if time.monotonic() > deadline:
            raise Note("not-full", f"not one session could be opened: {short(frame)}")
        time.sleep(_REFUSAL_PAUSE_S)
    text = f"the server was not full with {target.fill} sessions; give it a smaller capacity, or --fill"
    raise Note("not-full", text)


def _capacity(frame: Frame) -> Frame:
    error = error_of(frame, "CAPACITY_REACHED")
    numbers = error.get("active_sessions"), error.get("max_sessions")
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in numbers):
        raise Violation("bad-error", f"active_sessions and max_sessions must be numbers: {short(frame)}")
    return error


@check("P17")
def _plain_capacity(target: Target) -> None:
    """what a full server says, and how it closes"""
    with ExitStack() as stack:
        _, refused, frame = _filled(stack, target, lambda: _plain_session(target), "state")
        _capacity(frame)
        if (code := refused.closed()[0]) != 1000:
            raise Violation("wrong-close-code", f"after CAPACITY_REACHED the close code is {code}, not 1000")


@check("P16")
def _slot_is_freed(target: Target) -> None:
    """the end of a socket, by close or without, makes its slot free"""
    for end in ("close", "cut"):
        with ExitStack() as stack:
            held, _, _ = _filled(stack, target, lambda: _plain_session(target), "state")
            if end == "close":
                held[0].send({"type": "close"})
                held[0].closed()
            else:
                held[0].cut()
            _accepted(target, target.timeout_s, f"a session had ended by {end}")


def _accepted(target: Target, seconds: float, after: str) -> None:
    deadline = time.monotonic() + seconds
    while True:
        one, frame = _plain_session(target)
        one.cut()
        if frame["type"] == "state":
            return
        if time.monotonic() > deadline:
            raise Violation("slot-kept", f"{seconds:g} s after {after}, a newcomer was refused: {short(frame)}")
        time.sleep(_POLL_S)


@check("P23", probe=True)
def _waiting_frames(target: Target) -> None:
    """steps that wait are dropped when their peer is gone: its slot is free after the one that runs"""
    with ExitStack() as stack:
        held, _, _ = _filled(stack, target, lambda: _plain_session(target), "state")
        for _ in range(_WAITING):
            held[0].send({"type": "step", "data": {"op": "sleep", "arg": SLEEP_S}})
        held[0].ping()
        held[0].cut()
        try:
            _accepted(target, SLEEP_S * _WAITING / 2, "a client with a step running and others waiting had gone")
        except Violation as said:
            raise Violation("waiting-frame-run", said.text) from None


@check("E3")
def _v1_capacity(target: Target) -> None:
    """what a full server says to open, and how it closes"""
    with ExitStack() as stack:
        _, refused, frame = _filled(stack, target, lambda: _v1_session(target), "opened")
        error = _capacity(frame)
        if not isinstance(error.get("retry_after_s"), int | float):
            raise Violation("bad-error", f"retry_after_s must be a number: {short(frame)}")
        if (code := refused.closed()[0]) != 1013:
            raise Violation("wrong-close-code", f"after CAPACITY_REACHED the close code is {code}, not 1013")


@check("E19", "resume")
def _lease_gives_way(target: Target) -> None:
    """a lease counts towards capacity, and is evicted for who waits"""
    with ExitStack() as stack:
        held, _, _ = _filled(stack, target, lambda: _v1_session(target, "seq", "resume"), "opened")
        leased = held[0]
        leased.call("reset")
        leased.cut()
        one, frame = _v1_session(target)
        one.cut()
        if frame["type"] == "opened":
            raise Violation("over-capacity", "a lease did not count: a newcomer was let in at once")
        deadline = time.monotonic() + target.eviction_s
        while frame["type"] != "opened":
            if time.monotonic() > deadline:
                raise Violation(
                    "lease-kept", f"a lease was not evicted in {target.eviction_s:g} s, though a client waits"
                )
            time.sleep(4 * _POLL_S)
            one, frame = _v1_session(target)
            one.cut()
        leased.gone("evicted")


@check("E25", "resume")
def _own_lease(target: Target) -> None:
    """a client's own lease does not lock it out: release makes room for the open behind it"""
    with ExitStack() as stack:
        held, _, _ = _filled(stack, target, lambda: _v1_session(target, "seq", "resume"), "opened")
        held[0].call("reset")
        held[0].cut()
        again = stack.enter_context(target.v1())
        again.release(held[0].session, held[0].token)
        again.open()


@contextmanager
def _waiting(target: Target, place: int) -> Iterator[V1]:
    with target.v1() as one:
        frame = one.ask({"type": "open", "data": {"uses": ["queue"], "wait_for_slot_s": _QUEUE_S}}, "queued")
        _position(frame, place)
        yield one


def _position(frame: Frame, place: int) -> None:
    data = frame.get("data")
    if frame["type"] != "queued" or not isinstance(data, dict) or data.get("position") != place:
        raise Violation("wrong-position", f"queued with position {place} was due, and {short(frame)} came")


@check("E28", "queue")
def _queue(target: Target) -> None:
    """who waits is told its position, moves up when one leaves, and is served in order"""
    with ExitStack() as stack:
        held, _, _ = _filled(stack, target, lambda: _v1_session(target), "opened")
        first = stack.enter_context(_waiting(target, 1))
        second = stack.enter_context(_waiting(target, 2))
        third = stack.enter_context(_waiting(target, 3))
        second.cut()
        _position(third.recv("a new position"), 2)
        held[0].send({"type": "close"})
        if (frame := first.recv("opened"))["type"] != "opened":
            raise Violation("not-in-order", f"the first who waited was told {short(frame)}")
        _position(third.recv("a new position"), 1)
        third.quiet("while no slot is free")
        first.send({"type": "close"})
        if (frame := third.recv("opened"))["type"] != "opened":
            raise Violation("not-in-order", f"the next who waited was told {short(frame)}")


@check("E28", "queue")
def _queue_in_vain(target: Target) -> None:
    """who has waited long enough is refused"""
    with ExitStack() as stack:
        _filled(stack, target, lambda: _v1_session(target), "opened")
        one = stack.enter_context(target.v1())
        _position(one.ask({"type": "open", "data": {"uses": ["queue"], "wait_for_slot_s": 0.3}}, "queued"), 1)
        _capacity(one.recv("CAPACITY_REACHED"))
        if (code := one.closed()[0]) != 1013:
            raise Violation("wrong-close-code", f"after CAPACITY_REACHED the close code is {code}, not 1013")


@check("E6")
def _first_frame(target: Target) -> None:
    """a socket that stays silent is closed after 10 seconds, with a code that is not final"""
    if target.silent is None:
        return
    socket, since = target.silent
    with socket:
        left = max(_SLACK_S, since + 10.0 + _SLACK_S - time.monotonic())
        code, _, frames = socket.closed(left)
        if code in FINAL_CODES and code != 4003:
            raise Note("final-code", f"the code is {code}")
        if [frame for frame in frames if frame["type"] not in ("welcome", "error")]:
            raise Violation("unasked-frame", f"a silent socket was told {short(frames)}")
