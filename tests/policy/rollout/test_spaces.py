"""What spaces become on the link, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from openenv.policy.observation import Observation
from openenv.policy.rollout import ActionMap, ObservationMap

SPACE = spaces.Dict(
    {
        "camera": spaces.Dict(
            {"left": spaces.Box(0, 255, (8, 6, 3), np.uint8), "grey": spaces.Box(0, 255, (8, 6), np.uint8)}
        ),
        "joints": spaces.Box(-1, 1, (2, 3), np.float32),
        "far": spaces.Box(-1, 1, (2,), np.float64),
        "mode": spaces.Discrete(3, start=5),
        "flags": spaces.MultiBinary(4),
        "parts": spaces.Tuple([spaces.MultiDiscrete([2, 3])]),
        "say": spaces.Text(8),
    }
)


def test_every_part_has_its_place() -> None:
    batched = batch_space(SPACE, 3)
    batched.seed(1)
    value = batched.sample()
    mapped = ObservationMap(SPACE)(value)
    assert set(mapped["images"]) == {"camera.left", "camera.grey"}
    assert mapped["images"]["camera.grey"].shape == (3, 8, 6, 1)
    assert set(mapped["states"]) == {"joints", "far", "mode", "flags", "parts.0"}
    assert (mapped["states"]["joints"].dtype, mapped["states"]["far"].dtype) == (np.float32, np.float64)
    np.testing.assert_array_equal(mapped["states"]["joints"], value["joints"].reshape(3, 6))
    np.testing.assert_array_equal(mapped["states"]["mode"].argmax(1) + 5, value["mode"])
    assert mapped["text"].tolist() == list(value["say"])
    assert len(Observation.of(mapped, 3)) == 3  # what the agent takes


def test_what_has_no_place_is_told() -> None:
    with pytest.raises(TypeError, match="give obs="):
        ObservationMap(spaces.Sequence(spaces.Discrete(2)))
    with pytest.raises(TypeError, match="more than one text"):
        ObservationMap(spaces.Tuple([spaces.Text(3), spaces.Text(3)]))
    with pytest.raises(TypeError, match="give act="):
        ActionMap(spaces.Text(3))


@pytest.mark.parametrize(
    ("space", "rows", "wanted"),
    [
        (
            spaces.Box(-1, 1, (2, 2), np.float32),
            np.arange(8.0).reshape(2, 4),
            np.arange(8.0, dtype="f4").reshape(2, 2, 2),
        ),
        (spaces.Discrete(3, start=1), np.array([1.0, 3.2]), [1, 3]),
        (spaces.Discrete(3, start=1), np.array([[0.1, 2, 1], [5, 1, 1]]), [2, 1]),
        (spaces.MultiDiscrete([4, 4]), np.array([[1.2, 2.9]]), [[1, 3]]),
    ],
)
def test_actions(space: Any, rows: Any, wanted: Any) -> None:
    found = ActionMap(space)(rows)
    np.testing.assert_array_equal(found, wanted)
    assert all(space.contains(np.asarray(row)) or space.contains(np.int64(row)) or row.max() > 1 for row in found)


@pytest.mark.parametrize(
    ("space", "rows"),
    [
        (spaces.Box(-1, 1, (3,)), np.zeros((2, 2))),
        (spaces.Discrete(3), np.zeros((1, 2))),
        (spaces.Discrete(3), np.array([3])),
    ],
)
def test_actions_that_do_not_fit(space: Any, rows: Any) -> None:
    with pytest.raises(ValueError, match=r"action|space"):
        ActionMap(space)(rows)
