"""Grades a rollout client: plays the scenarios, some side by side, within a bound on the whole run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from openenv.conformance.policy.clauses import REUSE, select_policy
from openenv.conformance.policy.client.scenarios import SCENARIOS, Scenario
from openenv.conformance.policy.client.stage import Settings, Stage
from openenv.conformance.policy.judge import Fault, Judge
from openenv.conformance.policy.probe import DTYPES, MAX_HORIZON, MAX_WIDTH
from openenv.conformance.report import Finding, NotGraded, Report, Verdict

__all__ = ["grade_policy_client"]


async def grade_policy_client(
    command: Sequence[str],
    *,
    scenarios: Iterable[str] = ("all",),
    settings: Settings | None = None,
    only: Iterable[str] = (),
    jobs: int = 2,
    told: Callable[[Finding], None] = lambda finding: None,
) -> Report:
    """Grade a rollout client.

    Args:
        command: the client; ``{url}``, ``{host}`` and ``{port}`` in it are replaced.
        scenarios: names of scenarios; ``all`` for all that the features allow.
        settings: what is offered, and how long to wait.
        only: numbers of clauses; empty for all.
        jobs: scenarios that are played side by side.
        told: is given each finding as it comes.

    Returns:
        The report; reused rows are counted in the text of 10.1a.

    Raises:
        NotGraded: the command cannot be run, the settings or names do not fit, or the client does not run the probe
            environment.
    """
    settings = settings or Settings()
    chosen = _chosen([*scenarios], settings)
    report = Report(" ".join(command), select_policy("c", only=only, features=settings.features))
    free = asyncio.Semaphore(jobs)
    reused: list[int] = []
    trouble: list[NotGraded] = []

    async def play(one: Scenario) -> None:
        async with free:
            if trouble:
                return
            judge = Judge(one.name, one.main)
            stage = Stage(command, judge, settings)
            try:
                async with asyncio.timeout(settings.timeout_s), stage:
                    await one.run(stage)
            except Fault as fault:
                judge.end(Fault(fault.clause, fault.name, f"{fault.text} (scenario {one.name}: {one.text})"))
            except TimeoutError:
                judge.end(Fault(judge.main, "hang", f"scenario {one.name} took more than {settings.timeout_s:g} s"))
            except NotGraded as error:
                trouble.append(error)
            reused.append(stage.ledger.reused)
            report.add(judge.findings)
            for finding in judge.findings:
                told(finding)

    async with asyncio.TaskGroup() as group:
        for one in chosen:
            group.create_task(play(one))
    if trouble:
        raise trouble[0]
    if REUSE in settings.features:
        report.add([Finding("10.1a", Verdict.PASS, "reused-rows", f"{sum(reused)} rows were reused")])
    else:
        report.add([Finding("10.1a", Verdict.PASS, text="nothing is listed, and nothing was reused")])
    graded = {one.clause for one in report.findings}
    text = "no scenario of this run came to grade it"
    report.add(Finding(one.id, Verdict.SKIP, text=text) for one in report.clauses if one.id not in graded)
    return report


def _chosen(names: Sequence[str], settings: Settings) -> list[Scenario]:
    known = [one.name for one in SCENARIOS]
    if unknown := sorted({*names} - {*known, "all"}):
        raise NotGraded(f"no scenario is called {', '.join(unknown)}; there are {', '.join([*known, 'all'])}")
    if unlisted := sorted({*settings.features} - {REUSE}):
        raise NotGraded(f"no feature is called {', '.join(unlisted)}; there is {REUSE}")
    if settings.dtype not in DTYPES:
        raise NotGraded(f"actions cannot be {settings.dtype}; there are {', '.join(DTYPES)}")
    if not (1 <= settings.horizon <= MAX_HORIZON and 1 <= settings.width <= MAX_WIDTH):
        raise NotGraded(f"the horizon must be 1 to {MAX_HORIZON}, the width of an action 1 to {MAX_WIDTH}")
    offered = {*settings.features}
    fits = [one for one in SCENARIOS if {*one.needs} <= offered and ("all" in names or one.name in names)]
    if not fits:
        raise NotGraded(f"{', '.join(names)} needs --features {REUSE}")
    return fits
