"""The server application: ``uvicorn echo_env.server.app:app``, or ``echo-env`` on the command line.

Environment variables: ``MAX_CONCURRENT_ENVS`` (sessions at once, default 64), ``OPENENV_MODE`` (``simulation`` by
default), ``HOST`` and ``PORT`` (where ``main()`` listens unless ``--host`` and ``--port`` say it; 127.0.0.1 and 8000 by
default).
"""

from __future__ import annotations

import argparse
import os

import uvicorn

from echo_env.server.echo_environment import EchoEnvironment
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation

__all__ = ["app", "main"]

app = create_app(
    EchoEnvironment,
    CallToolAction,
    CallToolObservation,
    env_name="echo_env",
    max_concurrent_envs=int(os.environ.get("MAX_CONCURRENT_ENVS", "64")),
)


def main() -> None:
    """Serve until stopped. One process: sessions live in memory, so several workers would not share them."""
    parser = argparse.ArgumentParser(prog="echo-env", description="Serve the echo until stopped.")
    host, port = os.environ.get("HOST") or "127.0.0.1", os.environ.get("PORT") or "8000"
    parser.add_argument("--host", default=host, help="address to listen on; 0.0.0.0 for all (HOST, else 127.0.0.1)")
    parser.add_argument("--port", default=port, type=int, help="port to listen on (PORT, else 8000)")
    told = parser.parse_args()
    uvicorn.run(app, host=told.host, port=told.port, workers=1)


if __name__ == "__main__":
    main()
