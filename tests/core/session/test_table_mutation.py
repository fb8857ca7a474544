"""The tests of the table notice every change to it: each cell taken out, and each cell that does nothing."""

from __future__ import annotations

import pytest

from openenv.core.session import client
from openenv.core.session.states import TABLE, Event, IllegalEvent, Row
from support.machine import SCENARIOS

CELLS = [pytest.param(row, event, id=f"{row.name}-{event.name}") for row, event in TABLE]


def test_every_cell_has_a_scenario() -> None:
    assert SCENARIOS.keys() == TABLE.keys()


@pytest.mark.parametrize(("row", "event"), CELLS)
def test_a_table_without_this_cell_is_noticed(monkeypatch: pytest.MonkeyPatch, row: Row, event: Event) -> None:
    monkeypatch.setattr(client, "TABLE", {key: rule for key, rule in TABLE.items() if key != (row, event)})
    with pytest.raises(IllegalEvent) as caught:
        SCENARIOS[row, event]()
    assert (caught.value.row, caught.value.event) == (row, event)


@pytest.mark.parametrize(("row", "event"), [one for one in CELLS if TABLE[one.values[0], one.values[1]] != "stay"])
def test_a_cell_that_does_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch, row: Row, event: Event) -> None:
    monkeypatch.setattr(client, "TABLE", {**TABLE, (row, event): "stay"})
    with pytest.raises((AssertionError, IllegalEvent, IndexError)):
        SCENARIOS[row, event]()


EQUIVALENT = {
    # what is open needs no opening, whatever the row's other duties
    (Row.IDLE, Event.CONNECT, "connect_lost"),
    (Row.IDLE, Event.RESET, "reset_lost"),
    # with the call's frame sent, or no call at all, giving up is the same with and without a socket
    (Row.IDLE, Event.GAVE_UP, "give_up_suspended"),
    (Row.BUSY, Event.GAVE_UP, "give_up_suspended"),
    # all of these ask the one rule of refusal first, and a loss refuses everything
    (Row.LOST, Event.CALL, "call_suspended"),
    (Row.LOST, Event.CALL, "open_for_call"),
    (Row.LOST, Event.CALL, "ask"),
    # where no call can be open, there is nothing to wait for, and no fate to learn
    (Row.NEW, Event.SETTLE, "ask"),
    (Row.LOST, Event.SETTLE, "ask"),
    (Row.CLOSED, Event.SETTLE, "ask"),
    (Row.LOST, Event.RECEIVED, "answer_abandoned"),
    # a call that was not sent is given up in the same way, with and without a socket
    (Row.SETTLING, Event.GAVE_UP, "give_up_suspended"),
}
"""Rules of other rows that do the same in this one."""


def swaps() -> list:
    """Each cell with every other rule that some row has for the same event."""
    return [
        pytest.param(row, event, other, id=f"{row.name}-{event.name}-{other}")
        for (row, event), rule in TABLE.items()
        for other in sorted({name for (_, kind), name in TABLE.items() if kind is event} - {rule, "stay"})
        if (row, event, other) not in EQUIVALENT
    ]


@pytest.mark.parametrize(("row", "event", "other"), swaps())
def test_the_rule_of_another_row_is_noticed(
    monkeypatch: pytest.MonkeyPatch, row: Row, event: Event, other: str
) -> None:
    monkeypatch.setattr(client, "TABLE", {**TABLE, (row, event): other})
    with pytest.raises((AssertionError, IllegalEvent, IndexError, AttributeError)):
        SCENARIOS[row, event]()
