"""The client's session machine: every rule about sessions, and no input or output.

Inputs are `Event` values, outputs are effects for a driver to carry out in order, and time is an
argument. One call at a time is in the machine; others wait in the driver. States, rows and the table of
rules are in `openenv.core.session.states`; each rule named there is one method: those for asking and
answering here, those for losing, resuming and ending in `openenv.core.session.keeping`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from openenv.core.exceptions import (
    ConnectError,
    MessageTooLargeError,
    NotResetError,
    OpenEnvError,
    Outcome,
    ServerError,
    SessionClosedError,
)
from openenv.core.session.events import (
    Call,
    CloseSocket,
    Complete,
    Dial,
    DialFailure,
    Effect,
    Event,
    Fail,
    Log,
    Op,
    Oversized,
    Send,
)
from openenv.core.session.keeping import MIX_UPS, SessionKeeper
from openenv.core.session.opening import SessionOpened
from openenv.core.session.states import TABLE, IllegalEvent, Row, State
from openenv.core.wire.messages import REPLY_TYPE, Reply, WSErrorCode, capacity_error, error_from_frame

__all__ = ["ClientMachine"]

_REFUSALS = frozenset({WSErrorCode.CAPACITY_REACHED, WSErrorCode.FACTORY_ERROR, WSErrorCode.SESSION_ERROR})
_SEQ_ROOM = 32
"""Bytes that the number adds to a request frame, at the most."""


class ClientMachine(SessionKeeper):
    """The session of one client.

    Attributes:
        state: see the module's text.
        number: sessions opened so far; the present one has this number.
        touched: a call was sent in the present session.
        features: what the present session uses of ``openenv.v1``; none for the plain dialect.
        lease: the right to resume it.
        abandoned: a call that was given up and whose fate is not known yet.
        due: what such a call has left to be told.
        loss: the lost session; None unless LOST or while a reset from LOST has not completed.
        needs_reset: step, state and tool calls wait for a completed reset.
        episode_id: name of the episode, if it is known.
        steps: steps answered in the episode.
        call: the call in flight.
        closes: how often the client was closed.
    """

    # -------------------------------------------------------------- events in, effects out

    @property
    def row(self) -> Row:
        """The row of `TABLE` that rules now."""
        if self.state is State.OPEN:
            if self.call is None:
                return Row.IDLE
            return Row.BUSY if self.abandoned is None else Row.SETTLING
        return Row(self.state.value)

    def new_call(self, op: Op, **fields: Any) -> Call:
        """A call made now: it belongs to the present session."""
        return Call(op, made_in=self.number, closes=self.closes, **fields)

    def handle(self, event: Event, payload: Any = None, now: float = 0.0) -> list[Effect]:
        """Take one event.

        Args:
            event: what happened.
            payload: a `Call` for CONNECT, RESET and CALL; a `Reply`, `Oversized`, `Drop`, `DialFailure`,
                `Resumed`, `GaveUp` or reason text where the event has one.
            now: the time, on the clock that the calls' deadlines use, in seconds.

        Returns:
            Effects, to be carried out in order.

        Raises:
            IllegalEvent: the event cannot happen now; nothing was changed.
        """
        name = self._table().get((self.row, event))
        if name is None:
            raise IllegalEvent(self.row, event)
        rule: Callable[[Any, float], list[Effect]] = getattr(self, "_" + name)
        return rule(payload, now)

    def _table(self) -> Mapping[tuple[Row, Event], str]:
        """The rules of this kind of client."""
        return TABLE

    # -------------------------------------------------------------- asking

    def _stay(self, _: Any, now: float) -> list[Effect]:
        return []

    def _open_first(self, call: Call, now: float) -> list[Effect]:
        if call.closes != self.closes:
            return [Fail(call, SessionClosedError())]
        return self._open(call, State.NEW)

    def _open_for_call(self, call: Call, now: float) -> list[Effect]:
        refusal = self._refusal(call)
        if refusal:
            return [Fail(call, refusal)]
        return self._pay(call) if self.due else self._open(call, State.NEW)

    def _already_open(self, call: Call, now: float) -> list[Effect]:
        return [Complete(call)]

    def _connect_lost(self, call: Call, now: float) -> list[Effect]:
        return [Complete(call)] if self.socket_open else self._open(call, State.LOST)

    def _reset_lost(self, call: Call, now: float) -> list[Effect]:
        if call.closes != self.closes:
            return [Fail(call, SessionClosedError())]
        if not self.socket_open:
            return self._open(call, State.LOST)
        self.state = State.OPEN
        return self._ask(call, now)

    def _ask(self, call: Call, now: float) -> list[Effect]:
        """A call's turn at an open session: first the fate of a call that was given up, then its own (E14, E15)."""
        if call.closes != self.closes:
            return [Fail(call, SessionClosedError())]
        if call.op is Op.CONNECT:
            return [Complete(call)]
        if self.abandoned is not None:
            self._note_reset(call)
            self.call = call
            return []
        refusal = self._refusal(call) if call.op not in (Op.RESET, Op.SETTLE) else None
        if refusal:
            return [Fail(call, refusal)]
        if call.op is Op.SETTLE:
            return self._pay(call)
        if call.op is not Op.RESET:
            return self._pay(call) if self.due else [*self._warn_no_reset(call), *self._send(call, now)]
        return [*self._discard_due(), *self._send(call, now)]

    def _discard_due(self) -> list[Effect]:
        due, self.due = self.due, None
        return [Log(f"a late result of {due.op}() was discarded by reset()", warning=False)] if due else []

    def _send(self, call: Call, now: float) -> list[Effect]:
        self._note_reset(call)
        if self._peer_limit is not None and call.size + _SEQ_ROOM > self._peer_limit:
            error = MessageTooLargeError(size=call.size, limit=self._peer_limit, direction="sent")
            self._note_no_answer()
            return [Fail(call, error)]
        self.call = call
        self.touched = True
        self.seq += 1
        call.seq = self.seq
        call.numbered, call.resets = self.numbered, self.resets
        call.sends += 1
        return [Send(call)]

    def _call_suspended(self, call: Call, now: float) -> list[Effect]:
        """Waits for the resume; refused at once only if no call is open whose answer could change that."""
        refusal = None if self.abandoned else self._refusal(call)
        return [Fail(call, refusal)] if refusal else self._wait_for_resume(call, now)

    def _refuse(self, call: Call, now: float) -> list[Effect]:
        return [Fail(call, self._refusal(call) or self._lost_error())]

    def _refuse_closed(self, call: Call, now: float) -> list[Effect]:
        return [Fail(call, SessionClosedError())]

    def _refusal(self, call: Call) -> OpenEnvError | None:
        """Why this step, state or tool call must not be sent now; None if it may (rule 1)."""
        if call.closes != self.closes:
            return SessionClosedError()
        if self.loss is not None:
            return self.loss.error()
        if call.made_in not in (0, self.number):
            return self._loss("replaced", detail="the call was made in a session that is gone").error()
        if self.needs_reset:
            return self._loss("reset_failed", detail="no reset() has completed in this session").error()
        if self._require_reset and not self._reset_completed:
            return NotResetError()
        return None

    def _lost_error(self) -> OpenEnvError:
        return (self.loss or self._loss("connection")).error()

    def expect_no_reset(self) -> None:
        """What is asked before the first reset needs no warning."""
        self._warned_no_reset = True

    def _warn_no_reset(self, call: Call) -> list[Effect]:
        if self._reset_begun or self._warned_no_reset:
            return []
        self._warned_no_reset = True
        return [Log("a step, state or tool call was made before any reset(); the environment may not be ready for it")]

    # -------------------------------------------------------------- opening

    def _start_session(self, opened: SessionOpened, now: float) -> list[Effect]:
        call = self._in_flight()
        self.number += 1
        self.socket_open = True
        self.touched = False
        self.features = opened.features
        self.lease = opened.lease
        self._peer_limit = opened.max_message_bytes
        self._attempt = 0
        self._releases = []
        self.seq = self.last_reply = 0
        if self._reset_begun:
            self.needs_reset = True
        self.call = None
        if call.op is Op.CONNECT:
            self.state = State.LOST if self.loss else State.OPEN
            return [Complete(call)]
        self.state = State.OPEN
        first = self._warn_no_reset(call) if call.op is not Op.RESET else self._discard_due()
        return [*first, *self._send(call, now)]

    def _dial_again(self, failure: DialFailure, now: float) -> list[Effect]:
        call = self._in_flight()
        self._dials += 1
        self._dial_error = failure.error
        delay = self._backoff.delay(self._dials)
        limit = call.deadline if self._has_whole_time() else call.dial_deadline
        in_time = limit is None or now + delay < limit
        if failure.retryable and in_time:
            warning = [Log(f"{failure.error} Trying again until the time is over.")] if self._dials == 1 else []
            return [*warning, Dial(delay)]
        error = failure.error
        if isinstance(error, ConnectError):
            error.attempts = self._dials
        return self._fail_opening(error)

    def _opening_over(self, _: Any, now: float) -> list[Effect]:
        return [] if self._has_whole_time() else self._give_up_opening(_, now)

    def _has_whole_time(self) -> bool:
        """A client on its way back from a loss may open a connection in the whole time of its call."""
        return self._return_to is State.LOST

    def _give_up_opening(self, _: Any, now: float) -> list[Effect]:
        """The time for opening is over: raise what the last dial met, or that none was answered."""
        call = self._in_flight()
        error = self._dial_error
        if error is None:
            seconds, setting = call.opening_limit(returning=self._has_whole_time())
            waited = f" within {seconds:g} s ({setting})" if seconds is not None else ""
            error = ConnectError(
                f"Failed to connect to {self._url}: no answer{waited}. Is the server up, or still starting?",
                url=self._url,
            )
        if isinstance(error, ConnectError):
            error.attempts = max(1, self._dials)
        return [CloseSocket(), *self._fail_opening(error)]

    def _fail_opening(self, error: OpenEnvError) -> list[Effect]:
        call = self._in_flight()
        self.call = None
        self.state = self._return_to
        if call.sends:  # a reset that was sent in an earlier session may have run there (E23)
            error.outcome = Outcome.UNKNOWN
        return [Fail(call, error)]

    # -------------------------------------------------------------- answers

    def _answer(self, reply: Reply, now: float) -> list[Effect]:
        call = self._in_flight()
        if reply.kind == "running":
            return []
        if self.numbered and reply.seq != call.seq:
            return self._protocol_loss(f"a '{reply.kind}' frame numbered {reply.seq} came, where {call.seq} was due")
        if reply.is_error and reply.code in _REFUSALS:
            return self._refused(call, reply, now)
        if reply.is_error and reply.code in MIX_UPS:
            return self._protocol_loss(f"the server counts requests differently ({reply.code})")
        if not reply.is_error and reply.kind != REPLY_TYPE[call.op.kind]:
            return self._protocol_loss(f"a '{reply.kind}' frame answered a {call.op} request")
        error = error_from_frame(reply) if reply.is_error else None
        self.call = None
        self.last_reply = call.seq
        if error is not None:
            self._note_no_answer()
            return [Fail(call, error)]
        self._note_answer(call, reply)
        return [Complete(call, reply)]

    def _answer_too_large(self, frame: Oversized, now: float) -> list[Effect]:
        call = self._in_flight()
        self.call = None
        self.last_reply = call.seq
        if call.op is Op.STEP:
            self.steps += 1
        error = MessageTooLargeError(size=frame.size, limit=frame.limit, direction="received", outcome=Outcome.APPLIED)
        self._note_no_answer()
        return [Fail(call, error)]

    def _refused(self, call: Call, reply: Reply, now: float) -> list[Effect]:
        """The server will end this connection; if it was the session's first request, there never was a session."""
        first = call.seq == 1
        if reply.code == WSErrorCode.CAPACITY_REACHED and first:
            return [CloseSocket(), *self._full(call, reply, now)]
        if first and reply.code == WSErrorCode.FACTORY_ERROR:
            self._forget_socket()
            self.state = State.LOST if self.loss else State.NEW
            return [CloseSocket(), Fail(call, error_from_frame(reply))]
        message = str(reply.data.get("message") or "")
        detail = f"the server ended the session: {message}"
        if call.op is Op.RESET:
            self._forget_socket()
            effects = self._lose(self._loss("server", detail=detail))
            return [*effects, Fail(call, ServerError(message, code=reply.code, outcome=Outcome.UNKNOWN))]
        return self._lose_call(call, self._loss("server", detail=detail), Outcome.UNKNOWN)

    def _full(self, call: Call, reply: Reply, now: float) -> list[Effect]:
        """No slot. A client whose former session may still hold one waits for it; a newcomer is told at once."""
        held_one = self.number > 1
        self._forget_socket()
        self.number -= 1  # a refusal is not a session
        call.sends -= 1
        self.call = call
        self._return_to = State.LOST if self.loss else State.NEW
        self.state = State.OPENING
        return self._dial_again(DialFailure(capacity_error(reply, self._url), retryable=held_one), now)

    def _answer_abandoned(self, reply: Reply, now: float) -> list[Effect]:
        """A call waits for the fate of the one before it; when that is known, it has its turn."""
        if reply.kind == "running":
            return []
        if self._learn_fate(reply) is None:
            return self._unasked(reply, now)
        call, self.call = self._in_flight(), None
        return self._take_turn(call, now)

    def _take_turn(self, call: Call, now: float) -> list[Effect]:
        if self.state is not State.LOST:
            return self._ask(call, now)
        if call.op in (Op.RESET, Op.CONNECT):
            return self._reset_lost(call, now) if call.op is Op.RESET else self._connect_lost(call, now)
        return self._pay(call) if call.op is Op.SETTLE else self._refuse(call, now)

    def _unasked(self, frame: Reply | Oversized, now: float) -> list[Effect]:
        """A frame that no call asked for: the fate of a call that was given up, or, before the first call, a refusal
        of the session; anything else is a mix-up (rule 2)."""
        if isinstance(frame, Reply):
            if frame.kind == "running":
                return []
            learned = self._learn_fate(frame)
            if learned is not None:
                return learned
        refused = isinstance(frame, Reply) and frame.is_error and frame.code in _REFUSALS
        if refused and not self.touched:
            self._forget_socket()
            self.number -= 1
            self.state = State.LOST if self.loss else State.NEW
            return [CloseSocket(), Log(f"the server refused the session: {_message(frame)}")]
        return self._lose_all(self._loss("protocol", detail="the server sent a frame that no call had asked for"))

    def _protocol_loss(self, detail: str) -> list[Effect]:
        return self._lose_call(self._in_flight(), self._loss("protocol", detail=detail), Outcome.UNKNOWN)


def _message(frame: Reply | Oversized) -> str:
    return str(frame.data.get("message") or frame.code) if isinstance(frame, Reply) else "an oversized frame"
