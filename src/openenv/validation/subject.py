"""What is validated: a server that runs somewhere, or one that is started here for an application and can be started
anew. Nothing here waits for ever.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import httpx

from openenv._package import AppSource
from openenv.core.generic_client import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient
from openenv.core.sync_client import SyncEnvClient
from openenv.validation.report import NotValidated

__all__ = ["DidNotStart", "Probe", "Server"]

_POLL_S = 0.05


class DidNotStart(Exception):
    """A server did not begin to answer; the text says why."""


class Server:
    """A server that can be reached.

    Args:
        url: its base URL.
        timeout_s: seconds that any answer may take.
        token: what it asks for as ``Authorization: Bearer``.
    """

    def __init__(self, url: str, timeout_s: float, token: str | None = None) -> None:
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        self._token = token

    def client(self) -> SyncEnvClient[Any, Any, Any]:
        """A client of it that takes a lost connection for what it is."""
        client: SyncEnvClient[Any, Any, Any] = self._made(GenericEnvClient, resume=False)
        return client

    def tool_client(self) -> Any:
        """A client of its tools."""
        return self._made(MCPToolClient)

    def _made(self, client: Callable[..., Any], **options: Any) -> Any:
        wait = self.timeout_s
        return client(self.url, connect_timeout_s=wait, message_timeout_s=wait, token=self._token, **options).sync()

    def ask(self, route: str) -> Any:
        """What it answers to a GET.

        Raises:
            NotValidated: it does not answer, or not with JSON.
        """
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        trusts = not self.url.startswith(("http://127.", "http://localhost", "http://[::1]"))
        try:
            with httpx.Client(timeout=self.timeout_s, trust_env=trusts, follow_redirects=True) as client:
                answer = client.get(f"{self.url}{route}", headers=headers)
                answer.raise_for_status()
                return answer.json()
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            raise NotValidated(f"{self.url}{route} does not answer as an environment server: {error}") from error

    def notes(self) -> list[dict[str, Any]]:
        """What was noted of its environments; nothing, where it is not ours to look into."""
        return []


class Probe(Server):
    """A server of an application in a process of its own; see `openenv.validation.probe`. A context manager.

    Args:
        source: the application.
        timeout_s: seconds that any answer may take.
        start_s: seconds that its start may take.
        options: ``single``, ``construct``.
    """

    def __init__(self, source: AppSource, timeout_s: float, start_s: float, *options: str) -> None:
        super().__init__("http://127.0.0.1:0", timeout_s)
        self._source = source
        self._start_s = start_s
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: BinaryIO | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="openenv-validate-")

    @property
    def _log(self) -> Path:
        return Path(self._folder.name) / "notes.jsonl"

    @property
    def output(self) -> str:
        """What it has written."""
        return (Path(self._folder.name) / "output").read_text(encoding="utf-8", errors="replace")

    def __enter__(self) -> Self:
        """Start it.

        Raises:
            DidNotStart: it ended, or did not answer in time.
        """
        try:
            self._start()
        except BaseException:  # raised on; a Ctrl-C must not leave the process behind
            self._end()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    def _start(self) -> None:
        command = [sys.executable, "-m", "openenv.validation.probe", self._source.reference]
        environ = {**os.environ, "OPENENV_SERVER_TOKEN": "", "ENABLE_WEB_INTERFACE": "", "OPENENV_MODE": "simulation"}
        environ["PYTHONHASHSEED"] = "random"  # what hangs on the order of a set is not repeatable elsewhere either
        ours, its = os.pipe()
        self._lifeline = os.fdopen(its, "wb", buffering=0)
        with (Path(self._folder.name) / "output").open("wb") as output, os.fdopen(ours, "rb") as end:
            self._process = subprocess.Popen(
                [*command, str(self._source.folder), str(self._log), str(end.fileno()), *self._options],
                cwd=self._source.folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(end.fileno(),),
            )
        for note in self._until(self._start_s, ("listens", "failed")):
            if note["event"] == "failed":
                raise DidNotStart(f"the application cannot be imported: {note['text']}")
            self.url = f"http://127.0.0.1:{note['port']}"
        for _ in self._polls(self._start_s):
            try:
                self.ask("/health")
                return
            except NotValidated as error:
                if not isinstance(error.__cause__, httpx.TransportError):  # it answers, and not as it should
                    raise
        raise DidNotStart(f"the server does not answer {self.url}/health")

    def _until(self, seconds: float, events: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        for _ in self._polls(seconds):
            found = [note for note in self.notes() if note["event"] in events]
            if found:
                yield found[0]
                return
        raise DidNotStart(f"{self._source.reference} does not listen after {seconds:g} s: its import does not end")

    def _polls(self, seconds: float) -> Iterator[None]:
        """Go round until the time is over.

        Raises:
            DidNotStart: the process ended.
        """
        assert self._process is not None, "it was started"
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            yield
            if self._process.poll() is not None and not any(note["event"] == "failed" for note in self.notes()):
                last = next((line for line in reversed(self.output.splitlines()) if line.strip()), "")
                raise DidNotStart(f"the server ended with code {self._process.returncode}: {last}")
            time.sleep(_POLL_S)

    def notes(self) -> list[dict[str, Any]]:
        """What was noted of its environments so far."""
        try:
            text = self._log.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def waited(self, wanted: Callable[[list[dict[str, Any]]], bool]) -> bool:
        """Wait until the notes are as wanted, for as long as an answer may take. Returns whether they are."""
        end = time.monotonic() + self.timeout_s
        while not wanted(self.notes()):
            if time.monotonic() > end:
                return False
            time.sleep(_POLL_S)
        return True

    def _end(self) -> None:
        """Kill it and whatever it started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._lifeline is not None:
            self._lifeline.close()
        self._folder.cleanup()
