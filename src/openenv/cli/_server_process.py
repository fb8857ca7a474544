"""A server in a process of its own: started on a port, waited for, and always ended."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["ServerDied", "ServerProcess", "choose_port", "running_server"]

_POLL_S = 0.05


class ServerDied(Exception):
    """The server process ended, or never answered."""


class ServerProcess:
    """A running server.

    Attributes:
        port: where it listens on 127.0.0.1.
    """

    def __init__(self, process: subprocess.Popen[bytes], port: int, stderr: Path) -> None:
        self.port = port
        self._process = process
        self._stderr = stderr

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def last_words(self) -> str:
        """The last line that it wrote to stderr."""
        lines = self._stderr.read_text(encoding="utf-8", errors="replace").split("\n")
        said = [line.strip() for line in lines if line.strip()]
        return said[-1] if said else f"it said nothing, exit code {self._process.poll()}"

    def wait_until_ready(self, timeout_s: float) -> None:
        """Return once it answers ``GET /health``.

        Args:
            timeout_s: seconds to wait.

        Raises:
            ServerDied: it ended, or did not answer in time.
        """
        deadline = time.monotonic() + timeout_s
        while not self._is_healthy():
            if not self.alive:
                raise ServerDied(f"The server ended before it was ready: {self.last_words()}")
            if time.monotonic() > deadline:
                raise ServerDied(f"The server did not answer within {timeout_s:g} s: {self.last_words()}")
            time.sleep(_POLL_S)

    def stop(self, grace_s: float = 5.0) -> None:
        """End it: politely, then by force after ``grace_s`` seconds."""
        self._process.terminate()
        try:
            self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2.0)
        with contextlib.closing(connection):
            try:
                connection.request("GET", "/health")
                return connection.getresponse().status == 200
            except (OSError, http.client.HTTPException):
                return False


def choose_port(wanted: int | None) -> int:
    """A port of 127.0.0.1 that can be listened on.

    Args:
        wanted: the port to check; None takes a free one.

    Raises:
        OSError: the wanted port cannot be listened on.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", wanted or 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def running_server(
    app: str, port: int, environ: Mapping[str, str], *, ready_timeout_s: float = 20.0
) -> Iterator[ServerProcess]:
    """Serve an ASGI application in a process of its own, and end it at the end of the block.

    Args:
        app: the application, as ``package.module:name``.
        port: where to listen on 127.0.0.1.
        environ: variables beside those of this process.
        ready_timeout_s: seconds it may take to answer.

    Raises:
        ServerDied: it did not come up.
    """
    command = [sys.executable, "-m", "uvicorn", app, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    with tempfile.NamedTemporaryFile(prefix="openenv-server-") as stderr:
        process = subprocess.Popen(
            [*command, "--log-level", "warning"],
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,  # a Ctrl-C is for us alone: we end it
        )
        server = ServerProcess(process, port, Path(stderr.name))
        try:
            server.wait_until_ready(ready_timeout_s)
            yield server
        finally:
            server.stop()
