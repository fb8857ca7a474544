"""The letters environment."""

import string
from typing import Any
from uuid import uuid4

from openenv.core.env_server.interfaces import Action, Environment, Observation, Transform

from ..models import LettersAction, LettersObservation, LettersState

WORDS = ("apple", "grape", "melon")


class Praise(Transform):
    """Adds a word to each observation."""

    def __call__(self, observation: Observation) -> Observation:
        observation.metadata["praise"] = "well done" if observation.done else "go on"
        return observation


class LettersEnvironment(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__(transform=Praise())
        self._word = WORDS[0]
        self._state = LettersState(episode_id=str(uuid4()), step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> LettersObservation:
        self._word = WORDS[(seed or 0) % len(WORDS)]
        self._state = LettersState(episode_id=episode_id or str(uuid4()), step_count=0, word_length=len(self._word))
        return self._observe(reward=0.0)

    def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> LettersObservation:
        if not isinstance(action, LettersAction):
            raise ValueError(f"Expected LettersAction, got {type(action)}")
        self._state.step_count += 1
        self._state.guessed.append(action.letter)
        return self._observe(reward=1.0 if action.letter in self._word else -0.5)

    def _observe(self, reward: float) -> LettersObservation:
        shown = "".join(letter if letter in self._state.guessed else "_" for letter in self._word)
        return self._apply_transform(
            LettersObservation(
                shown=shown,
                tries_left=9 - self._state.step_count,
                legal=[one for one in string.ascii_lowercase if one not in self._state.guessed],
                reward=reward,
                done="_" not in shown,
            )
        )

    @property
    def state(self) -> LettersState:
        return self._state
