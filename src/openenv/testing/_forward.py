"""One forwarded TCP connection, and the faults that may befall it. Used by `openenv.testing.proxy`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from openenv.testing.controls import CutMode, Direction

__all__ = ["Cut", "Link", "Reader", "Rules", "end_socket", "ways"]

_CHUNK = 64 * 1024
_FLUSH_S = 1.0  # a peer that does not read what is left may hold up an orderly end this long
_LINGER_NONE = struct.pack("ii", 1, 0)  # close() then sends RST instead of FIN


class Reader(asyncio.StreamReader):
    """Gives what arrived before a connection failed, then its end; ``failure`` says how it failed."""

    failure: Exception | None = None

    def set_exception(self, exc: Exception) -> None:
        self.failure = exc
        self.feed_eof()


Stream = tuple[Reader, asyncio.StreamWriter]


def ways(direction: Direction | str) -> tuple[str, ...]:
    """``both`` as the two ways it means."""
    return ("request", "reply") if direction == "both" else (direction,)


@dataclass
class Cut:
    """A cut that waits for its bytes. ``left``: how many are still forwarded."""

    left: int
    mode: CutMode


@dataclass
class Rules:
    """What happens to bytes that go one way."""

    held: bool = False
    delay_s: float = 0.0
    cut: Cut | None = None


@dataclass
class Shared:
    """What the links of a proxy have in common.

    Attributes:
        rules: those of new connections; the cuts in them are for whichever connection comes first.
        passed: bytes forwarded, each way.
        cuts: connections that were cut.
        news: called after every change.
    """

    rules: dict[str, Rules] = field(default_factory=lambda: {way: Rules() for way in ways("both")})
    passed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ways("both"), 0))
    cuts: int = 0
    news: Callable[[], None] = lambda: None


class _CutHere(Exception):
    """The bytes that a cut waited for have come."""


class Link:
    """The client's socket, the server's, and a pump each way.

    Args:
        number: of the connection.
        client: the accepted socket.
        server: the dialled one.
        shared: see there.
    """

    def __init__(self, number: int, client: Stream, server: Stream, shared: Shared) -> None:
        self.number = number
        self.rules = {way: Rules(rules.held, rules.delay_s) for way, rules in shared.rules.items()}
        self.held = dict.fromkeys(ways("both"), 0)
        self._client = client
        self._server = server
        self._shared = shared
        self._changed = asyncio.Event()
        self._pumps: list[asyncio.Task[None]] = []
        self._mode: CutMode = "fin"
        self._closed = asyncio.Event()

    async def run(self) -> None:
        """Forward both ways until both sides have ended, one fails, or it is cut."""
        self._pumps = [
            asyncio.create_task(self._pump("request", self._client[0], self._server[1])),
            asyncio.create_task(self._pump("reply", self._server[0], self._client[1])),
        ]
        try:
            _, pending = await asyncio.wait(self._pumps, return_when=asyncio.FIRST_EXCEPTION)
            for pump in pending:
                pump.cancel()
            results = await asyncio.gather(*self._pumps, return_exceptions=True)
            if any(isinstance(result, OSError) for result in results):
                self._mode = "rst"  # one side was reset, so is the other
        finally:
            for _, writer in (self._client, self._server):
                end_socket(writer, self._mode)
            for _, writer in (self._client, self._server):
                await _ended(writer)
            self._closed.set()

    async def cut(self, mode: CutMode) -> None:
        """End both sides, and wait until their sockets are closed."""
        self._note_cut(mode)
        for pump in self._pumps:
            pump.cancel()
        if mode == "rst":
            for _, writer in (self._client, self._server):
                end_socket(writer, mode)
        await self._closed.wait()

    def rules_changed(self) -> None:
        """Let what waits look at the rules again."""
        self._changed.set()

    def _note_cut(self, mode: CutMode) -> None:
        self._mode = mode
        self._shared.cuts += 1

    async def _pump(self, way: str, source: Reader, sink: asyncio.StreamWriter) -> None:
        rules = self.rules[way]
        while True:
            data = await source.read(_CHUNK)
            if rules.delay_s:
                await asyncio.sleep(rules.delay_s)
            await self._wait_for_release(way, len(data) or 1)
            if not data:
                if source.failure is not None:
                    raise source.failure
                sink.write_eof()
                return
            await self._forward(way, data, sink)

    async def _wait_for_release(self, way: str, count: int) -> None:
        if not self.rules[way].held:
            return
        self.held[way] += count
        self._shared.news()
        try:
            while self.rules[way].held:
                self._changed.clear()
                await self._changed.wait()
        finally:
            self.held[way] -= count

    async def _forward(self, way: str, data: bytes, sink: asyncio.StreamWriter) -> None:
        for rules in (self.rules[way], self._shared.rules[way]):
            cut = rules.cut
            if cut is None:
                continue
            if cut.left <= len(data):
                rules.cut = None
                data = data[: cut.left]
                self._note_cut(cut.mode)
                await self._write(way, data, sink)
                raise _CutHere
            cut.left -= len(data)
        await self._write(way, data, sink)

    async def _write(self, way: str, data: bytes, sink: asyncio.StreamWriter) -> None:
        if data:
            sink.write(data)
            await sink.drain()
        self._shared.passed[way] += len(data)
        self._shared.news()


def end_socket(writer: asyncio.StreamWriter, mode: CutMode) -> None:
    """Reset a connection, or close it in order."""
    if mode == "rst":
        with contextlib.suppress(OSError):  # already closed by the peer
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
        writer.transport.abort()
    else:
        writer.close()


async def _ended(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):  # how it ended does not matter here
        try:
            await asyncio.wait_for(writer.wait_closed(), _FLUSH_S)
        except TimeoutError:
            writer.transport.abort()
