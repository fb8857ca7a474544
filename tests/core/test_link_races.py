"""The link, when a caller gives up in the very moment in which something else happens."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from openenv.core.exceptions import OpenEnvError, SessionLostError
from openenv.core.link import EnvLink
from openenv.core.session.client import ClientMachine
from openenv.core.session.events import Drop, Event, Op
from openenv.core.session.states import State
from openenv.core.transport.memory import MemoryTransport, memory_pair
from openenv.core.wire.frames import Request
from openenv.core.wire.json_codec import encode

RESET = encode({"type": "reset", "data": {}})
STEP = encode({"type": "step", "data": {}})
OBSERVATION = encode({"type": "observation", "data": {"observation": {}, "reward": None, "done": False}})


async def opened() -> tuple[EnvLink, MemoryTransport]:
    """A link whose reset was answered, and the server's end of its connection."""
    ours, theirs = memory_pair()

    async def connector() -> MemoryTransport:
        return ours

    link = EnvLink(ClientMachine(), connector)
    reset = asyncio.create_task(call(link, Op.RESET, RESET))
    await theirs.receive()
    await theirs.send(OBSERVATION)
    await reset
    return link, theirs


def call(link: EnvLink, op: Op, frame: bytes, timeout_s: float | None = None):
    return link.call(op, Request(frame), timeout_s=timeout_s, setting="timeout_s", connect_timeout_s=timeout_s)


EVENTS = ["cancel", "drop", "answer", "close"]


@pytest.mark.parametrize(
    "order", [pair for pair in itertools.permutations(EVENTS, 2) if "cancel" in pair], ids="+".join
)
@pytest.mark.parametrize("turns", range(5))
async def test_a_cancel_beside_another_event_leaves_a_verdict(order: tuple[str, str], turns: int) -> None:
    link, server = await opened()
    step = asyncio.create_task(call(link, Op.STEP, STEP))
    await server.receive()
    happen = {
        "cancel": step.cancel,
        "drop": lambda: server.drop(Drop(detail="cut")),
        "answer": lambda: server.peer._frames.put_nowait(OBSERVATION),
        "close": lambda: link._feed(Event.CLOSE),
    }
    happen[order[0]]()
    for _ in range(turns):
        await asyncio.sleep(0)
    happen[order[1]]()
    try:
        await step
    except asyncio.CancelledError:
        assert link.machine.state in (State.LOST, State.CLOSED), (
            "the answer was seen by nobody, and the session went on"
        )
    except OpenEnvError:
        assert link.machine.state in (State.LOST, State.CLOSED)
    if link.machine.state is State.LOST:
        with pytest.raises(SessionLostError):
            await call(link, Op.STEP, STEP)


async def test_both_clocks_of_a_connect_at_once() -> None:
    async def never() -> MemoryTransport:
        await asyncio.Event().wait()
        raise AssertionError

    for _ in range(10):
        link = EnvLink(ClientMachine(url="ws://nowhere"), never)
        with pytest.raises(OpenEnvError) as failed:
            await call(link, Op.CONNECT, b"", timeout_s=0.01)
        assert str(failed.value)
        assert link.machine.state is State.NEW


@pytest.mark.parametrize("delay", [0.0198, 0.0199, 0.02, 0.0201, 0.0202])
async def test_a_drop_at_the_deadline(delay: float) -> None:
    for _ in range(10):
        link, server = await opened()
        step = asyncio.create_task(call(link, Op.STEP, STEP, timeout_s=0.02))
        await server.receive()
        asyncio.get_running_loop().call_later(delay, server.drop, Drop(detail="cut"))
        with pytest.raises(OpenEnvError):
            await step
        assert link.machine.state is State.LOST


async def test_a_reply_that_our_own_code_stumbles_over_loses_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    link, server = await opened()

    def stumble(reply: object) -> None:
        raise TypeError("a bug")

    monkeypatch.setattr("openenv.core.session.client.error_from_frame", stumble)
    step = asyncio.create_task(call(link, Op.STEP, STEP))
    await server.receive()
    await server.send(encode({"type": "error", "data": {"message": "odd", "code": "X"}}))
    with pytest.raises(SessionLostError, match="a bug"):
        await step
