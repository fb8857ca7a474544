"""The rules for a session that is held over HTTP and outlives every socket: those of a client of tools.

`AttachedMachine` is a `ClientMachine` with a table of its own, `openenv.core.session.states.ATTACHED_TABLE`. What a
dropped socket, a refused attach or a lost reply means there is said here; asking, answering and waiting are as for
every client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from openenv.core.exceptions import (
    CapacityError,
    ConnectError,
    NotResetError,
    OpenEnvError,
    Outcome,
    OutcomeUnknownError,
    ServerError,
    SessionClosedError,
)
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
    Log,
    Loss,
    Op,
    Oversized,
    Post,
    PostFailure,
    SayRelease,
    Tell,
)
from openenv.core.session.keeping import MESSAGE_TOO_BIG, RESET_TRIES, timeout_error
from openenv.core.session.states import ATTACHED_TABLE, Row, State
from openenv.core.wire.jsonrpc import UNKNOWN_SESSION, HeldSession, Response
from openenv.core.wire.messages import Reply, WSErrorCode

__all__ = ["OVER_HTTP", "AttachedMachine"]

OVER_HTTP = frozenset({Op.TOOL, Op.LIST_TOOLS})
"""Calls that need the session, but no socket."""

ACTS_TWICE = frozenset({Op.STEP, Op.TOOL})
"""Calls that must not be sent again while nobody knows whether they ran. A reset makes an end of what was before it,
however often it runs, and a look at the state or the tools changes nothing."""


class AttachedMachine(ClientMachine):
    """The session of one client of tools.

    Attributes:
        held: the session, with its secret; None while there is none.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.held: HeldSession | None = None
        self._unwanted: tuple[HeldSession, ...] = ()
        self._acted = False  # a step or a tool call was sent in the present session
        self._cut = False  # its last socket is gone
        self._busy = False  # the server is there, and the session may be busy with what an older socket asked for
        self._vanished = 0  # sessions in a row that were gone before they were used

    @property
    def row(self) -> Row:
        """The row of `ATTACHED_TABLE` that rules now."""
        posting = self.call is not None and self.call.op in OVER_HTTP
        return Row.POSTING if posting and self.state in (State.OPEN, State.DETACHED) else super().row

    @property
    def session_id(self) -> str | None:
        """Public id of the present session."""
        return self.held.session_id if self.held else None

    def held_farewells(self) -> Sequence[HeldSession]:
        """Sessions that this client does not want any more; each is told once."""
        unwanted, self._unwanted = self._unwanted, ()
        return unwanted

    def _table(self) -> Mapping[tuple[Row, Event], str]:
        return ATTACHED_TABLE

    def _resting(self) -> State:
        """Where the client is when its session has no socket and no call."""
        return State.LOST if self.loss else State.DETACHED

    # -------------------------------------------------------------- opening: first the session, then a socket

    def _hold(self, held: HeldSession, now: float) -> list[Effect]:
        call = self._in_flight()
        self.number += 1
        self.held = held
        self.touched = self._acted = self._cut = False
        self._dials = self.seq = self.last_reply = 0
        if self._reset_begun:
            self.needs_reset = True
        self._return_to = self._resting()
        if call.op not in OVER_HTTP:
            return [Dial()]
        self.call = None
        self.state = self._return_to
        return self._send(call, now)

    def _reach(self, _: Any, now: float) -> list[Effect]:
        """The server is there. If it says nothing yet, the session is busy with a call that began before."""
        self._busy = True
        return []

    def _attach(self, _: Any, now: float) -> list[Effect]:
        call, self.call = self._in_flight(), None
        self.socket_open = True
        self._dials = self._vanished = 0
        self._busy = False
        back: list[Effect] = []
        if self._cut:
            self._cut = False
            self.resumes += 1
            back = [Log(f"session {self.number} of {self._url} has a socket again", warning=False), Tell(None)]
        if call.op is Op.CONNECT:
            self.state = State.LOST if self.loss else State.OPEN
            return [*back, Complete(call)]
        self.state = State.OPEN
        first = self._discard_due() if call.op is Op.RESET else self._warn_no_reset(call)
        return [*back, *first, *self._send(call, now)]

    def _dial_again(self, failure: DialFailure, now: float) -> list[Effect]:
        self._busy = failure.busy
        if isinstance(failure.error, CapacityError):  # a client whose former session may still hold a slot waits for it
            failure = replace(failure, retryable=self.number > 0)
        return super()._dial_again(failure, now)

    def _has_whole_time(self) -> bool:
        """So has one whose session is there, and busy with what an older socket asked for."""
        return self._busy or super()._has_whole_time()

    def _open(self, call: Call, return_to: State) -> list[Effect]:
        self._busy = False
        return super()._open(call, return_to)

    def _open_again(self, call: Call, now: float) -> list[Effect]:
        if call.closes != self.closes:
            return [Fail(call, SessionClosedError())]
        return self._open(call, State.DETACHED)

    def _call_detached(self, call: Call, now: float) -> list[Effect]:
        refusal = self._refusal(call)
        if refusal:
            return [Fail(call, refusal)]
        if self.due:
            return self._pay(call)
        return self._send(call, now) if call.op in OVER_HTTP else self._open(call, State.DETACHED)

    def _warn_no_reset(self, call: Call) -> list[Effect]:
        """A tool needs no reset: who runs the server may have made the episode."""
        return [] if call.op in OVER_HTTP else super()._warn_no_reset(call)

    def _refusal(self, call: Call) -> OpenEnvError | None:
        refusal = super()._refusal(call)
        return None if isinstance(refusal, NotResetError) and call.op is Op.LIST_TOOLS else refusal

    # -------------------------------------------------------------- asking

    def _send(self, call: Call, now: float) -> list[Effect]:
        effects = super()._send(call, now)
        call.numbered = True  # each request over HTTP, and each socket, brings its own answers only
        self._acted |= call.op in ACTS_TWICE
        if call.op not in OVER_HTTP:
            return effects
        self._dials = 0
        return [Post(call)]

    # -------------------------------------------------------------- answers on the socket

    def _answer(self, reply: Reply, now: float) -> list[Effect]:
        call = self._in_flight()
        if call.op is Op.RESET and reply.is_error and reply.code == WSErrorCode.UNKNOWN_TYPE:
            return self._reset_by_new_session(call, now)
        return super()._answer(reply, now)

    def _reset_by_new_session(self, call: Call, now: float) -> list[Effect]:
        """The server lets no client reset. Then a new session is the fresh episode, which this one may be already."""
        if self._acted:
            self._forget_socket()
            self._keep_lease()
            return [CloseSocket(goodbye=True), SayRelease(), *self._dial_for(call, self._without_session())]
        self.call = None
        answer = Reply("observation", {"observation": {}, "reward": None, "done": False})
        self._note_answer(call, answer)
        return [Complete(call, answer)]

    def _refused(self, call: Call, reply: Reply, now: float) -> list[Effect]:
        """The server ends the socket. The session, which is not the socket's, goes on, unless it says otherwise."""
        message = str(reply.data.get("message") or "")
        self.socket_open, self._cut = False, True
        if message.startswith(UNKNOWN_SESSION):
            return self._gone(message, now)
        self.call = None
        self.state = self._resting()
        return [CloseSocket(), Fail(call, ServerError(message, code=reply.code, outcome=Outcome.UNKNOWN))]

    def _unasked(self, frame: Reply | Oversized, now: float) -> list[Effect]:
        if isinstance(frame, Reply) and frame.is_error and frame.code == WSErrorCode.SESSION_ERROR:
            return self._detach(Drop(detail=str(frame.data.get("message") or frame.code)), now)
        return self._lose_all(self._loss("protocol", detail="the server sent a frame that no call had asked for"))

    # -------------------------------------------------------------- the socket drops: the session stays

    def _detach(self, drop: Drop | None, now: float) -> list[Effect]:
        self.socket_open, self._cut = False, True
        self.state = self._resting()
        why = drop.detail if drop else "its event loop was closed"
        return [CloseSocket(), Log(f"session {self.number} of {self._url} has no socket now: {why}", warning=False)]

    def _drop_busy(self, drop: Drop, now: float) -> list[Effect]:
        call = self._in_flight()
        self.socket_open, self._cut = False, True
        if drop.code == MESSAGE_TOO_BIG:
            return self._end_call(call, self._size_error(call, drop, kept=True))
        if call.op in ACTS_TWICE:
            return self._end_call(call, _no_answer(call, drop.detail))
        if call.sends >= RESET_TRIES and call.deadline is None:
            text = f"The connection to {self._url} broke {call.sends} times in a row during {call.op}(): {drop.detail}."
            return self._end_call(call, ConnectError(text, url=self._url, attempts=call.sends))
        return [CloseSocket(), *self._dial_for(call, self._resting())]

    def _end_call(self, call: Call, error: OpenEnvError) -> list[Effect]:
        self.call = None
        self.state = self._resting()
        return [CloseSocket(), Fail(call, error)]

    def _drop_lost(self, drop: Drop | None, now: float) -> list[Effect]:
        self._forget_socket()
        return [CloseSocket()]

    def _dial_for(self, call: Call, return_to: State) -> list[Effect]:
        """Open what is missing for a call that was under way."""
        self.call = call
        call.seq = 0
        self._busy = False
        self._dials = 0
        self._dial_error = None
        self._return_to = return_to
        self.state = State.OPENING
        return [Dial(0.0 if call.sends <= 1 else self._backoff.delay(call.sends))]

    # -------------------------------------------------------------- answers over HTTP

    def _take_post(self, reply: Reply, now: float) -> list[Effect]:
        call, self.call = self._in_flight(), None
        self.last_reply = call.seq
        self._vanished = 0
        if Response.read(reply.data).outcome_unknown:
            return [Fail(call, _no_answer(call, "it ran, or still runs, and the server has not kept its answer"))]
        self.steps += call.op is Op.TOOL
        return [Complete(call, reply)]

    def _post_again(self, failure: PostFailure, now: float) -> list[Effect]:
        """Sent again is what never left, what changes nothing, and what the server knows by its key."""
        call = self._in_flight()
        self._dials += 1
        call.doubtful |= failure.doubtful and call.op in ACTS_TWICE
        delay = self._backoff.delay(self._dials)
        limit = call.deadline if call.doubtful else call.dial_deadline
        in_time = limit is None or now + delay < limit
        known = self.held is not None and self.held.idempotent
        if failure.retryable and in_time and (known or not call.doubtful):
            warning = [Log(f"{failure.error} Trying again until the time is over.")] if self._dials == 1 else []
            call.sends += 1
            return [*warning, Post(call, delay)]
        self.call = None
        error = _no_answer(call, str(failure.error)) if call.doubtful else failure.error
        return [Fail(call, error)]

    # -------------------------------------------------------------- the session is gone

    def _gone(self, detail: str, now: float) -> list[Effect]:
        """The server does not know the session: lost, if a call had touched it. A reset opens a new one."""
        call, used = self._in_flight(), self.touched
        outcome = Outcome.UNKNOWN if call.doubtful else Outcome.NOT_APPLIED
        self._forget_socket()
        self.held = None
        self._vanished += 1
        effects: list[Effect] = [CloseSocket()]
        if used and self.loss is None:
            why = f"the server does not know it any more; it was restarted, or had closed the session ({detail})"
            effects = self._lose(self._loss("gone", detail=why))
        if used and call.op not in (Op.RESET, Op.CONNECT):
            return [*effects, Fail(call, self._known_loss().error(outcome))]
        effects += self._dial_for(call, self._without_session())[:-1]
        if self._vanished > 1:
            self._dial_error = ConnectError(
                f"The server at {self._url} does not know the session that it has just made. Does it run several "
                "worker processes? They share no sessions: run one.",
                url=self._url,
            )
        return [*effects, Dial(0.0 if self._vanished == 1 else self._backoff.delay(self._vanished))]

    def _known_loss(self) -> Loss:
        return self.loss or self._loss("gone")

    def _without_session(self) -> State:
        return State.LOST if self.loss else State.NEW

    # -------------------------------------------------------------- the caller gives up

    def _give_up_call(self, end: GaveUp, now: float) -> list[Effect]:
        """The socket goes with the call, for its late reply must answer nobody; the session stays (E16 knows no way
        to keep it)."""
        call = self._in_flight()
        self.socket_open, self._cut = False, True
        return self._end_call(call, self._given_up(call, end))

    def _give_up_post(self, end: GaveUp, now: float) -> list[Effect]:
        call, self.call = self._in_flight(), None
        return [Fail(call, self._given_up(call, end))]

    def _given_up(self, call: Call, end: GaveUp) -> OpenEnvError:
        """A timeout tells its caller that the outcome is unknown. Who cancels hears nothing: the next call is told."""
        if call.op in ACTS_TWICE and end.cause != "timeout":
            self.due = Due(call.op, error=_no_answer(call, f"its caller gave up ({end.cause})"))
        return timeout_error(call, Outcome.UNKNOWN, "the session goes on, and the server may still work on this call")

    def _lose_loop(self, _: Any, now: float) -> list[Effect]:
        """Nobody waits any more on the loop that was closed, and the session does not live there."""
        call = self._in_flight()
        self.socket_open, self._cut = False, True
        error = _no_answer(call, "the event loop that waited for it was closed")
        if call.op in ACTS_TWICE:
            self.due = Due(call.op, error=error)
        return self._end_call(call, error)

    # -------------------------------------------------------------- losing and ending

    def _lose(self, loss: Loss) -> list[Effect]:
        effects = super()._lose(loss)
        return [*effects, SayRelease()] if self._unwanted else effects

    def _keep_lease(self, reason: str = "") -> None:
        held, self.held = self.held, None
        if held is not None:
            self._unwanted = (*self._unwanted, held)

    def _end(self, _: Any, now: float) -> list[Effect]:
        close, *rest = super()._end(_, now)
        return [close, SayRelease(), *rest] if self._unwanted else [close, *rest]


def _no_answer(call: Call, why: str) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{call.op}() has no answer: {why.rstrip('.')}. {Outcome.UNKNOWN.sentence} It is not sent again, and the "
        "session goes on: look at the environment before you act, or reset().",
        operation=call.op.value,
    )
