"""Training servers that are graded: ours, the reference server, and one that never answers."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from conformance.policy.conftest import OUR_SERVER, reference_server, running
from openenv.conformance.policy.clauses import select_policy
from openenv.conformance.policy.server.peer import Target
from openenv.conformance.policy.server.run import grade_policy_server
from openenv.conformance.report import NotGraded, Report, Verdict

ENDS = ["--feedback-timeout", "1"]


@contextmanager
def ours(*more: str) -> Iterator[str]:
    """Our server, in a process that ends with its standard input."""
    command = [*OUR_SERVER, *ENDS, "--max-feedbacks", "160", *more]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def grade(url: str) -> Report:
    return grade_policy_server(Target(url, wait_s=20, until_stop=True, feedback_timeout_s=1))


def left(report: Report) -> dict[str, Verdict]:
    return {one.clause.id: one.verdict for one in report.results if one.verdict is not Verdict.PASS}


def test_our_server_keeps_every_clause() -> None:
    with ours() as url:
        report = grade(url)
    assert not left(report), str(report)
    assert {one.clause.id for one in report.results} == {one.id for one in select_policy("s")}


def test_our_server_without_the_feature() -> None:
    with ours("--no-reuse") as url:
        report = grade(url)
    assert set(left(report)) == {"10.1a", "10.1b", "10.1c", "10.1d", "10.1e"}, str(report)
    assert set(left(report).values()) == {Verdict.SKIP}


@pytest.mark.parametrize("reuse", [True, False])
def test_the_reference_server_keeps_every_clause(reuse: bool) -> None:
    more = [] if reuse else ["--no-reuse"]
    with running(reference_server(*ENDS, "--exchanges", "160", *more)) as url:
        report = grade(url)
    assert report.count(Verdict.VIOLATION) == 0, str(report)
    assert [one.clause for one in report.named("accepted")] == ["7.2f"]
    skipped = {number for number, verdict in left(report).items() if verdict is Verdict.SKIP}
    assert skipped == ({"1b"} if reuse else {"1b", "10.1a", "10.1b", "10.1c", "10.1d", "10.1e"})


def test_a_server_that_never_answers_ends_the_run_soon() -> None:
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(NotGraded, match="cannot connect"):
        grade_policy_server(Target(f"ws://127.0.0.1:{silent.getsockname()[1]}", wait_s=1))
    assert time.monotonic() - began < 30


def test_a_server_without_metadata_ends_the_run_soon() -> None:
    target = Target("", wait_s=1, timeout_s=60)
    began = time.monotonic()
    with running(reference_server("--bug", "no-metadata")) as target.url:
        report = grade_policy_server(target)
    assert [one.clause.id for one in report.results if one.verdict is Verdict.VIOLATION] == ["5.1a"]
    assert "the run was over before it came to" in str(report)
    assert time.monotonic() - began < target.timeout_s / 2


def test_phases_can_be_chosen() -> None:
    with running(reference_server()) as url:
        report = grade_policy_server(Target(url), phases=["scoping"])
    graded = {one.clause.id for one in report.results if one.verdict is Verdict.PASS}
    assert {"4.4a", "5.1a"} <= graded
    assert "7.2a" not in graded


@pytest.mark.parametrize(("url", "match"), [("ws://127.0.0.1:1", "cannot connect"), ("http://x", "no address")])
def test_nobody_there_is_not_graded(url: str, match: str) -> None:
    with pytest.raises(NotGraded, match=match):
        grade_policy_server(Target(url, wait_s=1))


def test_an_unknown_phase_is_not_graded() -> None:
    with pytest.raises(NotGraded, match="no phase is called nope"):
        grade_policy_server(Target("ws://127.0.0.1:1"), phases=["nope"])


def test_the_servers_program_of_the_probe_environment_stops_by_itself() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = str(one.getsockname()[1])
    command = ["-m", "probe_env.server", "--port", port, "--max-feedbacks", "20"]
    with subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True) as server:
        client = [sys.executable, "-m", "probe_env.client", "--url", f"ws://127.0.0.1:{port}"]
        done = subprocess.run(client, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert server.wait(60) == 0, server.communicate()[1]
    episodes, reused = (int(part.split()[0]) for part in done.stdout.split(", ")[:2])
    assert episodes > 3
    assert reused > 0
