"""Numbers beside the reward, for reward functions that want more than the end of a game. No game rules are here.

They come with each step as ``observation.info["reward_signals"]``: ``game.progress`` (as the game itself counts it;
1.0 is solved, and below 0 is worse than the start), ``game.invalid_move`` (1.0 for a refused move), and for Wordle
``wordle.greens``, ``wordle.yellows``, ``wordle.repetitions`` and ``wordle.correct``.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

__all__ = ["GameSignals", "WordleSignals", "signals_for"]

_MARKS = re.compile(r"^[GYX](?: [GYX])+$", re.M)
_WORD = re.compile(r"\[(\w+)\]")


class GameSignals:
    """What any game can tell. One instance is one episode."""

    def of_step(self, message: str, said: str, reward: float, game: Any) -> dict[str, float]:
        """Judge one step.

        Args:
            message: the move.
            said: what the game answered, without what it had said before.
            reward: of the step.
            game: TextArena's game, without wrappers, after the step.

        Returns:
            Numbers by name; ``game.progress`` only where the game counts it.
        """
        state = game.state
        told = (getattr(state, "game_info", None) or {}).get(state.current_player_id, {})
        refused = bool(getattr(state, "error_count", 0)) or bool(told.get("invalid_move"))
        signals = {"game.invalid_move": float(refused)}
        progress = getattr(game, "_get_percentage_completion", None)
        if progress is not None:
            signals["game.progress"] = float(progress())
        return signals


class WordleSignals(GameSignals):
    """Shares of green and yellow letters, and whether the word is a new one."""

    def __init__(self) -> None:
        self._guesses: Counter[str] = Counter()

    def of_step(self, message: str, said: str, reward: float, game: Any) -> dict[str, float]:
        """Judge one guess; see the base class.

        Returns:
            Beside the numbers of any game: ``wordle.greens`` and ``wordle.yellows`` (share of the letters),
            ``wordle.repetitions`` (1.0 for a new word, one less each time it was guessed before), ``wordle.correct``
            (the game's reward).
        """
        word = _WORD.search(message)
        before = self._guesses[word[1].lower()] if word else 0
        if word:
            self._guesses[word[1].lower()] += 1
        marks = (_MARKS.findall(said) or [""])[-1].split()
        return {
            **super().of_step(message, said, reward, game),
            "wordle.greens": marks.count("G") / max(len(marks), 1),
            "wordle.yellows": marks.count("Y") / max(len(marks), 1),
            "wordle.repetitions": 1.0 - before,
            "wordle.correct": reward,
        }


def signals_for(env_id: str) -> GameSignals:
    """The signals of a game, for one episode.

    Args:
        env_id: TextArena's name of the game, as ``Wordle-v0-hardcore``.
    """
    return WordleSignals() if env_id.startswith("Wordle-") else GameSignals()
