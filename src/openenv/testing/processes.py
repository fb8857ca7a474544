"""Servers and proxies in processes of their own, for tests in which nobody shares an interpreter."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from openenv.testing.controls import ProxyControls

__all__ = ["ProcessDied", "ProxyProcess", "ServerProcess", "free_port"]

_POLL_S = 0.02
_STOP_S = 10.0


class ProcessDied(Exception):
    """A process ended, or never answered; the text has its last words."""


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


class ProxyProcess(ProxyControls):
    """A `FaultProxy` in a process of its own, with the same methods. A context manager.

    Args:
        target_host: where the server listens.
        target_port: its port.
    """

    def __init__(self, target_host: str, target_port: int) -> None:
        command = [sys.executable, "-m", "openenv.testing.proxy", "--target", f"{target_host}:{target_port}"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self._lock = threading.Lock()
        self.host, self._port = self._address(self._line())

    def _address(self, url: str) -> tuple[str, int]:
        host, _, port = url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().rstrip("\n")
        if not line:
            raise ProcessDied(f"the proxy process ended with code {self._process.wait()}")
        return line

    @property
    def port(self) -> int:
        return self._port

    def _do(self, command: str, *arguments: str | float | None) -> int:
        words = [command, *("-" if one is None else str(one) for one in arguments)]
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(" ".join(words) + "\n")
            self._process.stdin.flush()
            verdict, _, rest = self._line().partition(" ")
        if verdict == "ok":
            return int(rest)
        kind, _, text = rest.partition(" ")
        raise {"ValueError": ValueError, "TimeoutError": TimeoutError}.get(kind, OSError)(text)

    def close(self) -> None:
        """Reset every connection and end the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class ServerProcess:
    """An environment server in a process of its own, on a port of 127.0.0.1. A context manager.

    Args:
        app: what uvicorn serves, as ``package.module:name``.
        port: where to listen; a free one by default.
        environ: variables beside those of this process.
        arguments: further arguments for uvicorn.
        python: the interpreter; the one of this process by default.
        ready_timeout_s: seconds it may take to answer ``GET /health``.

    Attributes:
        url: base URL for a client.
        port: where it listens; the same after `restart`.
    """

    def __init__(
        self,
        app: str,
        *,
        port: int | None = None,
        environ: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        python: str | os.PathLike[str] | None = None,
        ready_timeout_s: float = 60.0,
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [str(python or sys.executable), "-m", "uvicorn", app, "--host", "127.0.0.1"]
        self._command += ["--port", str(self.port), "--log-level", "warning", *arguments]
        self._environ = {**os.environ, **(environ or {})}
        self._ready_timeout_s = ready_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._output: Any = None

    def start(self) -> Self:
        """Start it, and return once it answers.

        Raises:
            ProcessDied: it ended, or did not answer in time.
            RuntimeError: it runs already.
        """
        if self.alive:
            raise RuntimeError("this server is running already")
        if self._output is None:
            self._output = tempfile.NamedTemporaryFile(prefix="openenv-server-", suffix=".log")  # noqa: SIM115
        self._process = subprocess.Popen(
            self._command,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise
        return self

    @property
    def pid(self) -> int:
        """The process id; 0 before the start."""
        return self._process.pid if self._process is not None else 0

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def output(self) -> str:
        """What it has written so far, on both its channels."""
        return "" if self._output is None else Path(self._output.name).read_text(encoding="utf-8", errors="replace")

    def stop(self, grace_s: float = _STOP_S) -> int:
        """Ask it to end (SIGTERM), by force after ``grace_s`` seconds. Returns the exit code."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            return self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """End it at once (SIGKILL). Returns the exit code."""
        if self._process is None:
            return 0
        self._process.kill()
        return self._process.wait()

    def terminate(self) -> None:
        """Send SIGTERM and do not wait."""
        os.kill(self.pid, signal.SIGTERM)

    def wait(self, timeout_s: float) -> int:
        """Wait for its end; returns the exit code.

        Raises:
            TimeoutError: it still runs.
        """
        assert self._process is not None, "it was not started"
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the server still runs after {timeout_s:g} s") from None

    def restart(self) -> None:
        """Kill it, and start it anew on the same port."""
        self.kill()
        self.start()

    def suspend(self) -> None:
        """Stop it where it is (SIGSTOP): its sockets stay open and nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def __enter__(self) -> Self:
        return self if self.alive else self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.alive:
            self.resume()
            self.stop()
        if self._output is not None:
            self._output.close()
            self._output = None

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._ready_timeout_s
        while not self._is_healthy():
            if not self.alive:
                raise ProcessDied(f"the server ended before it was ready: {self.output[-2000:]}")
            if time.monotonic() > deadline:
                raise ProcessDied(f"no answer within {self._ready_timeout_s:g} s: {self.output[-2000:]}")
            time.sleep(_POLL_S)

    def _is_healthy(self) -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{self.url}/health", timeout=2.0) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False
