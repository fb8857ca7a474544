"""Runs ``openenv`` as a user does: a process of its own, what it wrote on both streams, its exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def openenv(
    *arguments: str | Path,
    typed: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = 100,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end.

    Args:
        arguments: its arguments.
        typed: its standard input.
        env: variables beside the test's own.
        cwd: where it runs.
        timeout_s: seconds that it may take; nothing is measured by it.
    """
    done = subprocess.run(
        [sys.executable, "-m", "openenv.cli", *map(str, arguments)],
        input=typed or "",
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200", **(env or {})},
        cwd=cwd,
        timeout=timeout_s,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done
