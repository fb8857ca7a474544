"""A client of ``openenv.v1``, written from docs/SPEC-env-link.md alone, on the `websockets` library.

Against a server of the plain dialect it speaks that (E1, E16). One task, the keeper, owns the socket: it reads, and
when the socket is gone it comes back to the session, whether or not a call waits (E23). Run as a program it is a
driver for ``openenv conformance client``. With ``--bug NAME`` it breaks a clause; ``--list-bugs`` names all bugs.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from plain_client import (
    CALL_S,
    CLOSE_S,
    REFUSALS,
    REPLY_TYPE,
    CallFailed,
    CallTimeout,
    Data,
    SessionLost,
    address,
    drive,
    encode,
    list_bugs,
    parser,
)
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.typing import Subprotocol

SUBPROTOCOL = Subprotocol("openenv.v1")
FEATURES = ("cancel", "queue", "resume", "seq")
MAX_REPLY_BYTES = 100 * 1024 * 1024
OPENING_S = 10.0
"""How long a server may take for the first words on a socket, and a reset for coming back to the old session."""
FIRST_DELAY_S, LAST_DELAY_S = 0.05, 2.0
FINAL = {1013: "capacity", 4000: "replaced", 4001: "idle", 4002: "draining", 4003: "protocol"}
"""E24: close codes that end a session. 1000 is one only with the reason 'closed'."""

BUGS = {
    "speaks-unechoed": "E1",
    "speaks-first": "E2",
    "calls-before-opened": "E3",
    "opens-twice": "E3",
    "uses-all": "E4",
    "token-in-url": "E5",
    "counts-from-0": "E7",
    "own-number-ignored": "E7",
    "resends-other-bytes": "E9",
    "sends-oversized": "E10",
    "two-calls-at-once": "E12",
    "never-cancels": "E13",
    "cancels-once": "E13",
    "next-at-once": "E14",
    "drops-late-result": "E15",
    "failed-reset-is-enough": "E15a",
    "plain-goes-on": "E16",
    "leaves-without-close": "E18",
    "1012-is-final": "E18",
    "keeps-old-token": "E20",
    "same-attempt": "E20",
    "resends-started": "E21",
    "resends-abandoned": "E21",
    "comes-back-replaced": "E22",
    "hammers": "E23",
    "gives-up": "E23",
    "waits-for-a-call": "E23",
    "4002-is-not-final": "E24",
    "never-releases": "E25",
    "sends-again": "E27",
    "does-not-queue": "E28",
}


class LateResult(Exception):
    """An earlier call that was given up has been applied after all; nothing was sent now (E15).

    Attributes:
        result: its result; None if it is not known.
    """

    def __init__(self, result: Data | None) -> None:
        self.result = result
        super().__init__("an earlier call was applied, or may have been; call settle() to read its result")


@dataclass
class Lease:
    """What is kept to come back to a session, or to release it."""

    session: str
    token: str
    epoch: str
    attempt: int = 0

    @property
    def names(self) -> Data:
        return {"session": self.session, "token": self.token}


@dataclass
class Sent:
    """The call in flight: its bytes are kept, and it is these that are sent again (E9)."""

    seq: int
    kind: str
    text: str
    answer: asyncio.Future[Data] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    abandoned: bool = False


class Refused(Exception):
    """The server will not open or resume a session; `lost` is its reason, if the session is gone."""

    def __init__(self, lost: str) -> None:
        self.lost = lost
        super().__init__(lost)


class V1Client:
    """One session at a time.

    Args:
        url: the server's, as ``http://127.0.0.1:8000``.
        bug: a clause to break; see `BUGS`.
        wants: features to use where the server has them.
        wait_for_slot_s: how long to wait in a full server's queue.
    """

    def __init__(
        self, url: str, bug: str = "", *, wants: Sequence[str] = FEATURES, wait_for_slot_s: float = 30.0
    ) -> None:
        self.url = address(url)
        self.bug = bug
        self.wants = wants
        self.wait_for_slot_s = wait_for_slot_s
        self.turn = asyncio.Lock()
        self.changed = asyncio.Event()
        self.alive = False  # there is a session: its socket is up, or it waits for its client
        self.ws: ClientConnection | None = None
        self.keeper: asyncio.Task[None] | None = None
        self.uses: frozenset[str] = frozenset()
        self.lease: Lease | None = None
        self.limit: int | None = None
        self.releases: list[Lease] = []
        self.seq = self.last_reply = 0
        self.sent: Sent | None = None
        self.late: LateResult | None = None
        self.reset_begun = self.needs_reset = False
        self.refusal: Exception | None = None
        self.come_again_at = 0.0
        self.background: set[asyncio.Task[Any]] = set()

    async def reset(self, data: Data | None = None, timeout_s: float | None = CALL_S) -> Data:
        """Begin an episode, in a new session if there is none."""
        return await self.call("reset", data or {}, timeout_s)

    async def step(self, action: Data, timeout_s: float | None = CALL_S) -> Data:
        """Act."""
        return await self.call("step", action, timeout_s)

    async def state(self, timeout_s: float | None = CALL_S) -> Data:
        """Look, without acting."""
        return await self.call("state", None, timeout_s)

    async def settle(self, timeout_s: float | None = CALL_S) -> Data | None:
        """E15: wait for the fate of a call that was given up. Returns its result, if it has one."""
        async with asyncio.timeout(timeout_s), self.turn:
            await self.settled()
            late, self.late = self.late, None
            return late.result if late else None

    async def close(self) -> None:
        """E18: say close, and wait a moment for the answer; release a session whose socket is gone (E25)."""
        ws, self.ws, self.alive = self.ws, None, False
        if self.keeper is not None and ws is None:
            self.keeper.cancel()  # it was about to come back
        if self.lease is not None:  # kept: should the close not arrive, the next open releases it (E25)
            self.releases.append(self.lease)
            self.lease = None
            if ws is None and self.bug != "never-releases":
                await self.say_release()
        if ws is not None:
            try:
                if self.bug != "leaves-without-close":
                    await ws.send(encode({"type": "close"}))
                    async with asyncio.timeout(CLOSE_S):
                        await ws.wait_closed()
            except (ConnectionClosed, TimeoutError):
                pass
            await ws.close()

    # ---------------------------------------------------------------- one call

    async def call(self, kind: str, data: Data | None, timeout_s: float | None) -> Data:
        """One call. The time for it includes waiting for its turn, and for a connection.

        Raises:
            CallFailed: an error frame answered it.
            SessionLost: the session is gone; a call that was sent may have been applied.
            CallTimeout: the time was over. The call goes on, and its fate is learned before the next one (E14).
            LateResult: nothing was sent, an earlier call's result is handed over.
        """
        try:
            async with asyncio.timeout(timeout_s):
                if self.bug == "two-calls-at-once":
                    return await self.exchange(kind, data, timeout_s)
                async with self.turn:
                    return await self.exchange(kind, data, timeout_s)
        except TimeoutError:
            text = f"no answer to {kind} within {timeout_s} s: call settle() before the next step"
            raise CallTimeout(text) from None

    async def exchange(self, kind: str, data: Data | None, timeout_s: float | None) -> Data:
        """Send a request in the right session, and wait for its answer."""
        if kind == "reset":
            self.reset_begun = self.needs_reset = True
        if self.bug != "next-at-once":
            await self.settled()
        await self.reach(kind, OPENING_S if timeout_s is None else min(OPENING_S, timeout_s / 2))
        if kind != "reset" and self.needs_reset:
            raise SessionLost("no reset has completed in this session (E15a)")
        late, self.late = self.late, None
        if late is not None and kind != "reset":
            raise late
        sent = self.prepare(kind, data)
        self.deliver(sent.text)
        try:
            return self.read_answer(sent, await asyncio.shield(sent.answer))
        except asyncio.CancelledError:
            self.give_up(sent)
            raise
        except SessionLost:
            if self.bug == "sends-again" and kind == "step":
                self.reset_begun = self.needs_reset = False
                return await self.exchange(kind, data, None)
            raise

    async def settled(self) -> None:
        """E14: wait until it is known what became of an abandoned call."""
        if self.sent is not None and self.sent.abandoned:
            await asyncio.wait([self.sent.answer])

    async def reach(self, kind: str, patience_s: float) -> None:
        """A socket that is up: the session's own, which may have to be resumed first, or a new one's."""
        until = asyncio.get_running_loop().time() + patience_s
        while self.alive and self.ws is None:  # E25: a reset too comes back to the old session first
            if kind == "reset" and asyncio.get_running_loop().time() >= until:
                self.lose("unreachable")
                break
            self.changed.clear()
            await self.wait_for_change(until if kind == "reset" else None)
        if not self.alive:
            if kind != "reset" and self.reset_begun:
                raise self.refusal or SessionLost("the session is gone: call reset()")
            await self.open()

    async def wait_for_change(self, until: float | None) -> None:
        try:
            async with asyncio.timeout_at(until):
                await self.changed.wait()
        except TimeoutError:
            pass

    def prepare(self, kind: str, data: Data | None) -> Sent:
        """E7: number a request. E10: one that the server would not read is not sent."""
        number = self.seq if self.bug == "counts-from-0" else self.seq + 1
        frame: Data = {"type": kind, **({"seq": number} if "seq" in self.uses else {})}
        if data is not None:
            frame["data"] = data
        sent = Sent(number, kind, encode(frame))
        if self.limit is not None and len(sent.text.encode()) > self.limit and self.bug != "sends-oversized":
            raise ValueError(f"a request of {len(sent.text.encode())} bytes is over the limit of {self.limit}")
        self.seq += 1
        self.sent = sent
        return sent

    def read_answer(self, sent: Sent, reply: Data) -> Data:
        if reply["type"] == "error":
            if self.bug == "failed-reset-is-enough" and sent.kind == "reset":
                self.needs_reset = False
            raise CallFailed(reply["data"])
        data: Data = reply["data"]
        return data

    def give_up(self, sent: Sent) -> None:
        """E13, E14: the server is told, and the call is abandoned. E16: without numbers, the session is lost."""
        if sent.answer.done():
            return None
        if "seq" not in self.uses:
            if self.bug != "plain-goes-on":
                return self.lose("gave up")
            self.sent = None
            return None
        sent.abandoned = True
        self.say_cancel(sent)
        return None

    def say_cancel(self, sent: Sent) -> None:
        if "cancel" in self.uses and self.bug != "never-cancels":
            self.deliver(encode({"type": "cancel", "seq": sent.seq}))

    def deliver(self, text: str) -> None:
        """Send on the socket of the moment; what is lost with it is the keeper's business."""

        async def send(ws: ClientConnection) -> None:
            try:
                await ws.send(text)
            except ConnectionClosed:
                pass

        if self.ws is not None:
            self.spawn(send(self.ws))

    def spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self.background.add(task)
        task.add_done_callback(self.background.discard)

    # ---------------------------------------------------------------- frames

    def received(self, frame: Data) -> None:
        """One frame of an open session: the answer to the call in flight, or a reason to give the session up."""
        kind, data, sent = frame.get("type"), frame.get("data") or {}, self.sent
        if kind == "running" and "seq" in self.uses:
            return None
        if "seq" not in self.uses and kind == "error" and data.get("code") in REFUSALS:
            return self.lose(str(data.get("code")), CallFailed(data))
        wrong = sent is None or ("seq" in self.uses and frame.get("seq") != sent.seq)
        if sent is None or (wrong and self.bug != "own-number-ignored"):
            return None if self.bug == "plain-goes-on" else self.lose("protocol")
        if kind not in ("error", REPLY_TYPE[sent.kind]) or data.get("code") in ("SEQ_MISMATCH", "SEQ_OUT_OF_ORDER"):
            return self.lose("protocol")
        self.sent, self.last_reply = None, sent.seq
        if kind != "error" and sent.kind == "reset":
            self.needs_reset = False  # E15a: a late one counts as well
        if sent.abandoned:
            self.late = self.fate(sent, frame)
        if not sent.answer.done():
            sent.answer.set_result(frame)
        return None

    def fate(self, sent: Sent, frame: Data) -> LateResult | None:
        """E15: what an abandoned call leaves to be told."""
        if self.bug == "drops-late-result" or sent.kind == "state":
            return None
        if frame["type"] != "error":
            return LateResult(frame["data"])
        return None if frame["data"].get("applied") is False else LateResult(None)

    # ---------------------------------------------------------------- the socket

    async def dial(self) -> ClientConnection:
        secret = self.bug == "token-in-url" and self.lease is not None
        query = f"?token={self.lease.token}" if secret and self.lease else ""
        return await connect(
            self.url + query,
            subprotocols=[SUBPROTOCOL],
            compression=None,
            max_size=None,
            proxy=None,
            close_timeout=1,
        )

    async def open(self) -> None:
        """E1 to E4: a new session."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, self.come_again_at - loop.time()))
        until, delay = loop.time() + OPENING_S, FIRST_DELAY_S
        while True:
            try:
                ws = await self.dial()
                break
            except (OSError, WebSocketException) as error:
                if loop.time() + delay > until:
                    raise SessionLost(f"cannot connect: {error}") from error
                await asyncio.sleep(delay * random.uniform(0.5, 1.0))
                delay = min(2 * delay, LAST_DELAY_S)
        self.uses, self.lease, self.limit, self.refusal = frozenset(), None, None, None
        self.seq = self.last_reply = 0
        self.sent = None
        if ws.subprotocol is not None or self.bug == "speaks-unechoed":
            try:
                await self.first_words(ws)
            except BaseException:
                ws.transport.abort()
                raise
        self.ws, self.alive = ws, True
        self.needs_reset = self.reset_begun
        self.keeper = asyncio.create_task(self.keep(ws))

    async def first_words(self, ws: ClientConnection) -> None:
        """Welcome, release, open, queued, opened."""
        try:
            ask: Data = {"type": "open", "data": {"uses": [], "max_message_bytes": MAX_REPLY_BYTES}}
            if self.bug in ("speaks-first", "speaks-unechoed"):
                await ws.send(encode(ask))
            welcome = await self.welcome(ws)
            listed = FEATURES if self.bug == "uses-all" else welcome["features"]
            uses = [one for one in self.wants if one in listed and ("seq" in listed or one == "queue")]
            ask["data"] = {**ask["data"], "uses": uses, "wait_for_slot_s": self.wait_for_slot_s}
            for lease in self.releases if self.bug != "never-releases" else ():
                if lease.epoch == welcome["epoch"]:
                    await ws.send(encode({"type": "release", "data": lease.names}))
            await ws.send(encode(ask))
            if self.bug == "opens-twice":
                await ws.send(encode(ask))
            if self.bug == "calls-before-opened":
                await ws.send(encode({"type": "reset", "seq": 1, "data": {}}))
            answer = await self.opened(ws)
        except (ConnectionClosed, TimeoutError, ValueError, KeyError) as error:
            raise SessionLost(f"the session could not be opened: {error}") from error
        self.uses = frozenset(uses)
        self.limit = welcome.get("limits", {}).get("max_message_bytes")
        self.lease = Lease(answer["session"], answer["token"], welcome["epoch"])
        self.releases = []

    async def welcome(self, ws: ClientConnection) -> Data:
        async with asyncio.timeout(OPENING_S):
            welcome = json.loads(await ws.recv())
        if welcome["type"] != "welcome" or welcome["data"]["protocol"] != 1:
            raise ValueError(f"'{welcome['type']}' came where welcome of protocol 1 was due")
        data: Data = welcome["data"]
        return data

    async def opened(self, ws: ClientConnection) -> Data:
        """E28: any number of positions, then the session, or a refusal."""
        while True:
            async with asyncio.timeout(OPENING_S + self.wait_for_slot_s):
                frame = json.loads(await ws.recv())
            data: Data = frame.get("data") or {}
            if frame["type"] == "error":
                wait_s = float(data.get("retry_after_s") or 0.1)  # E23: back off after a refusal, too
                self.come_again_at = asyncio.get_running_loop().time() + wait_s
                raise CallFailed(data)
            if frame["type"] == "queued" and self.bug != "does-not-queue":
                continue
            if frame["type"] != "opened":
                raise ValueError(f"'{frame['type']}' came where opened was due")
            return data

    async def say_release(self) -> None:
        """Tell the server, if it can be reached, that the last session is not wanted any more."""
        try:
            async with asyncio.timeout(CLOSE_S):
                ws = await self.dial()
                if ws.subprotocol is not None and (await self.welcome(ws))["epoch"] == self.releases[-1].epoch:
                    await ws.send(encode({"type": "release", "data": self.releases[-1].names}))
                    await ws.send(encode({"type": "close"}))
                await ws.close()
        except (OSError, TimeoutError, WebSocketException, ValueError, KeyError):
            pass  # its lease ends by itself

    # ---------------------------------------------------------------- the keeper

    async def keep(self, ws: ClientConnection) -> None:
        """Read the session's socket, and replace it when it is gone, until the session ends."""
        while True:
            try:
                async for raw in ws:
                    self.received(json.loads(raw))
                    if not self.alive:
                        return None
            except (ConnectionClosed, ValueError):
                pass
            if not self.alive:
                return None
            self.ws = None
            final = self.final(ws.close_code, ws.close_reason)
            if final or "resume" not in self.uses or self.seq == 0:
                return self.lose(final or "connection")
            try:
                ws = await self.resume()
            except Refused as refused:
                return self.lose(refused.lost)

    def final(self, code: int | None, reason: str | None) -> str:
        """E24: why a close code ends the session; empty if it does not."""
        if self.bug == "1012-is-final" and code == 1012:
            return "restart"
        if (self.bug, code) in (("4002-is-not-final", 4002), ("comes-back-replaced", 4000)):
            return ""
        return "closed" if (code, reason) == (1000, "closed") else FINAL.get(code or 0, "")

    async def resume(self) -> ClientConnection:
        """E20, E23: dial until the server says that the session is back, or gone."""
        delay, dials = FIRST_DELAY_S, 0
        while True:
            while self.bug == "waits-for-a-call" and not self.turn.locked():
                await asyncio.sleep(0.02)
            try:
                async with asyncio.timeout(OPENING_S):
                    ws = await self.dial()
                    try:
                        await self.come_back(ws)
                    except BaseException:
                        ws.transport.abort()
                        raise
                return ws
            except ConnectionClosed as closed:
                code = closed.rcvd.code if closed.rcvd else None
                if final := self.final(code, closed.rcvd.reason if closed.rcvd else ""):
                    raise Refused(final) from closed
            except (OSError, TimeoutError, WebSocketException):
                pass
            except (ValueError, KeyError) as error:
                raise Refused(f"protocol: {error}") from error
            dials += 1
            if self.bug == "gives-up" and dials == 2:
                raise Refused("gave up")
            await asyncio.sleep(0.0 if self.bug == "hammers" else delay * random.uniform(0.5, 1.0))
            delay = min(2 * delay, LAST_DELAY_S)

    async def come_back(self, ws: ClientConnection) -> None:
        """The first words of a resume, and the call in flight (E21)."""
        lease, sent = self.lease, self.sent
        assert lease is not None, "only a leased session is resumed"
        if ws.subprotocol is None or (await self.welcome(ws))["epoch"] != lease.epoch:
            raise Refused("epoch")
        lease.attempt = 1 if self.bug == "same-attempt" else lease.attempt + 1
        counted = {"epoch": lease.epoch, "last_reply": self.last_reply, "attempt": lease.attempt}
        await ws.send(encode({"type": "resume", "data": {**lease.names, **counted}}))
        frame = json.loads(await ws.recv())
        data = frame["data"]
        if frame["type"] == "lost":
            raise Refused(data["reason"])
        if frame["type"] != "resumed":
            raise ValueError(f"'{frame['type']}' came where resumed was due")
        if self.bug != "keeps-old-token":
            lease.token, lease.attempt = data["token"], 0
        at = data["last_seq"]
        if at not in ((self.last_reply,) if sent is None else (sent.seq - 1, sent.seq)):
            raise ValueError(f"the server is at call {at}")
        self.ws = ws
        self.changed.set()
        if sent is not None:
            self.go_on(sent, started=at == sent.seq)

    def go_on(self, sent: Sent, started: bool) -> None:
        """E21: what the server has started is awaited; what it has not seen is sent, unless nobody wants it."""
        if sent.abandoned and self.bug != "resends-abandoned":
            if "cancel" in self.uses:
                return None if self.bug == "cancels-once" else self.say_cancel(sent)
            if not started:  # it never arrived, so its number is free
                self.sent = None
                self.seq -= 1
                sent.answer.set_result({"type": "error", "data": {"applied": False}})
        elif not started or self.bug == "resends-started":
            self.deliver(sent.text.replace('":', '": ') if self.bug == "resends-other-bytes" else sent.text)
        return None

    def lose(self, reason: str, refusal: Exception | None = None) -> None:
        """The session is over for us. It is remembered until a new one is open, to release it (E25)."""
        ws, self.ws = self.ws, None
        if ws is not None:
            ws.transport.abort()
        if self.keeper is not None and self.keeper is not asyncio.current_task():
            self.keeper.cancel()
        if self.lease is not None and reason != "replaced":
            self.releases = [*self.releases, self.lease][-8:]
        self.alive, self.lease = False, None
        self.refusal = refusal
        sent, self.sent = self.sent, None
        if sent is not None and not sent.answer.done():
            sent.answer.set_exception(refusal or SessionLost(f"the session was lost: {reason}"))
            sent.answer.exception()  # nobody may be waiting for it
        self.changed.set()


def main() -> int:
    made = parser("A client of openenv.v1 that plays what the answers tell it to.", BUGS)
    made.add_argument("--wait-for-slot", type=float, default=30.0, help="seconds to wait in a full server's queue")
    options = made.parse_args()
    if options.list_bugs:
        return list_bugs(BUGS)
    return asyncio.run(drive(V1Client(options.url, options.bug, wait_for_slot_s=options.wait_for_slot)))


if __name__ == "__main__":
    sys.exit(main())
