"""The reference programs of ``examples/env_link``: run as programs, and imported for their client classes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

__all__ = ["FOLDER", "bugs", "module", "reference_server"]

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "env_link"


def module(name: str) -> ModuleType:
    """Import a reference program by its name, without running it."""
    if name not in sys.modules:
        sys.path.insert(0, str(FOLDER))  # they import one another as neighbours
        try:
            spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
            assert spec is not None
            assert spec.loader is not None
            sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
        finally:
            sys.path.remove(str(FOLDER))
    return sys.modules[name]


def bugs(program: str) -> list[tuple[str, str]]:
    """Name and clause of each bug that a program can be told to have."""
    command = [sys.executable, str(FOLDER / f"{program}.py"), "--list-bugs"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    return [(name, clause) for name, clause in (line.split() for line in lines)]


@contextmanager
def reference_server(program: str, *arguments: str) -> Iterator[str]:
    """Run a reference server on a free port; yields its base URL. It must end quietly and with code 0."""
    process = subprocess.Popen(
        [sys.executable, str(FOLDER / f"{program}.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert url, process.communicate()[1]
        yield url
        process.terminate()
        _, words = process.communicate(timeout=30)
        assert (process.returncode, words) == (0, "")
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
