"""`EnvLink` at the moments when a reply and a caller's change of mind meet. In memory: the order of events counts."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from openenv.core.exceptions import LateResultError
from openenv.core.link import EnvLink
from openenv.core.session.client import ClientMachine
from openenv.core.session.events import Op
from openenv.core.session.features import Feature
from openenv.core.transport.memory import MemoryTransport, memory_pair
from openenv.core.wire.frames import Request
from openenv.core.wire.json_codec import decode, encode
from openenv.core.wire.v1 import SUBPROTOCOL, Opened, Welcome


class Stage:
    """A link, and the server's end of its socket."""

    def __init__(self) -> None:
        near, self.server = memory_pair(SUBPROTOCOL)

        async def connect() -> MemoryTransport:
            return near

        self.link = EnvLink(ClientMachine(wants=frozenset(Feature)), connect)

    async def open(self) -> None:
        """A session whose reset has completed."""
        reset = self.call(Op.RESET)
        await self.server.send(encode(Welcome("test", tuple(Feature), "epoch").frame()))
        await self.read("open")
        await self.server.send(encode(Opened("session", "token").frame()))
        await self.read("reset")
        self.answer(1)
        await reset

    def call(self, op: Op, timeout_s: float = 30.0) -> asyncio.Task[Any]:
        frame = Request(encode({"type": op.value, "data": {}}))
        work = self.link.call(op, frame, timeout_s=timeout_s, setting="timeout_s", connect_timeout_s=30.0)
        return asyncio.create_task(work)

    async def read(self, kind: str) -> dict[str, Any]:
        async with asyncio.timeout(30):
            frame = decode(await self.server.receive())  # type: ignore[arg-type]
        assert frame["type"] == kind
        for _ in range(3):
            await asyncio.sleep(0)  # its sender waits for the answer now
        return frame

    def answer(self, seq: int) -> None:
        """Put a reply before the client's reader, which has not run when this returns."""
        self.server.peer._frames.put_nowait(encode({"type": "observation", "seq": seq, "data": {"n": seq}}))

    async def abandoned_step(self) -> None:
        step = self.call(Op.STEP)
        await self.read("step")
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        await self.read("cancel")


@pytest.fixture
async def stage() -> Stage:
    stage = Stage()
    await stage.open()
    return stage


async def test_a_call_that_waited_is_sent_when_the_one_before_it_was_not_applied(stage: Stage) -> None:
    await stage.abandoned_step()
    step = stage.call(Op.STEP)
    await asyncio.sleep(0)
    cancelled = {"code": "CANCELLED", "message": "in time", "applied": False}
    await stage.server.send(encode({"type": "error", "seq": 2, "data": cancelled}))
    assert (await stage.read("step"))["seq"] == 3
    stage.answer(3)
    assert (await step).data == {"n": 3}
    await stage.link.close()


async def test_a_reply_that_comes_after_the_cancellation_and_before_its_task_runs_is_kept(stage: Stage) -> None:
    step = stage.call(Op.STEP)
    await stage.read("step")
    stage.answer(2)  # the reader wakes first ...
    step.cancel()  # ... and the caller's future is cancelled already
    with pytest.raises(asyncio.CancelledError):
        await step
    assert (await stage.call(Op.SETTLE)).data == {"n": 2}
    await stage.link.close()


async def test_a_late_result_told_to_a_cancelled_caller_is_told_again(stage: Stage) -> None:
    await stage.abandoned_step()
    waiting = stage.call(Op.STEP)
    await asyncio.sleep(0)
    stage.answer(2)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(LateResultError) as late:
        await stage.call(Op.STEP)
    assert late.value.reply.data == {"n": 2}
    await stage.link.close()
