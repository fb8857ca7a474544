"""What validating an environment found: a verdict for each rule, and the next move wherever one is broken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["RULES", "Finding", "NotValidated", "Report", "Verdict"]


class Verdict(StrEnum):
    """How a rule came out."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


RULES: Mapping[str, str] = {
    "manifest": "openenv.yaml says what and where the environment is",
    "project": "pyproject.toml can be installed, and asks for openenv",
    "readme": "README.md has the front matter of a Space",
    "dockerfile": "the image runs on a Space",
    "starts": "the application is imported and answers",
    "reset": "reset() begins an episode",
    "step": "step() answers every action that fits",
    "schema": "observations are what /schema says",
    "seed": "the same seed and actions are the same episode",
    "leftover": "a reset leaves nothing of the last episode",
    "done": "an episode ends, and says done",
    "sessions": "sessions see nothing of each other",
    "thread": "it runs on the threads that a server gives it",
    "close": "an environment is closed once, and in time",
    "tools": "tools say what they do, and what they take",
}
"""The rules by their names, in the order of a report."""


class NotValidated(Exception):
    """There is nothing that could be validated; the text says why."""


@dataclass(frozen=True, slots=True)
class Finding:
    """How one rule came out.

    Attributes:
        rule: which.
        verdict: how.
        text: what was seen; empty for a plain pass.
        move: what to do about it.
    """

    rule: str
    verdict: Verdict
    text: str = ""
    move: str = ""


@dataclass
class Report:
    """All findings about one environment.

    Attributes:
        target: the folder or URL.
        findings: in the order in which they were made; a rule may have several.
    """

    target: str
    findings: list[Finding] = field(default_factory=list)

    def add(self, rule: str, verdict: Verdict, text: str = "", move: str = "") -> None:
        """Note a finding, once.

        Raises:
            KeyError: there is no such rule.
        """
        assert RULES[rule]
        finding = Finding(rule, verdict, text, move)
        if finding not in self.findings:
            self.findings.append(finding)

    def passed(self, *rules: str) -> None:
        """Note that rules hold, unless something else was found about them."""
        known = {one.rule for one in self.findings}
        for rule in rules:
            if rule not in known:
                self.add(rule, Verdict.PASS)

    def skipped(self, text: str, *rules: str) -> None:
        """Note that rules were not looked at, unless something was found about them."""
        known = {one.rule for one in self.findings}
        for rule in rules:
            if rule not in known:
                self.add(rule, Verdict.SKIP, text)

    def of(self, rule: str) -> list[Finding]:
        """The findings about one rule."""
        return [one for one in self.findings if one.rule == rule]

    def count(self, verdict: Verdict) -> int:
        """How many findings came out so."""
        return sum(one.verdict is verdict for one in self.findings)

    @property
    def ordered(self) -> list[Finding]:
        """The findings in the order of the rules."""
        order = list(RULES)
        return sorted(self.findings, key=lambda one: order.index(one.rule))

    def exit_code(self, *, strict: bool = False) -> int:
        """0 if nothing is broken, else 1; ``strict``: also for a warning."""
        return int(self.count(Verdict.FAIL) > 0 or (strict and self.count(Verdict.WARN) > 0))

    def as_json(self) -> dict[str, Any]:
        """The report as one JSON object."""
        return {
            "target": self.target,
            "passed": self.exit_code() == 0,
            "counts": {verdict.value: self.count(verdict) for verdict in Verdict},
            "findings": [
                {
                    "rule": one.rule,
                    "title": RULES[one.rule],
                    "verdict": one.verdict.value,
                    "text": one.text,
                    "move": one.move,
                }
                for one in self.ordered
            ],
        }
