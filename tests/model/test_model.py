"""The protocol itself, explored to the end of each of its bounds: none of the onlooker's violations can be reached."""

from __future__ import annotations

import pytest

from model.bounds import CHOSEN
from model.client import Client
from model.explorer import explore
from model.server import Server
from model.world import World


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", CHOSEN)
def test_the_protocol_holds(name: str) -> None:
    capacity, bounds = CHOSEN[name]
    report = explore(World(Client(), Server(capacity=capacity), bounds))
    print(name, report)
    assert report.violation is None, str(report)
    assert report.states > 1000
