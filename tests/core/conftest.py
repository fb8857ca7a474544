"""A running server of `CountEnv`, and clients of it, for the client's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.clients import CountServer, count_server


@pytest.fixture
def server() -> Iterator[CountServer]:
    """A server with eight slots and a log of its own."""
    with count_server() as server:
        yield server


@pytest.fixture
def v1_server() -> Iterator[CountServer]:
    """The same, speaking ``openenv.v1``."""
    with count_server(plain=False) as server:
        yield server
