"""The link: a client machine at work over the in-memory transport, against a scripted peer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from openenv.core.exceptions import (
    CallTimeoutError,
    CapacityError,
    ConnectError,
    OpenEnvError,
    Outcome,
    ServerError,
    SessionClosedError,
    SessionLostError,
)
from openenv.core.link import EnvLink
from openenv.core.session.events import Drop, Op
from openenv.core.session.states import State
from openenv.core.wire.frames import Request
from openenv.core.wire.json_codec import encode
from openenv.core.wire.messages import Reply
from support.peer import Connection, Peer, machine

SHORT = 0.05
GENEROUS = 30.0


class Client:
    """A link with short ways to call it."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.machine = machine()
        self.link = EnvLink(self.machine, peer.dial)

    async def call(self, op: Op, timeout_s: float | None = GENEROUS, connect_s: float | None = GENEROUS, **data: Any):
        frame = Request(b"" if op is Op.CONNECT else encode({"type": op.kind.value, "data": data}))
        return await self.link.call(
            op, frame, timeout_s=timeout_s, setting=f"{op}_timeout_s", connect_timeout_s=connect_s
        )

    def soon(self, op: Op, **options: Any) -> asyncio.Task[Reply | None]:
        return asyncio.create_task(self.call(op, **options))

    async def begin(self) -> Connection:
        """Open a session and reset it."""
        reset = self.soon(Op.RESET)
        connection = await self.peer.accept()
        await connection.answer()
        await reset
        return connection


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    client = Client(Peer())
    yield client
    await client.link.close()


async def echo_of(task: asyncio.Task[Reply | None]) -> Any:
    reply = await task
    assert reply is not None
    return reply.data["observation"]["echo"]


# ------------------------------------------------------------------ order


async def test_concurrent_calls_are_served_in_order_each_with_its_own_answer(client: Client) -> None:
    connection = await client.begin()
    tasks = [client.soon(Op.STEP, mark=mark) for mark in range(8)]
    for mark in range(8):
        assert (await connection.answer())["data"] == {"mark": mark}
    assert [await echo_of(task) for task in tasks] == [{"mark": mark} for mark in range(8)]


async def test_only_one_request_is_on_the_wire_at_a_time(client: Client) -> None:
    connection = await client.begin()
    first, second = client.soon(Op.STEP, mark=1), client.soon(Op.STATE)
    assert (await connection.take())["data"] == {"mark": 1}
    await asyncio.sleep(0)
    assert connection.end._frames.empty()
    await connection.say("observation", observation={"echo": 1})
    await connection.answer()
    assert (await first).kind == "observation"
    assert (await second).kind == "state"


async def test_three_first_calls_make_one_dial(client: Client) -> None:
    client.peer.open.clear()
    tasks = [client.soon(Op.STEP, mark=mark) for mark in range(3)]
    while not client.peer.dials:
        await asyncio.sleep(0)
    client.peer.open.set()
    connection = await client.peer.accept()
    for _ in tasks:
        await connection.answer()
    assert [(await echo_of(task))["mark"] for task in tasks] == [0, 1, 2]
    assert (client.peer.dials, client.peer.waiting) == (1, 0)


# ------------------------------------------------------------------ time


async def test_the_time_covers_waiting_for_a_turn(client: Client) -> None:
    connection = await client.begin()
    first = client.soon(Op.STEP, mark=1)
    await connection.take()
    with pytest.raises(CallTimeoutError, match="earlier call") as caught:
        await client.call(Op.STEP, timeout_s=SHORT, mark=2)
    assert caught.value.outcome is Outcome.NOT_APPLIED
    await connection.say("observation", observation={"echo": "one"})
    assert await echo_of(first) == "one"
    third = client.soon(Op.STEP, mark=3)
    assert (await connection.answer())["data"] == {"mark": 3}  # the second was never sent
    assert await echo_of(third) == {"mark": 3}


async def test_the_time_covers_connecting(client: Client) -> None:
    client.peer.open.clear()
    with pytest.raises(ConnectError, match=r"within 0\.05 s \(step_timeout_s\)"):
        await client.call(Op.STEP, timeout_s=SHORT)
    assert client.machine.state is State.NEW
    with pytest.raises(ConnectError, match="connect_timeout_s"):
        await client.call(Op.STEP, connect_s=SHORT)
    client.peer.open.set()
    await client.begin()


async def test_the_time_covers_sending(client: Client) -> None:
    connection = await client.begin()
    client.peer.sending.clear()
    with pytest.raises(CallTimeoutError) as caught:
        await client.call(Op.STEP, timeout_s=SHORT)
    assert caught.value.outcome is Outcome.UNKNOWN
    assert client.machine.state is State.LOST
    assert await connection.rest() == []


