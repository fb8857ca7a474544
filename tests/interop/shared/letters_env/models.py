"""Models of the letters environment."""

from pydantic import Field

from openenv.core.env_server.types import Action, Observation, State


class LettersAction(Action):
    letter: str = Field(..., min_length=1, max_length=1, description="the letter to guess")


class LettersObservation(Observation):
    shown: str = ""
    tries_left: int = 0
    legal: list[str] = Field(default_factory=list)


class LettersState(State):
    word_length: int = 0
    guessed: list[str] = Field(default_factory=list)
