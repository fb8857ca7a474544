"""The half of `v1_client.py` that owns the socket: it opens sessions, reads, loses the socket, and comes back."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from plain_client import CLOSE_S, CallFailed, Data, SessionLost, address, encode
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


class Keeper:
    """One session at a time, and the task that keeps it.

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
        self.late: Exception | None = None
        self.reset_begun = self.needs_reset = False
        self.refusal: Exception | None = None
        self.come_again_at = 0.0
        self.background: set[asyncio.Task[Any]] = set()

    def received(self, frame: Data) -> None:
        """One frame of an open session."""
        raise NotImplementedError

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
