"""Two transforms that other transforms are built with."""

from __future__ import annotations

from collections.abc import Iterable

from openenv.core.env_server.interfaces import Transform
from openenv.core.env_server.types import Observation

__all__ = ["CompositeTransform", "NullTransform"]


class CompositeTransform(Transform[Observation]):
    """Applies transforms one after another, each to the output of the one before.

    Args:
        transforms: the transforms, first one first.
    """

    def __init__(self, transforms: Iterable[Transform[Observation]]) -> None:
        self.transforms = list(transforms)

    def __call__(self, observation: Observation) -> Observation:
        """Run the observation through all of them."""
        for transform in self.transforms:
            observation = transform(observation)
        return observation


class NullTransform(Transform[Observation]):
    """Gives every observation back as it came."""

    def __call__(self, observation: Observation) -> Observation:
        """Return ``observation``."""
        return observation
