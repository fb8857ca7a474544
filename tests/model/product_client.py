"""The package's own client, in the place of the model's: `ClientMachine` and `Opening`, driven as `EnvLink` does.

A machine is kept as a tuple of its memory, so that states can be compared, and rebuilt for each event.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from model.roles import (
    BUSY,
    CANCELLED,
    CUT_SHORT,
    FAILED,
    FINAL,
    MISMATCH,
    OK,
    OUT_OF_ORDER,
    RESET,
    SETTLE,
)
from openenv.core.exceptions import (
    CapacityError,
    ConnectError,
    LateResultError,
    OpenEnvError,
    Outcome,
    OutcomeUnknownError,
    ServerError,
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
    Due,
    Effect,
    Event,
    Fail,
    GaveUp,
    Op,
    SayRelease,
    Send,
    SendCancel,
    Tell,
)
from openenv.core.session.features import Feature
from openenv.core.session.opening import Opening, SessionOpened
from openenv.core.session.states import State
from openenv.core.wire.messages import Reply
from openenv.core.wire.v1 import Lost, LostReason, Open, Release, Resume, Resumed, Welcome

EVENTS = {RESET: Event.RESET, SETTLE: Event.SETTLE}
ERRORS = {
    CANCELLED: ("CANCELLED", False),
    CUT_SHORT: ("CANCELLED", None),
    FAILED: ("EXECUTION_ERROR", None),
    BUSY: ("BUSY", False),
    MISMATCH: ("SEQ_MISMATCH", False),
    OUT_OF_ORDER: ("SEQ_OUT_OF_ORDER", False),
}
UNCOUNTED = {"resumes": 0, "losses": 0, "_dials": 0}
"""Memory that no rule depends on within the bounds; left out, so that states meet."""

_CALL, _REPLY, _DUE, _ERROR = "call", "reply", "due", "error"


class PC(NamedTuple):
    """``memory``: of the machine; ``opening``: of the socket under way; ``dialing``; ``full``: refused for capacity."""

    memory: tuple[Any, ...]
    opening: tuple[Any, ...] | None = None
    dialing: bool = False
    full: bool = False


Next = tuple[PC, tuple[tuple[Any, ...], ...]]


def freeze(value: Any) -> Any:
    match value:
        case Call():
            return (_CALL, value.op, value.made_in, value.closes, value.seq, min(value.sends, 2), value.size)
        case Due():
            return (_DUE, value.op, freeze(value.reply), freeze(value.error))
        case Reply():
            return (_REPLY, value.kind, value.data.get("cid"), value.seq)
        case OpenEnvError():
            kind = next(kind for kind in (CapacityError, ConnectError, OpenEnvError) if isinstance(value, kind))
            return (_ERROR, kind, value.outcome)
        case list():
            return tuple(value)
    return value


def thaw(value: Any) -> Any:
    if not isinstance(value, tuple) or not value:
        return value
    match value[0]:
        case "call":
            _, op, made_in, closes, seq, sends, size = value
            return Call(op, made_in=made_in, closes=closes, seq=seq, sends=sends, size=size)
        case "due":
            return Due(value[1], thaw(value[2]), thaw(value[3]))
        case "reply":
            return Reply(value[1], {"cid": value[2]}, value[3])
        case "error":
            if value[1] is CapacityError:
                return CapacityError(active=1, max=1, url="")
            if value[1] is ConnectError:
                return ConnectError("no", url="")
            return ServerError("no", code="", outcome=value[2])
    return list(value)


def machine_of(memory: tuple[Any, ...]) -> ClientMachine:
    machine: ClientMachine = object.__new__(ClientMachine)
    machine.__dict__.update(zip(NAMES, map(thaw, memory), strict=True))
    return machine


def memory_of(machine: ClientMachine) -> tuple[Any, ...]:
    return tuple(freeze(UNCOUNTED.get(name, value)) for name, value in machine.__dict__.items())


_FIRST = ClientMachine(backoff=Backoff(draw=lambda: 0.0), url="ws://server", wants=frozenset(Feature))
NAMES = tuple(_FIRST.__dict__)


class ProductClient:
    """Same methods as `model.client.Client`."""

    start = PC(memory_of(_FIRST))

    # ---------------------------------------------------------------- what the world asks

    @staticmethod
    def wants_dial(cl: PC) -> bool:
        return cl.dialing

    @staticmethod
    def waits_for_room(cl: PC) -> bool:
        return cl.full

    @staticmethod
    def may_be_cloned(cl: PC) -> bool:
        machine = machine_of(cl.memory)
        up = machine.state in (State.OPEN, State.SUSPENDED) and machine.touched
        return up and machine.abandoned is None and machine.due is None

    @staticmethod
    def cloned(cl: PC) -> PC:
        machine = machine_of(cl.memory)
        machine.state, machine.call, machine.seq, machine.socket_open = State.SUSPENDED, None, machine.last_reply, False
        return PC(memory_of(machine), dialing=True)

    @staticmethod
    def may_open_elsewhere(cl: PC) -> bool:
        machine = machine_of(cl.memory)
        call = machine.call
        return machine.state is State.SUSPENDED and call is not None and call.op is Op.RESET and not call.seq

    # ---------------------------------------------------------------- the user

    def make(self, cl: PC, cid: int, kind: str) -> Next:
        turn = _Turn(cl)
        call = turn.machine.new_call(Op(kind), size=cid)
        return turn.feed(EVENTS.get(kind, Event.CALL), call)

    def give_up(self, cl: PC) -> Next:
        turn = _Turn(cl)
        call = turn.machine.call
        assert call is not None
        return turn.feed(Event.GAVE_UP, GaveUp("timeout", call))

    def open_elsewhere(self, cl: PC) -> Next:
        return _Turn(cl).feed(Event.OPENING_OVER)

    def close(self, cl: PC) -> Next:
        return _Turn(cl).feed(Event.CLOSE)

    # ---------------------------------------------------------------- the network

    def connected(self, cl: PC, epoch: int) -> Next:
        turn = _Turn(cl)
        turn.full = False
        turn.opening = turn.machine.opening()
        welcome = Welcome("model", tuple(feature.value for feature in Feature), str(epoch))
        return turn.hear(Reply("welcome", welcome.frame()["data"]))

    def dropped(self, cl: PC, code: int) -> Next:
        turn = _Turn(cl)
        reason = FINAL.get(code, "")
        if turn.opening is not None:
            return turn.opened(turn.opening.closed(code or 1006, reason, "cut"))
        return turn.feed(Event.DROPPED, Drop(code or 1006, reason, "cut"))

    def frame(self, cl: PC, frame: tuple[Any, ...]) -> Next:
        turn = _Turn(cl)
        reply = _reply(frame)
        return turn.feed(Event.RECEIVED, reply) if turn.opening is None else turn.hear(reply)


class _Turn:
    """One event of a client."""

    def __init__(self, cl: PC) -> None:
        self.machine = machine_of(cl.memory)
        self.opening = None if cl.opening is None else _opening(cl.opening)
        self.dialing, self.full = cl.dialing, cl.full
        self.effects: list[tuple[Any, ...]] = []

    def done(self) -> Next:
        opening = self.opening
        kept = None if opening is None else (opening.resume, tuple(opening.releases), opening._welcome)
        return PC(memory_of(self.machine), kept, self.dialing, self.full), tuple(self.effects)

    def hear(self, reply: Reply) -> Next:
        """A frame of the opening."""
        assert self.opening is not None
        for answer in self.opening.receive(reply):
            self.effects.append(("send", _ask(answer)))
        return self.done() if self.opening.outcome is None else self.opened(self.opening.outcome)

    def opened(self, outcome: Any) -> Next:
        self.opening = None
        self.dialing = False
        if isinstance(outcome, SessionOpened):
            return self.feed(Event.OPENED, outcome)
        if isinstance(outcome, Resumed):
            return self.feed(Event.RESUMED, outcome)
        self.effects.append(("drop",))
        if isinstance(outcome, Lost):
            if outcome.reason == LostReason.NEVER_CALLED and not self.machine._reset_begun:
                self.effects.append(("lost", outcome.reason))  # not worth telling the user
            return self.feed(Event.RESUME_LOST, outcome.reason)
        assert isinstance(outcome, DialFailure)
        self.full = isinstance(outcome.error, CapacityError)
        return self.feed(Event.DIAL_FAILED, outcome)

    def feed(self, event: Event, payload: Any = None) -> Next:
        for effect in self.machine.handle(event, payload, 0.0):
            self.carry_out(effect)
        return self.done()

    def carry_out(self, effect: Effect) -> None:
        do = self.effects.append
        match effect:
            case Send(call):
                do(("send", ("call", call.seq, call.size, call.op.value)))
            case SendCancel(seq):
                do(("send", ("cancel", seq)))
            case Dial():
                self.dialing = True
            case CloseSocket(goodbye):
                self.dialing, self.full, self.opening = False, False, None
                do(("goodbye",) if goodbye else ("drop",))
            case SayRelease():
                for lease in self.machine.farewells():
                    do(("say_release", int(lease.session), _number(lease.token)))
            case Complete(call, reply):
                cid = None if reply is None else reply.data["cid"]
                do(("settled" if call.op is Op.SETTLE else "ok", call.size, cid))
            case Fail(call, error):
                if isinstance(error, LateResultError):
                    do(("late", call.size, error.reply.data["cid"]))
                elif isinstance(error, OutcomeUnknownError | ServerError) and not call.sends:  # of an earlier call
                    do(("settled" if call.op is Op.SETTLE else "late", call.size, None))
                else:
                    do(("fail", call.size, _outcome(error)))
            case Tell(loss) if loss is not None:
                do(("lost", loss.reason))


def _outcome(error: OpenEnvError) -> str:
    return Outcome(error.outcome).value


def _opening(kept: tuple[Any, ...]) -> Opening:
    resume, releases, welcome = kept
    opening = Opening(wants=frozenset(Feature), resume=resume, releases=releases)
    opening._welcome = welcome
    return copy.copy(opening)


# ---------------------------------------------------------------- frames of the package, frames of the model


def _number(token: str) -> int:
    return int(token.rpartition(".")[2])


def _ask(frame: dict[str, Any]) -> tuple[Any, ...]:
    data = frame.get("data", {})
    match frame["type"]:
        case "open":
            assert Open.read(data).uses
            return ("open",)
        case "release":
            release = Release.read(data)
            return ("release", int(release.session), _number(release.token))
        case "resume":
            resume = Resume.read(data)
            return (
                "resume",
                int(resume.lease.session),
                _number(resume.lease.token),
                resume.last_reply,
                resume.attempt,
            )
    raise AssertionError(frame)


def _reply(frame: tuple[Any, ...]) -> Reply:
    match frame:
        case ("opened", sid, token):
            return Reply("opened", {"session": str(sid), "token": f"{sid}.{token}"})
        case ("full",):
            return Reply("error", {"code": "CAPACITY_REACHED", "message": "full"})
        case ("resumed", token, m):
            return Reply("resumed", {"token": f"t.{token}", "last_seq": m, "running": False})
        case ("lost", reason):
            return Reply("lost", {"reason": reason})
        case ("reply", n, cid, result) if result == OK:
            return Reply("observation", {"cid": cid}, n)
        case ("reply", n, cid, result):
            code, applied = ERRORS[result]
            return Reply("error", {"code": code, "message": result, "applied": applied, "cid": cid}, n)
    raise AssertionError(frame)
