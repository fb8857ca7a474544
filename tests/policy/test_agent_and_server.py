"""Our agents with our server: rollouts whose numbers tell where they belong, judged by what the policy was given."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from openenv.core.exceptions import ConnectError, ConnectionReplaced, ServerStopped
from openenv.core.session.backoff import Backoff
from openenv.policy.agent import WebSocketEnvClientAgent
from openenv.policy.async_agent import AsyncWebSocketEnvClientAgent
from openenv.policy.policy import Transitions
from openenv.policy.server import PolicyServer
from openenv.testing import FaultProxy
from support.policy_link import HORIZON, EchoPolicy, GatedPolicy, event, expected, observation, until

SOON = 10.0


class Counters:
    """Envs that count, in lockstep. The value of env ``i`` is ``base + 10_000 * i``, and one more after each step.

    Its episode ends after ``3 + 2 * i`` steps; the next one begins at the next hundred.
    """

    def __init__(self, base: int, count: int) -> None:
        self.values = [base + 10_000 * env for env in range(count)]
        self.steps = [0] * count
        self.left = [0] * count
        self.rewards = [0.0] * count
        self.chunks = [0] * count
        self.replaced = 0

    def rows(self, envs: Sequence[int]) -> dict[str, Any]:
        return observation(*(self.values[env] for env in envs))

    def take(self, envs: Sequence[int], action: Any) -> None:
        """Look at the chunks and begin them."""
        assert action.tolist() == expected(*(self.values[env] for env in envs))
        for env in envs:
            self.left[env], self.rewards[env] = HORIZON, 0.0

    def step(self) -> tuple[list[int], list[bool]]:
        """One step of every env. Returns those whose chunk has ended, and whether their episode has."""
        for env in range(len(self.values)):
            self.values[env] += 1
            self.steps[env] += 1
            self.left[env] -= 1
            self.rewards[env] += 1
        done = [steps == 3 + 2 * env for env, steps in enumerate(self.steps)]
        over = [env for env, left in enumerate(self.left) if left == 0 or done[env]]
        return over, [done[env] for env in over]

    def told(self, envs: Sequence[int], done: Sequence[bool]) -> None:
        for env, ended in zip(envs, done, strict=True):
            self.left[env] = 0
            self.chunks[env] += 1
            if ended:
                self.steps[env] = self.chunks[env] = 0
                self.values[env] += 100 - self.values[env] % 100

    def void(self, replaced: ConnectionReplaced) -> None:
        """Every chunk is void."""
        assert set(replaced.env_ids) == set(range(len(self.values)))
        self.left = [0] * len(self.left)
        self.rewards = [0.0] * len(self.rewards)
        self.replaced += 1

    def needing(self) -> list[int]:
        return [env for env, left in enumerate(self.left) if left <= 0]


def rollout(agent: WebSocketEnvClientAgent, sim: Counters, steps: int, between: Any = lambda step: None) -> None:
    for step in range(steps):
        between(step)
        envs = sim.needing()
        if envs:
            try:
                action = agent.infer(sim.rows(envs), envs, [sim.chunks[env] for env in envs])
            except ConnectionReplaced as replaced:
                sim.void(replaced)
                continue
            sim.take(envs, action.action)
        over, done = sim.step()
        if over:
            try:
                agent.feedback(
                    sim.rows(over),
                    over,
                    [sim.chunks[env] for env in over],
                    [sim.rewards[env] for env in over],
                    done,
                    [False] * len(over),
                )
            except ConnectionReplaced as replaced:
                sim.void(replaced)
            sim.told(over, done)


def check(learned: Sequence[Transitions]) -> dict[int, int]:
    """No transition is made of two. Returns their number for each connection."""
    counts: dict[int, int] = {}
    for one in learned:
        for row, key in enumerate(one.keys):
            before = one.observations.states["t"][row, 0]
            after = one.next_observations.states["t"][row, 0]
            assert after - before == one.rewards[row]
            assert 1 <= one.rewards[row] <= HORIZON
            assert before // 10_000 % 10 == key.env
            assert one.observations.text[row] == f"row {before:g}"
            assert one.actions[row, :, 0].tolist() == [before * 10 + step for step in range(HORIZON)]
            assert one.terminated[row] == (after % 100 == 3 + 2 * key.env)
            counts[key.connection] = counts.get(key.connection, 0) + 1
    return counts


@pytest.mark.parametrize("reuse", [True, False])
def test_two_rollouts_with_the_same_envs(reuse: bool) -> None:
    policy = EchoPolicy()

    def play(base: int) -> tuple[int, int]:
        with WebSocketEnvClientAgent(server.url, reuse_feedback_obs=reuse) as agent:
            sim = Counters(base, 3)
            rollout(agent, sim, 60)
            return sim.replaced, agent.reused_observations

    with (
        PolicyServer(policy, "127.0.0.1", 0, mini_infer_batch_size=1) as server,
        ThreadPoolExecutor(2) as pool,
    ):
        results = list(pool.map(play, (100_000, 200_000)))
    counts = check(policy.learned)
    assert len(counts) == 2
    assert min(counts.values()) >= 60
    assert [replaced for replaced, _ in results] == [0, 0]
    assert server.metrics.reused_observations == sum(reused for _, reused in results)
    assert (server.metrics.reused_observations > 30) == reuse
    bases = {
        (key.connection, one.observations.states["t"][row, 0] // 100_000)
        for one in policy.learned
        for row, key in enumerate(one.keys)
    }
    assert len(bases) == 2
    assert server.metrics.discarded_feedback == server.metrics.resyncs == server.metrics.internal_errors == 0


def test_a_connection_that_is_cut_leaves_nothing_stale() -> None:
    policy = EchoPolicy()
    with (
        PolicyServer(policy, "127.0.0.1", 0) as server,
        FaultProxy("127.0.0.1", server.port) as proxy,
        WebSocketEnvClientAgent(proxy.url, backoff=Backoff(0.01, 0.05)) as agent,
    ):
        sim = Counters(100_000, 3)

        def cut(step: int) -> None:
            if step % 7 == 5:
                proxy.cut("rst")

        rollout(agent, sim, 60, cut)
        assert sim.replaced >= 5
    counts = check(policy.learned)
    assert len(counts) >= 5
    assert server.metrics.discarded_feedback == server.metrics.resyncs == server.metrics.internal_errors == 0
    assert server.metrics.reused_observations == agent.reused_observations > 0


def test_a_server_that_is_replaced() -> None:
    policies = [EchoPolicy(), EchoPolicy()]
    first = PolicyServer(policies[0], "127.0.0.1", 0)
    first.__enter__()
    second = PolicyServer(policies[1], "127.0.0.1", first.port, reuse_feedback_obs=False)
    sim = Counters(100_000, 3)
    with WebSocketEnvClientAgent(first.url, backoff=Backoff(0.01, 0.05)) as agent:

        def replace(step: int) -> None:
            if step == 20:
                first.shutdown()
                first.__exit__(None, None, None)
                second.__enter__()

        rollout(agent, sim, 40, replace)
        assert sim.replaced == 1
        reused = agent.reused_observations
    second.__exit__(None, None, None)
    assert all(check(policy.learned) for policy in policies)
    assert first.metrics.reused_observations == reused > 0
    assert second.metrics.reused_observations == 0
    assert second.metrics.discarded_feedback == 0


async def test_a_stop_ends_a_rollout_that_waits_for_its_actions() -> None:
    policy = GatedPolicy(act=True)
    async with PolicyServer(policy, "127.0.0.1", 0) as server:
        agent = AsyncWebSocketEnvClientAgent(server.url)
        infer = asyncio.create_task(agent.infer(observation(1), [0], [0]))
        await event(policy.began)
        server.stop()
        async with asyncio.timeout(SOON):
            with pytest.raises(ServerStopped):
                await infer
        policy.go_on.set()
    await agent.close()


async def test_a_stop_ends_a_rollout_in_mid_chunk() -> None:
    async with PolicyServer(EchoPolicy(), "127.0.0.1", 0) as server:
        agent = AsyncWebSocketEnvClientAgent(server.url)
        await agent.infer(observation(1), [0], [0])
    with pytest.raises(ServerStopped):
        await agent.feedback(observation(2), [0], [0], [1.0], [False], [False])
    await agent.close()


KILLED = """
import sys
from openenv.policy import WebSocketEnvClientAgent
agent = WebSocketEnvClientAgent(sys.argv[1])
agent.infer({"states": {"t": [[1.0]]}}, [0], [0])
print("in mid-chunk", flush=True)
sys.stdin.read()
"""


def test_a_client_process_that_is_killed_in_mid_chunk() -> None:
    policy = EchoPolicy()
    with (
        PolicyServer(policy, "127.0.0.1", 0) as server,
        subprocess.Popen(
            [sys.executable, "-c", KILLED, server.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "in mid-chunk\n"
        process.kill()
        process.wait()
        with WebSocketEnvClientAgent(server.url) as agent:
            sim = Counters(100_000, 3)
            rollout(agent, sim, 30)  # batches do not wait for the dead
            assert sim.replaced == 0
        assert server.metrics.internal_errors == 0
    assert check(policy.learned).keys() == {2}


async def test_the_key() -> None:
    async with PolicyServer(EchoPolicy(), "127.0.0.1", 0, api_key="s3cret") as server:
        agent = AsyncWebSocketEnvClientAgent(server.url, api_key="s3cret")
        assert (await agent.infer(observation(1), [0], [0])).action.tolist() == expected(1)
        await agent.close()
        await until(lambda: server.metrics.open_connections == 0)
        agent = AsyncWebSocketEnvClientAgent(server.url, api_key="wrong", connect_timeout_s=5)
        with pytest.raises(ConnectError) as refused:
            await agent.infer(observation(1), [0], [0])
        assert refused.value.status == 401
        await agent.close()


async def test_a_policy_that_fails_replaces_the_connection() -> None:
    class Fails(EchoPolicy):
        def feedback(self, transitions: Transitions) -> None:
            if 13 in transitions.rewards:
                raise KeyError("thirteen")

    async with PolicyServer(Fails(), "127.0.0.1", 0) as server:
        agent = AsyncWebSocketEnvClientAgent(server.url, backoff=Backoff(0.01, 0.05))
        await agent.infer(observation(1), [0], [0])
        await agent.feedback(observation(2), [0], [0], [13.0], [False], [False])
        with pytest.raises(ConnectionReplaced) as replaced:
            await agent.infer(observation(2), [0], [1])
        assert replaced.value.close_code == 1011
        assert (await agent.infer(observation(2), [0], [1])).action.tolist() == expected(2)
        assert server.metrics.connections == 2
        await agent.close()
