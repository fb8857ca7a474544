"""Working copies of a real repository, cloned over HTTP from a server that asks for a password."""

from __future__ import annotations

import base64
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI, Request, Response

from openenv.core.tools import GitServerClient, RepoInfo
from openenv.testing.processes import free_port
from support.live import serve

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")

USER, PASSWORD = "agent", "p@ss:word"
BASIC = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


def git(folder: Path, *command: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *identity, *command], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def commits(tmp_path: Path) -> list[str]:
    """Two commits of a repository that is served as ``agent/task.git``; the second one is ``main``."""
    work = tmp_path / "work"
    work.mkdir()
    git(work, "init")
    made = []
    for number in (1, 2):
        (work / "code.py").write_text(f"x = {number}\n")
        git(work, "add", ".")
        git(work, "commit", "-m", str(number))
        made.append(git(work, "rev-parse", "HEAD"))
    bare = tmp_path / "served" / USER / "task.git"
    git(tmp_path, "clone", "--bare", str(work), str(bare))
    git(bare, "update-server-info")
    return made


@pytest.fixture
def url(tmp_path: Path, commits: list[str]) -> Iterator[str]:
    app = FastAPI()

    @app.get("/")
    async def home() -> str:
        return "here"

    @app.get("/{path:path}")
    async def file(path: str, request: Request) -> Response:
        if request.headers.get("authorization") != BASIC:
            return Response(status_code=401, headers={"www-authenticate": 'Basic realm="git"'})
        if path == "api/v1/user/repos":
            body = b'[{"name": "task", "full_name": "agent/task", "clone_url": "http://x/agent/task.git"}]'
            return Response(body, media_type="application/json")
        found = tmp_path / "served" / path
        return Response(found.read_bytes()) if found.is_file() else Response(status_code=404)

    with serve(app) as server:
        yield str(server)


@pytest.fixture
def client(url: str, tmp_path: Path) -> GitServerClient:
    client = GitServerClient(url, USER, PASSWORD, str(tmp_path / "workspace"))
    assert client.wait_for_ready(30)
    return client


def test_repositories_are_listed(client: GitServerClient) -> None:
    assert client.list_repositories() == [
        {"name": "task", "full_name": "agent/task", "clone_url": "http://x/agent/task.git", "description": ""}
    ]
    client.password = "wrong"
    with pytest.raises(RuntimeError, match="401"):
        client.list_repositories()


def test_a_working_copy_is_made_and_put_back(client: GitServerClient, commits: list[str]) -> None:
    folder = Path(client.clone_to_workspace("task"))
    assert folder == client.workspace_dir.resolve() / "task"
    assert client.workspace_exists("task")
    assert client.get_current_commit("task") == commits[1]
    (folder / "code.py").write_text("broken")
    (folder / "nested").mkdir()
    (folder / "nested" / "new").write_text("x")
    code, _, _ = client.execute_git_command("commit -am 'what the agent did'", "task")
    assert code == 0  # the client's own identity is used
    assert client.get_current_commit("task") not in commits
    assert client.reset_workspace("task") is True
    assert client.get_current_commit("task") == commits[1]  # a branch is what it is at the server
    assert (folder / "code.py").read_text() == "x = 2\n"
    assert not (folder / "nested").exists()
    (folder / "code.py").write_text("in the way")
    assert client.reset_workspace("task", commits[0]) is True
    assert (folder / "code.py").read_text() == "x = 1\n"


def test_a_copy_elsewhere_at_a_commit_replaces_what_is_there(client: GitServerClient, commits: list[str]) -> None:
    for _ in range(2):
        folder = Path(client.clone_to_workspace("task", "copies/one", commits[0]))
        assert (folder / "code.py").read_text() == "x = 1\n"
        (folder / "left").touch()
    assert client.execute_git_command("status --short", "copies/one")[1].strip() == "?? left"


@pytest.mark.parametrize("place", ["..", "../elsewhere", "/etc", ".", "task/../.."])
def test_nothing_outside_the_workspace_is_touched(client: GitServerClient, place: str) -> None:
    for ask in (
        lambda: client.clone_to_workspace("task", place),
        lambda: client.reset_workspace(place),
        lambda: client.execute_git_command("status", place),
        lambda: client.workspace_exists(place),
    ):
        with pytest.raises(ValueError, match="not a folder in the workspace"):
            ask()


def test_what_goes_wrong_is_told(client: GitServerClient, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="Clone failed") as caught:
        client.clone_to_workspace("missing")
    assert PASSWORD not in str(caught.value)
    with pytest.raises(RuntimeError, match="not found"):
        client.reset_workspace("missing")
    client.clone_to_workspace("task")
    with pytest.raises(RuntimeError, match="Checkout failed"):
        client.reset_workspace("task", "no-such-commit")
    assert client.execute_git_command("nonsense", "task")[0] != 0
    assert client.execute_git_command("status", "missing")[0] == 1
    away = GitServerClient(f"http://127.0.0.1:{free_port()}", USER, PASSWORD, str(tmp_path / "w"))
    assert away.wait_for_ready(0.1) is False
    for ask in (away.list_repositories, lambda: away.clone_to_workspace("task")):
        with pytest.raises(RuntimeError, match="not ready"):
            ask()


def test_the_password_is_shown_nowhere(client: GitServerClient) -> None:
    assert PASSWORD not in repr(client)
    settings = Path(client._git_env["GIT_CONFIG_GLOBAL"])
    assert PASSWORD not in settings.read_text()
    assert (settings.parent / "credentials").stat().st_mode & 0o077 == 0
    assert RepoInfo("a", "b", "c", "d").clone_url == "d"
