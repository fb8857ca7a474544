"""What a client machine remembers of its session, and how a session is lost, resumed, or ended.

This is the lower half of `ClientMachine`: its memory, and every rule for the moments when something goes
wrong. The upper half (`openenv.core.session.client`) has the rules for asking and answering.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from openenv.core.exceptions import (
    CallTimeoutError,
    ConnectError,
    LateResultError,
    MessageTooLargeError,
    OpenEnvError,
    Outcome,
    OutcomeUnknownError,
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
    Due,
    Effect,
    Fail,
    GaveUp,
    Log,
    Loss,
    Op,
    SayRelease,
    Send,
    SendCancel,
    Tell,
)
from openenv.core.session.features import Feature
from openenv.core.session.opening import Opening
from openenv.core.session.states import State
from openenv.core.wire.messages import REPLY_TYPE, Reply, error_from_frame
from openenv.core.wire.v1 import CloseCode, Lease, LostReason, Resume, Resumed, V1ErrorCode

__all__ = ["MESSAGE_TOO_BIG", "MIX_UPS", "RESET_TRIES", "SessionKeeper", "fate", "timeout_error"]

MIX_UPS = frozenset({V1ErrorCode.SEQ_MISMATCH, V1ErrorCode.SEQ_OUT_OF_ORDER})
"""Errors which say that the server counts requests differently."""

MESSAGE_TOO_BIG = 1009
"""Close code of RFC 6455, section 7.4.1."""

RESET_TRIES = 8
"""How often a reset without a time limit is sent again when each new session breaks under it."""

KEPT_LEASES = 8
"""How many sessions that this client gave up are remembered, to release them when a new one is opened (E25)."""


class SessionKeeper:
    """Memory of one client's session, and the rules of losing, resuming and ending.

    Args:
        require_reset: refuse step, state and tool calls before the first reset.
        backoff: waits between dials.
        url: the server's address, for texts.
        wants: features this client uses where the server has them.
        max_message_bytes: largest reply this client takes.
        wait_for_slot_s: how long to wait for a slot of a full server, in seconds.
    """

    def __init__(
        self,
        *,
        require_reset: bool = False,
        backoff: Backoff | None = None,
        url: str = "",
        wants: frozenset[Feature] = frozenset(),
        max_message_bytes: int | None = None,
        wait_for_slot_s: float = 0.0,
    ) -> None:
        self.state = State.NEW
        self.number = 0
        self.touched = False
        self.socket_open = False
        self.features: frozenset[Feature] = frozenset()
        self.lease: Lease | None = None
        self.loss: Loss | None = None
        self.needs_reset = False
        self.episode_id: str | None = None
        self.steps = 0
        self.seq = 0
        self.last_reply = 0
        self.call: Call | None = None
        self.abandoned: Call | None = None
        self.due: Due | None = None
        self.closes = 0
        self.resets = 0
        self.resumes = 0
        self.losses = 0
        self._url = url
        self._wants = wants
        self._max_message_bytes = max_message_bytes
        self._wait_for_slot_s = wait_for_slot_s
        self._peer_limit: int | None = None
        self._releases: list[Lease] = []
        self._attempt = 0
        self._require_reset = require_reset
        self._backoff = backoff or Backoff()
        self._reset_begun = False
        self._reset_completed = False
        self._warned_no_reset = False
        self._dials = 0
        self._dial_error: OpenEnvError | None = None
        self._return_to = State.NEW

    @property
    def numbered(self) -> bool:
        """Calls of the present session carry numbers (feature ``seq``)."""
        return Feature.SEQ in self.features

    @property
    def session_id(self) -> str | None:
        """Public id of the present session, if the server has told one."""
        return self.lease.session if self.lease else None

    @property
    def resumable(self) -> bool:
        """The server keeps the present session when its socket is gone (feature ``resume``)."""
        return Feature.RESUME in self.features

    def opening(self) -> Opening:
        """What to say first on a socket that speaks ``openenv.v1``."""
        resume = None
        if self.state is State.SUSPENDED and self.lease is not None:
            self._attempt += 1
            resume = Resume(self.lease, last_reply=self.last_reply, attempt=self._attempt)
        return Opening(
            wants=self._wants,
            resume=resume,
            releases=tuple(self._releases),
            max_message_bytes=self._max_message_bytes,
            url=self._url,
            wait_for_slot_s=self._wait_for_slot_s,
        )

    # -------------------------------------------------------------- the connection drops

    def _drop_idle(self, drop: Drop, now: float) -> list[Effect]:
        self.socket_open = False
        if self._kept(drop) and not self._refused_again(drop):
            return self._suspend()
        if not self.touched:
            self.lease = None  # no call had touched the session: nothing is lost
            self.state = State.NEW
            return []
        return self._lose_all(self._loss_from(drop))

    def _drop_busy(self, drop: Drop, now: float) -> list[Effect]:
        call = self._in_flight()
        self.socket_open = False
        if drop.code == MESSAGE_TOO_BIG:
            return self._too_large(call, drop)
        if self._kept(drop):
            return self._suspend()
        loss = self._loss_from(drop)
        if call.op is not Op.RESET:
            return self._lose_call(call, loss, Outcome.UNKNOWN)
        return self._reset_elsewhere(call, loss, now)

    def _kept(self, drop: Drop) -> bool:
        """Whether the session goes on: it was used, its end is not final (E24), and nobody in this process closed the
        socket behind the client's back, which is taken for what it looks like."""
        ended = drop.code == CloseCode.CLOSED if drop.by_us else CloseCode.final(drop.code, drop.reason) is not None
        return self.resumable and self.touched and not ended

    def _refused_again(self, drop: Drop) -> bool:
        """The late reply of a call that was given up is too large for somebody between, each time that it comes."""
        call = self.abandoned
        if call is None or drop.code != 1009:
            return False
        again, call.refused = call.refused, True
        return again

    def _suspend(self) -> list[Effect]:
        self.state = State.SUSPENDED
        self._dials = 0
        self._dial_error = None
        return [Dial(resume=True)]

    def _too_large(self, call: Call, drop: Drop) -> list[Effect]:
        """Close code 1009: the peer refused our request, or we refused its reply; or somebody between, either. Only a
        limit that our request is over proves that it was never read."""
        limit = _told_limit(drop)
        over = limit is not None and call.size > limit
        kept = self._kept(drop) and not drop.by_us
        if kept and not over and not call.refused:
            call.refused = True
            return self._suspend()  # the server will say whether it has started it (E21)
        kept &= over
        error = self._size_error(call, drop, kept=kept)
        if kept:  # the server never read this request, so its number is still free
            self.call = None
            self.seq -= 1
            return [Fail(call, error), *self._suspend()]
        loss = self._loss_from(drop)
        self._forget_socket()
        return [*self._lose(loss), Fail(call, error)]

    @staticmethod
    def _size_error(call: Call, drop: Drop, *, kept: bool) -> MessageTooLargeError:
        limit = _told_limit(drop)
        ours = Outcome.NOT_APPLIED if limit is not None and call.size > limit else Outcome.UNKNOWN
        return MessageTooLargeError(
            size=drop.size if drop.by_us else call.size,
            limit=drop.limit if drop.by_us else limit,
            direction="received" if drop.by_us else "sent",
            outcome=Outcome.APPLIED if drop.by_us else ours,
            session_lost=not kept,
        )

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
        call.seq = 0
        self._return_to = State.LOST
        self.state = State.OPENING
        self._dials = call.sends - 1
        self._dial_error = None
        delay = 0.0 if call.sends == 1 else self._backoff.delay(call.sends)
        return [*warnings, Dial(delay)]

    def _drop_lost(self, drop: Drop | None, now: float) -> list[Effect]:
        """The session of a reset that failed may be leased now: it must not lock us out (E25)."""
        self._forget_socket()
        self._keep_lease("replaced" if drop is not None and drop.code == CloseCode.REPLACED else "")
        return [CloseSocket()]

    # -------------------------------------------------------------- the caller gives up

    def _give_up_call(self, end: GaveUp, now: float) -> list[Effect]:
        """With numbered calls the call is abandoned and its fate is learned later (E14). Without, its late reply
        would answer the next request, so the session is lost (E16)."""
        call = self._in_flight()
        if self.numbered:
            return self._abandon(call, "the server still works on it: call settle() before the next step")
        loss = self._loss(end.cause, detail=f"the caller of {call.op}() gave up before its answer")
        self._forget_socket()
        return [*self._lose(loss), Fail(call, timeout_error(call, Outcome.UNKNOWN))]

    def _abandon(self, call: Call, hint: str) -> list[Effect]:
        self.call = None
        self.abandoned = call
        return [*self._cancel(call), Fail(call, timeout_error(call, Outcome.UNKNOWN, hint))]

    def _cancel(self, call: Call) -> list[Effect]:
        sendable = Feature.CANCEL in self.features and self.socket_open
        return [SendCancel(call.seq)] if sendable else []

    def _give_up_waiting(self, end: GaveUp, now: float) -> list[Effect]:
        """The fate of an abandoned call did not become known in the time of the next one, which was never sent."""
        call, self.call = self._in_flight(), None
        return [Fail(call, timeout_error(call, fate(call), "an earlier call that was given up still runs"))]

    def _give_up_suspended(self, end: GaveUp, now: float) -> list[Effect]:
        call = self.call
        if call is None:
            return self._answer_not_taken(end, now)
        why = f", {self._dials} attempt(s): {str(self._dial_error).rstrip('.')}" if self._dial_error else ""
        hint = f"the connection is gone, and the session could not be resumed yet{why}; reset() can open a new one"
        if call.seq:
            return self._abandon(call, f"{hint}, settle() waits for this call's fate")
        self.call = None
        return [Fail(call, timeout_error(call, fate(call), hint))]

    def _answer_not_taken(self, end: GaveUp, now: float) -> list[Effect]:
        """The answer came, but its caller had given up: nobody has seen what this action did."""
        if end.call.numbered or end.call.handed or end.call.op in (Op.CONNECT, Op.STATE, Op.SETTLE):
            return self._keep_answer(end, now)
        if end.call.resets != self.resets:
            return []
        self._forget_socket()
        loss = self._loss(end.cause, detail="the caller gave up as the answer arrived, so nobody has seen it")
        return self._lose(loss)

    def _keep_answer(self, end: GaveUp, now: float) -> list[Effect]:
        """It is handed over to the next call, unless a reset or a close has begun since (E15)."""
        call = end.call
        due = call.handed
        told = end.reply is not None or end.error is not None
        if due is None and told and call.numbered and call.op in (Op.RESET, Op.STEP, Op.TOOL):
            due = Due(call.op, end.reply, end.error)
        if due is not None and (call.resets, call.closes) == (self.resets, self.closes):
            self.due = due
        return []

    # -------------------------------------------------------------- the fate of an abandoned call

    def _learn_fate(self, reply: Reply) -> list[Effect] | None:
        """The answer to the abandoned call. Returns None if it is no answer to it."""
        call = self.abandoned
        if call is None or reply.seq != call.seq or (reply.is_error and reply.code in MIX_UPS):
            return None
        self.abandoned = None
        self.last_reply = call.seq
        if reply.is_error:
            self.due = _due_error(call, reply)
            self._note_no_answer()
            return []
        if reply.kind != REPLY_TYPE[call.op.kind]:
            return None
        self._note_answer(call, reply)
        self.due = None if call.op is Op.STATE else Due(call.op, reply)
        return []

    def _note_answer(self, call: Call, reply: Reply) -> None:
        """What an answer says of the episode."""
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

    def _note_no_answer(self) -> None:
        """A call ended without its result: a reset from LOST that failed leaves the client LOST."""
        if self.loss is not None:
            self.state = State.LOST

    def _pay(self, call: Call) -> list[Effect]:
        """Hand over what an earlier call left: to ``settle()`` its result, to any other call an error, once (E15)."""
        due, self.due = self.due, None
        call.handed, call.resets = due, self.resets
        if due is None:
            return [Complete(call)]
        if due.error is not None:
            return [Fail(call, due.error)]
        if call.op is Op.SETTLE:
            return [Complete(call, due.reply)]
        return [Fail(call, LateResultError(operation=due.op.value, reply=due.reply))]

    def _settle_now(self, call: Call, now: float) -> list[Effect]:
        return self._pay(call)

    # -------------------------------------------------------------- losing

    def _lose_loop(self, _: Any, now: float) -> list[Effect]:
        if not self.touched:
            self._forget_socket()
            self.state = State.NEW
            return [CloseSocket()]
        return self._lose_all(self._loss("loop_closed", detail="the event loop that held the session was closed"))

    def _lose_all(self, loss: Loss) -> list[Effect]:
        """Lose the session, and with it the call that has its turn, if there is one."""
        call = self.call
        return self._lose(loss) if call is None else self._lose_call(call, loss, fate(call))

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
        self.losses += 1
        self.needs_reset = True
        self.socket_open = False
        self.abandoned = None
        self.state = State.LOST
        self._keep_lease(loss.reason)
        episode = f", episode {loss.episode_id}" if loss.episode_id else ""
        code = f", close code {loss.close_code}" if loss.close_code is not None else ""
        text = f"session {loss.session} of {self._url} was lost after {loss.steps} step(s){episode}{code}: "
        line = f"{text}{loss.detail} [{loss.reason}]. reset() starts a new one."
        return [CloseSocket(), Log(line), Tell(loss)]

    def _keep_lease(self, reason: str = "") -> None:
        """Remember a session that is over for us, so that its lease cannot lock us out; not one that was taken."""
        lease, self.lease = self.lease, None
        self.features = frozenset()
        if lease is not None and reason != "replaced":
            self._releases = [*self._releases, lease][-KEPT_LEASES:]

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
        return self._loss("too_large" if drop.code == MESSAGE_TOO_BIG else reason, detail=drop.detail, drop=drop)

    # -------------------------------------------------------------- resuming

    def _wait_for_resume(self, call: Call, now: float) -> list[Effect]:
        if call.closes != self.closes:
            return [Fail(call, SessionClosedError())]
        self._note_reset(call)
        self.call = call
        return []

    def _note_reset(self, call: Call) -> None:
        """From here on the caller means a new episode, whatever becomes of this reset."""
        if call.op is Op.RESET:
            self.resets += 1
            self._reset_begun = True
            self.needs_reset = True

    def _resume_again(self, failure: DialFailure, now: float) -> list[Effect]:
        """Only the server's word or the caller's own time ends a resume (E23)."""
        self._dials += 1
        self._dial_error = failure.error
        text = f"session {self.number} lost its connection and cannot be resumed yet: {failure.error} Trying again."
        told = [Log(text)] if self._dials == 1 else []
        return [*told, Dial(self._backoff.delay(self._dials), resume=True)]

    def _resume(self, answer: Resumed, now: float) -> list[Effect]:
        """The same session again. What the server has started is awaited, never sent again (E21)."""
        open_call = self._open_call()
        expected = (self.last_reply,) if open_call is None else (open_call.seq - 1, open_call.seq)
        if answer.last_seq not in expected:
            detail = f"the server resumed at request {answer.last_seq}, where {expected[-1]} was expected"
            return self._lose_all(self._loss("protocol", detail=detail))
        if self.lease is not None:
            self.lease = Lease(self.lease.session, answer.token, self.lease.epoch)
        self._attempt = self._dials = 0
        self.socket_open = True
        self.state = State.OPEN
        self.resumes += 1
        told: list[Effect] = [Log(f"session {self.number} of {self._url} was resumed", warning=False), Tell(None)]
        return [*told, *self._go_on(open_call, answer, now)]

    def _open_call(self) -> Call | None:
        """The call that was sent and not answered, given up or not."""
        return self.call if self.call is not None and self.call.seq else self.abandoned

    def _go_on(self, open_call: Call | None, answer: Resumed, now: float) -> list[Effect]:
        if open_call is not None and open_call is not self.abandoned:
            if answer.last_seq == open_call.seq:
                return []
            open_call.sends += 1
            return [Send(open_call)]
        cancel: list[Effect] = []
        if open_call is not None and (Feature.CANCEL in self.features or answer.last_seq == open_call.seq):
            cancel = self._cancel(open_call)
        elif open_call is not None:  # it never came, and will not come any more: its number is still free
            self.abandoned = None
            self.seq -= 1
        if self.loss is not None and self.abandoned is None:
            self.state = State.LOST
        call, self.call = self.call, None
        return [*cancel, *(self._take_turn(call, now) if call is not None else [])]

    def _take_turn(self, call: Call, now: float) -> list[Effect]:
        """A call that waited has its turn: what an idle or lost client does with it."""
        raise NotImplementedError

    def _lose_suspended(self, reason: Any, now: float) -> list[Effect]:
        call, loss = self.call, self._loss(str(reason), detail=_lost_words(str(reason)))
        self._forget_socket()
        if str(reason) == LostReason.NEVER_CALLED and not self._reset_begun:
            self._keep_lease()
            self.abandoned = None
            self.state = State.NEW
            return [CloseSocket(), *([Fail(call, loss.error())] if call else [])]
        effects = self._lose(loss)
        if call is None:
            return effects
        if call.op in (Op.RESET, Op.CONNECT):
            return [*effects, *self._open(call, State.LOST)]
        if call.op is Op.SETTLE and self.due:
            return [*effects, *self._pay(call)]
        never = str(reason) == LostReason.NEVER_CALLED
        return [*effects, Fail(call, loss.error(Outcome.NOT_APPLIED if never else fate(call)))]

    def _open_elsewhere(self, _: Any, now: float) -> list[Effect]:
        """The time for reaching the old session is over. A reset opens a new one, if it has time left for that; other
        calls wait on (E25)."""
        call = self.call
        if call is None or call.op is not Op.RESET or call.seq:
            return []
        if call.deadline is not None and call.dial_deadline is not None and call.deadline <= call.dial_deadline:
            return []
        loss = self._loss("unreachable", detail="the session could not be resumed in time")
        self._forget_socket()
        return [*self._lose(loss), *self._open(call, State.LOST)]

    def _open(self, call: Call, return_to: State) -> list[Effect]:
        self._note_reset(call)
        self.call = call
        call.seq = 0
        self._dials = 0
        self._dial_error = None
        self._return_to = return_to
        self.state = State.OPENING
        return [Dial()]

    # -------------------------------------------------------------- ending

    def _end(self, _: Any, now: float) -> list[Effect]:
        call, suspended, lease = self.call, self.state is State.SUSPENDED, self.lease
        goodbye = self.socket_open
        had_episode = self.needs_reset or self._reset_begun or self.loss is not None
        self._forget_socket()
        self._keep_lease()
        self.closes += 1
        self.loss = None
        self.abandoned = None
        self.needs_reset = had_episode
        self.state = State.CLOSED
        effects: list[Effect] = [CloseSocket(goodbye=goodbye)]
        if suspended and lease is not None:
            effects.append(SayRelease())
        if call is not None:
            effects.append(Fail(call, SessionClosedError(outcome=fate(call))))
        return effects

    def _in_flight(self) -> Call:
        assert self.call is not None, "this row always has a call in flight"
        return self.call

    def farewells(self) -> Sequence[Lease]:
        """Sessions that this client does not want any more."""
        return tuple(self._releases)


