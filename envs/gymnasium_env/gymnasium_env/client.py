"""The client: one session of the server. `openenv.gymnasium` makes a `gymnasium.Env` of such sessions."""

from __future__ import annotations

from gymnasium_env.models import GymnasiumAction, GymnasiumObservation, GymnasiumState
from openenv.core.env_client import EnvClient

__all__ = ["GymnasiumEnvClient"]


class GymnasiumEnvClient(EnvClient[GymnasiumAction, GymnasiumObservation, GymnasiumState]):
    """Act in a Gymnasium environment on a server, with what crosses the wire as it is."""
