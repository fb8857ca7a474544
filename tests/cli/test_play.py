"""``openenv play``: lines go in, what the environment shows comes out, and what becomes of the session is said."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from openenv.core.env_server.http_server import create_app
from openenv.testing import FaultProxy, ServerProcess, SpaceStub
from support.clients import count_server
from support.commands import openenv
from support.envs import CountAction, CountObservation, fresh_env
from support.live import serve
from support.tool_envs import tool_server

TOKEN = "hf_the_token_of_the_test"


@contextmanager
def playing(url: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """The command with pipes at all ends."""
    command = [sys.executable, "-m", "openenv.cli", "play", url, *options]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True, bufsize=1) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def say(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str], words: str) -> str:
    """Lines of the output up to one with these words."""
    assert process.stdout is not None
    heard = ""
    for line in process.stdout:
        heard += line
        if words in line:
            return heard
    assert process.stderr is not None
    raise AssertionError(f"{words!r} was not said; {heard!r}, {process.stderr.read()!r}")


def hear_aside(process: subprocess.Popen[str], words: str) -> None:
    """Lines of stderr up to one with these words."""
    assert process.stderr is not None
    heard = ""
    for line in process.stderr:
        heard += line
        if words in line:
            return
    raise AssertionError(f"{words!r} was not said; {heard!r}")


def test_a_game_from_a_pipe() -> None:
    with count_server(plain=False) as server:
        lines = [
            "op=echo arg=hello",
            '{"op": "echo", "arg": [1, 2]}',
            "state",
            "reset seed=5 task=x",
            "inc",
            "quit",
            "inc",
        ]
        done = openenv("play", server.url, "--seed", "3", typed="\n".join(lines))
        assert done.returncode == 0, done.stderr
        assert [one["op"] for one in server.env.log.of("step")] == ["echo", "echo", "inc"]
        assert [one["seed"] for one in server.env.log.of("reset")] == [3, 5]
        server.env.log.wait_for("close", 1)  # quit gives the session back
    blocks = done.stdout.split("env_no: ")
    assert "echo: hello\nreward: 0.5\n" in blocks[2]
    assert "echo: [1, 2]\nreward: 0.5\n" in blocks[3]
    assert "step_count: 2\n" in blocks[3]
    assert 'echo: {"task": "x"}' in blocks[5]
    assert "op (string, default inc)" in done.stderr
    assert "reset [seed=3 ...], state, help, quit" in done.stderr


def test_a_narrow_terminal_shows_what_it_can_and_obeys_nobody() -> None:
    lines = [
        r'{"op": "echo", "arg": "\u65e5\u001b]0;mine\u0007"}',
        "op=echo arg=\u3041",  # whose bytes are no text there
        '{"op": ' * 5_000,
        "op=inc",
    ]
    with count_server(plain=False) as server:
        done = openenv("play", server.url, typed="\n".join(lines), env={"PYTHONIOENCODING": "cp1252"})
        assert done.returncode == 1
        assert [one["op"] for one in server.env.log.of("step")] == ["echo", "inc"]
    assert r"echo: \u65e5\x1b]0;mine\x07" in done.stdout
    assert "lone surrogate" in done.stderr
    assert "nested deeper than 200 levels" in done.stderr


def test_fields_are_asked_for_until_they_fit() -> None:
    with ServerProcess("sudoku_env.server.app:app") as server:
        typed = "reset size=4 seed=1\n\nx\n0\n1\n2\n\n4\n\n"
        done = openenv("play", server.url, typed=typed)
    assert done.returncode == 0, done.stderr
    reasons = [line for line in done.stderr.splitlines() if " is a whole number" in line or " must be " in line]
    assert reasons == [
        "row is a whole number, not 'x'",
        "row must be >= 1, and 0 is not",
        "value is a whole number, not ''",
    ]
    assert done.stdout.count("message:") == 3  # two boards that were dealt, and one move
    assert "\n----+----\n" in done.stdout  # the drawn board, as it is


def test_a_move_that_is_refused_leaves_the_game_going() -> None:
    lines = ["op=invalid arg=not-there", "op=raise", "nothing here {", "reset timeout_s=soon", "op=inc", "done"]
    with count_server(plain=False) as server:
        done = openenv(
            "play",
            server.url,
            typed="\n".join(lines),
        )
        assert [one["op"] for one in server.env.log.of("step")][-2:] == ["inc", "done"]
        assert len(server.env.log.of("init")) == 1
    assert done.returncode == 1  # a pipe's line failed
    assert "InvalidActionError: not-there" in done.stderr
    assert "EnvExecutionError" in done.stderr
    assert "this cannot be asked for" in done.stderr
    assert "done (terminated)" in done.stdout


def test_a_session_that_is_resumed_is_said_and_goes_on() -> None:
    with count_server(plain=False) as server, FaultProxy("127.0.0.1", server.url.port) as proxy:
        with playing(proxy.url) as game:
            say(game, "inc")
            hear(game, "reward")
            proxy.cut("rst")
            hear_aside(game, "the session was resumed, and nothing with it is lost")
            say(game, "inc")
            assert "count: 2" in hear(game, "reward")
            say(game, "quit")
            assert game.wait(60) == 0
        assert len(server.env.log.of("init")) == 1


def test_a_session_that_is_lost_is_said_and_begins_anew_by_reset_only() -> None:
    with count_server(plain=True) as server, FaultProxy("127.0.0.1", server.url.port) as proxy:
        with playing(proxy.url) as game:
            say(game, "inc")
            hear(game, "reward")
            proxy.cut("rst")
            hear_aside(game, "The connection was lost, and the session with it.")
            say(game, "inc")
            hear_aside(game, "type reset to begin another")
            say(game, "reset")
            hear(game, "count: 0")
            say(game, "inc")
            assert "count: 1" in hear(game, "reward")
            say(game, "quit")
            assert game.wait(60) == 1
        assert server.strays() == []
        assert len(server.env.log.of("step")) == 2


def test_tools_are_listed_and_called() -> None:
    with tool_server() as server:
        typed = "inc 3\ninc by=2\ninc\ncall inc 4\nno_tool\ntools\nstate\n"
        done = openenv("play", str(server.url), typed=typed)
        assert [one["count"] for one in server.events("tool")] == [3, 5, 6, 10]
        assert len(server.events("reset")) == 1
        assert {one["env_no"] for one in server.events("tool")} == {server.events("reset")[0]["env_no"]}
    assert done.returncode == 1
    assert "there is no tool 'no_tool'; there are inc, " in done.stderr
    assert "inc: Add to the counter.\n  by (integer, default 1)" in done.stderr
    assert "inc: Add to the counter." in done.stdout
    assert "count: 10" in done.stdout


def test_a_tools_arguments_are_asked_for() -> None:
    with ServerProcess("echo_env.server.app:app") as server:
        done = openenv("play", server.url, typed="echo_message\nhello you\necho_message one = text\n")
    assert (done.returncode, done.stdout.splitlines()[-2:]) == (0, ["hello you", "one = text"]), done.stderr


def test_a_private_space_takes_its_token() -> None:
    with count_server(plain=False) as server, SpaceStub(server.url, token=TOKEN, sleep_s=0.0) as space:
        done = openenv("play", space.url, "--token", TOKEN, typed="inc\n")
        assert (done.returncode, "count: 1" in done.stdout) == (0, True), done.stderr
        refused = openenv("play", space.url, typed="inc\n")
    assert refused.returncode == 1
    assert "private Space" in refused.stderr
    assert "openenv doctor" in refused.stderr
    assert TOKEN not in done.stdout + done.stderr + refused.stderr


def test_a_sleeping_space_is_waited_for() -> None:
    with count_server(plain=False) as server, SpaceStub(server.url, token="", sleep_s=1.0) as space:
        done = openenv("play", space.url, typed="inc\n")
    assert (done.returncode, "count: 1" in done.stdout) == (0, True), done.stderr
    assert "HTTP 503" in done.stderr
    assert "Waiting for it" in done.stderr


def test_a_server_without_a_schema_takes_json() -> None:
    env = fresh_env()
    app = create_app(env, CountAction, CountObservation)

    async def without_schema(scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path") == "/schema":
            scope["path"] = "/nothing"
        await app(scope, receive, send)

    with serve(without_schema) as url:
        done = openenv("play", url, typed='{"op": "echo", "arg": "x"}\n\n')
        assert [one["op"] for one in env.log.of("step")] == ["echo"]
    assert done.returncode == 1
    assert "type them as JSON objects" in done.stderr
    assert "'' is not understood; type a JSON object" in done.stderr


def test_a_full_server_and_none_at_all() -> None:
    with count_server(1, plain=False) as server, server.client().sync() as player:
        player.reset()
        full = openenv("play", server.url, "--timeout", "5", typed="inc\n")
    assert (full.returncode, "openenv wait" in full.stderr) == (1, True)
    gone = openenv("play", server.url, typed="inc\n")
    assert (gone.returncode, "nothing listens there" in gone.stderr) == (1, True)
    assert openenv("play", "ftp://x").returncode == 2


def test_at_a_terminal_it_asks() -> None:
    with count_server(plain=False) as server:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "openenv.cli", "play", server.url]
        with subprocess.Popen(command, stdin=theirs, stdout=-1, stderr=-1, text=True) as game:
            os.close(theirs)
            hear(game, "count: 0")
            os.write(ours, b"\n")
            os.write(ours, b"\n\n")  # both fields may be left out
            hear(game, "count: 1")
            os.write(ours, b"\x04")
            out, aside = game.communicate(timeout=60)
        os.close(ours)
    assert (game.returncode, out) == (0, "")
    assert "arg (any, may be left out): " in aside


@pytest.mark.parametrize("where", ["stdin", "call"])
def test_ctrl_c_ends_it_and_the_session(where: str) -> None:
    with count_server(plain=False) as server, playing(server.url) as game:
        hear(game, "count: 0")
        if where == "call":
            say(game, "op=sleep arg=30")
            server.env.log.wait_for("step", 1)
        else:
            hear_aside(game, "quit")  # the help is out: it waits for a line
        game.send_signal(signal.SIGINT)
        assert game.wait(60) == 130
        server.env.release.set()
        server.env.log.wait_for("close", 1)
