"""``openenv conformance``: grade a server, or a client, of the env link; the policy link's are added to it.

The report goes to stdout, progress to stderr. Exit code 0 without a violation, 1 with one, 2 if nothing was graded.
"""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import typer

from openenv.cli._grading import AsJson, Clauses, names, not_graded, progress, show
from openenv.cli.policy_conformance import policy_client, policy_server
from openenv.conformance.clauses import CLAUSES
from openenv.conformance.report import NotGraded

__all__ = ["conformance"]

conformance = typer.Typer(
    name="conformance", no_args_is_help=True, help="Grade a server or a client of either link, clause by clause."
)

FEATURES = ("seq", "cancel", "resume", "queue")

Features = Annotated[str | None, typer.Option(help="Features of openenv.v1, with commas between them.")]
PlainOnly = Annotated[bool, typer.Option("--plain-only", help="Leave out the clauses of openenv.v1.")]
Upstream = Annotated[bool, typer.Option("--upstream", help="Note what upstream 0.10.0 is known for, and go on.")]
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
    """Grade a server of the env link: connect to it, and do what clients do, and what they should not."""
    from openenv.conformance.server.run import grade_server
    from openenv.conformance.server.target import Target

    target = Target(
        url,
        timeout_s=timeout,
        fill=fill,
        action=_action(action),
        plain_only=plain_only,
        wants=frozenset(names(features, FEATURES, "--features")),
    )
    only = names(clauses, CLAUSES, "--clauses")
    try:
        report = grade_server(target, only=only, upstream=upstream, told=progress(as_json))
    except NotGraded as error:
        not_graded(str(error))
    show(report, as_json)


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
    """Grade a client of the env link: run its driver against a server that fails in every way, and some others."""
    from openenv.conformance.client.run import grade_client

    offered = names(features, FEATURES, "--features") if features is not None else FEATURES
    work = grade_client(
        command,
        timeout_s=timeout,
        features=offered,
        plain_only=plain_only,
        only=names(clauses, CLAUSES, "--clauses"),
        upstream=upstream,
        jobs=jobs,
        told=progress(as_json),
    )
    try:
        report = asyncio.run(work)
    except NotGraded as error:
        not_graded(str(error))
    show(report, as_json)


conformance.command("policy-server")(policy_server)
conformance.command("policy-client", context_settings={"ignore_unknown_options": True})(policy_client)


def _action(given: str | None) -> dict[str, Any] | None:
    if given is None:
        return None
    try:
        action = json.loads(given)
    except ValueError as error:
        not_graded(f"--action is not JSON: {error}")
    if not isinstance(action, dict):
        not_graded("--action must be a JSON object")
    return action
