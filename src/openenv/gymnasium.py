"""Short name of `openenv.integrations.gymnasium`: environments behind a network as Gymnasium environments."""

from __future__ import annotations

from openenv.integrations.gymnasium import (
    GymnasiumEnv,
    VectorEnv,
    space_from_schema,
    space_to_schema,
    value_from_wire,
    value_to_wire,
)

__all__ = [
    "GymnasiumEnv",
    "VectorEnv",
    "space_from_schema",
    "space_to_schema",
    "value_from_wire",
    "value_to_wire",
]
