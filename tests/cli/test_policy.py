"""``openenv policy``: rollout, serve and probe, each as a process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from openenv.policy import PolicyServer, Transitions
from openenv.testing.processes import free_port

POLICY = [sys.executable, "-m", "openenv.cli", "policy"]


class Left:
    """Pushes to the left until it has seen enough."""

    action_horizon = 2
    action_dim = 1
    metadata: ClassVar = {"algorithm": "none"}

    def __init__(self, limit: int = 10**9) -> None:
        self.connections: set[int] = set()
        self.seen = 0
        self.limit = limit

    @property
    def finished(self) -> bool:
        return self.seen >= self.limit

    def act(self, observations: Any) -> Any:
        import numpy as np

        self.connections |= {key.connection for key in observations.keys}
        return np.zeros((len(observations), 2, 1), np.float32)

    def feedback(self, told: Transitions) -> None:
        self.seen += len(told)


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*POLICY, *arguments], capture_output=True, text=True, timeout=100, check=False, **options)


@pytest.fixture
def served() -> Iterator[tuple[Left, PolicyServer]]:
    policy = Left()
    with PolicyServer(policy, "127.0.0.1", 0) as server:
        yield policy, server


def test_a_rollout_of_two_processes_is_told_and_recorded(served: tuple[Left, PolicyServer], tmp_path: Path) -> None:
    policy, server = served
    record = tmp_path / "deep" / "episodes.jsonl"
    done = run(
        *["rollout", "CartPole-v1", "--server", server.url, "--num-envs", "3", "--episodes", "9", "--processes", "2"],
        *["--record", str(record), "--json", "--seed", "5"],
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["process"] for one in results] == [0, 1]
    assert all(one["episodes"] >= 9 and 8 <= one["mean_steps"] <= 11 for one in results)
    episodes = [json.loads(line) for line in record.read_text().splitlines()]
    assert {one["process"] for one in episodes} == {0, 1}
    assert len(episodes) == sum(one["episodes"] for one in results)
    assert all(one["reward"] == one["steps"] for one in episodes)
    assert len(policy.connections) == 2
    by_process = [sorted(one["steps"] for one in episodes if one["process"] == process) for process in (0, 1)]
    assert by_process[0] != by_process[1], "each process has seeds of its own"


def test_the_server_ends_the_run(served: tuple[Left, PolicyServer]) -> None:
    served[0].limit = 20
    done = run("rollout", "CartPole-v1", "--server", served[1].url, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["stopped"] is True


def test_one_process_that_fails_ends_the_others(served: tuple[Left, PolicyServer], tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def obs(seen):\n    raise ValueError('no such camera')\n")
    done = run(
        *["rollout", "CartPole-v1", "--server", served[1].url, "--processes", "2", "--obs", "bad:obs"], cwd=tmp_path
    )
    assert done.returncode == 1
    assert "no such camera" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["rollout", "NoSuchEnv-v9", "--server", "SERVER"], 1, "NoSuchEnv"),
        (["rollout", "http://127.0.0.1:1", "--server", "SERVER"], 2, "--obs and --act"),
        (["rollout", "CartPole-v1", "--server", "ws://127.0.0.1:1", "--connect-timeout", "0.3"], 1, "refused"),
        (["rollout", "Pendulum-v1", "--server", "SERVER", "--num-envs", "0"], 2, "num-envs"),
        (["serve", "nothing"], 2, "module:object"),
        (["serve", "json:loads"], 1, "cannot be made"),
        (["serve", "no_such_module:Policy"], 2, "no_such_module"),
        (["probe", "ws://127.0.0.1:1", "--timeout", "0.3"], 1, "refused"),
    ],
)
def test_what_is_wrong_is_told(served: tuple[Left, PolicyServer], arguments: list[str], code: int, said: str) -> None:
    done = run(*[served[1].url if one == "SERVER" else one for one in arguments])
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_serve_and_probe(tmp_path: Path) -> None:
    port = str(free_port())
    examples = Path(__file__).resolve().parents[2] / "examples" / "policy"
    command = [*POLICY, "serve", "learner:Reinforce", "--port", port]
    with subprocess.Popen(command, cwd=examples, stderr=subprocess.PIPE, text=True) as serving:
        try:
            looked = run("probe", f"ws://127.0.0.1:{port}", "--json", "--timeout", "60")
            assert looked.returncode == 0, looked.stderr
            told = json.loads(looked.stdout)
            assert told["metadata"]["algorithm"] == "REINFORCE"
            assert told["metadata"]["features"] == ["reuse-feedback-obs"]
            assert told["connect_ms"] > 0
            assert "answered in" in run("probe", f"ws://127.0.0.1:{port}").stdout
        finally:
            serving.terminate()
            _, errors = serving.communicate(timeout=30)
    assert "Traceback" not in errors
