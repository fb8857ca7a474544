"""The package's own machines between the model's callers and its lossy network: the same invariants must hold."""

from __future__ import annotations

from typing import Any

import pytest

from model.bounds import CHOSEN, SMALL, SOAKING
from model.client import Client
from model.explorer import explore
from model.product_client import ProductClient
from model.product_server import ProductServer
from model.server import Server
from model.state import Bounds, Left
from model.world import World

PAIRS: dict[str, tuple[Any, Any]] = {"its client and its server": (ProductClient, ProductServer)}
if SOAKING:
    PAIRS["its client, the model's server"] = (ProductClient, Server)
    PAIRS["the model's client, its server"] = (Client, ProductServer)

BOUNDS = CHOSEN if SOAKING else SMALL


@pytest.mark.timeout(36_000)
@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("pair", PAIRS)
def test_the_package_keeps_the_protocol(pair: str, name: str) -> None:
    client, server = PAIRS[pair]
    capacity, bounds = BOUNDS[name]
    report = explore(World(client(), server(capacity=capacity), bounds))
    print(pair, name, report)
    assert report.violation is None, str(report)
    assert report.states > 500


CUT = Bounds((3,), Left(cuts=1))
CUTS = Bounds((2,), Left(cuts=2))

CONTROLS: dict[str, tuple[Any, Any, str, Bounds]] = {
    # what is left out: (client, server, words of the violation, bounds)
    "a server whose old token dies at once": (ProductClient(), Server("old_token_dies"), "unknown", CUTS),
    "a server that leaves older sockets open, without deduplication": (
        ProductClient(),
        Server("old_sockets", "no_dedupe"),
        "ran twice",
        CUT,
    ),
    "a server that takes ghosts for the client": (ProductClient(), Server("ghosts"), "replaced", CUTS),
    "a client that sends again what has started": (Client("resends"), ProductServer(), "protocol", CUT),
    "a client that releases nothing": (
        Client("no_release"),
        ProductServer(),
        "waits for ever",
        Bounds((2,), Left(cuts=1, give_ups=1)),
    ),
    "a client that drops late results": (
        Client("drops_late"),
        ProductServer(),
        "never told",
        Bounds((2,), Left(give_ups=1)),
    ),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_the_explorer_sees_through_the_package(name: str) -> None:
    """Against a peer that leaves a clause out, the package's machines are seen to fail: the adapters hide nothing."""
    client, server, finds, bounds = CONTROLS[name]
    report = explore(World(client, server, bounds), seeking=finds)
    print(report)
    assert report.violation is not None
    assert finds in report.violation
