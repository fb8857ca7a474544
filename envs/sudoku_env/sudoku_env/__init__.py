"""Sudoku as an environment: boards of 4x4 and 9x9 with one solution, dealt from a seed."""

from sudoku_env.client import SudokuEnv
from sudoku_env.models import SudokuAction, SudokuObservation, SudokuState

__all__ = ["SudokuAction", "SudokuEnv", "SudokuObservation", "SudokuState"]
