"""``openenv serve``: what it finds, what it shows, and how it ends. Each test serves in a process of its own."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import httpx
import pytest

from openenv.cli._serving import prompt_protocol
from openenv.core.env_server.http_server import create_app
from openenv.core.exceptions import CapacityError, SessionLostError
from openenv.core.generic_client import GenericEnvClient
from openenv.core.sync_client import SyncEnvClient
from openenv.testing import FaultProxy
from support.envs import CountAction, CountObservation, fresh_env
from support.live import serve

ROOT = Path(__file__).parents[2]
SERVE = [sys.executable, "-m", "openenv.cli", "serve"]

APP = """
import os, time
from openenv.core.env_server import Action, Environment, Observation, State, create_app

class Bell(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = {concurrent}

    def reset(self, seed=None, episode_id=None, **kwargs):
        told = os.environ.get("ENABLE_WEB_INTERFACE"), os.environ.get("ENV_README_PATH")
        return Observation(metadata={{"version": "{version}", "told": told}})

    def step(self, action, timeout_s=None, **kwargs):
        time.sleep(action.metadata.get("sleep", 0))
        return Observation(reward=1.0)

    @property
    def state(self):
        return State()

    def close(self):
        os.write(1, b"rang\\n")

app = create_app(Bell, Action, Observation, max_concurrent_envs=int(os.environ.get("MAX_CONCURRENT_ENVS", "1")))
other = object()
"""


class Served:
    """A running ``openenv serve``, its URL, and what it writes."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._lines: Queue[str | None] = Queue()
        assert process.stdout is not None
        self.url = process.stdout.readline().strip()
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self, url: str = "", **options: object) -> GenericEnvClient:
        return GenericEnvClient(url or self.url, **options)  # type: ignore[arg-type]

    def read_out(self) -> None:
        """Wait until nothing is read any more, before the pipes are closed."""
        self._reader.join(60)

    def until(self, words: str) -> list[str]:
        """What it says on stderr up to a line with these words, which is waited for."""
        seen: list[str] = []
        while not seen or words not in seen[-1]:
            line = self._lines.get(timeout=60)
            assert line is not None, f"it never said {words!r} but\n" + "\n".join(seen)
            seen.append(line)
        return seen

    def end(self, number: int) -> tuple[int, str]:
        """Send it a signal; returns exit code, and the rest of stdout."""
        self.process.send_signal(number)
        assert self.process.stdout is not None
        return self.process.wait(60), self.process.stdout.read()


