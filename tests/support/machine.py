"""A client machine at hand for tests: ways into each row of its table, and what a cell of the table must do.

`SCENARIOS` has one hand-written scenario a cell. Each starts from a new machine, goes to the row by the events
that lead there in real life, feeds the cell's event and states the effects and the next state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from openenv.core.exceptions import (
    CallTimeoutError,
    ConnectError,
    LateResultError,
    MessageTooLargeError,
    Outcome,
    OutcomeUnknownError,
    SessionClosedError,
    SessionLostError,
)
from openenv.core.session.backoff import Backoff
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
from openenv.core.session.states import Row, State
from openenv.core.wire.messages import Reply
from openenv.core.wire.v1 import Lease, Resumed

OBSERVATION = Reply("observation", {"observation": {}, "reward": None, "done": False})
STATE_REPLY = Reply("state", {"episode_id": "from-state", "step_count": 1})
TOOL_REPLY = Reply("mcp", {"jsonrpc": "2.0"})
ANSWERS = {Op.RESET: OBSERVATION, Op.STEP: OBSERVATION, Op.STATE: STATE_REPLY, Op.TOOL: TOOL_REPLY}
REFUSED = DialFailure(ConnectError("refused", url="ws://test/ws"))
ASKS = {Op.CONNECT: Event.CONNECT, Op.RESET: Event.RESET, Op.SETTLE: Event.SETTLE}
PLAIN = SessionOpened()
NUMBERED = SessionOpened(frozenset(Feature), Lease("session-1", "token-1", "epoch-1"))
LOSS = [CloseSocket, Log, Tell]
BACK = [Log, Tell]


def error_frame(code: str, **data: Any) -> Reply:
    """An error frame."""
    return Reply("error", {"message": f"told {code}", "code": code, **data})


def make(**fields: Any) -> ClientMachine:
    """A new machine whose backoff does not draw lots."""
    return ClientMachine(backoff=Backoff(draw=lambda: 0.0), url="ws://test/ws", **fields)


def ask(machine: ClientMachine, op: Op, **fields: Any) -> tuple[Call, list[Effect]]:
    """Make a call now."""
    call = machine.new_call(op, **fields)
    return call, machine.handle(ASKS.get(op, Event.CALL), call)


def opening(op: Op = Op.RESET, **fields: Any) -> tuple[ClientMachine, Call]:
    """A machine that dials for its first call."""
    machine = make()
    call, _ = ask(machine, op, **fields)
    return machine, call


def idle(*, resumable: bool = False) -> ClientMachine:
    """A machine whose reset has completed."""
    machine, _ = opening(Op.RESET, episode_id="ep")
    machine.handle(Event.OPENED, NUMBERED if resumable else PLAIN)
    machine.handle(Event.RECEIVED, replace(OBSERVATION, seq=1) if resumable else OBSERVATION)
    return machine


def connected(*, resumable: bool = False) -> ClientMachine:
    """A machine that has connected and nothing more."""
    machine, _ = opening(Op.CONNECT)
    machine.handle(Event.OPENED, NUMBERED if resumable else PLAIN)
    return machine


def busy(op: Op = Op.STEP, *, resumable: bool = False, **fields: Any) -> tuple[ClientMachine, Call]:
    """A machine with a call in flight after its reset."""
    machine = idle(resumable=resumable)
    call, _ = ask(machine, op, **fields)
    return machine, call


def suspended(op: Op | None = None) -> tuple[ClientMachine, Call | None]:
    """A machine whose server keeps the session; ``op``: with this call in flight."""
    if op is None:
        machine, call = idle(resumable=True), None
    else:
        machine, call = busy(op, resumable=True)
    machine.handle(Event.DROPPED, Drop())
    return machine, call


def lost(*, socket_open: bool = False) -> ClientMachine:
    """A machine that lost its session; ``socket_open``: and has connected since."""
    machine = idle()
    machine.handle(Event.DROPPED, Drop(1012, "restart", "gone"))
    if socket_open:
        ask(machine, Op.CONNECT)
        machine.handle(Event.OPENED, PLAIN)
    return machine


def closed() -> ClientMachine:
    """A machine that was closed after an episode."""
    machine = idle()
    machine.handle(Event.CLOSE)
    return machine


def back(machine: ClientMachine, last_seq: int, *, running: bool = False) -> list[Effect]:
    """The server resumes the session. Gives the effects after the line in the log and the word to the hooks."""
    effects = machine.handle(Event.RESUMED, Resumed("token-2", last_seq, running))
    assert kinds(effects[:2]) == BACK
    assert machine.lease == Lease("session-1", "token-2", "epoch-1")
    return effects[2:]


def given_up(op: Op = Op.STEP) -> tuple[ClientMachine, Call]:
    """A machine of which a caller gave up a call that the server still works on."""
    machine, call = busy(op, resumable=True)
    machine.handle(Event.GAVE_UP, GaveUp("timeout", call))
    return machine, call


def settling(op: Op = Op.STEP) -> tuple[ClientMachine, Call, Call]:
    """Such a machine, with the next call waiting."""
    machine, abandoned = given_up()
    call, _ = ask(machine, op)
    return machine, abandoned, call


def kinds(effects: list[Effect]) -> list[type]:
    """The types of effects, in order."""
    return [type(effect) for effect in effects]


def ended_with(effects: list[Effect], call: Call, kind: type[Exception], outcome: Outcome) -> Any:
    """The error of the one call that ended, checked."""
    ends = [effect for effect in effects if isinstance(effect, Fail | Complete)]
    assert len(ends) == 1
    assert isinstance(ends[0], Fail)
    assert ends[0].call is call
    assert type(ends[0].error) is kind
    assert ends[0].error.outcome is outcome
    return ends[0].error


def completed(effects: list[Effect], call: Call, reply: Reply | None) -> None:
    """The one effect is the completion of this call with this very reply."""
    assert kinds(effects) == [Complete]
    assert effects[0].call is call
    assert effects[0].reply is reply


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
    machine = make()
    call, effects = ask(machine, Op.CONNECT)
    assert effects == [Dial()]
    assert (machine.state, machine.call) == (State.OPENING, call)
    machine.handle(Event.DIAL_FAILED, DialFailure(ConnectError("no"), retryable=False))
    assert machine.state is State.NEW


@cell(Row.NEW, Event.RESET)
def _() -> None:
    machine = make()
    call, effects = ask(machine, Op.RESET)
    assert effects == [Dial()]
    assert (machine.state, machine.call, machine.needs_reset) == (State.OPENING, call, True)
    machine.handle(Event.DIAL_FAILED, DialFailure(ConnectError("no"), retryable=False))
    assert machine.state is State.NEW


@cell(Row.NEW, Event.CALL)
def _() -> None:
    machine = make()
    call, effects = ask(machine, Op.STEP)
    assert effects == [Dial()]
    effects = machine.handle(Event.OPENED, PLAIN)
    assert kinds(effects) == [Log, Send]
    assert "before any reset" in effects[0].text
    assert (machine.state, machine.call) == (State.OPEN, call)
    late = connected(resumable=True)
    abandoned, _ = ask(late, Op.STEP)
    late.handle(Event.GAVE_UP, GaveUp("timeout", abandoned))
    late.handle(Event.RECEIVED, replace(OBSERVATION, seq=1))
    late.handle(Event.CLOSE)
    ask(late, Op.CONNECT)
    late.handle(Event.DIAL_FAILED, DialFailure(ConnectError("no"), retryable=False))
    call, effects = ask(late, Op.STEP)
    ended_with(effects, call, LateResultError, Outcome.APPLIED)  # what is left to be told is told first
    assert late.state is State.NEW


@cell(Row.NEW, Event.SETTLE)
def _() -> None:
    machine = make()
    call, effects = ask(machine, Op.SETTLE)
    completed(effects, call, None)
    assert machine.state is State.NEW


@cell(Row.NEW, Event.GAVE_UP)
def _() -> None:
    machine = connected()
    machine.handle(Event.DROPPED, Drop())  # before the caller of connect() came to take its answer
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


@cell(Row.OPENING, Event.OPENED)
def _() -> None:
    machine, call = opening(Op.RESET)
    effects = machine.handle(Event.OPENED, PLAIN)
    assert effects == [Send(call)]
    assert (machine.state, machine.number, machine.touched, call.seq, call.sends) == (State.OPEN, 1, True, 1, 1)


@cell(Row.OPENING, Event.DIAL_FAILED)
def _() -> None:
    machine, call = opening(Op.RESET, deadline=10.0, dial_deadline=10.0)
    effects = machine.handle(Event.DIAL_FAILED, REFUSED, 0.0)
    assert kinds(effects) == [Log, Dial]
    assert effects[1].delay > 0
    assert machine.state is State.OPENING
    error = ConnectError("not again")
    effects = machine.handle(Event.DIAL_FAILED, DialFailure(error, retryable=False), 0.0)
    assert kinds(effects) == [Fail]
    assert effects[0].call is call
    assert effects[0].error is error
    assert error.attempts == 2
    assert (machine.state, machine.call) == (State.NEW, None)


@cell(Row.OPENING, Event.OPENING_OVER)
def _() -> None:
    machine, call = opening(Op.STEP)
    effects = machine.handle(Event.OPENING_OVER)
    assert kinds(effects) == [CloseSocket, Fail]
    ended_with(effects, call, ConnectError, Outcome.NOT_APPLIED)
    assert (machine.state, machine.call) == (State.NEW, None)
    returning = lost()
    call, _ = ask(returning, Op.RESET)
    assert returning.handle(Event.OPENING_OVER) == []  # it has the whole time of its reset
    assert (returning.state, returning.call) == (State.OPENING, call)


@cell(Row.OPENING, Event.GAVE_UP)
def _() -> None:
    machine, call = opening(Op.STEP)
    effects = machine.handle(Event.GAVE_UP, GaveUp("timeout", call))
    assert kinds(effects) == [CloseSocket, Fail]
    ended_with(effects, call, ConnectError, Outcome.NOT_APPLIED)
    assert (machine.state, machine.call) == (State.NEW, None)


@cell(Row.OPENING, Event.CLOSE)
def _() -> None:
    machine, call = opening(Op.RESET)
    effects = machine.handle(Event.CLOSE)
    assert kinds(effects) == [CloseSocket, Fail]
    ended_with(effects, call, SessionClosedError, Outcome.NOT_APPLIED)
    assert (machine.state, machine.call) == (State.CLOSED, None)


@cell(Row.OPENING, Event.LOOP_CLOSED)
def _() -> None:
    machine, call = opening(Op.RESET)
    effects = machine.handle(Event.LOOP_CLOSED)
    assert kinds(effects) == [CloseSocket, Fail]
    ended_with(effects, call, ConnectError, Outcome.NOT_APPLIED)
    assert (machine.state, machine.call) == (State.NEW, None)


# OPEN, idle


@cell(Row.IDLE, Event.CONNECT)
def _() -> None:
    machine = idle()
    call, effects = ask(machine, Op.CONNECT)
    completed(effects, call, None)
    assert (machine.state, machine.number) == (State.OPEN, 1)


@cell(Row.IDLE, Event.RESET)
def _() -> None:
    machine = idle()
    call, effects = ask(machine, Op.RESET)
    assert effects == [Send(call)]
    assert (machine.row, machine.number, machine.needs_reset) == (Row.BUSY, 1, True)


@cell(Row.IDLE, Event.CALL)
def _() -> None:
    machine = idle()
    call, effects = ask(machine, Op.STEP)
    assert effects == [Send(call)]
    assert (machine.row, machine.call, call.seq) == (Row.BUSY, call, 2)


@cell(Row.IDLE, Event.SETTLE)
def _() -> None:
    machine = idle()
    call, effects = ask(machine, Op.SETTLE)
    completed(effects, call, None)
    late, abandoned = given_up()
    reply = replace(OBSERVATION, seq=abandoned.seq)
    assert late.handle(Event.RECEIVED, reply) == []
    call, effects = ask(late, Op.SETTLE)
    completed(effects, call, reply)
    call, effects = ask(late, Op.SETTLE)
    completed(effects, call, None)  # once
    waiting, abandoned = given_up()
    call, effects = ask(waiting, Op.SETTLE)
    assert (effects, waiting.row, waiting.call) == ([], Row.SETTLING, call)


@cell(Row.IDLE, Event.RECEIVED)
def _() -> None:
    late, abandoned = given_up()
    assert late.handle(Event.RECEIVED, replace(OBSERVATION, seq=abandoned.seq)) == []
    assert (late.row, late.steps, late.abandoned, late.last_reply) == (Row.IDLE, 1, None, abandoned.seq)
    step, effects = ask(late, Op.STEP)
    error = ended_with(effects, step, LateResultError, Outcome.APPLIED)
    assert error.reply.seq == abandoned.seq
    step, effects = ask(late, Op.STEP)
    assert effects == [Send(step)]
    refused, abandoned = given_up()
    cancelled = replace(error_frame("CANCELLED", applied=False), seq=abandoned.seq)
    assert refused.handle(Event.RECEIVED, cancelled) == []
    assert refused.due is None
    unknown, abandoned = given_up()
    unknown.handle(Event.RECEIVED, replace(error_frame("CANCELLED", applied=None), seq=abandoned.seq))
    step, effects = ask(unknown, Op.STEP)
    ended_with(effects, step, OutcomeUnknownError, Outcome.UNKNOWN)
    machine = idle()
    effects = machine.handle(Event.RECEIVED, OBSERVATION)
    assert kinds(effects) == LOSS
    assert machine.state is State.LOST
    assert machine.loss.reason == "protocol"


@cell(Row.IDLE, Event.OVERSIZED)
def _() -> None:
    machine = idle()
    effects = machine.handle(Event.OVERSIZED, Oversized(11, 10))
    assert kinds(effects) == LOSS
    assert machine.state is State.LOST
    assert machine.loss.reason == "protocol"


@cell(Row.IDLE, Event.DROPPED)
def _() -> None:
    machine = idle()
    effects = machine.handle(Event.DROPPED, Drop(1012, "restart", "seen"))
    assert kinds(effects) == LOSS
    assert (machine.state, machine.socket_open) == (State.LOST, False)
    loss = machine.loss
    assert (loss.reason, loss.close_code, loss.episode_id, loss.session) == ("server_restart", 1012, "ep", 1)
    untouched = connected()
    assert untouched.handle(Event.DROPPED, Drop()) == []
    assert (untouched.state, untouched.loss) == (State.NEW, None)
    kept = idle(resumable=True)
    assert kept.handle(Event.DROPPED, Drop()) == [Dial(resume=True)]
    assert kept.state is State.SUSPENDED
    refused, call = busy(Op.STEP, resumable=True)
    refused.handle(Event.GAVE_UP, GaveUp("timeout", call))
    assert refused.handle(Event.DROPPED, Drop(1009)) == [Dial(resume=True)]
    refused.handle(Event.RESUMED, Resumed("next", call.seq))
    assert kinds(refused.handle(Event.DROPPED, Drop(1009))) == LOSS  # each resume would meet the same reply


@cell(Row.IDLE, Event.GAVE_UP)
def _() -> None:
    machine, call = busy(Op.STEP)
    machine.handle(Event.RECEIVED, OBSERVATION)
    effects = machine.handle(Event.GAVE_UP, GaveUp("cancelled", call))
    assert kinds(effects) == LOSS
    assert machine.state is State.LOST
    assert machine.loss.reason == "cancelled"
    numbered, call = busy(Op.STEP, resumable=True)
    reply = replace(OBSERVATION, seq=call.seq)
    numbered.handle(Event.RECEIVED, reply)
    assert numbered.handle(Event.GAVE_UP, GaveUp("cancelled", call, reply)) == []
    settle, effects = ask(numbered, Op.SETTLE)
    completed(effects, settle, reply)
    reader, reading = busy(Op.STATE)
    reader.handle(Event.RECEIVED, STATE_REPLY)
    assert reader.handle(Event.GAVE_UP, GaveUp("cancelled", reading)) == []
    assert reader.handle(Event.GAVE_UP, GaveUp("cancelled", reader.new_call(Op.SETTLE))) == []
    assert reader.state is State.OPEN


@cell(Row.IDLE, Event.CLOSE)
def _() -> None:
    machine = idle()
    assert machine.handle(Event.CLOSE) == [CloseSocket(goodbye=True)]
    assert (machine.state, machine.closes) == (State.CLOSED, 1)


@cell(Row.IDLE, Event.LOOP_CLOSED)
def _() -> None:
    machine = idle()
    effects = machine.handle(Event.LOOP_CLOSED)
    assert kinds(effects) == LOSS
    assert machine.loss.reason == "loop_closed"
    assert machine.state is State.LOST
    untouched = connected()
    assert untouched.handle(Event.LOOP_CLOSED) == [CloseSocket()]
    assert untouched.state is State.NEW


# OPEN, call in flight


@cell(Row.BUSY, Event.RECEIVED)
def _() -> None:
    machine, call = busy(Op.STEP)
    completed(machine.handle(Event.RECEIVED, OBSERVATION), call, OBSERVATION)
    assert (machine.row, machine.steps, machine.last_reply) == (Row.IDLE, 1, 2)
    shifted, call = busy(Op.STEP, resumable=True)
    assert shifted.handle(Event.RECEIVED, Reply("running")) == []
    effects = shifted.handle(Event.RECEIVED, replace(OBSERVATION, seq=call.seq - 1))
    assert ended_with(effects, call, SessionLostError, Outcome.UNKNOWN).reason == "protocol"


@cell(Row.BUSY, Event.OVERSIZED)
def _() -> None:
    machine, call = busy(Op.STEP)
    effects = machine.handle(Event.OVERSIZED, Oversized(11, 10))
    assert kinds(effects) == [Fail]
    error = ended_with(effects, call, MessageTooLargeError, Outcome.APPLIED)
    assert (error.size, error.limit, error.direction, error.session_lost) == (11, 10, "received", False)
    assert (machine.row, machine.steps) == (Row.IDLE, 1)


@cell(Row.BUSY, Event.DROPPED)
def _() -> None:
    machine, call = busy(Op.STEP)
    effects = machine.handle(Event.DROPPED, Drop())
    assert kinds(effects) == [*LOSS, Fail]
    ended_with(effects, call, SessionLostError, Outcome.UNKNOWN)
    assert machine.state is State.LOST
    resetting, reset = busy(Op.RESET)
    effects = resetting.handle(Event.DROPPED, Drop())
    assert kinds(effects) == [*LOSS, Dial]
    assert effects[3].delay == 0.0
    assert (resetting.state, resetting.call) == (State.OPENING, reset)
    kept, _ = busy(Op.STEP, resumable=True)
    assert kept.handle(Event.DROPPED, Drop()) == [Dial(resume=True)]
    assert kept.state is State.SUSPENDED
    for code, reason, word in ((4000, "replaced", "replaced"), (4001, "idle", "idle"), (1000, "closed", "connection")):
        final, call = busy(Op.STEP, resumable=True)
        effects = final.handle(Event.DROPPED, Drop(code, reason))
        assert ended_with(effects, call, SessionLostError, Outcome.UNKNOWN).reason == word
    proxied, _ = busy(Op.STEP, resumable=True)
    assert proxied.handle(Event.DROPPED, Drop(1000, "")) == [Dial(resume=True)]
    refused, call = busy(Op.STEP, resumable=True, size=99)
    effects = refused.handle(Event.DROPPED, Drop(1009, "over the limit of 50 bytes"))
    assert kinds(effects) == [Fail, Dial]
    error = ended_with(effects, call, MessageTooLargeError, Outcome.NOT_APPLIED)
    assert (error.size, error.limit, error.session_lost, refused.seq) == (99, 50, False, call.seq - 1)
    for limit in ("", "over the limit of 50 bytes"):  # not this request: perhaps its reply, so it may have run
        doubtful, call = busy(Op.STEP, resumable=True, size=49)
        assert doubtful.handle(Event.DROPPED, Drop(1009, limit)) == [Dial(resume=True)]
        doubtful.handle(Event.RESUMED, Resumed("next", call.seq))
        effects = doubtful.handle(Event.DROPPED, Drop(1009, limit))
        error = ended_with(effects, call, MessageTooLargeError, Outcome.UNKNOWN)
        assert (error.session_lost, doubtful.state) == (True, State.LOST)
        plain, call = busy(Op.STEP, size=49)
        effects = plain.handle(Event.DROPPED, Drop(1009, limit))
        assert ended_with(effects, call, MessageTooLargeError, Outcome.UNKNOWN).session_lost


@cell(Row.BUSY, Event.GAVE_UP)
def _() -> None:
    machine, call = busy(Op.STEP, timeout_s=3.0, setting="step_timeout_s")
    effects = machine.handle(Event.GAVE_UP, GaveUp("timeout", call))
    assert kinds(effects) == [*LOSS, Fail]
    error = ended_with(effects, call, CallTimeoutError, Outcome.UNKNOWN)
    assert (error.operation, error.timeout_s, error.setting) == ("step", 3.0, "step_timeout_s")
    assert machine.state is State.LOST
    assert machine.loss.reason == "timeout"
    numbered, call = busy(Op.STEP, resumable=True)
    effects = numbered.handle(Event.GAVE_UP, GaveUp("timeout", call))
    assert kinds(effects) == [SendCancel, Fail]
    error = ended_with(effects, call, CallTimeoutError, Outcome.UNKNOWN)
    assert "settle()" in str(error)
    assert (numbered.row, numbered.abandoned) == (Row.IDLE, call)


@cell(Row.BUSY, Event.CLOSE)
def _() -> None:
    machine, call = busy(Op.STEP)
    effects = machine.handle(Event.CLOSE)
    assert kinds(effects) == [CloseSocket, Fail]
    assert effects[0] == CloseSocket(goodbye=True)
    ended_with(effects, call, SessionClosedError, Outcome.UNKNOWN)
    assert (machine.state, machine.call) == (State.CLOSED, None)


@cell(Row.BUSY, Event.LOOP_CLOSED)
def _() -> None:
    machine, call = busy(Op.STEP)
    effects = machine.handle(Event.LOOP_CLOSED)
    assert kinds(effects) == [*LOSS, Fail]
    error = ended_with(effects, call, SessionLostError, Outcome.UNKNOWN)
    assert error.reason == "loop_closed"
    assert (machine.state, machine.call) == (State.LOST, None)


# OPEN, settling


@cell(Row.SETTLING, Event.RECEIVED)
def _() -> None:
    machine, abandoned, call = settling()
    assert machine.handle(Event.RECEIVED, Reply("running")) == []
    effects = machine.handle(Event.RECEIVED, replace(OBSERVATION, seq=abandoned.seq))
    ended_with(effects, call, LateResultError, Outcome.APPLIED)
    assert machine.row is Row.IDLE
    clean, abandoned, call = settling()
    cancelled = replace(error_frame("CANCELLED", applied=False), seq=abandoned.seq)
    assert clean.handle(Event.RECEIVED, cancelled) == [Send(call)]
    asked, abandoned, call = settling(Op.SETTLE)
    reply = replace(OBSERVATION, seq=abandoned.seq)
    completed(asked.handle(Event.RECEIVED, reply), call, reply)
    anew, abandoned, call = settling(Op.RESET)
    effects = anew.handle(Event.RECEIVED, replace(OBSERVATION, seq=abandoned.seq))
    assert kinds(effects) == [Log, Send]  # a reset makes an end of it
    mixed, abandoned, call = settling()
    effects = mixed.handle(Event.RECEIVED, replace(OBSERVATION, seq=abandoned.seq + 1))
    assert ended_with(effects, call, SessionLostError, Outcome.NOT_APPLIED).reason == "protocol"
    counted, abandoned, call = settling()
    told = replace(error_frame("SEQ_OUT_OF_ORDER", applied=False), seq=abandoned.seq)
    effects = counted.handle(Event.RECEIVED, told)  # no word on the call itself
    assert ended_with(effects, call, SessionLostError, Outcome.NOT_APPLIED).reason == "protocol"


@cell(Row.SETTLING, Event.OVERSIZED)
def _() -> None:
    machine, _, call = settling()
    effects = machine.handle(Event.OVERSIZED, Oversized(11, 10))
    assert ended_with(effects, call, SessionLostError, Outcome.NOT_APPLIED).reason == "protocol"
    assert machine.state is State.LOST


@cell(Row.SETTLING, Event.DROPPED)
def _() -> None:
    machine, abandoned, call = settling()
    assert machine.handle(Event.DROPPED, Drop()) == [Dial(resume=True)]
    assert (machine.state, machine.call, machine.abandoned) == (State.SUSPENDED, call, abandoned)
    assert back(machine, abandoned.seq, running=True) == [SendCancel(abandoned.seq)]
    assert machine.row is Row.SETTLING
    final, _, call = settling()
    effects = final.handle(Event.DROPPED, Drop(4001, "idle"))
    assert ended_with(effects, call, SessionLostError, Outcome.NOT_APPLIED).reason == "idle"
    told_nothing, _, call = settling(Op.SETTLE)
    effects = told_nothing.handle(Event.DROPPED, Drop(4001, "idle"))
    ended_with(effects, call, SessionLostError, Outcome.UNKNOWN)  # of the call that was given up


@cell(Row.SETTLING, Event.GAVE_UP)
def _() -> None:
    machine, abandoned, call = settling()
    effects = machine.handle(Event.GAVE_UP, GaveUp("timeout", call))
    ended_with(effects, call, CallTimeoutError, Outcome.NOT_APPLIED)
    assert (machine.row, machine.abandoned) == (Row.IDLE, abandoned)


@cell(Row.SETTLING, Event.CLOSE)
def _() -> None:
    machine, _, call = settling()
    effects = machine.handle(Event.CLOSE)
    assert effects[0] == CloseSocket(goodbye=True)
    ended_with(effects, call, SessionClosedError, Outcome.NOT_APPLIED)
    assert (machine.state, machine.abandoned) == (State.CLOSED, None)


@cell(Row.SETTLING, Event.LOOP_CLOSED)
def _() -> None:
    machine, _, call = settling()
    effects = machine.handle(Event.LOOP_CLOSED)
    assert ended_with(effects, call, SessionLostError, Outcome.NOT_APPLIED).reason == "loop_closed"
    assert machine.state is State.LOST


# SUSPENDED


@cell(Row.SUSPENDED, Event.SETTLE)
def _() -> None:
    machine, abandoned = given_up()
    machine.handle(Event.DROPPED, Drop())
    call, effects = ask(machine, Op.SETTLE)
    assert effects == []
    assert back(machine, abandoned.seq) == [SendCancel(abandoned.seq)]
    reply = replace(OBSERVATION, seq=abandoned.seq)
    completed(machine.handle(Event.RECEIVED, reply), call, reply)


@cell(Row.SUSPENDED, Event.OPENING_OVER)
def _() -> None:
    machine, _ = suspended()
    call, _ = ask(machine, Op.RESET)
    effects = machine.handle(Event.OPENING_OVER)
    assert kinds(effects) == [*LOSS, Dial]
    assert (machine.state, machine.call) == (State.OPENING, call)
    assert machine.opening().releases == (NUMBERED.lease,)  # its own lease must not lock it out
    stepping, _ = suspended()
    ask(stepping, Op.STEP)
    assert stepping.handle(Event.OPENING_OVER) == []
    assert stepping.state is State.SUSPENDED


@cell(Row.SUSPENDED, Event.CONNECT)
def _() -> None:
    machine, _ = suspended()
    call, effects = ask(machine, Op.CONNECT)
    assert (effects, machine.call, machine.state) == ([], call, State.SUSPENDED)
    completed(back(machine, 1), call, None)
    assert (machine.row, machine.number) == (Row.IDLE, 1)


@cell(Row.SUSPENDED, Event.RESET)
def _() -> None:
    machine, _ = suspended()
    call, effects = ask(machine, Op.RESET)
    assert (effects, machine.call, machine.needs_reset) == ([], call, True)
    assert back(machine, 1) == [Send(call)]
    assert (machine.row, machine.number) == (Row.BUSY, 1)


@cell(Row.SUSPENDED, Event.CALL)
def _() -> None:
    machine, _ = suspended()
    call, effects = ask(machine, Op.STEP)
    assert (effects, machine.call) == ([], call)
    assert back(machine, 1) == [Send(call)]
    assert (call.seq, call.sends) == (2, 1)


@cell(Row.SUSPENDED, Event.DIAL_FAILED)
def _() -> None:
    machine, call = suspended(Op.STEP)
    first = machine.handle(Event.DIAL_FAILED, REFUSED)
    second = machine.handle(Event.DIAL_FAILED, REFUSED)
    assert kinds(first + second) == [Log, Dial, Dial]  # told once
    assert "cannot be resumed yet: refused" in first[0].text
    assert first[1].resume
    assert second[0].resume
    assert 0 < first[1].delay < second[0].delay
    assert (machine.state, machine.call) == (State.SUSPENDED, call)


@cell(Row.SUSPENDED, Event.RESUMED)
def _() -> None:
    started, call = suspended(Op.STEP)
    assert back(started, call.seq, running=True) == []
    assert (started.row, started.call, call.sends) == (Row.BUSY, call, 1)
    not_started, call = suspended(Op.STEP)
    assert back(not_started, call.seq - 1) == [Send(call)]
    assert (not_started.row, call.sends) == (Row.BUSY, 2)
    waited, abandoned = given_up()
    waited.handle(Event.DROPPED, Drop())
    call, _ = ask(waited, Op.CONNECT)
    effects = back(waited, abandoned.seq, running=True)
    assert kinds(effects) == [SendCancel, Complete]
    assert (waited.row, waited.call, waited.abandoned) == (Row.IDLE, None, abandoned)
    wrong, call = suspended(Op.STEP)
    effects = wrong.handle(Event.RESUMED, Resumed("token-2", call.seq + 1))
    ended_with(effects, call, SessionLostError, Outcome.UNKNOWN)
    assert wrong.state is State.LOST
    mute, _ = opening(Op.RESET)
    mute.handle(Event.OPENED, replace(NUMBERED, features=frozenset({Feature.SEQ, Feature.RESUME})))
    mute.handle(Event.RECEIVED, replace(OBSERVATION, seq=1))
    abandoned, _ = ask(mute, Op.STEP)
    mute.handle(Event.GAVE_UP, GaveUp("timeout", abandoned))
    mute.handle(Event.DROPPED, Drop())
    call, _ = ask(mute, Op.STEP)
    assert back(mute, 1) == [Send(call)]  # the server cannot be told of the other one, and has never seen it
    assert call.seq == abandoned.seq


@cell(Row.SUSPENDED, Event.RESUME_LOST)
def _() -> None:
    machine, call = suspended(Op.STEP)
    effects = machine.handle(Event.RESUME_LOST, "evicted")
    error = ended_with(effects, call, SessionLostError, Outcome.UNKNOWN)
    assert error.reason == "evicted"
    assert machine.state is State.LOST
    never, call = suspended(Op.STEP)
    effects = never.handle(Event.RESUME_LOST, "never_called")
    ended_with(effects, call, SessionLostError, Outcome.NOT_APPLIED)
    resetting, _ = suspended(Op.RESET)
    assert kinds(resetting.handle(Event.RESUME_LOST, "expired")) == [*LOSS, Dial]
    assert resetting.state is State.OPENING


@cell(Row.SUSPENDED, Event.GAVE_UP)
def _() -> None:
    waiting, _ = suspended()
    unsent, _ = ask(waiting, Op.STEP)
    effects = waiting.handle(Event.GAVE_UP, GaveUp("timeout", unsent))
    ended_with(effects, unsent, CallTimeoutError, Outcome.NOT_APPLIED)
    assert (waiting.state, waiting.call) == (State.SUSPENDED, None)
    machine, call = suspended(Op.STEP)
    effects = machine.handle(Event.GAVE_UP, GaveUp("timeout", call))
    assert kinds(effects) == [Fail]  # the cancel goes out when the session is back
    ended_with(effects, call, CallTimeoutError, Outcome.UNKNOWN)
    assert (machine.state, machine.abandoned) == (State.SUSPENDED, call)
    assert back(machine, call.seq - 1) == [SendCancel(call.seq)]
    taken, call = busy(Op.STEP, resumable=True)
    reply = replace(OBSERVATION, seq=call.seq)
    taken.handle(Event.RECEIVED, reply)
    taken.handle(Event.DROPPED, Drop())
    assert taken.handle(Event.GAVE_UP, GaveUp("cancelled", call, reply)) == []
    assert taken.due is not None


@cell(Row.SUSPENDED, Event.CLOSE)
def _() -> None:
    machine, call = suspended(Op.STEP)
    effects = machine.handle(Event.CLOSE)
    assert effects[:2] == [CloseSocket(goodbye=False), SayRelease()]
    assert machine.farewells() == (NUMBERED.lease,)
    ended_with(effects, call, SessionClosedError, Outcome.UNKNOWN)
    assert machine.state is State.CLOSED


@cell(Row.SUSPENDED, Event.LOOP_CLOSED)
def _() -> None:
    machine, _ = suspended()
    assert kinds(machine.handle(Event.LOOP_CLOSED)) == LOSS
    assert machine.state is State.LOST
    assert machine.loss.reason == "loop_closed"


# LOST


@cell(Row.LOST, Event.CONNECT)
def _() -> None:
    machine = lost()
    call, effects = ask(machine, Op.CONNECT)
    assert effects == [Dial()]
    completed(machine.handle(Event.OPENED, PLAIN), call, None)
    assert (machine.state, machine.socket_open) == (State.LOST, True)
    again, effects = ask(machine, Op.CONNECT)
    completed(effects, again, None)
    assert machine.state is State.LOST


@cell(Row.LOST, Event.RESET)
def _() -> None:
    machine = lost()
    call, effects = ask(machine, Op.RESET)
    assert effects == [Dial()]
    assert machine.handle(Event.OPENED, PLAIN) == [Send(call)]
    assert machine.loss is not None
    completed(machine.handle(Event.RECEIVED, OBSERVATION), call, OBSERVATION)
    assert (machine.row, machine.loss, machine.number) == (Row.IDLE, None, 2)
    open_already = lost(socket_open=True)
    call, effects = ask(open_already, Op.RESET)
    assert effects == [Send(call)]
    assert open_already.row is Row.BUSY


@cell(Row.LOST, Event.CALL)
def _() -> None:
    for machine in (lost(), lost(socket_open=True)):
        for op in (Op.STEP, Op.STATE, Op.TOOL):
            call, effects = ask(machine, op)
            error = ended_with(effects, call, SessionLostError, Outcome.NOT_APPLIED)
            assert (error.reason, error.session, error.close_code) == ("server_restart", 1, 1012)
            assert machine.state is State.LOST


@cell(Row.LOST, Event.SETTLE)
def _() -> None:
    machine, abandoned = given_up()
    reply = replace(OBSERVATION, seq=abandoned.seq)
    machine.handle(Event.RECEIVED, reply)
    machine.handle(Event.DROPPED, Drop(4001, "idle"))
    assert machine.state is State.LOST
    call, effects = ask(machine, Op.SETTLE)
    completed(effects, call, reply)  # a late result in hand survives the loss
    assert machine.state is State.LOST


@cell(Row.LOST, Event.RECEIVED)
def _() -> None:
    machine = lost(socket_open=True)
    effects = machine.handle(Event.RECEIVED, OBSERVATION)
    assert kinds(effects) == LOSS
    assert (machine.state, machine.socket_open) == (State.LOST, False)
    refused = lost(socket_open=True)
    effects = refused.handle(Event.RECEIVED, error_frame("CAPACITY_REACHED"))
    assert kinds(effects) == [CloseSocket, Log]
    assert "refused" in effects[1].text
    assert (refused.state, refused.number) == (State.LOST, 1)


@cell(Row.LOST, Event.OVERSIZED)
def _() -> None:
    machine = lost(socket_open=True)
    assert kinds(machine.handle(Event.OVERSIZED, Oversized(11, 10))) == LOSS
    assert (machine.state, machine.socket_open) == (State.LOST, False)


@cell(Row.LOST, Event.DROPPED)
def _() -> None:
    machine = lost(socket_open=True)
    first = machine.loss
    assert machine.handle(Event.DROPPED, Drop()) == [CloseSocket()]
    assert (machine.state, machine.socket_open, machine.loss) == (State.LOST, False, first)


@cell(Row.LOST, Event.GAVE_UP)
def _() -> None:
    machine, call = busy(Op.STEP)
    machine.handle(Event.RECEIVED, OBSERVATION)
    machine.handle(Event.DROPPED, Drop())  # before its caller came to take its answer
    before = dict(vars(machine))
    assert machine.handle(Event.GAVE_UP, GaveUp("cancelled", call, OBSERVATION)) == []
    assert vars(machine) == before


@cell(Row.LOST, Event.CLOSE)
def _() -> None:
    machine = lost(socket_open=True)
    assert machine.handle(Event.CLOSE) == [CloseSocket(goodbye=True)]
    assert (machine.state, machine.loss, machine.needs_reset) == (State.CLOSED, None, True)


@cell(Row.LOST, Event.LOOP_CLOSED)
def _() -> None:
    machine = lost(socket_open=True)
    assert machine.handle(Event.LOOP_CLOSED) == [CloseSocket()]
    assert (machine.state, machine.socket_open) == (State.LOST, False)


# CLOSED


@cell(Row.CLOSED, Event.CONNECT)
def _() -> None:
    machine = closed()
    call, effects = ask(machine, Op.CONNECT)
    assert effects == [Dial()]
    completed(machine.handle(Event.OPENED, PLAIN), call, None)
    step, effects = ask(machine, Op.STEP)
    error = ended_with(effects, step, SessionLostError, Outcome.NOT_APPLIED)
    assert error.reason == "reset_failed"
    machine = closed()
    ask(machine, Op.CONNECT)
    machine.handle(Event.DIAL_FAILED, DialFailure(ConnectError("no"), retryable=False))
    assert machine.state is State.NEW


@cell(Row.CLOSED, Event.RESET)
def _() -> None:
    machine = closed()
    call, effects = ask(machine, Op.RESET)
    assert effects == [Dial()]
    assert machine.handle(Event.OPENED, PLAIN) == [Send(call)]
    queued = machine.new_call(Op.RESET)
    machine.handle(Event.CLOSE)
    effects = machine.handle(Event.RESET, queued)  # it was made before the close
    ended_with(effects, queued, SessionClosedError, Outcome.NOT_APPLIED)
    assert machine.state is State.CLOSED
    ask(machine, Op.RESET)
    machine.handle(Event.DIAL_FAILED, DialFailure(ConnectError("no"), retryable=False))
    assert machine.state is State.NEW


@cell(Row.CLOSED, Event.CALL)
def _() -> None:
    machine = closed()
    call, effects = ask(machine, Op.STEP)
    assert kinds(effects) == [Fail]
    ended_with(effects, call, SessionClosedError, Outcome.NOT_APPLIED)
    assert machine.state is State.CLOSED


@cell(Row.CLOSED, Event.SETTLE)
def _() -> None:
    machine = closed()
    call, effects = ask(machine, Op.SETTLE)
    completed(effects, call, None)
    assert machine.state is State.CLOSED


@cell(Row.CLOSED, Event.GAVE_UP)
def _() -> None:
    machine, call = busy(Op.STEP)
    machine.handle(Event.RECEIVED, OBSERVATION)
    machine.handle(Event.CLOSE)
    before = dict(vars(machine))
    assert machine.handle(Event.GAVE_UP, GaveUp("cancelled", call, OBSERVATION)) == []
    assert vars(machine) == before


@cell(Row.CLOSED, Event.CLOSE)
def _() -> None:
    machine = closed()
    before = dict(vars(machine))
    assert machine.handle(Event.CLOSE) == []
    assert vars(machine) == before


@cell(Row.CLOSED, Event.LOOP_CLOSED)
def _() -> None:
    machine = closed()
    before = dict(vars(machine))
    assert machine.handle(Event.LOOP_CLOSED) == []
    assert vars(machine) == before
