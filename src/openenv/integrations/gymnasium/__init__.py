"""Environments behind a network as Gymnasium environments, one or many at a time.

Needs the extra ``gymnasium``: ``pip install 'openenv[gymnasium]'``. The short name of this package is
``openenv.gymnasium``.
"""

from __future__ import annotations

try:
    import gymnasium as _gymnasium  # noqa: F401
except ImportError as error:
    raise ImportError("The Gymnasium adapters need Gymnasium: pip install 'openenv[gymnasium]'") from error

from openenv.integrations.gymnasium.env import GymnasiumEnv
from openenv.integrations.gymnasium.spaces import space_from_schema, space_to_schema
from openenv.integrations.gymnasium.values import value_from_wire, value_to_wire
from openenv.integrations.gymnasium.vector import VectorEnv

__all__ = [
    "GymnasiumEnv",
    "VectorEnv",
    "space_from_schema",
    "space_to_schema",
    "value_from_wire",
    "value_to_wire",
]
