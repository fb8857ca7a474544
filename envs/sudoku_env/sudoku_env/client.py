"""The client: a player that holds a session of the server."""

from __future__ import annotations

from openenv.core.env_client import EnvClient
from sudoku_env.models import SudokuAction, SudokuObservation, SudokuState

__all__ = ["SudokuEnv"]


class SudokuEnv(EnvClient[SudokuAction, SudokuObservation, SudokuState]):
    """Play Sudoku on a server. The types above are all that a client of typed models needs."""
