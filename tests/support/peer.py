"""A scripted peer behind the in-memory transport: a test says what the server does, frame by frame."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from openenv.core.exceptions import ConnectError
from openenv.core.session.backoff import Backoff
from openenv.core.session.client import ClientMachine
from openenv.core.session.events import DialFailure, Drop
from openenv.core.transport.base import DialError, TransportClosed
from openenv.core.transport.memory import MemoryTransport, memory_pair


class Connection:
    """The server's end of one connection."""

    def __init__(self, end: MemoryTransport) -> None:
        self.end = end

    async def take(self) -> dict[str, Any]:
        """Wait for the next request."""
        return json.loads(await self.end.receive())

    async def say(self, kind: str, **data: Any) -> None:
        """Send a frame."""
        await self.raw(json.dumps({"type": kind, "data": data}).encode())

    async def raw(self, data: bytes) -> None:
        await self.end.send(data)

    async def answer(self, **observation: Any) -> dict[str, Any]:
        """Take one request and answer it as an environment would; an echo of its data is in the observation."""
        request = await self.take()
        if request["type"] == "state":
            await self.say("state", episode_id=None, step_count=0)
        else:
            await self.say("observation", observation={"echo": request["data"], **observation}, reward=1, done=False)
        return request

    def cut(self, drop: Drop | None = None) -> None:
        self.end.drop(drop or Drop(detail="cut by the test"))

    async def rest(self) -> list[dict[str, Any]]:
        """Everything the client still says before its end of the connection is gone."""
        frames = []
        try:
            while True:
                frames.append(await self.take())
        except TransportClosed:
            return frames


class Peer:
    """A server for `EnvLink`: pass `dial` as the connector, and await `accept` for each connection."""

    def __init__(self) -> None:
        self.dials = 0
        self.open = asyncio.Event()
        self.open.set()
        self.refuse = 0  # that many dials fail
        self.sending = asyncio.Event()  # clear it, and the client's sends block
        self.sending.set()
        self.send_blocked = asyncio.Event()
        self._accepted: asyncio.Queue[Connection] = asyncio.Queue()

    async def dial(self) -> MemoryTransport:
        self.dials += 1
        await self.open.wait()
        if self.refuse:
            self.refuse -= 1
            raise DialError(DialFailure(ConnectError("refused by the test")))
        client, server = memory_pair()
        plain_send = client.send

        async def send(data: bytes) -> None:
            if not self.sending.is_set():
                self.send_blocked.set()
                await self.sending.wait()
            await plain_send(data)

        client.send = send  # type: ignore[method-assign]
        self._accepted.put_nowait(Connection(server))
        return client

    async def accept(self) -> Connection:
        return await self._accepted.get()

    @property
    def waiting(self) -> int:
        """Connections that nobody has accepted."""
        return self._accepted.qsize()


def machine() -> ClientMachine:
    """A machine that does not wait long between dials."""
    return ClientMachine(backoff=Backoff(first_s=0.001, longest_s=0.002), url="memory")
