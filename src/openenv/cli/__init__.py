"""The command line. One file a command; needs the ``cli`` extra, which is only looked for when it runs."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int:
    """Run the ``openenv`` command.

    Returns:
        Exit code, where the command itself does not exit: 1 without the ``cli`` extra.
    """
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError as error:
        sys.stderr.write(f'openenv: {error.name} is not installed. Run: pip install "openenv[cli]"\n')
        return 1
    from openenv.cli.app import app

    app(prog_name="openenv")
    return 0
