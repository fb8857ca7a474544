"""What crosses the wire: a move in words, what the player sees after it, and the state of the game."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from openenv.core.env_server.types import Action, Observation, State

__all__ = ["TextArenaAction", "TextArenaMessage", "TextArenaObservation", "TextArenaState"]


class TextArenaMessage(BaseModel):
    """What somebody said to the player who is on turn."""

    sender_id: int = Field(description="A player's number; -1 is the game, and a text that holds several voices.")
    content: str = Field(description="The text.")
    category: str = Field(description="TextArena's name of its kind, as GAME_BOARD; MESSAGE where it tells none.")


class TextArenaAction(Action):
    """A move as the game reads it; most look for their part in square brackets."""

    message: str = Field(description="What the player says, as [4 2 7] in Sudoku.")


class TextArenaObservation(Observation):
    """What the player on turn sees. ``reward`` and ``done`` are inherited."""

    prompt: str = Field(description="The text that the episode began with: the rules, and the first board.")
    messages: list[TextArenaMessage] = Field(
        default_factory=list, description="Usually one: everything said so far in this episode, the newest at the end."
    )
    current_player_id: int = Field(default=0, description="Who is on turn.")
    legal_players: list[int] = Field(default_factory=list, description="The numbers of all players.")
    info: dict[str, Any] = Field(
        default_factory=dict, description="What the game says of the move; `reward_signals` is a dict of numbers."
    )


class TextArenaState(State):
    """The game as its server sees it. ``episode_id`` and ``step_count`` are inherited."""

    env_id: str = Field(description="TextArena's name of the game.")
    num_players: int = Field(default=1, description="Players, all of whom this session plays.")
    max_turns: int | None = Field(default=None, description="Turns of a game, where the server sets it.")
    seed: int | None = Field(default=None, description="Deals the same game again.")
    turn: int = Field(default=0, description="Turns so far; refused moves are none.")
    last_reward: float = Field(default=0.0, description="Reward of the last step.")
    last_info: dict[str, Any] = Field(default_factory=dict, description="`info` of the last step.")
    raw_state: dict[str, Any] = Field(
        default_factory=dict, description="What TextArena keeps; it may hold the answer, so no player should see it."
    )
