"""What all graders of the command line share: options, progress on stderr, the report on stdout, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from openenv.conformance.report import Finding, Report, Verdict

__all__ = ["AsJson", "Clauses", "names", "not_graded", "progress", "show"]

_STYLES = {Verdict.PASS: "green", Verdict.NOTE: "yellow", Verdict.VIOLATION: "bold red", Verdict.SKIP: "dim"}

Clauses = Annotated[str, typer.Option(help="Grade only these clauses, with commas between them.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write the report as one JSON object.")]


def names(given: str | None, known: Any, option: str) -> tuple[str, ...]:
    """The names in an option, which must all be known."""
    found = tuple(name.strip() for name in (given or "").split(",") if name.strip())
    if unknown := [name for name in found if name not in known]:
        not_graded(f"{option} names {', '.join(unknown)}; there are {', '.join(known)}")
    return found


def not_graded(text: str) -> NoReturn:
    """End with exit code 2."""
    Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(f"openenv conformance: {text}")
    raise typer.Exit(2)


def progress(as_json: bool) -> Callable[[Finding], None]:
    """Show each finding as it comes; only on a terminal, where one watches."""
    screen = Console(stderr=True, highlight=False, markup=False)
    if as_json or not screen.is_terminal:
        return lambda finding: None
    return lambda finding: screen.print(f"{finding.clause:<5}{finding.check}", style="dim", overflow="ellipsis")


def show(report: Report, as_json: bool) -> None:
    """Write the report, and end with its exit code."""
    if as_json:
        typer.echo(json.dumps(report.as_json(), indent=2))
    else:
        screen = Console(highlight=False, markup=False, soft_wrap=True)
        for result, block in zip(report.results, report.blocks(), strict=True):
            screen.print(block, style=_STYLES[result.verdict])
        screen.print(report.sums())
    raise typer.Exit(report.exit_code)
