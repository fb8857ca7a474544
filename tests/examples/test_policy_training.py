"""The example that trains over the policy link: it learns, the same with and without reuse, through cuts and losses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openenv.policy import Transitions
from openenv.testing import FaultProxy

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "policy"
EPISODES = 400


@pytest.fixture(scope="module")
def train() -> Iterator[Any]:
    sys.path.insert(0, str(FOLDER))
    try:
        import train

        yield train
    finally:
        sys.path.remove(str(FOLDER))


def growth(returns: list[float]) -> float:
    quarter = len(returns) // 4
    return float(np.mean(returns[-quarter:]) / np.mean(returns[:quarter]))


@pytest.fixture(scope="module")
def learnt(train: Any) -> Any:
    with train.simulators(8) as source:
        return train.train(source, seed=0, episodes=EPISODES)


def test_it_learns(learnt: Any) -> None:
    assert len(learnt.returns) >= EPISODES
    assert growth(learnt.returns) >= 2


def test_without_reuse_the_weights_are_the_same_bit_for_bit(train: Any, learnt: Any) -> None:
    with train.simulators(8) as source:
        other = train.train(source, seed=0, episodes=EPISODES, reuse=False)
    assert other.weights.tobytes() == learnt.weights.tobytes()
    assert other.returns == learnt.returns


def watched(train: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Faults of what the learner is given: a transition that is none of CartPole's, by the physics of one step."""
    faults: list[str] = []
    feedback = train.Reinforce.feedback

    def look(self: Any, told: Transitions) -> None:
        before, after = told.observations.states["obs"], told.next_observations.states["obs"]
        moved = before[:, 0] + 0.02 * before[:, 1]  # where the cart is after one step of Euler's rule
        for row, key in enumerate(told.keys):
            whole = told.rewards[row] == 1.0
            if whole and not np.isclose(after[row, 0], moved[row], atol=1e-4):
                faults.append(f"{key}: {before[row]} -> {after[row]}")
        feedback(self, told)

    monkeypatch.setattr(train.Reinforce, "feedback", look)
    return faults


def test_cut_again_and_again_it_learns_all_the_same(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = watched(train, monkeypatch)
    cuts = 0
    with train.simulators(8) as source, FaultProxy("127.0.0.1", 1) as proxy:
        step, steps = source.step, 0

        def cutting(actions: Any) -> Any:
            nonlocal steps, cuts
            steps += 1
            if steps % 150 == 0 and cuts < 5:
                cuts += proxy.cut("rst" if cuts % 2 else "fin")
            return step(actions)

        def through(port: int) -> str:
            proxy.target_port = port
            return f"ws://127.0.0.1:{proxy.port}"

        source.step = cutting
        learner = train.train(source, seed=0, episodes=EPISODES, through=through)
    assert cuts >= 4
    assert faults == []
    assert growth(learner.returns) >= 1.5


def test_one_of_eight_sessions_is_killed_again_and_again(train: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = watched(train, monkeypatch)
    monkeypatch.setenv("OPENENV_FEATURES", "none")  # a plain server, where a lost socket is a lost session
    with train.sessions(8) as source:
        step, steps, killed = source.step, 0, 0

        def killing(actions: Any) -> Any:
            nonlocal steps, killed
            steps += 1
            if steps % 40 == 0:
                client = source._clients[3].async_client
                socket = client._ws
                if socket is not None:
                    socket.transport.get_extra_info("socket")._sock.shutdown(2)
                    killed += 1
            return step(actions)

        source.step = killing
        learner = train.train(source, seed=0, episodes=120)
    assert killed >= 3
    assert faults == []
    assert len(learner.returns) >= 120


def test_the_program_draws_and_tells(tmp_path: Path) -> None:
    picture = tmp_path / "reward.png"
    command = [sys.executable, str(FOLDER / "train.py"), "--episodes", "60", "--envs", "4", "--plot", str(picture)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "mean reward of the first quarter" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
