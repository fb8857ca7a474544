"""Two sockets of one session in the same instant, which no network can be made to show."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from fastapi import WebSocket

from openenv.core.env_server.channel import Channel
from openenv.core.env_server.frames import FrameReader
from openenv.core.env_server.sessions import SessionManager, Setup
from openenv.core.env_server.tools import Tools
from openenv.core.env_server.v1_options import V1Options
from openenv.core.env_server.ws_v1 import V1Server
from support.envs import CountAction, CountEnv
from support.v1 import ALL


class FakeSocket:
    """A WebSocket as an ASGI application sees it; what it sends is read by the test."""

    def __init__(self, server: V1Server) -> None:
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.outgoing: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.close_code: int | None = None
        self.task = asyncio.create_task(server.serve(cast(WebSocket, self)))

    async def accept(self, subprotocol: str) -> None:
        assert subprotocol == "openenv.v1"

    async def receive(self) -> dict[str, Any]:
        return await self.incoming.get()

    async def send_text(self, text: str) -> None:
        self.outgoing.put_nowait(json.loads(text))

    async def close(self, code: int, reason: str) -> None:
        self.close_code = code

    def feed(self, frame: dict[str, Any]) -> None:
        self.incoming.put_nowait({"type": "websocket.receive", "text": json.dumps(frame)})

    def drop(self) -> None:
        self.incoming.put_nowait({"type": "websocket.disconnect", "code": 1006})

    async def read(self) -> dict[str, Any]:
        async with asyncio.timeout(20):
            return await self.outgoing.get()


@pytest.fixture
async def server(env: type[CountEnv]) -> AsyncIterator[V1Server]:
    manager = SessionManager(Setup(env, "CountEnv"), max_sessions=2)
    manager.start()
    yield V1Server(manager, FrameReader(CountAction, Tools(CountAction)), V1Options(), None)
    env.release.set()
    await manager.drain()


async def opened(server: V1Server) -> tuple[FakeSocket, dict[str, Any]]:
    one = FakeSocket(server)
    epoch = (await one.read())["data"]["epoch"]
    one.feed({"type": "open", "data": {"uses": ALL}})
    lease = {**(await one.read())["data"], "epoch": epoch}
    one.feed(step(1))
    assert (await one.read())["seq"] == 1
    return one, lease


def step(seq: int, op: str = "inc", **more: Any) -> dict[str, Any]:
    return {"type": "step", "seq": seq, "data": {"op": op, **more}}


async def resumed(server: V1Server, lease: dict[str, Any], attempt: int = 1) -> FakeSocket:
    other = FakeSocket(server)
    await other.read()
    other.feed({"type": "resume", "data": {**lease, "last_reply": 1, "attempt": attempt}})
    return other


@pytest.mark.parametrize("late", [{"type": "close"}, {"type": "cancel", "seq": 2}, step(2), {"type": "junk"}])
async def test_what_the_older_socket_still_says_is_not_heard(
    server: V1Server, env: type[CountEnv], late: dict[str, Any]
) -> None:
    one, lease = await opened(server)
    channel = server.channels.find(lease["session"])
    assert isinstance(channel, Channel)
    before = channel.peer
    other = await resumed(server, lease)
    while channel.peer is before:
        await asyncio.sleep(0)
    one.feed(late)  # after the takeover, before its task was told
    token = (await other.read())["data"]["token"]
    await one.task
    assert one.close_code == 4000
    again = await resumed(server, lease, attempt=2)  # the old token: the new one was not heard of on its socket
    answer = await again.read()
    assert answer["type"] == "resumed"
    assert answer["data"]["token"] != token
    assert answer["data"]["last_seq"] == 1
    again.feed(step(2))
    assert (await again.read())["data"]["observation"]["count"] == 2
    assert len(env.log.of("step")) == 2


async def test_a_frame_that_was_read_and_not_started_is_dropped_with_its_socket(
    server: V1Server, env: type[CountEnv]
) -> None:
    one, lease = await opened(server)
    one.feed(step(2, "echo", arg="x" * 100_000))  # large: it is decoded beside the loop
    await asyncio.sleep(0)
    other = await resumed(server, lease)
    answer = await other.read()
    await one.task
    if answer["data"]["last_seq"] == 1:  # not started: it is for its client to send it again
        other.feed(step(2, "echo", arg="x" * 100_000))
    assert (await other.read())["seq"] == 2
    assert len(env.log.of("step")) == 2


async def test_a_reply_goes_to_the_socket_that_is_attached_when_it_is_ready(
    server: V1Server, env: type[CountEnv]
) -> None:
    one, lease = await opened(server)
    one.feed(step(2, "sleep", arg=20))
    await asyncio.to_thread(env.log.wait_for, "step", 2)
    other = await resumed(server, lease)
    assert (await other.read())["data"] | {"token": ""} == {"token": "", "last_seq": 2, "running": True}
    env.release.set()
    assert (await other.read())["seq"] == 2
    await one.task
    assert one.outgoing.empty()


async def test_a_socket_that_cannot_be_written_to_loses_no_reply(server: V1Server, env: type[CountEnv]) -> None:
    one, lease = await opened(server)

    async def broken(text: str) -> None:
        raise RuntimeError("the peer is gone")

    one.send_text = broken  # type: ignore[method-assign]
    one.feed(step(2))
    await one.task
    other = await resumed(server, lease)
    assert (await other.read())["data"]["last_seq"] == 2
    assert (await other.read())["seq"] == 2
    assert len(env.log.of("step")) == 2
