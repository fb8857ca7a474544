"""Rollouts with a real server, judged by what its policy was given: each number tells env, episode and step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from openenv.policy import PolicyServer, Transitions, WebSocketEnvClientAgent
from openenv.policy.rollout import Episode, GymnasiumVector, Rollout, Stepped
from openenv.testing import FaultProxy

HORIZON = 4


class Counter(gym.Env[Any, Any]):
    """Observes ``[env, episode, step]``; an episode takes ``3 + env % 5`` steps; each step's reward is 1."""

    observation_space = gym.spaces.Box(0, 1e6, (3,), np.float64)
    action_space = gym.spaces.Box(-1e9, 1e9, (3,), np.float64)

    def __init__(self, env: int) -> None:
        self.now = np.array([env, -1, 0], np.float64)
        self.length = 3 + env % 5
        self.over = True

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.now[1:] = self.now[1] + 1, 0
        self.over = False
        return self.now.copy(), {}

    def step(self, action: Any) -> Any:
        assert not self.over, "a step after the end"
        env, episode, step, position = action[0], action[1] // 1000, action[1] % 1000, action[2]
        assert (env, episode, step + position) == tuple(self.now), "an action for another env or another moment"
        self.now[2] += 1
        self.over = self.now[2] >= self.length
        return self.now.copy(), 1.0, self.over and env % 2 == 0, self.over and env % 2 == 1, {"is_success": self.over}


class Echo:
    """Chunks that say which observation they are for: ``[env, 1000 * episode + step, position]``."""

    action_horizon = HORIZON

    def __init__(self) -> None:
        self.got: list[tuple[Any, ...]] = []
        self.finished = False
        self.limit = 10**9

    def act(self, observations: Any) -> Any:
        rows = observations.states["obs"]
        chunks = np.zeros((len(rows), HORIZON, 3))
        chunks[:, :, 0] = rows[:, None, 0]
        chunks[:, :, 1] = rows[:, None, 1] * 1000 + rows[:, None, 2]
        chunks[:, :, 2] = np.arange(HORIZON)
        return chunks

    def feedback(self, told: Transitions) -> None:
        before, after = told.observations.states["obs"], told.next_observations.states["obs"]
        for row, key in enumerate(told.keys):
            done = bool(told.terminated[row] | told.truncated[row])
            episode = told.info[row].get("episode") if done else None
            self.got.append((key, tuple(before[row]), tuple(after[row]), float(told.rewards[row]), done, episode))
        self.finished = len(self.got) >= self.limit


def judge(got: Sequence[tuple[Any, ...]], *, lost: int = 0) -> dict[int, int]:
    """Each transition is of one env and one episode, its reward the steps in between. Returns ended episodes an env."""
    ended: dict[int, int] = defaultdict(int)
    for key, before, after, reward, done, episode in got:
        assert before[0] == after[0]
        assert before[0] % 100 == key.env
        assert before[1] == after[1], "no transition crosses episodes"
        assert 1 <= after[2] - before[2] == reward <= HORIZON
        length = 3 + after[0] % 5
        if done and (lost == 0 or after[2] == length):
            assert after[2] == length, "the terminal observation, not the next reset"
            assert (episode["r"], episode["l"], episode["s"], episode["mask"]) == (length, length, True, True)
            ended[key.env] += 1
    return ended


@pytest.fixture
def policy() -> Echo:
    return Echo()


@pytest.fixture
def server(policy: Echo) -> Iterator[PolicyServer]:
    with PolicyServer(policy, "127.0.0.1", 0, fatal_policy_errors=True) as server:
        yield server


def vector(count: int, mode: str) -> gym.vector.VectorEnv[Any, Any, Any]:
    makers = [lambda env=env: Counter(env) for env in range(count)]
    return gym.vector.SyncVectorEnv(makers, autoreset_mode=gym.vector.AutoresetMode[mode])


@pytest.mark.parametrize("mode", ["DISABLED", "NEXT_STEP", "SAME_STEP"])
@pytest.mark.parametrize("replan_steps", [None, 1, 3])
@pytest.mark.parametrize("count", [1, 2, 5, 16])
def test_envs_that_end_at_different_times(
    server: PolicyServer, policy: Echo, mode: str, replan_steps: int | None, count: int
) -> None:
    ended: list[Episode] = []
    with WebSocketEnvClientAgent(server.url) as agent:
        source = GymnasiumVector(vector(count, mode))
        rollout = Rollout(agent, source, replan_steps=replan_steps, seed=0, on_episode=ended.append)
        stats = rollout.run(episodes=6 * count)
        source.close()
    by_env = judge(policy.got)
    assert set(by_env) == set(range(count))
    assert stats.replaced == stats.lost == 0
    assert len(ended) == stats.episodes >= 6 * count
    assert sum(by_env.values()) in range(stats.episodes - count, stats.episodes + 1)
    assert all(one.reward == one.steps == 3 + one.env % 5 for one in ended)
    assert all(one.success and one.terminated == (one.env % 2 == 0) for one in ended)
    assert stats.reused > 0 or count < 3 or replan_steps is None
    assert set(stats.summary()) >= {"mean_reward", "reuse_share", "infer_s", "env_s", "feedback_s"}


