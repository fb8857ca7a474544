"""The client's session machine, explored breadth first: every state it can reach, with every event that can come.

The oracle keeps a history of its own (sessions by the sockets that were opened, what was sent in each, which
resets completed) and knows nothing of the machine's fields.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from openenv.core.exceptions import ConnectError, Outcome, SessionClosedError, SessionLostError
from openenv.core.session.client import ClientMachine
from openenv.core.session.events import (
    Call,
    CloseSocket,
    Complete,
    Dial,
    DialFailure,
    Drop,
    Effect,
    Event,
    Fail,
    GaveUp,
    Log,
    Op,
    Oversized,
    Resumed,
    Send,
)
from openenv.core.session.states import TABLE, IllegalEvent, State
from support.machine import ANSWERS, ASKS, OBSERVATION, STATE_REPLY, error_frame, make

LATE = 100.0
GUARDED = (Op.STEP, Op.STATE, Op.TOOL)
REFUSALS = ("CAPACITY_REACHED", "FACTORY_ERROR")


@dataclass
class History:
    """What has happened, as an onlooker sees it."""

    session: int = 0  # sockets that were opened for a new session, counted
    up: bool = False  # a socket is open
    resumable: bool = False
    reset_asked: bool = False  # the user has called reset() at least once
    lost_once: bool = False  # a session was lost since the last completed reset
    reset_in: int = 0  # session in which the last reset completed
    closed: bool = False
    waiting: Call | None = None  # the one call that has no end yet
    finished: Call | None = None  # the call that ended last
    sent_in: list[int] = field(default_factory=list)  # sessions in which the waiting call was sent
    maybe_applied: bool = False  # the waiting call may have run
    requests: int = 0  # sent in the present session
    born: int = 0  # session at the time the waiting call was made


@dataclass
class World:
    machine: ClientMachine
    history: History = field(default_factory=History)


def twin(world: World, payload: Any) -> tuple[World, Any]:
    """A copy that shares nothing that changes; ``copy.deepcopy`` would do, and take minutes."""
    copies: dict[int, Call] = {}

    def of(call: Call | None) -> Call | None:
        return None if call is None else copies.setdefault(id(call), copy.copy(call))

    machine, history = copy.copy(world.machine), copy.copy(world.history)
    machine.call, history.waiting, history.finished = of(machine.call), of(history.waiting), of(history.finished)
    history.sent_in = list(history.sent_in)
    if isinstance(payload, GaveUp):
        payload = GaveUp(payload.cause, of(payload.call))
    return World(machine, history), payload


def key(world: World) -> tuple[Any, ...]:
    """Worlds with the same key have the same future, as far as the rules can tell."""
    machine, history, call = world.machine, world.history, world.machine.call
    last = history.finished
    return (
        machine.state,
        min(machine.number, 2),
        machine.touched,
        machine.resumable,
        machine.socket_open,
        machine.loss is None,
        machine.needs_reset,
        min(machine.seq, 2),
        machine.seq - machine.last_reply,
        machine.closes > 0,
        machine._reset_begun,
        machine._reset_completed,
        machine._warned_no_reset,
        min(machine._dials, 1),
        machine._dial_error is None,
        machine._return_to,
        None if call is None else (call.op, min(call.sends, 2), call.seq == 0, call.deadline),
        None if last is None else last.op in (Op.CONNECT, Op.STATE),
        history.up,
        history.reset_asked,
        history.lost_once,
        history.reset_in == history.session,
        history.closed,
        history.maybe_applied,
        min(len(history.sent_in), 2),
    )


# ------------------------------------------------------------------ what can come


def events(world: World) -> Iterator[tuple[Event, Any, float]]:
    """Every event that a driver could feed now, with representative payloads."""
    yield Event.CLOSE, None, 0.0
    yield Event.LOOP_CLOSED, None, 0.0
    if world.history.waiting is None:
        yield from asks(world)
    yield from socket_events(world)
    who = world.history.waiting or world.history.finished
    if who is not None:
        yield Event.GAVE_UP, GaveUp("timeout", who), 0.0


def asks(world: World) -> Iterator[tuple[Event, Any, float]]:
    machine = world.machine
    for op in (Op.CONNECT, Op.RESET, Op.STEP, Op.STATE):  # a tool call differs from a step in its answer only
        for deadline in (None, 10.0) if op in (Op.RESET, Op.STEP) else (10.0,):
            yield ASKS.get(op, Event.CALL), machine.new_call(op, deadline=deadline, dial_deadline=deadline), 0.0
        before_close = machine.new_call(op)
        before_close.closes -= 1
        yield ASKS.get(op, Event.CALL), before_close, 0.0
    if machine.number > 1:
        stale = machine.new_call(Op.STEP)
        stale.made_in -= 1
        yield Event.CALL, stale, 0.0


def socket_events(world: World) -> Iterator[tuple[Event, Any, float]]:
    state, call = world.machine.state, world.history.waiting
    if state is State.OPENING:
        yield Event.OPENED, False, 0.0
        yield Event.OPENED, True, 0.0
    if state in (State.OPENING, State.SUSPENDED):
        for now in (0.0, LATE):
            for retryable in (True, False):
                yield Event.DIAL_FAILED, DialFailure(ConnectError("refused"), retryable=retryable), now
    if state is State.SUSPENDED:
        for seq in range(max(0, world.machine.seq - 1), world.machine.seq + 2):
            yield Event.RESUMED, Resumed(seq), 0.0
        yield Event.RESUME_LOST, "expired", 0.0
    if world.history.up:
        # a server that keeps sessions refuses them before their first call (E3)
        for frame in frames(call, refusals=not world.history.resumable):
            yield Event.RECEIVED, frame, 0.0
        yield Event.OVERSIZED, Oversized(11, 10), 0.0
        for drop in (Drop(), Drop(1000), Drop(1009, by_us=True), Drop(1009, "limit of 7"), Drop(4000)):
            yield Event.DROPPED, drop, 0.0


def frames(call: Call | None, *, refusals: bool) -> Iterator[Any]:
    yield OBSERVATION
    yield STATE_REPLY
    for code in ("VALIDATION_ERROR", "EXECUTION_ERROR", "SESSION_ERROR", "", *(REFUSALS if refusals else ())):
        yield error_frame(code)


# ------------------------------------------------------------------ the oracle


def take(world: World, event: Event, payload: Any, now: float) -> None:
    """Feed one event, and check everything that comes out against the history."""
    history, machine = world.history, world.machine
    if isinstance(payload, Call):
        assert history.waiting is None
        history.waiting, history.sent_in, history.maybe_applied = payload, [], False
        history.born = history.session
        stale = payload.closes != machine.closes
        history.reset_asked |= payload.op is Op.RESET and not stale
        history.closed &= stale or payload.op in GUARDED
    was_waiting = history.waiting is not None
    was_closed = history.closed and machine.state is State.CLOSED
    losses = machine.loss
    if event is Event.OPENED:
        history.session += 1
        history.up, history.resumable, history.requests = True, payload, 0
    elif event is Event.RESUMED:
        history.up = True
    elif event is Event.DROPPED:
        history.up = False
    elif event is Event.CLOSE:
        history.closed = True
    refused_first = event is Event.RECEIVED and payload.code in REFUSALS and history.requests == 1
    if refused_first:
        history.maybe_applied = False
    effects = machine.handle(event, payload, now)
    check_order(effects)
    for effect in effects:
        check(world, event, payload, effect)
    if machine.state is State.LOST or machine.loss is not None:
        history.lost_once = True
    check_after(world, event, effects, was_closed, was_waiting, losses)


def check_order(effects: list[Effect]) -> None:
    """The driver gets rid of the old socket before anything else, and ends a call once."""
    kinds = [type(effect) for effect in effects]
    for once in (Send, Dial, CloseSocket):
        assert kinds.count(once) <= 1
    assert kinds.count(Complete) + kinds.count(Fail) <= 1
    if CloseSocket in kinds and (Dial in kinds or Send in kinds):
        assert kinds.index(CloseSocket) < kinds.index(Dial)


def check(world: World, event: Event, payload: Any, effect: Effect) -> None:
    history = world.history
    match effect:
        case CloseSocket():
            history.up = False
        case Send(call):
            check_send(world, event, payload, call)
        case Complete(call, reply):
            check_complete(world, event, payload, call, reply)
        case Fail(call, error):
            check_fail(world, event, call, error)
        case Log(text):
            assert text
        case Dial(delay):
            assert delay >= 0
            assert not history.up
            assert history.waiting is not None or effect.resume


def check_send(world: World, event: Event, payload: Any, call: Call) -> None:
    history = world.history
    assert history.up
    assert not history.closed
    assert call is history.waiting
    assert call.op is not Op.CONNECT
    if call.op in GUARDED:
        # I1: only where this client's last reset completed, or on a client that never reset and never lost
        assert history.reset_in == history.session or not (history.reset_asked or history.lost_once)
        assert event is Event.OPENED or history.session in (history.born, *history.sent_in)
    if history.session in history.sent_in:
        # I3: again only on the server's word that it was not run
        assert event is Event.RESUMED
        assert payload.last_seq == call.seq - 1
    elif history.sent_in:
        assert call.op is Op.RESET or not history.maybe_applied
    if history.session not in history.sent_in:
        history.requests += 1
    history.sent_in.append(history.session)
    history.maybe_applied = True


def check_complete(world: World, event: Event, payload: Any, call: Call, reply: Any) -> None:
    history = world.history
    assert call is history.waiting  # I2
    if call.op is Op.CONNECT:
        assert reply is None
        assert history.up
    else:
        assert event is Event.RECEIVED  # I5
        assert reply is payload
        assert reply.kind == ANSWERS[call.op].kind
        assert history.sent_in[-1] == history.session
        if call.op is Op.RESET:
            history.reset_in, history.lost_once = history.session, False
    history.waiting, history.finished = None, call


def check_fail(world: World, event: Event, call: Call, error: Any) -> None:
    history = world.history
    assert call is history.waiting  # I2
    assert str(error)
    if call.op is Op.RESET:
        assert not isinstance(error, SessionLostError)
    if call.op in GUARDED and error.outcome is Outcome.NOT_APPLIED and history.maybe_applied:
        # only the server's word can say so of a call whose frame has left
        assert event in (Event.RECEIVED, Event.DROPPED)
    if call.op in GUARDED and not history.maybe_applied:
        assert error.outcome is Outcome.NOT_APPLIED or event is Event.RECEIVED
    history.waiting, history.finished = None, call


def check_after(
    world: World, event: Event, effects: list[Effect], was_closed: bool, was_waiting: bool, loss: Any
) -> None:
    machine, history = world.machine, world.history
    assert machine.call is history.waiting  # I2: what has not ended is in flight
    if loss is not None and machine.loss is None:  # I4: only a completed reset clears a loss (close ends everything)
        reset_done = any(isinstance(one, Complete) and one.call.op is Op.RESET for one in effects)
        assert reset_done or event is Event.CLOSE
    if machine.state is State.CLOSED:
        assert not history.up
        if was_closed:  # a closed client sends nothing
            assert not any(isinstance(one, Send | Dial) for one in effects)
            refused = [one.error for one in effects if isinstance(one, Fail)]
            assert all(isinstance(error, SessionClosedError | ConnectError) for error in refused)
    if machine.state is State.SUSPENDED:
        assert history.resumable
    if event in (Event.RECEIVED, Event.OVERSIZED) and not was_waiting:  # rule 2: the pairing is broken
        assert not history.up
        assert machine.state is not State.OPEN


# ------------------------------------------------------------------ the exploration


def explore(machine: ClientMachine) -> tuple[int, set[tuple[Any, Any]], set[tuple[Any, Any]]]:
    """Walk the reachable states; returns how many there are, and the cells that were used and that were illegal."""
    start = World(machine)
    seen = {key(start)}
    queue = deque([start])
    used: set[tuple[Any, Any]] = set()
    illegal: set[tuple[Any, Any]] = set()
    while queue:
        world = queue.popleft()
        probe_illegal(world, illegal)
        row = world.machine.row
        for event, given, now in events(world):
            if (row, event) not in TABLE:
                continue
            used.add((row, event))
            following, payload = twin(world, given)
            try:
                take(following, event, payload, now)
            except AssertionError as error:
                raise AssertionError(f"{event} {payload} in {vars(world.machine)} with {world.history}") from error
            name = key(following)
            if name not in seen:
                seen.add(name)
                queue.append(following)
    return len(seen), used, illegal


def probe_illegal(world: World, illegal: set[tuple[Any, Any]]) -> None:
    """An event without a cell raises and changes nothing."""
    row = world.machine.row
    call = world.machine.call
    for event in Event:
        if (row, event) in TABLE:
            continue
        before, inside = dict(vars(world.machine)), None if call is None else copy.copy(call)
        payload = world.machine.new_call(Op.STEP) if event in (Event.CONNECT, Event.RESET, Event.CALL) else None
        with pytest.raises(IllegalEvent) as caught:
            world.machine.handle(event, payload)
        assert (caught.value.row, caught.value.event) == (row, event)
        assert vars(world.machine) == before
        if call is not None:
            assert [getattr(call, name) for name in Call.__slots__] == [
                getattr(inside, name) for name in Call.__slots__
            ]
        illegal.add((row, event))


@pytest.mark.timeout(600)  # some 30,000 states
@pytest.mark.parametrize("require_reset", [False, True])
def test_every_reachable_state_keeps_the_invariants(require_reset: bool) -> None:
    states, used, illegal = explore(make(require_reset=require_reset))
    assert used == set(TABLE)  # the walk has used every rule
    assert not illegal & set(TABLE)
    assert states > 10_000
