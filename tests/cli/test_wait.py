"""``openenv wait``: what it says and its exit codes."""

from __future__ import annotations

import subprocess
import sys

from support.clients import CountClient, count_server

WAIT = [sys.executable, "-m", "openenv.cli", "wait"]


def test_a_free_slot_is_told_at_once_and_given_back() -> None:
    with count_server(1, plain=False) as server:
        for _ in range(2):
            done = subprocess.run([*WAIT, server.url], capture_output=True, text=True, timeout=60)
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout == f"{server.url} is ready\n"


def test_it_shows_its_position_and_goes_on_when_a_slot_is_free() -> None:
    with count_server(1, plain=False) as server:
        holder = CountClient(server.url).sync()
        holder.reset()
        with subprocess.Popen([*WAIT, server.url], stdout=-1, stderr=-1, text=True) as waiting:
            assert waiting.stderr is not None
            assert waiting.stderr.readline() == "in line, position 1\n"
            holder.close()
            assert waiting.communicate(timeout=60)[0] == f"{server.url} is ready\n"
        assert waiting.returncode == 0


def test_a_server_that_stays_full_and_none_at_all_are_told_apart() -> None:
    with count_server(1, plain=False) as server:
        holder = CountClient(server.url).sync()
        holder.reset()
        full = subprocess.run([*WAIT, server.url, "--timeout", "0.3"], capture_output=True, text=True, timeout=60)
        holder.close()
    assert full.returncode == 1
    assert "no slot became free in 0.3 s" in full.stderr
    gone = subprocess.run([*WAIT, server.url, "--timeout", "0.3"], capture_output=True, text=True, timeout=60)
    assert gone.returncode == 2
    assert "connection refused" in gone.stderr
    wrong = subprocess.run([*WAIT, "ftp://x"], capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 2
    assert "Traceback" not in full.stderr + gone.stderr + wrong.stderr


def test_a_plain_server_has_no_line() -> None:
    with count_server(1) as server:
        done = subprocess.run([*WAIT, server.url], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "has no line" in done.stderr
