"""What one connection of a policy server may say, over real sockets and with a client that knows no rule."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import msgpack
import numpy as np
import pytest

from openenv.core.wire.arrays import encode
from openenv.policy import observation_cache
from openenv.policy.env_states import EnvStates
from openenv.policy.messages import Feedback
from openenv.policy.observation import Observation
from openenv.policy.server import PolicyServer
from support.policy_link import (
    HORIZON,
    RESYNC,
    WIDTH,
    EchoPolicy,
    GatedPolicy,
    RawClient,
    event,
    expected,
    feedback,
    infer,
    observation,
    until,
)


@pytest.fixture
def policy() -> EchoPolicy:
    return EchoPolicy()


@pytest.fixture
async def server(policy: EchoPolicy) -> AsyncIterator[PolicyServer]:
    async with PolicyServer(policy, "127.0.0.1", 0, mini_infer_batch_size=1) as server:
        yield server


async def test_it_speaks_first_and_tells_what_it_is(server: PolicyServer) -> None:
    for _ in range(2):
        async with RawClient(server.url) as client:
            assert client.metadata["protocol_version"] == 1
            assert client.metadata["policy"] == "EchoPolicy"
            assert client.metadata["action_horizon"] == HORIZON
            assert client.metadata["action_dim"] == WIDTH
            assert client.metadata["features"] == ["reuse-feedback-obs"]


async def test_actions_are_time_major_and_in_the_order_of_the_request(server: PolicyServer) -> None:
    async with RawClient(server.url) as client:
        assert await client.act([4, 0, 2], 1, 2, 3) == expected(1, 2, 3)


async def test_sets_of_envs_differ_and_vary(server: PolicyServer, policy: EchoPolicy) -> None:
    async with RawClient(server.url) as client:
        await client.act([0, 1, 2], 1, 2, 3)
        await client.send(feedback([0], 5))
        assert await client.act([0], 6) == expected(6)
        await client.send(feedback([1, 2], 7, 8))
        assert await client.act([2, 1], 8, 9) == expected(8, 9)
        await client.send(feedback([0, 2, 1], 10, 11, 12))
        await client.act([7], 1)
    assert [[key.env for key in one.keys] for one in policy.learned] == [[0], [1, 2], [0, 2, 1]]
    assert [one.observations.states["t"][:, 0].tolist() for one in policy.learned] == [[1], [2, 3], [6, 8, 9]]
    assert server.metrics.discarded_feedback == 0


async def test_the_policy_learns_from_what_it_did(server: PolicyServer, policy: EchoPolicy) -> None:
    info = {"episode": {"r": np.array([1.0, 2.0])}, "task": "pick"}
    async with RawClient(server.url) as client:
        await client.act([3, 5], 1, 2)
        await client.send(feedback([5, 3], 20, 10, done=True, info=info))
        await client.act([3], 0)
    [learned] = policy.learned
    connection = learned.keys[0].connection
    assert learned.keys == [(connection, 5), (connection, 3)]
    assert learned.observations.states["t"][:, 0].tolist() == [2, 1]
    assert list(learned.observations.text) == ["row 2", "row 1"]
    assert learned.actions.tolist() == np.swapaxes(expected(2, 1), 0, 1).tolist()
    assert learned.rewards.tolist() == [20, 10]
    assert learned.next_observations.states["t"][:, 0].tolist() == [20, 10]
    assert learned.terminated.tolist() == [True, True]
    assert learned.truncated.tolist() == [False, False]
    assert learned.info == [{"episode": {"r": 1.0}, "task": "pick"}, {"episode": {"r": 2.0}, "task": "pick"}]
    assert not learned.actions.flags.writeable


async def test_large_frames(server: PolicyServer) -> None:
    async with RawClient(server.url) as client:
        message = infer([0], 1, data=observation(1, image=1024))
        assert len(encode(message)) > 3 * 2**20
        await client.send(message)
        assert await client.actions([0]) == expected(1)
        await client.send(feedback([0], 2, obs=observation(2, image=1024)))
        assert await client.act([0], reuse=np.array([True]), data=observation(image=1024)) == expected(2)


async def test_both_forms_of_text(server: PolicyServer, policy: EchoPolicy) -> None:
    async with RawClient(server.url) as client:
        await client.act([0, 1], 1, 2, data={**observation(1, 2), "text": ["a", "longer"]})
        await client.send(feedback([0], 2))
        await client.act([0], 3)
    assert [list(batch.text) for batch in policy.batches] == [["a", "longer"], ["row 3"]]


async def test_unknown_keys_are_ignored(server: PolicyServer) -> None:
    async with RawClient(server.url) as client:
        assert await client.act([0], 1, more=[1, {"a": b"b"}], reuse=None) == expected(1)


# ---------------------------------------------------------------- frames that make no sense


def frame_of_array(**forged: Any) -> bytes:
    """An infer with an array that is not what it says."""
    array = {b"__ndarray__": True, b"data": bytes(8), b"dtype": "<f8", b"shape": [1, 1]}
    array.update({key.encode(): value for key, value in forged.items()})
    data = {"images": {}, "states": {"t": array}, "text": ["x"]}
    indices = {b"__ndarray__": True, b"data": bytes(8), b"dtype": "<i8", b"shape": [1]}
    message = {"message_type": "infer", "data": data, "env_indices": indices, "step_ids": indices}
    frame: bytes = msgpack.packb(message)
    return frame


BEFORE_INFER: dict[str, Any] = {
    "text": "hello",
    "json": '{"message_type": "infer"}',
    "empty": b"",
    "noise": random.Random(1).randbytes(200),
    "a forged shape": frame_of_array(shape=[2**40, 2**20]),
    "a shape that overflows": frame_of_array(shape=[2**62, 4]),
    "a negative shape": frame_of_array(shape=[-1]),
    "an object array": frame_of_array(dtype="|O8"),
    "an unknown dtype": frame_of_array(dtype="no such"),
    "a forged array header": b"\xdd\xff\xff\xff\xff",
    "a forged map header": b"\xdf\xff\xff\xff\xff",
    "forged bytes": b"\xc6\xff\xff\xff\xff",
    "deep nesting": b"\x91" * 100_000 + b"\xc0",
    "not a map": [1, 2, 3],
    "cut off": encode(infer([0], 1))[:-5],
    "trailing": encode(infer([0], 1)) + b"x",
    "no type": {"data": {}},
    "unknown type": {"message_type": "reset", "data": {}},
    "upper case": infer([0], 1, message_type="INFER"),
    "type as bytes": infer([0], 1, message_type=b"infer"),
    "feedback": feedback([0], 1),
    "action": {"message_type": "action", "data": {}},
    "metadata": {"message_type": "metadata", "data": {}},
    "no env_indices": {key: value for key, value in infer([0], 1).items() if key != "env_indices"},
    "no step_ids": {key: value for key, value in infer([0], 1).items() if key != "step_ids"},
    "no data": {key: value for key, value in infer([0], 1).items() if key != "data"},
    "data is a list": infer([0], 1, data=[1]),
    "no text": infer([0], 1, data={"images": {}, "states": {}}),
    "a key more": infer([0], 1, data={**observation(1), "more": 1}),
    "indices as a list": infer([0], 1, env_indices=[0]),
    "indices as floats": infer([0], 1, env_indices=np.zeros(1)),
    "indices of two dimensions": infer([0], 1, env_indices=np.zeros((1, 1), np.int64)),
    "an env twice": infer([1, 1], 1, 2),
    "a negative env": infer([-1], 1),
    "no envs": infer([]),
    "too many step_ids": infer([0], 1, step_ids=np.zeros(2, np.int64)),
    "too few rows": infer([0, 1], 1),
    "states is a list": infer([0], 1, data={**observation(1), "states": [1]}),
    "a state is a number": infer([0], 1, data={**observation(1), "states": {"t": 1.0}}),
    "a state without rows": infer([0], 1, data={**observation(1), "states": {"t": np.array(1.0)}}),
    "text is short": infer([0, 1], 1, 2, data={**observation(1, 2), "text": ["a"]}),
    "text of numbers": infer([0], 1, data={**observation(1), "text": [1]}),
    "reuse is true": infer([0], 1, reuse=True),
}
BEFORE_FEEDBACK: dict[str, Any] = {
    "text": "hello",
    "noise": random.Random(2).randbytes(200),
    "a second infer": infer([0, 1], 1, 2),
    "no data": {key: value for key, value in feedback([0], 1).items() if key != "data"},
    "no info": {**feedback([0], 1), "data": {"obs": observation(1)}},
    "info that cannot be cut": feedback([0, 1], 1, 2, info={"task": "pick"}),
    "info of other length": feedback([0, 1], 1, 2, info={"r": np.zeros(3)}),
    "info is a list": feedback([0], 1, info=[]),
    "too few rewards": feedback([0, 1], 1, 2, rewards=np.zeros(1, np.float32)),
    "rewards of two dimensions": feedback([0, 1], 1, 2, rewards=np.zeros((2, 1), np.float32)),
    "rewards as text": feedback([0], 1, rewards=np.array(["1"])),
    "too many flags": feedback([0, 1], 1, 2, terminated=np.zeros(3, bool)),
    "flags as numbers": feedback([0], 1, truncated=np.zeros(1)),
    "too few rows": feedback([0, 1], 1, 2, obs=observation(1)),
    "obs without keys": feedback([0], 1, obs={}),
    "an env twice": feedback([0, 0], 1, 2),
}


@pytest.mark.parametrize("message", BEFORE_INFER.values(), ids=BEFORE_INFER)
async def test_what_is_no_infer_is_a_resync_of_this_connection(server: PolicyServer, message: Any) -> None:
    async with RawClient(server.url) as other, RawClient(server.url) as client:
        await client.round(0, 1)
        await other.round(0, 2)
        await client.send(message)
        assert await client.closed() == RESYNC
        await other.round(0, 3)
    async with RawClient(server.url) as client:
        await client.round(0, 4)
    assert server.metrics.resyncs == 1
    assert server.metrics.internal_errors == 0


@pytest.mark.parametrize("message", BEFORE_FEEDBACK.values(), ids=BEFORE_FEEDBACK)
async def test_what_is_no_feedback_is_a_resync_of_this_connection(
    server: PolicyServer, policy: EchoPolicy, message: Any
) -> None:
    async with RawClient(server.url) as other, RawClient(server.url) as client:
        await client.act([0, 1], 1, 2)
        await other.act([0], 3)
        await client.send(message)
        assert await client.closed() == RESYNC
        await other.send(feedback([0], 4))
        await other.round(0, 5)
    assert server.metrics.resyncs == 1
    assert server.metrics.internal_errors == 0
    assert [one.rewards.tolist() for one in policy.learned][:1] == [[4]]


async def test_a_change_of_names_between_the_chunks_of_a_feedback(server: PolicyServer) -> None:
    async with RawClient(server.url) as client:
        await client.act([0, 1], 1, 2)
        await client.send(feedback([0], 1))
        await client.act([0], 1, data={**observation(1), "images": {"new": np.zeros((1, 2, 2, 3), np.uint8)}})
        await client.send(feedback([0, 1], 1, 2))
        assert await client.closed() == RESYNC


# ---------------------------------------------------------------- feedback


async def test_feedback_without_an_action_here_is_discarded(
    server: PolicyServer, policy: EchoPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    async with RawClient(server.url) as client:
        await client.act([0], 1)
        await client.send(feedback([0, 7, 8], 2, 3, 4))
        assert await client.act([0], 5) == expected(5)
        await client.send(feedback([9], 6))
        assert await client.act([1], 7) == expected(7)
    assert [one.rewards.tolist() for one in policy.learned] == [[2]]
    assert policy.learned[0].next_observations.states["t"].tolist() == [[2]]
    assert server.metrics.discarded_feedback == 3
    assert server.metrics.transitions == 1
    assert "env(s) [7, 8]" in caplog.text
    assert "env(s) [9]" in caplog.text


async def test_a_chunk_is_learned_from_once(server: PolicyServer, policy: EchoPolicy) -> None:
    async with RawClient(server.url) as client:
        await client.act([0, 1], 1, 2)
        await client.send(feedback([0], 3))
        await client.act([2], 4)
        await client.send(feedback([0], 5))
        await client.act([3], 6)
    assert [one.rewards.tolist() for one in policy.learned] == [[3]]
    assert server.metrics.discarded_feedback == 1


async def test_an_env_that_asks_again_without_feedback(server: PolicyServer) -> None:
    async with RawClient(server.url) as client:
        await client.act([0, 1], 1, 2)
        await client.send(feedback([1], 3))
        await client.send(infer([0], 4))
        assert await client.closed() == RESYNC


async def test_a_feedback_that_does_not_come() -> None:
    async with PolicyServer(EchoPolicy(), "127.0.0.1", 0, mini_infer_batch_size=1, feedback_timeout_s=3.0) as server:
        async with RawClient(server.url) as late, RawClient(server.url) as other:
            await late.act([0], 1)
            assert await late.closed() == (1001, "Feedback timeout")
            await other.round(0, 2)  # it has been silent as long, and owes nothing
        assert server.metrics.feedback_timeouts == 1


async def test_nobody_is_timed_out_while_the_policy_learns() -> None:
    policy = GatedPolicy(feedback=True)
    async with (
        PolicyServer(policy, "127.0.0.1", 0, mini_infer_batch_size=1, feedback_timeout_s=3.0) as server,
        RawClient(server.url) as waits,
        RawClient(server.url) as learns,
    ):
        await waits.act([0], 1)
        await learns.act([0], 2)
        await learns.send(feedback([0], 2))
        await event(policy.began)
        await asyncio.sleep(3.5)
        await waits.send(feedback([0], 3))
        await (await waits.socket.ping())
        policy.go_on.set()
        assert await waits.act([0], 4) == expected(4)
        assert server.metrics.feedback_timeouts == 0


# ---------------------------------------------------------------- reuse


async def test_reuse_over_the_wire(server: PolicyServer, policy: EchoPolicy) -> None:
    async with RawClient(server.url) as client:
        await client.act([0, 1, 2], 1, 2, 3)
        await client.send(feedback([0, 1, 2], 11, 12, 13))
        assert await client.act([2, 0, 1], 5, reuse=np.array([True, False, True])) == expected(13, 5, 12)
        await client.send(feedback([0], 21))
        empty = {**observation(), "text": np.array([])}
        assert await client.act([0], data=empty, reuse=np.array([True])) == expected(21)
    assert list(policy.batches[1].text) == ["row 13", "row 5", "row 12"]
    assert policy.batches[1].states["t"].dtype == np.float64
    assert server.metrics.reused_observations == 3


BAD_REUSE: dict[str, dict[str, Any]] = {
    "never fed back": infer([5], reuse=np.array([True])),
    "ended its episode": infer([1], reuse=np.array([True])),
    "not bool": infer([0], reuse=np.array([1])),
    "a list": infer([0], reuse=[True]),
    "too long": infer([0], reuse=np.array([True, True])),
    "a row too many": infer([0], 1, reuse=np.array([True])),
    "a row too few": infer([0, 2], reuse=np.array([True, False])),
    "other names": infer([0, 2], reuse=np.array([True, False]), data={"images": {}, "states": {}, "text": ["a"]}),
    "other shape": infer(
        [0, 2], reuse=np.array([True, False]), data={**observation(1), "states": {"t": np.zeros((1, 2))}}
    ),
    "other dtype": infer(
        [0, 2], reuse=np.array([True, False]), data={**observation(1), "states": {"t": np.zeros((1, 1), "f4")}}
    ),
    "an env twice": infer([0, 0], reuse=np.array([True, True])),
}


@pytest.mark.parametrize("message", BAD_REUSE.values(), ids=BAD_REUSE)
async def test_a_reuse_that_cannot_be_is_a_resync(server: PolicyServer, policy: EchoPolicy, message: Any) -> None:
    async with RawClient(server.url) as client, RawClient(server.url) as other:
        await other.act([0, 1], 1, 2)
        await other.send(feedback([0, 1], 31, 32))
        await client.act([0, 1], 1, 2)
        await client.send(feedback([0], 11))
        await client.act([0], 1)
        await client.send(feedback([1], 12, done=True))
        await client.send(message)
        assert await client.closed() == RESYNC
        assert await other.act([0], reuse=np.array([True])) == expected(31)
    assert server.metrics.internal_errors == 0
    assert server.metrics.reused_observations == 1


async def test_a_new_connection_has_nothing_to_reuse(server: PolicyServer) -> None:
    async with RawClient(server.url) as client:
        await client.round(0, 1)
    async with RawClient(server.url) as client:
        await client.send(infer([0], reuse=np.array([True])))
        assert await client.closed() == RESYNC


async def test_reuse_that_is_not_offered() -> None:
    async with (
        PolicyServer(EchoPolicy(), "127.0.0.1", 0, reuse_feedback_obs=False) as server,
        RawClient(server.url) as client,
    ):
        assert "features" not in client.metadata
        await client.round(0, 1)
        await client.send(infer([0], reuse=np.array([True])))
        assert await client.closed() == RESYNC


# ---------------------------------------------------------------- several connections


async def test_two_connections_with_the_same_envs(server: PolicyServer, policy: EchoPolicy) -> None:
    rng = random.Random(3)
    async with RawClient(server.url) as one, RawClient(server.url) as two:

        async def play(client: RawClient, base: int) -> None:
            last = base
            await client.act([0], last)
            for step in range(1, 30):
                await client.send(feedback([0], base + step))
                last = base + step
                await asyncio.sleep(rng.random() / 500)
                sent = () if step % 2 else (last,)
                assert await client.act([0], *sent, reuse=np.array([not sent])) == expected(last)

        await asyncio.gather(play(one, 1000), play(two, 2000))
    by_connection: dict[int, list[Any]] = {}
    for learned in policy.learned:
        [(connection, env)] = learned.keys
        assert env == 0
        before, after = (obs.states["t"][0, 0] for obs in (learned.observations, learned.next_observations))
        assert after == before + 1
        assert learned.actions[0, 0, 0] == before * 10
        by_connection.setdefault(connection, []).append(after)
    assert sorted(by_connection.values()) == [list(range(1001, 1030)), list(range(2001, 2030))]


async def test_two_connections_in_one_batch(policy: EchoPolicy) -> None:
    async with PolicyServer(policy, "127.0.0.1", 0) as server:
        async with RawClient(server.url) as one, RawClient(server.url) as two:
            await one.send(infer([0, 1], 1, 2))
            await until(lambda: server.metrics.open_connections == 2)
            await two.send(infer([1, 0], 3, 4))
            assert await one.actions([0, 1]) == expected(1, 2)
            assert await two.actions([1, 0]) == expected(3, 4)
        [batch] = policy.batches
        assert len(set(batch.keys)) == 4
        assert server.metrics.batches == 1
        assert server.metrics.mean_batch == 4


async def test_observations_of_another_make_are_another_call(policy: EchoPolicy) -> None:
    async with PolicyServer(policy, "127.0.0.1", 0) as server:
        async with RawClient(server.url) as one, RawClient(server.url) as two:
            await one.send(infer([0], 1))
            data = {**observation(2), "images": {"cam": np.zeros((1, 2, 2, 3), np.uint8)}}
            await two.send(infer([0], 2, data=data))
            assert await one.actions([0]) == expected(1)
            assert await two.actions([0]) == expected(2)
        assert [len(batch) for batch in policy.batches] == [1, 1]


async def test_it_waits_for_slower_peers_and_not_for_those_that_are_gone(policy: EchoPolicy) -> None:
    async with PolicyServer(policy, "127.0.0.1", 0) as server, RawClient(server.url) as fast:
        async with RawClient(server.url) as slow:
            await fast.send(infer([0], 1))
            await slow.socket.ping()
            await (await fast.socket.ping())  # the infer has been read
            assert not policy.batches
            await slow.send(infer([0], 2))
            assert await fast.actions([0]) == expected(1)
            await fast.send(feedback([0], 1))
            await fast.send(infer([0], 3))
            await slow.actions([0])
            await (await fast.socket.ping())
            assert len(policy.batches) == 1
        assert await fast.actions([0]) == expected(3)


@pytest.mark.parametrize("when", ["in mid-chunk", "in the queue", "in mid-batch"])
async def test_a_client_that_is_killed(when: str) -> None:
    policy = GatedPolicy(act=True)
    async with PolicyServer(policy, "127.0.0.1", 0) as server, RawClient(server.url) as lives:
        dies = await RawClient(server.url).__aenter__()
        await dies.send(infer([0], 1))
        if when == "in the queue":
            await until(lambda: server._service._queue._queued)
        else:
            await lives.send(infer([0], 2))
            await event(policy.began)
            if when == "in mid-chunk":
                policy.go_on.set()
                await dies.actions([0])
        dies.socket.transport.abort()
        await until(lambda: server.metrics.open_connections == 1)
        policy.go_on.set()
        if when == "in the queue":
            await lives.send(infer([0], 2))
        assert await lives.actions([0]) == expected(2)
        await lives.send(feedback([0], 3))
        for value in range(4, 8):
            await lives.round(0, value)
        assert len(policy.batches[0]) == (1 if when == "in the queue" else 2)
        assert {key.connection for batch in policy.batches[1:] for key in batch.keys} == {1}
        await until(lambda: policy.closed == [2])
        assert server.metrics.internal_errors == 0


async def test_any_mixture_of_good_and_bad_clients(policy: EchoPolicy) -> None:
    rng = random.Random(7)
    bad = [*BEFORE_INFER.values()]

    async def visit(number: int) -> None:
        async with RawClient(server.url) as client:
            for value in range(rng.randrange(6)):
                await client.round(0, number * 100 + value)
            end = rng.randrange(4)
            if end == 0:
                await client.send(rng.choice(bad))
                assert await client.closed() == RESYNC
            elif end == 1:
                await client.act([0], number)
                client.socket.transport.abort()
            elif end == 2:
                await client.send(infer([0], number))
                client.socket.transport.abort()

    async def visits(first: int) -> None:
        for number in range(first, first + 8):
            await visit(number)

    async with PolicyServer(policy, "127.0.0.1", 0) as server:
        await asyncio.gather(*(visits(10 * one) for one in range(1, 9)))
        await until(lambda: server.metrics.open_connections == 0)
        async with RawClient(server.url) as client:
            await client.round(0, 5)
        assert server.metrics.internal_errors == 0
        assert server.metrics.connections == 65
        assert server.metrics.discarded_feedback == 0
        assert server.metrics.largest_batch > 1
    for learned in policy.learned:
        assert learned.observations.states["t"].tolist() == learned.next_observations.states["t"].tolist()


@pytest.mark.parametrize("reuses", [False, True])
def test_rows_are_copied_only_for_a_client_that_may_reuse_them(reuses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []
    monkeypatch.setattr(observation_cache, "copy_row", lambda obs, row: copied.append(row))
    told = Feedback(
        Observation.parse(observation(1, 2), 2, "obs"),
        np.array([0, 1]),
        np.array([0, 0]),
        np.zeros(2),
        np.zeros(2, bool),
        np.zeros(2, bool),
        {},
    )
    assert EnvStates(7, reuses=reuses).fed(told, {0, 1}) is None
    assert copied == ([0, 1] if reuses else [])
