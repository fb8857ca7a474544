"""A client of the env link's plain dialect, written from docs/SPEC-env-link.md alone, on the `websockets` library.

Replies and requests pair by position only, so this client has two rules: one call at a time (P24), and when a call
ends without its answer, for whatever reason, its session is over (P25 to P27). Only a reset opens another one.

Run as a program it is a driver for ``openenv conformance client``: it plays what the answers tell it to. With ``--bug
NAME`` it breaks a clause of the specification; ``--list-bugs`` names all bugs and their clauses.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, Protocol

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

Data = dict[str, Any]
REPLY_TYPE = {"reset": "observation", "step": "observation", "state": "state"}
REFUSALS = ("CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR")
"""Error codes after which the server closes the socket."""
MAX_REPLY_BYTES = 100 * 1024 * 1024
CALL_S = 60.0
CLOSE_S = 2.0

BUGS = {
    "socket-for-each-reset": "P2",
    "request-ids": "P7",
    "nests-action": "P8",
    "reset-with-null": "P9",
    "error-ends-session": "P13",
    "binary-frames": "P14",
    "leaves-without-close": "P15",
    "full-for-ever": "P17",
    "two-calls-at-once": "P24",
    "silent-reconnect": "P25",
    "late-answer": "P26",
    "sends-again": "P27",
}


class CallFailed(Exception):
    """The server answered with an error frame. The session goes on, unless it was a refusal.

    Attributes:
        code: its code.
        data: the frame's data.
    """

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data
        self.code = str(data.get("code"))
        super().__init__(f"{self.code}: {data.get('message')}")


class SessionLost(Exception):
    """The session is gone, and with it the episode. Only `reset` goes on."""


class CallTimeout(Exception):
    """The caller's time was over."""


def address(url: str) -> str:
    """The address of the route, from the server's."""
    return "ws" + url.rstrip("/").removeprefix("http") + "/ws"


def encode(frame: Mapping[str, Any]) -> str:
    return json.dumps(frame, separators=(",", ":"), ensure_ascii=False)


class PlainClient:
    """One session at a time.

    Args:
        url: the server's, as ``http://127.0.0.1:8000``.
        bug: a clause to break; see `BUGS`.
    """

    def __init__(self, url: str, bug: str = "") -> None:
        self.url = address(url)
        self.bug = bug
        self.ws: ClientConnection | None = None
        self.reader: asyncio.Task[None] | None = None
        self.turn = asyncio.Lock()
        self.waiting: list[asyncio.Future[Data]] = []
        self.reset_begun = False
        self.ready = False
        self.refusal: CallFailed | None = None

    async def reset(self, data: Data | None = None, timeout_s: float | None = CALL_S) -> Data:
        """Begin an episode, in a new session if there is none."""
        return await self.call("reset", data or {}, timeout_s)

    async def step(self, action: Data, timeout_s: float | None = CALL_S) -> Data:
        """Act."""
        return await self.call("step", action, timeout_s)

    async def state(self, timeout_s: float | None = CALL_S) -> Data:
        """Look, without acting."""
        return await self.call("state", None, timeout_s)

    async def close(self) -> None:
        """P15: say close, and wait a moment for the server's end of the socket."""
        ws, self.ws = self.ws, None
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
            CallTimeout: the time was over. The session is gone if the call had been sent.
        """
        try:
            async with asyncio.timeout(timeout_s):
                if self.bug == "two-calls-at-once":
                    return await self.exchange(kind, data)
                async with self.turn:
                    return await self.exchange(kind, data)
        except TimeoutError:
            raise CallTimeout(f"no answer to {kind} within {timeout_s} s") from None

    async def exchange(self, kind: str, data: Data | None) -> Data:
        """Send a request in the right session, and wait for its answer."""
        if kind == "reset":
            self.reset_begun = True
            self.ready = False
            if self.bug == "socket-for-each-reset" and self.ws is not None:
                self.lose(self.ws)
            if self.bug == "full-for-ever" and self.refusal is not None:
                raise self.refusal
        elif self.reset_begun and not self.ready and self.bug != "silent-reconnect":
            raise SessionLost("the session is gone: call reset()")  # P25
        ws = self.ws or await self.dial()
        answered: asyncio.Future[Data] = asyncio.get_running_loop().create_future()
        self.waiting.append(answered)
        request = self.request(kind, data)
        try:
            await ws.send(request.encode() if self.bug == "binary-frames" else request)
            reply = await answered
        except (ConnectionClosed, asyncio.CancelledError) as error:
            if self.bug == "late-answer" and isinstance(error, asyncio.CancelledError):
                self.waiting.remove(answered)
                raise
            self.lose(ws)  # P26: its answer may still come, and must not answer another call
            if self.bug == "sends-again" and kind == "step" and isinstance(error, ConnectionClosed):
                return await self.again(kind, data)
            if isinstance(error, ConnectionClosed):
                raise self.refusal or SessionLost("the connection broke; the call may have been applied") from error
            raise
        except SessionLost:
            if self.bug == "sends-again" and kind == "step":
                return await self.again(kind, data)
            raise
        if reply["type"] == "error":
            if self.bug == "error-ends-session":
                self.lose(ws)
            raise CallFailed(reply["data"])
        if reply["type"] != REPLY_TYPE[kind]:
            self.lose(ws)
            raise SessionLost(f"{kind} was answered by '{reply['type']}'")
        self.ready = self.ready or kind == "reset"
        answer: Data = reply["data"]
        return answer

    async def again(self, kind: str, data: Data | None) -> Data:
        """What the bug ``sends-again`` does: the same step on a new session."""
        self.reset_begun = False
        return await self.exchange(kind, data)

    def request(self, kind: str, data: Data | None) -> str:
        """P4, P7, P8, P9: a step's data is the action itself, a state has none."""
        frame: Data = {"type": kind}
        if data is not None:
            frame["data"] = data
        if self.bug == "nests-action" and kind == "step":
            frame["data"] = {"action": data}
        if self.bug == "reset-with-null" and kind == "reset":
            frame["data"] = None
        if self.bug == "request-ids":
            frame["request_id"] = "r1"
        return encode(frame)

    # ---------------------------------------------------------------- the socket

    async def dial(self) -> ClientConnection:
        """Open a session: in this dialect, a socket is one."""
        try:
            ws = await connect(self.url, compression=None, max_size=MAX_REPLY_BYTES, proxy=None, close_timeout=1)
        except (OSError, WebSocketException) as error:
            raise SessionLost(f"cannot connect: {error}") from error
        self.ws, self.refusal = ws, None
        self.reader = asyncio.create_task(self.read(ws))
        return ws

    async def read(self, ws: ClientConnection) -> None:
        """Read all the time: a frame that nobody asked for, and an end, are noticed at once."""
        try:
            async for raw in ws:
                self.received(ws, json.loads(raw))
                if ws is not self.ws:
                    return
        except (ConnectionClosed, ValueError):
            pass
        self.lose(ws)

    def received(self, ws: ClientConnection, frame: Data) -> None:
        if frame.get("type") == "error" and frame["data"].get("code") in REFUSALS:
            self.refusal = CallFailed(frame["data"])  # P17: this socket is of no further use
        elif self.waiting:
            return self.waiting.pop(0).set_result(frame)
        return None if self.bug == "late-answer" else self.lose(ws)

    def lose(self, ws: ClientConnection) -> None:
        """The session is over; whoever waits is told."""
        if ws is not self.ws:
            return
        self.ws = None
        self.ready = False
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            if not one.done():
                one.set_exception(self.refusal or SessionLost("the connection broke; the call may have been applied"))
        ws.transport.abort()


