"""`UVProvider`: with the real ``uv`` where it is there, and with a small one of our own for what goes wrong."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from openenv import EnvClient
from openenv.core.containers.runtime import UVProvider
from openenv.core.containers.runtime.uv_provider import _clone_git_project
from openenv.core.exceptions import ProviderError, ProviderTimeoutError
from support.clients import CountClient
from support.envs import CountAction
from support.live import TESTS

ROOT = TESTS.parent
UV = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))

SMALL_UV = f"""#!/bin/sh
while [ "$1" != -- ]; do shift; done
shift
exec {sys.executable} -m "$@"
"""


@pytest.fixture
def small_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A ``uv`` that runs the command with this interpreter."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "uv").write_text(SMALL_UV)
    (tools / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]))
    return tools / "uv"


def provider(folder: Path, app: str = "support.count_app:app", **settings: object) -> UVProvider:
    return UVProvider(project_path=str(folder), app=app, **settings)  # type: ignore[arg-type]


def alive(pid: int) -> bool:
    """Whether a process, or one of its group, is there and no zombie."""
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    try:
        return not stat.parents[1].exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:  # its leader is gone, its children are not
        return True


def wait_until_gone(pid: int, timeout_s: float = 30.0) -> None:
    end = time.monotonic() + timeout_s
    while alive(pid):
        assert time.monotonic() < end, f"process {pid} is still there"
        time.sleep(0.02)


# ------------------------------------------------------------------------------- the real one


@pytest.mark.timeout(300)
@pytest.mark.skipif(UV is None, reason="there is no uv: pip install uv")
def test_the_sudoku_package_from_a_folder_in_a_fresh_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "sudoku_env"
    shutil.copytree(ROOT / "envs" / "sudoku_env", project)
    with (project / "pyproject.toml").open("a") as file:  # this openenv, which no index has
        file.write(f'\n[tool.uv.sources]\nopenenv = {{ path = "{ROOT}", editable = true }}\n')
    assert UV is not None
    monkeypatch.setenv("PATH", f"{Path(UV).parent}{os.pathsep}{os.environ['PATH']}")
    for name in ("PYTHONPATH", "VIRTUAL_ENV"):
        monkeypatch.delenv(name, raising=False)
    server = provider(project, "sudoku_env.server.app:app", context_timeout_s=240.0)
    server.start()
    pid = server._process.pid  # type: ignore[union-attr]
    try:
        server.wait_for_ready()
        with EnvClient(base_url=server.base_url).sync() as client:
            assert client.reset(seed=1, size=4).observation["size"] == 4
            board = client.step({"row": 1, "col": 1, "value": 1})
            assert board.observation["board"] is not None
        python = subprocess.run(["ps", "-o", "command", "-g", str(pid)], capture_output=True, text=True, check=False)
        assert sys.executable not in python.stdout  # another environment than this one
    except ProviderError as error:
        if "dns error" in error.logs or "Failed to fetch" in error.logs:
            pytest.skip("no package index can be reached")
        raise
    finally:
        server.stop()
    wait_until_gone(pid)
    assert server._log is None


# -------------------------------------------------------------------------------- its command


def test_the_command_and_its_environment(tmp_path: Path, small_uv: Path) -> None:
    told = tmp_path / "told"
    small_uv.write_text(f'#!/bin/sh\necho "$@" "$A" "$B" "$PWD" > {told}.part && mv {told}.part {told}; sleep 600\n')
    server = provider(tmp_path, "pkg:app", host="0.0.0.0", reload=True, env_vars={"A": "1", "B": "1"})
    assert server.start(port=45680, env_vars={"B": "2"}, workers=2) == server.base_url == "http://127.0.0.1:45680"
    end = time.monotonic() + 30
    while not told.exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    assert told.read_text().split() == [
        *("run", "--isolated", "--project", str(tmp_path), "--", "uvicorn", "pkg:app"),
        *("--host", "0.0.0.0", "--port", "45680", "--workers", "2", "--reload", "1", "2", str(tmp_path)),
    ]
    pid = server._process.pid  # type: ignore[union-attr]
    with pytest.raises(ProviderError, match="already running"):
        server.start()
    server.stop()
    server.stop()
    wait_until_gone(pid)
    with pytest.raises(ProviderError, match="has not been started"):
        server.base_url


def test_there_is_no_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="pip install uv"):
        provider(tmp_path)


def test_a_relative_folder_is_made_absolute(small_uv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(small_uv.parent)
    assert provider(Path("env")).project_path == str(small_uv.parent / "env")
    assert UVProvider(project_path="git+https://x.example/y").project_path == "git+https://x.example/y"


# ------------------------------------------------------------------------- starts that go wrong


def test_a_server_that_ends_is_told_with_its_words(tmp_path: Path, small_uv: Path) -> None:
    server = provider(tmp_path, "no_such_module:app")
    server.start()
    with pytest.raises(ProviderError, match=r"(?s)exit code [1-9].*no_such_module") as caught:
        server.wait_for_ready(60)
    assert "no_such_module" in caught.value.logs
    server.start()  # and can be started again
    server.stop()


def test_a_server_that_never_answers(tmp_path: Path, small_uv: Path) -> None:
    small_uv.write_text("#!/bin/sh\necho still thinking; sleep 600\n")
    server = provider(tmp_path, context_timeout_s=0.5)
    server.start()
    pid = server._process.pid  # type: ignore[union-attr]
    with pytest.raises(TimeoutError, match=r"(?s)within 0\.5 s.*still thinking"):
        server.wait_for_ready()
    assert alive(pid)
    server.stop()
    with pytest.raises(ProviderTimeoutError), server:
        raise AssertionError("not reached")
    wait_until_gone(pid)


def test_a_process_that_does_not_listen_is_killed_with_its_children(
    tmp_path: Path, small_uv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("openenv.core.containers.runtime.uv_provider._TERMINATE_S", 0.2)
    ready = tmp_path / "ready"
    small_uv.write_text(f"#!/bin/sh\ntrap '' TERM\n(trap '' TERM; sleep 600) &\ntouch {ready}\nwait\nsleep 600\n")
    server = provider(tmp_path)
    server.start()
    pid = server._process.pid  # type: ignore[union-attr]
    end = time.monotonic() + 30
    while not ready.exists():
        assert time.monotonic() < end
        time.sleep(0.02)
    server.stop()
    wait_until_gone(pid)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, None])
def test_a_server_does_not_outlive_its_program(tmp_path: Path, small_uv: Path, how: signal.Signals | None) -> None:
    code = f"""