_FINAL_REASONS = {
    1012: "server_restart",  # what plain servers send as they stop
    CloseCode.CAPACITY: "capacity",
    CloseCode.REPLACED: "replaced",
    CloseCode.IDLE: "idle",
    CloseCode.DRAINING: "draining",
    CloseCode.PROTOCOL: "protocol",
}

_LOST_WORDS = {
    LostReason.EXPIRED: "the client was away for longer than the server keeps a session",
    LostReason.EVICTED: "the server gave the place of this unconnected session to another client",
    LostReason.EPOCH: "the server was restarted",
    LostReason.CLOSED: "the session had been closed",
    LostReason.CRASHED: "the environment's process died",
    LostReason.IDLE: "the session was idle for too long",
}


def _told_limit(drop: Drop) -> int | None:
    """The limit that a peer names as it closes with 1009."""
    told = re.search(r"limit of (\d+)", drop.reason)
    return int(told.group(1)) if told else None


def _lost_words(reason: str) -> str:
    return _LOST_WORDS.get(LostReason(reason), "") if reason in set(LostReason) else ""


def fate(call: Call) -> Outcome:
    """What became of a call that ends without an answer: a frame that never left was not applied. A settle speaks of
    the call that was given up, and waits only while nobody knows."""
    return Outcome.UNKNOWN if call.sends or call.op is Op.SETTLE else Outcome.NOT_APPLIED


def _due_error(call: Call, reply: Reply) -> Due | None:
    """What a failed abandoned call leaves to tell: nothing, if it was not applied."""
    error = error_from_frame(reply)
    if error.outcome is Outcome.NOT_APPLIED:
        return None
    if reply.code == V1ErrorCode.CANCELLED:
        error = OutcomeUnknownError(operation=call.op.value, outcome=error.outcome)
    return Due(call.op, error=error)


def timeout_error(call: Call, outcome: Outcome, detail: str = "") -> CallTimeoutError:
    """The error of a call whose time is over."""
    return CallTimeoutError(
        operation=call.op.value, timeout_s=call.timeout_s, setting=call.setting, outcome=outcome, detail=detail
    )
