"""What a checker found: verdicts on clauses, and how they add up to a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from openenv.conformance.clauses import Clause

__all__ = ["UPSTREAM", "Finding", "NotGraded", "Note", "Report", "Result", "Skip", "Verdict", "Violation"]


class Verdict(StrEnum):
    """How a clause came out."""

    PASS = "pass"
    NOTE = "note"
    VIOLATION = "violation"
    SKIP = "skip"


_WEIGHT = [Verdict.SKIP, Verdict.PASS, Verdict.NOTE, Verdict.VIOLATION]

UPSTREAM: Mapping[str, str] = {
    "non-object-fatal": "JSON that is no object ends the session",
    "binary-fatal": "a binary frame ends the session",
    "nan-to-null": "NaN and infinities become null",
    "silent-reconnect": "a step or state after a loss goes to a fresh environment that was never reset",
    "two-in-flight": "a second request is sent while one is unanswered",
    "shifted-reply": "a reply that nobody asked for answers the next request",
    "wrong-type-taken": "a reply of the wrong type is taken for the answer",
    "not-offered": "openenv.v1 is not offered",
}
"""Deviations that upstream 0.10.0 is known to have, by the name of the finding."""


class NotGraded(Exception):
    """Nothing could be graded: exit code 2. The text says why."""


class _Said(Exception):
    """Ends a check.

    Args:
        name: a short name of what was found.
        text: what was seen.
    """

    verdict = Verdict.PASS

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text
        super().__init__(f"{name}: {text}")


class Violation(_Said):
    """The clause does not hold."""

    verdict = Verdict.VIOLATION


class Note(_Said):
    """Worth knowing, and no violation."""

    verdict = Verdict.NOTE


class Skip(_Said):
    """The clause cannot be checked here."""

    verdict = Verdict.SKIP

    def __init__(self, text: str) -> None:
        super().__init__("", text)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found under a clause.

    Attributes:
        clause: number of the clause.
        verdict: violation, note, skip, or pass.
        name: its short name; empty for a pass or skip.
        text: what was seen, or why it was skipped.
        check: what was being checked.
    """

    clause: str
    verdict: Verdict
    name: str = ""
    text: str = ""
    check: str = ""

    @classmethod
    def of(cls, number: str, said: _Said, check: str, *, upstream: bool = False) -> Finding:
        """From what ended a check; a known deviation is a note where upstream is tolerated."""
        verdict, text = said.verdict, said.text
        if upstream and verdict is Verdict.VIOLATION and said.name in UPSTREAM:
            verdict, text = Verdict.NOTE, f"known of upstream 0.10.0: {UPSTREAM[said.name]}. {text}"
        return cls(number, verdict, said.name, text, check)


@dataclass(frozen=True, slots=True)
class Result:
    """How one clause came out: the worst of what was found."""

    clause: Clause
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        return max((one.verdict for one in self.findings), key=_WEIGHT.index, default=Verdict.SKIP)

    @property
    def worst(self) -> tuple[Finding, ...]:
        """The findings that made the verdict, each once."""
        same = [one for one in self.findings if one.verdict is self.verdict]
        return tuple({(one.name, one.text): one for one in reversed(same)}.values())[::-1]


@dataclass
class Report:
    """All clauses of one run.

    Attributes:
        subject: what was graded.
        clauses: those by which it was graded.
        findings: what was found, in order.
    """

    subject: str
    clauses: list[Clause]
    findings: list[Finding] = field(default_factory=list)

    def add(self, findings: Iterable[Finding]) -> None:
        """Add findings; those of other clauses than the report's are left out."""
        numbers = {one.id for one in self.clauses}
        self.findings.extend(one for one in findings if one.clause in numbers)

    @property
    def results(self) -> list[Result]:
        """One for each clause, in order."""
        return [Result(one, tuple(found for found in self.findings if found.clause == one.id)) for one in self.clauses]

    def named(self, name: str) -> list[Finding]:
        """The findings of a name."""
        return [one for one in self.findings if one.name == name]

    def count(self, verdict: Verdict) -> int:
        """How many clauses came out so."""
        return sum(one.verdict is verdict for one in self.results)

    @property
    def exit_code(self) -> int:
        return int(self.count(Verdict.VIOLATION) > 0)

    def as_json(self) -> dict[str, Any]:
        """The report as one JSON object."""
        return {
            "subject": self.subject,
            "counts": {verdict.value: self.count(verdict) for verdict in Verdict},
            "clauses": [_as_json(one) for one in self.results],
        }

    def blocks(self) -> list[str]:
        """A clause as plain text: its verdict, and below it what was found."""
        blocks = []
        for one in self.results:
            said = [f"[{found.name}] {found.text}" if found.name else found.text for found in one.worst]
            lines = [f"{one.verdict:<9} {one.clause.id:<4} {one.clause.title}"]
            blocks.append("\n".join([*lines, *(f"{'':15}{text}" for text in said if text)]))
        return blocks

    def sums(self) -> str:
        """One line with the number of clauses for each verdict."""
        counts = ", ".join(f"{self.count(verdict)} {verdict}" for verdict in Verdict)
        return f"{self.subject}: {counts}"

    def __str__(self) -> str:
        return "\n".join([*self.blocks(), self.sums()])


def _as_json(result: Result) -> dict[str, Any]:
    return {
        "id": result.clause.id,
        "title": result.clause.title,
        "text": result.clause.text,
        "dialect": result.clause.dialect.value,
        "verdict": result.verdict.value,
        "findings": [
            {"verdict": one.verdict.value, "name": one.name, "text": one.text, "check": one.check}
            for one in result.findings
            if one.name or one.text
        ],
    }
