"""`GitServerClient`: working copies of repositories on a Gitea server, one folder for each task.

The user's own git settings and credentials are neither used nor touched.
"""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx

__all__ = ["GitServerClient", "RepoInfo"]

_REQUEST_S = 5.0


@dataclass
class RepoInfo:
    """A repository.

    Attributes:
        name: its name.
        url: its page.
        commit: a commit of it.
        clone_url: where it is cloned from.
    """

    name: str
    url: str
    commit: str
    clone_url: str


class GitServerClient:
    """Clones repositories of a Gitea server into a workspace, and puts them back to how they were.

    Args:
        gitea_url: the server, as ``http://gitea:3000``.
        username: user at the server, who owns the repositories.
        password: the user's password; kept in a file that only this user can read, and in no address and no error.
        workspace_dir: folder for the working copies; made if need be.
    """

    def __init__(self, gitea_url: str, username: str, password: str, workspace_dir: str = "/workspace") -> None:
        self.gitea_url = gitea_url.rstrip("/")
        self.username = username
        self.password = password
        self.workspace_dir = Path(workspace_dir)
        self.is_ready = False
        parts = urlsplit(self.gitea_url)
        self.domain = parts.hostname or "localhost"
        self.port = parts.port or 3000
        self.workspace_dir.mkdir(parents=True, exist_ok=True)
        self._git_env = self._configure(f"{parts.scheme}://", parts.netloc.rpartition("@")[2])

    def __repr__(self) -> str:
        return f"<GitServerClient of {self.gitea_url} as {self.username}>"

    def _configure(self, scheme: str, place: str) -> dict[str, str]:
        folder = Path(tempfile.mkdtemp(prefix="openenv-git-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        credentials = folder / "credentials"
        credentials.touch(0o600)
        credentials.write_text(f"{scheme}{quote(self.username, safe='')}:{quote(self.password, safe='')}@{place}\n")
        settings = folder / "config"
        settings.write_text(
            f"[user]\n\tname = {self.username}\n\temail = {self.username}@local.env\n"
            f"[init]\n\tdefaultBranch = main\n[credential]\n\thelper = store --file {credentials}\n"
        )
        return {**os.environ, "GIT_CONFIG_GLOBAL": str(settings), "GIT_TERMINAL_PROMPT": "0"}

    # ---------------------------------------------------------------- the server

    def wait_for_ready(self, timeout: float = 30) -> bool:
        """Wait until the server answers.

        Args:
            timeout: seconds to wait.

        Returns:
            Whether it did.
        """
        end = time.monotonic() + timeout
        while True:
            try:
                if httpx.get(f"{self.gitea_url}/", timeout=_REQUEST_S, follow_redirects=True).is_success:
                    self.is_ready = True
                    return True
            except httpx.HTTPError:
                pass  # not there yet
            if time.monotonic() >= end:
                return False
            time.sleep(min(0.5, max(0.0, end - time.monotonic())))

    def list_repositories(self) -> list[dict[str, str]]:
        """The user's repositories: dicts with ``name``, ``full_name``, ``clone_url`` and ``description``.

        Raises:
            RuntimeError: `wait_for_ready` has not succeeded, or the server refused.
        """
        self._need_server()
        answer = httpx.get(
            f"{self.gitea_url}/api/v1/user/repos", auth=(self.username, self.password), timeout=_REQUEST_S
        )
        if not answer.is_success:
            raise RuntimeError(f"{self.gitea_url} refused to list repositories: {answer.status_code}")
        return [
            {
                "name": repo["name"],
                "full_name": repo["full_name"],
                "clone_url": repo["clone_url"],
                "description": repo.get("description", ""),
            }
            for repo in answer.json()
        ]

    def _need_server(self) -> None:
        if not self.is_ready:
            raise RuntimeError("Gitea server is not ready: call wait_for_ready() first")

    # ------------------------------------------------------------ working copies

    def clone_to_workspace(self, repo_name: str, target_dir: str | None = None, commit: str = "main") -> str:
        """Make a fresh working copy, in place of one that is there.

        Args:
            repo_name: the repository.
            target_dir: folder in the workspace; by default the repository's name.
            commit: commit or branch to check out.

        Returns:
            The folder.

        Raises:
            RuntimeError: the server is not ready, or git refused.
            ValueError: the folder is not in the workspace.
        """
        self._need_server()
        target = self._place(target_dir or repo_name)
        if target.exists():
            shutil.rmtree(target)
        url = f"{self.gitea_url}/{self.username}/{repo_name}.git"
        self._need_git("Clone", self.workspace_dir, "clone", "--", url, str(target))
        if commit != "main":
            self._need_git("Checkout", target, "checkout", commit)
        return str(target)

    def reset_workspace(self, repo_name: str, commit: str = "main") -> bool:
        """Put a working copy back to a commit, or to how a branch is at the server, whatever was done to it.

        Args:
            repo_name: its folder in the workspace.
            commit: commit or branch.

        Returns:
            True.

        Raises:
            RuntimeError: there is no such working copy, or git refused.
            ValueError: the folder is not in the workspace.
        """
        folder = self._working_copy(repo_name)
        self._git(folder, "fetch", "--all")  # the server may be away, and the commit be here already
        remote = f"origin/{commit}"
        known = self._git(folder, "rev-parse", "--verify", "--quiet", f"{remote}^{{commit}}").returncode == 0
        self._need_git("Checkout", folder, "checkout", "--force", commit)
        self._need_git("Reset", folder, "reset", "--hard", remote if known else commit)
        self._need_git("Clean", folder, "clean", "-ffdx")
        return True

    def execute_git_command(self, command: str, working_dir: str = "") -> tuple[int, str, str]:
        """Run a git command in the workspace.

        Args:
            command: the command, without ``git``.
            working_dir: folder in the workspace.

        Returns:
            Exit code, output and errors.

        Raises:
            ValueError: the folder is not in the workspace.
        """
        folder = self._place(working_dir) if working_dir else self.workspace_dir
        if not folder.exists():
            return 1, "", f"Working directory does not exist: {folder}"
        done = self._git(folder, *shlex.split(command))
        return done.returncode, done.stdout, done.stderr

    def get_current_commit(self, repo_name: str) -> str:
        """The commit that is checked out in a working copy.

        Raises:
            RuntimeError: there is no such working copy, or git refused.
        """
        return self._need_git("Looking up the commit", self._working_copy(repo_name), "rev-parse", "HEAD").strip()

    def workspace_exists(self, repo_name: str) -> bool:
        """Whether there is a working copy of that name."""
        return self._place(repo_name).exists()

    def _place(self, name: str) -> Path:
        """A folder in the workspace; not the workspace itself, which would be deleted with everything in it."""
        root = self.workspace_dir.resolve()
        place = (root / name).resolve()
        if place == root or not place.is_relative_to(root):
            raise ValueError(f"{name!r} is not a folder in the workspace {root}")
        return place

    def _working_copy(self, repo_name: str) -> Path:
        folder = self._place(repo_name)
        if not folder.exists():
            raise RuntimeError(f"Repository not found in workspace: {repo_name}")
        return folder

    def _git(self, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["git", *arguments], cwd=folder, env=self._git_env, capture_output=True, text=True, check=False
        )

    def _need_git(self, what: str, folder: Path, *arguments: str) -> str:
        done = self._git(folder, *arguments)
        if done.returncode != 0:
            raise RuntimeError(f"{what} failed: {done.stderr.strip()}")
        return done.stdout
