"""What is sent: observations of known sizes, with bytes that nothing can compress."""

from __future__ import annotations

from typing import Any

import numpy as np

HORIZON, WIDTH = 16, 8

LADDER = {"states only": (), "48 KiB": (128,), "184 KiB": (224, 112), "588 KiB": (448,)}
"""Sides of the square images of one env."""


def observation(count: int, sides: tuple[int, ...] = (224, 224)) -> dict[str, Any]:
    """An observation of ``count`` envs.

    Args:
        count: envs.
        sides: pixels of the sides of each env's images.
    """
    random = np.random.default_rng(0)
    images = {
        f"camera {number}": random.integers(0, 256, (count, side, side, 3), np.uint8)
        for number, side in enumerate(sides)
    }
    return {
        "images": images,
        "states": {"joints": random.normal(size=(count, 8))},
        "text": np.array(["pick it up"] * count),
    }


def size_of(observation: dict[str, Any]) -> int:
    """Bytes of its arrays."""
    groups = (observation["images"], observation["states"])
    return sum(array.nbytes for group in groups for array in group.values())
