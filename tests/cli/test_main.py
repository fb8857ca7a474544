"""The `openenv` command itself: version, help, and what it says without its extra."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(("typed", "names"), [("va", ["validate"]), ("se", ["serve"]), ("policy ro", ["rollout"])])
def test_a_shell_can_complete_commands(typed: str, names: list[str]) -> None:
    words = f"openenv {typed}"
    asked = {"_OPENENV_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = run(str(Path(sys.executable).with_name("openenv")), **asked)
    assert (done.returncode, done.stdout.split()) == (0, names)


INSTALL = 'pip install "openenv[cli]" (in a checkout of it: pip install ".[cli]")'


@pytest.fixture(params=["typer", "rich"])
def missing(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def without(missing: str, tmp_path: Path) -> str:
    """A PYTHONPATH on which one module of the extra is not there."""
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError('blocked', name={missing!r})")
    return os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])


def test_without_the_extra_it_says_how_to_install_it(missing: str, without: str) -> None:
    done = run(*OPENENV, "demo", PYTHONPATH=without)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == f"openenv: {missing} is not installed. Run: {INSTALL}\n"


def test_without_the_extra_version_and_usage_are_told(without: str) -> None:
    done = run(*OPENENV, "--version", PYTHONPATH=without)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"openenv {__version__} (session-safe)\n", "")
    done = run(*OPENENV, "--help", PYTHONPATH=without)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: openenv ")
    assert done.stdout.endswith(f"{INSTALL}\n")
    assert done.stdout.count("\n") == 1


def test_importing_the_command_loads_neither_typer_nor_rich() -> None:
    code = "import sys, openenv.cli; print([name for name in ('typer', 'rich', 'click') if name in sys.modules])"
    assert run(sys.executable, "-c", code).stdout == "[]\n"
