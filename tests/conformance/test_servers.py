"""Servers that are graded: ours, upstream's, the reference servers, and some that are none."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from conformance.conftest import reference_server
from openenv.conformance.report import NotGraded, Report, Verdict
from openenv.conformance.server.run import grade_server
from openenv.conformance.server.target import Target


def named(report: Report) -> dict[str, set[str]]:
    """Names of the findings of each clause."""
    found: dict[str, set[str]] = {}
    for one in report.findings:
        if one.name:
            found.setdefault(one.clause, set()).add(one.name)
    return found


def test_our_server_keeps_every_clause(ours: str) -> None:
    report = grade_server(Target(ours))
    left = {one.clause.id: one.verdict for one in report.results if one.verdict is not Verdict.PASS}
    assert set(left.values()) <= {Verdict.NOTE}, str(report)  # a busy machine may leave a check without its full server
    assert report.exit_code == 0


def test_upstreams_server_keeps_the_plain_dialect_and_its_deviations_have_names(upstream: str) -> None:
    report = grade_server(Target(upstream, plain_only=True), upstream=True)
    assert report.count(Verdict.VIOLATION) == 0, str(report)
    assert {one.clause.id for one in report.results if one.verdict is not Verdict.PASS} == {"P21", "P22"}
    assert named(report) == {"P21": {"non-object-fatal", "binary-fatal"}, "P22": {"nan-to-null"}}
    assert all(one.clause.safety for one in report.results if one.verdict is Verdict.NOTE)


def test_upstreams_deviations_are_violations_for_who_does_not_tolerate_them(upstream: str) -> None:
    report = grade_server(Target(upstream), only=["P21", "E1"])
    assert [one.verdict for one in report.results] == [Verdict.VIOLATION, Verdict.SKIP]
    assert report.exit_code == 1


def test_features_that_are_required_and_not_offered(upstream: str) -> None:
    report = grade_server(Target(upstream, wants=frozenset({"seq"})), only=["E7"])
    assert named(report) == {"E7": {"not-echoed"}}


@pytest.mark.parametrize("program", ["plain_server", "v1_server"])
def test_the_reference_servers_keep_every_clause(program: str) -> None:
    with reference_server(program) as url:
        report = grade_server(Target(url, plain_only=program == "plain_server"))
    assert {one.verdict for one in report.results} == {Verdict.PASS}, str(report)


def test_a_server_with_another_environment_is_graded_with_the_action_it_takes(ours: str) -> None:
    target = Target(ours, action={"op": "inc"}, plain_only=True)
    target.look()
    assert target.probe
    with reference_server("plain_server") as url:
        one = Target(url, action={"op": "inc"}, plain_only=True)
        one.look = lambda: None  # type: ignore[method-assign]
        report = grade_server(one, only=["P3", "P6", "P5"])
    assert {one.clause.id: one.verdict for one in report.results} == {
        "P3": Verdict.PASS,
        "P5": Verdict.SKIP,
        "P6": Verdict.PASS,
    }


def test_nobody_there_is_not_graded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(NotGraded, match="cannot connect"):
        grade_server(Target(f"http://127.0.0.1:{port}"))
    with pytest.raises(NotGraded, match="is no URL"):
        grade_server(Target("127.0.0.1:8000"))


@pytest.fixture
def mute() -> Iterator[str]:
    """A server that accepts connections and never says a word."""
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            try:
                while True:
                    held.append(listener.accept()[0])
            except OSError:
                pass

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)
    for one in held:
        with closing(one):
            pass


def test_a_server_that_never_answers_does_not_hang_the_checker(mute: str) -> None:
    began = time.monotonic()
    with pytest.raises(NotGraded):
        grade_server(Target(mute, timeout_s=0.5))
    assert time.monotonic() - began < 30