@pytest.mark.parametrize("mode", ["DISABLED", "NEXT_STEP", "SAME_STEP"])
def test_cut_again_and_again_nothing_stale_arrives(server: PolicyServer, policy: Echo, mode: str) -> None:
    with (
        FaultProxy("127.0.0.1", server.port) as proxy,
        WebSocketEnvClientAgent(f"ws://127.0.0.1:{proxy.port}") as agent,
    ):
        source = GymnasiumVector(vector(16, mode))
        rollout = Rollout(agent, source, seed=0)
        for turn in range(6):
            rollout.run(steps=7 + turn)
            proxy.cut("rst" if turn % 2 else "fin")
        stats = rollout.run(episodes=32)
        source.close()
    assert stats.replaced >= 5
    by_env = judge(policy.got)  # the policy's own record: an env's actions are for its own observation of that moment
    assert set(by_env) == set(range(16))
    connections = {key.connection for key, *_ in policy.got}
    assert len(connections) >= 6


def test_the_server_ends_the_run(server: PolicyServer, policy: Echo) -> None:
    policy.limit = 40
    with WebSocketEnvClientAgent(server.url) as agent:
        stats = Rollout(agent, GymnasiumVector(vector(4, "DISABLED"))).run()
        assert stats.stopped
        assert Rollout(agent, GymnasiumVector(vector(4, "DISABLED"))).run(steps=3).stopped
    judge(policy.got)


class Losing:
    """Wraps a source: the env loses its session in the steps that are named, as a client's would be."""

    def __init__(self, inner: GymnasiumVector, when: dict[int, int]) -> None:
        self.inner, self.when, self.steps = inner, when, 0
        self.num_envs = inner.num_envs
        self.before: Any = None
        self.gone: set[int] = set()

    def reset(self, seed: int | None) -> None:
        self.inner.reset(seed)

    def observe(self, envs: Sequence[int]) -> Any:
        rows = self.inner.observe(envs)
        for place, env in enumerate(envs):
            if env in self.gone:
                rows["states"]["obs"][place] = self.before["states"]["obs"][env]
        return rows

    def step(self, actions: Any) -> Stepped:
        self.before = self.inner.observe(range(self.num_envs))
        step = self.inner.step(actions)
        env = self.when.get(self.steps)
        self.steps += 1
        if env is None:
            return step
        self.gone = {env}
        lost = np.arange(self.num_envs) == env
        return Stepped(step.rewards, step.terminated & ~lost, step.truncated & ~lost, lost, step.success)

    def renew(self, envs: Sequence[int]) -> bool:
        self.gone -= set(envs)
        return self.inner.renew(envs)

    def close(self) -> None:
        self.inner.close()


@pytest.mark.parametrize("when", [{0: 2}, {1: 2}, {3: 0}, {4: 2}, {2: 1, 6: 1, 9: 3}])
def test_a_session_that_is_lost_costs_its_episode_only(
    server: PolicyServer, policy: Echo, when: dict[int, int]
) -> None:
    with WebSocketEnvClientAgent(server.url) as agent:
        source = Losing(GymnasiumVector(vector(4, "DISABLED")), when)
        stats = Rollout(agent, source, seed=0).run(steps=40)
        source.close()
    assert stats.lost == len(when)
    judge(policy.got, lost=len(when))
    cut_short = [one for one in policy.got if one[4] and one[2][2] < 3 + one[2][0] % 5]
    for _, before, after, reward, _, episode in cut_short:
        assert after[2] - before[2] == reward  # the last good observation, and the steps that led to it
        assert episode is None or not episode["mask"]
    assert len(cut_short) + stats.replaced == len(when), "told as truncated, or, with no step behind it, not at all"


class Choice(gym.Env[Any, Any]):
    """Takes 5, 6 or 7; an episode takes ``2 + env`` steps."""

    observation_space = gym.spaces.Box(0, 1e6, (2,), np.float64)
    action_space = gym.spaces.Discrete(3, start=5)

    def __init__(self, env: int) -> None:
        self.now = np.array([env, 0], np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.now[1] = 0
        return self.now.copy(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.now[1] += 1
        return self.now.copy(), 1.0, bool(self.now[1] >= 2 + self.now[0]), False, {}


class Six:
    """Chooses 6, twice a chunk."""

    action_horizon = 2

    def act(self, observations: Any) -> Any:
        return np.full((len(observations.states["obs"]), 2, 1), 6.0)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("own", [False, True], ids=["ActionMap", "act="])
def test_an_env_that_resets_itself_is_given_no_action_that_nobody_chose(count: int, own: bool) -> None:
    seen: set[float] = set()

    def act(rows: Any) -> Any:
        seen.update(rows.reshape(-1).tolist())
        return rows.reshape(-1).astype(np.int64)

    makers = [lambda env=env: Choice(env) for env in range(count)]
    envs = gym.vector.SyncVectorEnv(makers, autoreset_mode=gym.vector.AutoresetMode.NEXT_STEP)
    with PolicyServer(Six(), "127.0.0.1", 0) as server, WebSocketEnvClientAgent(server.url) as agent:
        stats = Rollout(agent, GymnasiumVector(envs, act=act if own else None)).run(episodes=4 * count)
    assert stats.episodes >= 4 * count
    assert seen == ({6.0} if own else set())
