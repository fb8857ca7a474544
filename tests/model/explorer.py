"""Breadth-first exploration of a world. Memory holds a fingerprint of every state, and the frontier in full."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from model.state import Violation
from model.world import World

__all__ = ["Report", "explore"]


@dataclass
class Report:
    """What an exploration found.

    Attributes:
        states: how many there are; those seen, if a violation ended it.
        depth: length of the longest path needed.
        violation: the first one, on a shortest path; None if there is none.
        trace: what led to it.
    """

    states: int = 0
    depth: int = 0
    violation: str | None = None
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.violation is None:
            return f"{self.states} states, depth {self.depth}"
        return "\n".join([f"{self.violation}, after:", *(f"  {step}" for step in self.trace)])


def explore(world: World, most: int | None = None, seeking: str = "") -> Report:
    """Visit every state, or the first ``most`` of them, nearest first.

    ``seeking``: a violation counts only if its text has this in it; others only end their path.
    """
    start = world.start()
    origin: dict[int, tuple[int, int]] = {hash(start): (0, -1)}
    frontier: list[Any] = [start]
    report = Report()
    while frontier and (most is None or len(origin) < most):
        following: list[Any] = []
        for state in frontier:
            here = hash(state)
            for number, move in _numbered(world, state):
                try:
                    after = move()
                except Violation as violation:
                    if seeking not in str(violation):
                        continue
                    report.states = len(origin)
                    report.violation = str(violation)
                    report.trace = _trace(world, origin, here, number)
                    return report
                key = hash(after)
                if key not in origin:
                    origin[key] = (here, number)
                    following.append(after)
        frontier = following
        report.depth += bool(following)
    report.states = len(origin)
    return report


def _numbered(world: World, state: Any) -> Iterator[tuple[int, Callable[[], Any]]]:
    """The moves from a state; what is wrong with the state itself is move -1."""
    try:
        for number, (_, move) in enumerate(world.moves(state)):
            yield number, move
    except Violation as violation:
        found = violation

        def at_rest() -> Any:
            raise found

        yield -1, at_rest


def _trace(world: World, origin: dict[int, tuple[int, int]], key: int, last: int) -> tuple[str, ...]:
    numbers = [last]
    while origin[key][1] >= 0:
        key, number = origin[key]
        numbers.append(number)
    state, names = world.start(), []
    for number in reversed(numbers):
        if number < 0:
            return (*names, "(nothing happens any more)")
        name, move = list(world.moves(state))[number]
        names.append(name)
        try:
            state = move()
        except Violation:
            break
    return tuple(names)
