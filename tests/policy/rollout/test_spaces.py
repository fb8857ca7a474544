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


SPOILED = {
    "past the end": (spaces.Discrete(3, start=5), [[5.0], [8.0]], "env 1 is 8"),
    "before the start": (spaces.Discrete(3, start=5), [[0.0], [5.0]], "env 0 is 0"),
    "no number for Discrete": (spaces.Discrete(3), [[1.0], [np.nan]], "env 1 is nan"),
    "no number among scores": (spaces.Discrete(3), [[1.0, 2.0, 3.0], [1.0, np.nan, 3.0]], "env 1, value 1 is nan"),
    "past a choice": (spaces.MultiDiscrete([4, 2]), [[3, 1], [3, 2]], "env 1, value 1 is 2"),
    "before a choice": (spaces.MultiDiscrete([4, 2], start=[1, 5]), [[1, 5], [0, 5]], "env 1, value 0 is 0"),
    "past a choice with a start": (spaces.MultiDiscrete([4, 2], start=[1, 5]), [[4, 7]], "env 0, value 1 is 7"),
    "no number for MultiDiscrete": (spaces.MultiDiscrete([4, 2]), [[np.nan, 1.0]], "env 0, value 0 is nan"),
    "not binary": (spaces.MultiBinary(2), [[0, 1], [2, 0]], "env 1, value 0 is 2"),
    "below binary": (spaces.MultiBinary(2), [[0, -1]], "env 0, value 1 is -1"),
    "wrapped by a byte": (spaces.Box(0, 255, (2,), np.uint8), [[0, 255], [256, 0]], "env 1, value 0 is 256"),
    "negative for a byte": (spaces.Box(0, 255, (2,), np.uint8), [[-1.0, 0.0]], "env 0, value 0 is -1.0"),
    "past the bounds of whole numbers": (spaces.Box(-2, 2, (1,), np.int32), [[2], [3]], "env 1 is 3"),
    "infinite for whole numbers": (spaces.Box(-2, 2, (1,), np.int32), [[np.inf]], "env 0 is inf"),
    "more than 64 bits": (spaces.Box(-(2**63), 2**63 - 1, (1,), np.int64), [[2.0**63]], "env 0 is 9.2"),
    "no number for a Box": (spaces.Box(-1, 1, (2,), np.float32), [[0.0, 0.0], [0.0, np.nan]], "env 1, value 1 is nan"),
    "infinite in fewer bits": (spaces.Box(-np.inf, np.inf, (1,), np.float32), [[1e39]], "env 0 is 1e"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_an_action_that_a_space_does_not_hold_is_named(name: str) -> None:
    space, rows, wanted = SPOILED[name]
    with pytest.raises(ValueError, match=f"the server's action for {wanted}"):
        ActionMap(space)(np.array(rows))


@pytest.mark.parametrize(
    ("space", "rows"),
    [
        (spaces.Discrete(3, start=5), [[5.0], [6.6]]),
        (spaces.MultiDiscrete([4, 2], start=[1, 5]), [[1, 5], [4, 6]]),
        (spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])), [[1, 2, 3, 4]]),
        (spaces.MultiBinary([2, 2]), [[0, 1, 1, 0.4]]),
        (spaces.Box(0, 255, (2,), np.uint8), [[0, 254.6]]),
        (spaces.Box(np.array([-3, 4]), np.array([-2, 9]), dtype=np.int16), [[-2, 9]]),
    ],
)
def test_an_action_at_the_edge_of_a_space_is_held(space: Any, rows: Any) -> None:
    for row in ActionMap(space)(np.array(rows)):
        assert space.contains(row), row


def test_two_parts_of_one_name_are_refused() -> None:
    box, image = spaces.Box(-1, 1, (2,)), spaces.Box(0, 255, (4, 4), np.uint8)
    clash = spaces.Dict({"x.y": box, "x": spaces.Dict({"y": box})})
    with pytest.raises(TypeError, match=r"\['x', 'y'\] and \['x.y'\] .* 'x.y'"):
        ObservationMap(clash)
    with pytest.raises(TypeError, match="give obs="):
        ObservationMap(spaces.Dict({"a": spaces.Tuple([box]), "a.0": box}))
    mixed = ObservationMap(spaces.Dict({"x.y": image, "x": spaces.Dict({"y": box})}))  # an image and a state may
    seen = mixed({"x.y": np.zeros((1, 4, 4), np.uint8), "x": {"y": np.ones((1, 2))}})
    assert seen["images"].keys() == seen["states"].keys() == {"x.y"}
