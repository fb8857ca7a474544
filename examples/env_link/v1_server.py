"""A server of ``openenv.v1``, written from docs/SPEC-env-link.md alone, on the `websockets` library.

It serves the probe environment, and the plain dialect (`plain_server.py`) to whoever does not offer the subprotocol.
Everything runs on one event loop and nothing waits while it changes a session, so there are no locks. With
``--bug NAME`` it breaks a clause; ``--list-bugs`` names all bugs and their clauses.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from plain_server import (
    MAX_DEPTH,
    MAX_MESSAGE_BYTES,
    CallError,
    PlainServer,
    check_envelope,
    decode,
    encode,
    invalid,
    list_bugs,
    run,
    server_arguments,
)
from v1_session import Session, error_frame
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

SUBPROTOCOL = Subprotocol("openenv.v1")
FEATURES = ("cancel", "queue", "resume", "seq")
ENDINGS_KEPT = 10_000
NOT_FINAL = 1008
"""Close code of sockets that came too late: not one of E24's, so it ends no session."""

BUGS = {
    "echoes-first-offer": "E1",
    "no-welcome": "E2",
    "welcome-without-epoch": "E2",
    "full-closes-1000": "E3",
    "full-without-retry": "E3",
    "strict-uses": "E4",
    "numbers-unasked": "E4",
    "short-token": "E5",
    "patient": "E6",
    "leases-uncalled": "E6",
    "no-number": "E7",
    "runs-again": "E8",
    "runs-any-number": "E8",
    "compares-content": "E9",
    "sends-oversized": "E10",
    "no-applied": "E11",
    "queues-second-call": "E12",
    "cancel-unknown": "E13",
    "cancel-repeats-reply": "E13",
    "cancel-not-remembered": "E13",
    "leases-all": "E17",
    "1000-ends": "E18",
    "close-without-reason": "E18",
    "loss-kills-call": "E19",
    "never-evicts": "E19",
    "voids-old-token": "E20",
    "same-token": "E20",
    "takes-ghosts": "E20",
    "any-token": "E20",
    "no-push": "E21",
    "pushes-always": "E21",
    "leaves-old-socket": "E22",
    "answers-old-socket": "E22",
    "protocol-closes-1011": "E24",
    "ignores-release": "E25",
    "last-come-first-served": "E28",
    "silent-queue": "E28",
    "v1-nan-to-null": "E29",
    "no-terminated": "E30",
}


def member(data: Mapping[str, Any], name: str, kind: type | tuple[type, ...], default: Any = ...) -> Any:
    """A member of an opening frame's data; unknown ones are never looked at (E4)."""
    value = data.get(name, default)
    if value is ... or (value is not default and (not isinstance(value, kind) or isinstance(value, bool))):
        raise invalid("missing" if value is ... else "wrong_type", ["data", name], f"'{name}' is missing or wrong")
    return value


