"""Any registered Gymnasium environment, behind a network."""

from gymnasium_env.client import GymnasiumEnvClient
from gymnasium_env.models import GymnasiumAction, GymnasiumObservation, GymnasiumState

__all__ = ["GymnasiumAction", "GymnasiumEnvClient", "GymnasiumObservation", "GymnasiumState"]
