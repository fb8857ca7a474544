"""Grades a server: runs every check that fits it, each in a thread of its own with a bound on its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator

from openenv.conformance.clauses import Clause, Dialect, clause, select
from openenv.conformance.report import Finding, Note, NotGraded, Report, Skip, Verdict, Violation
from openenv.conformance.server import calls, opening, plain, resume, slots
from openenv.conformance.server.target import CHECKS, Check, Target

__all__ = ["grade_server"]

_MODULES = (plain, opening, calls, resume, slots)  # each adds its checks when it is imported
_WAITS_A_CHECK = 12
"""A check may take this many times the bound of one wait."""


def grade_server(
    target: Target,
    *,
    only: Iterable[str] = (),
    upstream: bool = False,
    told: Callable[[Finding], None] = lambda finding: None,
) -> Report:
    """Grade a server.

    Args:
        target: the server.
        only: numbers of clauses; empty for all.
        upstream: tolerate what upstream 0.10.0 is known for.
        told: is given each finding as it comes.

    Raises:
        NotGraded: nobody listens there, or it stopped listening.
    """
    target.look()
    report = Report(target.url, select("s", plain_only=target.plain_only, only=only))
    numbers = {one.id for one in report.clauses}
    if "E6" in numbers and target.welcome is not None:
        opening.begin_silence(target)
    for one in CHECKS:
        if one.clause not in numbers:
            continue
        finding = _graded(one, target, upstream)
        report.add([finding])
        told(finding)
    report.add(_unchecked(report))
    return report


def _graded(one: Check, target: Target, upstream: bool) -> Finding:
    try:
        _fits(one, target)
        _bounded(one, target)
    except (Violation, Note, Skip) as said:
        return Finding.of(one.clause, said, one.name, upstream=upstream)
    finally:
        target.sweep()
    return Finding(one.clause, Verdict.PASS, check=one.name)


def _fits(one: Check, target: Target) -> None:
    """Skip a check that the server gives no occasion for."""
    if clause(one.clause).dialect is Dialect.V1 and target.welcome is None:
        if target.wants:
            raise Violation("not-echoed", "the server does not speak openenv.v1, and features are required of it")
        raise Skip("the server speaks the plain dialect only")
    for feature in one.needs:
        if feature not in target.features:
            if feature in target.wants:
                raise Violation("not-offered", f"the server does not offer '{feature}'")
            raise Skip(f"the server does not offer '{feature}'")
    if one.probe:
        target.need_probe()


def _bounded(one: Check, target: Target) -> None:
    """Run a check, but not for ever."""
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            one.run(target)
            ended.append(None)
        except BaseException as error:  # handed to the caller's thread
            ended.append(error)

    thread = threading.Thread(target=run, name=f"check {one.clause}", daemon=True)
    limit = target.timeout_s * _WAITS_A_CHECK
    began = time.monotonic()
    thread.start()
    thread.join(limit)
    if not ended:
        raise Violation("hang", f"the check did not come to an end within {time.monotonic() - began:.0f} s")
    if isinstance(ended[0], NotGraded):
        raise Violation("stopped-listening", str(ended[0]))
    if ended[0] is not None:
        raise ended[0]


def _unchecked(report: Report) -> Iterator[Finding]:
    graded = {one.clause for one in report.findings}
    missing: Iterable[Clause] = (one for one in report.clauses if one.id not in graded)
    return (Finding(one.id, Verdict.SKIP, text="there is no check for a server") for one in missing)
