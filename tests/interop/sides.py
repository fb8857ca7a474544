"""Servers and clients of both packages as processes: ours with this interpreter, upstream's with that of ``.peer``."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from openenv.testing.processes import free_port
from support.live import LiveServer

__all__ = [
    "LINKS",
    "OURS",
    "UPSTREAM",
    "Driver",
    "Ended",
    "Link",
    "Mirror",
    "Servers",
    "Side",
    "mirror_server",
    "run_shared",
]

ROOT = Path(__file__).parents[2]
SHARED = Path(__file__).parent / "shared"
PEER = ROOT / ".peer" / "bin" / "python"
GENERIC = "openenv.core.generic_client:GenericEnvClient"


@dataclass(frozen=True)
class Side:
    """One implementation of the package."""

    name: str
    python: str

    def __str__(self) -> str:
        return self.name

    @property
    def is_ours(self) -> bool:
        return self.name == "ours"


OURS = Side("ours", sys.executable)
UPSTREAM = Side("upstream", str(PEER))


@dataclass(frozen=True)
class Link:
    """A client talking to a server. Further dialects get further links here."""

    client: Side
    server: Side

    def __str__(self) -> str:
        return f"{self.client}-client-{self.server}-server"


LINKS = [Link(OURS, UPSTREAM), Link(UPSTREAM, OURS), Link(OURS, OURS), Link(UPSTREAM, UPSTREAM)]


def need_peer() -> None:
    """Skip without ``.peer``; fail where it was promised."""
    if not (PEER.parent.parent / ".ready").exists():
        text = "the real openenv 0.10.0 is not set up: run `make peer`"
        if os.environ.get("OPENENV_PEER_REQUIRED"):
            pytest.fail(text)
        pytest.skip(text)


def run_shared(side: Side, script: str) -> Any:
    """Run a script of the shared folder with one side's package, and return the JSON that it prints."""
    need_peer()
    environment = dict(os.environ)
    if not side.is_ours:
        environment.pop("PYTHONPATH", None)  # ours may be on it
    done = subprocess.run(
        [side.python, script], cwd=SHARED, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MIRROR_", "OPENENV_"))}
    return {**kept, "PYTHONPATH": str(SHARED), "PYTHONWARNINGS": "ignore", **more}


# ---------------------------------------------------------------- servers


@dataclass
class Mirror:
    """A running server, and what its environments wrote down."""

    side: Side
    url: str
    log: Path
    process: subprocess.Popen[str] = field(repr=False)

    @property
    def ws(self) -> str:
        return LiveServer(self.url).ws

    @property
    def port(self) -> int:
        return LiveServer(self.url).port

    def events(self, event: str | None = None, **like: Any) -> list[dict[str, Any]]:
        """Events so far, of a kind, with these values."""
        try:
            lines = self.log.read_text().splitlines()
        except FileNotFoundError:
            return []
        found = [json.loads(line) for line in lines]
        return [
            one
            for one in found
            if event in (None, one["event"]) and all(one.get(name) == value for name, value in like.items())
        ]

    def wait_for(self, event: str, count: int = 1, **like: Any) -> list[dict[str, Any]]:
        """Wait until there are this many such events."""
        waiting = threading.Event()
        for _ in range(4000):
            if len(found := self.events(event, **like)) >= count:
                return found
            assert self.process.poll() is None, "the server has ended"
            waiting.wait(0.005)
        raise AssertionError(f"waited for {count} x {event} {like}; there was {self.events()}")

    def ran_on(self, mark: str) -> list[int]:
        """The environments on which a marked action ran, once for each time."""
        return [one["env_no"] for one in self.events("step", mark=mark)]

    def was_reset(self, env_no: int) -> bool:
        return bool(self.events("reset", env_no=env_no))


@contextmanager
def mirror_server(
    side: Side, directory: Path, app: str = "mirror_app:app", port: int | None = None, **settings: str
) -> Iterator[Mirror]:
    """Serve an app of the shared folder with one side's package."""
    need_peer()
    port = port or free_port()
    log = directory / f"{side}-{port}.jsonl"
    with log.with_suffix(".err").open("w") as errors:
        process = subprocess.Popen(
            [side.python, "-m", "uvicorn", app, "--host", "127.0.0.1", "--port", str(port), "--log-level", "warning"],
            env=_environment(MIRROR_LOG=str(log), **settings),
            cwd=SHARED,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            text=True,
        )
    try:
        mirror = Mirror(side, f"http://127.0.0.1:{port}", log, process)
        _wait_until_healthy(mirror)
        yield mirror
    finally:
        process.kill()
        process.wait()


def _wait_until_healthy(mirror: Mirror, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if httpx.get(f"{mirror.url}/health", trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass  # not listening yet
        errors = mirror.log.with_suffix(".err")
        assert mirror.process.poll() is None, f"the server has ended: {errors.read_text()}"
        assert time.monotonic() < deadline, f"the server does not answer: {errors.read_text()}"
        time.sleep(0.02)


Servers = Callable[..., Mirror]
"""A side, and an app if it is another than ``mirror_app:app``, to a running server."""

# ---------------------------------------------------------------- clients


@dataclass
class Ended:
    """How a call ended."""

    _value: Any = None
    error: dict[str, Any] | None = None

    @property
    def value(self) -> Any:
        """What it returned."""
        assert self.error is None, f"it raised {self.error}"
        return self._value

    @property
    def seen(self) -> dict[str, Any]:
        """The observation it returned."""
        observation: dict[str, Any] = self.value["observation"]
        return observation

    @property
    def raised(self) -> str:
        """Name of the exception type it raised; empty if it raised none."""
        return self.error["type"] if self.error else ""

    def is_a(self, name: str) -> bool:
        return self.error is not None and name in self.error["bases"]


class Driver:
    """A process with clients of one side: see ``shared/driver.py``.

    Args:
        side: whose clients.
        mode: ``async``, ``sync`` (calls in threads) or ``main`` (one by one, on the main thread).
        environ: further variables of the process.
    """

    def __init__(self, side: Side, mode: str = "async", environ: Mapping[str, str] | None = None) -> None:
        need_peer()
        self.side = side
        self._ids = itertools.count(1)
        self._waiting: dict[int, Future[Ended]] = {}
        self._clients: set[str] = set()
        self._process = subprocess.Popen(
            [side.python, "driver.py", f"--{mode}"],
            cwd=SHARED,
            env=_environment(**(environ or {})),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            self._waiting.pop(answer["id"]).set_result(Ended(answer.get("value"), answer.get("error")))
        for waiting in self._waiting.values():
            waiting.set_exception(AssertionError("the driver has ended"))

    def start(self, call: str, *args: Any, client: str = "a", **more: Any) -> Started:
        """Start a call."""
        number = next(self._ids)
        future: Future[Ended] = Future()
        self._waiting[number] = future
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": number, "client": client, "call": call, "args": args, **more}))
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return Started(self, number, future)

    def call(self, call: str, *args: Any, client: str = "a", **more: Any) -> Ended:
        """Make a call and wait for its end."""
        return self.start(call, *args, client=client, **more).end()

    def new(self, url: str, client: str = "a", kind: str = GENERIC, **kwargs: Any) -> None:
        """Make a client."""
        self._clients.add(client)
        _ = self.call("new", client=client, kind=kind, kwargs={"base_url": url, **kwargs}).value

    def reset(self, client: str = "a", **kwargs: Any) -> Ended:
        return self.call("reset", client=client, kwargs=kwargs)

    def step(self, op: str = "inc", arg: Any = None, *, mark: str | None = None, client: str = "a") -> Ended:
        return self.start_step(op, arg, mark=mark, client=client).end()

    def start_step(self, op: str = "inc", arg: Any = None, *, mark: str | None = None, client: str = "a") -> Started:
        action = {"op": op, "arg": arg, "metadata": {"mark": mark} if mark else {}}
        return self.start("step", action, client=client)

    def state(self, client: str = "a") -> Ended:
        return self.call("state", client=client)

    def forget(self) -> None:
        """Close all clients made so far, however well that goes."""
        for ending in [self.start("close", client=name) for name in self._clients]:
            ending.end()
        self._clients.clear()

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass


@dataclass
class Started:
    """A call that was started."""

    driver: Driver
    number: int
    future: Future[Ended]

    def end(self, timeout_s: float = 60.0) -> Ended:
        return self.future.result(timeout_s)

    def cancel(self) -> Ended:
        """Cancel it in the driver, and wait for its end."""
        _ = self.driver.call("cancel", self.number).value
        return self.end()
