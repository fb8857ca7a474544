"""``openenv conformance policy-client`` and ``policy-server``: what they write, and their exit codes."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

from conformance.policy.conftest import RAW_CLIENT, reference_server, running
from openenv.cli.app import app

run = CliRunner()


def test_a_client_that_passes() -> None:
    options = ["--scenario", "basic,text", "--steps", "5", "--clauses", "4a,7.4a,10.1a"]
    options += ["--features", "reuse-feedback-obs"]
    done = run.invoke(app, ["conformance", "policy-client", *options, "--", *RAW_CLIENT])
    assert done.exit_code == 0, done.output
    assert [line.split()[:2] for line in done.stdout.splitlines() if line.startswith("pass")] == [
        ["pass", "4a"],
        ["pass", "7.4a"],
        ["pass", "10.1a"],
    ]
    assert "rows were reused" in done.stdout


def test_a_client_that_fails_as_json() -> None:
    options = ["--scenario", "basic", "--action-dtype", "float32", "--action-dim", "3", "--horizon", "2", "--json"]
    done = run.invoke(app, ["conformance", "policy-client", *options, "--", *RAW_CLIENT, "--bug", "last-step-reward"])
    assert done.exit_code == 1, done.output
    report = json.loads(done.stdout)
    assert [one["id"] for one in report["clauses"] if one["verdict"] == "violation"] == ["5.4a"]
    assert {one["dialect"] for one in report["clauses"]} == {"policy"}


def test_a_server() -> None:
    options = ["--phases", "exchange,errors", "--image-key", "camera", "--image-size", "8", "--clauses", "1.1b,7.2b"]
    with running(reference_server("--bug", "takes-second-infer")) as url:
        done = run.invoke(app, ["conformance", "policy-server", url, *options, "--wait", "1"])
    assert done.exit_code == 1
    assert "[no-resync]" in done.stdout
    assert done.stdout.splitlines()[-1] == f"{url}: 1 pass, 0 note, 1 violation, 0 skip"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["policy-client", "--scenario", "nope", "--", "x"], "--scenario names nope"),
        (["policy-client", "--features", "teleport", "--", "x"], "--features names teleport"),
        (["policy-client", "--", "no-such-program"], "cannot run no-such-program"),
        (["policy-server", "ws://127.0.0.1:1"], "cannot connect"),
        (["policy-server", "ws://127.0.0.1:1", "--clauses", "P1"], "--clauses names P1"),
    ],
)
def test_nothing_was_graded(arguments: list[str], says: str) -> None:
    done = run.invoke(app, ["conformance", *arguments])
    assert done.exit_code == 2
    assert says in done.stderr


def test_without_the_extra_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("openenv.conformance.policy")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "msgpack", None)
    done = run.invoke(app, ["conformance", "policy-server", "ws://127.0.0.1:1"])
    assert done.exit_code == 2
    assert "pip install 'openenv[policy]'" in done.stderr
