"""Negative controls: with a clause left out the explorer finds what the clause is there to prevent."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from model.bounds import ALL
from model.client import Client
from model.explorer import Report, explore
from model.server import Server
from model.state import Bounds, Left
from model.world import World


class Control(NamedTuple):
    """``client``, ``server``: what each leaves out; ``finds``: words of the violation that follows."""

    finds: str
    bounds: Bounds
    client: tuple[str, ...] = ()
    server: tuple[str, ...] = ()
    capacity: int = 1

    def explore(self) -> Report:
        world = World(Client(*self.client), Server(*self.server, capacity=self.capacity), self.bounds)
        return explore(world, seeking=self.finds)


CUT = Bounds((3,), Left(cuts=1))
CUTS = Bounds((2,), Left(cuts=2))
IMPATIENT = Bounds((3,), Left(cuts=1, give_ups=1), ALL)
HOLDERS = Bounds((2, 1), Left(cuts=1, clones=1))

CONTROLS = {
    "E8, E21: deduplication off, and a client that sends again what has started": Control(
        "ran twice", CUT, client=("resends",), server=("no_dedupe",)
    ),
    "E21: a client that sends again what has started": Control("protocol", CUT, client=("resends",)),
    "E20: the old token dies at once": Control("without need: unknown", CUTS, server=("old_token_dies",)),
    "E22: older sockets stay open, one client": Control("protocol", IMPATIENT, server=("old_sockets",)),
    "E22: older sockets stay open, two holders": Control(
        "waits for ever", HOLDERS, server=("old_sockets",), capacity=2
    ),
    "E8, E22: older sockets stay open, deduplication off": Control(
        "ran twice", CUT, server=("old_sockets", "no_dedupe")
    ),
    "E20: ghosts of older dials are taken for the client": Control("without need: replaced", CUTS, server=("ghosts",)),
    "E25: no release": Control("waits for ever for its reset", IMPATIENT, client=("no_release",)),
    "E13: a cancel that came before its request is forgotten": Control(
        "without need: protocol", IMPATIENT, server=("cancel_forgotten",)
    ),
    "E13, E22: the same with older sockets open": Control(
        "ran after its caller was told", IMPATIENT, server=("cancel_forgotten", "old_sockets")
    ),
    "E22: a holder that was replaced comes back": Control(
        "without end", Bounds((1, 0), Left(clones=1)), client=("comes_back",), capacity=2
    ),
    "E15: late results are dropped": Control("never told", IMPATIENT, client=("drops_late",)),
    "E14: the call after an abandoned one does not wait": Control("never told", IMPATIENT, client=("no_abandoned",)),
    "E15a: a step in a session that was not reset": Control(
        "means the episode", Bounds((3,), Left(failures=1)), client=("no_needs_reset",)
    ),
    "E21: the number at a resume is not compared": Control(
        "got the answer of call", HOLDERS, client=("no_check_at_resume",), capacity=2
    ),
    "E19: leases do not count towards capacity": Control(
        "more environments", Bounds((1, 1), Left(cuts=1)), server=("leases_free",)
    ),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_the_explorer_goes_red(name: str) -> None:
    control = CONTROLS[name]
    report = control.explore()
    print(report)
    assert report.violation is not None
    assert control.finds in report.violation
    assert report.trace


def test_deduplication_alone_is_a_defence() -> None:
    """A client that obeys E21 never sends a number twice to a server that obeys E22, so nothing depends on E8 alone."""
    report = Control("", IMPATIENT, server=("no_dedupe",)).explore()
    assert report.violation is None, str(report)
