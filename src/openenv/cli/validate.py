"""``openenv validate``: look at an environment package, or at a server that runs, and say what is wrong and what to do.

The report goes to stdout. Exit code 0 if nothing is broken, 1 if something is (``--strict``: or could be better), 2 if
there was nothing that could be validated.
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from openenv.cli._says import wrong
from openenv.validation import RULES, NotValidated, Options, Report, Verdict, validate_package, validate_server

__all__ = ["validate"]

_STYLES = {Verdict.PASS: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red", Verdict.SKIP: "dim"}
_URL = ("http://", "https://", "ws://", "wss://")


class Level(StrEnum):
    """How far to go."""

    STATIC = "static"
    RUNTIME = "runtime"
    SEMANTIC = "semantic"


def validate(
    target: Annotated[
        str | None,
        typer.Argument(metavar="PATH | URL", help="The package's folder (the present one by default), or a server."),
    ] = None,
    url: Annotated[str | None, typer.Option(help="The server, instead of the argument.")] = None,
    level: Annotated[Level, typer.Option(help="static: only the files; the other two: run it, too.")] = Level.SEMANTIC,
    json_output: Annotated[bool, typer.Option("--json", help="Write the report as one JSON object.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write the JSON to this file as well.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that any answer may take.")] = 10.0,
    start_timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that its start may take.")] = 60.0,
    max_time: Annotated[float, typer.Option(min=1, help="Seconds for all that runs.")] = 120.0,
    steps: Annotated[int, typer.Option(min=1, help="Most steps of an episode.")] = 1000,
    actions: Annotated[
        Path | None, typer.Option(help="File of actions to begin every episode with: a line of JSON for each.")
    ] = None,
    token: Annotated[
        str | None, typer.Option(help="What the server asks for as a bearer token.", envvar="OPENENV_SERVER_TOKEN")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for a warning, too.")] = False,
) -> None:
    """Look at an environment: its files, and what it does when it is reset and stepped."""
    if url is not None and target is not None and target != url:
        raise wrong("validate", "name a server with --url, or something as argument, not both")
    subject = url or target or "."
    options = Options(
        timeout_s=timeout, start_s=start_timeout, max_time_s=max_time, steps=steps, actions=_actions(actions)
    )
    try:
        if url is not None or subject.startswith(_URL):
            report = validate_server(subject, options, token=token)
        else:
            report = validate_package(subject, options, running=level is not Level.STATIC)
        text = json.dumps(report.as_json(), indent=2)
        if output is not None:
            output.write_text(f"{text}\n", encoding="utf-8")
    except NotValidated as error:
        raise wrong("validate", str(error)) from None
    except OSError as error:
        raise wrong("validate", f"{output} cannot be written: {error.strerror or error}") from None
    if json_output:
        typer.echo(text)
    else:
        _show(report)
    raise typer.Exit(report.exit_code(strict=strict))


def _show(report: Report) -> None:
    screen = Console(highlight=False, markup=False, soft_wrap=True)
    skipped: dict[str, list[str]] = {}
    for one in report.ordered:
        if one.verdict is Verdict.SKIP:
            skipped.setdefault(one.text, []).append(one.rule)
            continue
        lines = [f"{one.verdict:<5} {one.rule:<11} {RULES[one.rule]}"]
        lines += [f"{'':18}{one.text}"] if one.text else []
        lines += [f"{'':18}-> {one.move}"] if one.move else []
        screen.print("\n".join(lines), style=_STYLES[one.verdict])
    for text, rules in skipped.items():
        screen.print(f"{Verdict.SKIP:<5} {', '.join(rules)}: {text}", style=_STYLES[Verdict.SKIP])
    counts = ", ".join(f"{report.count(verdict)} {verdict}" for verdict in Verdict)
    screen.print(f"{report.target}: {counts}")


def _actions(file: Path | None) -> list[Any]:
    if file is None:
        return []
    try:
        found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise wrong("validate", f"--actions {file}: {error}") from None
    if not all(isinstance(one, dict) for one in found):
        raise wrong("validate", f"--actions {file}: every line must be a JSON object")
    return found
