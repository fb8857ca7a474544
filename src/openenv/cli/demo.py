"""``openenv demo``: cut every connection of running games, twice, at two servers, and look at what happens.

The first server speaks the plain dialect, where a session ends with its socket: every loss is told, and the games
begin again. The second keeps the sessions, and the games go on. Results go to stdout, everything else to stderr. On a
terminal there is a progress bar; elsewhere plain lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from openenv.cli._incident import CUTS, Act, Game, judge, plan_games, play_all, read_events
from openenv.core.exceptions import OpenEnvError
from openenv.core.session.features import FEATURES_VARIABLE, Feature
from openenv.testing import FaultProxy, ProcessDied, ServerProcess
from openenv.testing.processes import last_line

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
    os.environ.pop(FEATURES_VARIABLE, None)  # what each act uses is its server's choice
    signal.signal(signal.SIGTERM, _exit_on_sigterm)  # so that the server is ended too
    acts = [Act(keeps_sessions, plan_games(games, seed)) for keeps_sessions in (False, True)]
    try:
        for act in acts:
            _run(act, port, screen)
    except _DemoFailed as failure:
        screen.print(f"openenv demo: {failure}")
        raise typer.Exit(1) from None
    _show(*acts)
    if problems := [f"{_name(act)}: {problem}" for act in acts for problem in act.problems()]:
        screen.print(f"openenv demo: {'; '.join(problems)}")
        raise typer.Exit(1)


def _exit_on_sigterm(signum: int, frame: Any) -> NoReturn:
    sys.exit(128 + signum)


def _name(act: Act) -> str:
    return "openenv.v1" if act.keeps_sessions else "plain dialect"


# ---------------------------------------------------------------- running


def _run(act: Act, port: int | None, screen: Console) -> None:
    """Play the games against a server of our own."""
    if importlib.util.find_spec("sudoku_env") is None:
        raise _DemoFailed("the sudoku_env package is not installed. In a checkout, run: pip install -e envs/sudoku_env")
    if port is not None:
        _check_port(port)
    with tempfile.TemporaryDirectory(prefix="openenv-demo-") as folder:
        log = Path(folder) / "events.jsonl"
        environ = {
            "SUDOKU_EVENT_LOG": str(log),
            # Twice the games: a cut session may still be closing while its client opens the next one.
            "MAX_CONCURRENT_ENVS": str(2 * len(act.games)),
            FEATURES_VARIABLE: ",".join(Feature) if act.keeps_sessions else "none",
            "OPENENV_WORKERS": "1",
        }
        try:
            with (
                ServerProcess(_APP, port=port, environ=environ, arguments=("--workers", "1")) as server,
                FaultProxy("127.0.0.1", server.port) as proxy,
            ):
                players = f"{len(act.games)} clients play through a proxy"
                screen.print(f"A Sudoku server runs on port {server.port} ({_name(act)}); {players}.")
                act.cuts = _play(act, server, proxy, screen)
        except ProcessDied as died:
            raise _DemoFailed(f"{died.what}: {died.last_line or 'it said nothing'}") from None
        act.verdict = judge(read_events(log))


def _check_port(port: int) -> None:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise _DemoFailed(f"port {port} cannot be used: {os.strerror(error.errno or 0)}; try another --port") from None


def _play(act: Act, server: ServerProcess, proxy: FaultProxy, screen: Console) -> int:
    def cut() -> int:
        screen.print("All games stand between two moves. Cutting every connection now.")
        return proxy.cut("rst")

    def cut_under_a_reply() -> int:
        screen.print("All games make a move. Cutting every connection before its answer is through.")
        return sum(proxy.cut_on_reply("fin", number) for number in range(1, proxy.accepted + 1))

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("moves"),
        console=screen,
        disable=not screen.is_terminal or screen.is_dumb_terminal,
    )
    with bar:
        # Where sessions are lost, the moves before each cut are played again.
        lives = [CUTS + 1] if act.keeps_sessions else range(1, CUTS + 2)
        total = sum(game.moves_until(cut) for game in act.games for cut in lives)
        task = bar.add_task(_name(act), total=total)

        def moved(game: Game) -> None:
            bar.advance(task)

        try:
            return asyncio.run(_in_time(play_all(proxy.url, act.games, (cut, cut_under_a_reply), moved)))
        except (OpenEnvError, TimeoutError) as error:
            if not server.alive:
                said = last_line(server.output) or "it said nothing"
                raise _DemoFailed(f"the server died in mid-game: {said}") from None
            raise _DemoFailed(str(error) or f"the games did not end within {_PLAY_TIMEOUT_S:g} s") from None


async def _in_time(games: Coroutine[Any, Any, int]) -> int:
    """Play within the time; a SIGTERM cancels the games, as Ctrl-C does, and then ends the process."""
    player, loop, ended = asyncio.current_task(), asyncio.get_running_loop(), []

    def end() -> None:
        ended.append(signal.SIGTERM)
        assert player is not None
        player.cancel()

    with contextlib.suppress(NotImplementedError):  # Windows
        loop.add_signal_handler(signal.SIGTERM, end)
    try:
        async with asyncio.timeout(_PLAY_TIMEOUT_S):
            return await games
    except asyncio.CancelledError:
        if ended:
            sys.exit(128 + signal.SIGTERM)
        raise
    finally:
        signal.signal(signal.SIGTERM, _exit_on_sigterm)


# ---------------------------------------------------------------- showing


def _show(*acts: Act) -> None:
    """Write the results: a column for each server, and what a player of the first read."""
    table = Table(
        title=f"{len(acts[0].games)} games, every connection cut twice",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("", no_wrap=True)
    for act in acts:
        table.add_column(_name(act), no_wrap=True)
    rows = {
        "connections cut": [act.cuts for act in acts],
        "step() raised SessionLostError": [act.total("lost") for act in acts],
        "and again when retried": [act.total("lost_again") for act in acts],
        "sessions resumed": [act.total("resumes") for act in acts],
        "games begun": [act.total("dealt") for act in acts],
        "games solved": [act.total("solved") for act in acts],
        "by the server's log: boards": [act.verdict.boards for act in acts],
        "moves run": [act.verdict.moves for act in acts],
        "moves run twice": [act.verdict.repeated for act in acts],
        "moves on a board not reset for them": [act.verdict.stray for act in acts],
    }
    for name, cells in rows.items():
        table.add_row(name, *map(str, cells))
    console = Console(highlight=False, markup=False)
    console.print(table)
    console.print(f"What a player reads without resume: {acts[0].games[0].text or 'nothing'}", soft_wrap=True)
