"""``openenv demo``: cut every connection of a running server in mid-game, and look at what happens.

Results go to stdout, everything else to stderr. On a terminal there is a progress bar; elsewhere plain lines.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import signal
import sys
import tempfile
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from openenv.cli._incident import Game, Verdict, judge, plan_games, play_all, read_events
from openenv.cli._server_process import ServerDied, ServerProcess, choose_port, running_server
from openenv.core.exceptions import OpenEnvError
from openenv.testing import FaultProxy

__all__ = ["demo"]

_APP = "sudoku_env.server.app:app"
_PLAY_TIMEOUT_S = 45.0


class _DemoFailed(Exception):
    """Ends the demo with one line."""


def demo(
    games: Annotated[int, typer.Option(min=1, max=256, help="Games played at once, each by a client of its own.")] = 16,
    seed: Annotated[int, typer.Option(min=0, help="Deals the boards.")] = 0,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the server; a free one if left out.")
    ] = None,
) -> None:
    """Play Sudoku over the network, cut every connection in mid-game, and show what happened."""
    screen = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    logging.getLogger("openenv.client").setLevel(
        logging.ERROR
    )  # the table tells each loss; the log would tell it twice
    signal.signal(signal.SIGTERM, _exit_on_sigterm)  # so that the server is ended too
    plan = plan_games(games, seed)
    try:
        connections, verdict = _run(plan, port, screen)
    except _DemoFailed as failure:
        screen.print(f"openenv demo: {failure}")
        raise typer.Exit(1) from None
    _show(plan, connections, verdict)
    if problems := _problems(plan, connections, verdict):
        screen.print(f"openenv demo: {'; '.join(problems)}")
        raise typer.Exit(1)


def _exit_on_sigterm(signum: int, frame: Any) -> NoReturn:
    sys.exit(128 + signum)


# ---------------------------------------------------------------- running


def _run(games: Sequence[Game], port: int | None, screen: Console) -> tuple[int, Verdict]:
    """Play the games against a server of our own; return how many connections were cut, and the verdict."""
    if importlib.util.find_spec("sudoku_env") is None:
        raise _DemoFailed("the sudoku_env package is not installed. In a checkout, run: pip install -e envs/sudoku_env")
    try:
        port = choose_port(port)
    except OSError as error:
        raise _DemoFailed(f"port {port} cannot be used: {error.strerror}; try another --port") from None
    with tempfile.TemporaryDirectory(prefix="openenv-demo-") as folder:
        log = Path(folder) / "events.jsonl"
        # Twice the games: a cut session may still be closing while its client opens the next one.
        environ = {"SUDOKU_EVENT_LOG": str(log), "MAX_CONCURRENT_ENVS": str(2 * len(games))}
        try:
            with running_server(_APP, port, environ) as server, FaultProxy("127.0.0.1", port) as proxy:
                screen.print(f"A Sudoku server runs on port {port}; {len(games)} clients play through a proxy.")
                connections = _play(games, server, proxy, screen)
        except ServerDied as error:
            raise _DemoFailed(str(error)) from None
        return connections, judge(read_events(log))


def _play(games: Sequence[Game], server: ServerProcess, proxy: FaultProxy, screen: Console) -> int:
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("moves"),
        console=screen,
        disable=not screen.is_terminal or screen.is_dumb_terminal,
    )
    with bar:
        before = bar.add_task("Until the cut", total=sum(game.holes // 2 for game in games))
        after = bar.add_task("After reset()", total=sum(game.holes for game in games))

        def moved(game: Game) -> None:
            bar.advance(after if game.after else before)

        def cut() -> int:
            screen.print(f"All {len(games)} games are half played. Cutting every connection now.")
            return proxy.cut("rst")

        try:
            connections = asyncio.run(_in_time(play_all(proxy.url, games, cut, moved)))
        except (OpenEnvError, TimeoutError) as error:
            if not server.alive:
                raise ServerDied(f"The server died in mid-game: {server.last_words()}") from None
            raise _DemoFailed(str(error) or f"the games did not end within {_PLAY_TIMEOUT_S:g} s") from None
    return connections


async def _in_time(games: Coroutine[Any, Any, int]) -> int:
    async with asyncio.timeout(_PLAY_TIMEOUT_S):
        return await games


# ---------------------------------------------------------------- showing


def _show(games: Sequence[Game], connections: int, verdict: Verdict) -> None:
    """Write the results: one row a game, their sums, and what the server's log says."""
    table = Table(
        title=f"{connections} connections cut in mid-game",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for heading in (
        "game",
        "board",
        "moves\nbefore",
        "step() after\nthe cut",
        "the same step\ntried again",
        "on wrong\nboard",
        "after\nreset()",
    ):
        table.add_column(heading, no_wrap=True)
    for game in games:
        table.add_row(
            str(game.number),
            f"{game.size}x{game.size}",
            str(game.before),
            game.first,
            game.retry,
            str(verdict.stray_by_game[game.name]),
            "solved" if game.solved else "not solved",
        )
    table.add_section()
    table.add_row(
        "all",
        "",
        str(sum(game.before for game in games)),
        f"{sum(game.first == 'SessionLostError' for game in games)} raised",
        f"{sum(game.retry == 'SessionLostError' for game in games)} raised",
        str(verdict.stray),
        f"{sum(game.solved for game in games)} solved",
    )
    console = Console(highlight=False, markup=False)
    console.print(table)
    console.print(
        f"Server log: {verdict.boards} boards, {verdict.moves} moves, {verdict.repeated} of them twice, "
        f"{verdict.stray} on a board that its player had not reset.",
        soft_wrap=True,
    )
    console.print(f"What a player reads: {games[0].text or 'nothing'}", soft_wrap=True)


def _problems(games: Sequence[Game], connections: int, verdict: Verdict) -> list[str]:
    """What did not go as promised; empty if all did."""
    answered = sum(game.before + game.after for game in games)
    checks = {
        f"{connections} of {len(games)} connections were cut": connections == len(games),
        "a lost session was not told": all(game.loss_was_loud for game in games),
        f"{verdict.stray} moves ran on a wrong board": verdict.stray == 0,
        f"{verdict.repeated} moves ran twice": verdict.repeated == 0,
        f"{answered} moves were answered, but {verdict.moves} ran": answered == verdict.moves,
        "a game was not solved": all(game.solved for game in games),
    }
    return [problem for problem, fine in checks.items() if not fine]
