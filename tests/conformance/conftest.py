"""Programs to grade: ours, upstream's, and the reference programs; each server in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.live import free_port

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
REFERENCE = ROOT / "examples" / "env_link"
PEER = ROOT / ".peer" / "bin" / "python"
COUNTING = ROOT / "src" / "openenv" / "testing" / "counting.py"
CAPACITY = "4"


@contextmanager
def process(command: Sequence[str], port: int, environ: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run a server; yields its base URL when it listens."""
    with subprocess.Popen(
        command, env={**os.environ, **(environ or {})}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            _wait_until_it_listens(server, port)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()
            server.communicate()


def _wait_until_it_listens(server: subprocess.Popen[str], port: int) -> None:
    import socket

    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert server.poll() is None, f"the server has ended: {server.communicate()[1]}"
            assert time.monotonic() < deadline, "the server does not listen"
            time.sleep(0.02)


@contextmanager
def reference_server(program: str, *arguments: str) -> Iterator[str]:
    """Run one of the reference servers."""
    port = free_port()
    more = ["--evict-after", "1"] if program == "v1_server" else []
    command = [sys.executable, str(REFERENCE / f"{program}.py"), "--port", str(port), "--capacity", CAPACITY]
    with process([*command, *more, *arguments], port) as url:
        yield url


def planted(*programs: str) -> list[tuple[str, str, str]]:
    """Program, bug and clause of every planted bug."""
    found = []
    for program in programs:
        path = REFERENCE / f"{program}.py"
        listed = subprocess.run([sys.executable, str(path), "--list-bugs"], capture_output=True, text=True, check=True)
        found += [(program, *line.split()) for line in listed.stdout.splitlines()]
    return found


def _uvicorn(python: str, app: str, port: int) -> list[str]:
    options = ["--host", "127.0.0.1", "--port", str(port), "--log-level", "critical"]
    return [python, "-W", "ignore", "-m", "uvicorn", app, *options]


@pytest.fixture(scope="session")
def ours() -> Iterator[str]:
    """Our server, with the probe environment."""
    port = free_port()
    environ = {"OPENENV_COUNTING_CAPACITY": CAPACITY}
    with process(_uvicorn(sys.executable, "openenv.testing.counting:app", port), port, environ) as url:
        yield url


@pytest.fixture(scope="session")
def peer() -> str:
    """The interpreter that has the real 0.10.0."""
    if not (PEER.parent.parent / ".ready").exists():
        text = "the real openenv 0.10.0 is not set up: run `make peer`"
        if os.environ.get("OPENENV_PEER_REQUIRED"):
            pytest.fail(text)
        pytest.skip(text)
    return str(PEER)


@pytest.fixture(scope="session")
def upstream(peer: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Upstream's server, with the same probe environment: it imports from where both have their names."""
    folder = tmp_path_factory.mktemp("probe")
    shutil.copy(COUNTING, folder / "probe_env.py")
    port = free_port()
    environ = {"OPENENV_COUNTING_CAPACITY": CAPACITY, "PYTHONPATH": str(folder)}
    with process(_uvicorn(peer, "probe_env:app", port), port, environ) as url:
        yield url


@pytest.fixture
def driver() -> list[str]:
    """The driver of our client."""
    return [sys.executable, str(HERE / "driver.py")]


@pytest.fixture
def upstream_driver(peer: str) -> list[str]:
    """The driver of upstream's client, which must not see our package."""
    return ["env", "-u", "PYTHONPATH", peer, str(HERE / "driver.py")]