import time
from openenv.core.containers.runtime import UVProvider
server = UVProvider(project_path={str(tmp_path)!r}, app="support.count_app:app")
server.start()
server.wait_for_ready()
print(server._process.pid, flush=True)
{"time.sleep(600)" if how else ""}
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    if how is not None:
        process.send_signal(how)
    process.communicate(timeout=60)
    wait_until_gone(pid)


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_a_clone_does_not_outlive_its_program(tmp_path: Path, small_uv: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    git(source, "init")
    git(source, "commit", "--allow-empty", "-m", "x")
    small_uv.write_text("#!/bin/sh\nsleep 600\n")
    code = f"""
import os
from openenv.core.containers.runtime import UVProvider
server = UVProvider(project_path="git+file://{source}")
server.start()
print(server._process.pid, server._clone_dir, flush=True)
os._exit(1)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    pid, clone = done.stdout.split()
    wait_until_gone(int(pid))
    end = time.monotonic() + 30
    while Path(clone).exists():
        assert time.monotonic() < end, "the clone is still there"
        time.sleep(0.02)


# ---------------------------------------------------------------------------- repositories


def git(folder: Path, *command: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *identity, *command], cwd=folder, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")
def test_a_repository_is_cloned_and_the_clone_removed(tmp_path: Path, small_uv: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    git(source, "init")
    (source / "cloned_app.py").write_text("from support.count_app import app\n")
    git(source, "add", ".")
    git(source, "commit", "-m", "x")
    server = UVProvider(project_path=f"git+file://{source}", app="cloned_app:app")
    with server:
        clone = Path(server._clone_dir or "")
        assert (clone / "cloned_app.py").exists()
        with CountClient(base_url=server.base_url).sync() as client:
            client.reset()
    assert not clone.exists()
    url = f"git+file://user:s3cret@localhost{tmp_path}/missing"
    with pytest.raises(ProviderError, match="could not be cloned") as caught:
        _clone_git_project(url, 30.0)
    assert "s3cret" not in str(caught.value)


# ------------------------------------------------------------------------------ clients


async def test_a_client_starts_and_stops_it(tmp_path: Path, small_uv: Path) -> None:
    client = CountClient(provider=provider(tmp_path))
    await client.reset()
    assert (await client.step(CountAction())).observation.count == 1
    server = client._server
    assert server is not None
    pid = server._provider._process.pid
    await client.close()
    wait_until_gone(pid)


def test_a_space_from_a_clone_that_is_there(tmp_path: Path, small_uv: Path) -> None:
    handle = CountClient.from_env(
        "org/space", use_docker=False, project_path=str(tmp_path), app="support.count_app:app", message_timeout_s=30.0
    )
    with handle as client:
        client.reset()
        pid = client.async_client._server._provider._process.pid  # type: ignore[union-attr]
    wait_until_gone(pid)
    server = provider(tmp_path)
    with pytest.raises(ValueError, match="project_path"):
        CountClient.from_env("org/space", use_docker=False, provider=server, project_path="x").sync()
