"""The incident that the demo plays: games over the network, every connection cut in mid-game, and the verdict.

Nothing here draws anything. The players tell what they were answered; the verdict on where their moves ran
comes from the event log that the server wrote.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openenv.core.exceptions import OpenEnvError, SessionLostError

if TYPE_CHECKING:
    from sudoku_env import SudokuAction, SudokuEnv, SudokuObservation

__all__ = ["Game", "Verdict", "judge", "plan_games", "play_all", "read_events"]

ANSWERED = "answered"


@dataclass
class Game:
    """One game and what its player saw.

    Attributes:
        number: counts from 1.
        seed: deals its board.
        size: cells in a row.
        holes: empty cells of its board.
        before: moves answered before the cut.
        first: what the first step after the cut did: the name of an error, or ``answered``.
        retry: what the same step did when it was tried again.
        text: text of the first error.
        after: moves answered after the second reset.
        solved: whether the board was solved in the end.
    """

    number: int
    seed: int
    size: int
    holes: int
    before: int = 0
    first: str = ""
    retry: str = ""
    text: str = ""
    after: int = 0
    solved: bool = False

    @property
    def loss_was_loud(self) -> bool:
        """Whether the loss was told, and told again."""
        return self.first == self.retry == SessionLostError.__name__

    @property
    def name(self) -> str:
        return f"game-{self.number}"


def plan_games(count: int, seed: int) -> list[Game]:
    """Games on boards of both sizes in turn, each with a seed of its own."""
    boards = ((4, 8), (9, 30))
    return [Game(number, seed + number, *boards[(number - 1) % 2]) for number in range(1, count + 1)]


# ---------------------------------------------------------------- playing


async def play_all(url: str, games: Sequence[Game], cut: Callable[[], int], moved: Callable[[Game], None]) -> int:
    """Play all games at once; cut every connection when all are half played; reset, and play them to the end.

    Args:
        url: where the clients connect.
        games: filled in as they are played.
        cut: cuts every connection and returns how many; called off the event loop.
        moved: called after each answered move.

    Returns:
        How many connections were cut.

    Raises:
        OpenEnvError: a call failed that nothing should have disturbed.
    """
    halfway = asyncio.Barrier(len(games) + 1)
    was_cut = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as tasks:
            for game in games:
                tasks.create_task(_play(url, game, halfway, was_cut, moved))
            await halfway.wait()
            connections = await asyncio.to_thread(cut)
            was_cut.set()
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


async def _play(
    url: str, game: Game, halfway: asyncio.Barrier, was_cut: asyncio.Event, moved: Callable[[Game], None]
) -> None:
    from sudoku_env import SudokuEnv

    async with SudokuEnv(base_url=url) as client:
        moves = await _deal(client, game, "1")
        for move in moves[: len(moves) // 2]:
            await client.step(move)
            game.before += 1
            moved(game)
        await halfway.wait()
        await was_cut.wait()

        next_move = moves[len(moves) // 2]
        game.first, game.text = await _outcome(client.step(next_move))
        game.retry, _ = await _outcome(client.step(next_move))

        for move in await _deal(client, game, "2"):
            result = await client.step(move)
            game.after += 1
            game.solved = result.done and result.observation.solved
            moved(game)


async def _deal(client: SudokuEnv, game: Game, episode: str) -> list[SudokuAction]:
    """Reset, and return the moves that solve the board, each marked with the episode it is meant for."""
    episode_id = f"{game.name}/{episode}"
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


async def _outcome(call: Coroutine[Any, Any, Any]) -> tuple[str, str]:
    try:
        await call
    except OpenEnvError as error:
        return type(error).__name__, str(error)
    return ANSWERED, ""


# ---------------------------------------------------------------- the verdict


@dataclass
class Verdict:
    """What the server's log says.

    Attributes:
        boards: environments that were built.
        moves: moves that ran.
        stray: moves that ran on a board which their player had not reset for this episode.
        repeated: moves that ran more than once.
        stray_by_game: stray moves of each game, by its name.
    """

    boards: int = 0
    moves: int = 0
    stray: int = 0
    repeated: int = 0
    stray_by_game: Counter[str] = field(default_factory=Counter)


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
                if dealt.get(board) != episode:
                    verdict.stray += 1
                    verdict.stray_by_game[episode.partition("/")[0]] += 1
    verdict.repeated = sum(count - 1 for count in marks.values())
    return verdict
