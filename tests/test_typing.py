"""What a type checker sees of the public names, in a user's file with ``mypy --strict``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

USER_FILE = """
from openenv.core import EnvClient, Action, Observation, State, StepResult
from openenv import SessionLostError, GenericEnvClient


class Move(Action):
    cell: int


class Board(Observation):
    cells: list[int]


class Game(EnvClient[Move, Board, State]):
    pass


async def asynchronous(client: Game) -> None:
    async with Game("http://127.0.0.1:1") as client:
        reveal_type(await client.reset(seed=1))
        reveal_type(await client.step(Move(cell=1)))
        reveal_type(await client.state())
    try:
        await client.step(Move(cell=2))
    except SessionLostError as error:
        reveal_type(error.steps)


def synchronous(client: Game) -> None:
    with client.sync() as game:
        reveal_type(game.reset(seed=1))
        reveal_type(game.step(Move(cell=1)))
        reveal_type(game.state())
    reveal_type(GenericEnvClient)
    result: StepResult[Board] = game.step(Move(cell=2))
    print(result.observation.cells)
"""

WRONG_FILE = """
from openenv.core import EnvClient, Action, Observation, State, NoSuchName


class Move(Action):
    cell: int


async def wrong(client: EnvClient[Move, Observation, State]) -> None:
    await client.step("not a move")
"""


def mypy(directory: Path, text: str) -> str:
    (directory / "user.py").write_text(text)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MYPY")}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache" / "users"), "user.py"],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.stdout


@pytest.mark.timeout(300)
def test_results_have_their_types(tmp_path: Path) -> None:
    told = mypy(tmp_path, USER_FILE)
    revealed = [line.split('"')[1] for line in told.splitlines() if "Revealed type" in line]
    result, state = "openenv.core.client_types.StepResult[user.Board]", "openenv.core.env_server.types.State"
    assert revealed[:3] == [result, result, state], told
    assert revealed[3] == "int"
    assert revealed[4:7] == [result, result, state], told
    assert "error:" not in told, told


@pytest.mark.timeout(300)
def test_wrong_use_is_an_error(tmp_path: Path) -> None:
    told = mypy(tmp_path, WRONG_FILE)
    assert 'has no attribute "NoSuchName"' in told
    assert 'incompatible type "str"; expected "Move"' in told