# ---------------------------------------------------------------- a driver for `openenv conformance client`


class Client(Protocol):
    """What the driver drives."""

    async def call(self, kind: str, data: Data | None, timeout_s: float | None) -> Data:
        """Reset, step or state."""

    async def close(self) -> None:
        """End the session."""


def next_of(result: Data) -> Data:
    """What a result says to do next."""
    found = result.get("next") or result.get("observation", {}).get("next")
    return found if isinstance(found, dict) else {}


async def make(client: Client, todo: Data) -> Data:
    """Make a call. If it raises, do what it says for that; else make it once more, without its time limit."""
    await asyncio.sleep(todo.get("wait_s", 0))
    data = {"step": todo.get("action"), "reset": todo.get("data") or {}}.get(todo["call"])
    try:
        return await client.call(todo["call"], data, todo.get("timeout_s", CALL_S))
    except Exception:  # whatever it is, the driver goes on
        if "else" in todo:
            return await make(client, todo["else"])
        again = {**data, "retry": True} if data is not None and todo["call"] == "step" else data
        return await client.call(todo["call"], again, CALL_S)


async def begin(client: Client) -> Data:
    """Reset, again and again."""
    for _ in range(100):
        try:
            return await client.call("reset", {}, CALL_S)
        except Exception as error:  # whatever it is, the driver goes on
            failed = error
            await asyncio.sleep(0.1)
    raise failed


async def drive(client: Client) -> int:
    """Do what the answers say, until they say close."""
    result = await begin(client)
    while todo := next_of(result):
        if todo["call"] == "close":
            await asyncio.sleep(todo.get("wait_s", 0))
            await client.close()
            return 0
        if todo["call"] == "together":
            made = await asyncio.gather(*(make(client, one) for one in todo["calls"]), return_exceptions=True)
            good = [one for one in made if isinstance(one, dict) and next_of(one)]
            result = good[0] if good else await begin(client)
            continue
        try:
            result = await make(client, todo)
        except Exception:  # whatever it is, the driver goes on
            result = await begin(client)
    sys.stderr.write("the last result does not say what to do next\n")
    return 1


def parser(text: str, bugs: Mapping[str, str]) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=text)
    made.add_argument("url", nargs="?", default=os.environ.get("OPENENV_URL", "http://127.0.0.1:8000"))
    made.add_argument("--bug", default="", choices=["", *bugs], metavar="NAME", help="break a clause on purpose")
    made.add_argument("--list-bugs", action="store_true", help="print each bug and its clause")
    return made


def list_bugs(bugs: Mapping[str, str]) -> int:
    sys.stdout.write("".join(f"{name} {clause}\n" for name, clause in bugs.items()))
    return 0


def main() -> int:
    options = parser("A client of the plain dialect that plays what the answers tell it to.", BUGS).parse_args()
    if options.list_bugs:
        return list_bugs(BUGS)
    return asyncio.run(drive(PlainClient(options.url, options.bug)))


if __name__ == "__main__":
    sys.exit(main())
