"""Real servers for tests: uvicorn in a thread, or in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from openenv.testing.processes import free_port

TESTS = Path(__file__).resolve().parents[1]


class LiveServer(str):
    """The base URL of a running server, as text; ``ws`` is the address of its ``/ws``."""

    server: uvicorn.Server

    @property
    def ws(self) -> str:
        return str(self).replace("http", "ws", 1) + "/ws"

    def wait_for_sessions(self, trainers: int, visitors: int = 0) -> None:
        """Wait until no more than so many sessions hold a place; a place is free a moment after its environment has
        closed. Only for a server in this process."""
        server = self.server.config.app.state.openenv_server  # type: ignore[union-attr]
        deadline = time.monotonic() + 60
        while server.active_sessions > trainers or server.web.visitors.active > visitors:
            assert time.monotonic() < deadline, "sessions were not freed"
            time.sleep(0.005)

    @property
    def port(self) -> int:
        return int(self.rsplit(":", 1)[1])


@contextmanager
def serve(app: Any, *, ws_max_size: int = 16 * 1024 * 1024, port: int = 0, **config: Any) -> Iterator[LiveServer]:
    """Run an app in a thread on a free port; yields its base URL, as ``http://127.0.0.1:1234``."""
    listener = socket.create_server(("127.0.0.1", port))
    settings = uvicorn.Config(app, log_level="warning", ws_max_size=ws_max_size, lifespan="on", **config)
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="live-server", daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.005)
        url = LiveServer(f"http://127.0.0.1:{listener.getsockname()[1]}")
        url.server = server
        yield url
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server did not stop"


@contextmanager
def serve_process(
    module_app: str, *, env: Mapping[str, str] | None = None, port: int | None = None, args: tuple[str, ...] = ()
) -> Iterator[tuple[LiveServer, subprocess.Popen[str]]]:
    """Run ``uvicorn module:app`` as a process with the tests on its path; yields its base URL and the process.

    Output is captured: read it with ``process.communicate()`` after the process was told to end.
    """
    port = port or free_port()
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", module_app, "--host", "127.0.0.1", "--port", str(port), *args],
        env={**os.environ, "PYTHONPATH": path, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    url = LiveServer(f"http://127.0.0.1:{port}")
    try:
        _wait_until_healthy(url, process)
        yield url, process
    finally:
        if process.poll() is None:
            process.kill()
        if process.stdout is not None and not process.stdout.closed:
            process.communicate()


def _wait_until_healthy(url: str, process: subprocess.Popen[str], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if httpx.get(f"{url}/health", trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass  # not listening yet
        if process.poll() is not None:
            raise AssertionError(f"the server ended with {process.returncode}: {process.communicate()[0]}")
        assert time.monotonic() < deadline, "the server did not answer /health"
        time.sleep(0.02)
