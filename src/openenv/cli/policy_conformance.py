"""``openenv conformance policy-client`` and ``policy-server``: grade an end of the policy link.

The options are those of `Settings` and `Target` in `openenv.conformance.policy`. Exit codes are those of all graders.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from openenv.cli._grading import AsJson, Clauses, names, not_graded, progress, show
from openenv.conformance.report import NotGraded

__all__ = ["policy_client", "policy_server"]

Wait = Annotated[float, typer.Option(min=0.5, help="Seconds that any single wait may take.")]


def _needs_extra() -> None:
    try:
        import openenv.conformance.policy  # noqa: F401
    except ImportError as error:
        not_graded(str(error))


def policy_client(
    command: Annotated[list[str], typer.Argument(help="After --: the client. {url} in it becomes the address.")],
    scenario: Annotated[
        str, typer.Option(help="Scenarios, with commas between them: basic, resync, text, all, ...")
    ] = ("all"),
    features: Annotated[str, typer.Option(help="Features to list: reuse-feedback-obs.")] = "",
    horizon: Annotated[int, typer.Option(min=1, help="Steps of an action.")] = 4,
    action_dim: Annotated[int, typer.Option(min=1, max=9, help="Width of an action.")] = 7,
    action_dtype: Annotated[str, typer.Option(help="float64, float32, int64 or int32.")] = "float64",
    steps: Annotated[int, typer.Option(min=1, help="Exchanges of the scenario basic.")] = 20,
    resyncs: Annotated[int, typer.Option(min=1, help="Connections that the scenario resync ends.")] = 3,
    probe: Annotated[bool, typer.Option(help="The client runs the probe environment: check its sums, too.")] = True,
    clauses: Clauses = "",
    as_json: AsJson = False,
    timeout: Annotated[float, typer.Option(min=1.0, help="Seconds that a scenario may take.")] = 120.0,
    wait: Wait = 10.0,
    jobs: Annotated[int, typer.Option(min=1, help="Scenarios that are played side by side.")] = 2,
) -> None:
    """Grade a rollout client: be its training server, and end connections in every way there is."""
    _needs_extra()
    from openenv.conformance.policy.clauses import POLICY_CLAUSES, REUSE
    from openenv.conformance.policy.client.run import grade_policy_client
    from openenv.conformance.policy.client.scenarios import SCENARIOS
    from openenv.conformance.policy.client.stage import Settings

    settings = Settings(
        horizon=horizon,
        width=action_dim,
        dtype=action_dtype,
        steps=steps,
        resyncs=resyncs,
        features=names(features, (REUSE,), "--features"),
        probe=probe,
        wait_s=wait,
        timeout_s=timeout,
    )
    work = grade_policy_client(
        command,
        scenarios=names(scenario, [*(one.name for one in SCENARIOS), "all"], "--scenario"),
        settings=settings,
        only=names(clauses, POLICY_CLAUSES, "--clauses"),
        jobs=jobs,
        told=progress(as_json),
    )
    try:
        report = asyncio.run(work)
    except NotGraded as error:
        not_graded(str(error))
    show(report, as_json)


def policy_server(
    url: Annotated[str, typer.Argument(help="Address of the server, ws://host:port.")],
    phases: Annotated[str, typer.Option(help="Phases, with commas between them; all by default.")] = "",
    exchanges: Annotated[int, typer.Option(min=1, help="Plain exchanges of the first phase.")] = 5,
    state_key: Annotated[str, typer.Option(help="Name of the state that is sent.")] = "obs",
    state_dim: Annotated[int, typer.Option(min=1, help="Its width.")] = 3,
    image_key: Annotated[str, typer.Option(help="Name of an image that is sent; none by default.")] = "",
    image_size: Annotated[int, typer.Option(min=1, help="Its height and width.")] = 224,
    api_key: Annotated[str, typer.Option(envvar="OPENENV_API_KEY", help="Sent as Authorization: Api-Key.")] = "",
    until_stop: Annotated[bool, typer.Option("--until-stop", help="Go on until the server stops, at the end.")] = False,
    max_exchanges: Annotated[int, typer.Option(min=1, help="Most exchanges to wait for the stop.")] = 2000,
    feedback_timeout: Annotated[
        float | None, typer.Option(help="Seconds that the server is set to wait for feedback; unchecked by default.")
    ] = None,
    clauses: Clauses = "",
    as_json: AsJson = False,
    timeout: Annotated[float, typer.Option(min=1.0, help="Seconds for all, but for the wait for the stop.")] = 60.0,
    wait: Wait = 10.0,
) -> None:
    """Grade a training server: be its rollout client, and break the rules on connections of their own."""
    _needs_extra()
    from openenv.conformance.policy.clauses import POLICY_CLAUSES
    from openenv.conformance.policy.server.peer import Target
    from openenv.conformance.policy.server.run import PHASES, grade_policy_server

    target = Target(
        url,
        wait_s=wait,
        timeout_s=timeout,
        exchanges=exchanges,
        state_key=state_key,
        state_dim=state_dim,
        image_key=image_key,
        image_size=image_size,
        api_key=api_key,
        until_stop=until_stop,
        max_exchanges=max_exchanges,
        feedback_timeout_s=feedback_timeout,
    )
    chosen = names(phases, PHASES, "--phases") or PHASES
    only = names(clauses, POLICY_CLAUSES, "--clauses")
    try:
        report = grade_policy_server(target, phases=chosen, only=only, told=progress(as_json))
    except NotGraded as error:
        not_graded(str(error))
    show(report, as_json)
