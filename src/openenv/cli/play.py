"""``openenv play``: play an environment in the terminal, or from a pipe, one line an action.

What the environment answers goes to stdout; questions, and what happens to the session, to stderr. Exit code 0; 1 if no
session could be opened, or from a pipe if a line failed; 2 if the address cannot be read; 130 after Ctrl-C.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from typing import Annotated, Any

import typer

from openenv.cli._ask import BadValue, fields_of
from openenv.cli._games import ActionGame, Game, ToolGame
from openenv.cli._says import failed, note, printable, wrong
from openenv.core.exceptions import CapacityError, ConnectError, OpenEnvError, SessionLostError
from openenv.core.generic_client import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient
from openenv.core.transport.address import Address
from openenv.core.transport.credentials import Credentials
from openenv.core.transport.probe import NotReady, get_json, wait_until_ready

__all__ = ["play"]

_ENDS = ("quit", "exit", "q")
_STARTING = (502, 503, 504)
_WAKES_S = 300.0


def play(
    url: Annotated[str, typer.Argument(help="Base URL of the server.")],
    token: Annotated[
        str | None,
        typer.Option(help="Token of the server; for Spaces HF_TOKEN or `hf auth login` does. Shown nowhere."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the first episode.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that a call may take.")] = 60.0,
) -> None:
    """Play an environment: see what it shows, type actions or call its tools."""
    logging.getLogger("openenv.client").setLevel(logging.ERROR)  # what it would tell of the session is told here
    try:
        game = _find_game(url, token, timeout)
    except ValueError as error:
        raise wrong("play", str(error)) from None
    except ConnectError as error:
        raise failed("play", f"{error} `openenv doctor` looks closer.") from None
    try:
        with contextlib.closing(game.client):
            _begin(game, seed)
            ok = _rounds(game)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    raise typer.Exit(0 if ok else 1)


def _find_game(url: str, token: str | None, timeout: float) -> Game:
    """Look at the server's schema, and take the client that fits."""
    options: dict[str, Any] = {"message_timeout_s": timeout, "token": token}
    options |= {"on_session_lost": _tell_lost, "on_resumed": _tell_resumed}
    schema = _schema(url, token, timeout)
    action = (schema or {}).get("action")
    action = action if isinstance(action, dict) else None
    if action is not None and ("tool_name" in (fields := {one.name for one in fields_of(action)}) or not fields):
        game = ToolGame(MCPToolClient(url, **options).sync(), _ask, note)
        try:
            if game.tools():
                return game
        except OpenEnvError:
            pass  # it has no tools, or no way to call them: its actions can still be played
        game.client.close()
    if action is None:
        note("this server does not tell its actions; type them as JSON objects")
    return ActionGame(GenericEnvClient(url, **options).sync(), _ask, note, action)


def _schema(url: str, token: str | None, timeout: float) -> dict[str, Any] | None:
    """The server's schema; None if it has none. A Space that sleeps is waited for."""
    address = Address.parse(url)
    headers = Credentials(token).headers(address, {})
    limit = min(timeout, 10.0)
    try:
        return asyncio.run(get_json(address, "/schema", headers, limit))
    except NotReady as found:
        error = found.error
    if error.status == 404 and asyncio.run(_is_healthy(address, headers, limit)):
        return None
    if error.status in _STARTING:
        note(f"{error} Waiting for it, {_WAKES_S:.0f} s at most ...")
        asyncio.run(wait_until_ready(address, headers, _WAKES_S))
        return _schema(url, token, timeout)
    raise error from error.__cause__


async def _is_healthy(address: Address, headers: dict[str, str], limit: float) -> bool:
    try:
        await get_json(address, "/health", headers, limit)
    except NotReady:
        return False
    return True


def _begin(game: Game, seed: int | None) -> None:
    try:
        typer.echo(printable(game.reset("" if seed is None else f"seed={seed}")))
    except CapacityError as error:
        raise failed("play", f"{error} `openenv wait` stands in line.") from None
    except ConnectError as error:
        raise failed("play", f"{error} `openenv doctor` looks closer.") from None
    except OpenEnvError as error:
        note(f"the first reset failed: {error}")
    note(game.help())


def _rounds(game: Game) -> bool:
    """Play line by line until the input ends; whether a pipe's lines all went well."""
    ok = True
    while True:
        try:
            line = _ask("> ")
            if line.strip() in _ENDS:
                return ok
            typer.echo(printable(game.play(line)))
            continue
        except EOFError:
            return ok
        except BadValue as reason:
            note(str(reason))
        except SessionLostError as error:
            note(f"{error}" if "reset()" in str(error) else f"{error} reset() starts a new session.")
            note("This episode is over: type reset to begin another.")
        except OpenEnvError as error:
            note(f"{type(error).__name__}: {error}")
        except (TypeError, ValueError) as error:  # a parameter of a reset that is the client's own, as timeout_s
            note(f"this cannot be asked for: {error}")
        ok = ok and sys.stdin.isatty()


def _ask(question: str) -> str:
    """One line of the input. The question goes to stderr, and only to a person."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")
    if sys.stdout.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  # which makes input() remember what was typed
        return input(question)
    typer.echo(question, nl=False, err=True)
    return input()


def _tell_lost(error: SessionLostError) -> None:
    note("The connection was lost, and the session with it.")


def _tell_resumed(session: Any) -> None:
    note("The connection was lost; the session was resumed, and nothing with it is lost.")
