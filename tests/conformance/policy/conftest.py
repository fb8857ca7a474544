"""Programs of the policy link to grade: the reference programs, ours, and what their environments need."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
REFERENCE = ROOT / "examples" / "policy"
RAW_CLIENT = [sys.executable, str(REFERENCE / "raw_client.py"), "{url}"]
OUR_CLIENT = [sys.executable, "-m", "probe_env.client", "--url", "{url}"]
ASYNC_CLIENT = [sys.executable, str(Path(__file__).resolve().parent / "async_client.py"), "{url}"]
OUR_SERVER = [sys.executable, str(Path(__file__).resolve().parent / "slow_server.py")]


@pytest.fixture(autouse=True)
def _probe_env_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs find the probe environment, whether or not it is installed."""
    folders = [str(ROOT / "envs" / "probe_env"), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))


@contextmanager
def running(command: Sequence[str]) -> Iterator[str]:
    """Run a server that says its address first; yields it."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            url = server.stdout.readline().strip()
            assert url.startswith("ws://"), f"{command} said {url!r}"
            yield url
        finally:
            server.kill()


def reference_server(*arguments: str) -> list[str]:
    """The command of the reference server, at a free port."""
    return [sys.executable, str(REFERENCE / "reference_server.py"), "--port", "0", *arguments]


def planted(program: str) -> list[tuple[str, str]]:
    """Bug and clause of every planted bug."""
    command = [sys.executable, str(REFERENCE / f"{program}.py"), "--list-bugs"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [(line.split()[0], line.split()[1]) for line in listed.splitlines()]
