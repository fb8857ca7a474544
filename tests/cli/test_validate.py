"""``openenv validate``: what it prints, its JSON, its exit codes, and servers that are reached by their URL."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from openenv.cli.app import app
from openenv.testing import ServerProcess
from support.dice import GOOD, package, with_fault


def validate(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["validate", *arguments])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = package(tmp_path_factory.mktemp("served"))
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    with ServerProcess("dice_app:app", environ={"PYTHONPATH": path}) as process:
        yield process


def test_the_report_names_each_rule_and_the_next_move(tmp_path: Path) -> None:
    never = with_fault(("self.rolls >= 10", "False"))
    done = validate(str(package(tmp_path, never)), "--steps", "50")
    assert done.exit_code == 0
    assert "warn  done        an episode ends, and says done\n" in done.stdout
    assert "no done in 50 steps\n" in done.stdout
    assert "-> return done=True from step()" in done.stdout
    assert f"{tmp_path}: 13 pass, 1 warn, 0 fail, 1 skip\n" in done.stdout
    assert done.stderr == ""
    assert validate(str(tmp_path), "--steps", "50", "--strict", "--level", "runtime").exit_code == 1


def test_json_is_one_object_on_stdout_and_in_a_file(tmp_path: Path) -> None:
    broken = with_fault(("# step", "raise LookupError('no dice')"))
    file = tmp_path / "report.json"
    done = validate(str(package(tmp_path, broken)), "--json", "--output", str(file))
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert told == json.loads(file.read_text())
    assert (told["target"], told["passed"]) == (str(tmp_path), False)
    assert sum(told["counts"].values()) == len(told["findings"]) == 15
    (step,) = [one for one in told["findings"] if one["rule"] == "step"]
    assert step["verdict"] == "fail"
    assert step["title"]
    assert "LookupError: no dice" in step["text"]
    assert "InvalidActionError" in step["move"]


def test_static_runs_nothing(tmp_path: Path) -> None:
    folder = package(tmp_path, "raise SystemExit('imported')")
    done = validate(str(folder), "--level", "static")
    assert done.exit_code == 0
    assert "only the files were looked at" in done.stdout
    assert validate(str(folder)).exit_code == 1


def test_a_server_is_validated_by_its_url(server: ServerProcess) -> None:
    done = validate(server.url, "--json")
    assert done.exit_code == 0, done.stdout
    verdicts = {one["rule"]: one["verdict"] for one in json.loads(done.stdout)["findings"]}
    assert {rule for rule, verdict in verdicts.items() if verdict == "pass"} == {
        "starts", "reset", "step", "schema", "seed", "leftover", "done", "sessions"
    }  # fmt: skip
    assert {verdict for rule, verdict in verdicts.items() if rule in ("close", "thread", "manifest")} == {"skip"}
    shown = validate("--url", server.url)
    assert shown.exit_code == 0
    assert (
        "skip  manifest, project, readme, dockerfile: there are no files to look at: give its folder\n" in shown.stdout
    )


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (("random.Random(seed)", "random.Random()"), "seed"),
        (("self.wins = self.rolls = 0\n        # reset", "self.rolls = 0"), "leftover"),
        (("# step", "raise LookupError('no dice')"), "step"),
    ],
)
def test_faults_show_from_outside(change: tuple[str, str], rule: str, tmp_path: Path) -> None:
    folder = package(tmp_path, with_fault(change))
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    with ServerProcess("dice_app:app", environ={"PYTHONPATH": path}) as process:
        done = validate(process.url, "--json")
    assert done.exit_code == 1
    assert [one["rule"] for one in json.loads(done.stdout)["findings"] if one["verdict"] == "fail"] == [rule]


def test_a_server_that_asks_for_a_token_is_given_it(tmp_path: Path) -> None:
    code = GOOD.replace("state_cls=Table", "state_cls=Table, token='secret'")
    folder = package(tmp_path, code)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    with ServerProcess("dice_app:app", environ={"PYTHONPATH": path}) as process:
        refused = validate(process.url)
        assert (refused.exit_code, "401" in refused.stderr) == (2, True)
        assert validate(process.url, "--token", "secret").exit_code == 0


def test_an_episode_can_be_shown_with_actions(tmp_path: Path) -> None:
    rare = with_fault(("self.rolls >= 10", "action.metadata.get('over', False)"))
    folder = package(tmp_path, rare)
    assert "no done in 30 steps" in validate(str(folder), "--steps", "30").stdout
    actions = tmp_path / "actions.jsonl"
    actions.write_text('{"bet": 1}\n{"bet": 2, "metadata": {"over": true}}\n')
    done = validate(str(folder), "--steps", "30", "--actions", str(actions), "--strict")
    assert done.exit_code == 0, done.stdout


def test_what_cannot_be_validated_ends_with_2(tmp_path: Path, server: ServerProcess) -> None:
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text("[1]\n")
    for arguments, words in (
        ([str(tmp_path / "nowhere")], "neither a folder nor a URL"),
        ([str(tmp_path)], "no environment package"),
        (["http://127.0.0.1:9"], "does not answer as an environment server"),
        (["ftp://x"], "neither a folder nor a URL"),
        ([server.url, "--url", "http://x"], "not both"),
        ([server.url, "--actions", str(wrong)], "every line must be a JSON object"),
        ([server.url, "--actions", str(tmp_path / "no")], "No such file"),
        ([server.url, "--output", str(tmp_path / "no" / "report.json")], "cannot be written"),
        ([f"{server.url}/nowhere"], "404"),
    ):
        done = validate(*arguments)
        assert (done.exit_code, done.stdout) == (2, ""), done.stdout
        assert done.stderr.startswith("openenv validate: ")
        assert words in done.stderr


def test_a_server_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = validate(f"http://127.0.0.1:{silent.getsockname()[1]}", "--timeout", "0.3")
    assert (done.exit_code, "timed out" in done.stderr) == (2, True), done.stderr


def listens(port: int) -> bool:
    """Whether somebody takes connections there."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
    except ConnectionRefusedError:
        return False
    except ConnectionResetError:
        pass  # it has just ended
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_it_leaves_no_process_behind(number: int, tmp_path: Path) -> None:
    note = tmp_path / "port"
    fault = f"""
    import socket
    listens = socket.create_server(("127.0.0.1", 0))
    open({str(note)!r}, "w").write(f"{{listens.getsockname()[1]}} ")
    threading.Event().wait()
    """
    command = [sys.executable, "-m", "openenv.cli", "validate", str(package(tmp_path, with_fault(("# step", fault))))]
    with subprocess.Popen([*command, "--timeout", "60"], stdout=-1, stderr=-1, start_new_session=True) as process:
        while not (note.exists() and note.read_text().endswith(" ")):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(number)
        process.communicate(timeout=60)
    while listens(int(note.read_text())):
        time.sleep(0.02)
