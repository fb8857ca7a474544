"""A client of ``openenv.v1``, written from docs/SPEC-env-link.md alone, on the `websockets` library.

Against a server of the plain dialect it speaks that (E1, E16). One task, the keeper (`v1_keeper.py`), owns the socket:
it comes back to the session whether or not a call waits (E23). Run as a program it is a driver for ``openenv
conformance client``. With ``--bug NAME`` it breaks a clause; ``--list-bugs`` names all bugs.
"""

from __future__ import annotations

import asyncio
import sys

from plain_client import (
    CALL_S,
    CLOSE_S,
    REFUSALS,
    REPLY_TYPE,
    CallFailed,
    CallTimeout,
    Data,
    SessionLost,
    drive,
    encode,
    list_bugs,
    parser,
)
from v1_keeper import OPENING_S, Keeper, Sent
from websockets.exceptions import ConnectionClosed

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


class V1Client(Keeper):
    """One session at a time; the arguments are those of `Keeper`."""

    late: LateResult | None

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


def main() -> int:
    made = parser("A client of openenv.v1 that plays what the answers tell it to.", BUGS)
    made.add_argument("--wait-for-slot", type=float, default=30.0, help="seconds to wait in a full server's queue")
    options = made.parse_args()
    if options.list_bugs:
        return list_bugs(BUGS)
    return asyncio.run(drive(V1Client(options.url, options.bug, wait_for_slot_s=options.wait_for_slot)))


if __name__ == "__main__":
    sys.exit(main())
