"""The list of scenarios: each is a script for the server, and the clauses that it grades."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from openenv.conformance.clauses import clause
from openenv.conformance.client.stage import Stage

__all__ = ["ALL_FEATURES", "SCENARIOS", "Scenario", "scenario"]

Body = Callable[[Stage], Awaitable[None]]
ALL_FEATURES = ("seq", "cancel", "resume")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario.

    Attributes:
        name: its short name.
        text: what happens in it.
        clauses: numbers of the clauses it grades; the first is what it is mainly about.
        run: plays the server; raises where the client breaks a rule.
        plain: the server speaks the plain dialect only.
        features: what the server offers.
    """

    name: str
    text: str
    clauses: tuple[str, ...]
    run: Body
    plain: bool
    features: tuple[str, ...]


SCENARIOS: list[Scenario] = []


def scenario(*clauses: str, plain: bool = False, features: tuple[str, ...] = ALL_FEATURES) -> Callable[[Body], Body]:
    """Add a scenario, whose docstring says what happens in it.

    Args:
        clauses: numbers of the clauses it grades.
        plain: the server speaks the plain dialect only.
        features: what the server offers.
    """

    def add(body: Body) -> Body:
        for number in clauses:
            clause(number)
        name = body.__name__.strip("_").replace("_", "-")
        SCENARIOS.append(Scenario(name, (body.__doc__ or "").strip(), clauses, body, plain, features))
        return body

    return add
