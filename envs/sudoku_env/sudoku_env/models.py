"""What crosses the wire: a move, what the player sees after it, and the state of the game."""

from __future__ import annotations

from pydantic import Field

from openenv.core.env_server.types import Action, Observation, State

__all__ = ["SudokuAction", "SudokuObservation", "SudokuState"]


class SudokuAction(Action):
    """Write a value into an empty cell. Rows, columns and values count from 1; row 1 is the top one."""

    row: int = Field(ge=1, le=9, description="Row of the cell, from 1 (top) to the size of the board.")
    col: int = Field(ge=1, le=9, description="Column of the cell, from 1 (left) to the size of the board.")
    value: int = Field(ge=1, le=9, description="Value to write, from 1 to the size of the board.")


class SudokuObservation(Observation):
    """The board after a reset or a move. ``reward`` and ``done`` are inherited."""

    board: list[list[int]] = Field(description="Rows from the top; 0 is an empty cell.")
    size: int = Field(description="Cells in a row: 4 or 9.")
    text: str = Field(description="The board drawn in text.")
    message: str = Field(description="What happened, in words.")
    legal: bool = Field(default=True, description="Whether the move was accepted; a refused one changed nothing.")
    mistakes: int = Field(default=0, description="Refused moves in this episode.")
    remaining: int = Field(description="Cells that are still empty.")
    solved: bool = Field(default=False, description="Whether the board is full and right.")
    board_id: str = Field(description="Which environment instance answered; a new one has a new id.")


class SudokuState(State):
    """The game as its server sees it, the solution left out. ``episode_id`` and ``step_count`` are inherited."""

    board_id: str = Field(description="Which environment instance this is.")
    was_reset: bool = Field(default=False, description="Whether a board was dealt; before that there is no game.")
    size: int = Field(default=0, description="Cells in a row; 0 before the first reset.")
    seed: int | None = Field(default=None, description="Deals the same board again, with the same size and holes.")
    holes: int = Field(default=0, description="Empty cells of the dealt board.")
    givens: list[list[int]] = Field(default_factory=list, description="The board as it was dealt.")
    board: list[list[int]] = Field(default_factory=list, description="The board now.")
    mistakes: int = Field(default=0, description="Refused moves in this episode.")
    max_mistakes: int = Field(default=0, description="The episode ends with this many.")
    solved: bool = Field(default=False, description="Whether the board is full and right.")
