"""The `openenv` command itself: version, help, and what it says without its extra."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from openenv import __version__

OPENENV = [sys.executable, "-m", "openenv.cli"]


def run(*command: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env={**os.environ, "PATH": "", **env}
    )


def test_version_says_session_safe() -> None:
    for command in (OPENENV, [str(Path(sys.executable).with_name("openenv"))]):  # as a module, and as installed
        done = run(*command, "--version")
        assert (done.returncode, done.stdout, done.stderr) == (0, f"openenv {__version__} (session-safe)\n", "")


def test_help_names_the_commands() -> None:
    done = run(*OPENENV, "--help")
    assert done.returncode == 0
    assert "demo" in done.stdout


def test_without_the_extra_it_says_how_to_install_it(tmp_path: Path) -> None:
    for missing in ("typer", "rich"):
        blocker = tmp_path / missing / f"{missing}.py"
        blocker.parent.mkdir()
        blocker.write_text(f"raise ModuleNotFoundError('blocked', name={missing!r})")
        path = os.pathsep.join([str(blocker.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = run(*OPENENV, "demo", PYTHONPATH=path)
        assert done.returncode != 0
        assert done.stdout == ""
        assert done.stderr == f'openenv: {missing} is not installed. Run: pip install "openenv[cli]"\n'


def test_importing_the_command_loads_neither_typer_nor_rich() -> None:
    code = "import sys, openenv.cli; print([name for name in ('typer', 'rich', 'click') if name in sys.modules])"
    assert run(sys.executable, "-c", code).stdout == "[]\n"