class V1Server(PlainServer):
    """Serves both dialects. See `PlainServer`.

    Args:
        capacity: most sessions at once.
        bug: a clause to break.
        features: what to offer.
        grace_s: how long a lease lives.
        evict_after_s: how long it is safe from those who wait.
        idle_timeout_s: silence after which a session ends; 0 for never.
        first_frame_s: how long a socket may say nothing.
    """

    def __init__(
        self,
        capacity: int,
        bug: str = "",
        *,
        features: Sequence[str] = FEATURES,
        grace_s: float = 600.0,
        evict_after_s: float = 5.0,
        idle_timeout_s: float = 0.0,
        first_frame_s: float = 10.0,
    ) -> None:
        super().__init__(capacity, bug)
        self.features = tuple(features)
        self.grace_s = grace_s
        self.evict_after_s = evict_after_s
        self.idle_timeout_s = idle_timeout_s
        self.first_frame_s = first_frame_s
        self.epoch = uuid.uuid4().hex
        self.sessions: dict[str, Session] = {}
        self.endings: dict[str, str] = {}
        self.queue: deque[asyncio.Future[None]] = deque()
        self.changed = asyncio.Event()
        self.hanging_up: set[asyncio.Task[None]] = set()

    def subprotocol(self, ws: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
        """E1: ours if it is offered, whatever else is; none otherwise."""
        if self.bug == "echoes-first-offer" and offered:
            return offered[0]
        return SUBPROTOCOL if SUBPROTOCOL in offered else None

    async def handle(self, ws: ServerConnection) -> None:
        try:
            await (self.plain(ws) if ws.subprotocol is None else self.v1(ws))
        except ConnectionClosed:
            pass

    # ------------------------------------------------------------ slots (E3, E19, E28)

    async def take_slot(self) -> bool:
        """Take a free slot, or that of the oldest lease that is no longer safe. Nobody overtakes the queue."""
        if not self.queue and self.active >= self.capacity:
            self.evict()
        if self.queue or self.active >= self.capacity:
            return False
        self.active += 1
        return True

    def free_slot(self) -> None:
        """A freed slot goes to the one who waits longest."""
        self.active -= 1
        while self.queue and self.active < self.capacity:
            first = self.queue.pop() if self.bug == "last-come-first-served" else self.queue.popleft()
            if not first.done():
                self.active += 1
                first.set_result(None)
        self.moved()

    def moved(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def leases(self) -> list[Session]:
        return sorted((one for one in self.sessions.values() if one.ws is None), key=lambda one: one.leased_at)

    def evict(self) -> None:
        old = [one for one in self.leases() if time.monotonic() - one.leased_at >= self.evict_after_s]
        if old and self.bug != "never-evicts":
            self.end(old[0], "evicted")

    def retry_after_s(self) -> float:
        """When a lease that is in the way may be evicted."""
        leases = self.leases()
        return max(0.1, self.evict_after_s - (time.monotonic() - leases[0].leased_at)) if leases else 1.0

    async def wait_for_slot(self, ws: ServerConnection, seconds: float) -> bool:
        """E28: wait in order of arrival, and tell each change of place. Leaving costs nothing."""
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.queue.append(slot)
        deadline = time.monotonic() + seconds
        gone = asyncio.create_task(ws.wait_closed())
        told = 0
        try:
            while not slot.done() and not gone.done() and (left := deadline - time.monotonic()) > 0:
                place = self.queue.index(slot) + 1
                if place != told and self.bug != "silent-queue":
                    told = place
                    await ws.send(encode({"type": "queued", "data": {"position": place}}))
                    continue
                self.evict()
                if slot.done():
                    break
                moved = asyncio.create_task(self.changed.wait())
                patience = min(left, self.retry_after_s() if self.leases() else left)
                waited: set[asyncio.Future[Any]] = {slot, gone, moved}
                await asyncio.wait(waited, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                moved.cancel()
            return slot.done() and not gone.done()
        finally:
            taken = slot.done() and not slot.cancelled()
            if not taken:
                slot.cancel()
                self.queue.remove(slot)
                self.moved()
            elif ws.close_code is not None:
                self.free_slot()
            gone.cancel()

    # ------------------------------------------------------------ sessions

    def end(self, session: Session, why: str) -> None:
        """End a session for good. Its slot is freed when its last call has returned."""
        if session.lost:
            return
        session.lost = why
        del self.sessions[session.id]
        self.endings[session.id] = why
        if len(self.endings) > ENDINGS_KEPT:
            del self.endings[next(iter(self.endings))]
        if session.task is not None:
            session.task.cancel()
            session.task.add_done_callback(lambda _: self.free_slot())
        else:
            self.free_slot()

    def drop(self, session: Session, ws: ServerConnection) -> None:
        """E6, E17, E18: a socket is gone. If it was the attached one, the session is leased, or ends."""
        if session.ws is not ws or session.lost:
            return None
        session.ws = None
        if session.last_seq == 0 and self.bug != "leases-uncalled":
            return self.end(session, "never_called")
        ends = self.bug == "1000-ends" and ws.protocol.close_rcvd is not None and ws.protocol.close_rcvd.code == 1000
        if ("resume" not in session.uses and self.bug != "leases-all") or ends:
            return self.end(session, "closed")
        session.leased_at = time.monotonic()
        if self.bug == "loss-kills-call" and session.task is not None:
            session.task.cancel()
        asyncio.get_running_loop().call_later(self.grace_s, self.expire, session, session.leased_at)
        return self.moved()

    def expire(self, session: Session, leased_at: float) -> None:
        if session.ws is None and session.leased_at == leased_at:
            self.end(session, "expired")

    # ------------------------------------------------------------ one socket

    async def v1(self, ws: ServerConnection) -> None:
        """Welcome, then open or resume, then calls."""
        await self.welcome(ws)
        session: Session | None = None
        try:
            async with asyncio.timeout(None if self.bug == "patient" else self.first_frame_s):
                asked = await self.first(ws)
        except TimeoutError:
            return await ws.close(NOT_FINAL, "no open or resume came in time")
        if asked is None:
            return None
        kind, data = asked
        try:
            session = await (self.open(ws, data) if kind == "open" else self.resume(ws, data))
            if session is not None:
                await self.calls(ws, session)
        except CallError as error:
            await self.violation(ws, error)
        finally:
            if session is not None:
                self.drop(session, ws)
        return None

    async def welcome(self, ws: ServerConnection) -> None:
        """E2."""
        data = {
            "protocol": 1,
            "server": "reference/1",
            "features": list(self.features),
            "limits": {"max_message_bytes": MAX_MESSAGE_BYTES, "max_depth": MAX_DEPTH},
            "epoch": self.epoch,
            "grace_s": self.grace_s,
        }
        if self.bug == "welcome-without-epoch":
            del data["epoch"]
        if self.bug != "no-welcome":
            await ws.send(encode({"type": "welcome", "data": data}))

    async def first(self, ws: ServerConnection) -> tuple[str, dict[str, Any]] | None:
        """E3: any number of releases, then one open or resume. None if there is nothing more to do."""
        try:
            while True:
                message = decode(await ws.recv())
                kind, data = message.get("type"), message.get("data", {})
                if not isinstance(data, dict):
                    raise invalid("dict_type", ["data"], "'data' must be an object")
                match kind:
                    case "release":
                        self.release(data)
                    case "open" | "resume":
                        return kind, data
                    case "close":
                        await ws.close(1000, "closed")
                        return None
                    case _:
                        raise CallError("UNKNOWN_TYPE", "the first frame of a socket must be 'open' or 'resume'")
        except CallError as error:
            await self.violation(ws, error)
            return None

    async def violation(self, ws: ServerConnection, error: CallError) -> None:
        """E24: an opening that makes no sense ends with 4003."""
        await ws.send(error_frame(None, error))
        await ws.close(1011 if self.bug == "protocol-closes-1011" else 4003, "protocol")

    async def open(self, ws: ServerConnection, data: dict[str, Any]) -> Session | None:
        """E3, E4: a new session, if there is a slot."""
        named = member(data, "uses", list, [])
        max_reply = member(data, "max_message_bytes", int, None)
        seconds = float(member(data, "wait_for_slot_s", (int, float), 0.0))
        if self.bug == "strict-uses" and not set(named) <= set(self.features):
            raise invalid("unknown", ["data", "uses"], "unknown feature")
        uses = {one for one in named if isinstance(one, str)} & set(self.features)
        uses = uses if "seq" in uses else uses - {"cancel", "resume"}
        waits = "queue" in uses and seconds > 0
        if not (await self.take_slot() or (waits and await self.wait_for_slot(ws, seconds))):
            retry = {} if self.bug == "full-without-retry" else {"retry_after_s": round(self.retry_after_s(), 3)}
            await ws.send(error_frame(None, self.full(**retry)))
            await ws.close(1000 if self.bug == "full-closes-1000" else 1013, "capacity")
            return None
        session = Session(ws, sorted(uses), max_reply, self.bug)
        self.sessions[session.id] = session
        session.send(encode({"type": "opened", "data": {"session": session.id, "token": session.first_token}}))
        return session

    def release(self, data: dict[str, Any]) -> None:
        """E25: whoever holds the token may end the session."""
        session = self.sessions.get(member(data, "session", str))
        if session is None or not session.holds(member(data, "token", str)) or self.bug == "ignores-release":
            return
        ws = session.ws
        self.end(session, "closed")
        if ws is not None:
            self.hang_up(ws, 1000, "closed")

    async def resume(self, ws: ServerConnection, data: dict[str, Any]) -> Session | None:
        """E20: back to a session, or the reason why not."""
        name, token, epoch = (member(data, one, str) for one in ("session", "token", "epoch"))
        last_reply, attempt = (member(data, one, int) for one in ("last_reply", "attempt"))
        session = self.sessions.get(name)
        lost = "epoch" if epoch != self.epoch else self.endings.get(name, "unknown") if session is None else ""
        if session is None or lost or not session.holds(token):
            await ws.send(encode({"type": "lost", "data": {"reason": lost or "unknown"}}))
            await ws.close(1000, "lost")
            return None
        new = session.present(token, attempt)
        if new is None:
            await ws.close(NOT_FINAL, "a later resume came first")
            return None
        former, session.ws = session.ws, ws
        if former is not None and self.bug != "leaves-old-socket":  # E22: the newest holder wins
            self.hang_up(former, 4000, "replaced")
        told = {"token": new, "last_seq": session.last_seq, "running": session.running}
        session.send(encode({"type": "resumed", "data": told}))
        missed = last_reply < session.last_seq or self.bug == "pushes-always"
        if missed and session.reply is not None and self.bug != "no-push":  # E21: now, else when it is ready
            session.send(session.reply)
        return session

    async def calls(self, ws: ServerConnection, session: Session) -> None:
        """Read all the time, also while a call runs (E12)."""
        while True:
            try:
                async with asyncio.timeout(self.idle_timeout_s or None):
                    frame = await ws.recv()
            except TimeoutError:
                if session.running or session.ws is not ws:
                    continue
                self.end(session, "idle")
                return await ws.close(4001, "idle")
            if session.ws is not ws and self.bug != "leaves-old-socket":
                continue  # E22: another socket has taken over
            session.arrived()
            if not self.take(session, frame):
                self.end(session, "closed")
                return await ws.close(1000, "" if self.bug == "close-without-reason" else "closed")

    def take(self, session: Session, frame: str | bytes) -> bool:
        """One frame of an open session. Returns whether the session goes on."""
        try:
            message = decode(frame)
            if message.get("type") == "cancel" and "cancel" in session.uses:
                session.cancel(message.get("seq"))
                return True
            if message.get("type") == "close" and check_envelope(message, "") == "close":
                return False
        except CallError as error:
            session.refuse(None, error)
            return True
        session.request(frame, message)
        return True

    def hang_up(self, ws: ServerConnection, code: int, reason: str) -> None:
        """Close a socket that is not ours to wait for."""
        task = asyncio.create_task(ws.close(code, reason))
        self.hanging_up.add(task)
        task.add_done_callback(self.hanging_up.discard)

    async def stop(self, server: Any) -> None:
        """E24: sessions of ``openenv.v1`` end with 4002."""
        attached = [one.ws for one in self.sessions.values() if one.ws is not None]
        for session in list(self.sessions.values()):
            self.end(session, "closed")
        await asyncio.gather(*(ws.close(4002, "draining") for ws in attached), return_exceptions=True)
        await super().stop(server)


async def serve_v1(options: Any) -> None:
    features = [one for one in options.features.split(",") if one]
    server = V1Server(
        options.capacity,
        options.bug,
        features=features,
        grace_s=options.grace,
        evict_after_s=options.evict_after,
        idle_timeout_s=options.idle_timeout,
    )
    await run(server, options.host, options.port, select_subprotocol=server.subprotocol)


def main() -> None:
    parser = server_arguments("A server of openenv.v1 and of the plain dialect.", BUGS)
    parser.add_argument("--features", default=",".join(FEATURES), help="what to offer, with commas between")
    parser.add_argument("--grace", type=float, default=600.0, help="seconds that a lease lives")
    parser.add_argument("--evict-after", type=float, default=5.0, help="seconds that a lease is safe from others")
    parser.add_argument(
        "--idle-timeout", type=float, default=0.0, help="seconds of silence that end a session; 0: none"
    )
    options = parser.parse_args()
    if options.list_bugs:
        return list_bugs(BUGS)
    return asyncio.run(serve_v1(options))


if __name__ == "__main__":
    main()
