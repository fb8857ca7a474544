"""Scenarios against a hostile network: who plays, on which stage, and the report by guarantee."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.harness import LINKS, Farm, Link, World
from openenv.testing import Oracle


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "guarantee(*ids, hazards=(), clients=('async', 'sync'), servers=('v1', 'ours', 'upstream')): "
        "what a scenario attacks",
    )
    config.addinivalue_line(
        "markers", "server(own=False, arguments=(), **environ): the server of a scenario; its own if it is harmed"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "link" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("guarantee")
        assert mark is not None, f"{metafunc.definition.name} names no guarantee"
        clients = mark.kwargs.get("clients", ("async", "sync"))
        servers = mark.kwargs.get("servers", ("v1", "ours", "upstream"))
        links = [link for link in LINKS if link.client in clients and link.server in servers]
        metafunc.parametrize("link", links, ids=str, scope="function")


@pytest.fixture(scope="session")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    farm = Farm(tmp_path_factory.mktemp("farm"))
    yield farm
    farm.close()


@pytest.fixture
async def world(request: pytest.FixtureRequest, link: Link, farm: Farm, tmp_path: Path) -> AsyncIterator[World]:
    """The stage, and at the end the verdict of its log."""
    mark = request.node.get_closest_marker("server")
    options: dict[str, Any] = dict(mark.kwargs) if mark else {}
    own, arguments = options.pop("own", False), tuple(options.pop("arguments", ()))
    environ = {f"OPENENV_{name.upper()}": str(value) for name, value in options.items()}
    stage = farm.stage(link.server, environ, arguments, own)
    world = World(link, stage, tmp_path, Oracle.from_now(stage.log))
    try:
        yield world
        await world.finish()
    finally:
        world.plan()
        if own:
            stage.server.__exit__(None, None, None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What a case is about travels with its result: with several workers, the report is made in another process."""
    for item in items:
        mark = item.get_closest_marker("guarantee")
        if mark is not None:
            item.user_properties += [("guarantees", mark.args), ("hazards", mark.kwargs.get("hazards", ()))]
