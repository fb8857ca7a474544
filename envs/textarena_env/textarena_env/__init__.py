"""The games of TextArena as environments: the client and what crosses the wire. The server is in ``textarena_env.server``."""

from __future__ import annotations

from textarena_env.client import TextArenaEnv
from textarena_env.models import TextArenaAction, TextArenaMessage, TextArenaObservation, TextArenaState

__all__ = ["TextArenaAction", "TextArenaEnv", "TextArenaMessage", "TextArenaObservation", "TextArenaState"]