async def test_the_time_covers_receiving(client: Client) -> None:
    connection = await client.begin()
    with pytest.raises(CallTimeoutError, match="step_timeout_s") as caught:
        await client.call(Op.STEP, timeout_s=SHORT, mark=1)
    assert caught.value.outcome is Outcome.UNKNOWN
    with pytest.raises(SessionLostError) as lost:
        await client.call(Op.STEP)
    assert lost.value.reason == "timeout"
    assert lost.value.outcome is Outcome.NOT_APPLIED
    assert [frame["data"] for frame in await connection.rest()] == [{"mark": 1}]


async def test_no_limit_means_none(client: Client) -> None:
    connection = await client.begin()
    step = client.soon(Op.STEP, timeout_s=None, connect_s=None)
    await connection.answer()
    assert (await step).kind == "observation"


async def test_a_failed_dial_is_tried_again_within_its_time(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    client.peer.refuse = 3
    await client.begin()
    assert client.peer.dials == 4
    assert sum("Trying again" in record.message for record in caplog.records) == 1
    client.peer.refuse = 10**9
    await client.link.close()
    with pytest.raises(ConnectError, match="refused by the test") as caught:
        await client.call(Op.RESET, connect_s=SHORT)
    assert caught.value.attempts > 1


# ------------------------------------------------------------------ cancellation


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_cancelled_in_the_queue_nothing_was_sent(client: Client) -> None:
    connection = await client.begin()
    first = client.soon(Op.STEP, mark=1)
    await connection.take()
    second, third = client.soon(Op.STEP, mark=2), client.soon(Op.STEP, mark=3)
    await asyncio.sleep(0)
    await cancelled(second)
    await connection.say("observation", observation={"echo": "one"})
    assert await echo_of(first) == "one"
    assert (await connection.answer())["data"] == {"mark": 3}
    assert await echo_of(third) == {"mark": 3}


async def test_cancelled_while_dialling_the_dial_is_dropped(client: Client) -> None:
    client.peer.open.clear()
    first = client.soon(Op.STEP, mark=1)
    while not client.peer.dials:
        await asyncio.sleep(0)
    await cancelled(first)
    assert client.machine.state is State.NEW
    client.peer.open.set()
    await client.begin()
    assert client.peer.waiting == 0


async def test_cancelled_while_sending_the_session_is_lost(client: Client) -> None:
    connection = await client.begin()
    client.peer.sending.clear()
    step = client.soon(Op.STEP, mark="blocked")
    await client.peer.send_blocked.wait()
    await cancelled(step)
    with pytest.raises(SessionLostError, match="cancelled"):
        await client.call(Op.STATE)
    client.peer.sending.set()
    assert await connection.rest() == []


async def test_cancelled_while_receiving_the_session_is_lost_and_the_late_reply_reaches_nobody(client: Client) -> None:
    connection = await client.begin()
    step = client.soon(Op.STEP, mark=1)
    await connection.take()
    await cancelled(step)
    with pytest.raises(SessionLostError) as caught:
        await client.call(Op.STEP, mark=2)
    assert caught.value.reason == "cancelled"
    with contextlib.suppress(Exception):  # the connection is gone
        await connection.say("observation", observation={"echo": "late"})
    reset = client.soon(Op.RESET, seed=7)
    following = await client.peer.accept()
    await following.answer()
    assert await echo_of(reset) == {"seed": 7}


@pytest.mark.parametrize("ticks", range(8))
async def test_reply_and_cancellation_in_the_same_moment(client: Client, ticks: int) -> None:
    connection = await client.begin()
    step = client.soon(Op.STEP, mark=1)
    await connection.take()
    connection.end.peer._frames.put_nowait(encode({"type": "observation", "data": {"observation": {"echo": "own"}}}))
    for _ in range(ticks):
        await asyncio.sleep(0)
    step.cancel()
    try:
        assert await echo_of(step) == "own"
    except asyncio.CancelledError:
        # nobody has seen what the action did: the session must not go on as if nothing had happened
        with pytest.raises(SessionLostError, match="cancelled"):
            await client.call(Op.STATE)
    else:
        following = client.soon(Op.STEP, mark=2)
        await connection.answer()
        assert await echo_of(following) == {"mark": 2}


@pytest.mark.parametrize("ticks", range(8))
async def test_error_reply_and_cancellation_in_the_same_moment(client: Client, ticks: int) -> None:
    connection = await client.begin()
    step = client.soon(Op.STEP, mark=1)
    await connection.take()
    connection.end.peer._frames.put_nowait(
        encode({"type": "error", "data": {"message": "no", "code": "VALIDATION_ERROR", "errors": []}})
    )
    for _ in range(ticks):
        await asyncio.sleep(0)
    step.cancel()
    with pytest.raises((asyncio.CancelledError, ServerError)):
        await step
    following = client.soon(Op.STEP, mark=2)
    if client.machine.state is State.OPEN:
        await connection.answer()
        assert await echo_of(following) == {"mark": 2}
    else:
        with pytest.raises(SessionLostError):
            await following


@pytest.mark.parametrize("cut", [False, True])
async def test_a_cancelled_state_read_after_its_reply_costs_nothing(client: Client, cut: bool) -> None:
    connection = await client.begin()
    state = client.soon(Op.STATE)
    await connection.answer()
    if cut:
        connection.cut()
    state.cancel()
    with contextlib.suppress(asyncio.CancelledError, OpenEnvError):
        await state


# ------------------------------------------------------------------ closing


async def test_close_ends_the_call_in_flight_without_waiting_for_it(client: Client) -> None:
    connection = await client.begin()
    step = client.soon(Op.STEP, mark=1)
    queued = client.soon(Op.STEP, mark=2)
    await connection.take()
    await client.link.close()
    with pytest.raises(SessionClosedError) as caught:
        await step
    assert caught.value.outcome is Outcome.UNKNOWN
    with pytest.raises(SessionClosedError) as caught:
        await queued
    assert caught.value.outcome is Outcome.NOT_APPLIED
    assert await connection.rest() == [{"type": "close"}]


async def test_close_ends_a_dial(client: Client) -> None:
    client.peer.open.clear()
    reset = client.soon(Op.RESET)
    while not client.peer.dials:
        await asyncio.sleep(0)
    await client.link.close()
    with pytest.raises(SessionClosedError) as caught:
        await reset
    assert caught.value.outcome is Outcome.NOT_APPLIED
    client.peer.open.set()
    assert client.peer.waiting == 0


async def test_a_reset_queued_before_close_does_not_reopen_the_client(client: Client) -> None:
    connection = await client.begin()
    step, queued = client.soon(Op.STEP), client.soon(Op.RESET)
    await connection.take()
    await client.link.close()
    for task in (step, queued):
        with pytest.raises(SessionClosedError):
            await task
    assert (client.peer.dials, client.machine.state) == (1, State.CLOSED)
    await client.begin()  # a new one does


# ------------------------------------------------------------------ frames that fit nothing


@pytest.mark.parametrize(
    "frame",
    [
        b'{"type":"state","data":{}}',
        b'{"type":"mcp","data":{}}',
        b'{"type":"observation"}',
        b'{"type":"observation","data":[]}',
        b'{"data":{}}',
        b"[]",
        b"not json",
        b"",
        b"[" * 1000,
    ],
)
async def test_a_frame_that_does_not_fit_loses_the_session(client: Client, frame: bytes) -> None:
    connection = await client.begin()
    step = client.soon(Op.STEP, mark=1)
    await connection.take()
    await connection.raw(frame)
    with pytest.raises(SessionLostError) as caught:
        await step
    assert (caught.value.reason, caught.value.outcome) == ("protocol", Outcome.UNKNOWN)
    with pytest.raises(SessionLostError):
        await client.call(Op.STATE)
    await client.begin()


async def test_a_frame_that_nobody_asked_for_is_not_the_next_answer(client: Client) -> None:
    connection = await client.begin()
    await connection.say("observation", observation={"echo": "stale"})
    while client.machine.state is State.OPEN:
        await asyncio.sleep(0)
    with pytest.raises(SessionLostError, match="no call had asked for"):
        await client.call(Op.STEP)
    await client.begin()


async def test_a_second_answer_is_not_the_next_answer(client: Client) -> None:
    connection = await client.begin()
    step = client.soon(Op.STEP, mark=1)
    await connection.take()
    for echo in ("own", "twice"):
        connection.end.peer._frames.put_nowait(encode({"type": "observation", "data": {"observation": {"echo": echo}}}))
    assert await echo_of(step) == "own"
    with pytest.raises(SessionLostError, match="protocol"):
        await client.call(Op.STEP, mark=2)


# ------------------------------------------------------------------ losing


async def test_a_step_in_flight_is_lost_and_stays_so_until_a_reset(client: Client) -> None:
    connection = await client.begin()
    step = client.soon(Op.STEP, mark=1)
    await connection.take()
    connection.cut(Drop(1012, "restart", "the server closed the connection (restart)"))
    with pytest.raises(SessionLostError) as caught:
        await step
    assert (caught.value.reason, caught.value.close_code, caught.value.close_reason) == (
        "server_restart",
        1012,
        "restart",
    )
    assert caught.value.outcome is Outcome.UNKNOWN
    for op in (Op.STEP, Op.STATE, Op.STEP):
        with pytest.raises(SessionLostError) as caught:
            await client.call(op)
        assert caught.value.outcome is Outcome.NOT_APPLIED
    await client.call(Op.CONNECT)
    with pytest.raises(SessionLostError):
        await client.call(Op.STEP)
    following = await client.peer.accept()
    reset = client.soon(Op.RESET)
    await following.answer()
    await reset
    assert client.peer.dials == 2


async def test_calls_that_waited_behind_the_lost_one_are_not_sent_in_the_next_session(client: Client) -> None:
    connection = await client.begin()
    step, behind, reset, after = (client.soon(op) for op in (Op.STEP, Op.STEP, Op.RESET, Op.STEP))
    await connection.take()
    connection.cut()
    following = await client.peer.accept()
    await following.answer()
    assert (await reset).kind == "observation"
    for task, outcome in ((step, Outcome.UNKNOWN), (behind, Outcome.NOT_APPLIED), (after, Outcome.NOT_APPLIED)):
        with pytest.raises(SessionLostError) as caught:
            await task
        assert caught.value.outcome is outcome
    assert following.end._frames.empty()


async def test_a_reset_in_flight_is_sent_again_in_a_new_session(client: Client) -> None:
    connection = await client.begin()
    reset = client.soon(Op.RESET, seed=5)
    await connection.take()
    connection.cut()
    second = await client.peer.accept()
    assert (await second.take())["data"] == {"seed": 5}
    second.cut()
    third = await client.peer.accept()
    await third.answer()
    assert await echo_of(reset) == {"seed": 5}


async def test_a_server_that_dies_in_every_reset_is_told_of_at_last(client: Client) -> None:
    async def die() -> None:
        while True:
            connection = await client.peer.accept()
            await connection.take()
            connection.cut()

    dying = asyncio.create_task(die())
    with pytest.raises(ConnectError, match="in a row") as caught:
        await client.call(Op.RESET, timeout_s=None, connect_s=None)
    dying.cancel()
    assert not isinstance(caught.value, SessionLostError)
    with pytest.raises(SessionLostError):
        await client.call(Op.STEP)


async def test_a_reset_that_the_environment_refuses_leaves_the_client_lost(client: Client) -> None:
    connection = await client.begin()
    connection.cut()
    reset = client.soon(Op.RESET)
    following = await client.peer.accept()
    await following.take()
    await following.say("error", message="boom", code="EXECUTION_ERROR")
    with pytest.raises(ServerError, match="boom"):
        await reset
    with pytest.raises(SessionLostError):
        await client.call(Op.STEP)
    again = client.soon(Op.RESET)
    await following.answer()
    await again
    assert client.peer.dials == 2


async def test_a_full_server_is_told_at_once_to_a_newcomer(client: Client) -> None:
    reset = client.soon(Op.RESET)
    connection = await client.peer.accept()
    await connection.take()
    await connection.say("error", message="full", code="CAPACITY_REACHED", active_sessions=4, max_sessions=4)
    with pytest.raises(CapacityError) as caught:
        await reset
    assert (caught.value.active, caught.value.max) == (4, 4)


async def test_a_client_on_its_way_back_waits_for_its_own_slot(client: Client) -> None:
    connection = await client.begin()
    connection.cut()
    reset = client.soon(Op.RESET)
    for _ in range(3):
        following = await client.peer.accept()
        await following.take()
        await following.say("error", message="full", code="CAPACITY_REACHED", active_sessions=1, max_sessions=1)
    following = await client.peer.accept()
    await following.answer()
    assert (await reset).kind == "observation"


async def test_a_loss_is_one_line_in_the_log(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    connection = await client.begin()
    connection.cut()
    for _ in range(3):
        with pytest.raises(SessionLostError):
            await client.call(Op.STEP)
    assert sum("was lost" in record.message for record in caplog.records) == 1


async def test_a_connector_that_raises_anything_else_ends_the_call() -> None:
    async def broken() -> Any:
        raise LookupError("odd")

    link = EnvLink(machine(), broken)
    with pytest.raises(ConnectError, match="LookupError: odd") as caught:
        await link.call(Op.RESET, Request(b"{}"), timeout_s=GENEROUS, setting="x", connect_timeout_s=GENEROUS)
    assert isinstance(caught.value.__cause__, LookupError)
