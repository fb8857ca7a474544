"""A client machine for tools at hand for tests: what each cell of its table must do. See `support.machine`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from openenv.core.exceptions import (
    CallTimeoutError,
    CapacityError,
    ConnectError,
    LateResultError,
    MessageTooLargeError,
    Outcome,
    OutcomeUnknownError,
    ServerError,
    SessionClosedError,
    SessionLostError,
)
from openenv.core.session.attached import AttachedMachine
from openenv.core.session.backoff import Backoff
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
    Post,
    PostFailure,
    SayRelease,
    Send,
    Tell,
)
from openenv.core.session.states import Row, State
from openenv.core.wire.jsonrpc import HeldSession, McpFeature
from openenv.core.wire.messages import Reply
from support.machine import ASKS, OBSERVATION, REFUSED, STATE_REPLY, completed, ended_with, error_frame, kinds

HELD = HeldSession("session-1", "secret", frozenset(McpFeature))
PLAIN_HELD = HeldSession("session-1")
TOOL_ANSWER = Reply("mcp", {"jsonrpc": "2.0", "result": {"data": 1}})
FORGOTTEN = Reply("mcp", {"jsonrpc": "2.0", "error": {"code": -32000, "message": "x", "data": {"outcome": "unknown"}}})
BUSY_ELSEWHERE = DialFailure(ConnectError("already attached", url="ws://test/ws"), busy=True)
UNREACHED = PostFailure(ConnectError("refused", url="http://test/mcp"), doubtful=False)
NO_REPLY = PostFailure(ServerError("no answer", code="NO_ANSWER"), doubtful=True)
GONE = "Unknown session_id: session-1"
LOST_HELD = [CloseSocket, Log, Tell, SayRelease]
"""Effects of losing a session that the server may still have."""
LOST_GONE = [CloseSocket, Log, Tell]
SOCKET_GONE = [CloseSocket, Log]
OPEN_CALLS = (Op.RESET, Op.STEP, Op.STATE, Op.TOOL, Op.LIST_TOOLS)


def make(**fields: Any) -> AttachedMachine:
    """A new machine whose backoff does not draw lots."""
    return AttachedMachine(backoff=Backoff(draw=lambda: 0.0), url="ws://test/ws", **fields)


def ask(machine: AttachedMachine, op: Op, **fields: Any) -> tuple[Call, list[Effect]]:
    """Make a call now."""
    call = machine.new_call(op, **fields)
    return call, machine.handle(ASKS.get(op, Event.CALL), call)


def creating(op: Op = Op.RESET, **fields: Any) -> tuple[AttachedMachine, Call]:
    """A machine that asks for a session for its first call."""
    machine = make()
    call, effects = ask(machine, op, **fields)
    assert effects == [Dial()]
    return machine, call


def attaching(op: Op = Op.RESET, held: HeldSession = HELD, **fields: Any) -> tuple[AttachedMachine, Call]:
    """A machine that has a session and attaches a socket for its first call."""
    machine, call = creating(op, **fields)
    assert machine.handle(Event.CREATED, held) == [Dial()]
    return machine, call


def idle(held: HeldSession = HELD) -> AttachedMachine:
    """A machine whose reset has completed."""
    machine, call = attaching(Op.RESET, held, episode_id="ep")
    assert machine.handle(Event.ATTACHED) == [Send(call)]
    machine.handle(Event.RECEIVED, OBSERVATION)
    return machine


def connected(held: HeldSession = HELD) -> AttachedMachine:
    """A machine that has connected and nothing more."""
    machine, _ = attaching(Op.CONNECT, held)
    machine.handle(Event.ATTACHED)
    return machine


def detached(held: HeldSession = HELD) -> AttachedMachine:
    """A machine whose socket was dropped after its reset."""
    machine = idle(held)
    machine.handle(Event.DROPPED, Drop())
    return machine


def busy(op: Op = Op.STEP, held: HeldSession = HELD, **fields: Any) -> tuple[AttachedMachine, Call]:
    """A machine with a call in flight on its socket."""
    machine = idle(held)
    call, effects = ask(machine, op, **fields)
    assert effects == [Send(call)]
    return machine, call


def posting(op: Op = Op.TOOL, held: HeldSession = HELD, **fields: Any) -> tuple[AttachedMachine, Call]:
    """A machine with a call in flight over HTTP, and a socket."""
    machine = idle(held)
    call, effects = ask(machine, op, **fields)
    assert effects == [Post(call)]
    return machine, call


def lost(*, socket_open: bool = False) -> AttachedMachine:
    """A machine whose server does not know its session any more; ``socket_open``: and that has connected since."""
    machine, _ = posting()
    machine.handle(Event.RESUME_LOST, GONE)
    if socket_open:
        ask(machine, Op.CONNECT)
        machine.handle(Event.CREATED, HELD)
        machine.handle(Event.ATTACHED)
    return machine


def closed() -> AttachedMachine:
    """A machine that was closed after an episode."""
    machine = idle()
    machine.handle(Event.CLOSE)
    machine.held_farewells()
    return machine


def told_next(machine: AttachedMachine, kind: type[Exception], outcome: Outcome) -> None:
    """What a call that was given up has left is told to the next one, once, and that one is not sent."""
    call, effects = ask(machine, Op.STEP)
    ended_with(effects, call, kind, outcome)
    call, effects = ask(machine, Op.TOOL)
    assert effects == [Post(call)]


def failed_dial(machine: AttachedMachine) -> State:
    """Where the machine is when it has given up opening."""
    machine.handle(Event.DIAL_FAILED, DialFailure(ConnectError("no"), retryable=False))
    return machine.state


# ------------------------------------------------------------------ one scenario a cell

SCENARIOS: dict[tuple[Row, Event], Callable[[], None]] = {}
Scenario = Callable[[], None]


def cell(row: Row, event: Event) -> Callable[[Scenario], Scenario]:
    """Register the scenario of a cell."""

    def register(scenario: Scenario) -> Scenario:
        assert (row, event) not in SCENARIOS
        SCENARIOS[row, event] = scenario
        return scenario

    return register


# NEW


@cell(Row.NEW, Event.CONNECT)
def _() -> None:
    machine, call = creating(Op.CONNECT)
    assert (machine.state, machine.call, machine.held) == (State.OPENING, call, None)
    assert failed_dial(machine) is State.NEW


@cell(Row.NEW, Event.RESET)
def _() -> None:
    machine, call = creating(Op.RESET)
    assert (machine.state, machine.call, machine.needs_reset) == (State.OPENING, call, True)
    assert failed_dial(machine) is State.NEW
    call, effects = ask(machine, Op.TOOL)
    assert ended_with(effects, call, SessionLostError, Outcome.NOT_APPLIED).reason == "reset_failed"


@cell(Row.NEW, Event.CALL)
def _() -> None:
    machine, call = creating(Op.TOOL)
    assert machine.handle(Event.CREATED, HELD) == [Post(call)]  # no socket for a tool, and no warning
    assert (machine.row, machine.held, machine.number) == (Row.POSTING, HELD, 1)
    stepping, call = attaching(Op.STEP)
    assert kinds(stepping.handle(Event.ATTACHED)) == [Log, Send]
    closed_since = make()
    stale = closed_since.new_call(Op.TOOL)
    stale.closes -= 1
    ended_with(closed_since.handle(Event.CALL, stale), stale, SessionClosedError, Outcome.NOT_APPLIED)


@cell(Row.NEW, Event.SETTLE)
def _() -> None:
    machine = make()
    call, effects = ask(machine, Op.SETTLE)
    completed(effects, call, None)


@cell(Row.NEW, Event.GAVE_UP)
def _() -> None:
    machine = make()
    before = dict(vars(machine))
    assert machine.handle(Event.GAVE_UP, GaveUp("cancelled", machine.new_call(Op.STEP))) == []
    assert vars(machine) == before


@cell(Row.NEW, Event.CLOSE)
def _() -> None:
    machine = make()
    assert machine.handle(Event.CLOSE) == [CloseSocket(goodbye=False)]
    assert (machine.state, machine.closes) == (State.CLOSED, 1)


@cell(Row.NEW, Event.LOOP_CLOSED)
def _() -> None:
    machine = make()
    assert machine.handle(Event.LOOP_CLOSED) == []
    assert machine.state is State.NEW


# OPENING


@cell(Row.OPENING, Event.CREATED)
def _() -> None:
    machine, call = attaching(Op.STEP)
    assert (machine.state, machine.held, machine.number, machine.call) == (State.OPENING, HELD, 1, call)
    assert (failed_dial(machine), machine.held) == (State.DETACHED, HELD)  # a failed attach is no end of the session
    listing, call = creating(Op.LIST_TOOLS)
    assert listing.handle(Event.CREATED, HELD) == [Post(call)]


@cell(Row.OPENING, Event.REACHED)
def _() -> None:
    machine, call = attaching(Op.STEP, deadline=60.0, dial_deadline=10.0)
    assert machine.handle(Event.REACHED) == []
    assert machine.handle(Event.OPENING_OVER) == []  # it waits for a call that runs, in the whole time of its own
    assert (machine.state, machine.call) == (State.OPENING, call)


@cell(Row.OPENING, Event.ATTACHED)
def _() -> None:
    machine, call = attaching(Op.RESET)
    assert machine.handle(Event.ATTACHED) == [Send(call)]
    assert (machine.row, machine.touched, machine.resumes) == (Row.BUSY, True, 0)
    connecting, call = attaching(Op.CONNECT)
    completed(connecting.handle(Event.ATTACHED), call, None)
    assert (connecting.row, connecting.touched) == (Row.IDLE, False)
    back = detached()
    call, _ = ask(back, Op.STEP)
    effects = back.handle(Event.ATTACHED)
    assert kinds(effects) == [Log, Tell, Send]
    assert (effects[1], back.number, back.resumes) == (Tell(None), 1, 1)
    returning = lost()
    ask(returning, Op.CONNECT)
    returning.handle(Event.CREATED, HELD)
    returning.handle(Event.ATTACHED)
    assert (returning.state, returning.socket_open) == (State.LOST, True)  # connect() clears no loss


@cell(Row.OPENING, Event.DIAL_FAILED)
def _() -> None:
    machine, call = attaching(Op.STEP, deadline=60.0, dial_deadline=10.0)
    assert kinds(machine.handle(Event.DIAL_FAILED, REFUSED, 0.0)) == [Log, Dial]
    assert kinds(machine.handle(Event.DIAL_FAILED, BUSY_ELSEWHERE, 30.0)) == [Dial]  # the whole time of its call
    effects = machine.handle(Event.DIAL_FAILED, REFUSED, 30.0)
    assert ended_with(effects, call, ConnectError, Outcome.NOT_APPLIED).attempts == 3
    assert (machine.state, machine.held) == (State.DETACHED, HELD)
    full, call = creating(Op.TOOL, deadline=60.0, dial_deadline=10.0)
    error = CapacityError(active=1, max=1)
    assert kinds(full.handle(Event.DIAL_FAILED, DialFailure(error, retryable=True))) == [Fail]  # a newcomer is told
    assert full.state is State.NEW
    returning = lost()
    call, _ = ask(returning, Op.RESET, deadline=60.0, dial_deadline=10.0)
    effects = returning.handle(Event.DIAL_FAILED, DialFailure(error, retryable=False), 30.0)
    assert kinds(effects) == [Log, Dial]  # its former session may hold the slot


@cell(Row.OPENING, Event.RESUME_LOST)
def _() -> None:
    for op in (Op.STEP, Op.STATE):
        machine = detached()
        call, _ = ask(machine, op)
        effects = machine.handle(Event.RESUME_LOST, GONE)
        assert kinds(effects) == [*LOST_GONE, Fail]
        error = ended_with(effects, call, SessionLostError, Outcome.NOT_APPLIED)
        assert (error.reason, error.episode_id, machine.state, machine.held) == ("gone", "ep", State.LOST, None)
    for op in (Op.RESET, Op.CONNECT):
        machine = detached()
        call, _ = ask(machine, op)
        effects = machine.handle(Event.RESUME_LOST, GONE)
        assert kinds(effects) == [*LOST_GONE, Dial]
        assert (machine.state, machine.call, machine.held) == (State.OPENING, call, None)
    untouched, call = attaching(Op.STEP)
    effects = untouched.handle(Event.RESUME_LOST, GONE)
    assert effects == [CloseSocket(), Dial()]  # nothing was lost
    untouched.handle(Event.CREATED, HELD)
    effects = untouched.handle(Event.RESUME_LOST, GONE)
    assert effects[1].delay > 0
    error = ended_with(untouched.handle(Event.OPENING_OVER), call, ConnectError, Outcome.NOT_APPLIED)
    assert "worker processes" in str(error)
    assert (untouched.state, untouched.losses) == (State.NEW, 0)


@cell(Row.OPENING, Event.OPENING_OVER)
def _() -> None:
    machine, call = attaching(Op.STEP)
    effects = machine.handle(Event.OPENING_OVER)
    assert kinds(effects) == [CloseSocket, Fail]
    ended_with(effects, call, ConnectError, Outcome.NOT_APPLIED)
    assert (machine.state, machine.held) == (State.DETACHED, HELD)
    waiting, call = attaching(Op.STEP, deadline=60.0)
    waiting.handle(Event.DIAL_FAILED, BUSY_ELSEWHERE)
    assert waiting.handle(Event.OPENING_OVER) == []
    assert (waiting.state, waiting.call) == (State.OPENING, call)


@cell(Row.OPENING, Event.GAVE_UP)
def _() -> None:
    machine, call = attaching(Op.STEP)
    effects = machine.handle(Event.GAVE_UP, GaveUp("timeout", call))
    assert kinds(effects) == [CloseSocket, Fail]
    ended_with(effects, call, ConnectError, Outcome.NOT_APPLIED)
    assert (machine.state, machine.held, machine.due) == (State.DETACHED, HELD, None)


@cell(Row.OPENING, Event.CLOSE)
def _() -> None:
    machine, call = attaching(Op.RESET)
    effects = machine.handle(Event.CLOSE)
    assert kinds(effects) == [CloseSocket, SayRelease, Fail]
    ended_with(effects, call, SessionClosedError, Outcome.NOT_APPLIED)
    assert (machine.state, machine.held_farewells(), machine.held_farewells()) == (State.CLOSED, (HELD,), ())


@cell(Row.OPENING, Event.LOOP_CLOSED)
def _() -> None:
    machine, call = attaching(Op.RESET)
    effects = machine.handle(Event.LOOP_CLOSED)
    assert kinds(effects) == [CloseSocket, Fail]
    ended_with(effects, call, ConnectError, Outcome.NOT_APPLIED)
    assert (machine.state, machine.held) == (State.DETACHED, HELD)


# OPEN, idle


@cell(Row.IDLE, Event.CONNECT)
def _() -> None:
    machine = idle()
    call, effects = ask(machine, Op.CONNECT)
    completed(effects, call, None)


@cell(Row.IDLE, Event.RESET)
def _() -> None:
    machine = idle()
    call, effects = ask(machine, Op.RESET)
    assert effects == [Send(call)]
    assert (machine.row, machine.needs_reset) == (Row.BUSY, True)


@cell(Row.IDLE, Event.CALL)
def _() -> None:
    machine, call = busy(Op.STEP)
    assert (machine.row, machine.call) == (Row.BUSY, call)
    machine, call = posting(Op.TOOL)
    assert (machine.row, machine.call) == (Row.POSTING, call)


@cell(Row.IDLE, Event.SETTLE)
def _() -> None:
    machine, stepped = busy(Op.STEP)
    machine.handle(Event.RECEIVED, OBSERVATION)
    machine.handle(Event.GAVE_UP, GaveUp("cancelled", stepped, OBSERVATION))
    call, effects = ask(machine, Op.SETTLE)
    completed(effects, call, OBSERVATION)
    call, effects = ask(machine, Op.SETTLE)
    completed(effects, call, None)


@cell(Row.IDLE, Event.RECEIVED)
def _() -> None:
    machine = idle()
    assert kinds(machine.handle(Event.RECEIVED, OBSERVATION)) == LOST_HELD
    assert (machine.state, machine.loss.reason, machine.held_farewells()) == (State.LOST, "protocol", (HELD,))
    told = idle()
    assert kinds(told.handle(Event.RECEIVED, error_frame("SESSION_ERROR"))) == SOCKET_GONE
    assert (told.state, told.held) == (State.DETACHED, HELD)


@cell(Row.IDLE, Event.OVERSIZED)
def _() -> None:
    machine = idle()
    assert kinds(machine.handle(Event.OVERSIZED, Oversized(11, 10))) == LOST_HELD
    assert machine.state is State.LOST


@cell(Row.IDLE, Event.DROPPED)
def _() -> None:
    for drop in (Drop(), Drop(1000), Drop(1012, "restart"), Drop(4001, "idle"), Drop(4003, "replaced"), Drop(1009)):
        machine = idle()
        assert kinds(machine.handle(Event.DROPPED, drop)) == SOCKET_GONE
        assert (machine.state, machine.held, machine.socket_open, machine.losses) == (State.DETACHED, HELD, False, 0)
        call, effects = ask(machine, Op.TOOL)
        assert effects == [Post(call)]


@cell(Row.IDLE, Event.GAVE_UP)
def _() -> None:
    machine, call = busy(Op.STEP)
    machine.handle(Event.RECEIVED, OBSERVATION)
    assert machine.handle(Event.GAVE_UP, GaveUp("cancelled", call, OBSERVATION)) == []
    told_next(machine, LateResultError, Outcome.APPLIED)
    machine, call = posting()
    machine.handle(Event.POSTED, TOOL_ANSWER)
    assert machine.handle(Event.GAVE_UP, GaveUp("cancelled", call, TOOL_ANSWER)) == []
    told_next(machine, LateResultError, Outcome.APPLIED)


@cell(Row.IDLE, Event.CLOSE)
def _() -> None:
    machine = idle()
    assert machine.handle(Event.CLOSE) == [CloseSocket(goodbye=True), SayRelease()]  # detach, then close
    assert (machine.state, machine.held, machine.held_farewells()) == (State.CLOSED, None, (HELD,))


@cell(Row.IDLE, Event.LOOP_CLOSED)
def _() -> None:
    machine = idle()
    assert kinds(machine.handle(Event.LOOP_CLOSED)) == SOCKET_GONE
    assert (machine.state, machine.held) == (State.DETACHED, HELD)


# OPEN, call in flight


@cell(Row.BUSY, Event.RECEIVED)
def _() -> None:
    machine, call = busy(Op.STATE)
    completed(machine.handle(Event.RECEIVED, STATE_REPLY), call, STATE_REPLY)
    wrong, call = busy(Op.STATE)
    effects = wrong.handle(Event.RECEIVED, OBSERVATION)
    assert ended_with(effects, call, SessionLostError, Outcome.UNKNOWN).reason == "protocol"
    told, call = busy(Op.STEP)
    effects = told.handle(Event.RECEIVED, error_frame("SESSION_ERROR"))
    ended_with(effects, call, ServerError, Outcome.UNKNOWN)
    assert (told.state, told.held) == (State.DETACHED, HELD)
    vanished, call = busy(Op.STEP)
    frame = Reply("error", {"code": "SESSION_ERROR", "message": GONE})
    assert ended_with(vanished.handle(Event.RECEIVED, frame), call, SessionLostError, Outcome.NOT_APPLIED)
    refused = error_frame("UNKNOWN_TYPE")
    stepping, call = busy(Op.STEP)
    ended_with(stepping.handle(Event.RECEIVED, refused), call, ServerError, Outcome.NOT_APPLIED)
    fresh, call = attaching(Op.RESET)
    fresh.handle(Event.ATTACHED)
    effects = fresh.handle(Event.RECEIVED, refused)
    assert kinds(effects) == [Complete]  # a new session is a fresh episode
    assert effects[0].reply.kind == "observation"
    ask(fresh, Op.TOOL)
    fresh.handle(Event.POSTED, TOOL_ANSWER)
    call, _ = ask(fresh, Op.RESET)
    effects = fresh.handle(Event.RECEIVED, refused)
    assert effects == [CloseSocket(goodbye=True), SayRelease(), Dial()]  # and a used one is not
    assert (fresh.call, fresh.held, fresh.held_farewells()) == (call, None, (HELD,))
    fresh.handle(Event.CREATED, HELD)
    fresh.handle(Event.ATTACHED)
    assert kinds(fresh.handle(Event.RECEIVED, refused)) == [Complete]
    assert fresh.number == 2


@cell(Row.BUSY, Event.OVERSIZED)
def _() -> None:
    machine, call = busy(Op.STEP)
    effects = machine.handle(Event.OVERSIZED, Oversized(11, 10))
    assert ended_with(effects, call, MessageTooLargeError, Outcome.APPLIED).session_lost is False
    assert machine.row is Row.IDLE


@cell(Row.BUSY, Event.DROPPED)
def _() -> None:
    machine, call = busy(Op.STEP)
    effects = machine.handle(Event.DROPPED, Drop())
    assert kinds(effects) == [CloseSocket, Fail]
    ended_with(effects, call, OutcomeUnknownError, Outcome.UNKNOWN)
    assert (machine.state, machine.held, machine.losses, machine.due) == (State.DETACHED, HELD, 0, None)  # told once
    for op in (Op.RESET, Op.STATE):  # what may be sent again
        again, call = busy(op)
        assert again.handle(Event.DROPPED, Drop()) == [CloseSocket(), Dial()]
        assert (again.state, again.call, again.held) == (State.OPENING, call, HELD)
        assert kinds(again.handle(Event.ATTACHED)) == [Log, Tell, Send]
        assert call.sends == 2
    broken, call = busy(Op.RESET)
    for _ in range(7):
        broken.handle(Event.DROPPED, Drop())
        broken.handle(Event.ATTACHED)
    ended_with(broken.handle(Event.DROPPED, Drop()), call, ConnectError, Outcome.NOT_APPLIED)
    large, call = busy(Op.STEP, size=99)
    effects = large.handle(Event.DROPPED, Drop(1009, "over the limit of 50 bytes"))
    assert not ended_with(effects, call, MessageTooLargeError, Outcome.NOT_APPLIED).session_lost
    assert large.state is State.DETACHED


@cell(Row.BUSY, Event.GAVE_UP)
def _() -> None:
    for cause in ("timeout", "cancelled"):
        machine, call = busy(Op.STEP, timeout_s=3.0, setting="step_timeout_s")
        effects = machine.handle(Event.GAVE_UP, GaveUp(cause, call))
        assert kinds(effects) == [CloseSocket, Fail]  # its late reply must answer nobody
        error = ended_with(effects, call, CallTimeoutError, Outcome.UNKNOWN)
        assert (error.timeout_s, error.setting) == (3.0, "step_timeout_s")
        assert (machine.state, machine.held, machine.losses) == (State.DETACHED, HELD, 0)
        if cause == "cancelled":
            told_next(machine, OutcomeUnknownError, Outcome.UNKNOWN)
        assert machine.due is None
    resetting, call = busy(Op.RESET)
    resetting.handle(Event.GAVE_UP, GaveUp("timeout", call))
    call, effects = ask(resetting, Op.TOOL)
    assert ended_with(effects, call, SessionLostError, Outcome.NOT_APPLIED).reason == "reset_failed"


@cell(Row.BUSY, Event.CLOSE)
def _() -> None:
    machine, call = busy(Op.STEP)
    effects = machine.handle(Event.CLOSE)
    assert effects[:2] == [CloseSocket(goodbye=True), SayRelease()]
    ended_with(effects, call, SessionClosedError, Outcome.UNKNOWN)
    assert (machine.state, machine.call) == (State.CLOSED, None)


@cell(Row.BUSY, Event.LOOP_CLOSED)
def _() -> None:
    machine, call = busy(Op.STEP)
    effects = machine.handle(Event.LOOP_CLOSED)
    ended_with(effects, call, OutcomeUnknownError, Outcome.UNKNOWN)
    assert (machine.state, machine.held) == (State.DETACHED, HELD)
    told_next(machine, OutcomeUnknownError, Outcome.UNKNOWN)


# call in flight over HTTP


@cell(Row.POSTING, Event.RECEIVED)
def _() -> None:
    machine, call = posting()
    effects = machine.handle(Event.RECEIVED, OBSERVATION)
    assert ended_with(effects, call, SessionLostError, Outcome.UNKNOWN).reason == "protocol"
    ended, call = posting()
    assert kinds(ended.handle(Event.RECEIVED, error_frame("SESSION_ERROR"))) == SOCKET_GONE
    assert (ended.row, ended.call) == (Row.POSTING, call)


@cell(Row.POSTING, Event.OVERSIZED)
def _() -> None:
    machine, call = posting()
    effects = machine.handle(Event.OVERSIZED, Oversized(11, 10))
    assert ended_with(effects, call, SessionLostError, Outcome.UNKNOWN).reason == "protocol"


@cell(Row.POSTING, Event.DROPPED)
def _() -> None:
    machine, call = posting()
    assert kinds(machine.handle(Event.DROPPED, Drop())) == SOCKET_GONE
    assert (machine.state, machine.row, machine.call) == (State.DETACHED, Row.POSTING, call)
    completed(machine.handle(Event.POSTED, TOOL_ANSWER), call, TOOL_ANSWER)
    assert machine.row is Row.DETACHED


@cell(Row.POSTING, Event.POSTED)
def _() -> None:
    machine, call = posting()
    completed(machine.handle(Event.POSTED, TOOL_ANSWER), call, TOOL_ANSWER)
    assert (machine.row, machine.steps) == (Row.IDLE, 1)
    forgotten, call = posting()
    ended_with(forgotten.handle(Event.POSTED, FORGOTTEN), call, OutcomeUnknownError, Outcome.UNKNOWN)
    assert forgotten.row is Row.IDLE


@cell(Row.POSTING, Event.POST_FAILED)
def _() -> None:
    plain, call = posting(Op.TOOL, PLAIN_HELD)
    ended_with(plain.handle(Event.POST_FAILED, NO_REPLY), call, OutcomeUnknownError, Outcome.UNKNOWN)
    assert (plain.row, plain.held, plain.losses) == (Row.IDLE, PLAIN_HELD, 0)
    known, call = posting(Op.TOOL, HELD, deadline=60.0, dial_deadline=10.0)
    effects = known.handle(Event.POST_FAILED, NO_REPLY)
    assert kinds(effects) == [Log, Post]
    assert effects[1].delay > 0
    assert kinds(known.handle(Event.POST_FAILED, UNREACHED, 30.0)) == [
        Post
    ]  # until its fate is known, or its time over
    ended_with(known.handle(Event.POST_FAILED, UNREACHED, 60.0), call, OutcomeUnknownError, Outcome.UNKNOWN)
    listing, call = posting(Op.LIST_TOOLS, PLAIN_HELD, deadline=60.0, dial_deadline=10.0)
    assert kinds(listing.handle(Event.POST_FAILED, NO_REPLY)) == [Log, Post]
    effects = listing.handle(Event.POST_FAILED, NO_REPLY, 10.0)
    assert effects[0].error is NO_REPLY.error
    unsent, call = posting(Op.TOOL, PLAIN_HELD, deadline=60.0, dial_deadline=10.0)
    assert kinds(unsent.handle(Event.POST_FAILED, UNREACHED)) == [Log, Post]
    ended_with(unsent.handle(Event.POST_FAILED, UNREACHED, 10.0), call, ConnectError, Outcome.NOT_APPLIED)
    assert (unsent.row, unsent.held) == (Row.IDLE, PLAIN_HELD)  # refused is not gone


@cell(Row.POSTING, Event.RESUME_LOST)
def _() -> None:
    machine, call = posting()
    effects = machine.handle(Event.RESUME_LOST, GONE)
    assert kinds(effects) == [*LOST_GONE, Fail]
    assert ended_with(effects, call, SessionLostError, Outcome.NOT_APPLIED).reason == "gone"
    assert (machine.state, machine.held, machine.held_farewells()) == (State.LOST, None, ())
    doubtful, call = posting()
    doubtful.handle(Event.POST_FAILED, NO_REPLY)
    ended_with(doubtful.handle(Event.RESUME_LOST, GONE), call, SessionLostError, Outcome.UNKNOWN)


@cell(Row.POSTING, Event.GAVE_UP)
def _() -> None:
    for cause in ("timeout", "cancelled"):
        machine, call = posting()
        effects = machine.handle(Event.GAVE_UP, GaveUp(cause, call))
        assert kinds(effects) == [Fail]  # the socket has nothing to do with it
        ended_with(effects, call, CallTimeoutError, Outcome.UNKNOWN)
        assert machine.row is Row.IDLE
        if cause == "cancelled":
            told_next(machine, OutcomeUnknownError, Outcome.UNKNOWN)
    listing, call = posting(Op.LIST_TOOLS)
    listing.handle(Event.GAVE_UP, GaveUp("cancelled", call))
    assert listing.due is None


@cell(Row.POSTING, Event.CLOSE)
def _() -> None:
    machine, call = posting()
    effects = machine.handle(Event.CLOSE)
    assert effects[:2] == [CloseSocket(goodbye=True), SayRelease()]
    ended_with(effects, call, SessionClosedError, Outcome.UNKNOWN)


@cell(Row.POSTING, Event.LOOP_CLOSED)
def _() -> None:
    machine, call = posting()
    ended_with(machine.handle(Event.LOOP_CLOSED), call, OutcomeUnknownError, Outcome.UNKNOWN)
    assert (machine.state, machine.held) == (State.DETACHED, HELD)
    told_next(machine, OutcomeUnknownError, Outcome.UNKNOWN)


# DETACHED


@cell(Row.DETACHED, Event.CONNECT)
def _() -> None:
    machine = detached()
    _, effects = ask(machine, Op.CONNECT)
    assert effects == [Dial()]
    assert kinds(machine.handle(Event.ATTACHED)) == [Log, Tell, Complete]
    assert (machine.row, machine.number) == (Row.IDLE, 1)
    refused = detached()
    ask(refused, Op.CONNECT)
    assert failed_dial(refused) is State.DETACHED


@cell(Row.DETACHED, Event.RESET)
def _() -> None:
    machine = detached()
    call, effects = ask(machine, Op.RESET)
    assert effects == [Dial()]
    assert machine.needs_reset
    assert kinds(machine.handle(Event.ATTACHED)) == [Log, Tell, Send]
    assert (machine.number, machine.held) == (1, HELD)
    refused = detached()
    ask(refused, Op.RESET)
    assert failed_dial(refused) is State.DETACHED
    stale = detached()
    call = stale.new_call(Op.RESET)
    call.closes -= 1
    ended_with(stale.handle(Event.RESET, call), call, SessionClosedError, Outcome.NOT_APPLIED)


@cell(Row.DETACHED, Event.CALL)
def _() -> None:
    for op in (Op.STEP, Op.STATE):
        machine = detached()
        call, effects = ask(machine, op)
        assert (effects, machine.state) == ([Dial()], State.OPENING)
    for op in (Op.TOOL, Op.LIST_TOOLS):
        machine = detached()
        call, effects = ask(machine, op)
        assert (effects, machine.row) == ([Post(call)], Row.POSTING)
    owing, stepped = busy(Op.STEP)
    owing.handle(Event.GAVE_UP, GaveUp("cancelled", stepped))
    told_next(owing, OutcomeUnknownError, Outcome.UNKNOWN)
    unreset = detached()
    unreset.needs_reset = True
    call, effects = ask(unreset, Op.TOOL)
    ended_with(effects, call, SessionLostError, Outcome.NOT_APPLIED)


@cell(Row.DETACHED, Event.SETTLE)
def _() -> None:
    machine, stepped = busy(Op.STEP)
    machine.handle(Event.GAVE_UP, GaveUp("cancelled", stepped))
    call, effects = ask(machine, Op.SETTLE)
    ended_with(effects, call, OutcomeUnknownError, Outcome.UNKNOWN)
    call, effects = ask(machine, Op.SETTLE)
    completed(effects, call, None)


@cell(Row.DETACHED, Event.GAVE_UP)
def _() -> None:
    machine, call = busy(Op.STEP)
    machine.handle(Event.RECEIVED, OBSERVATION)
    machine.handle(Event.DROPPED, Drop())
    assert machine.handle(Event.GAVE_UP, GaveUp("cancelled", call, OBSERVATION)) == []
    told_next(machine, LateResultError, Outcome.APPLIED)


@cell(Row.DETACHED, Event.CLOSE)
def _() -> None:
    machine = detached()
    assert machine.handle(Event.CLOSE) == [CloseSocket(goodbye=False), SayRelease()]
    assert (machine.state, machine.held_farewells()) == (State.CLOSED, (HELD,))


@cell(Row.DETACHED, Event.LOOP_CLOSED)
def _() -> None:
    machine = detached()
    assert machine.handle(Event.LOOP_CLOSED) == []
    assert (machine.state, machine.held) == (State.DETACHED, HELD)


# LOST


@cell(Row.LOST, Event.CONNECT)
def _() -> None:
    machine = lost(socket_open=True)
    assert (machine.state, machine.socket_open, machine.number) == (State.LOST, True, 2)
    call, effects = ask(machine, Op.CONNECT)
    completed(effects, call, None)


@cell(Row.LOST, Event.RESET)
def _() -> None:
    machine = lost()
    call, effects = ask(machine, Op.RESET)
    assert effects == [Dial()]
    assert machine.handle(Event.CREATED, HELD) == [Dial()]
    assert machine.handle(Event.ATTACHED) == [Send(call)]
    completed(machine.handle(Event.RECEIVED, OBSERVATION), call, OBSERVATION)
    assert (machine.row, machine.loss, machine.number) == (Row.IDLE, None, 2)
    failing = lost(socket_open=True)
    call, effects = ask(failing, Op.RESET)
    assert effects == [Send(call)]
    failing.handle(Event.RECEIVED, error_frame("EXECUTION_ERROR"))
    assert (failing.state, failing.held) == (State.LOST, HELD)


@cell(Row.LOST, Event.CALL)
def _() -> None:
    for machine in (lost(), lost(socket_open=True)):
        for op in OPEN_CALLS[1:]:
            call, effects = ask(machine, op)
            assert ended_with(effects, call, SessionLostError, Outcome.NOT_APPLIED).reason == "gone"
            assert machine.state is State.LOST


@cell(Row.LOST, Event.SETTLE)
def _() -> None:
    machine, stepped = busy(Op.STEP)
    machine.handle(Event.RECEIVED, OBSERVATION)
    machine.handle(Event.GAVE_UP, GaveUp("cancelled", stepped, OBSERVATION))
    machine.handle(Event.RECEIVED, OBSERVATION)
    assert machine.state is State.LOST
    call, effects = ask(machine, Op.SETTLE)
    completed(effects, call, OBSERVATION)


@cell(Row.LOST, Event.RECEIVED)
def _() -> None:
    machine = lost(socket_open=True)
    assert kinds(machine.handle(Event.RECEIVED, OBSERVATION)) == LOST_HELD
    assert (machine.state, machine.socket_open, machine.held) == (State.LOST, False, None)
    told = lost(socket_open=True)
    assert kinds(told.handle(Event.RECEIVED, error_frame("SESSION_ERROR"))) == SOCKET_GONE
    assert (told.state, told.held) == (State.LOST, HELD)


@cell(Row.LOST, Event.OVERSIZED)
def _() -> None:
    machine = lost(socket_open=True)
    assert kinds(machine.handle(Event.OVERSIZED, Oversized(11, 10))) == LOST_HELD


@cell(Row.LOST, Event.DROPPED)
def _() -> None:
    machine = lost(socket_open=True)
    first = machine.loss
    assert machine.handle(Event.DROPPED, Drop()) == [CloseSocket()]
    assert (machine.state, machine.socket_open, machine.loss, machine.held) == (State.LOST, False, first, HELD)
    _, effects = ask(machine, Op.RESET)
    assert effects == [Dial()]
    assert kinds(machine.handle(Event.ATTACHED)) == [Send]
    assert machine.number == 2


@cell(Row.LOST, Event.GAVE_UP)
def _() -> None:
    machine = lost()
    before = dict(vars(machine))
    call = machine.new_call(Op.STEP, numbered=True, resets=machine.resets)
    assert machine.handle(Event.GAVE_UP, GaveUp("cancelled", call, OBSERVATION)) == []
    assert vars(machine) == before


@cell(Row.LOST, Event.CLOSE)
def _() -> None:
    machine = lost(socket_open=True)
    assert machine.handle(Event.CLOSE) == [CloseSocket(goodbye=True), SayRelease()]
    assert (machine.state, machine.loss) == (State.CLOSED, None)


@cell(Row.LOST, Event.LOOP_CLOSED)
def _() -> None:
    machine = lost(socket_open=True)
    assert machine.handle(Event.LOOP_CLOSED) == [CloseSocket()]
    assert (machine.state, machine.socket_open, machine.held) == (State.LOST, False, HELD)


# CLOSED


@cell(Row.CLOSED, Event.CONNECT)
def _() -> None:
    machine = closed()
    call, effects = ask(machine, Op.CONNECT)
    assert effects == [Dial()]
    machine.handle(Event.CREATED, HELD)
    completed(machine.handle(Event.ATTACHED), call, None)
    assert (machine.row, machine.number) == (Row.IDLE, 2)
    refused = closed()
    ask(refused, Op.CONNECT)
    assert failed_dial(refused) is State.NEW


@cell(Row.CLOSED, Event.RESET)
def _() -> None:
    machine = closed()
    call, effects = ask(machine, Op.RESET)
    assert effects == [Dial()]
    machine.handle(Event.CREATED, HELD)
    assert machine.handle(Event.ATTACHED) == [Send(call)]
    refused = closed()
    ask(refused, Op.RESET)
    assert failed_dial(refused) is State.NEW


@cell(Row.CLOSED, Event.CALL)
def _() -> None:
    for op in OPEN_CALLS[1:]:
        machine = closed()
        call, effects = ask(machine, op)
        ended_with(effects, call, SessionClosedError, Outcome.NOT_APPLIED)


@cell(Row.CLOSED, Event.SETTLE)
def _() -> None:
    machine = closed()
    call, effects = ask(machine, Op.SETTLE)
    completed(effects, call, None)


@cell(Row.CLOSED, Event.GAVE_UP)
def _() -> None:
    machine = closed()
    before = dict(vars(machine))
    call = machine.new_call(Op.STEP, numbered=True, resets=machine.resets)
    assert machine.handle(Event.GAVE_UP, GaveUp("cancelled", call, OBSERVATION)) == []
    assert vars(machine) == before


@cell(Row.CLOSED, Event.CLOSE)
def _() -> None:
    machine = closed()
    assert machine.handle(Event.CLOSE) == []
    assert machine.closes == 1


@cell(Row.CLOSED, Event.LOOP_CLOSED)
def _() -> None:
    machine = closed()
    assert machine.handle(Event.LOOP_CLOSED) == []
    assert machine.state is State.CLOSED
