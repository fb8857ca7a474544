"""The client for Node, on Node's own WebSocket: a whole game of Sudoku, with its connection cut in the middle."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from openenv.testing import FaultProxy, ServerProcess
from support.node import node_command
from support.reference import FOLDER, reference_server

ROOT = Path(__file__).resolve().parents[2]
CLIENT = FOLDER / "node_client.mjs"


@pytest.fixture(scope="module")
def node() -> list[str]:
    return node_command()


@contextmanager
def game(node: list[str], *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*node, str(CLIENT), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        bufsize=1,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@contextmanager
def sudoku(log: Path, **environ: str) -> Iterator[ServerProcess]:
    path = os.pathsep.join([str(ROOT / "envs" / "sudoku_env"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environ = {"SUDOKU_EVENT_LOG": str(log), "PYTHONPATH": path, **environ}
    with ServerProcess("sudoku_env.server.app:app", environ=environ) as server:
        yield server


def events(log: Path, kind: str) -> list[dict[str, Any]]:
    read = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    return [event for event in read if event["event"] == kind]


def lines_of(process: subprocess.Popen[str], faults: Mapping[str, Callable[[], int]]) -> list[str]:
    """Let the client make its moves one by one, with a fault after some of them. Returns what it said."""
    assert process.stdin is not None
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.strip())
        if line.startswith(("board", "move")):
            faults.get(line.split(":")[0], lambda: 0)()
            process.stdin.write("go\n")
    return lines


def assert_one_board_and_each_move_once(log: Path, moves: int, *, built: int = 1) -> None:
    steps = events(log, "step")
    assert len({tuple(step["move"]) for step in steps}) == len(steps) == moves
    assert len({step["board_id"] for step in steps}) == 1
    assert [len(events(log, kind)) for kind in ("constructor", "reset", "close")] == [built, 1, built]


def test_a_game_survives_cuts_in_the_middle(node: list[str], tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    with sudoku(log) as server, FaultProxy("127.0.0.1", server.port) as proxy:
        faults: dict[str, Callable[[], int]] = {
            "move 5": lambda: proxy.cut("rst"),
            "move 9": lambda: proxy.cut("fin"),
            "move 13": lambda: proxy.cut_on_reply("rst"),
            "move 17": lambda: proxy.cut_after(20, "request"),
            "move 21": lambda: proxy.cut_after(40, "reply"),
        }
        with game(node, proxy.url, "--size", "9", "--seed", "7", "--ask") as process:
            lines = lines_of(process, faults)
            assert process.wait(60) == 0, "\n".join(lines)
            assert proxy.wait_for_cuts(len(faults)) == len(faults)
    moves = sum(line.startswith("move ") for line in lines)
    assert lines[-1] == f"solved: {moves} moves, reward 1.000"
    assert sum(line.startswith("resumed at call ") for line in lines) == len(faults)
    assert not [line for line in lines if line.startswith("session lost")]
    assert_one_board_and_each_move_once(log, moves)


@pytest.mark.parametrize("features", ["none", "seq"])
def test_a_game_is_played_on_servers_that_offer_less(node: list[str], tmp_path: Path, features: str) -> None:
    log = tmp_path / "events.jsonl"
    with sudoku(log, OPENENV_FEATURES=features) as server, game(node, server.url, "--size", "4") as process:
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    assert ("plain dialect" in out) == (features == "none")
    # Node's WebSocket gives up a handshake in which its offer is not echoed, and a plain server has built by then (E1)
    assert_one_board_and_each_move_once(log, out.count("move "), built=2 if features == "none" else 1)


def test_a_cut_on_a_plain_server_ends_the_game_loudly(node: list[str], tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    with (
        sudoku(log, OPENENV_FEATURES="none") as server,
        FaultProxy("127.0.0.1", server.port) as proxy,
        game(node, proxy.url, "--ask") as process,
    ):
        lines = lines_of(process, {"move 5": lambda: proxy.cut("rst")})
        assert process.wait(60) == 1
    assert "SessionLost" in "".join(lines)
    assert len({step["board_id"] for step in events(log, "step")}) == 1
    assert [len(events(log, kind)) for kind in ("step", "reset")] == [5, 1]


SCRIPT = """
import assert from "node:assert/strict";
import { CallFailed, CallTimeout, EnvClient, LateResult, solve } from "%s";
const client = new EnvClient(process.argv[2]);
assert.equal((await client.reset({ seed: 3 })).observation.count, 0);
const nan = await client.step({ op: "nan" });
assert.ok(Number.isNaN(nan.reward) && nan.observation.echo.every(Number.isNaN));
const echo = await client.step({ op: "echo", arg: [NaN, -Infinity, "NaN, \\\\\\"é", 2 ** 53] });
assert.deepEqual(echo.observation.echo, [NaN, -Infinity, "NaN, \\\\\\"é", 2 ** 53]);
await assert.rejects(client.step({ op: "raise", arg: "kaput" }), CallFailed);
await assert.rejects(client.step({ op: "sleep", arg: 0.4 }, 50), CallTimeout);
await client.settle();
const both = await Promise.all([client.step({ op: "echo", arg: 1 }), client.step({ op: "echo", arg: 2 })]);
assert.deepEqual(both.map((one) => one.observation.echo), [1, 2]);
await client.close();
const board = [[1, 0, 0, 0], [0, 0, 3, 0], [0, 4, 0, 0], [0, 0, 0, 2]];
assert.ok(solve(board) && board.flat().every((value) => value > 0));
console.log("fine");
"""


@pytest.mark.parametrize("server", ["ours", "reference"])
def test_values_errors_and_giving_up(node: list[str], server: str, tmp_path: Path) -> None:
    script = tmp_path / "script.mjs"
    script.write_text(SCRIPT % CLIENT.as_uri(), encoding="utf-8")

    def run(url: str) -> None:
        command = [*node, str(script), url]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr

    if server == "ours":
        with ServerProcess("openenv.testing.counting:app") as live:
            run(live.url)
    else:
        with reference_server("v1_server") as url:
            run(url)
