"""``openenv conformance``: grade a server, or a client, of the env link.

The report goes to stdout, progress to stderr. Exit code 0 without a violation, 1 with one, 2 if nothing was graded.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from openenv.conformance.clauses import CLAUSES
from openenv.conformance.report import Finding, NotGraded, Report, Verdict

__all__ = ["conformance"]

conformance = typer.Typer(
    name="conformance", no_args_is_help=True, help="Grade a server or a client of the env link, clause by clause."
)

_STYLES = {Verdict.PASS: "green", Verdict.NOTE: "yellow", Verdict.VIOLATION: "bold red", Verdict.SKIP: "dim"}
FEATURES = ("seq", "cancel", "resume", "queue")

Features = Annotated[str | None, typer.Option(help="Features of openenv.v1, with commas between them.")]
PlainOnly = Annotated[bool, typer.Option("--plain-only", help="Leave out the clauses of openenv.v1.")]
Upstream = Annotated[bool, typer.Option("--upstream", help="Note what upstream 0.10.0 is known for, and go on.")]
Clauses = Annotated[str, typer.Option(help="Grade only these clauses, with commas between them.")]
AsJson = Annotated[bool, typer.Option("--json", help="Write the report as one JSON object.")]
Timeout = Annotated[float, typer.Option(min=0.5, help="Seconds that any answer may take.")]


@conformance.command()
def server(
    url: Annotated[str, typer.Argument(help="Base URL of the server.")],
    features: Features = None,
    plain_only: PlainOnly = False,
    upstream: Upstream = False,
    clauses: Clauses = "",
    as_json: AsJson = False,
    timeout: Timeout = 10.0,
    action: Annotated[str | None, typer.Option(help="An action that the environment takes, as JSON.")] = None,
    fill: Annotated[int, typer.Option(min=1, help="Most sessions to open to see the server full.")] = 32,
) -> None:
    """Grade a server: connect to it, and do what clients do, and what they should not."""
    from openenv.conformance.server.run import grade_server
    from openenv.conformance.server.target import Target

    target = Target(
        url,
        timeout_s=timeout,
        fill=fill,
        action=_action(action),
        plain_only=plain_only,
        wants=frozenset(_names(features, FEATURES, "--features")),
    )
    only = _names(clauses, CLAUSES, "--clauses")
    try:
        report = grade_server(target, only=only, upstream=upstream, told=_progress(as_json))
    except NotGraded as error:
        _not_graded(str(error))
    _show(report, as_json)


@conformance.command(context_settings={"ignore_unknown_options": True})
def client(
    command: Annotated[list[str], typer.Argument(help="After --: the driver. {url} in it becomes the address.")],
    features: Features = None,
    plain_only: PlainOnly = False,
    upstream: Upstream = False,
    clauses: Clauses = "",
    as_json: AsJson = False,
    timeout: Timeout = 10.0,
    jobs: Annotated[int, typer.Option(min=1, help="Scenarios that are played side by side.")] = 2,
) -> None:
    """Grade a client: run its driver against a server that fails in every way that is allowed, and some others."""
    from openenv.conformance.client.run import grade_client

    offered = _names(features, FEATURES, "--features") if features is not None else FEATURES
    work = grade_client(
        command,
        timeout_s=timeout,
        features=offered,
        plain_only=plain_only,
        only=_names(clauses, CLAUSES, "--clauses"),
        upstream=upstream,
        jobs=jobs,
        told=_progress(as_json),
    )
    try:
        report = asyncio.run(work)
    except NotGraded as error:
        _not_graded(str(error))
    _show(report, as_json)


def _names(given: str | None, known: Any, option: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in (given or "").split(",") if name.strip())
    if unknown := [name for name in names if name not in known]:
        _not_graded(f"{option} names {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def _action(given: str | None) -> dict[str, Any] | None:
    if given is None:
        return None
    try:
        action = json.loads(given)
    except ValueError as error:
        _not_graded(f"--action is not JSON: {error}")
    if not isinstance(action, dict):
        _not_graded("--action must be a JSON object")
    return action


def _not_graded(text: str) -> NoReturn:
    Console(stderr=True, highlight=False, markup=False, soft_wrap=True).print(f"openenv conformance: {text}")
    raise typer.Exit(2)


def _progress(as_json: bool) -> Callable[[Finding], None]:
    """Show each finding as it comes; only on a terminal, where one watches."""
    screen = Console(stderr=True, highlight=False, markup=False)
    if as_json or not screen.is_terminal:
        return lambda finding: None
    return lambda finding: screen.print(f"{finding.clause:<5}{finding.check}", style="dim", overflow="ellipsis")


def _show(report: Report, as_json: bool) -> None:
    """Write the report, and end with its exit code."""
    if as_json:
        typer.echo(json.dumps(report.as_json(), indent=2))
    else:
        screen = Console(highlight=False, markup=False, soft_wrap=True)
        for result, block in zip(report.results, report.blocks(), strict=True):
            screen.print(block, style=_STYLES[result.verdict])
        screen.print(report.sums())
    raise typer.Exit(report.exit_code)
