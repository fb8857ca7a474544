"""Grades a training server: one step after another, within a bound on the whole run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from openenv.conformance.policy.clauses import select_policy
from openenv.conformance.policy.judge import Fault, Judge
from openenv.conformance.policy.server import ends, errors
from openenv.conformance.policy.server.peer import Peer, Target
from openenv.conformance.policy.server.phases import STEPS, Step
from openenv.conformance.report import Finding, NotGraded, Report, Skip, Verdict

__all__ = ["PHASES", "grade_policy_server"]

_MODULES = (errors, ends)  # each adds its steps when it is imported
PHASES = ("exchange", "forms", "pings", "errors", "scoping", "reuse", "timeout", "stop")
_SILENCES = 2
"""So many steps without an answer in a row end the run: a server that hangs would only hang again."""


def grade_policy_server(
    target: Target,
    *,
    phases: Iterable[str] = PHASES,
    only: Iterable[str] = (),
    told: Callable[[Finding], None] = lambda finding: None,
) -> Report:
    """Grade a training server.

    Args:
        target: the server.
        phases: names of phases.
        only: numbers of clauses; empty for all.
        told: is given each finding as it comes.

    Returns:
        The report.

    Raises:
        NotGraded: nobody listens there, or a phase does not exist.
    """
    wanted = {*phases}
    if unknown := sorted(wanted - {*PHASES}):
        raise NotGraded(f"no phase is called {', '.join(unknown)}; there are {', '.join(PHASES)}")
    report = Report(target.url, select_policy("s", only=only))
    target.deadline = time.monotonic() + target.timeout_s
    _reach(target)
    silences = 0
    for one in sorted(STEPS, key=lambda one: PHASES.index(one.phase)):
        if one.phase not in wanted and one is not STEPS[0]:
            continue
        if (time.monotonic() > target.deadline and one.phase != "stop") or silences >= _SILENCES:
            text = f"the run was over before it came to: {one.text}"
            report.add([Finding(one.main, Verdict.SKIP, text=text, check=one.text)])
            continue
        findings, silent = _played(one, target)
        silences = silences + 1 if silent else 0
        report.add(findings)
        for finding in findings:
            told(finding)
    graded = {one.clause for one in report.findings}
    text = "no phase of this run came to grade it"
    report.add(Finding(one.id, Verdict.SKIP, text=text) for one in report.clauses if one.id not in graded)
    return report


def _reach(target: Target) -> None:
    """Somebody must listen there."""
    try:
        with Peer(target, Judge("", "5.1a"), greet=False):
            pass
    except Fault as fault:
        raise NotGraded(fault.text) from None


def _played(one: Step, target: Target) -> tuple[list[Finding], bool]:
    """The findings of a step, and whether it ended in silence."""
    judge = Judge(one.text, one.main)
    if one.phase == "stop":
        target.deadline = float("inf")  # it ends by itself: with the stop, or after so many exchanges
    try:
        one.play(target, judge)
    except Skip as skip:
        return [*judge.findings, Finding.of(one.main, skip, one.text)], False
    except Fault as fault:
        judge.end(fault)
        return judge.findings, fault.name in ("no-answer", "no-connection")
    return judge.findings, False
