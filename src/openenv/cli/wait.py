"""``openenv wait``: stand in line at a server until it has a free slot.

Positions and messages go to stderr. Exit code 0 when a slot was free, 1 when the time ran out, 2 when no server
answered.
"""

from __future__ import annotations

from typing import Annotated

import typer

from openenv.cli._says import failed, note, wrong
from openenv.core.exceptions import CapacityError, ConnectError
from openenv.core.generic_client import GenericEnvClient

__all__ = ["wait"]


def wait(
    url: Annotated[str, typer.Argument(help="Base URL of the server.")],
    timeout: Annotated[float, typer.Option(min=0.1, help="Longest wait, in seconds.")] = 300.0,
) -> None:
    """Wait until a server has a free slot, as before a training run. The slot is given back at once."""
    try:
        client = GenericEnvClient(url, wait_for_slot=timeout, on_queued=_tell).sync()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    try:
        with client:
            queues = "queue" in client.async_client.features
    except CapacityError as error:
        raise failed("wait", f"no slot became free in {timeout:g} s: {error}") from None
    except ConnectError as error:
        raise wrong("wait", str(error)) from None
    if not queues:
        note("openenv wait: this server has no line; a free slot shows at the first call only")
    typer.echo(f"{url} is ready")


def _tell(position: int) -> None:
    note(f"in line, position {position}")
