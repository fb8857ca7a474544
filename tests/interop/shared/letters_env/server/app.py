"""Server app of the letters environment."""

import os

from openenv.core.env_server import create_app

try:
    from ..models import LettersAction, LettersObservation
    from .letters_environment import LettersEnvironment
except ImportError:
    from models import LettersAction, LettersObservation
    from server.letters_environment import LettersEnvironment

app = create_app(
    LettersEnvironment,
    LettersAction,
    LettersObservation,
    env_name="letters_env",
    max_concurrent_envs=int(os.getenv("MAX_CONCURRENT_ENVS", "4")),
)
