"""The numbered calls of one session, as its server keeps them. Pure: no sockets, no clock, no environment.

A client numbers its calls 1, 2, 3 ... and has one in flight at a time. The ledger says of each request, and of each
``cancel``, what is to be done with it, and keeps the last reply until the next call begins, so that a client that
lost its socket gets the answer it missed and no call is ever run twice (clauses E7 to E13 of ``openenv.v1``).

Two rules carry it:

1. A number is used up when its call starts, or when it is cancelled before it came. What is refused uses up nothing.
2. The reply that is kept is the reply that is sent, byte for byte, also when it had to be replaced for its size.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from openenv.core.wire.json_codec import encode
from openenv.core.wire.v1 import V1ErrorCode

__all__ = ["Ledger", "Todo", "Verdict", "error_frame"]


class Todo(StrEnum):
    """What is to be done with a frame."""

    RUN = "run"
    """Run the call, then tell `Ledger.finish`."""
    WAIT = "wait"
    """The call runs already: its reply will come."""
    SEND = "send"
    """Send the frame of the verdict; nothing is run."""
    CANCEL = "cancel"
    """Ask the running call to end early."""
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be done with a frame, and the frame to send if there is one."""

    todo: Todo
    frame: bytes = b""


def error_frame(seq: int | None, code: str, message: str, *, applied: bool | None, **extra: Any) -> bytes:
    """An error frame that answers call ``seq``; None where calls are not numbered.

    Args:
        seq: number of the call.
        code: code of the error.
        message: text of the error.
        applied: whether the call was applied; None for unknown.
        extra: further members.
    """
    data = {"message": message, "code": str(code), **extra, "applied": applied}
    return encode({"type": "error", "data": data} if seq is None else {"type": "error", "seq": seq, "data": data})


class Ledger:
    """The calls of one session.

    Args:
        max_reply_bytes: largest reply that may be sent and kept; None for any.
        numbered: requests carry numbers. Where they do not, each is a new call.

    Attributes:
        last_seq: number of the last call that was started or cancelled before it came; 0 for none.
        running: that call runs.
    """

    __slots__ = ("_digest", "_max_reply_bytes", "_numbered", "_reply", "last_seq", "running")

    def __init__(self, *, max_reply_bytes: int | None = None, numbered: bool = True) -> None:
        self.last_seq = 0
        self.running = False
        self._numbered = numbered
        self._max_reply_bytes = max_reply_bytes
        self._digest: bytes | None = None
        self._reply: bytes | None = None

    def request(self, seq: int | None, digest: bytes) -> Verdict:
        """A request came (E8, E12).

        Args:
            seq: its number; None where calls are not numbered.
            digest: hash of the bytes as they were received.
        """
        if seq is None:
            seq = self.last_seq + 1
        if seq == self.last_seq > 0:
            return self._again(seq, digest)
        if self.running:
            return self._refuse(seq, V1ErrorCode.BUSY, "Another call of this session is still running")
        if seq != self.last_seq + 1:
            return self._out_of_order(seq)
        self.last_seq = seq
        self.running = True
        self._digest = digest
        self._reply = None
        return Verdict(Todo.RUN)

    def finish(self, reply: bytes) -> bytes:
        """The running call has its reply.

        Returns:
            The frame to send: the reply, or the error in its place if it is too large (E10).
        """
        assert self.running, "no call runs"
        limit = self._max_reply_bytes
        if limit is not None and len(reply) > limit:
            size = len(reply)
            text = f"The reply of {size} bytes is over the limit of {limit} bytes; the call has been applied"
            reply = error_frame(
                self._shown(self.last_seq), V1ErrorCode.REPLY_TOO_LARGE, text, applied=True, size=size, limit=limit
            )
        self.running = False
        self._reply = reply
        return reply

    def cancel(self, seq: int) -> Verdict:
        """The caller of ``seq`` gave up (E13)."""
        if seq == self.last_seq and self.running:
            return Verdict(Todo.CANCEL)
        if seq <= self.last_seq:
            return Verdict(Todo.NOTHING)  # its reply has been sent, or is pushed after a resume
        if self.running:
            return self._refuse(seq, V1ErrorCode.BUSY, "Another call of this session is still running")
        if seq != self.last_seq + 1:
            return self._out_of_order(seq)
        self.last_seq = seq
        self._digest = None
        self._reply = error_frame(seq, V1ErrorCode.CANCELLED, "The call was cancelled before it came", applied=False)
        return Verdict(Todo.SEND, self._reply)

    def missed(self, last_reply: int) -> bytes | None:
        """The reply to push to a client that has come back and saw no later reply than ``last_reply`` (E21)."""
        return self._reply if last_reply < self.last_seq else None

    def _again(self, seq: int, digest: bytes) -> Verdict:
        if self._digest is not None and digest != self._digest:
            text = f"Request {seq} was received before, with other content"
            return self._refuse(seq, V1ErrorCode.SEQ_MISMATCH, text)
        return Verdict(Todo.WAIT) if self._reply is None else Verdict(Todo.SEND, self._reply)

    def _out_of_order(self, seq: int) -> Verdict:
        text = f"Request {seq} is out of order: the last one was {self.last_seq}"
        return self._refuse(seq, V1ErrorCode.SEQ_OUT_OF_ORDER, text)

    def _refuse(self, seq: int, code: V1ErrorCode, message: str) -> Verdict:
        return Verdict(Todo.SEND, error_frame(self._shown(seq), code, message, applied=False))

    def _shown(self, seq: int) -> int | None:
        return seq if self._numbered else None
