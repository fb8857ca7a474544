"""A look at one server: how thoroughly, at what, and what was found. Shared by the rules about what runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from openenv.validation.episodes import Actions, Episode, play
from openenv.validation.report import Report, Verdict
from openenv.validation.subject import Probe, Server

__all__ = ["MOVES", "SEED", "Look", "Options", "few"]

SEED = 7
"""Of the episode that is played again and again."""

MOVES = {
    "raised": "mend what it raised; for a move that is not allowed raise InvalidActionError",
    "late": "make it return, or let it be cancelled (Environment.cancel); --timeout allows more",
    "lost": "see the server's log: an environment must not end its process",
    "factory": "see the server's log: the constructor must not raise",
    "full": "close other sessions, or let the server have more",
    "other": "see the server's log",
}
"""What to do about a call that did not come to its end, by its kind."""


@dataclass(frozen=True)
class Options:
    """How thoroughly to look.

    Attributes:
        timeout_s: seconds that any answer may take.
        start_s: seconds that the application may take to start.
        max_time_s: seconds for everything that runs.
        steps: most steps of an episode.
        actions: actions that every episode begins with.
    """

    timeout_s: float = 10.0
    start_s: float = 60.0
    max_time_s: float = 120.0
    steps: int = 1000
    actions: Sequence[Any] = ()


@dataclass
class Look:
    """One look at one server.

    Attributes:
        server: where the episodes are played.
        report: what was found.
        options: how thoroughly.
        again: starts the application in another process, with options of the probe; None where that cannot be.
        ends: when to stop.
    """

    server: Server
    report: Report
    options: Options
    again: Callable[..., Probe] | None
    ends: float
    make: Callable[[random.Random], Any] = lambda draw: {}
    with_tools: bool = False
    facts: dict[str, Any] = field(default_factory=dict)

    def actions(self, *, others: bool = False) -> Actions:
        """What the player does in every episode; ``others``: what a neighbour does."""
        return Actions(self.make, () if others else self.options.actions, others=others)

    def fail(self, rule: str, text: str, move: str) -> None:
        """Note that a rule is broken."""
        self.report.add(rule, Verdict.FAIL, text, move)

    def warn(self, rule: str, text: str, move: str) -> None:
        """Note that something could be better."""
        self.report.add(rule, Verdict.WARN, text, move)

    def replay(self, client: Any, first: Episode) -> Episode:
        """Play the episode again."""
        return play(client, self.actions(), steps=len(first.steps), seed=SEED, ends=self.ends)


def few(names: Sequence[str]) -> str:
    """The first of many names."""
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
