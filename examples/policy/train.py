"""Trains a small policy over the policy link, on the CPU, in a minute or two, and draws how its reward grows.

A policy server with the learner runs in a thread, a rollout of CartPole is its client; with ``--sessions`` the carts
stand behind an environment server instead, one session each. Needs ``openenv[policy,gymnasium]``; matplotlib for the
picture.

    python train.py
    python train.py --sessions 8 --plot sessions.png
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small products: threads only cost

import gymnasium
import numpy as np

from openenv.policy import PolicyServer, WebSocketEnvClientAgent
from openenv.policy.rollout import Clients, GymnasiumVector, Rollout, RolloutStats, Source

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from learner import Reinforce


@contextmanager
def sessions(count: int) -> Iterator[Source]:
    """So many sessions of an environment server, which is started for them."""
    import uvicorn
    from cartpole_env import app

    from openenv import GenericEnvClient

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        threading.Event().wait(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    source = Clients(
        [GenericEnvClient(f"http://127.0.0.1:{port}").sync() for _ in range(count)],
        obs=lambda seen: {"states": {"obs": np.array([one["state"] for one in seen], np.float32)}},
        act=lambda action: {"side": int(action[0])},
    )
    try:
        yield source
    finally:
        source.close()
        server.should_exit = True
        thread.join(10)


@contextmanager
def simulators(count: int) -> Iterator[Source]:
    """So many carts in this process."""
    source = GymnasiumVector(gymnasium.make_vec("CartPole-v1", num_envs=count))
    try:
        yield source
    finally:
        source.close()


def train(
    source: Source, *, seed: int, episodes: int, reuse: bool = True, through: Callable[[int], str] | None = None
) -> Reinforce:
    """Learn from a source until the learner has seen enough.

    Args:
        source: the carts.
        seed: of the learner and of the carts.
        episodes: how many to see.
        reuse: send each observation once.
        through: from the server's port to the address that the client dials; straight to it by default.
    """
    learner = Reinforce(seed, episodes)

    def tell(stats: RolloutStats) -> None:
        if stats.vector_steps % 200 == 0:
            told = (
                f"{stats.episodes} episodes, mean reward {stats.mean_reward:.1f}, {stats.steps_per_second:.0f} steps/s"
            )
            sys.stderr.write(f"\r{told}  ")

    with PolicyServer(learner, "127.0.0.1", 0, fatal_policy_errors=True) as server:
        where = server.url if through is None else through(server.port)
        with WebSocketEnvClientAgent(where, reuse_feedback_obs=reuse) as agent:
            stats = Rollout(agent, source, seed=seed, on_progress=tell).run()
    sys.stderr.write("\n" + ", ".join(f"{name} {value}" for name, value in stats.summary().items()) + "\n")
    return learner


def draw(returns: list[float], path: Path) -> None:
    """Write the picture; without matplotlib, say so."""
    try:
        import matplotlib
    except ImportError:
        sys.stderr.write("No picture: pip install matplotlib\n")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(returns, ".", color="#9db8d6", markersize=3, label="episode")
    width = max(len(returns) // 20, 1)
    mean = np.convolve(returns, np.ones(width) / width, "valid")
    axes.plot(np.arange(width - 1, len(returns)), mean, color="#1f5fa8", linewidth=2, label=f"mean of {width}")
    axes.set(xlabel="episode", ylabel="reward", title="CartPole, learnt over the policy link", ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
    sys.stderr.write(f"Drawn: {path}\n")


def main() -> int:
    """Train, draw, and tell by how much the reward has grown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=600)
    parser.add_argument("--envs", type=int, default=8, help="carts in this process")
    parser.add_argument("--sessions", type=int, default=0, help="carts behind an environment server instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-reuse", action="store_true", help="send every observation twice")
    parser.add_argument("--plot", type=Path, default=Path("reward.png"))
    told = parser.parse_args()
    place: Any = sessions(told.sessions) if told.sessions else simulators(told.envs)
    with place as source:
        learner = train(source, seed=told.seed, episodes=told.episodes, reuse=not told.no_reuse)
    draw(learner.returns, told.plot)
    quarter = len(learner.returns) // 4
    first, last = np.mean(learner.returns[:quarter]), np.mean(learner.returns[-quarter:])
    sys.stdout.write(f"mean reward of the first quarter {first:.1f}, of the last {last:.1f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
