"""The server application: ``uvicorn textarena_env.server.app:app``, or ``textarena-env`` on the command line.

Environment variables: ``TEXTARENA_ENV_ID`` (the game, default Sudoku-v0), ``TEXTARENA_NUM_PLAYERS`` (1),
``TEXTARENA_MAX_TURNS`` (the game's own), ``TEXTARENA_KW_<NAME>`` (an argument of the game), ``TEXTARENA_DOWNLOAD_NLTK``
(1 lets the start fetch the word lists that word games need; default 0), ``MAX_CONCURRENT_ENVS`` (sessions at once,
default 64), ``HOST`` and ``PORT`` (where ``main()`` listens unless ``--host`` and ``--port`` say it; 127.0.0.1 and
8000 by default).
"""

from __future__ import annotations

import argparse
import ast
import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import uvicorn

from openenv.core.env_server.http_server import create_app
from textarena_env.models import TextArenaAction, TextArenaObservation
from textarena_env.server.environment import TextArenaEnvironment

__all__ = ["app", "main", "settings"]


def settings(environ: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of ``TextArenaEnvironment`` that environment variables name.

    Args:
        environ: the variables.

    Returns:
        Arguments by name. Those of the game are Python literals where they look like one (``4``, ``True``), else text.

    Raises:
        ValueError: a number is none.
    """
    prefix = "TEXTARENA_KW_"
    turns = environ.get("TEXTARENA_MAX_TURNS")
    return {
        "env_id": environ.get("TEXTARENA_ENV_ID") or "Sudoku-v0",
        "num_players": int(environ.get("TEXTARENA_NUM_PLAYERS") or 1),
        "max_turns": int(turns) if turns else None,
        "download_nltk": environ.get("TEXTARENA_DOWNLOAD_NLTK", "0").lower() in {"1", "true"},
        "env_kwargs": {
            name.removeprefix(prefix).lower(): _literal(text)
            for name, text in environ.items()
            if name.startswith(prefix)
        },
    }


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


_settings = settings(os.environ)
TextArenaEnvironment(**_settings).close()  # a misspelt game ends the start, not the first session

app = create_app(
    partial(TextArenaEnvironment, **{**_settings, "download_nltk": False}),
    TextArenaAction,
    TextArenaObservation,
    env_name="textarena_env",
    max_concurrent_envs=int(os.environ.get("MAX_CONCURRENT_ENVS", "64")),
)


def main() -> None:
    """Serve until stopped. One process: sessions live in memory, so several workers would not share them."""
    parser = argparse.ArgumentParser(prog="textarena-env", description="Serve a TextArena game until stopped.")
    host, port = os.environ.get("HOST") or "127.0.0.1", os.environ.get("PORT") or "8000"
    parser.add_argument("--host", default=host, help="address to listen on; 0.0.0.0 for all (HOST, else 127.0.0.1)")
    parser.add_argument("--port", default=port, type=int, help="port to listen on (PORT, else 8000)")
    told = parser.parse_args()
    uvicorn.run(app, host=told.host, port=told.port, workers=1)


if __name__ == "__main__":
    main()
