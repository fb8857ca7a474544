"""docs/authoring.md as its reader types it: the commands that it prints, in a fresh environment with the wheel."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from openenv.testing.processes import free_port

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "authoring.md").read_text()
PIP = f"{sys.executable if importlib.util.find_spec('pip') else 'python3'} -m pip"
TEMPLATES = ("typed", "mcp", "gymnasium")
ENVIRONMENT = Path("my_game_env") / "server" / "my_game_environment.py"

pytestmark = pytest.mark.timeout(500)


def commands(part: str) -> list[str]:
    """The commands of one part of the transcript."""
    (found,) = re.findall(rf"<!-- transcript: {part} -->\n```bash\n(.*?)```", PAGE, re.DOTALL)
    return found.splitlines()


def edit(template: str) -> tuple[str, str]:
    """What the page changes in this template: from, to."""
    for names, diff in re.findall(r"<!-- edit: ([\w ]+) -->\n```diff\n(.*?)```", PAGE, re.DOTALL):
        if template in names.split():
            before, after = diff.splitlines()
            return before.removeprefix("-"), after.removeprefix("+")
    raise AssertionError(f"the page changes nothing in {template}")


class Shell:
    """A shell in a virtual environment, without this checkout on the path of modules."""

    def __init__(self, venv: Path, folder: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        self.folder = folder
        self.environ: Mapping[str, str] = {
            **kept,
            "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PORT": str(free_port()),
        }

    def run(self, command: str) -> str:
        """Run a command line; ``cd`` changes the folder. Skips where it needs an index that is out of reach."""
        if command.startswith("cd "):
            self.folder = self.folder / command.removeprefix("cd ")
            return ""
        done = subprocess.run(
            command, shell=True, cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=280
        )
        said = f"{done.stdout}\n{done.stderr}"
        if (
            done.returncode != 0
            and "install" in command
            and re.search(
                r"failed to fetch|dns error|network|timed out|no matching distribution|connection", said.lower()
            )
        ):
            pytest.skip("no package index can be reached")
        assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{said}"
        return done.stdout

    def serve(self, command: str) -> subprocess.Popen[str]:
        """Start a command that stays."""
        pipe = subprocess.PIPE
        return subprocess.Popen(command.split(), cwd=self.folder, env=self.environ, stdout=pipe, stderr=pipe, text=True)


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel, as the page's first command makes it; and what the templates' own
    ``pip install`` would fetch three times."""
    folder = tmp_path_factory.mktemp("authoring")
    shell = Shell(folder / "venv", folder)
    (install,) = commands("install")
    assert install == 'pip install ".[cli]"', "the wheel stands in for the checkout"
    shell.run(f"{PIP} wheel --quiet --no-deps --wheel-dir {folder} {ROOT}")
    (wheel,) = folder.glob("openenv-*.whl")
    shell.run(f"{sys.executable} -m venv --without-pip venv")
    python = folder / "venv" / "bin" / "python"
    wanted = f"pip '{wheel}[cli,mcp]' 'gymnasium>=1.1' 'pytest>=8' 'hatchling'"
    shell.run(f"{PIP} --python {python} install --quiet {wanted}")
    return folder / "venv"


def test_the_page_works_as_it_is_printed_for_each_template(venv: Path, tmp_path: Path) -> None:
    for template in TEMPLATES:
        (tmp_path / template).mkdir()
        shell = Shell(venv, tmp_path / template)
        for command in commands("init"):
            chosen = f"{command} --template {template}" if "openenv init" in command else command
            said = shell.run(chosen)
            if command == "pytest":
                assert " passed" in said
        before, after = edit(template)
        source = shell.folder / ENVIRONMENT
        assert source.read_text().count(before) == 1
        source.write_text(source.read_text().replace(before, after))
        for command in commands("check"):
            said = shell.run(command)
        assert " 0 warn, 0 fail" in said
        (serve,) = commands("serve")
        with shell.serve(serve) as server:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            assert url == f"http://127.0.0.1:{shell.environ['PORT']}"
            readme = (shell.folder / "README.md").read_text()
            (example,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
            (shell.folder / "example.py").write_text(example.replace("http://localhost:8000", url))
            assert shell.run("python -W error example.py")
            server.send_signal(signal.SIGINT)
            rest, log = server.communicate(timeout=60)
        assert (server.returncode, rest) == (0, "")
        assert re.search(r"^[0-9a-f]{8} reset in .* episode 1$", log, re.MULTILINE)
        assert re.search(r"^[0-9a-f]{8} closed: 1 steps", log, re.MULTILINE)


def healthy(port: int) -> bool:
    """Whether a server answers there."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False, timeout=60).status_code == 200
    except httpx.ConnectError:
        time.sleep(0.05)
        return False


def test_the_image_installs_the_wheel_beside_it_and_listens_at_port(venv: Path, tmp_path: Path) -> None:
    """What the image of a package does: install the wheel beside it, then the package; listen at PORT."""
    shell = Shell(venv, tmp_path)
    shell.run("openenv init my_game_env")
    docker = (tmp_path / "my_game_env" / "Dockerfile").read_text()
    (what,) = re.findall(r'ARG OPENENV="(.*)"', docker)
    shell.folder = tmp_path / "my_game_env"
    image = shell.folder / "image"
    shell.run(f"{sys.executable} -m venv --without-pip image")
    for package in (what, "."):
        shell.run(f"{PIP} --python image/bin/python install --quiet '{package}'")
    code = "import openenv, my_game_env.server.app as a; print(openenv.__file__, a.app.state.openenv_server.env_name)"
    (shell.folder / "elsewhere").mkdir()
    shell.folder = shell.folder / "elsewhere"
    said = shell.run(f'../image/bin/python -W error -c "{code}"').split()
    assert Path(said[0]).is_relative_to(tmp_path / "my_game_env" / "image")
    assert said[1] == "my_game_env"
    (command,) = re.findall(r"^CMD (.*)$", docker, re.MULTILINE)
    port = free_port()
    environ = {**shell.environ, "PATH": f"{image / 'bin'}{os.pathsep}{os.environ['PATH']}", "PORT": str(port)}
    with subprocess.Popen(json.loads(command), cwd=shell.folder, env=environ, stderr=subprocess.PIPE) as process:
        while not healthy(port):
            assert process.poll() is None, process.communicate()
        process.terminate()
        process.communicate(timeout=60)
