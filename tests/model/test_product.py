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
from openenv.core.session.events import Call, Effect, Send
from openenv.core.session.keeping import SessionKeeper
from openenv.core.session.leases import TokenRing
from openenv.core.session.ledger import Ledger, Todo, Verdict, error_frame
from openenv.core.wire.v1 import Resumed

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


# ---------------------------------------------------------------- the package with a clause taken out of it

_present, _request = TokenRing.present, Ledger.request


def _void_at_once(ring: TokenRing, token: str, attempt: int) -> Any:
    verdict = _present(ring, token, attempt)
    ring.arrived()
    return verdict


def _without_attempts(ring: TokenRing, token: str, attempt: int) -> Any:
    ring._current.attempt = 0
    return _present(ring, token, attempt)


def _without_dedupe(ledger: Ledger, seq: int | None, digest: bytes) -> Verdict:
    if seq == ledger.last_seq and not ledger.running:
        ledger.last_seq -= 1
    return _request(ledger, seq, digest)


def _forgetful(ledger: Ledger, seq: int) -> Verdict:
    if ledger.running or seq != ledger.last_seq + 1:
        return Verdict(Todo.CANCEL if ledger.running else Todo.NOTHING)
    return Verdict(Todo.SEND, error_frame(seq, "CANCELLED", "forgotten", applied=False))


def _sends_again(keeper: SessionKeeper, call: Call | None, answer: Resumed, now: float) -> list[Effect]:
    return [] if call is None else [Send(call)]


def _keeps_nothing(keeper: SessionKeeper, reason: str = "") -> None:
    keeper.lease, keeper.features = None, frozenset()


IMPATIENT = Bounds((3,), Left(cuts=1, give_ups=1))

MUTATIONS: dict[str, tuple[str, Bounds, list[tuple[type, str, Any]]]] = {
    # what is taken out: (words of the violation, bounds, methods replaced)
    "deduplication, with a client that sends again": (
        "ran twice",
        Bounds((1,), Left(cuts=1)),
        [(Ledger, "request", _without_dedupe), (SessionKeeper, "_go_on", _sends_again)],
    ),
    "the old token's life": ("without need: unknown", CUTS, [(TokenRing, "present", _void_at_once)]),
    "the attempts": ("without need: replaced", CUTS, [(TokenRing, "present", _without_attempts)]),
    "the memory of early cancels": ("without need: protocol", IMPATIENT, [(Ledger, "cancel", _forgetful)]),
    "the leases that a client keeps": ("waits for ever", IMPATIENT, [(SessionKeeper, "_keep_lease", _keeps_nothing)]),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_explorer_misses_what_is_taken_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    finds, bounds, replaced = MUTATIONS[name]
    for where, method, instead in replaced:
        monkeypatch.setattr(where, method, instead)
    report = explore(World(ProductClient(), ProductServer(), bounds), seeking=finds)
    print(report)
    assert report.violation is not None
    assert finds in report.violation
