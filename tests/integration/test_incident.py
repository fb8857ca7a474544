"""The incident this package exists for: 64 players on one server, and every socket is closed in mid-game.

At a server of the plain dialect every loss is told, and told again, until ``reset()``. At one of ``openenv.v1`` all
games go on. Server, proxy and clients stand apart; what ran where is read from the event log that the environments
wrote.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
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

    def count(self, kind: str) -> int:
        return sum(event["event"] == kind for event in self.events)


@contextlib.contextmanager
def staged(tmp_path: Path, features: str) -> Iterator[Stage]:
    log = tmp_path / "events.jsonl"
    port = choose_port(None)
    environ = {"SUDOKU_EVENT_LOG": str(log), "MAX_CONCURRENT_ENVS": str(PLAYERS), "OPENENV_FEATURES": features}
    with (
        running_server("sudoku_env.server.app:app", port, environ),
        FaultProxy("127.0.0.1", port) as proxy,
    ):
        yield Stage(proxy, port, log)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A server of the plain dialect, as upstream's."""
    with staged(tmp_path, "none") as stage:
        yield stage


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[Stage]:
    """A server that keeps the session of a socket that is gone."""
    with staged(tmp_path, "seq,cancel,resume") as stage:
        yield stage


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


# ---------------------------------------------------------------- both ends ours


def assert_all_went_on(stage: Stage, moves: int) -> None:
    """Each game on one board of its own, dealt once, and each of its moves run once."""
    oracle = stage.oracle()
    assert oracle.stray == []
    assert oracle.count("constructor") == oracle.count("reset") == len(oracle.boards()) == PLAYERS
    assert set(oracle.ran.values()) == {1}
    assert oracle.ran.total() == moves


@pytest.mark.parametrize("mode", ["rst", "fin"])
def test_64_sync_clients_go_on_after_three_cuts_between_two_steps(keeping: Stage, mode: str) -> None:
    with contextlib.ExitStack() as stack:
        players = [stack.enter_context(SudokuEnv(base_url=keeping.proxy.url).sync()) for _ in range(PLAYERS)]
        games: list[list[SudokuAction]] = []
        for seed, player in enumerate(players):
            dealt = player.reset(seed=seed, holes=HOLES, episode_id=f"{seed}/1")
            games.append(typed_moves(dealt.observation, f"{seed}/1"))
        rewards = [0.0] * PLAYERS
        for number in range(HOLES):
            if number in (3, 6, 9):
                assert keeping.proxy.cut(mode) == PLAYERS
            for seed, (player, moves) in enumerate(zip(players, games, strict=True)):
                result = player.step(moves[number])
                assert result.observation.legal
                assert result.done == (number == HOLES - 1)
                rewards[seed] += result.reward or 0.0
        assert rewards == pytest.approx([1.0] * PLAYERS)
        for player in players:
            session = player.async_client.session
            assert (session.number, session.resumes, session.losses) == (1, 3, 0)
            assert player.state().solved
    assert_all_went_on(keeping, PLAYERS * HOLES)


@pytest.mark.parametrize("mode", ["rst", "fin"])
async def test_64_async_clients_go_on_after_three_cuts_with_moves_in_flight(keeping: Stage, mode: str) -> None:
    cuts, moves_between = 3, 12
    made = [asyncio.Event() for _ in range(cuts)]
    since_the_cut: Counter[int] = Counter()
    in_flight: set[int] = set()

    async def play(seed: int) -> int:
        async with GenericEnvClient(base_url=keeping.proxy.url) as player:
            dealt = await player.reset(seed=seed, holes=50, episode_id=f"{seed}/1")
            moves = solving_moves(dealt.observation["board"], f"{seed}/1")
            for number, move in enumerate(moves):
                if number and number % moves_between == 0 and number <= cuts * moves_between:
                    await made[number // moves_between - 1].wait()  # nobody is more than a stretch ahead
                in_flight.add(seed)
                result = await player.step(move)
                in_flight.discard(seed)
                since_the_cut[seed] += 1
            assert result.done
            assert result.observation["solved"]
            assert (player.session.number, player.session.resumes, player.session.losses) == (1, cuts, 0)
            return len(moves)

    async with asyncio.TaskGroup() as tasks:
        games = [tasks.create_task(play(seed)) for seed in range(PLAYERS)]
        for event in made:
            while len(since_the_cut) < PLAYERS or min(since_the_cut.values()) < 2:
                await asyncio.sleep(0)
            since_the_cut.clear()
            assert in_flight
            assert keeping.proxy.cut(mode) == PLAYERS
            event.set()
    assert_all_went_on(keeping, sum(game.result() for game in games))


@pytest.mark.parametrize("mode", ["rst", "fin"])
async def test_64_async_clients_go_on_whatever_part_of_a_move_is_cut(keeping: Stage, mode: str) -> None:
    """All at once: cut inside the request, then before the reply, then inside the reply."""
    proxy = keeping.proxy
    faults: list[Callable[[int], int]] = [
        lambda number: proxy.cut_after(9, "request", mode, number),
        lambda number: proxy.cut_on_reply(mode, number),
        lambda number: proxy.cut_after(9, "reply", mode, number),
    ]
    arrived = [asyncio.Barrier(PLAYERS + 1) for _ in faults]
    armed = [asyncio.Event() for _ in faults]

    async def play(seed: int) -> None:
        async with SudokuEnv(base_url=proxy.url) as player:
            dealt = await player.reset(seed=seed, holes=HOLES, episode_id=f"{seed}/1")
            for number, move in enumerate(typed_moves(dealt.observation, f"{seed}/1")):
                if number in (3, 6, 9):
                    await arrived[number // 3 - 1].wait()
                    await armed[number // 3 - 1].wait()
                result = await player.step(move)
                assert result.observation.legal
            assert result.done
            assert result.observation.solved
            assert (player.session.number, player.session.resumes, player.session.losses) == (1, len(faults), 0)

    async with asyncio.TaskGroup() as tasks:
        for seed in range(PLAYERS):
            tasks.create_task(play(seed))
        for fault, barrier, event in zip(faults, arrived, armed, strict=True):
            await barrier.wait()
            assert sum(fault(number) for number in range(1, proxy.accepted + 1)) == PLAYERS
            event.set()
    assert_all_went_on(keeping, PLAYERS * HOLES)


# ---------------------------------------------------------------- the oracle


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
