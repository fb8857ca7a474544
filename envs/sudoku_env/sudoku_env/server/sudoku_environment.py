"""The environment: one instance is one table at which one player plays, board after board.

A right cell earns ``1 / holes``, so a solved board sums to 1.0; a mistake earns 0.0 and changes nothing.
The episode ends when the board is solved or with the last allowed mistake.
"""

from __future__ import annotations

import random
import uuid
from typing import Any

from openenv.core.env_server.interfaces import Environment, EnvironmentMetadata
from openenv.core.exceptions import InvalidActionError
from sudoku_env.engine import SIZES, Puzzle, conflict, make_puzzle, render
from sudoku_env.models import SudokuAction, SudokuObservation, SudokuState
from sudoku_env.server.event_log import EventLog

__all__ = ["DIFFICULTIES", "SudokuEnvironment"]

DIFFICULTIES = {"easy": 0.375, "medium": 0.5, "hard": 0.625}
"""Share of the cells that are dealt empty."""


class SudokuEnvironment(Environment[SudokuAction, SudokuObservation, SudokuState]):
    """Sudoku on boards with exactly one solution."""

    SUPPORTS_CONCURRENT_SESSIONS = True  # instances share nothing

    def __init__(self) -> None:
        super().__init__()
        self._log = EventLog.from_environ()
        self._puzzle: Puzzle | None = None
        self._board: list[list[int]] = []
        self._state = SudokuState(board_id=uuid.uuid4().hex)
        self._record("constructor")

    def reset(  # type: ignore[override]  # no **kwargs: the server then names arguments that do not exist
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        *,
        size: int = 9,
        difficulty: str = "easy",
        holes: int | None = None,
        max_mistakes: int = 10,
    ) -> SudokuObservation:
        """Deal a new board.

        Args:
            seed: the same seed, size and holes deal the same board; None draws a seed, which ``state()`` tells.
            episode_id: name of the episode; None makes one up.
            size: cells in a row, 4 or 9.
            difficulty: ``easy``, ``medium`` or ``hard``: how many cells are empty.
            holes: empty cells, instead of a difficulty. A board may get fewer if its solution would not stay unique.
            max_mistakes: the episode ends with this many refused moves; at least 1.

        Raises:
            InvalidActionError: an argument is out of range; no board was dealt.
        """
        if size not in SIZES:
            raise InvalidActionError(f"size must be 4 or 9, not {size}")
        if difficulty not in DIFFICULTIES:
            raise InvalidActionError(f"difficulty must be one of {', '.join(DIFFICULTIES)}, not {difficulty!r}")
        if holes is not None and not 1 <= holes <= size * size:
            raise InvalidActionError(f"holes must be from 1 to {size * size}, not {holes}")
        if max_mistakes < 1:
            raise InvalidActionError(f"max_mistakes must be at least 1, not {max_mistakes}")
        seed = random.SystemRandom().randrange(2**31) if seed is None else seed
        puzzle = make_puzzle(size, seed, holes or round(DIFFICULTIES[difficulty] * size * size))
        self._puzzle = puzzle
        self._board = [list(row) for row in puzzle.givens]
        self._state = SudokuState(
            board_id=self._state.board_id,
            was_reset=True,
            episode_id=episode_id or uuid.uuid4().hex,
            size=size,
            seed=seed,
            holes=puzzle.holes,
            givens=[list(row) for row in puzzle.givens],
            max_mistakes=max_mistakes,
        )
        self._record("reset", seed=seed, size=size)
        return self._observe(f"A new board with {puzzle.holes} empty cells.")

    def step(self, action: SudokuAction, timeout_s: float | None = None, **kwargs: Any) -> SudokuObservation:
        """Write a value into a cell. A move against the rules is answered, counted, and changes nothing.

        Args:
            action: the move.
            timeout_s: not used; a move takes no time.

        Raises:
            InvalidActionError: the cell or the value is not on this board, or no game is going on. It is not counted.
        """
        self._record("step", move=[action.row, action.col, action.value], mark=action.metadata)
        puzzle = self._require_playable(action)
        state = self._state
        state.step_count += 1
        row, col = action.row - 1, action.col - 1
        if problem := self._problem(puzzle, row, col, action.value):
            state.mistakes += 1
            if state.mistakes >= state.max_mistakes:
                problem += f" That was mistake {state.mistakes}: the game is over."
            return self._observe(problem, reward=0.0, legal=False)
        self._board[row][col] = action.value
        state.solved = not any(0 in line for line in self._board)
        return self._observe("Solved." if state.solved else "Right.", reward=1.0 / state.holes)

    @property
    def state(self) -> SudokuState:
        """The game as it stands."""
        return self._state.model_copy(update={"board": [list(row) for row in self._board]})

    def get_metadata(self) -> EnvironmentMetadata:
        """What ``GET /metadata`` tells."""
        return EnvironmentMetadata(
            name="sudoku_env", description="Sudoku on boards of 4x4 and 9x9 with one solution.", version="0.1.0"
        )

    def close(self) -> None:
        """Leave the table."""
        self._record("close")

    @property
    def _done(self) -> bool:
        return self._state.solved or self._state.mistakes >= self._state.max_mistakes

    def _require_playable(self, action: SudokuAction) -> Puzzle:
        if self._puzzle is None:
            raise InvalidActionError("There is no board yet; call reset() first.")
        if self._done:
            raise InvalidActionError("The game is over; call reset() for a new board.")
        size = self._puzzle.size
        for name, number in (("row", action.row), ("column", action.col), ("value", action.value)):
            if number > size:
                raise InvalidActionError(f"There is no {name} {number} on a {size}x{size} board.")
        return self._puzzle

    def _problem(self, puzzle: Puzzle, row: int, col: int, value: int) -> str:
        """Why a move is refused, or nothing."""
        where = f"row {row + 1}, column {col + 1}"
        if puzzle.givens[row][col]:
            return f"The cell at {where} was dealt with a {puzzle.givens[row][col]} and stays."
        if self._board[row][col]:
            return f"The cell at {where} already holds the right {self._board[row][col]}."
        if place := conflict(self._board, row, col, value):
            return f"There is a {value} in this {place} already."
        if puzzle.solution[row][col] != value:
            return f"A {value} at {where} breaks no rule yet, but leads to no solution."
        return ""

    def _observe(self, message: str, *, reward: float | None = None, legal: bool = True) -> SudokuObservation:
        state = self._state
        return SudokuObservation(
            board=[list(row) for row in self._board],
            size=state.size,
            text=render(self._board),
            message=message,
            legal=legal,
            mistakes=state.mistakes,
            remaining=sum(row.count(0) for row in self._board),
            solved=state.solved,
            board_id=state.board_id,
            reward=reward,
            done=self._done,
        )

    def _record(self, event: str, **fields: Any) -> None:
        state = self._state
        told = {"board_id": state.board_id, "was_reset": state.was_reset, "episode_id": state.episode_id}
        self._log.write(event, **told, **fields)
