"""The client's session machine, cell by cell of its table."""

from __future__ import annotations

import pytest

from openenv.core.session.states import TABLE, Event, Row
from support.machine import SCENARIOS


@pytest.mark.parametrize(
    ("row", "event"), [pytest.param(row, event, id=f"{row.name}-{event.name}") for row, event in SCENARIOS]
)
def test_cell(row: Row, event: Event) -> None:
    assert (row, event) in TABLE
    SCENARIOS[row, event]()
