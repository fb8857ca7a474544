"""Rollout clients that are graded: ours, the reference client, and some that are none."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence

import pytest

from conformance.policy.conftest import ASYNC_CLIENT, OUR_CLIENT, RAW_CLIENT
from openenv.conformance.policy.clauses import REUSE, select_policy
from openenv.conformance.policy.client.run import grade_policy_client
from openenv.conformance.policy.client.scenarios import SCENARIOS
from openenv.conformance.policy.client.stage import Settings
from openenv.conformance.report import NotGraded, Report, Verdict

CLIENTS = [OUR_CLIENT, ASYNC_CLIENT, RAW_CLIENT]


def reused(report: Report) -> int:
    """The number of reused rows that was counted."""
    [found] = report.named("reused-rows")
    return int(re.findall(r"\d+", found.text)[0])


@pytest.mark.parametrize("features", [(), (REUSE,)], ids=["without", REUSE])
@pytest.mark.parametrize("command", CLIENTS, ids=["ours", "ours-async", "reference"])
async def test_every_clause_is_kept(command: Sequence[str], features: tuple[str, ...]) -> None:
    settings = Settings(features=features, horizon=4, resyncs=3, wait_s=20)
    report = await grade_policy_client(command, settings=settings)
    left = {one.clause.id: one.verdict for one in report.results if one.verdict is not Verdict.PASS}
    assert not left, str(report)
    assert report.exit_code == 0
    assert {one.clause.id for one in report.results} == {one.id for one in select_policy("c", features=features)}
    if features:
        assert reused(report) > 0


@pytest.mark.parametrize("envs", [1, 5])
async def test_other_numbers_of_envs_and_a_horizon_past_every_episode(envs: int) -> None:
    settings = Settings(features=(REUSE,), horizon=10, width=1, dtype="float32", wait_s=20)
    report = await grade_policy_client([*OUR_CLIENT, "--num-envs", str(envs)], settings=settings)
    assert report.count(Verdict.VIOLATION) == report.count(Verdict.NOTE) == 0, str(report)


async def test_a_client_that_replans_early() -> None:
    command = [*OUR_CLIENT, "--replan-steps", "2"]
    report = await grade_policy_client(
        command, scenarios=["basic", "resync"], settings=Settings(features=(REUSE,), wait_s=20)
    )
    assert report.count(Verdict.VIOLATION) == report.count(Verdict.NOTE) == 0, str(report)
    assert reused(report) > 0


async def test_a_client_that_does_not_reuse_is_told_so_and_passes() -> None:
    command = [*OUR_CLIENT, "--no-reuse-feedback-obs"]
    report = await grade_policy_client(command, scenarios=["basic"], settings=Settings(features=(REUSE,), wait_s=20))
    assert reused(report) == 0
    assert [one.clause for one in report.named("never-used")] == ["10.1a"]
    assert report.exit_code == 0


async def test_without_the_probe_environment_only_shapes_and_order_are_graded() -> None:
    report = await grade_policy_client(RAW_CLIENT, settings=Settings(probe=False, wait_s=20))
    assert report.count(Verdict.VIOLATION) == 0, str(report)
    skipped = {one.clause.id for one in report.results if one.verdict is Verdict.SKIP}
    assert {"5.4a", "5.4b", "7.6e"} <= skipped
    assert not {"4a", "5.4c", "7.6a", "7.6c", "7.1a"} & skipped


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("raise SystemExit('I do not want to')", "client-ended"),
        ("import time; time.sleep(600)", "silent-client"),
    ],
)
async def test_a_program_that_does_nothing_is_a_violation_and_no_hang(program: str, name: str) -> None:
    began = time.monotonic()
    settings = Settings(wait_s=1, timeout_s=60)
    report = await grade_policy_client([sys.executable, "-c", program], settings=settings, jobs=len(SCENARIOS))
    assert {one.name for one in report.findings if one.verdict is Verdict.VIOLATION} == {name}
    assert time.monotonic() - began < settings.timeout_s / 2
    if name == "client-ended":
        assert "I do not want to" in report.named(name)[0].text


@pytest.mark.parametrize(
    ("settings", "scenarios", "match"),
    [
        (Settings(), ["nope"], "no scenario is called nope"),
        (Settings(), ["reuse"], f"needs --features {REUSE}"),
        (Settings(dtype="float16"), ["all"], "actions cannot be float16"),
        (Settings(horizon=0), ["all"], "the horizon must be"),
        (Settings(features=("teleport",)), ["all"], "no feature is called teleport"),
    ],
)
async def test_what_cannot_be_graded_says_why(settings: Settings, scenarios: list[str], match: str) -> None:
    with pytest.raises(NotGraded, match=match):
        await grade_policy_client(RAW_CLIENT, scenarios=scenarios, settings=settings)


async def test_a_command_that_does_not_exist_is_not_graded() -> None:
    with pytest.raises(NotGraded, match="cannot run no-such-program"):
        await grade_policy_client(["no-such-program"])
