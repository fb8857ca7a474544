"""The client's session machine, explored breadth first: every state it can reach, with every event that can come.

The oracle keeps a history of its own (sessions by the sockets that were opened, what was sent in each, which
resets completed, what was given up and what came of it) and knows nothing of the machine's fields.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from openenv.core.exceptions import (
    CallTimeoutError,
    ConnectError,
    LateResultError,
    NotResetError,
    Outcome,
    SessionClosedError,
    SessionLostError,
)
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
    SayRelease,
    Send,
    SendCancel,
    Tell,
)
from openenv.core.session.features import Feature
from openenv.core.session.opening import SessionOpened
from openenv.core.session.states import TABLE, IllegalEvent, Row, State
from openenv.core.wire.messages import Reply
from openenv.core.wire.v1 import Lease, Resumed
from support.machine import ANSWERS, ASKS, OBSERVATION, PLAIN, STATE_REPLY, error_frame, make

LATE = 100.0
GUARDED = (Op.STEP, Op.STATE, Op.TOOL)
REFUSALS = ("CAPACITY_REACHED", "FACTORY_ERROR")
MIX_UPS = ("SEQ_MISMATCH", "SEQ_OUT_OF_ORDER")
FINAL = (Drop(1000, "closed"), Drop(4000, "replaced"), Drop(4001, "idle"))
ON_THE_WAY = (SessionLostError, SessionClosedError, NotResetError, CallTimeoutError, ConnectError)
"""Errors of a call itself; any other error of a call that was not sent tells of the one before it."""


@dataclass
class History:
    """What has happened, as an onlooker sees it."""

    session: int = 0  # sockets that were opened for a new session, counted
    alive: bool = False  # that session may still be there
    up: bool = False  # a socket is open
    dialing: bool = False
    touched: bool = False  # a call was sent in that session
    features: frozenset[Feature] = frozenset()
    reset_asked: bool = False  # the user has called reset() at least once
    lost_once: bool = False  # a session was lost since the last completed reset
    reset_in: int = 0  # session in which the last reset completed, if it is the last that was asked for
    closed: bool = False
    waiting: Call | None = None  # the one call that has no end yet
    finished: Call | None = None  # the call that ended last, if its caller may still not have taken the answer
    answer: Reply | None = None  # that answer
    sent_in: list[int] = field(default_factory=list)  # sessions in which the waiting call was sent
    maybe_applied: bool = False  # the waiting call may have run
    requests: int = 0  # numbers used up in the present session
    stale: bool = False  # it was made before the client was closed
    born: int = 0  # session at the time the waiting call was made
    abandoned: Call | None = None  # a call that was given up and whose fate is not known
    late: Reply | Outcome | None = None  # the result it had, or what is known of it if it had none
    unsettled: bool = False  # there was one, and the last event did not tell its fate
    owed: bool = False  # the server may keep the last session although this client has left it
    taken: bool = False  # another client has taken the last session

    @property
    def numbered(self) -> bool:
        return Feature.SEQ in self.features

    @property
    def resumable(self) -> bool:
        return Feature.RESUME in self.features

    @property
    def open_call(self) -> Call | None:
        """The call that the server owes an answer to."""
        return self.abandoned or (self.waiting if self.session in self.sent_in and self.alive else None)

    def end_session(self, *, told: bool) -> None:
        """The client has left its session; ``told``: because the server said that it is over."""
        if self.alive:
            self.owed = self.resumable and self.touched and not told
        self.alive = False
        self.abandoned = None


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
    machine.call, machine.abandoned = of(machine.call), of(machine.abandoned)
    history.waiting, history.finished = of(history.waiting), of(history.finished)
    history.abandoned = of(history.abandoned)
    history.sent_in = list(history.sent_in)
    if isinstance(payload, GaveUp):
        payload = replace(payload, call=of(payload.call))
    return World(machine, history), payload


def key(world: World) -> tuple[Any, ...]:
    """Worlds with the same key have the same future, as far as the rules can tell: what is overwritten before it is
    read again is left out."""
    machine, history, call = world.machine, world.history, world.machine.call
    last, given_up, due = history.finished, machine.abandoned, machine.due
    opening = (min(machine._dials, 1), machine._dial_error is None, machine._return_to)
    session = (history.touched, history.features, history.reset_in == history.session)
    waiting = (history.maybe_applied, min(len(history.sent_in), 2), history.session in history.sent_in)
    return (
        machine.state,
        min(machine.number, 2),
        machine.touched,
        machine.features if history.alive else machine.numbered,
        machine.socket_open,
        machine.loss is None,
        machine.needs_reset,
        min(machine.seq, 1 if machine.numbered else 2),
        machine.seq - machine.last_reply,
        machine.closes > 0,
        machine._reset_begun,
        machine._reset_completed and machine._require_reset,
        machine._warned_no_reset or machine._reset_begun,
        opening if machine.state is State.OPENING else None,
        machine.lease is None,
        None if call is None else (call.op, min(call.sends, 2), call.seq == 0, call.deadline),
        None if given_up is None else given_up.op,
        None if due is None else due.error is None,
        None if last is None else (last.op in (Op.CONNECT, Op.STATE), last.op is Op.SETTLE, history.answer is None),
        history.up,
        session if history.alive else None,
        history.reset_asked,
        history.lost_once,
        history.closed,
        None if history.waiting is None else waiting,
        isinstance(history.late, Reply) or history.late,
        history.owed,
        history.taken,
    )


# ------------------------------------------------------------------ what can come


def events(world: World, kinds: tuple[SessionOpened, ...]) -> Iterator[tuple[Event, Any, float]]:
    """Every event that a driver could feed now, with representative payloads."""
    yield Event.CLOSE, None, 0.0
    yield Event.LOOP_CLOSED, None, 0.0
    history = world.history
    if history.waiting is None:
        yield from asks(world)
    yield from opening_events(world, kinds)
    if history.up:
        for frame in frames(history):
            yield Event.RECEIVED, frame, 0.0
        yield Event.OVERSIZED, Oversized(11, 10), 0.0
        for drop in (Drop(), Drop(1000), Drop(1009, by_us=True), Drop(1009, "limit of 7"), *FINAL):
            yield Event.DROPPED, drop, 0.0
    if history.waiting is not None:
        yield Event.GAVE_UP, GaveUp("timeout", history.waiting), 0.0
    elif history.finished is not None:
        yield Event.GAVE_UP, GaveUp("cancelled", history.finished, history.answer), 0.0


def asks(world: World) -> Iterator[tuple[Event, Any, float]]:
    machine = world.machine
    for op in (Op.CONNECT, Op.RESET, Op.STEP, Op.STATE, Op.SETTLE):  # a tool call is a step with another answer
        for deadline in (None, 10.0) if op in (Op.RESET, Op.STEP) else (10.0,):
            yield ASKS.get(op, Event.CALL), machine.new_call(op, deadline=deadline, dial_deadline=deadline, size=8), 0.0
        before_close = machine.new_call(op)
        before_close.closes -= 1
        yield ASKS.get(op, Event.CALL), before_close, 0.0
    if machine.number > 1:
        stale = machine.new_call(Op.STEP)
        stale.made_in -= 1
        yield Event.CALL, stale, 0.0


def opening_events(world: World, kinds: tuple[SessionOpened, ...]) -> Iterator[tuple[Event, Any, float]]:
    state, history = world.machine.state, world.history
    if state is State.OPENING:
        for kind in kinds:
            lease = kind.lease and replace(kind.lease, session=f"session-{history.session + 1}")
            yield Event.OPENED, replace(kind, lease=lease), 0.0
    if state in (State.OPENING, State.SUSPENDED):
        for now in (0.0, LATE):
            for retryable in (True, False):
                yield Event.DIAL_FAILED, DialFailure(ConnectError("refused"), retryable=retryable), now
        if history.waiting is not None:
            yield Event.OPENING_OVER, None, 0.0
    if state is State.SUSPENDED:
        for seq in range(max(0, history.requests - 2), history.requests + 2):
            yield Event.RESUMED, Resumed("token-2", seq, seq == history.requests), 0.0
        for reason in ("expired", "epoch", "a newer server's word", "never_called"):
            yield Event.RESUME_LOST, reason, 0.0


def frames(history: History) -> Iterator[Reply]:
    """Right and wrong answers; with numbers also those of another call, and of none."""
    # a server that opens sessions by itself refuses them before their first call (E3)
    codes = ["VALIDATION_ERROR", "EXECUTION_ERROR", "SESSION_ERROR", "", *(() if history.numbered else REFUSALS)]
    if not history.numbered:
        yield OBSERVATION
        yield STATE_REPLY
        yield from map(error_frame, codes)
        return
    due = history.requests
    yield Reply("running")
    yield OBSERVATION
    yield replace(OBSERVATION, seq=due + 1)
    yield replace(error_frame("EXECUTION_ERROR", applied=True), seq=due - 1)
    told = [error_frame("REPLY_TOO_LARGE", applied=True, size=2, limit=1), *map(error_frame, codes)]
    told += [error_frame("CANCELLED", applied=applied) for applied in (True, False, None)]
    told += [error_frame(code, applied=False) for code in MIX_UPS]
    for frame in (OBSERVATION, STATE_REPLY, *told):
        yield replace(frame, seq=due)


# ------------------------------------------------------------------ the oracle: what the event itself tells


def take(world: World, event: Event, payload: Any, now: float) -> None:
    """Feed one event, and check everything that comes out against the history."""
    history, machine = world.history, world.machine
    before = replace(history, sent_in=list(history.sent_in))
    was_closed, loss = history.closed and machine.state is State.CLOSED, machine.loss
    if isinstance(payload, Call):
        note_call(history, payload, stale=payload.closes != machine.closes)
    elif isinstance(payload, GaveUp):
        note_give_up(history, payload, machine.row)
    else:
        note_event(history, event, payload)
    learned = event in (Event.RECEIVED, Event.RESUMED) and history.abandoned is None
    history.unsettled = before.abandoned is not None and not learned
    effects = machine.handle(event, payload, now)
    check_order(effects)
    for effect in effects:
        check(world, event, payload, effect)
    if machine.loss is not None:
        history.lost_once = True
    check_after(world, effects, was_closed)
    check_frame(world, event, payload, before)
    if event is Event.GAVE_UP and before.waiting is None:  # E16: only where no number tells one answer from another
        assert not effects or not (before.numbered or payload.call.op in (Op.CONNECT, Op.STATE, Op.SETTLE))
    if event is Event.RESUMED:
        check_resumed(world, payload, effects, before)
    if loss is not None and machine.loss is None:  # I4: only a completed reset clears a loss (close ends everything)
        assert history.reset_in == history.session or event is Event.CLOSE


def note_call(history: History, call: Call, *, stale: bool) -> None:
    assert history.waiting is None
    history.waiting, history.sent_in, history.maybe_applied = call, [], False
    history.born, history.stale = history.session, stale
    history.finished = history.answer = None
    if call.op is Op.RESET and not stale:
        history.reset_asked, history.reset_in = True, 0
    history.closed &= stale or call.op in (*GUARDED, Op.SETTLE)


def note_give_up(history: History, end: GaveUp, row: Row) -> None:
    """A numbered call that left is abandoned; an answer in hand that nobody took is late."""
    if end.call is history.waiting:
        if history.numbered and history.open_call is end.call:
            history.abandoned = end.call
        return
    tells = end.reply is not None and (end.call.op is Op.SETTLE or (history.numbered and end.call.op is not Op.STATE))
    if tells and row in (Row.IDLE, Row.SUSPENDED):
        history.late = end.reply
    history.finished = history.answer = None


def note_event(history: History, event: Event, payload: Any) -> None:
    history.dialing &= event not in (Event.OPENED, Event.DIAL_FAILED, Event.RESUMED, Event.RESUME_LOST)
    match event:
        case Event.OPENED:
            history.session += 1
            history.up = history.alive = True
            history.features, history.requests = payload.features, 0
            history.owed = history.taken = history.touched = False
        case Event.RESUMED:
            history.up = True
            never_came = payload.last_seq == history.requests - 1
            if history.abandoned and never_came and Feature.CANCEL not in history.features:
                history.abandoned, history.requests = None, history.requests - 1
        case Event.RESUME_LOST:
            history.end_session(told=True)
            history.maybe_applied &= payload != "never_called"
        case Event.DROPPED:
            history.up = False
            if payload in FINAL or not history.resumable or not history.touched:
                history.taken = payload.code == 4000
                history.end_session(told=True)
        case Event.CLOSE:
            history.closed = True
        case Event.RECEIVED:
            note_fate(history, payload)
            if payload.code in REFUSALS and history.requests == 1:
                history.maybe_applied = False


def note_fate(history: History, reply: Reply) -> None:
    """The answer to the call that was given up, if this is it."""
    call = history.abandoned
    if call is None or reply.seq != history.requests or reply.kind == "running" or reply.code in MIX_UPS:
        return
    if reply.kind not in ("error", ANSWERS[call.op].kind):
        return
    history.abandoned = None
    if not reply.is_error:
        if call.op is Op.RESET:
            history.reset_in, history.lost_once = history.session, False
        history.late = None if call.op is Op.STATE else reply
    elif reply.code == "REPLY_TOO_LARGE":
        history.late = Outcome.APPLIED
    elif not says_not_applied(reply):
        history.late = Outcome.from_applied(reply.data.get("applied"))


def says_not_applied(reply: Reply) -> bool:
    return reply.code == "VALIDATION_ERROR" or reply.data.get("applied") is False


# ------------------------------------------------------------------ the oracle: what the machine makes of it


def check_order(effects: list[Effect]) -> None:
    """The driver gets rid of the old socket before anything else, and ends a call once."""
    kinds = [type(effect) for effect in effects]
    for once in (Send, SendCancel, Dial, CloseSocket, Tell, SayRelease):
        assert kinds.count(once) <= 1
    assert kinds.count(Complete) + kinds.count(Fail) <= 1
    if CloseSocket in kinds and (Dial in kinds or Send in kinds):
        assert kinds.index(CloseSocket) < kinds.index(Dial)


def check(world: World, event: Event, payload: Any, effect: Effect) -> None:
    history = world.history
    match effect:
        case CloseSocket():
            history.up = history.dialing = False
            history.end_session(told=False)
        case Send(call):
            check_send(world, event, payload, call)
        case SendCancel(seq):  # E13: of a call that was given up, where the server knows the word
            assert history.up
            assert history.abandoned is not None
            assert (seq, Feature.CANCEL in history.features) == (history.requests, True)
        case Complete(call, reply):
            check_complete(world, event, payload, call, reply)
        case Fail(call, error):
            check_fail(world, event, payload, call, error)
        case Log(text):
            check_log(history, text)
        case Dial():
            check_dial(world, effect)
        case SayRelease():
            assert history.owed
        case Tell(loss):
            assert (loss is None) == (event is Event.RESUMED and history.alive)


def check_log(history: History, text: str) -> None:
    assert text
    if text.startswith("a late result"):  # E15: a reset discards it, and says so
        assert history.late is not None
        assert history.waiting is not None
        assert history.waiting.op is Op.RESET
        history.late = None


def check_dial(world: World, dial: Dial) -> None:
    history, machine = world.history, world.machine
    assert dial.delay >= 0
    assert not history.up
    assert not history.dialing
    assert history.waiting is not None or dial.resume
    assert dial.resume == (machine.state is State.SUSPENDED)
    history.dialing = True
    if not dial.resume:  # E25: its own lease must not lock it out
        released = f"session-{history.session}" in [lease.session for lease in machine.opening().releases]
        assert released or not history.owed
        assert not (released and history.taken)


def check_send(world: World, event: Event, payload: Any, call: Call) -> None:
    history = world.history
    assert history.up
    assert not history.closed
    assert call is history.waiting
    assert call.op not in (Op.CONNECT, Op.SETTLE)
    assert history.abandoned is None  # E14: the fate of the call before it is known,
    assert history.late is None  # E15: and told
    if call.op in GUARDED:
        # I1: only where this client's last reset completed, or on a client that never reset and never lost
        assert history.reset_in == history.session or not (history.reset_asked or history.lost_once)
        assert event is Event.OPENED or history.session in (history.born, *history.sent_in)
    if history.session in history.sent_in:
        # I3: again only on the server's word that it was not run
        assert event is Event.RESUMED
        assert payload.last_seq == history.requests - 1
    elif history.sent_in:
        assert call.op is Op.RESET or not history.maybe_applied
    if history.session not in history.sent_in:
        history.requests += 1
    assert not history.numbered or call.seq == history.requests  # E7
    history.sent_in.append(history.session)
    history.maybe_applied = history.touched = True


def check_complete(world: World, event: Event, payload: Any, call: Call, reply: Any) -> None:
    history = world.history
    assert call is history.waiting  # I2
    if call.op is Op.CONNECT:
        assert reply is None
        assert history.up
    elif call.op is Op.SETTLE:  # G3: the late result itself, or nothing when there is none
        assert history.abandoned is None
        assert reply is history.late
        history.late = None
    else:
        assert event is Event.RECEIVED  # I5
        assert reply is payload
        assert reply.kind == ANSWERS[call.op].kind
        assert history.sent_in[-1] == history.session
        assert not history.numbered or reply.seq == history.requests
        if call.op is Op.RESET:
            history.reset_in, history.lost_once = history.session, False
    history.waiting, history.finished, history.answer = None, call, reply


def check_fail(world: World, event: Event, payload: Any, call: Call, error: Any) -> None:
    history = world.history
    assert call is history.waiting  # I2
    assert str(error)
    if call.op is Op.RESET:
        assert not isinstance(error, SessionLostError)
    if not history.sent_in and not isinstance(error, ON_THE_WAY) and call.op is not Op.RESET:
        assert history.late is not None  # E15: told once, by a call that was not sent
        if isinstance(history.late, Reply):
            assert call.op is not Op.SETTLE
            assert isinstance(error, LateResultError)
            assert error.reply is history.late
        else:
            assert error.outcome is history.late
        history.late = None
    elif call.op is Op.SETTLE:
        never = event is Event.RESUME_LOST and payload == "never_called"
        # of the call that was given up nobody knows whether it was applied
        known = not history.unsettled or never or history.stale
        assert error.outcome is (Outcome.NOT_APPLIED if known else Outcome.UNKNOWN)
    else:
        check_outcome(history, event, payload, error.outcome)
    if event is Event.DROPPED and history.alive and history.open_call is call:
        history.requests -= 1  # it was never read
    history.waiting = history.finished = history.answer = None


def check_outcome(history: History, event: Event, payload: Any, outcome: Outcome) -> None:
    """Only the server's word can say what became of a call whose frame has left."""
    if not history.sent_in:
        assert outcome is Outcome.NOT_APPLIED
    elif outcome is Outcome.NOT_APPLIED and history.maybe_applied:
        refused = event is Event.RECEIVED and says_not_applied(payload)
        assert refused or (event is Event.DROPPED and payload.code == 1009 and not payload.by_us)
    elif outcome is Outcome.APPLIED:
        assert event in (Event.RECEIVED, Event.OVERSIZED) or (event is Event.DROPPED and payload.by_us)


