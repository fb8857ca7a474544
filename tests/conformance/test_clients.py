"""Clients that are graded: ours, upstream's, the reference clients, and some that are none."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from conformance.conftest import REFERENCE
from conformance.test_servers import named
from openenv.conformance.client.run import grade_client
from openenv.conformance.report import NotGraded, Verdict

SAFETY = {"P24", "P25", "P26"}


async def test_our_client_keeps_every_clause(driver: list[str]) -> None:
    report = await grade_client(driver, timeout_s=20, jobs=4)
    left = {one.clause.id: one.verdict for one in report.results if one.verdict is not Verdict.PASS}
    assert not left, str(report)
    assert report.exit_code == 0


async def test_upstreams_client_keeps_the_plain_dialect_and_its_deviations_have_names(
    upstream_driver: list[str],
) -> None:
    report = await grade_client(upstream_driver, plain_only=True, upstream=True, timeout_s=20, jobs=4)
    assert report.count(Verdict.VIOLATION) == 0, str(report)
    assert {one.clause.id for one in report.results if one.verdict is not Verdict.PASS} == SAFETY
    assert named(report) == {
        "P24": {"two-in-flight"},
        "P25": {"silent-reconnect"},
        "P26": {"silent-reconnect", "shifted-reply", "wrong-type-taken"},
    }
    assert all(one.clause.safety for one in report.results if one.verdict is Verdict.NOTE)


async def test_a_plain_client_that_is_asked_for_more(upstream_driver: list[str]) -> None:
    report = await grade_client(upstream_driver, only=["P25", "E1", "E7"], timeout_s=20, jobs=4)
    verdicts = {one.clause.id: one.verdict for one in report.results}
    assert verdicts == {"P25": Verdict.VIOLATION, "E1": Verdict.VIOLATION, "E7": Verdict.SKIP}
    assert report.exit_code == 1


@pytest.mark.parametrize("program", ["plain_client", "v1_client"])
async def test_the_reference_clients_keep_every_clause(program: str) -> None:
    command = [sys.executable, str(REFERENCE / f"{program}.py"), "{url}"]
    report = await grade_client(command, plain_only=program == "plain_client", timeout_s=20, jobs=4)
    assert {one.verdict for one in report.results} == {Verdict.PASS}, str(report)


async def test_a_command_that_does_not_exist_is_not_graded() -> None:
    with pytest.raises(NotGraded, match="cannot run no-such-program"):
        await grade_client(["no-such-program"], only=["P7"])


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("raise SystemExit('I do not want to')", "driver-ended"),
        ("import time; time.sleep(600)", "silent-client"),
    ],
)
async def test_a_driver_that_does_nothing_is_a_violation_and_no_hang(program: str, name: str) -> None:
    report = await grade_client([sys.executable, "-c", program], only=["P9"], plain_only=True, timeout_s=2)
    assert [one.name for one in report.findings if one.verdict is Verdict.VIOLATION] == [name]
    if name == "driver-ended":
        assert "I do not want to" in report.findings[0].text


async def test_each_finding_is_told_as_it_comes(driver: list[str]) -> None:
    told: list[Any] = []
    report = await grade_client(driver, only=["P13"], plain_only=True, told=told.append)
    assert told == report.findings
    assert [one.verdict for one in told] == [Verdict.PASS]
