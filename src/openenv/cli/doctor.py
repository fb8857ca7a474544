"""``openenv doctor``: what stands between a client and a server, and what to do about it.

The findings go to stdout, with ``--json`` as one object. Exit code 0 if a client could use the server now, 1 if not,
2 if the address cannot be read.
"""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer
from rich.console import Console

from openenv.cli._checkup import Checkup, Finding, Verdict
from openenv.cli._says import note, printable, wrong
from openenv.core.transport.address import Address
from openenv.core.transport.credentials import Credentials

__all__ = ["doctor"]

_MARKS = {Verdict.OK: ("ok", "green"), Verdict.NOTE: ("note", "yellow"), Verdict.PROBLEM: ("PROBLEM", "bold red")}


def doctor(
    url: Annotated[str, typer.Argument(help="Base URL of the server.")],
    token: Annotated[
        str | None,
        typer.Option(help="Token of the server; for Spaces HF_TOKEN or `hf auth login` does. Shown nowhere."),
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for each question.")] = 10.0,
    no_session: Annotated[
        bool, typer.Option("--no-session", help="Open no session, so that no slot is taken. (A plain server's is.)")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write the findings as one JSON object.")] = False,
) -> None:
    """Look at a server: reachable, healthy, dialect, latency, a free slot; and what to do about what is not."""
    try:
        address, credentials = Address.parse(url), Credentials(token)
        checkup = Checkup(
            address,
            credentials,
            timeout,
            session=not no_session,
            told=(lambda finding: None) if as_json else _show,
        )
    except ValueError as error:
        raise wrong("doctor", str(error)) from None
    asyncio.run(checkup.run())
    if as_json:
        found = [finding.as_json() for finding in checkup.findings]
        typer.echo(json.dumps({"url": address.shown, "usable": checkup.is_usable, "findings": found}, indent=2))
    elif checkup.is_usable:
        note("A client can use this server now.")
    else:
        note("A client cannot use this server now.")
    raise typer.Exit(0 if checkup.is_usable else 1)


def _show(finding: Finding) -> None:
    word, style = _MARKS[finding.verdict]
    screen = Console(highlight=False, markup=False, soft_wrap=True)
    screen.print(f"{word:<8}", style=style, end="")
    screen.print(f"{finding.check:<10} {printable(finding.text)}")
    if finding.move:
        screen.print(f"{'':<8}{'':<10} -> {finding.move}")
