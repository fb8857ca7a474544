"""Every bug that the reference programs can be told to have is found, under its clause."""

from __future__ import annotations

import sys

import pytest

from conformance.conftest import REFERENCE, planted, reference_server
from openenv.conformance.client.run import grade_client
from openenv.conformance.report import Report, Verdict
from openenv.conformance.server.run import grade_server
from openenv.conformance.server.target import Target

SERVERS = planted("plain_server", "v1_server")
CLIENTS = planted("plain_client", "v1_client")
TIMEOUT_S = 3.0


def caught(report: Report) -> None:
    [result] = report.results
    assert result.verdict is Verdict.VIOLATION, str(report)
    assert all(one.name and one.text for one in result.worst)
    assert report.exit_code == 1


@pytest.mark.parametrize(("program", "bug", "clause"), SERVERS, ids=[f"{bug[1]}-{bug[2]}" for bug in SERVERS])
def test_a_servers_bug_is_caught(program: str, bug: str, clause: str) -> None:
    with reference_server(program, "--bug", bug) as url:
        caught(grade_server(Target(url, timeout_s=TIMEOUT_S, eviction_s=5.0), only=[clause]))


@pytest.mark.parametrize(("program", "bug", "clause"), CLIENTS, ids=[f"{bug[1]}-{bug[2]}" for bug in CLIENTS])
async def test_a_clients_bug_is_caught(program: str, bug: str, clause: str) -> None:
    command = [sys.executable, str(REFERENCE / f"{program}.py"), "--bug", bug]
    caught(await grade_client(command, only=[clause], timeout_s=TIMEOUT_S, jobs=4))


def test_there_are_enough_of_them() -> None:
    assert len(SERVERS) + len(CLIENTS) >= 25
