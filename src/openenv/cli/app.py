"""The ``openenv`` command and its table of subcommands."""

from __future__ import annotations

from typing import Annotated

import typer

from openenv import __version__
from openenv.cli.build import build
from openenv.cli.conformance import conformance
from openenv.cli.demo import demo
from openenv.cli.doctor import doctor
from openenv.cli.fork import fork
from openenv.cli.init import init
from openenv.cli.play import play
from openenv.cli.policy import policy
from openenv.cli.push import push
from openenv.cli.serve import serve
from openenv.cli.validate import validate
from openenv.cli.wait import wait

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
app.command()(build)
app.command()(demo)
app.command()(doctor)
app.command()(fork)
app.command()(init)
app.command()(play)
app.command()(push)
app.command()(serve)
app.command()(validate)
app.command()(wait)
app.add_typer(conformance)
app.add_typer(policy)


def _tell_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"openenv {__version__} (session-safe)")
        raise typer.Exit


@app.callback()
def openenv(
    version: Annotated[
        bool, typer.Option("--version", help="Tell the version and exit.", callback=_tell_version, is_eager=True)
    ] = False,
) -> None:
    """Environments for reinforcement learning behind a network, and sessions that are never lost in silence."""
