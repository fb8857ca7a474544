"""``openenv serve``: an environment package, or any application, on a port of this machine.

Its base URL goes to stdout as soon as it answers; what happens to its sessions, and the log, to stderr: a table on a
terminal, else lines. Ctrl-C and SIGTERM end it when every environment is closed. Exit code 0 then; 1 if it cannot be
served, 2 for an option or a target that cannot be used.
"""

from __future__ import annotations

import os
import socket
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from openenv._package import AppSource, NoApp, find_app
from openenv.cli._says import failed, wrong
from openenv.core.exceptions import ConcurrencyConfigurationError

if TYPE_CHECKING:
    from openenv.cli._serving import Serving

__all__ = ["serve"]


def serve(
    env_path: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH | MODULE:APP",
            help="A folder with openenv.yaml (the present one by default), or an application.",
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", "-p", min=0, max=65535, help="0 for any that is free. PORT, else 8000.")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen at; 0.0.0.0 for all. HOST, else 127.0.0.1.")
    ] = None,
    reload: Annotated[bool, typer.Option("--reload", help="Start anew when a file changes; sessions end.")] = False,
    capacity: Annotated[
        int | None, typer.Option(min=1, help="Most sessions at once, whatever the application says.")
    ] = None,
    web: Annotated[
        bool | None,
        typer.Option("--web/--no-web", help="Whether it has a page at /web. ENABLE_WEB_INTERFACE, else no."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no sessions.")] = False,
    log_level: Annotated[str, typer.Option(help="Of the log: debug, info, warning, error.")] = "warning",
) -> None:
    """Serve an environment on this machine, and show its sessions."""
    if log_level.lower() not in ("debug", "info", "warning", "error"):
        raise wrong("serve", f"--log-level {log_level}: it is debug, info, warning or error")
    try:
        source = find_app(env_path)
    except NoApp as error:
        raise wrong("serve", str(error)) from None
    _set_variables(source, capacity, web)
    listener = _listener(host or os.environ.get("HOST") or "127.0.0.1", _port(port))
    with listener:
        _run(source, listener, capacity, reload=reload, log_level=log_level, shown=not quiet)


def _set_variables(source: AppSource, capacity: int | None, web: bool | None) -> None:
    """What applications read when they are imported."""
    if capacity is not None:
        os.environ["MAX_CONCURRENT_ENVS"] = str(capacity)
    if web is not None:
        os.environ["ENABLE_WEB_INTERFACE"] = "true" if web else "false"
    readme = source.folder / "README.md"
    if source.manifest and readme.is_file():
        os.environ.setdefault("ENV_README_PATH", str(readme))


def _run(
    source: AppSource, listener: socket.socket, capacity: int | None, *, reload: bool, log_level: str, shown: bool
) -> None:
    from openenv.cli._serving import CannotLoad, Serving

    serving = Serving(source, capacity, log_level, shown)
    try:
        if reload:
            _run_with_reload(serving, listener)
        else:
            serving([listener])
    except (NoApp, ConcurrencyConfigurationError) as error:
        raise wrong("serve", str(error)) from None
    except CannotLoad as error:
        typer.echo("".join(traceback.format_exception(error.cause)), err=True, nl=False)
        raise failed("serve", f"{error} cannot be imported: see above") from None


def _run_with_reload(serving: Serving, listener: socket.socket) -> None:
    """Serve in a process of its own, which is started anew when a file of the package changes."""
    import uvicorn
    from uvicorn.supervisors import ChangeReload

    config = uvicorn.Config("", reload=True, reload_dirs=[str(serving.source.folder)], log_config=None)
    ChangeReload(config, target=serving, sockets=[listener]).run()


def _port(given: int | None) -> int:
    if given is not None:
        return given
    told = os.environ.get("PORT") or "8000"
    with suppress(ValueError):
        if 0 <= int(told) <= 65535:
            return int(told)
    raise wrong("serve", f"PORT is {told!r}, which is no port: set another, or give --port")


def _listener(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        free = "" if port == 0 else "; --port 0 takes any that is free"
        raise failed("serve", f"cannot listen at {host}:{port}: {error.strerror or error}{free}") from None
    listener.set_inheritable(True)
    return listener
