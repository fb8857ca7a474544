"""A session of ``openenv.v1`` as `v1_server.py` keeps it: numbered calls, and the right to come back."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
import uuid
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

from plain_server import CallError, ProbeEnv, answer, encode, invalid, nan_to_null
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

MAX_KEPT_REPLY_BYTES = 64 * 1024 * 1024


def digest(text: str | bytes) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text).digest()


def error_frame(seq: int | None, error: CallError) -> str:
    """E7, E11: the error that answers a call has its number, and says whether it was applied."""
    number = {} if seq is None else {"seq": seq}
    return encode({"type": "error", **number, "data": {**error.data, "applied": error.applied}})


def is_number(seq: Any) -> bool:
    return isinstance(seq, int) and not isinstance(seq, bool) and seq > 0


class Session:
    """What outlives a socket: the environment, the numbered calls, the right to come back.

    Attributes:
        ws: the attached socket; None for a lease.
        last_seq: number of the last call that was started, or cancelled before it came.
        reply: the kept reply to that call; None while it runs.
        task: the running call.
        lost: why it ended; empty while it has not.
    """

    def __init__(self, ws: ServerConnection, uses: Sequence[str], max_reply: int | None, bug: str) -> None:
        self.id = uuid.uuid4().hex
        self.first_token = secrets.token_urlsafe(6 if bug == "short-token" else 32)
        self.token = digest(self.first_token)
        self.told: bytes | None = None
        self.attempt = 0
        self.ws: ServerConnection | None = ws
        self.uses = frozenset(uses)
        self.max_reply = max_reply
        self.bug = bug
        self.env = ProbeEnv()
        self.last_seq = 0
        self.digest = b""
        self.reply: str | None = None
        self.task: asyncio.Task[Any] | None = None
        self.waiting: deque[tuple[int | None, dict[str, Any], bytes]] = deque()
        self.leased_at = 0.0
        self.lost = ""
        self.outbox: set[asyncio.Task[None]] = set()

    @property
    def numbered(self) -> bool:
        return "seq" in self.uses

    @property
    def running(self) -> bool:
        return self.task is not None

    # ------------------------------------------------------------ tokens (E5, E20)

    def holds(self, token: str) -> bool:
        """Compared by hash, in constant time."""
        known = [self.token] + ([self.told] if self.told else [])
        return any(hmac.compare_digest(one, digest(token)) for one in known) or self.bug == "any-token"

    def present(self, token: str, attempt: int) -> str | None:
        """A good token is shown. Returns the next one; None for a ghost, which changes nothing."""
        if self.told and hmac.compare_digest(self.told, digest(token)):
            self.arrived()  # whoever shows the new one has been told it
        if attempt < self.attempt and self.bug != "takes-ghosts":
            return None
        self.attempt = attempt
        if self.bug == "same-token":
            return token
        new = secrets.token_urlsafe(32)
        self.told = digest(new)
        if self.bug == "voids-old-token":
            self.arrived()
        return new

    def arrived(self) -> None:
        """A frame came on the socket that was told the new token: the old one is void."""
        if self.told:
            self.token, self.told, self.attempt = self.told, None, 0

    # ------------------------------------------------------------ calls (E7 to E13)

    def request(self, frame: str | bytes, message: dict[str, Any]) -> None:
        """Run a request, replay its reply, or refuse it; only ``last_seq + 1`` is ever run (E8)."""
        seq = message.pop("seq", None) if self.numbered else None
        if self.numbered and (not isinstance(seq, int) or isinstance(seq, bool)):
            return self.refuse(None, invalid("missing", ["seq"], "a whole number from 1 is required"))
        number = seq if isinstance(seq, int) else self.last_seq + 1
        print_ = digest(json.dumps(message, sort_keys=True) if self.bug == "compares-content" else frame)
        if number == self.last_seq > 0 and not (self.bug == "runs-again" and not self.running):
            return self.again(number, print_)
        if self.running:
            if self.bug == "queues-second-call":
                return self.waiting.append((seq, message, print_))
            return self.refuse(seq, CallError("BUSY", "Another call of this session is still running"))
        if number != self.last_seq + 1 and self.bug not in ("runs-any-number", "runs-again"):
            return self.refuse(seq, self.out_of_order(number))
        return self.start(seq, message, print_)

    def start(self, seq: int | None, message: dict[str, Any], print_: bytes) -> None:
        self.last_seq = self.last_seq + 1 if seq is None else seq
        self.digest, self.reply = print_, None
        self.task = asyncio.create_task(answer(self.env, message))
        self.task.add_done_callback(partial(self.finished, seq, self.ws))

    def again(self, seq: int, print_: bytes) -> None:
        """E8, E9: the last number once more."""
        if self.digest and print_ != self.digest:
            return self.refuse(seq, CallError("SEQ_MISMATCH", f"Request {seq} came before, with other bytes"))
        if self.reply is not None:
            self.send(self.reply)
        return None

    def out_of_order(self, seq: int) -> CallError:
        return CallError("SEQ_OUT_OF_ORDER", f"Request {seq} is out of order: the last one was {self.last_seq}")

    def finished(self, seq: int | None, asked: ServerConnection | None, task: asyncio.Task[Any]) -> None:
        """The call has ended: its reply is kept, then sent (E8)."""
        number = {} if seq is None or self.bug == "no-number" else {"seq": seq}
        if self.bug == "numbers-unasked":
            number = {"seq": self.last_seq}
        if task.cancelled():  # the probe environment waits before it counts: nothing was applied
            reply = self.error(seq, CallError("CANCELLED", "The call was cancelled", False))
        elif isinstance(error := task.exception(), CallError):
            reply = self.error(seq, error)
        else:
            kind, data = task.result()
            reply = encode({"type": kind, **number, "data": self.ending(data) if kind == "observation" else data})
        size = len(reply.encode())
        limit = min(self.max_reply or MAX_KEPT_REPLY_BYTES, MAX_KEPT_REPLY_BYTES)
        if size > limit and self.bug != "sends-oversized":  # E10
            text = f"The reply of {size} bytes is over the limit of {limit} bytes; the call has been applied"
            reply = self.error(seq, CallError("REPLY_TOO_LARGE", text, True, size=size, limit=limit))
        self.task, self.reply = None, reply
        self.send(reply, asked if self.bug == "answers-old-socket" else None)
        if self.waiting and not self.lost:
            self.start(*self.waiting.popleft())

    def ending(self, data: dict[str, Any]) -> dict[str, Any]:
        """E30: the probe environment's ``done`` is an end of its own, never a cut."""
        ends = {} if self.bug == "no-terminated" else {"terminated": data["done"], "truncated": False}
        shown = {**data, **ends}
        return nan_to_null(shown) if self.bug == "v1-nan-to-null" else shown

    def cancel(self, seq: Any) -> None:
        """E13: the caller of a request gave up."""
        if self.bug == "cancel-unknown":
            return self.refuse(None, CallError("UNKNOWN_TYPE", "Unknown message type: cancel"))
        if not is_number(seq):
            return self.refuse(None, invalid("missing", ["seq"], "a whole number from 1 is required"))
        if seq == self.last_seq and self.task is not None:
            self.task.cancel()
        elif seq <= self.last_seq:
            if self.bug == "cancel-repeats-reply" and seq == self.last_seq and self.reply is not None:
                self.send(self.reply)
        elif self.running:
            self.refuse(seq, CallError("BUSY", "Another call of this session is still running"))
        elif seq != self.last_seq + 1:
            self.refuse(seq, self.out_of_order(seq))
        else:
            reply = self.error(seq, CallError("CANCELLED", "The call was cancelled before it came"))
            if self.bug != "cancel-not-remembered":
                self.last_seq, self.digest, self.reply = seq, b"", reply
            self.send(reply)
        return None

    def error(self, seq: int | None, error: CallError) -> str:
        frame = error_frame(None if self.bug == "no-number" else seq, error)
        if self.bug == "no-applied":
            told = json.loads(frame)
            del told["data"]["applied"]
            return encode(told)
        return frame

    def refuse(self, seq: int | None, error: CallError) -> None:
        self.send(self.error(seq if self.numbered else None, error))

    # ------------------------------------------------------------ the socket

    def send(self, frame: str, ws: ServerConnection | None = None) -> None:
        """To the socket that is attached now (E22). Frames of one socket stay in order."""
        ws = ws or self.ws
        if ws is not None:
            task = asyncio.create_task(self.deliver(ws, frame))
            self.outbox.add(task)
            task.add_done_callback(self.outbox.discard)

    async def deliver(self, ws: ServerConnection, frame: str) -> None:
        try:
            await ws.send(frame)
        except ConnectionClosed:
            pass  # kept, if the client may come back for it
