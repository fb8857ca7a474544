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

DEMO = [str(Path(sys.executable).with_name("openenv")), "demo"]


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DEMO, *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=os.environ | env,
    )


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


def rows(table: str) -> list[list[str]]:
    """Cells of the rows of the table: one a game, and the sums."""
    cells = [re.split(r"\s{2,}", line.strip()) for line in table.splitlines()]
    return [row for row in cells if row[0].isdigit() or row[0] == "all"]


def test_every_loss_is_told_twice_and_every_game_ends() -> None:
    done = run("--games", "4", "--seed", "5")
    assert done.returncode == 0, done.stderr
    *games, sums = rows(done.stdout)
    lost = ["SessionLostError", "SessionLostError", "0"]
    assert games == [
        ["1", "4x4", "4", *lost, "solved"],
        ["2", "9x9", "15", *lost, "solved"],
        ["3", "4x4", "4", *lost, "solved"],
        ["4", "9x9", "15", *lost, "solved"],
    ]
    assert sums == ["all", "38", "4 raised", "4 raised", "0", "4 solved"]
    assert "4 connections cut" in done.stdout
    assert "8 boards, 114 moves, 0 of them twice, 0 on a board that its player had not reset" in done.stdout
    assert "call reset()" in done.stdout


def test_away_from_a_terminal_it_writes_plain_lines() -> None:
    done = run("--games", "2")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stdout + done.stderr
    assert done.stderr.splitlines()[-1] == "All 2 games are half played. Cutting every connection now."


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
    done = run(PYTHONPATH=str(tmp_path))
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
    done = run(PYTHONPATH=str(tmp_path))
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
    assert "19/19" in told
    assert "38/38" in told
