"""PPO of stable-baselines3, as it is, learns CartPole over eight sessions, one of which loses its socket in mid-run.

``make test-sb3`` runs this, where torch is.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium
import pytest
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from openenv import GenericEnvClient
from openenv.gymnasium import GymnasiumEnv
from openenv.testing import FaultProxy, ServerProcess

torch.set_num_threads(1)  # a model this small gains nothing, and the machine may be busy

SESSIONS = 8
STEPS = 16_384


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("gymnasium_env.server.app:app", environ={"GYM_ENV_ID": "CartPole-v1"}) as server:
        yield server


class Watch(BaseCallback):
    """Notes what every episode returned and which sessions were lost, and cuts the socket half-way, if there is one."""

    def __init__(self, proxy: FaultProxy | None = None) -> None:
        super().__init__()
        self.proxy = proxy
        self.returns: list[float] = []
        self.lost: list[int] = []
        self.cuts = 0

    def _on_step(self) -> bool:
        for index, info in enumerate(self.locals["infos"]):
            if "episode" in info:
                self.returns.append(info["episode"]["r"])
            if info.get("session_lost"):
                assert info["TimeLimit.truncated"]  # so PPO takes the value of the last observation, not zero
                self.lost.append(index)
        if self.proxy is not None and not self.cuts and self.num_timesteps >= STEPS // 2:
            self.cuts = self.proxy.cut("rst")
        return True


@pytest.fixture(scope="module")
def local_returns() -> list[float]:
    """What the same training returns without a network."""
    envs = DummyVecEnv([lambda: Monitor(gymnasium.make("CartPole-v1"))] * SESSIONS)
    watch = Watch()
    train(envs, watch)
    return watch.returns


def train(envs: DummyVecEnv, watch: BaseCallback) -> None:
    model = PPO(
        "MlpPolicy",
        envs,
        n_steps=64,
        batch_size=256,
        n_epochs=10,
        gamma=0.98,
        gae_lambda=0.8,
        learning_rate=2e-3,
        seed=1,
        device="cpu",
    )
    model.learn(STEPS, callback=watch)


def means(returns: list[float]) -> tuple[float, float]:
    """Mean return of the first and of the last quarter of the episodes."""
    quarter = len(returns) // 4
    return sum(returns[:quarter]) / quarter, sum(returns[-quarter:]) / quarter


@pytest.mark.parametrize("resume", [True, False])
def test_ppo_learns_cartpole_though_a_socket_is_cut(
    server: ServerProcess, local_returns: list[float], resume: bool
) -> None:
    with FaultProxy("127.0.0.1", server.port) as proxy:

        def make(url: str) -> Any:
            return Monitor(GymnasiumEnv(GenericEnvClient(base_url=url, resume=resume)))

        urls = [proxy.url, *[server.url] * (SESSIONS - 1)]
        envs = DummyVecEnv([partial(make, url) for url in urls])
        watch = Watch(proxy)
        train(envs, watch)
        sessions = [env.unwrapped.session for env in envs.envs]
        envs.close()

    assert watch.cuts == 1
    assert [one.resumes for one in sessions] == [1 if resume else 0] + [0] * (SESSIONS - 1)
    assert [one.number for one in sessions] == [1 if resume else 2] + [1] * (SESSIONS - 1)
    assert watch.lost == ([] if resume else [0])
    first, last = means(watch.returns)
    print(f"\nmean return {first:.1f} -> {last:.1f} in {len(watch.returns)} episodes")
    assert last >= 2 * first
    if resume:  # nobody noticed: not one number differs from a run in one process
        assert watch.returns == local_returns
