"""The client's session machine: every rule about sessions, and no input or output.

Inputs are `Event` values, outputs are effects for a driver to carry out in order, and time is an
argument. One call at a time is in the machine; others wait in the driver. States, rows and the table of
rules are in `openenv.core.session.states`; each rule named there is one method here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from openenv.core.exceptions import (
    CallTimeoutError,
    CapacityError,
    ConnectError,
    MessageTooLargeError,
    NotResetError,
    OpenEnvError,
    Outcome,
    ServerError,
    SessionClosedError,
)
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
    Loss,
    Op,
    Oversized,
    Resumed,
    Send,
)
from openenv.core.session.states import TABLE, IllegalEvent, Row, State
from openenv.core.wire.messages import REPLY_TYPE, Reply, WSErrorCode, error_from_frame

__all__ = ["ClientMachine"]

RESET_TRIES = 8
"""How often a reset without a time limit is sent again when each new session breaks under it."""


_REFUSALS = frozenset({WSErrorCode.CAPACITY_REACHED, WSErrorCode.FACTORY_ERROR, WSErrorCode.SESSION_ERROR})


class ClientMachine:
    """The session of one client.

    Attributes:
        state: see the module's text.
        number: sessions opened so far; the present one has this number.
        touched: a call was sent in the present session.
        resumable: the server keeps the present session when its socket is gone.
        loss: the lost session; None unless LOST or while a reset from LOST has not completed.
        needs_reset: step, state and tool calls wait for a completed reset.
        episode_id: name of the episode, if it is known.
        steps: steps answered in the episode.
        call: the call in flight.
        closes: how often the client was closed.
    """

    def __init__(self, *, require_reset: bool = False, backoff: Backoff | None = None, url: str = "") -> None:
        self.state = State.NEW
        self.number = 0
        self.touched = False
        self.resumable = False
        self.socket_open = False
        self.loss: Loss | None = None
        self.needs_reset = False
        self.episode_id: str | None = None
        self.steps = 0
        self.seq = 0
        self.last_reply = 0
        self.call: Call | None = None
        self.closes = 0
        self._url = url
        self._require_reset = require_reset
        self._backoff = backoff or Backoff()
        self._reset_begun = False
        self._reset_completed = False
        self._warned_no_reset = False
        self._dials = 0
        self._dial_error: OpenEnvError | None = None
        self._return_to = State.NEW

    # -------------------------------------------------------------- events in, effects out

    @property
    def row(self) -> Row:
        """The row of `TABLE` that rules now."""
        if self.state is State.OPEN:
            return Row.IDLE if self.call is None else Row.BUSY
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
        name = TABLE.get((self.row, event))
        if name is None:
            raise IllegalEvent(self.row, event)
        rule: Callable[[Any, float], list[Effect]] = getattr(self, "_" + name)
        return rule(payload, now)

    # -------------------------------------------------------------- asking

    def _stay(self, _: Any, now: float) -> list[Effect]:
        return []

    def _open_first(self, call: Call, now: float) -> list[Effect]:
        if call.closes != self.closes:
            return [Fail(call, SessionClosedError())]
        return self._open(call, State.NEW)

    def _open_for_call(self, call: Call, now: float) -> list[Effect]:
        refusal = self._refusal(call)
        return [Fail(call, refusal)] if refusal else self._open(call, State.NEW)

    def _open(self, call: Call, return_to: State) -> list[Effect]:
        self._note_reset(call)
        self.call = call
        self._dials = 0
        self._dial_error = None
        self._return_to = return_to
        self.state = State.OPENING
        return [Dial()]

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
        return self._send(call, now)

    def _send(self, call: Call, now: float) -> list[Effect]:
        if call.closes != self.closes:
            return [Fail(call, SessionClosedError())]
        self._note_reset(call)
        self.call = call
        self.touched = True
        self.seq += 1
        call.seq = self.seq
        call.sends += 1
        return [Send(call)]

    def _send_call(self, call: Call, now: float) -> list[Effect]:
        refusal = self._refusal(call)
        if refusal:
            return [Fail(call, refusal)]
        return [*self._warn_no_reset(), *self._send(call, now)]

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

    def _note_reset(self, call: Call) -> None:
        """From here on the caller means a new episode, whatever becomes of this reset."""
        if call.op is Op.RESET:
            self._reset_begun = True
            self.needs_reset = True

    def _warn_no_reset(self) -> list[Effect]:
        if self._reset_begun or self._warned_no_reset:
            return []
        self._warned_no_reset = True
        return [Log("a step, state or tool call was made before any reset(); the environment may not be ready for it")]

    # -------------------------------------------------------------- opening

    def _start_session(self, resumable: Any, now: float) -> list[Effect]:
        call = self._in_flight()
        self.number += 1
        self.socket_open = True
        self.touched = False
        self.resumable = bool(resumable)
        self.seq = self.last_reply = 0
        if self._reset_begun:
            self.needs_reset = True
        self.call = None
        if call.op is Op.CONNECT:
            self.state = State.LOST if self.loss else State.OPEN
            return [Complete(call)]
        self.state = State.OPEN
        warning = self._warn_no_reset() if call.op is not Op.RESET else []
        return [*warning, *self._send(call, now)]

    def _dial_again(self, failure: DialFailure, now: float) -> list[Effect]:
        call = self._in_flight()
        self._dials += 1
        self._dial_error = failure.error
        delay = self._backoff.delay(self._dials)
        limit = call.deadline if self._return_to is State.LOST else call.dial_deadline
        in_time = limit is None or now + delay < limit
        if failure.retryable and in_time:
            warning = [Log(f"{failure.error} Trying again until the time is over.")] if self._dials == 1 else []
            return [*warning, Dial(delay)]
        error = failure.error
        if isinstance(error, ConnectError):
            error.attempts = self._dials
        return self._fail_opening(error)

    def _give_up_opening(self, _: Any, now: float) -> list[Effect]:
        """The time for opening is over: raise what the last dial met, or that none was answered."""
        call = self._in_flight()
        error = self._dial_error
        if error is None:
            seconds, setting = call.opening_limit(returning=self._return_to is State.LOST)
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
        return [Fail(call, error)]

    # -------------------------------------------------------------- answers

    def _answer(self, reply: Reply, now: float) -> list[Effect]:
        call = self._in_flight()
        if reply.is_error and reply.code in _REFUSALS:
            return self._refused(call, reply, now)
        if not reply.is_error and reply.kind != REPLY_TYPE[call.op.kind]:
            return self._protocol_loss(f"a '{reply.kind}' frame answered a {call.op} request")
        error = error_from_frame(reply) if reply.is_error else None
        self.call = None
        self.last_reply = call.seq
        if error is not None:
            return [*self._unanswered(call), Fail(call, error)]
        if call.op is Op.RESET:
            self.loss = None
            self.needs_reset = False
            self._reset_completed = True
            self.steps = 0
            self.episode_id = call.episode_id
        elif call.op is Op.STEP:
            self.steps += 1
        elif call.op is Op.STATE and isinstance(reply.data.get("episode_id"), str):
            self.episode_id = reply.data["episode_id"]
        return [Complete(call, reply)]

    def _unanswered(self, call: Call) -> list[Effect]:
        """A call without its result: a reset from LOST that failed leaves the client LOST."""
        if self.loss is not None:
            self.state = State.LOST
        return []

    def _answer_too_large(self, frame: Oversized, now: float) -> list[Effect]:
        call = self._in_flight()
        self.call = None
        self.last_reply = call.seq
        if call.op is Op.STEP:
            self.steps += 1
        error = MessageTooLargeError(size=frame.size, limit=frame.limit, direction="received", outcome=Outcome.APPLIED)
        return [*self._unanswered(call), Fail(call, error)]

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
        active, most = reply.data.get("active_sessions"), reply.data.get("max_sessions")
        error = CapacityError(
            active=active if isinstance(active, int) else None,
            max=most if isinstance(most, int) else None,
            url=self._url,
        )
        self.number -= 1  # a refusal is not a session
        call.sends -= 1
        self.call = call
        self._return_to = State.LOST if self.loss else State.NEW
        self.state = State.OPENING
        return self._dial_again(DialFailure(error, retryable=held_one), now)

    def _unasked(self, frame: Reply | Oversized, now: float) -> list[Effect]:
        """A frame that no call asked for. Before the first call it may be a refusal of the session."""
        refused = isinstance(frame, Reply) and frame.is_error and frame.code in _REFUSALS
        self._forget_socket()
        if refused and not self.touched:
            self.number -= 1
            self.state = State.LOST if self.loss else State.NEW
            return [CloseSocket(), Log(f"the server refused the session: {_message(frame)}")]
        return self._lose(self._loss("protocol", detail="the server sent a frame that no call had asked for"))

    def _protocol_loss(self, detail: str) -> list[Effect]:
        return self._lose_call(self._in_flight(), self._loss("protocol", detail=detail), Outcome.UNKNOWN)

    # -------------------------------------------------------------- losing

    def _drop_idle(self, drop: Drop, now: float) -> list[Effect]:
        self.socket_open = False
        if self.resumable and self.touched:
            self.state = State.SUSPENDED
            return [Dial(resume=True)]
        if not self.touched:
            self.state = State.NEW
            return []
        return self._lose(self._loss_from(drop))

    def _drop_busy(self, drop: Drop, now: float) -> list[Effect]:
        call = self._in_flight()
        self.socket_open = False
        if self.resumable:
            self.state = State.SUSPENDED
            return [Dial(resume=True)]
        loss = self._loss_from(drop)
        if drop.code == 1009:
            self._forget_socket()
            return [*self._lose(loss), Fail(call, _too_large(call, drop))]
        if call.op is not Op.RESET:
            return self._lose_call(call, loss, Outcome.UNKNOWN)
        return self._reset_elsewhere(call, loss, now)

    def _reset_elsewhere(self, call: Call, loss: Loss, now: float) -> list[Effect]:
        """A reset whose connection broke starts over on a new session: a reset means a fresh episode anyway."""
        self._forget_socket()
        if call.sends >= RESET_TRIES and call.deadline is None:
            error = ConnectError(
                f"The connection to {self._url} broke {call.sends} times in a row during reset(): {loss.detail}. "
                "The environment may crash its server while it resets.",
                url=self._url,
                attempts=call.sends,
            )
            return [*self._lose(loss), Fail(call, error)]
        warnings = self._lose(loss)
        self.call = call
        self._return_to = State.LOST
        self.state = State.OPENING
        self._dials = call.sends - 1
        self._dial_error = None
        delay = 0.0 if call.sends == 1 else self._backoff.delay(call.sends)
        return [*warnings, Dial(delay)]

    def _drop_lost(self, _: Any, now: float) -> list[Effect]:
        self._forget_socket()
        return [CloseSocket()]

    def _answer_not_taken(self, end: GaveUp, now: float) -> list[Effect]:
        """The answer came, but its caller had given up: nobody has seen what this action did."""
        if end.call.op in (Op.CONNECT, Op.STATE):
            return []
        self._forget_socket()
        loss = self._loss(end.cause, detail="the caller gave up as the answer arrived, so nobody has seen it")
        return self._lose(loss)

    def _give_up_call(self, end: GaveUp, now: float) -> list[Effect]:
        """Without numbered calls the late reply would answer the next request, so the session is lost (E16)."""
        call = self._in_flight()
        loss = self._loss(end.cause, detail=f"the caller of {call.op}() gave up before its answer")
        self._forget_socket()
        return [*self._lose(loss), Fail(call, _timeout(call, Outcome.UNKNOWN))]

    def _lose_loop(self, _: Any, now: float) -> list[Effect]:
        call, self.call = self.call, None
        touched = self.touched
        self._forget_socket()
        if not touched:
            self.state = State.NEW
            return [CloseSocket()]
        loss = self._loss("loop_closed", detail="the event loop that held the session was closed")
        effects = self._lose(loss)
        return [*effects, Fail(call, self._ended_by(loss, call, _fate(call)))] if call else effects

    def _lose_call(self, call: Call, loss: Loss, outcome: Outcome) -> list[Effect]:
        self._forget_socket()
        return [*self._lose(loss), Fail(call, self._ended_by(loss, call, outcome))]

    @staticmethod
    def _ended_by(loss: Loss, call: Call, outcome: Outcome) -> OpenEnvError:
        """A loss ends a step with SessionLostError; a reset, which asked for a new episode, with the cause itself."""
        if call.op is Op.RESET:
            return ServerError(loss.detail, code="PROTOCOL_ERROR", outcome=outcome)
        return loss.error(outcome)

    def _lose(self, loss: Loss) -> list[Effect]:
        self.loss = loss
        self.needs_reset = True
        self.socket_open = False
        self.state = State.LOST
        episode = f", episode {loss.episode_id}" if loss.episode_id else ""
        code = f", close code {loss.close_code}" if loss.close_code is not None else ""
        text = f"session {loss.session} of {self._url} was lost after {loss.steps} step(s){episode}{code}: "
        return [CloseSocket(), Log(f"{text}{loss.detail} [{loss.reason}]. reset() starts a new one.")]

    def _forget_socket(self) -> None:
        self.socket_open = False
        self.call = None

    def _loss(self, reason: str, *, detail: str = "", drop: Drop | None = None) -> Loss:
        return Loss(
            reason=reason,
            session=self.number,
            close_code=drop.code if drop else None,
            close_reason=drop.reason if drop else "",
            episode_id=self.episode_id,
            steps=self.steps,
            detail=detail,
        )

    def _loss_from(self, drop: Drop) -> Loss:
        reason = _FINAL_REASONS.get(drop.code or 0, "connection")
        return self._loss("too_large" if drop.code == 1009 else reason, detail=drop.detail, drop=drop)

    # -------------------------------------------------------------- resuming (needs a server that keeps sessions)

    def _wait_for_resume(self, call: Call, now: float) -> list[Effect]:
        if call.closes != self.closes:
            return [Fail(call, SessionClosedError())]
        self._note_reset(call)
        self.call = call
        return []

    def _call_suspended(self, call: Call, now: float) -> list[Effect]:
        refusal = self._refusal(call)
        return [Fail(call, refusal)] if refusal else self._wait_for_resume(call, now)

    def _resume_again(self, failure: DialFailure, now: float) -> list[Effect]:
        self._dials += 1
        return [Dial(self._backoff.delay(self._dials), resume=True)]

    def _resume(self, answer: Resumed, now: float) -> list[Effect]:
        """The same session again. What the server has started is awaited, never sent again."""
        call = self.call
        self._dials = 0
        self.socket_open = True
        if call is None or call.seq == 0:
            expected = answer.last_seq == self.last_reply
        else:
            expected = answer.last_seq in (call.seq - 1, call.seq)
        if not expected:
            loss = self._loss("protocol", detail=f"the server resumed at request {answer.last_seq}")
            return self._lose_call(call, loss, _fate(call)) if call else self._lose(loss)
        self.state = State.OPEN
        if call is None:
            return []
        if call.op is Op.CONNECT:
            self.call = None
            return [Complete(call)]
        if call.seq == 0:
            return self._send(call, now)
        if answer.last_seq == call.seq:
            return []
        call.sends += 1
        return [Send(call)]

    def _lose_suspended(self, reason: Any, now: float) -> list[Effect]:
        call, loss = self.call, self._loss(str(reason), detail="the server no longer has this session")
        self._forget_socket()
        effects = self._lose(loss)
        if call is None:
            return effects
        if call.op in (Op.RESET, Op.CONNECT):
            return [*effects, *self._open(call, State.LOST)]
        return [*effects, Fail(call, loss.error(_fate(call)))]

    def _give_up_suspended(self, end: GaveUp, now: float) -> list[Effect]:
        call = self.call
        if call is None:
            return self._answer_not_taken(end, now)
        if call.sends:
            loss = self._loss(end.cause, detail=f"the caller of {call.op}() gave up before its answer")
            self._forget_socket()
            return [*self._lose(loss), Fail(call, _timeout(call, Outcome.UNKNOWN))]
        self.call = None
        return [Fail(call, _timeout(call, Outcome.NOT_APPLIED))]

    # -------------------------------------------------------------- ending

    def _end(self, _: Any, now: float) -> list[Effect]:
        call = self.call
        goodbye = self.socket_open
        had_episode = self.needs_reset or self._reset_begun or self.loss is not None
        self._forget_socket()
        self.closes += 1
        self.loss = None
        self.needs_reset = had_episode
        self.state = State.CLOSED
        effects: list[Effect] = [CloseSocket(goodbye=goodbye)]
        if call is not None:
            effects.append(Fail(call, SessionClosedError(outcome=_fate(call))))
        return effects

    def _in_flight(self) -> Call:
        assert self.call is not None, "this row always has a call in flight"
        return self.call


_FINAL_REASONS = {1012: "server_restart", 4000: "replaced", 4001: "idle", 4002: "draining", 4003: "protocol"}


def _fate(call: Call) -> Outcome:
    """What became of a call that ends without an answer: a frame that never left was not applied."""
    return Outcome.UNKNOWN if call.sends else Outcome.NOT_APPLIED


def _message(frame: Reply | Oversized) -> str:
    return str(frame.data.get("message") or frame.code) if isinstance(frame, Reply) else "an oversized frame"


def _timeout(call: Call, outcome: Outcome) -> CallTimeoutError:
    return CallTimeoutError(operation=call.op.value, timeout_s=call.timeout_s, setting=call.setting, outcome=outcome)


def _too_large(call: Call, drop: Drop) -> MessageTooLargeError:
    """Close code 1009: the peer refused our request, or we refused its reply."""
    if drop.by_us:
        return MessageTooLargeError(
            size=drop.size, limit=drop.limit, direction="received", outcome=Outcome.APPLIED, session_lost=True
        )
    limit = re.search(r"limit of (\d+)", drop.reason)
    return MessageTooLargeError(
        size=call.size,
        limit=int(limit.group(1)) if limit else None,
        direction="sent",
        outcome=Outcome.NOT_APPLIED,
        session_lost=True,
    )
