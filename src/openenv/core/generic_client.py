"""`GenericEnvClient`: a client of any environment, with plain dicts instead of models."""

from __future__ import annotations

from typing import Any

from openenv.core.env_client import EnvClient

__all__ = ["GenericAction", "GenericEnvClient"]


class GenericAction(dict[str, Any]):
    """An action as a dict of its fields: ``GenericAction(row=1, col=2)``.

    Args:
        **fields: the action's fields.
    """

    def __init__(self, **fields: Any) -> None:
        super().__init__(fields)

    def __repr__(self) -> str:
        return f"GenericAction({', '.join(f'{name}={value!r}' for name, value in self.items())})"


class GenericEnvClient(EnvClient[Any, dict[str, Any], dict[str, Any]]):
    """An `EnvClient` whose actions may be dicts, models or objects, and whose observations and states are dicts."""