def check_after(world: World, effects: list[Effect], was_closed: bool) -> None:
    machine, history = world.machine, world.history
    state = machine.state
    assert machine.call is history.waiting  # I2: what has not ended is in flight
    assert history.dialing == (state in (State.OPENING, State.SUSPENDED))  # E23: somebody is dialling
    if state is State.CLOSED:
        assert not history.up
        if was_closed:  # a closed client sends nothing
            assert not any(isinstance(one, Send | Dial) for one in effects)
    elif state is State.SUSPENDED:
        assert history.resumable
        assert history.alive
        assert not history.up
    elif state is State.OPEN:
        assert history.up
        if history.waiting is not None:  # in flight, or waiting for the fate of another
            assert history.open_call is not None
            assert history.waiting.op is not Op.CONNECT
        elif history.abandoned is None:  # E15a: only a completed reset leads out of LOST
            assert machine.loss is None
    if history.abandoned is not None:
        assert state in (State.OPEN, State.SUSPENDED)


def check_frame(world: World, event: Event, payload: Any, before: History) -> None:
    """Rule 2: a frame that answers no call, or another one, ends the session."""
    if event not in (Event.RECEIVED, Event.OVERSIZED) or (event is Event.RECEIVED and payload.kind == "running"):
        return
    history = world.history
    if before.abandoned is not None:
        expected = not history.unsettled
    else:
        expected = before.open_call is not None
        if event is Event.RECEIVED and before.numbered:
            expected &= payload.seq == before.requests and payload.code not in MIX_UPS
    if not expected:
        assert not history.up
        assert world.machine.state is not State.OPEN


