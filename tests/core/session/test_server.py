"""The server machine, cell by cell and path by path."""

from __future__ import annotations

import itertools
from collections import deque

import pytest

from openenv.core.session.server import TABLE, Effect, Event, IllegalEvent, ServerSession, State

# The table once more, as the protocol page has it: a row a state, a column an event, "state/effect" in each cell;
# "." is the same state,
# "-" an event that cannot happen, SHUT is closing/close_env. Written down by hand, so that no cell goes unnoticed.
ROWS = """
            built build_failed call call_done cancel drop drop_leased resume timer drain close env_closed
opening     idle closed/free ./busy - . ending ending - - ending ending -
idle        - - running/run - ./answer_cancel SHUT leased ./replace SHUT SHUT SHUT -
running     - - ./busy idle ./cancel_call ending leased_busy ./replace . ending ending/cancel_call -
leased      - - - - - - - idle/attach SHUT SHUT SHUT -
leased_busy - - - leased - - - running/attach ending ending ending/cancel_call -
ending      SHUT closed/free ./refuse SHUT . . . ./answer_lost . . . -
closing     - - ./refuse - . . . ./answer_lost . . . closed/free
closed      - - ./refuse - . . . ./answer_lost . . . -
"""


def expected_cells() -> dict[tuple[State, Event], tuple[State, Effect] | None]:
    cells: dict[tuple[State, Event], tuple[State, Effect] | None] = {}
    columns, *rows = [line.split() for line in ROWS.strip().splitlines()]
    for row, *texts in rows:
        for column, text in zip(columns, texts, strict=True):
            text = text.replace("SHUT", "closing/close_env")
            state, _, effect = text.partition("/")
            target = State(row) if state == "." else None if state == "-" else State(state)
            cells[State(row), Event(column)] = None if target is None else (target, Effect(effect or "nothing"))
    return cells


CELLS = expected_cells()


def test_the_table_has_no_other_rows_or_columns() -> None:
    assert set(CELLS) == set(itertools.product(State, Event))
    assert set(TABLE) == {key for key, cell in CELLS.items() if cell is not None}


@pytest.mark.parametrize(("state", "event"), CELLS, ids=lambda value: str(value))
def test_cell(state: State, event: Event) -> None:
    session = ServerSession()
    session.state = state
    cell = CELLS[state, event]
    if cell is None:
        with pytest.raises(IllegalEvent) as caught:
            session.receive(event)
        assert (caught.value.state, caught.value.event) == (state, event)
        assert session.state is state
    else:
        effect = session.receive(event)
        assert (session.state, effect) == cell


Fact = tuple[State, int, int, int]
"""State; running (0 nothing, 1 constructor, 2 call, 3 close); times close() began; times the slot was freed."""


def explore() -> dict[Fact, tuple[Event, ...]]:
    """All facts that any order of legal events leads to, each with one path to it."""
    start: Fact = (State.OPENING, 1, 0, 0)
    seen: dict[Fact, tuple[Event, ...]] = {start: ()}
    queue = deque([start])
    while queue:
        fact = queue.popleft()
        state, running, closes, frees = fact
        for event in Event:
            # What runs decides which endings can be reported; the rest may come at any time.
            ends = {Event.BUILT: 1, Event.BUILD_FAILED: 1, Event.CALL_DONE: 2, Event.ENV_CLOSED: 3}.get(event)
            if ends is not None and ends != running:
                continue
            session = ServerSession()
            session.state = state
            try:
                effect = session.receive(event)
            except IllegalEvent:
                assert ends is None, f"{event} must be taken in {fact}, reached by {seen[fact]}"
                continue
            now = 0 if ends is not None else running
            if effect in (Effect.RUN, Effect.CLOSE_ENV):
                assert now == 0, f"{effect} while something runs: {fact} {event}"
                now = 2 if effect is Effect.RUN else 3
            following = (session.state, now, closes + (effect is Effect.CLOSE_ENV), frees + (effect is Effect.FREE))
            if following not in seen:
                seen[following] = (*seen[fact], event)
                queue.append(following)
    return seen


def test_close_runs_at_most_once_and_the_slot_is_freed_once_and_only_at_the_end() -> None:
    for (state, running, closes, frees), path in explore().items():
        assert closes <= 1, path
        assert frees == (1 if state is State.CLOSED else 0), path
        assert state is not State.CLOSED or running == 0, path


def test_an_environment_that_was_built_is_closed_before_its_slot_is_free() -> None:
    for (state, _, closes, _), path in explore().items():
        if state is State.CLOSED and Event.BUILT in path:
            assert closes == 1, path


def test_every_state_is_reached_and_every_state_can_still_end() -> None:
    facts = explore()
    assert {fact[0] for fact in facts} == set(State)
    for state in set(State) - {State.CLOSED}:
        ends: set[State] = {state}
        for _ in State:
            ends |= {target for (source, _), (target, _) in TABLE.items() if source in ends}
        assert State.CLOSED in ends


def test_busy_and_over_follow_the_state() -> None:
    session = ServerSession()
    busy, over = {}, {}
    for state in State:
        session.state = state
        busy[state], over[state] = session.busy, session.over
    assert {state for state in State if not busy[state]} == {State.IDLE, State.LEASED, State.CLOSED}
    assert {state for state in State if over[state]} == {State.ENDING, State.CLOSING, State.CLOSED}
