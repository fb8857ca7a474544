"""One server of each side for all tests of this folder; tests tell their calls apart by marks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from interop.sides import LINKS, OURS, UPSTREAM, Driver, Link, Mirror, Servers, Side, mirror_server


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Servers with numbered environments, started when first asked for."""
    started: dict[tuple[Side, str], Mirror] = {}
    with ExitStack() as stack:

        def get(side: Side, app: str = "mirror_app:app") -> Mirror:
            if (side, app) not in started:
                server = mirror_server(side, tmp_path_factory.mktemp("numbered"), app)
                started[side, app] = stack.enter_context(server)
            return started[side, app]

        yield get


@pytest.fixture(scope="session")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mirror, Mirror]]:
    """Upstream's server and ours, whose answers depend on nothing but the request."""
    directory = tmp_path_factory.mktemp("twins")
    with (
        mirror_server(UPSTREAM, directory, MIRROR_ANONYMOUS="1") as theirs,
        mirror_server(OURS, directory, MIRROR_ANONYMOUS="1") as ours,
    ):
        yield theirs, ours


@pytest.fixture(params=LINKS, ids=str)
def link(request: pytest.FixtureRequest) -> Link:
    """Each client with each server."""
    chosen: Link = request.param
    return chosen


@pytest.fixture
def server(link: Link, servers: Servers) -> Mirror:
    """The link's server."""
    return servers(link.server)


@pytest.fixture(scope="session")
def drivers() -> Iterator[Callable[[Side, str], Driver]]:
    """Processes with clients, started when first asked for."""
    started: dict[tuple[Side, str], Driver] = {}
    with ExitStack() as stack:

        def get(side: Side, mode: str) -> Driver:
            if (side, mode) not in started:
                started[side, mode] = stack.enter_context(Driver(side, mode))
            return started[side, mode]

        yield get


@pytest.fixture(params=["async", "sync"])
def driver(request: pytest.FixtureRequest, link: Link, drivers: Callable[[Side, str], Driver]) -> Iterator[Driver]:
    """The link's clients, async and blocking."""
    one = drivers(link.client, request.param)
    yield one
    one.forget()
