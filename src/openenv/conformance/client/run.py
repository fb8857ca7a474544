"""Grades a client: plays every scenario that fits it, some side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence

from openenv.conformance.clauses import Clause, Dialect, select
from openenv.conformance.client import calls, plain, resume
from openenv.conformance.client.scenario import SCENARIOS, Scenario
from openenv.conformance.client.sessions import Fault
from openenv.conformance.client.stage import Stage
from openenv.conformance.report import Finding, Note, NotGraded, Report, Skip, Verdict, Violation

__all__ = ["grade_client"]

_MODULES = (plain, calls, resume)  # each adds its scenarios when it is imported
_WAITS_A_SCENARIO = 10
"""A scenario may take this many times the bound of one wait."""


async def grade_client(
    command: Sequence[str],
    *,
    timeout_s: float = 10.0,
    features: Sequence[str] = ("seq", "cancel", "resume", "queue"),
    plain_only: bool = False,
    only: Iterable[str] = (),
    upstream: bool = False,
    jobs: int = 2,
    told: Callable[[Finding], None] = lambda finding: None,
) -> Report:
    """Grade a client.

    Args:
        command: the driver; ``{url}`` in it is replaced.
        timeout_s: bound of every wait, in seconds.
        features: what the server offers at most.
        plain_only: leave out ``openenv.v1``.
        only: numbers of clauses; empty for all.
        upstream: tolerate what upstream 0.10.0 is known for.
        jobs: scenarios that are played side by side.
        told: is given each finding as it comes.

    Raises:
        NotGraded: the command cannot be run.
    """
    report = Report(" ".join(command), select("c", plain_only=plain_only, only=only))
    wanted = {one.id for one in report.clauses}
    chosen = [one for one in SCENARIOS if wanted & set(one.clauses) and (one.plain or not plain_only)]
    chosen = [one for one in chosen if set(one.features) <= {*features}]
    free = asyncio.Semaphore(jobs)
    offers: list[bool] = []

    async def play(one: Scenario) -> None:
        async with free:
            main = next(number for number in one.clauses if number in wanted)
            stage = Stage(command, main, plain=one.plain, features=one.features, timeout_s=timeout_s)
            findings = await _played(one, stage, main, upstream)
        offers.append(stage.offered)
        report.add(findings)
        for finding in findings:
            told(finding)

    speaks = [one for one in chosen if one.plain]
    rest = [one for one in chosen if not one.plain]
    await _all(play, speaks)
    if rest and offers and not any(offers):
        text = "the client does not offer openenv.v1; --plain-only leaves its clauses out"
        report.findings = [one for one in report.findings if one.clause != "E1"]
        report.add([Finding.of("E1", Violation("not-offered", text), "", upstream=upstream)])
        report.add(Finding(one.id, Verdict.SKIP, text=text) for one in _v1(report) if one.id not in ("E1", "E16"))
    else:
        await _all(play, rest)
    graded = {one.clause for one in report.findings}
    report.add(
        Finding(one.id, Verdict.SKIP, text="no scenario of this run came to grade it")
        for one in report.clauses
        if one.id not in graded
    )
    return report


def _v1(report: Report) -> list[Clause]:
    return [one for one in report.clauses if one.dialect is Dialect.V1]


async def _all(play: Callable[[Scenario], Coroutine[None, None, None]], chosen: Sequence[Scenario]) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            for one in chosen:
                group.create_task(play(one))
    except* NotGraded as errors:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
    else:
        return
    raise first


async def _played(one: Scenario, stage: Stage, name: str, upstream: bool) -> list[Finding]:
    try:
        async with asyncio.timeout(stage.timeout_s * _WAITS_A_SCENARIO), stage:
            await one.run(stage)
    except Fault as fault:
        said = Violation(fault.name, f"{fault.text} (scenario {one.name}: {one.text})")
        found = [Finding.of(fault.clause, said, one.name, upstream=upstream)]
        if fault.clause != name and fault.clause not in one.clauses:
            found.append(Finding(name, Verdict.SKIP, text=f"scenario {one.name} ended early, under {fault.clause}"))
        return [*found, *(Finding(number, Verdict.PASS, check=one.name) for number in sorted(stage.kept))]
    except TimeoutError:
        return [Finding.of(name, Violation("hang", f"scenario {one.name} did not come to an end"), one.name)]
    except (Note, Skip) as said:
        return [Finding.of(name, said, one.name)]
    return [Finding(number, Verdict.PASS, check=one.name) for number in one.clauses]
