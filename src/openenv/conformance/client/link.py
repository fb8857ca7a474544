"""One socket of the scripted server: what a scenario reads from it and writes to it."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from openenv.conformance.client.sessions import CALLS, Call, Fault, Session, read_call, read_object

if TYPE_CHECKING:
    from openenv.conformance.client.stage import Stage

__all__ = ["Link", "observation", "step"]

Frame = dict[str, Any]
_SOON_S = 0.1


def step(op: str = "inc", **more: Any) -> Frame:
    """A ``next`` that asks for a step; keyword arguments beside ``arg`` are for the driver."""
    action = {"op": op, "arg": more.pop("arg", None)}
    return {"call": "step", "action": action, **more}


def observation(following: Mapping[str, Any], *, done: bool = False) -> Frame:
    """The data of an observation that tells what to do next."""
    seen = {"env": "conformance", "count": 0, "echo": None, "next": following}
    return {"observation": seen, "reward": 1.0, "done": done}


class Link:
    """A connection of the client under test.

    Attributes:
        session: what it is attached to.
        path: of the request.
        offers: the subprotocols that the client offered.
        releases: sessions and tokens that were released on it.
    """

    def __init__(self, stage: Stage, ws: ServerConnection) -> None:
        self._stage = stage
        self._ws = ws
        self.session = Session(plain=True)
        self.releases: list[tuple[str, str]] = []
        request = ws.request
        assert request is not None, "the handshake is over"
        self.path = request.path
        self.headers = dict(request.headers.raw_items())
        offered = request.headers.get_all("Sec-WebSocket-Protocol")
        self.offers = [one.strip() for line in offered for one in line.split(",")]
        self._inbox: deque[str | bytes | None] = deque()
        self._came = asyncio.Event()
        self._reader = asyncio.create_task(self._read())

    @property
    def subprotocol(self) -> str | None:
        return self._ws.subprotocol

    async def _read(self) -> None:
        try:
            async for raw in self._ws:
                self._put(raw)
        except ConnectionClosed:
            pass  # told by the None
        finally:
            self._put(None)

    def _put(self, raw: str | bytes | None) -> None:
        self._inbox.append(raw)
        self._came.set()

    # ------------------------------------------------------------ reading

    async def next(self) -> str | bytes | None:
        """What comes next; None for the end of the socket."""
        while not self._inbox:
            self._came.clear()
            await self._came.wait()
        return self._inbox.popleft() if self._inbox[0] is not None else None

    async def frame(self, what: str) -> tuple[str, Frame]:
        """Read one frame.

        Raises:
            Fault: none comes, or it is none.
        """
        raw = await self._stage.bounded(self.next(), f"{what} did not come")
        if raw is None:
            raise self._stage.fault("closed", f"the client closed its socket, where {what} was due")
        frame = read_object(raw)
        assert isinstance(raw, str), "read_object takes text alone"
        return raw, frame

    async def call(self, *kinds: str, again: bool = False) -> Call:
        """Read a request.

        Args:
            kinds: what it may be; empty for any.
            again: it is one that came before, so its number is not new.
        """
        what = f"a {' or '.join(kinds or CALLS)}"
        raw, _ = await self.frame(what)
        call = self.taken(raw, again=again)
        if kinds and call.kind not in kinds:
            raise self._stage.fault("unexpected-call", f"a {call.kind} came where {what} was due: {raw[:200]}")
        return call

    def taken(self, raw: str | bytes, *, again: bool = False) -> Call:
        """Take a frame that must be a request."""
        frame = read_object(raw)
        if frame["type"] not in CALLS:
            raise self._stage.fault("unexpected-frame", f"{str(raw)[:200]} came where a call was due")
        call = read_call(str(raw), frame)
        if not again:
            self.session.take(call, self._stage.told)
        return call

    async def quiet(self, seconds: float, clause: str, name: str, when: str) -> None:
        """See that nothing comes for a while; the end of the socket is nothing."""
        try:
            async with asyncio.timeout(seconds):
                raw = await self.next()
        except TimeoutError:
            return
        if raw is None:  # the end of the socket is for the next reading to tell
            return
        raise Fault(clause, name, f"the client sent {str(raw)[:200]} {when}")

    async def gone(self, what: str = "the end of the socket") -> None:
        """Wait until the client has ended its socket; frames before that are passed over."""
        while await self._stage.bounded(self.next(), f"{what} did not come") is not None:
            pass

    # ------------------------------------------------------------ writing

    async def send(self, frame: Mapping[str, Any] | str) -> None:
        """Write one frame; a client that is gone is found out by the next reading."""
        try:
            await self._ws.send(frame if isinstance(frame, str) else json.dumps(frame))
        except ConnectionClosed:
            pass

    def _numbered(self, seq: int | None) -> Frame:
        return {} if seq is None else {"seq": seq}

    async def reply(self, call: Call, following: Mapping[str, Any], *, done: bool = False) -> None:
        """Answer a request, and tell what to do next."""
        await self.alone()
        await self.send(self.answer(call, following, done=done))
        self.session.last_reply = self.session.last_seq

    def answer(self, call: Call, following: Mapping[str, Any], *, done: bool = False) -> str:
        """The text of an answer."""
        if call.kind == "state":
            return json.dumps(
                {"type": "state", **self._numbered(call.seq), "data": {"step_count": 0, "next": following}}
            )
        data = observation(following, done=done)
        if not self.session.plain:
            data |= {"terminated": done, "truncated": False}
        return json.dumps({"type": "observation", **self._numbered(call.seq), "data": data})

    async def error(self, call: Call, code: str, message: str = "told by the scenario", **more: Any) -> None:
        """Answer a request by an error."""
        data = {"message": message, "code": code, **more}
        await self.send({"type": "error", **self._numbered(call.seq), "data": data})
        self.session.last_reply = self.session.last_seq

    async def alone(self, seconds: float = 0.0) -> None:
        """See that no second request came while one is unanswered."""
        await asyncio.sleep(seconds)
        raw = self._inbox[0] if self._inbox else None
        if raw is not None and read_object(raw)["type"] in CALLS:
            clause = "P24" if self.session.plain else "E12"
            raise Fault(clause, "two-in-flight", f"a request came while another was unanswered: {str(raw)[:200]}")

    # ------------------------------------------------------------ ending

    async def cut(self, after_s: float = _SOON_S) -> None:
        """Reset the connection, when what was written has had time to arrive."""
        await asyncio.sleep(after_s)
        transport = self._ws.transport
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:  # the client may have left meanwhile
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the socket."""
        try:
            async with asyncio.timeout(self._stage.timeout_s):
                await self._ws.close(code, reason)
        except TimeoutError:
            self._ws.transport.abort()

    def drop(self) -> None:
        """Be done with it."""
        self._reader.cancel()
        self._ws.transport.abort()
