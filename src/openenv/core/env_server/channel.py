"""The part of an ``openenv.v1`` session that outlives its sockets: its calls, its tokens, and who is attached.

Everything here runs on the event loop and does not wait, so whatever happens to a session happens in one piece:
a reply goes to the socket that is attached when it is ready, and to none before it.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from openenv.core.env_server.calls import CallError, refusal
from openenv.core.env_server.frames import Answer, FrameReader
from openenv.core.env_server.sessions import EndReason, Session
from openenv.core.env_server.v1_options import V1Options
from openenv.core.exceptions import OpenEnvError, SessionNotFoundError
from openenv.core.session.features import Feature
from openenv.core.session.leases import EndedSessions, TokenRing
from openenv.core.session.ledger import Ledger, Todo, Verdict, error_frame
from openenv.core.wire.frames import encode as encode_frame
from openenv.core.wire.json_codec import encode
from openenv.core.wire.messages import REPLY_TYPE, CallKind, WSErrorCode, reply_frame
from openenv.core.wire.v1 import CloseCode, LostReason, Resumed

__all__ = ["Channel", "Channels", "Peer", "call_error"]

logger = logging.getLogger("openenv.server")

FAILED = 1011
"""Close code of a session that could not begin."""

_LOST: Mapping[EndReason, LostReason] = {
    EndReason.IDLE: LostReason.IDLE,
    EndReason.EVICTED: LostReason.EVICTED,
    EndReason.GAVE_WAY: LostReason.EVICTED,
    EndReason.EXPIRED: LostReason.EXPIRED,
    EndReason.FAILED: LostReason.CRASHED,
}
_CODES: Mapping[EndReason, CloseCode] = {
    EndReason.CLOSED: CloseCode.CLOSED,
    EndReason.IDLE: CloseCode.IDLE,
    EndReason.DRAINING: CloseCode.DRAINING,
    EndReason.GAVE_WAY: CloseCode.CAPACITY,
}


class Peer(Protocol):
    """The socket of a client."""

    def send(self, frame: bytes) -> None:
        """Send a frame, after those before it."""

    def finish(self, code: int, reason: str, *, flush: bool = True) -> None:
        """Close the socket, after what was sent, or (without ``flush``) at once."""


def call_error(seq: int | None, error: CallError) -> bytes:
    """The error frame for a call that was refused or failed; it says whether the call was applied (E11)."""
    extra = {name: value for name, value in error.extra.items() if name != "applied"}
    return error_frame(seq, error.code, error.message, applied=error.applied, **extra)


class Channel:
    """One session and its client.

    Args:
        session: the session, new.
        peer: the socket that it was opened for.
        uses: features that its client uses.
        max_reply_bytes: largest reply that the client takes; None for any.
        options: times and bounds.
        reader: reads its frames.

    Attributes:
        peer: the socket that is attached; None while there is none.
        tokens: the right to come back.
        ready: done when the environment is built, or cannot be.
        waiting_seq: number of the first call, while that waits for the environment.
    """

    def __init__(
        self,
        session: Session,
        peer: Peer,
        uses: frozenset[Feature],
        max_reply_bytes: int | None,
        options: V1Options,
        reader: FrameReader,
    ) -> None:
        self.session = session
        self.uses = uses
        self.tokens = TokenRing()
        self.peer: Peer | None = peer
        self._numbered = Feature.SEQ in uses
        self._binary = Feature.MSGPACK in uses
        self._grace_s = options.grace_s
        limits = [max_reply_bytes, options.max_reply_bytes if Feature.RESUME in uses else None]
        known = [limit for limit in limits if limit is not None]
        self._ledger = Ledger(max_reply_bytes=min(known, default=None), numbered=self._numbered)
        self._reader = reader
        self._lease: asyncio.TimerHandle | None = None
        self._last_words: tuple[CloseCode, str] | None = None
        self.waiting_seq: Any = None
        self.ready = asyncio.create_task(session.ready())
        self.ready.add_done_callback(self._built)

    def _built(self, ready: asyncio.Task[None]) -> None:
        error = None if ready.cancelled() else ready.exception()
        if isinstance(error, OpenEnvError) and self.peer is not None:
            self.refuse(self.waiting_seq, refusal(error))
            self.peer.finish(FAILED, "failed")

    # ------------------------------------------------------------ frames of the attached socket

    def call(self, message: dict[str, Any], digest: bytes) -> None:
        """A request came.

        Args:
            message: its frame, decoded.
            digest: hash of the bytes as they were received.
        """
        seq = message.pop("seq", None) if self._numbered else None
        if self._numbered and not _is_number(seq):
            return self._send(call_error(None, _bad_seq()))
        verdict = self._ledger.request(seq, digest)
        if verdict.todo is Todo.RUN:
            return self._run(seq, message)
        return self._obey(verdict)

    def cancel(self, seq: Any) -> None:
        """The caller of a request gave up."""
        if not _is_number(seq):
            return self._send(call_error(None, _bad_seq()))
        verdict = self._ledger.cancel(seq)
        if verdict.todo is Todo.CANCEL:
            if not self.session.cancel():
                logger.info("call %d of session %s cannot be ended early: it still runs", seq, self.session.id)
                self._send(encode(reply_frame("running", {}, seq)))
            return None
        return self._obey(verdict)

    def refuse(self, seq: Any, error: CallError) -> None:
        """Answer a frame that was not even read as a call."""
        self._send(call_error(seq if self._numbered and _is_number(seq) else None, error))

    def _obey(self, verdict: Verdict) -> None:
        if verdict.todo is Todo.SEND:
            self._send(verdict.frame)

    def _send(self, frame: bytes) -> None:
        if self.peer is not None:
            self.peer.send(frame)

    # ------------------------------------------------------------ running

    def _run(self, seq: int | None, message: Mapping[str, Any]) -> None:
        try:
            request = self._reader.read(message, self.session.id)
            assert request is not None, "close is no call"
            if isinstance(request, Answer):
                self._reply(encode(reply_frame(request.kind, request.data, seq)))
            else:
                work = self._reader.work(request, _replies(seq, binary=self._binary))
                self.session.start(work, lambda result: self._ran(seq, result))
        except CallError as error:
            self._reply(call_error(seq, error))
        except SessionNotFoundError as error:
            self._reply(call_error(seq, CallError(WSErrorCode.SESSION_ERROR, str(error))))

    def _ran(self, seq: int | None, result: bytes | CallError) -> None:
        self._reply(call_error(seq, result) if isinstance(result, CallError) else result)

    def _reply(self, frame: bytes) -> None:
        self._send(self._ledger.finish(frame))
        if self._last_words is not None and self.peer is not None:
            self.peer.finish(*self._last_words)

    # ------------------------------------------------------------ losing the socket, and coming back

    def drop(self, peer: Peer) -> None:
        """A socket is gone. If it was the attached one: keep the session, or let it end (E6, E17)."""
        if peer is not self.peer:
            return
        self.peer = None
        if Feature.RESUME not in self.uses or self._ledger.last_seq == 0:
            self.session.end(EndReason.DROPPED)
        elif self.session.lease():
            logger.info("session %s lost its socket: kept for %g s", self.session.id, self._grace_s)
            loop = asyncio.get_running_loop()
            self._lease = loop.call_later(self._grace_s, self.session.end, EndReason.EXPIRED)

    def resume(self, peer: Peer, token: str, last_reply: int) -> None:
        """Attach another socket: the newest holder wins (E21, E22).

        Args:
            peer: the socket.
            token: what it is to be told for the next time.
            last_reply: number of the last reply that its client has seen.
        """
        former, self.peer = self.peer, peer
        self._stop_lease()
        self.session.resume()
        if former is not None:
            former.finish(CloseCode.REPLACED, "replaced", flush=False)
        ledger = self._ledger
        logger.info("session %s was resumed at call %d", self.session.id, ledger.last_seq)
        peer.send(encode(Resumed(token, ledger.last_seq, ledger.running).frame()))
        missed = ledger.missed(last_reply)
        if missed is not None:
            peer.send(missed)

    def over(self, reason: EndReason) -> None:
        """The session has ended."""
        self._stop_lease()
        if self.peer is None or reason not in _CODES:
            return  # nobody is there; or the environment was never built, which its socket tells
        words = (_CODES[reason], str(reason))
        if reason is EndReason.DRAINING and self._ledger.running:
            self._last_words = words
        else:
            self.peer.finish(*words)

    @property
    def lost(self) -> LostReason | None:
        """Why the session cannot be resumed; None while it can."""
        if not self.session.ending.done():
            return None
        reason = self.session.ending.result()
        if reason is EndReason.DROPPED and self._ledger.last_seq == 0:
            return LostReason.NEVER_CALLED
        return _LOST.get(reason, LostReason.CLOSED)

    def _stop_lease(self) -> None:
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None


class Channels:
    """The ``openenv.v1`` sessions of one server process.

    Attributes:
        epoch: names this process.
        ended: why former sessions ended.
    """

    def __init__(self) -> None:
        self.epoch = uuid.uuid4().hex
        self.ended = EndedSessions()
        self._channels: dict[str, Channel] = {}

    def add(self, channel: Channel) -> None:
        """Keep a channel until its environment is closed."""
        session = channel.session
        self._channels[session.id] = channel
        session.ending.add_done_callback(lambda _: self._over(channel))
        session.closed.add_done_callback(lambda _: self._channels.pop(session.id, None))

    def find(self, session: str) -> Channel | LostReason:
        """The channel of an open session, or why there is none."""
        channel = self._channels.get(session)
        if channel is None:
            return self.ended.reason(session)
        return channel.lost or channel

    def release(self, session: str, token: str) -> Session | None:
        """End a session for whoever holds its token. Returns it, if it has not been closed yet."""
        channel = self._channels.get(session)
        if channel is None or not channel.tokens.holds(token):
            return None
        channel.session.end(EndReason.CLOSED)
        return channel.session

    def _over(self, channel: Channel) -> None:
        self.ended.add(channel.session.id, channel.lost or LostReason.CLOSED)
        channel.over(channel.session.ending.result())


def _replies(seq: int | None, *, binary: bool) -> Callable[[str, dict[str, Any]], bytes]:
    """Encodes the reply to a call."""

    def reply(kind: str, data: dict[str, Any]) -> bytes:
        shown = _with_ending(data) if kind == REPLY_TYPE[CallKind.STEP] else data
        return encode_frame(reply_frame(kind, shown, seq), binary=binary)

    return reply


def _is_number(seq: Any) -> bool:
    return isinstance(seq, int) and not isinstance(seq, bool) and seq > 0


def _bad_seq() -> CallError:
    error = {"type": "missing", "loc": ["seq"], "msg": "a whole number from 1 is required", "input": None}
    return CallError(WSErrorCode.VALIDATION_ERROR, "Invalid message", errors=[error])


def _with_ending(data: dict[str, Any]) -> dict[str, Any]:
    """Set ``terminated`` and ``truncated`` beside ``done``, as the observation's fields of these names say (E30)."""
    fields = data["observation"]
    truncated = fields.get("truncated")
    truncated = truncated if isinstance(truncated, bool) else False
    terminated = fields.get("terminated")
    terminated = terminated if isinstance(terminated, bool) else bool(data["done"]) and not truncated
    return {**data, "terminated": terminated, "truncated": truncated}
