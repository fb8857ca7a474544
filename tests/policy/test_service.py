"""One policy for all connections: what it may be, and what it costs whom when it fails."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import socket
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as sync_connect

from openenv.core.exceptions import PolicyActionError
from openenv.core.wire.arrays import encode
from openenv.policy.policy import Observations, Transitions
from support.policy_link import (
    HORIZON,
    INTERNAL,
    SOON,
    WIDTH,
    EchoPolicy,
    RawClient,
    feedback,
    infer,
    observation,
    server,
    until,
)

# ---------------------------------------------------------------- a policy that fails


class Failing(EchoPolicy):
    """Fails when it sees the value 13."""

    def act(self, observations: Observations) -> Any:
        if 13 in observations.states["t"]:
            raise KeyError("thirteen")
        return super().act(observations)

    def feedback(self, transitions: Transitions) -> None:
        if 13 in transitions.rewards:
            raise KeyError("thirteen")
        super().feedback(transitions)


@pytest.mark.parametrize("where", ["act()", "feedback()"])
async def test_a_failure_costs_those_who_asked(where: str, caplog: pytest.LogCaptureFixture) -> None:
    policy = Failing()
    async with server(policy, mini_infer_batch_size=1) as served:
        async with RawClient(served.url) as other, RawClient(served.url) as client:
            await other.act([0], 1)
            if where == "act()":
                await client.send(infer([0], 13))
            else:
                await client.act([0], 1)
                await client.send(feedback([0], 13))
            assert await client.closed() == INTERNAL
            await other.send(feedback([0], 2))
            await other.round(0, 3)
        assert served.metrics.internal_errors == 1
        [record] = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert record.name == "openenv.policy"
        assert where in record.getMessage()
        assert "thirteen" in record.getMessage()
        assert record.exc_info


@pytest.mark.parametrize(
    "error",
    [
        StopIteration(),
        concurrent.futures.CancelledError(),
        asyncio.CancelledError(),
        RecursionError(),
        ExceptionGroup("", [KeyError()]),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("coroutine", [False, True])
async def test_errors_that_asyncio_takes_for_its_own(error: BaseException, coroutine: bool) -> None:
    class Raises(EchoPolicy):
        def act(self, observations: Observations) -> Any:
            if 13 not in observations.states["t"]:
                return super().act(observations)
            if not coroutine:
                raise error

            async def later() -> Any:
                raise error

            return later()

    async with server(Raises()) as served:
        async with RawClient(served.url) as client:
            await client.send(infer([0], 13))
            assert await client.closed() == INTERNAL
        async with RawClient(served.url) as client:
            await client.round(0, 1)


async def test_all_of_a_batch_that_failed_are_told() -> None:
    async with server(Failing()) as served:
        async with RawClient(served.url) as one, RawClient(served.url) as two:
            await one.send(infer([0], 1))
            await two.send(infer([0], 13))
            assert await one.closed() == INTERNAL
            assert await two.closed() == INTERNAL
        async with RawClient(served.url) as one:
            await one.round(0, 1)


@pytest.mark.parametrize("where", ["act", "feedback"])
async def test_a_fatal_failure_is_raised_and_is_no_stop(where: str) -> None:
    served = server(Failing(), fatal_policy_errors=True)
    task = asyncio.create_task(served.serve())
    await until(lambda: served.port)
    async with RawClient(served.url) as client:
        if where == "act":
            await client.send(infer([0], 13))
        else:
            await client.act([0], 1)
            await client.send(feedback([0], 13))
        assert await client.closed() in (INTERNAL, (1001, ""))
    with pytest.raises(KeyError, match="thirteen"):
        await task


def test_a_fatal_failure_is_raised_from_the_thread() -> None:
    served = server(Failing(), fatal_policy_errors=True)
    served.__enter__()
    with sync_connect(served.url, compression=None) as client:
        client.recv(SOON)
        client.send(encode(infer([0], 13)))
        with pytest.raises(ConnectionClosed):
            client.recv(SOON)
    with pytest.raises(KeyError, match="thirteen"):
        served.__exit__(None, None, None)


class Returns:
    """Returns what it was told to."""

    def __init__(self, actions: Any) -> None:
        self.actions = actions
        self.metadata = {"action_horizon": HORIZON, "action_dim": WIDTH}

    def act(self, observations: Observations) -> Any:
        return self.actions


WRONG: dict[str, Any] = {
    "another horizon": np.zeros((2, HORIZON + 1, WIDTH)),
    "another width": np.zeros((2, HORIZON, WIDTH + 1)),
    "width in two parts that do not fit": np.zeros((2, HORIZON, WIDTH, 2)),
    "time-major": np.zeros((HORIZON, 2, WIDTH)),
    "too many envs": np.zeros((3, HORIZON, WIDTH)),
    "no horizon": np.zeros(2),
    "empty": np.zeros((2, 0, WIDTH)),
    "none": None,
    "text": np.full((2, HORIZON, WIDTH), "x"),
    "complex": np.zeros((2, HORIZON, WIDTH), complex),
    "objects": np.full((2, HORIZON, WIDTH), None),
    "ragged": [[1], [1, 2]],
}


@pytest.mark.parametrize("actions", WRONG.values(), ids=WRONG)
async def test_actions_that_do_not_fit_are_not_sent(actions: Any, caplog: pytest.LogCaptureFixture) -> None:
    policy = Returns(actions)
    async with server(policy) as served:
        async with RawClient(served.url) as client:
            await client.send(infer([0, 1], 1, 2))
            assert await client.closed() == INTERNAL
        assert "act() of the policy failed" in caplog.text
        policy.actions = np.ones((1, HORIZON, WIDTH), np.int16)
        async with RawClient(served.url) as client:
            assert await client.act([0], 1) == np.ones((HORIZON, 1, WIDTH)).tolist()


async def test_what_is_wrong_with_the_actions_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with server(Returns(np.zeros((1, 9, WIDTH)))) as served, RawClient(served.url) as client:
        await client.send(infer([0], 1))
        await client.closed()
    assert "chunks of 9 actions" in caplog.text
    [record] = [record for record in caplog.records if record.exc_info]
    assert record.exc_info
    assert record.exc_info[0] is PolicyActionError


async def test_a_policy_may_use_its_buffers_again() -> None:
    buffer = np.zeros((1, HORIZON, WIDTH))

    class Reuses(EchoPolicy):
        def act(self, observations: Observations) -> Any:
            buffer[:] = super().act(observations)
            return buffer

    policy = Reuses()
    async with (
        server(policy, mini_infer_batch_size=1) as served,
        RawClient(served.url) as one,
        RawClient(served.url) as two,
    ):
        await one.act([0], 1)
        await two.act([0], 2)
        await one.send(feedback([0], 3))
        await one.act([0], 4)
    assert policy.learned[0].actions[0, 0, 0] == 10


# ---------------------------------------------------------------- the policy's forms


async def test_a_policy_of_coroutines() -> None:
    class Async:
        def __init__(self) -> None:
            self.learned: list[Transitions] = []
            self.running = 0

        async def act(self, observations: Observations) -> Any:
            assert self.running == 0
            self.running += 1
            await asyncio.sleep(0.001)
            self.running -= 1
            return EchoPolicy.act(EchoPolicy(), observations)

        async def feedback(self, transitions: Transitions) -> None:
            assert self.running == 0
            self.learned.append(transitions)

    policy = Async()
    async with server(policy, mini_infer_batch_size=1) as served:
        async with RawClient(served.url) as one, RawClient(served.url) as two:

            async def play(client: RawClient) -> None:
                for value in range(5):
                    await client.round(0, value)

            await asyncio.gather(play(one), play(two))
            await until(lambda: len(policy.learned) == 10)
        assert "action_horizon" not in one.metadata


async def test_a_plain_function_that_returns_an_awaitable() -> None:
    class Wrapped(EchoPolicy):
        def act(self, observations: Observations) -> Any:
            async def later() -> Any:
                return EchoPolicy.act(self, observations)

            return later()

    async with server(Wrapped()) as served, RawClient(served.url) as client:
        await client.round(0, 1)


async def test_a_policy_that_can_only_act() -> None:
    async with (
        server(Returns(np.zeros((1, HORIZON, WIDTH)))) as served,
        RawClient(served.url) as client,
    ):
        for _ in range(2):
            await client.act([0], 1)
            await client.send(feedback([0], 1))
        await client.act([0], 1)
        assert served.metrics.transitions == 2
        assert served.metrics.discarded_feedback == 0


async def test_observations_are_read_only() -> None:
    seen: list[bool] = []

    class Writes(EchoPolicy):
        def act(self, observations: Observations) -> Any:
            seen.extend(array.flags.writeable for array in (observations.states["t"], observations.text))
            return super().act(observations)

        def feedback(self, transitions: Transitions) -> None:
            seen.append(transitions.next_observations.states["t"].flags.writeable)

    async with server(Writes()) as served, RawClient(served.url) as client:
        await client.round(0, 1)
        await client.act([0, 1], 2, reuse=np.array([True, False]), data=observation(2))
    assert seen == [False] * 5


# ---------------------------------------------------------------- metrics


async def test_metrics() -> None:
    async with server(EchoPolicy()) as served:
        async with RawClient(served.url) as client:
            for value in range(3):
                await client.act([0, 1], value, value)
                await client.send(feedback([0, 1], value, value))
            await client.act([0, 1], 1, reuse=np.array([True, False]))
            metrics = served.metrics
            assert metrics.open_connections == 1
            assert (metrics.infers, metrics.batches, metrics.rows, metrics.largest_batch) == (4, 4, 8, 2)
            assert (metrics.feedbacks, metrics.transitions, metrics.reused_observations) == (3, 6, 1)
            assert 0 < metrics.act_s < SOON
            assert 0 < metrics.feedback_s < SOON
            assert metrics.longest_infer_wait_s <= metrics.infer_wait_s
        await until(lambda: served.metrics.open_connections == 0)
        assert served.metrics.as_dict()["connections"] == 1


def test_sockets_are_given_back() -> None:
    with server(EchoPolicy()) as served:
        port = served.port
    with socket.create_server(("127.0.0.1", port)):
        pass
