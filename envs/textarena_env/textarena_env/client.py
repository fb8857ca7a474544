"""The client. It needs no TextArena."""

from __future__ import annotations

from openenv.core.env_client import EnvClient
from textarena_env.models import TextArenaAction, TextArenaObservation, TextArenaState

__all__ = ["TextArenaEnv"]


class TextArenaEnv(EnvClient[TextArenaAction, TextArenaObservation, TextArenaState]):
    """A player at a TextArena server; the type parameters say all that a client of typed models needs."""
