"""The errors that a server raises, under the path where env packages look for them."""

from openenv.core.exceptions import (
    ConcurrencyConfigurationError,
    EnvironmentFactoryError,
    InvalidActionError,
    OpenEnvError,
    SessionCapacityError,
    SessionCreationError,
    SessionNotFoundError,
)

__all__ = [
    "ConcurrencyConfigurationError",
    "EnvironmentFactoryError",
    "InvalidActionError",
    "OpenEnvError",
    "SessionCapacityError",
    "SessionCreationError",
    "SessionNotFoundError",
]
