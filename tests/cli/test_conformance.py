"""``openenv conformance``: what it writes, and its exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from openenv.cli.app import app
from openenv.testing.counting import CountingAction, CountingEnv, CountingObservation, CountingState
from support.live import LiveServer, serve

DRIVER = Path(__file__).resolve().parents[1] / "conformance" / "driver.py"
run = CliRunner()


@pytest.fixture(scope="module")
def live() -> Iterator[LiveServer]:
    from openenv.core.env_server.http_server import create_app

    made = create_app(CountingEnv, CountingAction, CountingObservation, max_concurrent_envs=4, state_cls=CountingState)
    with serve(made) as url:
        yield url


def test_a_server_that_passes(live: LiveServer) -> None:
    done = run.invoke(app, ["conformance", "server", live, "--clauses", "P1,E2"])
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["pass", "P1", "silence"]
    assert lines[1].split() == ["pass", "E2", "welcome"]
    assert lines[2] == f"{live}: 2 pass, 0 note, 0 violation, 0 skip"


def test_the_report_as_json(live: LiveServer) -> None:
    done = run.invoke(app, ["conformance", "server", live, "--clauses", "P1,E28", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["subject"] == live
    assert [one["id"] for one in report["clauses"]] == ["P1", "E28"]
    assert set(report["clauses"][0]) == {"id", "title", "text", "dialect", "verdict", "findings"}
    assert sum(report["counts"].values()) == 2


def test_a_plain_server_lacks_what_is_required_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from openenv.core.env_server.http_server import create_app

    monkeypatch.setenv("OPENENV_FEATURES", "none")
    with serve(create_app(CountingEnv, CountingAction, CountingObservation, max_concurrent_envs=4)) as plain:
        done = run.invoke(
            app, ["conformance", "server", plain, "--clauses", "E7", "--features", "seq", "--timeout", "5"]
        )
    assert done.exit_code == 1
    assert "[not-echoed]" in done.stdout


def test_a_client_that_passes() -> None:
    command = ["conformance", "client", "--clauses", "P13,E9", "--", sys.executable, str(DRIVER), "{url}"]
    done = run.invoke(app, command)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1].endswith(": 2 pass, 0 note, 0 violation, 0 skip")


def test_a_client_that_does_not() -> None:
    command = ["conformance", "client", "--clauses", "P13", "--json", "--", sys.executable, "-c", "print('no')"]
    done = run.invoke(app, command)
    assert done.exit_code == 1
    [clause] = json.loads(done.stdout)["clauses"]
    [finding] = clause["findings"]
    assert (clause["verdict"], finding["name"]) == ("violation", "driver-ended")
    assert "no" in finding["text"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["server", "http://127.0.0.1:1"], "cannot connect"),
        (["server", "nonsense"], "is no URL"),
        (["server", "http://127.0.0.1:1", "--clauses", "P99"], "--clauses names P99"),
        (["server", "http://127.0.0.1:1", "--features", "teleport"], "--features names teleport"),
        (["server", "http://127.0.0.1:1", "--action", "{"], "--action is not JSON"),
        (["server", "http://127.0.0.1:1", "--action", "[]"], "--action must be a JSON object"),
        (["client", "--", "/no/such/program"], "cannot run /no/such/program"),
    ],
)
def test_what_cannot_be_graded_is_one_line_and_exit_code_2(arguments: list[str], text: str) -> None:
    done = run.invoke(app, ["conformance", *arguments])
    assert done.exit_code == 2
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
