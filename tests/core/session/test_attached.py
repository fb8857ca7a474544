"""The session machine of a client of tools: cell by cell of its table, and the table's every change noticed."""

from __future__ import annotations

import pytest

from openenv.core.exceptions import NotResetError, Outcome
from openenv.core.session import attached
from openenv.core.session.events import Event, Op, Post
from openenv.core.session.states import ATTACHED_TABLE, IllegalEvent, Row
from support.attached import HELD, SCENARIOS, ask, make
from support.machine import ended_with

CELLS = [pytest.param(row, event, id=f"{row.name}-{event.name}") for row, event in ATTACHED_TABLE]


def test_every_cell_has_a_scenario() -> None:
    assert SCENARIOS.keys() == ATTACHED_TABLE.keys()


@pytest.mark.parametrize(("row", "event"), CELLS)
def test_cell(row: Row, event: Event) -> None:
    SCENARIOS[row, event]()


def test_a_client_that_wants_a_reset_first_may_look_at_the_tools() -> None:
    machine = make(require_reset=True)
    ask(machine, Op.CONNECT)
    machine.handle(Event.CREATED, HELD)
    machine.handle(Event.ATTACHED)
    call, effects = ask(machine, Op.TOOL)
    ended_with(effects, call, NotResetError, Outcome.NOT_APPLIED)
    call, effects = ask(machine, Op.LIST_TOOLS)
    assert effects == [Post(call)]


def test_the_secret_of_a_session_is_in_no_text() -> None:
    assert HELD.token
    assert HELD.token not in repr(HELD)


@pytest.mark.parametrize(("row", "event"), CELLS)
def test_a_table_without_this_cell_is_noticed(monkeypatch: pytest.MonkeyPatch, row: Row, event: Event) -> None:
    rest = {key: rule for key, rule in ATTACHED_TABLE.items() if key != (row, event)}
    monkeypatch.setattr(attached, "ATTACHED_TABLE", rest)
    with pytest.raises(IllegalEvent) as caught:
        SCENARIOS[row, event]()
    assert (caught.value.row, caught.value.event) == (row, event)


@pytest.mark.parametrize(
    ("row", "event"), [one for one in CELLS if ATTACHED_TABLE[one.values[0], one.values[1]] != "stay"]
)
def test_a_cell_that_does_nothing_is_noticed(monkeypatch: pytest.MonkeyPatch, row: Row, event: Event) -> None:
    monkeypatch.setattr(attached, "ATTACHED_TABLE", {**ATTACHED_TABLE, (row, event): "stay"})
    with pytest.raises((AssertionError, IllegalEvent, IndexError)):
        SCENARIOS[row, event]()


EQUIVALENT = {
    # what is open needs no opening, whatever the row's other duties
    (Row.IDLE, Event.CONNECT, "connect_lost"),
    (Row.IDLE, Event.RESET, "reset_lost"),
    # all of these ask the one rule of refusal first, and a loss refuses everything
    (Row.LOST, Event.CALL, "call_detached"),
    (Row.LOST, Event.CALL, "open_for_call"),
    (Row.LOST, Event.CALL, "ask"),
    # a call that was given up never stays open here, so settling never waits
    (Row.IDLE, Event.SETTLE, "settle_now"),
    *((row, Event.SETTLE, "ask") for row in (Row.NEW, Row.DETACHED, Row.LOST, Row.CLOSED)),
}
"""Rules of other rows that do the same in this one."""


def swaps() -> list:
    """Each cell with every other rule that some row has for the same event."""
    return [
        pytest.param(row, event, other, id=f"{row.name}-{event.name}-{other}")
        for (row, event), rule in ATTACHED_TABLE.items()
        for other in sorted({name for (_, kind), name in ATTACHED_TABLE.items() if kind is event} - {rule, "stay"})
        if (row, event, other) not in EQUIVALENT
    ]


@pytest.mark.parametrize(("row", "event", "other"), swaps())
def test_the_rule_of_another_row_is_noticed(
    monkeypatch: pytest.MonkeyPatch, row: Row, event: Event, other: str
) -> None:
    monkeypatch.setattr(attached, "ATTACHED_TABLE", {**ATTACHED_TABLE, (row, event): other})
    with pytest.raises((AssertionError, IllegalEvent, IndexError, AttributeError)):
        SCENARIOS[row, event]()
