"""The server application: ``uvicorn sudoku_env.server.app:app``, or ``sudoku-env`` on the command line.

Environment variables: ``MAX_CONCURRENT_ENVS`` (sessions at once, default 64), ``HOST`` and ``PORT`` (of
``main()``, default 0.0.0.0 and 8000), ``SUDOKU_EVENT_LOG`` (file that records what ran on which board).
"""

from __future__ import annotations

import os

import uvicorn

from openenv.core.env_server.http_server import create_app
from sudoku_env.models import SudokuAction, SudokuObservation
from sudoku_env.server.sudoku_environment import SudokuEnvironment

__all__ = ["app", "main"]

app = create_app(
    SudokuEnvironment,
    SudokuAction,
    SudokuObservation,
    env_name="sudoku_env",
    max_concurrent_envs=int(os.environ.get("MAX_CONCURRENT_ENVS", "64")),
)


def main() -> None:
    """Serve until stopped. One process: sessions live in memory, so several workers would not share them."""
    uvicorn.run(app, host=os.environ.get("HOST", "0.0.0.0"), port=int(os.environ.get("PORT", "8000")), workers=1)


if __name__ == "__main__":
    main()
