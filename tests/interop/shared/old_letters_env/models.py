"""Models."""

from dataclasses import dataclass

from openenv_core.env_server.types import Action, Observation

__all__ = ["Note", "OldAction", "OldObservation"]


@dataclass
class Note:
    text: str


class OldAction(Action):
    letter: str


class OldObservation(Observation):
    said: str = ""
    note: Note | None = None
