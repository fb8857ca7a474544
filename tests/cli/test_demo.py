"""`openenv demo`, run as a user runs it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

DEMO = [sys.executable, "-m", "openenv.cli", "demo"]


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DEMO, *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=os.environ | env,
    )


def first_on_path(folder: Path) -> str:
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def is_listening(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def rows(table: str) -> dict[str, list[int]]:
    """The rows of the table: a count for the plain dialect, and one for openenv.v1."""
    found = re.findall(r"^ (\S.*?) {2,}(\d+) +(\d+) *$", table, re.M)
    return {name: [int(plain), int(ours)] for name, plain, ours in found}


@pytest.mark.parametrize("features", [None, "none"])
def test_plain_games_are_lost_loudly_and_ours_go_on(features: str | None) -> None:
    done = run("--games", "4", "--seed", "5", **({"OPENENV_FEATURES": features} if features else {}))
    assert done.returncode == 0, done.stderr
    # 4x4: 8 moves, cut after 2 and 5; 9x9: 30, after 10 and 20. A move whose reply was cut has run.
    assert rows(done.stdout) == {
        "connections cut": [8, 8],
        "step() raised SessionLostError": [8, 0],
        "and again when retried": [8, 0],
        "sessions resumed": [0, 8],
        "games begun": [12, 4],
        "games solved": [4, 4],
        "by the server's log: boards": [12, 4],
        "moves run": [2 * (2 + 5 + 8) + 2 * (10 + 20 + 30) + 4, 2 * 8 + 2 * 30],
        "moves run twice": [0, 0],
        "moves on a board not reset for them": [0, 0],
    }
    assert "call reset()" in done.stdout


def test_away_from_a_terminal_it_writes_plain_lines() -> None:
    done = run("--games", "2")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stdout + done.stderr
    cuts = [
        "All games stand between two moves. Cutting every connection now.",
        "All games make a move. Cutting every connection before its answer is through.",
    ]
    first, *plain, second, cut, cut_again = done.stderr.splitlines()
    assert plain == [cut, cut_again] == cuts
    assert "(plain dialect); 2 clients play" in first
    assert "(openenv.v1); 2 clients play" in second


def test_a_taken_port_is_one_clear_line(taken_port: int) -> None:
    done = run("--port", str(taken_port))
    assert done.returncode == 1
    assert done.stdout == ""
    assert (
        done.stderr == f"openenv demo: port {taken_port} cannot be used: Address already in use; try another --port\n"
    )


def test_a_server_that_dies_at_start_is_one_clear_line_with_its_last_words(tmp_path: Path) -> None:
    broken = tmp_path / "uvicorn" / "__main__.py"
    broken.parent.mkdir()
    broken.write_text("import sys\nsys.stderr.write('Traceback ...\\n')\nsys.exit('the disk is on fire')\n")
    (broken.parent / "__init__.py").touch()
    done = run(PYTHONPATH=first_on_path(tmp_path))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "openenv demo: The server ended before it was ready: the disk is on fire\n"


def test_without_the_sudoku_package_it_says_how_to_install_it(tmp_path: Path) -> None:
    finder = tmp_path / "sitecustomize.py"
    finder.write_text(
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'sudoku_env' else find(name, *rest)\n"
    )
    done = run(PYTHONPATH=first_on_path(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("openenv demo: the sudoku_env package is not installed.")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("option", [("--games", "0"), ("--port", "70000"), ("--seed", "-1"), ("--games", "x")])
def test_options_out_of_range_are_refused(option: tuple[str, str]) -> None:
    done = run(*option)
    assert done.returncode == 2
    assert option[0] in done.stderr


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_takes_its_server_along(free_port: int, signum: signal.Signals) -> None:
    demo = subprocess.Popen(
        [*DEMO, "--games", "256", "--port", str(free_port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with demo:
        assert demo.stderr is not None
        assert "A Sudoku server runs" in demo.stderr.readline()
        demo.send_signal(signum)
        _, errors = demo.communicate()
    assert demo.returncode not in (0, None)
    assert "Traceback" not in errors
    assert not is_listening(free_port)


def test_a_server_that_dies_in_mid_game_is_one_clear_line(free_port: int) -> None:
    demo = subprocess.Popen(
        [*DEMO, "--games", "256", "--port", str(free_port)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with demo:
        assert demo.stderr is not None
        assert "A Sudoku server runs" in demo.stderr.readline()
        children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children")
        if not children.exists():
            demo.kill()
            pytest.skip("needs /proc to find the server")
        for child in children.read_text().split():
            os.kill(int(child), signal.SIGKILL)
        output, errors = demo.communicate()
    assert demo.returncode == 1
    assert output == ""
    assert errors.splitlines()[-1].startswith("openenv demo: The server died in mid-game")
    assert "Traceback" not in errors


def test_on_a_terminal_it_shows_progress() -> None:
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    demo = subprocess.Popen(
        [*DEMO, "--games", "2"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    screen = bytearray()
    with demo, contextlib.suppress(OSError):  # the terminal reads as an error once the demo has left it
        while chunk := os.read(ours, 65536):
            screen += chunk
    os.close(ours)
    assert demo.returncode == 0, screen.decode()
    told = screen.decode()
    assert "75/75" in told  # with the moves that are played again
    assert "38/38" in told