@contextmanager
def served(*arguments: str, cwd: Path, **environ: str) -> Iterator[Served]:
    process = subprocess.Popen(
        [*SERVE, "--port", "0", *arguments],
        cwd=cwd,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        running = Served(process)
        try:
            yield running
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a reloader's child would keep the pipes open
            running.read_out()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with an environment and its manifest."""
    write(tmp_path)
    (tmp_path / "openenv.yaml").write_text("spec_version: 1\nname: bell\napp: bell_app:app\n")
    return tmp_path


def write(folder: Path, *, version: str = "1", concurrent: bool = True) -> None:
    (folder / "bell_app.py").write_text(APP.format(version=version, concurrent=concurrent))


def version(client: SyncEnvClient[Any, Any, Any]) -> str:
    """Which version of the application answers."""
    metadata = client.reset().metadata
    assert metadata is not None
    return str(metadata["version"])


def refused(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*SERVE, *arguments], cwd=cwd, env={**os.environ, **environ}, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == ""
    return done


def test_every_thing_that_happens_to_a_session_is_a_line(package: Path) -> None:
    with served("--capacity", "2", cwd=package) as server:
        assert server.url.startswith("http://127.0.0.1:")
        with FaultProxy("127.0.0.1", server.port) as proxy:
            cut = f"http://127.0.0.1:{proxy.port}"
            with server.client(cut).sync() as client:
                client.reset()
                client.step({})
                client.step({})
                client.reset()
                proxy.cut()
                server.until("leased: its connection is gone")
                client.step({})
            lines = server.until("closed: 1 steps (")
            assert any(line.endswith(" resumed") for line in lines)
            plain = server.client(cut, resume=False).sync()
            plain.reset()
            proxy.cut()
            lines = server.until("lost (dropped)")
            plain.close()
    assert " reset in " in "".join(lines)


def test_a_reset_sums_up_the_episode_before_it(package: Path) -> None:
    with served(cwd=package) as server, server.client().sync() as client:
        client.reset()
        client.step({"metadata": {"sleep": 0.02}})
        client.step({})
        client.reset()
        line = server.until("episode 2")[-1]
        assert "; episode 1 had 2 steps (" in line
        longest = float(line.rpartition("at most ")[2].partition(" ms")[0])
        assert longest >= 20


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_drains_and_ends_with_0(package: Path, number: int) -> None:
    with served("--capacity", "3", cwd=package) as server:
        players = [server.client(resume=False).sync() for _ in range(3)]
        for player in players:
            player.reset()
        code, out = server.end(number)
        assert (code, out) == (0, "rang\n" * 3)
        for player in players:
            with pytest.raises(SessionLostError):
                player.step({})
            player.close()
        lines = server.until("draining")
    assert "Traceback" not in "\n".join(lines)


def test_capacity_is_what_the_option_says_for_every_application(package: Path) -> None:
    source = (package / "bell_app.py").read_text()
    fixed = source.replace('int(os.environ.get("MAX_CONCURRENT_ENVS", "1"))', "5")
    (package / "bell_app.py").write_text(fixed)
    with served("--capacity", "1", cwd=package) as server, server.client().sync() as first:
        first.reset()
        second = server.client(connect_timeout_s=0.2).sync()
        with pytest.raises(CapacityError) as caught:
            second.reset()
        second.close()
        assert caught.value.max == 1


def test_it_serves_a_package_from_anywhere_and_an_application_by_name(package: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for target, cwd in (
        (str(package), elsewhere),
        (str(package / "openenv.yaml"), elsewhere),
        ("bell_app:app", package),
    ):
        with served(target, cwd=cwd) as server, server.client().sync() as client:
            assert version(client) == "1"


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="there is no address ::1")
def test_it_serves_an_application_that_is_not_ours_and_on_another_address(tmp_path: Path) -> None:
    code = """
    async def app(scope, receive, send):
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"moo"})
    """
    (tmp_path / "cow.py").write_text(textwrap.dedent(code))
    with served("cow:app", "--host", "::1", cwd=tmp_path) as server:
        assert server.url.startswith("http://[::1]:")
        assert httpx.get(server.url, trust_env=False).text == "moo"
        assert server.end(signal.SIGTERM)[0] == 0


@pytest.mark.parametrize(("option", "web"), [("--web", "true"), ("--no-web", "false"), ("--quiet", None)])
def test_applications_are_told_of_the_page_and_their_readme(option: str, web: str | None, package: Path) -> None:
    (package / "README.md").write_text("# Bell\n")
    unset = {"ENABLE_WEB_INTERFACE": "yes"} if web else {}
    with served(option, cwd=package, **unset) as server, server.client().sync() as client:
        metadata = client.reset().metadata
    assert metadata is not None
    assert metadata["told"] == [web, str(package / "README.md")]


def test_a_change_starts_it_anew_on_the_same_port(package: Path) -> None:
    with served("--reload", cwd=package, OPENENV_DRAIN_GRACE_S="1") as server:
        with server.client().sync() as client:
            assert version(client) == "1"
        write(package, version="2")
        assert server.process.stdout is not None
        assert server.process.stdout.readline() == "rang\n"
        assert server.process.stdout.readline().strip() == server.url  # it answers again
        with server.client().sync() as client:
            assert version(client) == "2"
        assert server.end(signal.SIGINT)[0] == 0


def test_on_a_terminal_the_sessions_are_a_table(package: Path) -> None:
    control, terminal = pty.openpty()
    process = subprocess.Popen(
        [*SERVE, "--port", "0", "--capacity", "4"],
        cwd=package,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "30"},
        stdout=subprocess.PIPE,
        stderr=terminal,
        text=True,
        start_new_session=True,
    )
    os.close(terminal)
    shown = ""
    with process, os.fdopen(control, "rb", buffering=0) as screen:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with GenericEnvClient(url).sync() as client:
            client.reset()
            client.step({})
            while "at most" not in shown:
                shown += screen.read(4096).decode()
        process.send_signal(signal.SIGINT)
        try:
            while chunk := screen.read(4096):
                shown += chunk.decode()
        except OSError:
            pass  # the other end of the terminal is gone
        assert process.wait(60) == 0
    assert f"bell at {url}   1 of 4 sessions" in shown
    for title in ("session", "status", "episode", "step time", "age"):
        assert title in shown


def test_a_connection_that_says_nothing_is_closed_and_a_session_is_not() -> None:
    app = create_app(fresh_env(), CountAction, CountObservation)
    with serve(app, http=prompt_protocol(5)) as url, GenericEnvClient(url).sync() as client, ExitStack() as stack:
        client.reset()
        silent = [stack.enter_context(socket.create_connection(("127.0.0.1", url.port), timeout=60)) for _ in range(2)]
        silent[1].sendall(b"GET /ws HTTP/1.1\r\nHost: localhost\r\n")  # and not a word more
        for one in silent:
            assert one.recv(1) == b""
        client.step({"op": "inc"})  # its socket is older than these
        session = client.async_client.session
        assert session is not None
        assert (session.number, session.resumes) == (1, 0)


# ---------------------------------------------------------------- refusals


def test_a_taken_port_is_told(package: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = refused("--port", str(taken.getsockname()[1]), cwd=package)
    assert done.returncode == 1
    assert "Address already in use" in done.stderr
    assert "--port 0" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "neither a folder nor module:app"),
        (["empty"], "there is no openenv.yaml in"),
        (["bell_app:missing"], "the module bell_app has no missing"),
        (["--log-level", "loud"], "debug, info, warning or error"),
        (["no_app"], "it needs a line app: package.module:name"),
    ],
)
def test_targets_that_cannot_be_served_are_told(arguments: list[str], words: str, package: Path) -> None:
    (package / "empty").mkdir()
    (package / "no_app").mkdir()
    (package / "no_app" / "openenv.yaml").write_text("name: x\n")
    done = refused("--port", "0", *arguments, cwd=package)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_the_environment_is_used_if_it_is_one(package: Path) -> None:
    done = refused(cwd=package, PORT="many")
    assert (done.returncode, "PORT is 'many'" in done.stderr) == (2, True)


def test_a_module_that_raises_is_shown_with_its_traceback(package: Path) -> None:
    (package / "bell_app.py").write_text("import math\nmath.sqrt(-1)\n")
    done = refused("--port", "0", cwd=package)
    assert done.returncode == 1
    assert "bell_app.py" in done.stderr
    assert "ValueError" in done.stderr
    assert done.stderr.endswith("openenv serve: bell_app:app cannot be imported: see above\n")
    assert "openenv/cli" not in done.stderr.partition("bell_app.py")[2]


@pytest.mark.parametrize("fixed", [True, False])
def test_more_sessions_than_the_class_allows_are_refused(fixed: bool, package: Path) -> None:
    write(package, concurrent=False)
    source = (package / "bell_app.py").read_text()
    (package / "bell_app.py").write_text(
        source.replace('int(os.environ.get("MAX_CONCURRENT_ENVS", "1"))', "1" if fixed else "2")
    )
    done = refused("--port", "0", "--capacity", "2", cwd=package)
    assert done.returncode == 2
    assert "SUPPORTS_CONCURRENT_SESSIONS" in done.stderr
