"""`UVProvider`: an environment package run with ``uv``, in an environment of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Self

from openenv.core.containers.runtime.base import RuntimeProvider
from openenv.core.containers.runtime.cleanup import Leftover
from openenv.core.containers.runtime.readiness import free_port, wait_until_healthy
from openenv.core.exceptions import ProviderError, ProviderTimeoutError

__all__ = ["UVProvider"]

GIT_URL_PREFIX = "git+"

_TERMINATE_S = 10.0
_LOG_BYTES = 4000
_KILL_GROUP = (
    'kill -s TERM -- "-$0" 2>/dev/null; n=0; '
    'while kill -s 0 -- "-$0" 2>/dev/null && [ "$n" -lt 100 ]; do sleep 0.1; n=$((n+1)); done; '
    'kill -s KILL -- "-$0" 2>/dev/null; test -z "$1" || rm -rf -- "$1"'
)


class UVProvider(RuntimeProvider):
    """Runs the server of a package with ``uv run --isolated``: its dependencies are installed for it alone.

    As a context manager it is ready when the block begins. The server is stopped by `stop`, when it does not become
    ready there, and when this process ends, however it ends.

    Args:
        project_path: folder of the package, with its ``pyproject.toml``; or ``git+https://...``, which is cloned.
        app: the application, as uvicorn names it.
        host: address to listen on; ``0.0.0.0`` for all interfaces.
        reload: restart the server when its files change.
        env_vars: variables for the server's environment.
        context_timeout_s: seconds that cloning, and then becoming ready, may take. The first start of a package
            installs its dependencies, so allow for a download.

    Raises:
        ProviderError: there is no ``uv``.
    """

    def __init__(
        self,
        *,
        project_path: str,
        app: str = "server.app:app",
        host: str = "127.0.0.1",
        reload: bool = False,
        env_vars: Mapping[str, str] | None = None,
        context_timeout_s: float = 60.0,
    ) -> None:
        _check_uv_installed()
        remote = str(project_path).startswith(GIT_URL_PREFIX)
        self.project_path = project_path if remote else os.path.abspath(project_path)
        self.app = app
        self.host = host
        self.reload = reload
        self.env_vars = env_vars
        self.context_timeout_s = context_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._base_url: str | None = None
        self._clone_dir: str | None = None
        self._log: IO[bytes] | None = None
        self._leftover: Leftover | None = None

    def start(
        self,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        workers: int = 1,
        **_: Any,
    ) -> str:
        """Start the server.

        Args:
            port: port to listen on; by default the system chooses.
            env_vars: variables for the server's environment, besides those of the constructor.
            workers: processes that serve. Sessions over HTTP, and resuming, need one.

        Returns:
            Its address. It may not answer yet: see `wait_for_ready`.

        Raises:
            ProviderError: it runs already, or it could not be started; nothing is left.
        """
        if self._process is not None and self._process.poll() is None:
            raise ProviderError("UVProvider is already running; stop it first.")
        self.stop()  # what is left of one that ended by itself
        port = port or free_port()
        try:
            self._launch(port, workers, {**os.environ, **(self.env_vars or {}), **(env_vars or {})})
        except BaseException:  # raised on; nothing is left running
            self.stop()
            raise
        reached = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        self._base_url = f"http://{reached}:{port}"
        return self._base_url

    def _launch(self, port: int, workers: int, environment: Mapping[str, str]) -> None:
        project = self.project_path
        if project.startswith(GIT_URL_PREFIX):
            project = self._clone_dir = _clone_git_project(project, self.context_timeout_s)
        command = ["uv", "run", "--isolated", "--project", project, "--", "uvicorn", self.app]
        command += ["--host", self.host, "--port", str(port), "--workers", str(workers)]
        command += ["--reload"] if self.reload else []
        self._log = tempfile.TemporaryFile(prefix="openenv-uv-")  # noqa: SIM115 - as long as the server; it has no name to leave behind
        try:
            self._process = subprocess.Popen(
                command,
                env=dict(environment),
                cwd=project if Path(project).is_dir() else None,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C is for this program, which then stops the server in good order
            )
        except OSError as error:
            raise ProviderError(f"`uv run` could not be started: {error}") from error
        if isinstance(self._process.pid, int):
            group = str(self._process.pid)
            self._leftover = Leftover(self.stop, ["sh", "-c", _KILL_GROUP, group, self._clone_dir or ""])

    def wait_for_ready(self, timeout_s: float | None = None) -> None:
        """Wait until ``/health`` answers.

        Args:
            timeout_s: seconds to wait; by default ``context_timeout_s``.

        Raises:
            ProviderTimeoutError: it did not, in time; what the server wrote is in the error. It is not stopped.
            ProviderError: the server ended; what it wrote is in the error.
        """
        wait = self.context_timeout_s if timeout_s is None else timeout_s
        self._check_running()
        try:
            _poll_health(f"{self.base_url}/health", timeout_s=wait, check=self._check_running)
        except ProviderTimeoutError as error:
            raise ProviderTimeoutError(str(error), logs=self.logs()) from None

    def _check_running(self) -> None:
        code = None if self._process is None else self._process.poll()
        if code is not None:
            logs = self.logs()
            self.stop()
            raise ProviderError(f"The server ended while it was starting, with exit code {code}.", logs=logs)

    def stop(self) -> None:
        """Stop the server and all its processes: politely, and after ten seconds by force."""
        process, self._process = self._process, None
        self._base_url = None
        try:
            if process is not None:
                _end_group(process)
        finally:
            if self._log is not None:
                self._log.close()
                self._log = None
            if self._clone_dir is not None:
                shutil.rmtree(self._clone_dir, ignore_errors=True)
                self._clone_dir = None
            leftover, self._leftover = self._leftover, None
            if leftover is not None:
                leftover.settled()

    def logs(self) -> str:
        """The end of what ``uv`` and the server wrote."""
        if self._log is None or not hasattr(os, "pread"):
            return ""
        handle = self._log.fileno()
        start = max(0, os.fstat(handle).st_size - _LOG_BYTES)
        return os.pread(handle, _LOG_BYTES, start).decode(errors="replace").strip()  # the server goes on writing

    @property
    def base_url(self) -> str:
        """The server's address.

        Raises:
            ProviderError: it was not started.
        """
        if self._base_url is None:
            raise ProviderError("UVProvider has not been started")
        return self._base_url

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            self.wait_for_ready()
        except BaseException:  # raised on; nothing is left running
            self.stop()
            raise
        return self


def _end_group(process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _TERMINATE_S
    left = _signal_group(process, signal.SIGTERM)
    while left and time.monotonic() < end:
        time.sleep(0.02)
        process.poll()
        left = _signal_group(process, 0)  # its leader may have left others behind
    if left:
        _signal_group(process, signal.SIGKILL)
    process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: int) -> bool:
    """Signal a process and its children; False if nobody is left. Where there are no groups, the process alone."""
    try:
        if hasattr(os, "killpg"):
            os.killpg(process.pid, number)
        elif process.poll() is None:
            process.terminate()
        else:
            return False
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _check_uv_installed() -> None:
    if shutil.which("uv") is None:
        raise ProviderError("`uv` is not on PATH. Install it with: pip install uv")


def _clone_git_project(git_url: str, timeout_s: float) -> str:
    """Clone ``git+<url>`` into a new folder, the latest commit only, and return the folder."""
    url = git_url.removeprefix(GIT_URL_PREFIX)
    shown = re.sub(r"//[^/@]*@", "//", url)
    folder = tempfile.mkdtemp(prefix="openenv-uv-clone-")
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    command = ["git", "clone", "--quiet", "--depth", "1", "--", url, folder]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=environment, check=False)
        if done.returncode != 0:
            raise ProviderError(f"{shown} could not be cloned: {done.stderr.replace(url, shown).strip()}")
    except BaseException as error:  # raised on; nothing is left on the disk
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, FileNotFoundError):
            raise ProviderError(f"`git` is not on PATH; it is needed to clone {shown}.") from error
        if isinstance(error, subprocess.TimeoutExpired):
            raise ProviderTimeoutError(f"Cloning {shown} took longer than {timeout_s:g} s.") from None
        raise
    return folder


def _poll_health(health_url: str, timeout_s: float, check: Callable[[], object] | None = None) -> None:
    wait_until_healthy(health_url, timeout_s, check)
