"""The probe environment: episodes, observations, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from probe_env.vector import MAX_ENVS, ProbeVectorEnv


def test_episodes_have_three_five_and_seven_steps() -> None:
    env = ProbeVectorEnv(5)
    assert env.lengths.tolist() == [3, 5, 7, 3, 5]
    ended: dict[int, int] = {}
    for count in range(1, 8):
        step = env.step(np.full((5, 2), count))
        assert step.rewards.tolist() == [1.0] * 5
        assert not step.truncated.any()
        for one in np.flatnonzero(step.terminated).tolist():
            ended.setdefault(one, count)
            assert env.observe([one])["states"]["t"].tolist() == [[env.lengths[one]]]
            assert env.observe([one])["states"]["a"].tolist() == [[count, count]]
            assert env.reset([one])["states"]["t"].tolist() == [[0]]
    assert ended == {0: 3, 3: 3, 1: 5, 4: 5, 2: 7}


def test_an_ended_env_waits_for_its_reset() -> None:
    env = ProbeVectorEnv(2)
    for _ in range(3):
        env.step(np.zeros((2, 1)))
    with pytest.raises(RuntimeError, match=r"call reset\(\[0\]\)"):
        env.step(np.zeros((2, 1)))
    env.reset([0])
    env.step(np.zeros((2, 1)))
    assert env.observe()["states"]["t"].tolist() == [[1], [4]]


def test_observations_are_what_the_link_carries_and_own_their_memory() -> None:
    env = ProbeVectorEnv(3, action_dim=2)
    seen = env.observe([2, 0])
    assert set(seen) == {"images", "states", "text"}
    assert seen["images"] == {}
    assert [(name, array.dtype.str, array.shape) for name, array in seen["states"].items()] == [
        ("t", "<f8", (2, 1)),
        ("a", "<f8", (2, 2)),
    ]
    assert seen["text"].tolist() == ["count, env 2", "count, env 0"]
    env.step(np.ones((3, 2)))
    assert not seen["states"]["a"].any()


@pytest.mark.parametrize("count", [0, MAX_ENVS + 1])
def test_the_number_of_envs_is_bounded(count: int) -> None:
    with pytest.raises(ValueError, match="num_envs must be 1 to 1000"):
        ProbeVectorEnv(count)
