"""The incident this package exists for: 64 players on one server, and every socket is closed in mid-game.

Server, proxy and clients stand apart; what ran where is read from the event log that the environments wrote.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from openenv import GenericEnvClient, SessionLostError
from openenv.cli._server_process import choose_port, running_server
from openenv.core.exceptions import Outcome
from openenv.testing import FaultProxy
from sudoku_env import SudokuAction, SudokuEnv, SudokuObservation
from sudoku_env.engine import solve

PLAYERS = 64
HOLES = 12


@dataclass
class Stage:
    """A running server behind a proxy, and its log."""

    proxy: FaultProxy
    server_port: int
    log: Path

    def oracle(self) -> Oracle:
        return Oracle([json.loads(line) for line in self.log.read_text().splitlines()])


@dataclass
class Oracle:
    """What the environments say of the moves that ran on them."""

    events: list[dict[str, Any]]
    stray: list[dict[str, Any]] = field(default_factory=list)
    ran: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for number, event in enumerate(self.events):
            if event["event"] == "step":
                mark = event["mark"]
                self.ran[mark["move"]] += 1
                if not event["was_reset"] or not self._dealt_for(number) == event["episode_id"] == mark["episode"]:
                    self.stray.append(event)

    def _dealt_for(self, number: int) -> str | None:
        """Episode of the last reset of the board on which an event happened."""
        board = self.events[number]["board_id"]
        for event in reversed(self.events[:number]):
            if event["board_id"] == board and event["event"] == "reset":
                return str(event["episode_id"])
        return None

    def boards(self) -> set[str]:
        return {event["board_id"] for event in self.events if event["event"] == "reset"}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    log = tmp_path / "events.jsonl"
    port = choose_port(None)
    environ = {"SUDOKU_EVENT_LOG": str(log), "MAX_CONCURRENT_ENVS": str(PLAYERS)}
    with (
        running_server("sudoku_env.server.app:app", port, environ),
        FaultProxy("127.0.0.1", port) as proxy,
    ):
        yield Stage(proxy, port, log)


def solving_moves(board: list[list[int]], episode: str) -> list[dict[str, Any]]:
    """The moves that solve a board, each with a mark that says what it is meant for."""
    solution = solve(board)
    assert solution is not None
    return [
        {
            "row": row + 1,
            "col": col + 1,
            "value": solution[row][col],
            "metadata": {"episode": episode, "move": f"{episode}:{row}:{col}"},
        }
        for row, line in enumerate(board)
        for col, value in enumerate(line)
        if not value
    ]


def typed_moves(observation: SudokuObservation, episode: str) -> list[SudokuAction]:
    return [SudokuAction.model_validate(move) for move in solving_moves(observation.board, episode)]


@pytest.mark.parametrize("mode", ["rst", "fin"])
def test_64_sync_clients_lose_their_sockets_between_two_steps(stage: Stage, mode: str) -> None:
    with contextlib.ExitStack() as stack:
        players = [stack.enter_context(SudokuEnv(base_url=stage.proxy.url).sync()) for _ in range(PLAYERS)]
        games: list[list[SudokuAction]] = []
        for seed, player in enumerate(players):
            dealt = player.reset(seed=seed, holes=HOLES, episode_id=f"{seed}/1")
            games.append(typed_moves(dealt.observation, f"{seed}/1"))
        for player, moves in zip(players, games, strict=True):
            for move in moves[: HOLES // 2]:
                assert player.step(move).observation.legal

        assert stage.proxy.connections == PLAYERS
        assert stage.proxy.cut(mode) == PLAYERS

        for player, moves in zip(players, games, strict=True):
            for _ in range(2):
                with pytest.raises(SessionLostError) as lost:
                    player.step(moves[HOLES // 2])
                assert lost.value.steps == HOLES // 2
            assert lost.value.outcome is Outcome.NOT_APPLIED
            with pytest.raises(SessionLostError):
                player.state()

        for seed, player in enumerate(players):
            dealt = player.reset(seed=seed, holes=HOLES, episode_id=f"{seed}/2")
            results = [player.step(move) for move in typed_moves(dealt.observation, f"{seed}/2")]
            assert results[-1].done
            assert results[-1].observation.solved
            assert sum(result.reward or 0.0 for result in results) == pytest.approx(1.0)

    oracle = stage.oracle()
    assert oracle.stray == []
    assert len(oracle.boards()) == 2 * PLAYERS
    assert set(oracle.ran.values()) == {1}
    assert oracle.ran.total() == PLAYERS * (HOLES // 2 + HOLES)


@pytest.mark.parametrize("mode", ["rst", "fin"])
async def test_64_async_clients_lose_their_sockets_with_moves_in_flight(stage: Stage, mode: str) -> None:
    was_cut = asyncio.Event()
    everybody_moved = asyncio.Barrier(PLAYERS + 1)
    answered: Counter[str] = Counter()
    unknown: set[str] = set()

    async def move_on(player: GenericEnvClient, move: dict[str, Any]) -> Any:
        result = await player.step(move)
        answered[move["metadata"]["move"]] += 1
        return result

    async def play(seed: int) -> int:
        async with GenericEnvClient(base_url=stage.proxy.url) as player:
            dealt = await player.reset(seed=seed, holes=50, episode_id=f"{seed}/1")
            moves = iter(solving_moves(dealt.observation["board"], f"{seed}/1"))
            await move_on(player, next(moves))
            await everybody_moved.wait()
            losses = 0
            for left, move in zip(range(48, -1, -1), moves, strict=True):
                if left == 0:
                    await was_cut.wait()  # nobody finishes before the cut
                try:
                    await move_on(player, move)
                except SessionLostError as lost:
                    losses += 1
                    if lost.outcome is Outcome.UNKNOWN:
                        unknown.add(move["metadata"]["move"])
                    break
            with pytest.raises(SessionLostError) as again:
                await player.step(move)
            assert again.value.outcome is Outcome.NOT_APPLIED
            dealt = await player.reset(seed=seed, size=4, holes=8, episode_id=f"{seed}/2")
            for move in solving_moves(dealt.observation["board"], f"{seed}/2"):
                result = await move_on(player, move)
            assert result.done
            return losses

    async with asyncio.TaskGroup() as tasks:
        games = [tasks.create_task(play(seed)) for seed in range(PLAYERS)]
        await everybody_moved.wait()
        while answered.total() < 4 * PLAYERS:
            await asyncio.sleep(0)
        assert stage.proxy.cut(mode) == PLAYERS
        was_cut.set()
    assert [game.result() for game in games] == [1] * PLAYERS

    oracle = stage.oracle()
    assert oracle.stray == []
    assert set(oracle.ran.values()) == {1}
    assert set(answered.values()) == {1}
    assert set(answered) <= set(oracle.ran) <= set(answered) | unknown


def test_the_oracle_sees_a_move_on_a_fresh_board(stage: Stage) -> None:
    """What a client that reconnects in silence would do: the oracle must be able to go red."""
    with SudokuEnv(base_url=stage.proxy.url).sync() as player:
        dealt = player.reset(seed=1, holes=HOLES, episode_id="0/1")
        first, second = typed_moves(dealt.observation, "0/1")[:2]
        player.step(first)
        with connect(f"ws://127.0.0.1:{stage.server_port}/ws") as socket:
            socket.send(json.dumps({"type": "step", "data": second.model_dump()}))
            socket.recv()
            socket.send(json.dumps({"type": "reset", "data": {"episode_id": "other"}}))
            socket.recv()
            socket.send(json.dumps({"type": "step", "data": first.model_dump()}))
            socket.recv()
    oracle = stage.oracle()
    assert [event["mark"]["move"] for event in oracle.stray] == [
        second.metadata["move"],
        first.metadata["move"],
    ]
    assert oracle.ran[first.metadata["move"]] == 2
