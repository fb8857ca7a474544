"""The command line. One file a command; needs the ``cli`` extra, which is only looked for when it runs."""

from __future__ import annotations

import io
import sys

__all__ = ["main"]


_INSTALL = 'pip install "openenv[cli]" (in a checkout of it: pip install ".[cli]")'


def main() -> int:
    """Run the ``openenv`` command. Version and usage are told without the ``cli`` extra, too.

    Returns:
        Exit code, where the command itself does not exit: 1 if it needs the ``cli`` extra and that is not there.
    """
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError as error:
        return _without_extra(sys.argv[1:], error.name)
    from openenv.cli.app import app

    # What a terminal cannot show is shown by its number, and what was typed and is no text is refused where it is used.
    for stream, errors in (
        (sys.stdin, "surrogateescape"),
        (sys.stdout, "backslashreplace"),
        (sys.stderr, "backslashreplace"),
    ):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
    app(prog_name="openenv")
    return 0


def _without_extra(arguments: list[str], missing: str | None) -> int:
    if arguments[:1] == ["--version"]:
        from openenv import __version__

        sys.stdout.write(f"openenv {__version__} (session-safe)\n")
        return 0
    if arguments[:1] in ([], ["--help"]):
        sys.stdout.write(f"Usage: openenv [--version] [--help] COMMAND ...; to run commands: {_INSTALL}\n")
        return 0
    sys.stderr.write(f"openenv: {missing} is not installed. Run: {_INSTALL}\n")
    return 1
