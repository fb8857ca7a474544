"""An environment package as people write them for upstream, with today's import paths."""

from .client import LettersEnv
from .models import LettersAction, LettersObservation, LettersState

__all__ = ["LettersAction", "LettersEnv", "LettersObservation", "LettersState"]
