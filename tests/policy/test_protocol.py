"""The order of messages on one connection, enumerated against a model that shares no code with it."""

from __future__ import annotations

from collections import deque
from itertools import chain, combinations, product

import pytest

from openenv.policy.protocol import (
    TABLE,
    Conversation,
    Event,
    IllegalEnvs,
    IllegalEvent,
    IllegalMessage,
    State,
)

ENVS = (0, 1, 2)
SUBSETS = [frozenset(some) for some in chain.from_iterable(combinations(ENVS, size) for size in range(4))]
MOVES = [
    ("metadata", None),
    ("close", None),
    *product(("infer", "action", "feedback"), [some for some in SUBSETS if some]),
]


def legal(due: str, holding: frozenset[int], asked: frozenset[int], move: str, envs: frozenset[int]) -> bool:
    """The protocol's text, once more."""
    if due == "closed":
        return False
    if move == "close":
        return True
    if move != due:
        return False
    return {
        "metadata": True,
        "infer": not (envs or frozenset()) & holding,
        "action": envs == asked,
        "feedback": (envs or frozenset()) <= holding,
    }[move]


def after(state: tuple, move: str, envs: frozenset[int]) -> tuple:
    _, holding, asked = state
    if move == "close":
        return ("closed", frozenset(), frozenset())
    if move == "metadata":
        return ("infer", holding, asked)
    if move == "infer":
        return ("action", holding, envs)
    if move == "action":
        return ("feedback", holding | envs, frozenset())
    return ("infer", holding - envs, asked)


DUE = {
    State.METADATA: "metadata",
    State.INFER: "infer",
    State.ACTION: "action",
    State.FEEDBACK: "feedback",
    State.CLOSED: "closed",
}


def apply(machine: Conversation, move: str, envs: frozenset[int] | None) -> None:
    call = getattr(machine, move)
    call() if envs is None else call(envs)


def seen(machine: Conversation) -> tuple:
    return (DUE[machine.state], machine.holding, machine.asked)


def rebuild(path: tuple) -> Conversation:
    machine = Conversation()
    for move, envs in path:
        apply(machine, move, envs)
    return machine


def test_every_sequence_is_allowed_or_refused_as_the_protocol_says() -> None:
    start = ("metadata", frozenset(), frozenset())
    queue, known, cells = deque([(start, ())]), {start}, set()
    while queue:
        state, path = queue.popleft()
        for move, envs in MOVES:
            machine = rebuild(path)
            assert seen(machine) == state
            if legal(*state, move, envs):
                cells.add((machine.state, Event(move)))
                apply(machine, move, envs)
                following = after(state, move, envs)
                assert seen(machine) == following
                if following not in known:
                    known.add(following)
                    queue.append((following, (*path, (move, envs))))
            else:
                with pytest.raises(IllegalEvent):
                    apply(machine, move, envs)
                assert seen(machine) == state, "a refused message changed something"
    assert cells == set(TABLE)
    assert len(known) > 30


def test_a_message_out_of_turn_says_what_is_due() -> None:
    machine = rebuild((("metadata", None), ("infer", {0})))
    with pytest.raises(IllegalMessage, match="'infer' while an action is due") as caught:
        machine.infer({1})
    assert (caught.value.state, caught.value.event) == (State.ACTION, Event.INFER)


@pytest.mark.parametrize(
    ("path", "move", "envs", "named"),
    [
        ((("metadata", None), ("infer", {0, 1})), "action", {1, 2}, (0, 2)),
        ((("metadata", None), ("infer", {0}), ("action", {0})), "feedback", {0, 1}, (1,)),
        ((("metadata", None), ("infer", {0, 1}), ("action", {0, 1}), ("feedback", {0})), "infer", {0, 1}, (1,)),
    ],
)
def test_wrong_environments_are_named(path: tuple, move: str, envs: set[int], named: tuple[int, ...]) -> None:
    machine = rebuild(path)
    with pytest.raises(IllegalEnvs) as caught:
        apply(machine, move, frozenset(envs))
    assert caught.value.env_ids == named


def test_a_lenient_server_can_leave_out_the_strays() -> None:
    machine = rebuild((("metadata", None), ("infer", {0}), ("action", {0})))
    assert machine.strays({0, 5}) == {5}
    machine.feedback({0, 5} - machine.strays({0, 5}))
    assert machine.state is State.INFER
