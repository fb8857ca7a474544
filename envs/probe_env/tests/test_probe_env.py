"""The probe environment: its sums, and its two programs with each other."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from openenv.testing.processes import free_port
from probe_env import ProbeVectorEnv


def test_an_episode_counts_and_ends() -> None:
    env = ProbeVectorEnv(3, action_dim=2)
    for step in range(1, 4):
        done = env.step(np.full((3, 2), 10.0 * step))
        seen = env.observe()
        assert seen["states"]["t"].ravel().tolist() == [step] * 3
        assert seen["states"]["a"].tolist() == [[10.0 * step] * 2] * 3
        assert done.rewards.tolist() == [1.0] * 3
        assert not done.truncated.any()
        assert done.terminated.tolist() == [step == 3, False, False]
    with pytest.raises(RuntimeError, match=r"envs \[0\] have ended"):
        env.step(np.zeros((3, 2)))
    assert env.observe([0])["states"]["t"] == 3, "the terminal observation, until the reset"
    assert env.reset([0])["states"]["t"] == 0
    assert env.observe([1])["states"]["t"] == 3, "the others go on"


def test_lengths_repeat_with_the_index() -> None:
    assert ProbeVectorEnv(7).lengths.tolist() == [3, 5, 7, 3, 5, 7, 3]


@pytest.mark.parametrize("count", [0, 1001])
def test_how_many(count: int) -> None:
    with pytest.raises(ValueError, match="1 to 1000"):
        ProbeVectorEnv(count)


def test_the_programs_play_until_the_run_is_over() -> None:
    port = str(free_port())
    server = [sys.executable, "-m", "probe_env.server", "--port", port, "--max-feedbacks", "30"]
    client = [sys.executable, "-m", "probe_env.client", "--url", f"ws://127.0.0.1:{port}", "--num-envs", "5"]
    with subprocess.Popen(server) as serving:
        try:
            done = subprocess.run(client, capture_output=True, text=True, check=False, timeout=60)
            assert done.returncode == 0, done.stderr
            assert serving.wait(30) == 0
        finally:
            serving.kill()
    episodes = int(done.stdout.split(" episodes")[0])
    assert episodes >= 15
    assert " 0 reconnects" in done.stdout
