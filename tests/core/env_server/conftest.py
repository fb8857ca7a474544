"""A counting environment with a log of its own, served for real, and one socket to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from websockets.sync.client import ClientConnection, connect

from openenv.core.env_server.http_server import create_app
from support.envs import CountEnv, CountObservation, CountState, fresh_env
from support.frames import PickyAction
from support.live import LiveServer, serve


@pytest.fixture
def env() -> Iterator[type[CountEnv]]:
    made = fresh_env()
    yield made
    made.release.set()


@pytest.fixture
def live(env: type[CountEnv]) -> Iterator[LiveServer]:
    app = create_app(env, PickyAction, CountObservation, max_concurrent_envs=4, state_cls=CountState)
    with serve(app) as url:
        yield url
        env.release.set()


@pytest.fixture
def ws(live: LiveServer) -> Iterator[ClientConnection]:
    with connect(live.ws) as socket:
        yield socket
