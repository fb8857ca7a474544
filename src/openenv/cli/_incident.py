"""The incident that the demo plays: games over the network, every connection cut in mid-game, and the verdict.

The same players meet the same cuts twice: at a server that speaks the plain dialect, where a session ends with its
socket, and at one where it does not. Nothing here draws anything. The players tell what they were answered; the
verdict on where their moves ran comes from the event log that the server wrote.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openenv.core.exceptions import OpenEnvError, Outcome, SessionLostError

if TYPE_CHECKING:
    from openenv import StepResult
    from sudoku_env import SudokuAction, SudokuEnv, SudokuObservation

__all__ = ["CUTS", "Act", "Game", "Verdict", "judge", "plan_games", "play_all", "read_events"]

CUTS = 2
"""How often each game loses its connection: once between two moves, once under the reply to a move."""


@dataclass
class Game:
    """One game and what its player saw.

    Attributes:
        number: counts from 1.
        seed: deals its board.
        size: cells in a row.
        holes: empty cells of its board.
        dealt: how often it was begun.
        answered: moves that were answered.
        lost: moves that met a lost session.
        lost_again: of these, moves that met it again when they were tried a second time.
        unknown: of these, moves that the server may have run.
        text: what the player read first.
        resumes: how often the session came back by itself.
        solved: whether the board was solved in the end.
    """

    number: int
    seed: int
    size: int
    holes: int
    dealt: int = 0
    answered: int = 0
    lost: int = 0
    lost_again: int = 0
    unknown: int = 0
    text: str = ""
    resumes: int = 0
    solved: bool = False

    @property
    def name(self) -> str:
        return f"game-{self.number}"

    def moves_until(self, cut: int) -> int:
        """Moves that a player makes on a fresh board before this cut; after the last cut, all."""
        return self.holes * cut // (CUTS + 1)


def plan_games(count: int, seed: int) -> list[Game]:
    """Games on boards of both sizes in turn, each with a seed of its own."""
    boards = ((4, 8), (9, 30))
    return [Game(number, seed + number, *boards[(number - 1) % 2]) for number in range(1, count + 1)]


# ---------------------------------------------------------------- playing


class _Stop:
    """Where all players wait for a cut."""

    def __init__(self, players: int) -> None:
        self._arrived = asyncio.Barrier(players + 1)
        self._was_cut = asyncio.Event()

    async def wait(self) -> None:
        await self._arrived.wait()
        await self._was_cut.wait()

    async def make(self, cut: Callable[[], int]) -> int:
        await self._arrived.wait()
        connections = await asyncio.to_thread(cut)
        self._was_cut.set()
        return connections


async def play_all(
    url: str, games: Sequence[Game], cuts: Sequence[Callable[[], int]], moved: Callable[[Game], None]
) -> int:
    """Play all games at once, with a cut at each third; a player whose session is lost begins again.

    Args:
        url: where the clients connect.
        games: filled in as they are played.
        cuts: each cuts every connection and returns how many; called off the event loop, when all players wait.
        moved: called after each answered move.

    Returns:
        How many connections were cut.

    Raises:
        OpenEnvError: a call failed that nothing should have disturbed.
    """
    stops = [_Stop(len(games)) for _ in cuts]
    connections = 0
    try:
        async with asyncio.TaskGroup() as tasks:
            for game in games:
                tasks.create_task(_play(url, game, stops, moved))
            for stop, cut in zip(stops, cuts, strict=True):
                connections += await stop.make(cut)
    except BaseExceptionGroup as group:  # not except*: before Python 3.11.4 that wraps what it raises
        if group.split(OpenEnvError)[1] is not None:
            raise
        raise _first(group) from None
    return connections


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _play(url: str, game: Game, stops: Sequence[_Stop], moved: Callable[[Game], None]) -> None:
    from sudoku_env import SudokuEnv

    def note(result: StepResult[SudokuObservation]) -> None:
        game.answered += 1
        game.solved = result.done and result.observation.solved
        moved(game)

    async with SudokuEnv(base_url=url) as client:
        moves, at = await _deal(client, game), 0
        for number, stop in enumerate(stops, start=1):
            for move in moves[at : game.moves_until(number)]:
                note(await client.step(move))
            at = game.moves_until(number)
            await stop.wait()
            result = await _step_over_the_cut(client, game, moves[at])
            if result is None:
                moves, at = await _deal(client, game), 0
            else:
                note(result)
                at += 1
        for move in moves[at:]:
            note(await client.step(move))
        game.resumes = client.session.resumes


async def _step_over_the_cut(client: SudokuEnv, game: Game, move: SudokuAction) -> StepResult[SudokuObservation] | None:
    """The first move after a cut, tried twice; None if the session was lost."""
    try:
        return await client.step(move)
    except SessionLostError as lost:
        game.lost += 1
        game.unknown += lost.outcome is Outcome.UNKNOWN
        game.text = game.text or str(lost)
    try:
        await client.step(move)
        game.answered += 1
    except SessionLostError:
        game.lost_again += 1
    return None


async def _deal(client: SudokuEnv, game: Game) -> list[SudokuAction]:
    """Reset, and return the moves that solve the board, each marked with the episode it is meant for."""
    game.dealt += 1
    episode_id = f"{game.name}/{game.dealt}"
    result = await client.reset(seed=game.seed, size=game.size, holes=game.holes, episode_id=episode_id)
    return _solving_moves(result.observation, episode_id)


def _solving_moves(observation: SudokuObservation, episode_id: str) -> list[SudokuAction]:
    from sudoku_env import SudokuAction
    from sudoku_env.engine import solve

    solution = solve(observation.board)
    assert solution is not None  # the server deals boards with one solution
    holes = [(row, col) for row, col in product(range(observation.size), repeat=2) if not observation.board[row][col]]
    return [
        SudokuAction(
            row=row + 1,
            col=col + 1,
            value=solution[row][col],
            metadata={"episode": episode_id, "move": number},
        )
        for number, (row, col) in enumerate(holes, start=1)
    ]


# ---------------------------------------------------------------- the verdict


@dataclass
class Verdict:
    """What the server's log says.

    Attributes:
        boards: environments that were built.
        moves: moves that ran.
        stray: moves that ran on a board which their player had not reset for this episode.
        repeated: moves that ran more than once.
    """

    boards: int = 0
    moves: int = 0
    stray: int = 0
    repeated: int = 0


@dataclass
class Act:
    """All games against one server.

    Attributes:
        keeps_sessions: whether the server keeps a session whose socket is gone.
        games: as they were played.
        cuts: connections that were cut.
        verdict: what the server's log says.
    """

    keeps_sessions: bool
    games: Sequence[Game]
    cuts: int = 0
    verdict: Verdict = field(default_factory=Verdict)

    def total(self, name: str) -> int:
        """Sum of a count over the games."""
        return sum(getattr(game, name) for game in self.games)

    def problems(self) -> list[str]:
        """What did not go as promised; empty if all did."""
        wanted = CUTS * len(self.games)
        verdict, answered = self.verdict, self.total("answered")
        checks = {
            f"{self.cuts} of {wanted} connections were cut": self.cuts == wanted,
            f"{verdict.stray} moves ran on a wrong board": verdict.stray == 0,
            f"{verdict.repeated} moves ran twice": verdict.repeated == 0,
            f"{answered} moves were answered, but {verdict.moves} ran": (
                answered <= verdict.moves <= answered + self.total("unknown")
            ),
            "a game was not solved": all(game.solved for game in self.games),
        }
        if self.keeps_sessions:
            lost, boards, resumes = self.total("lost"), verdict.boards, self.total("resumes")
            checks[f"{lost} sessions were lost"] = lost == 0
            checks[f"{resumes} of {wanted} sessions were resumed"] = resumes == wanted
            checks[f"{boards} boards were made for {len(self.games)} games"] = boards == len(self.games)
        else:
            checks["a lost session was not told"] = all(game.lost == game.lost_again == CUTS for game in self.games)
        return [problem for problem, fine in checks.items() if not fine]


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read an event log, oldest first."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def judge(events: Iterable[dict[str, Any]]) -> Verdict:
    """Compare each move's mark with the episode that its board was dealt for."""
    verdict = Verdict()
    dealt: dict[str, str] = {}
    marks: Counter[tuple[str, int]] = Counter()
    for event in events:
        board = event["board_id"]
        match event["event"]:
            case "constructor":
                verdict.boards += 1
            case "reset":
                dealt[board] = event["episode_id"]
            case "step":
                episode = event["mark"].get("episode", "")
                verdict.moves += 1
                marks[episode, event["mark"].get("move", 0)] += 1
                verdict.stray += dealt.get(board) != episode
    verdict.repeated = sum(count - 1 for count in marks.values())
    return verdict
