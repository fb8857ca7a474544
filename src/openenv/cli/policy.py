"""``openenv policy rollout | serve | probe``: both ends of the policy link from a shell.

Results go to stdout, messages and progress to stderr. Exit code 0 also when the server ended the run; 1 when something
failed, 2 for a wrong option.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from openenv.cli._says import failed
from openenv.core.exceptions import ConnectError, OpenEnvError

if TYPE_CHECKING:
    from openenv.policy import WebSocketEnvClientAgent
    from openenv.policy.rollout import RolloutStats, Source

__all__ = ["policy"]

policy = typer.Typer(
    name="policy", help="The policy link: roll out, serve a policy, look at a server.", no_args_is_help=True
)

SAY_EVERY_S = 10.0

Server = Annotated[str, typer.Option(help="Address of the policy server.", envvar="OPENENV_POLICY_SERVER")]
ApiKey = Annotated[str | None, typer.Option(help="Sent as Authorization: Api-Key.", envvar="OPENENV_API_KEY")]


def _needs_extras(*modules: str) -> None:
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            extra = "gymnasium" if name == "gymnasium" else "policy"
            said = str(error) if "openenv[" in str(error) else f"{name} is missing: pip install 'openenv[{extra}]'"
            raise failed("policy", said) from None


def _load(reference: str, option: str) -> Any:
    module, colon, name = reference.partition(":")
    if not colon or not module or not name:
        raise typer.BadParameter(f"{option} takes module:object, not {reference!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module beside the shell, as python -m finds it
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise typer.BadParameter(f"{option} {reference}: {error}") from error
    return found


# ------------------------------------------------------------------ rollout


@dataclass(frozen=True)
class _Job:
    """A rollout, for one process."""

    envs: tuple[str, ...]
    server: str
    api_key: str | None
    num_envs: int
    episodes: int | None
    seed: int
    replan_steps: int | None
    reconnect: bool
    reuse: bool
    record: Path | None
    obs: str | None
    act: str | None
    connect_timeout: float
    shown: bool = True

    def __call__(self, number: int) -> Mapping[str, Any]:
        """Roll out as the process of this number."""
        from openenv.policy import WebSocketEnvClientAgent
        from openenv.policy.rollout import JsonlRecorder

        agent = WebSocketEnvClientAgent(
            self.server,
            api_key=self.api_key,
            replan_steps=self.replan_steps,
            reconnect_on_server_stop=self.reconnect,
            reuse_feedback_obs=self.reuse,
            connect_timeout_s=self.connect_timeout,
        )
        source = self._source(number)
        try:
            with agent:
                if self.record is None:
                    return self._run(agent, source, number, None)
                with JsonlRecorder(self.record, process=number) as recorder:
                    return self._run(agent, source, number, recorder)
        finally:
            source.close()

    def _run(
        self, agent: WebSocketEnvClientAgent, source: Source, number: int, recorder: Callable[[Any], object] | None
    ) -> Mapping[str, Any]:
        from openenv.policy.rollout import Rollout

        with _progress(self.episodes, number, self.shown) as progress:
            rollout = Rollout(
                agent,
                source,
                replan_steps=self.replan_steps,
                seed=self.seed + number * self.num_envs,
                on_episode=recorder,
                on_progress=progress,
            )
            return rollout.run(episodes=self.episodes).summary()

    def _source(self, number: int) -> Source:
        from openenv.policy.rollout import Clients, GymnasiumVector

        obs = None if self.obs is None else _load(self.obs, "--obs")
        act = None if self.act is None else _load(self.act, "--act")
        if not self.envs[0].startswith(("http://", "https://", "ws://", "wss://")):
            import gymnasium

            try:
                env = gymnasium.make_vec(self.envs[0], num_envs=self.num_envs)
            except gymnasium.error.Error as error:
                raise ValueError(f"{self.envs[0]} cannot be made: {error}") from error
            return GymnasiumVector(env, obs, act)
        from openenv.core.generic_client import GenericEnvClient

        assert obs is not None, "checked before"
        assert act is not None, "checked before"
        urls = [self.envs[index % len(self.envs)] for index in range(self.num_envs)]
        return Clients([GenericEnvClient(url).sync() for url in urls], obs, act)


@contextmanager
def _progress(episodes: int | None, number: int, shown: bool) -> Iterator[Callable[[RolloutStats], object]]:
    """A bar on a terminal; elsewhere a line now and then."""
    screen = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("episodes  {task.fields[told]}"),
        console=screen,
        disable=not shown or not screen.is_terminal,
    )
    said = time.monotonic()

    def tell(stats: RolloutStats) -> None:
        nonlocal said
        told = f"{stats.steps_per_second:.0f} steps/s, mean reward {stats.mean_reward:.3g}"
        bar.update(task, completed=stats.episodes, told=told)
        if not screen.is_terminal and time.monotonic() - said >= SAY_EVERY_S:
            said = time.monotonic()
            screen.print(f"process {number}: {stats.episodes}/{episodes or '...'} episodes, {told}")

    with bar:
        task = bar.add_task(f"process {number}", total=episodes, told="")
        yield tell


@policy.command()
def rollout(
    envs: Annotated[list[str], typer.Argument(help="A Gymnasium id, or addresses of environment servers.")],
    server: Server = "ws://127.0.0.1:8000",
    num_envs: Annotated[int, typer.Option(min=1, help="Envs (or sessions) in each process.")] = 1,
    episodes: Annotated[int | None, typer.Option(min=1, help="Episodes in each process; no limit if left out.")] = None,
    processes: Annotated[int, typer.Option(min=1, help="Processes, each with a connection of its own.")] = 1,
    seed: Annotated[int, typer.Option(min=0, help="Process p has the seeds from here on, plus p times num-envs.")] = 0,
    replan_steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of each chunk to run; all if left out.")
    ] = None,
    reconnect_on_server_stop: Annotated[bool, typer.Option(help="Wait for the server's next run.")] = False,
    reuse_feedback_obs: Annotated[bool, typer.Option(help="Send no observation that the server already has.")] = True,
    record: Annotated[Path | None, typer.Option(help="File to which each episode adds a line of JSON.")] = None,
    obs: Annotated[str | None, typer.Option(help="module:callable from observations to images, states, text.")] = None,
    act: Annotated[str | None, typer.Option(help="module:callable from the server's actions to the env's.")] = None,
    connect_timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the server.")] = 60.0,
    api_key: ApiKey = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write the results as JSON, a line for each process.")
    ] = False,
) -> None:
    """Run envs with the action chunks of a policy server, until it ends the run."""
    _needs_extras("openenv.policy")
    remote = envs[0].startswith(("http://", "https://", "ws://", "wss://"))
    if remote and (obs is None or act is None):
        raise typer.BadParameter("environment servers have no spaces: give --obs and --act")
    if not remote:
        _needs_extras("gymnasium")
        if len(envs) > 1:
            raise typer.BadParameter("one Gymnasium id, or addresses")
    from openenv.policy.rollout import WorkerError, run_workers

    job = _Job(
        tuple(envs),
        server,
        api_key,
        num_envs,
        episodes,
        seed,
        replan_steps,
        reconnect_on_server_stop,
        reuse_feedback_obs,
        record,
        obs,
        act,
        connect_timeout,
        shown=processes == 1,
    )
    try:
        results = [job(0)] if processes == 1 else run_workers(job, processes)
    except WorkerError as error:
        raise failed("policy", str(error)) from None
    except (OpenEnvError, OSError, TypeError, ValueError) as error:
        raise failed("policy", str(error) or type(error).__name__) from None
    for number, result in enumerate(results):
        if as_json:
            typer.echo(json.dumps({"process": number, **result}))
        else:
            typer.echo(f"process {number}: " + ", ".join(f"{name} {value}" for name, value in result.items()))


# ------------------------------------------------------------------ serve


@policy.command()
def serve(
    reference: Annotated[str, typer.Argument(metavar="MODULE:OBJECT", help="A policy, or what makes one.")],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any that is free.")] = 8000,
    mini_infer_batch_size: Annotated[int | None, typer.Option(min=1, help="Envs that make a batch.")] = None,
    feedback_timeout: Annotated[float, typer.Option(min=0.1, help="Seconds from an action to its feedback.")] = 60.0,
    reuse_feedback_obs: Annotated[bool, typer.Option(help="Let clients leave out what they have sent.")] = True,
    api_key: ApiKey = None,
) -> None:
    """Serve a policy to rollout clients, until it has finished or a signal comes."""
    _needs_extras("openenv.policy")
    import asyncio

    from openenv.policy import PolicyServer

    found = _load(reference, "MODULE:OBJECT")
    try:
        served = found() if isinstance(found, type) or not hasattr(found, "act") else found
    except TypeError as error:
        raise failed("policy", f"{reference} cannot be made: {error}") from None
    if not callable(getattr(served, "act", None)):
        raise typer.BadParameter(f"{reference} has no act(): see openenv.policy.Policy")
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    server = PolicyServer(
        served,
        host,
        port,
        api_key=api_key,
        mini_infer_batch_size=mini_infer_batch_size,
        feedback_timeout_s=feedback_timeout,
        reuse_feedback_obs=reuse_feedback_obs,
    )
    try:
        server.run()
    except OSError as error:
        raise failed("policy", f"cannot listen at {host}:{port}: {error}") from None
    except asyncio.CancelledError:
        raise typer.Exit(1) from None
    typer.echo(f"{server.metrics}", err=True)


# ------------------------------------------------------------------ probe


@policy.command()
def probe(
    server: Annotated[str, typer.Argument(help="Address of the policy server.")] = "ws://127.0.0.1:8000",
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for it.")] = 10.0,
    api_key: ApiKey = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write what it says as JSON.")] = False,
) -> None:
    """Look at a policy server: is it there, what does it say of itself, how long does it take to answer."""
    _needs_extras("openenv.policy")
    from openenv.policy import PolicyLinkError, ServerStopped, WebSocketEnvClientAgent

    began = time.perf_counter()
    try:
        with WebSocketEnvClientAgent(server, api_key=api_key, connect_timeout_s=timeout) as agent:
            metadata = agent.connect()
            took_ms = 1000 * (time.perf_counter() - began)
    except (ConnectError, ServerStopped, PolicyLinkError, ValueError) as error:
        raise failed("policy", str(error)) from None
    told = {key: value for key, value in metadata.data.items() if len(str(value)) <= 200}
    told["features"] = sorted(metadata.features)
    if as_json:
        typer.echo(json.dumps({"server": server, "connect_ms": round(took_ms, 1), "metadata": told}, default=str))
        return
    typer.echo(f"{server} answered in {took_ms:.1f} ms")
    for key, value in told.items():
        typer.echo(f"  {key}: {value}")
