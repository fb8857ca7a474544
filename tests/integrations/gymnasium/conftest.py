"""Servers of Gymnasium environments: of any by name, and of one that logs what is done to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from gymnasium_env.server.app import create_gymnasium_app
from support.gym_envs import Log, Logged, Serving
from support.live import LiveServer, serve


@pytest.fixture(scope="module")
def served() -> Iterator[Serving]:
    """Servers of environments, one a name (and arguments), for all tests of a module."""
    running: dict[tuple[Any, ...], LiveServer] = {}
    with ExitStack() as stack:

        def get(name: str, **kwargs: Any) -> LiveServer:
            key = (name, *kwargs.items())
            if key not in running:
                running[key] = stack.enter_context(serve(create_gymnasium_app(name, **kwargs)))
            return running[key]

        yield get


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def logged(log: Log) -> Iterator[LiveServer]:
    with serve(create_gymnasium_app(partial(Logged, log))) as url:
        log.events.clear()  # the one that told its spaces
        yield url