def check_resumed(world: World, answer: Resumed, effects: list[Effect], before: History) -> None:
    """E21: what the server has not started is sent again or cancelled, what it has started is awaited."""
    history = world.history
    kinds = [type(effect) for effect in effects]
    last, started = before.requests, answer.last_seq
    fits = started in ((last - 1, last) if before.open_call else (last,))
    assert history.alive == fits
    if not fits:
        return
    if before.abandoned is not None:
        if Feature.CANCEL in before.features:
            assert SendCancel in kinds
        elif started == last - 1:
            assert history.waiting is None or history.up
    elif before.open_call is not None:
        assert (Send in kinds) == (started == last - 1)


# ------------------------------------------------------------------ the exploration


def explore(
    machine: ClientMachine, kinds: tuple[SessionOpened, ...]
) -> tuple[int, set[tuple[Any, Any]], set[tuple[Any, Any]]]:
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
        for event, given, now in events(world, kinds):
            used.add((row, event))
            following, payload = twin(world, given)
            try:
                take(following, event, payload, now)
            except (AssertionError, IllegalEvent) as error:
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


SEQ, CANCEL, RESUME = Feature.SEQ, Feature.CANCEL, Feature.RESUME


def numbered(*features: Feature) -> SessionOpened:
    return SessionOpened(frozenset(features), Lease("session", "token-1", "epoch-1"))


@pytest.mark.parametrize(
    ("kinds", "require_reset", "at_least"),
    [
        pytest.param((PLAIN,), False, 2_000, id="plain"),
        pytest.param((PLAIN,), True, 2_000, id="plain, reset required"),
        pytest.param((numbered(SEQ, CANCEL),), False, 4_000, id="numbered"),
        pytest.param((numbered(SEQ, RESUME),), False, 7_000, id="resumable without cancel"),
        pytest.param((PLAIN, numbered(SEQ, CANCEL, RESUME)), False, 8_000, id="all"),
    ],
)
def test_every_reachable_state_keeps_the_invariants(
    kinds: tuple[SessionOpened, ...], require_reset: bool, at_least: int
) -> None:
    states, used, illegal = explore(make(require_reset=require_reset), kinds)
    resumable = any(Feature.RESUME in kind.features for kind in kinds)
    numbers = any(Feature.SEQ in kind.features for kind in kinds)
    cells = {
        (row, event)
        for row, event in TABLE
        if (row is not Row.SUSPENDED or resumable) and (row is not Row.SETTLING or numbers)
    }
    assert used == cells  # the walk has used every rule
    assert not illegal & set(TABLE)
    assert states > at_least
