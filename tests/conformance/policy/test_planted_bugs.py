"""Every bug that the reference programs can be told to have is found, under its clause, long before the run's bound."""

from __future__ import annotations

import time

import pytest

from conformance.policy.conftest import RAW_CLIENT, planted, reference_server, running
from openenv.conformance.policy.clauses import REUSE, select_policy
from openenv.conformance.policy.client.run import grade_policy_client
from openenv.conformance.policy.client.stage import Settings
from openenv.conformance.policy.server.peer import Target
from openenv.conformance.policy.server.run import grade_policy_server
from openenv.conformance.report import Report, Verdict

CLIENTS = planted("raw_client")
SERVERS = planted("reference_server")
NOTED = [("c", "same-sets")]
"""Legal for a client, and worth a note."""
TIMEOUT_S = 40.0

SCENARIO = {
    **dict.fromkeys(["5.1b", "5.1c", "5.3d"], "bare"),
    **dict.fromkeys(["3.1b"], "values"),
    **dict.fromkeys(["4.3a"], "order"),
    **dict.fromkeys(["7.6a", "7.6b", "7.6c", "7.6d", "7.6e", "7.6f"], "resync"),
    **dict.fromkeys(["7.3a"], "closes"),
    **dict.fromkeys(["7.1c"], "stop-dial"),
    **dict.fromkeys(["7.4a"], "text"),
    **dict.fromkeys(["10.1b", "10.1c", "10.1d"], "reuse"),
}
SCENARIO_OF_BUG = {"remembers-features": "reuse", "substring-features": "bare"}
PHASE = {
    **dict.fromkeys(["3.1b", "3.4a"], "forms"),
    **dict.fromkeys(["1b"], "pings"),
    **dict.fromkeys(["7.2a", "7.2b", "7.2c", "7.2d", "7.2e", "7.2f", "7.6a", "7.6g"], "errors"),
    **dict.fromkeys(["4.4a"], "scoping"),
    **dict.fromkeys(["10.1a", "10.1b", "10.1c", "10.1d", "10.1e"], "reuse"),
    **dict.fromkeys(["7.3a"], "timeout"),
    **dict.fromkeys(["7.1a", "7.1b"], "stop"),
}


def caught(report: Report, end: str, bug: str) -> None:
    [result] = report.results
    noted = (end, bug) in NOTED
    assert result.verdict is (Verdict.NOTE if noted else Verdict.VIOLATION), str(report)
    assert all(one.name and one.text for one in result.worst)
    assert report.exit_code == int(not noted)


@pytest.mark.parametrize(("bug", "clause"), CLIENTS, ids=[f"{bug}-{clause}" for bug, clause in CLIENTS])
async def test_a_clients_bug_is_caught(bug: str, clause: str) -> None:
    scenario = SCENARIO_OF_BUG.get(bug) or SCENARIO.get(clause, "basic")
    features = (REUSE,) if scenario == "reuse" else ()
    settings = Settings(
        features=features, wait_s=2 if bug in ("hangs-on-stop", "ignore-text") else 15, timeout_s=TIMEOUT_S
    )
    began = time.monotonic()
    report = await grade_policy_client(
        [*RAW_CLIENT, "--bug", bug], scenarios=[scenario], settings=settings, only=[clause]
    )
    caught(report, "c", bug)
    assert time.monotonic() - began < TIMEOUT_S / 2


@pytest.mark.parametrize(("bug", "clause"), SERVERS, ids=[f"{bug}-{clause}" for bug, clause in SERVERS])
def test_a_servers_bug_is_caught(bug: str, clause: str) -> None:
    quick = ["--feedback-timeout", "0.2", "--exchanges", "20"] if clause[:3] in ("7.1", "7.3") else []
    slow = ["--infer-seconds", "0.4"] if clause == "1b" else []
    target = Target("", wait_s=3, timeout_s=TIMEOUT_S, until_stop=True, feedback_timeout_s=0.2)
    began = time.monotonic()
    with running(reference_server("--bug", bug, *quick, *slow)) as target.url:
        report = grade_policy_server(target, phases=[PHASE.get(clause, "exchange")], only=[clause])
    caught(report, "s", bug)
    assert time.monotonic() - began < TIMEOUT_S / 2


async def test_a_client_that_speaks_on_for_ever_does_not_hold_the_run() -> None:
    began = time.monotonic()
    settings = Settings(wait_s=15, timeout_s=TIMEOUT_S)
    report = await grade_policy_client([*RAW_CLIENT, "--bug", "infers-twice"], settings=settings)
    assert report.exit_code == 1
    assert time.monotonic() - began < TIMEOUT_S / 2


@pytest.mark.parametrize(("end", "bugs"), [("c", CLIENTS), ("s", SERVERS)])
def test_every_clause_has_a_bug(end: str, bugs: list[tuple[str, str]]) -> None:
    assert {clause for _, clause in bugs} == {one.id for one in select_policy(end)}


def test_the_bugs_that_other_checkers_know_are_there() -> None:
    client = """early-infer compress frame-cap float32 env-major last-step-reward reset-in-step resend-feedback
        ignore-stop ignore-text stale-chunk reuse-unoffered reuse-after-reset"""
    server = "no-metadata env-major no-env-ids wrong-horizon lenient crash-on-info plain-stop lenient-reuse"
    assert len(client.split()) + len(server.split()) == 21
    assert set(client.split()) <= {bug for bug, _ in CLIENTS}
    assert set(server.split()) <= {bug for bug, _ in SERVERS}
