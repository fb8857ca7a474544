"""The server application: ``uvicorn gymnasium_env.server.app:app``, or ``gymnasium-env`` on the command line.

Environment variables: ``GYM_ENV_ID`` (the registered name, ``CartPole-v1`` by default; ``module:Name-v0`` imports the
module first), ``GYM_KWARGS`` (what ``gymnasium.make`` is given, a JSON object, as ``{"render_mode": "rgb_array"}``),
``GYM_FIXED`` (1: clients may not choose another registered environment at ``reset()``), ``MAX_CONCURRENT_ENVS``
(sessions at once, default 64), ``HOST`` and ``PORT`` (where ``main()`` listens unless ``--host`` and ``--port`` say it;
127.0.0.1 and 8000 by default).

A program that makes its environment itself calls `create_gymnasium_app`.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import uvicorn
from fastapi import FastAPI

from gymnasium_env.models import GymnasiumState, models_for
from gymnasium_env.server.gymnasium_environment import GymnasiumEnvironment
from openenv.core.env_server.http_server import create_app

__all__ = ["app", "create_gymnasium_app", "main"]


def create_gymnasium_app(
    make: str | Callable[[], gymnasium.Env[Any, Any]], max_concurrent_envs: int = 64, **kwargs: Any
) -> FastAPI:
    """An application that serves Gymnasium environments. One is made at once, to read its spaces.

    Args:
        make: a registered name, which clients play unless they choose another one at ``reset()``; or a callable that
            makes an environment, and then they play that and no other.
        max_concurrent_envs: sessions at once.
        **kwargs: given to ``gymnasium.make`` with a name.

    Raises:
        TypeError: ``kwargs`` without a name, or a space that has no schema.
        gymnasium.error.Error: there is no such environment.
    """
    others = isinstance(make, str)
    if isinstance(make, str):
        make = functools.partial(gymnasium.make, make, **kwargs)
    elif kwargs:
        raise TypeError(f"{', '.join(kwargs)}: arguments are for a registered name; a callable has its own")
    first = make()
    try:
        action_cls, observation_cls = models_for(first.observation_space, first.action_space)
    finally:
        first.close()
    return create_app(
        functools.partial(GymnasiumEnvironment, make, others),
        action_cls,
        observation_cls,
        env_name="gymnasium_env",
        max_concurrent_envs=max_concurrent_envs,
        state_cls=GymnasiumState,
    )


def _from_environ(environ: Mapping[str, str]) -> FastAPI:
    text = environ.get("GYM_KWARGS") or "{}"
    try:
        kwargs = json.loads(text)
    except ValueError as error:
        raise ValueError(f"GYM_KWARGS is not JSON: {error}") from error
    if not isinstance(kwargs, dict):
        raise ValueError(f"GYM_KWARGS must be a JSON object, not {text}")
    at_once = int(environ.get("MAX_CONCURRENT_ENVS") or "64")
    name = environ.get("GYM_ENV_ID") or "CartPole-v1"
    if environ.get("GYM_FIXED", "0") in ("1", "true"):
        return create_gymnasium_app(functools.partial(gymnasium.make, name, **kwargs), at_once)
    return create_gymnasium_app(name, at_once, **kwargs)


app = _from_environ(os.environ)


def main() -> None:
    """Serve until stopped. One process: sessions live in memory, so several workers would not share them."""
    parser = argparse.ArgumentParser(prog="gymnasium-env", description="Serve a Gymnasium environment until stopped.")
    host, port = os.environ.get("HOST") or "127.0.0.1", os.environ.get("PORT") or "8000"
    parser.add_argument("--host", default=host, help="address to listen on; 0.0.0.0 for all (HOST, else 127.0.0.1)")
    parser.add_argument("--port", default=port, type=int, help="port to listen on (PORT, else 8000)")
    told = parser.parse_args()
    uvicorn.run(app, host=told.host, port=told.port, workers=1)


if __name__ == "__main__":
    main()
