"""How an info is cut into one map for each env."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from openenv.core.exceptions import PolicyProtocolError
from openenv.policy.info import split_info


@pytest.mark.parametrize("count", [1, 2, 5])
def test_an_empty_info_fits_any_number(count: int) -> None:
    assert split_info({}, count) == [{}] * count


def test_arrays_are_cut_and_the_rest_belongs_to_all() -> None:
    info = {
        "episode": {"r": np.array([1.5, 2.5]), "mask": np.array([True, False]), "mean": 0.5},
        "names": ["a", "b"],
        "other": np.arange(3),
        "task": "pick",
        "deep": {"er": {"x": np.array([1, 2])}},
    }
    first, second = split_info(info, 2)
    assert first["episode"] == {"r": 1.5, "mask": True, "mean": 0.5}
    assert second["episode"] == {"r": 2.5, "mask": False, "mean": 0.5}
    assert first["names"] == second["names"] == ["a", "b"]
    assert second["other"].tolist() == [0, 1, 2]
    assert second["task"] == "pick"
    assert second["deep"]["er"]["x"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("info", "fits"),
    [
        ({"task": "pick"}, 1),
        ({"names": ["a", "b"]}, 1),
        ({"scalar": np.array(3)}, 1),
        ({"deep": {"er": {"x": np.zeros(2)}}}, 1),
        ({"first": np.zeros(3), "second": np.zeros(2)}, 3),
        ({"nested": {"first": np.zeros(2)}, "second": np.zeros(3)}, 2),
        ({"none": np.zeros(0)}, 0),
    ],
)
def test_the_first_array_counts(info: dict[str, Any], fits: int) -> None:
    for count in range(1, 4):
        if count == fits:
            assert len(split_info(info, count)) == fits
        else:
            with pytest.raises(PolicyProtocolError):
                split_info(info, count)
