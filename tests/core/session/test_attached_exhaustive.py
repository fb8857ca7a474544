"""The session machine of a client of tools, explored breadth first: every state it can reach, with every event.

The oracle keeps a history of its own (sessions that were made, sockets, requests and what is known of each) and knows
nothing of the machine's fields.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from openenv.core.exceptions import (
    CapacityError,
    ConnectError,
    LateResultError,
    Outcome,
    OutcomeUnknownError,
    ServerError,
    SessionLostError,
)
from openenv.core.session.attached import AttachedMachine
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
    Op,
    Oversized,
    Post,
    PostFailure,
    SayRelease,
    Send,
    Tell,
)
from openenv.core.session.states import ATTACHED_TABLE, IllegalEvent, State
from openenv.core.wire.messages import Reply
from support.attached import FORGOTTEN, GONE, HELD, PLAIN_HELD, TOOL_ANSWER, make
from support.machine import ASKS, OBSERVATION, STATE_REPLY, error_frame

LATE = 100.0
HTTP = (Op.TOOL, Op.LIST_TOOLS)
ACTS = (Op.STEP, Op.TOOL)
TOOL_FAILED = Reply("mcp", {"jsonrpc": "2.0", "error": {"code": -32603, "message": "boom", "data": None}})
ANSWERED = {Op.RESET: "observation", Op.STEP: "observation", Op.STATE: "state", Op.TOOL: "mcp", Op.LIST_TOOLS: "mcp"}
NETWORK = (Event.DROPPED, Event.DIAL_FAILED, Event.POST_FAILED, Event.OPENING_OVER, Event.GAVE_UP)
"""What a network or an impatient caller can do; none of it ends a session."""


@dataclass
class History:
    """What has happened, as an onlooker sees it."""

    made: int = 0  # sessions, counted; the last one is the present one
    open: frozenset[int] = frozenset()  # those that the server has, for all that is known
    alive: bool = False  # the present one is among them and not given up
    idempotent: bool = False
    up: bool = False  # a socket is attached
    dialing: bool = False
    posting: bool = False
    touched: bool = False  # a call was sent in the present session
    reset_asked: bool = False
    reset_in: int = 0
    lost_once: bool = False
    closed: bool = False
    waiting: Call | None = None
    finished: Call | None = None
    answer: Reply | None = None
    born: int = 0
    sends: int = 0  # of the waiting call
    doubt: bool = False  # an earlier sending of it may have run
    out: bool = False  # a sending of it is under way
    owing: bool = False  # the next call is to be told of one that was given up
    stale: bool = False


@dataclass
class World:
    machine: AttachedMachine
    history: History = field(default_factory=History)


def twin(world: World, payload: Any) -> tuple[World, Any]:
    copies: dict[int, Call] = {}

    def of(call: Call | None) -> Call | None:
        return None if call is None else copies.setdefault(id(call), copy.copy(call))

    machine, history = copy.copy(world.machine), copy.copy(world.history)
    machine.call = of(machine.call)
    history.waiting, history.finished = of(history.waiting), of(history.finished)
    if isinstance(payload, GaveUp):
        payload = replace(payload, call=of(payload.call))
    return World(machine, history), payload


def key(world: World) -> tuple[Any, ...]:
    """Worlds with the same key have the same future, as far as the rules can tell."""
    machine, history, call, last = world.machine, world.history, world.machine.call, world.history.finished
    opening = (min(machine._dials, 1), machine._dial_error is None, machine._return_to, machine._busy)
    return (
        machine.state,
        min(machine.number, 2),
        machine.touched,
        machine.held and machine.held.idempotent,
        machine.socket_open,
        machine.loss is None,
        machine.needs_reset,
        min(machine.seq, 2),
        machine.closes > 0,
        machine._reset_begun,
        machine._reset_completed and machine._require_reset,
        machine._warned_no_reset or machine._reset_begun,
        machine._acted,
        machine._cut,
        min(machine._vanished, 2),
        opening if machine.state is State.OPENING else min(machine._dials, 1),
        None if call is None else (call.op, min(call.sends, 2), call.seq == 0, call.deadline, call.doubtful),
        None if machine.due is None else machine.due.error is None,
        None if last is None or history.answer is None else last.op in (Op.RESET, *ACTS),
        (history.up, history.alive, history.posting, history.touched, history.reset_in == history.made),
        (history.reset_asked, history.lost_once, history.closed, history.owing, history.doubt, history.out),
        None if history.waiting is None else min(history.sends, 2),
        history.stale,
    )


# ------------------------------------------------------------------ what can come


def events(world: World) -> Iterator[tuple[Event, Any, float]]:
    """Every event that a driver could feed now, with representative payloads."""
    yield Event.CLOSE, None, 0.0
    yield Event.LOOP_CLOSED, None, 0.0
    history, machine = world.history, world.machine
    if history.waiting is None:
        yield from asks(machine)
    if history.dialing:
        yield from dials(history)
    if history.posting:
        yield from posts()
    if history.up:
        for frame in (
            OBSERVATION,
            STATE_REPLY,
            *map(error_frame, ("EXECUTION_ERROR", "SESSION_ERROR", "UNKNOWN_TYPE")),
        ):
            yield Event.RECEIVED, frame, 0.0
        yield Event.RECEIVED, Reply("error", {"code": "SESSION_ERROR", "message": GONE}), 0.0
        yield Event.OVERSIZED, Oversized(11, 10), 0.0
        for drop in (Drop(), Drop(4003, "replaced"), Drop(1009, "limit of 7"), Drop(1009, by_us=True)):
            yield Event.DROPPED, drop, 0.0
    if history.waiting is not None:
        yield Event.GAVE_UP, GaveUp("timeout", history.waiting), 0.0
        yield Event.GAVE_UP, GaveUp("cancelled", history.waiting), 0.0
    elif history.finished is not None and history.answer is not None:
        yield Event.GAVE_UP, GaveUp("cancelled", history.finished, history.answer), 0.0


def refused(*, retryable: bool = True, busy: bool = False) -> DialFailure:
    return DialFailure(ConnectError("refused"), retryable=retryable, busy=busy)


def asks(machine: AttachedMachine) -> Iterator[tuple[Event, Any, float]]:
    for op in (Op.CONNECT, Op.RESET, Op.STEP, Op.STATE, Op.TOOL, Op.LIST_TOOLS, Op.SETTLE):
        yield ASKS.get(op, Event.CALL), machine.new_call(op, deadline=50.0, dial_deadline=10.0, size=8), 0.0
    before_close = machine.new_call(Op.TOOL)
    before_close.closes -= 1
    yield Event.CALL, before_close, 0.0
    if machine.number > 1:
        for op in ACTS:
            elsewhere = machine.new_call(op)
            elsewhere.made_in -= 1
            yield Event.CALL, elsewhere, 0.0


def dials(history: History) -> Iterator[tuple[Event, Any, float]]:
    for now in (0.0, LATE):
        yield Event.DIAL_FAILED, refused(), now  # a new error each time: the machine notes on it what it knows
    yield Event.DIAL_FAILED, refused(retryable=False), 0.0
    yield Event.OPENING_OVER, None, 0.0
    if history.alive:
        yield Event.REACHED, None, 0.0
        yield Event.ATTACHED, None, 0.0
        yield Event.RESUME_LOST, GONE, 0.0
        yield Event.DIAL_FAILED, refused(busy=True), 0.0
    else:
        yield Event.CREATED, HELD, 0.0
        yield Event.CREATED, PLAIN_HELD, 0.0
        yield Event.DIAL_FAILED, DialFailure(CapacityError(active=1, max=1), retryable=False), 0.0


def posts() -> Iterator[tuple[Event, Any, float]]:
    for reply in (TOOL_ANSWER, TOOL_FAILED, FORGOTTEN):
        yield Event.POSTED, reply, 0.0
    for doubtful, retryable in ((False, True), (True, True), (False, False)):
        for now in (0.0, LATE):
            error = ServerError("no answer") if doubtful else ConnectError("refused")
            yield Event.POST_FAILED, PostFailure(error, doubtful=doubtful, retryable=retryable), now
    yield Event.RESUME_LOST, GONE, 0.0


# ------------------------------------------------------------------ the oracle


def take(world: World, event: Event, payload: Any, now: float) -> None:
    """Feed one event, and check everything that comes out against the history."""
    history, machine = world.history, world.machine
    if isinstance(payload, Call):
        history.waiting, history.born, history.sends = payload, history.made, 0
        history.doubt = history.out = False
        history.stale = payload.closes != machine.closes or payload.made_in != machine.number
        history.reset_asked |= payload.op is Op.RESET and payload.closes == machine.closes
    note(history, event, payload)
    effects = machine.handle(event, payload, now)
    kinds = [type(effect) for effect in effects]
    for once in (Send, Post, Dial, CloseSocket, SayRelease):
        assert kinds.count(once) <= 1
    assert kinds.count(Complete) + kinds.count(Fail) <= 1
    for effect in effects:
        check(world, event, payload, effect)
    if event is Event.LOOP_CLOSED:
        history.posting = history.up = False
    check_after(world, event)


def note(history: History, event: Event, payload: Any) -> None:
    """What the event itself tells."""
    history.dialing &= event not in (Event.CREATED, Event.ATTACHED, Event.DIAL_FAILED, Event.RESUME_LOST)
    history.posting &= event not in (Event.POSTED, Event.POST_FAILED, Event.RESUME_LOST)
    match event:
        case Event.CREATED:
            history.made += 1
            history.open |= {history.made}
            history.alive, history.touched, history.idempotent = True, False, payload.idempotent
        case Event.ATTACHED:
            history.up = True
        case Event.RESUME_LOST:
            forget(history)
            history.out = False
        case Event.DROPPED:
            history.up = False
        case Event.POST_FAILED:
            history.doubt |= payload.doubtful
            history.out = False
        case Event.CLOSE:
            history.closed = True
        case Event.RECEIVED if payload.is_error and str(payload.data.get("message")) == GONE and history.out:
            if history.waiting is not None and history.waiting.op not in HTTP:
                forget(history)
                history.out = False
        case Event.CONNECT | Event.RESET:
            history.closed = False if not history.stale else history.closed


def forget(history: History) -> None:
    """The server has said that it does not know the present session."""
    history.open -= {history.made}
    history.alive = history.up = False


def check(world: World, event: Event, payload: Any, effect: Effect) -> None:
    history, machine = world.history, world.machine
    match effect:
        case CloseSocket():
            history.up = history.dialing = False
        case SayRelease():
            released = machine.held_farewells()
            assert released  # G12: and each once
            history.open -= {history.made}
            history.alive = False
        case Dial(delay):
            assert delay >= 0
            assert history.waiting is not None
            assert not history.up
            assert not history.dialing
            history.dialing = True
        case Send(call) | Post(call):
            check_send(history, call, over_http=isinstance(effect, Post))
        case Complete(call, reply):
            check_complete(history, event, payload, call, reply)
        case Fail(call, error):
            check_fail(history, event, payload, call, error)
        case Tell(loss):
            if loss is None:
                assert event is Event.ATTACHED
            else:  # only the server's word, or a mix-up, ends a session
                assert event not in NETWORK
                history.lost_once = True


def check_send(history: History, call: Call, *, over_http: bool) -> None:
    assert call is history.waiting
    assert not history.closed
    assert history.alive
    assert over_http == (call.op in HTTP)
    assert over_http or history.up
    assert not history.posting
    assert not history.owing or call.op is Op.RESET
    if call.op is not Op.RESET:  # I1
        assert history.reset_in == history.made or not (history.reset_asked or history.lost_once)
        assert history.born in (0, history.made) or not history.touched
        history.born = history.made  # an unused session may be replaced under its first call
    if call.op in ACTS and history.sends:  # I3, G2
        assert call.op is Op.TOOL
        assert history.idempotent or not history.doubt
        assert history.born in (0, history.made)
    history.sends += 1
    history.out, history.touched = True, True
    history.posting = over_http


def end(history: History, answer: Reply | None) -> None:
    call, history.waiting = history.waiting, None
    history.finished, history.answer = (call, answer) if answer is not None else (None, None)
    history.out = history.posting = False


def check_complete(history: History, event: Event, payload: Any, call: Call, reply: Any) -> None:
    assert call is history.waiting  # I2
    if call.op is Op.CONNECT:
        assert history.up
    elif call.op is Op.SETTLE:
        history.owing = False
    else:
        assert history.out
        assert event is (Event.POSTED if call.op in HTTP else Event.RECEIVED)  # I5
        assert reply.kind == ANSWERED[call.op]
        by_new_session = call.op is Op.RESET and payload.is_error and payload.code == "UNKNOWN_TYPE"
        assert reply is payload or by_new_session
        if call.op is Op.RESET:
            history.reset_in, history.lost_once, history.owing = history.made, False, False
    end(history, reply)


def check_fail(history: History, event: Event, payload: Any, call: Call, error: Any) -> None:
    assert call is history.waiting  # I2
    assert str(error)
    if isinstance(error, SessionLostError):
        assert call.op is not Op.RESET
        assert event not in NETWORK  # H27: whatever a network does, the session is not taken for lost
    told_of_another = history.sends == 0 and isinstance(error, OutcomeUnknownError | LateResultError)
    if told_of_another:
        assert history.owing
        history.owing = False
        end(history, None)
        return
    maybe = history.doubt or history.out
    if call.op in ACTS and error.outcome is Outcome.NOT_APPLIED and maybe:
        refused = event is Event.RECEIVED and payload.is_error
        too_large = event is Event.DROPPED and payload.code == 1009 and not payload.by_us
        assert refused or too_large or (event is Event.POST_FAILED and not history.doubt)
    if not maybe and call.op in ACTS:
        assert error.outcome is Outcome.NOT_APPLIED
    unheard = event is Event.LOOP_CLOSED or (event is Event.GAVE_UP and payload.cause == "cancelled")
    if call.op in ACTS and history.out and unheard:
        history.owing = True
    end(history, None)


def check_after(world: World, event: Event) -> None:
    machine, history = world.machine, world.history
    assert machine.call is history.waiting
    assert history.dialing == (machine.state is State.OPENING)
    assert history.posting == (
        machine.call is not None and machine.call.op in HTTP and machine.state is not State.OPENING
    )
    assert (machine.held is not None) == history.alive
    assert history.open <= {history.made}  # G12: no session is left behind
    assert bool(history.open) == history.alive
    if event is Event.GAVE_UP and history.finished is None and machine.due is not None:
        history.owing = True  # the answer came, and nobody took it
    if machine.state is State.CLOSED:
        assert not history.up
        assert not history.alive
    if machine.state is State.OPEN:
        assert history.up
    if machine.state is State.DETACHED:
        assert history.alive
        assert not history.up


def explore(machine: AttachedMachine) -> tuple[int, set[tuple[Any, Any]]]:
    start = World(machine)
    seen, queue = {key(start)}, deque([start])
    used: set[tuple[Any, Any]] = set()
    while queue:
        world = queue.popleft()
        row = world.machine.row
        for event in Event:
            if (row, event) not in ATTACHED_TABLE:
                before = dict(vars(world.machine))
                with pytest.raises(IllegalEvent):
                    world.machine.handle(event, None)
                assert vars(world.machine) == before
        for event, given, now in events(world):
            used.add((row, event))
            following, payload = twin(world, given)
            try:
                if event is Event.GAVE_UP and following.history.waiting is None:
                    following.history.finished = None
                take(following, event, payload, now)
            except (AssertionError, IllegalEvent) as error:
                raise AssertionError(f"{event} {payload} in {vars(world.machine)} with {world.history}") from error
            name = key(following)
            if name not in seen:
                seen.add(name)
                queue.append(following)
    return len(seen), used


def test_every_reachable_state_keeps_the_invariants() -> None:
    states, used = explore(make())
    assert used == set(ATTACHED_TABLE)  # the walk has used every rule
    assert states > 1_000, states
