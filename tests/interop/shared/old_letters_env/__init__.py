"""The same kind of package with the import paths of the old name, and an environment class that skips super()."""

from .client import OldLettersEnv
from .models import OldAction, OldObservation

__all__ = ["OldAction", "OldLettersEnv", "OldObservation"]
