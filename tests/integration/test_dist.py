"""What `make dist` builds, in a fresh environment, beside an environment package that was written for upstream."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LETTERS = ROOT / "tests" / "interop" / "shared" / "letters_env"
PIP = (sys.executable if importlib.util.find_spec("pip") else "python3", "-m", "pip")

PACKAGE = """
[build-system]
requires = ["hatchling>=1.26"]
build-backend = "hatchling.build"
[project]
name = "openenv-letters-env"
version = "0.1.0"
dependencies = ["openenv[core]>=0.3.0"]
[tool.hatch.build.targets.wheel]
packages = ["letters_env"]
"""

PROGRAM = """
import json
from importlib.metadata import version
from openenv import AutoEnv
from openenv.core.env_server import MCPEnvironment
from openenv.testing import ServerProcess
import openenv
from letters_env.models import LettersAction
with ServerProcess("letters_env.server.app:app") as server:
    with AutoEnv.from_env("letters", base_url=server.url).sync() as env:
        env.reset(seed=3)
        result = env.step(LettersAction(letter="a"))
        told = {"reward": result.reward, "steps": env.state().step_count, "client": type(env.async_client).__name__}
print(json.dumps({**told, "version": version("openenv"), "file": openenv.__file__, "mcp": MCPEnvironment.__name__}))
"""

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("make") is None, reason="there is no make"),
]


def run(*command: str, cwd: Path) -> str:
    """Run a command without this checkout on the path of modules; skip where it needs an index that is out of reach."""
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False, timeout=280)
    if done.returncode != 0:
        if any(word in done.stderr.lower() for word in ("failed to fetch", "dns error", "network", "timed out")):
            pytest.skip("no package index can be reached")
        raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what was built. ``-o``: the set-up of the virtual environment is not this test's."""
    folder = tmp_path_factory.mktemp("dist")
    run("make", "-o", ".venv/.ready", "dist", f"DIST={folder}", cwd=ROOT)
    return folder


def test_the_wheel_is_whole(dist: Path) -> None:
    (wheel,) = dist.glob("openenv-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    sources = {
        str(file.relative_to(ROOT / "src")) for kind in ("*.py", "*.tmpl") for file in (ROOT / "src").rglob(kind)
    }
    assert sources <= set(names)
    assert "openenv/py.typed" in names
    page = ROOT / "src" / "openenv" / "core" / "env_server" / "web_static"
    assert {str(file.relative_to(ROOT / "src")) for file in page.iterdir()} <= set(names)
    assert not [name for name in names if not name.startswith(("openenv/", "openenv_core/", "openenv-"))]
    (packed,) = dist.glob("openenv-*.tar.gz")
    with tarfile.open(packed) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "src/openenv/__init__.py"} <= files


def test_ours_stays_when_a_package_asks_for_upstreams_and_the_environment_runs(dist: Path, tmp_path: Path) -> None:
    package = tmp_path / "package"
    shutil.copytree(LETTERS, package / "letters_env", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "pyproject.toml").write_text(PACKAGE)
    python = tmp_path / "fresh" / "bin" / "python"
    (wheel,) = dist.glob("openenv-*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "fresh"), cwd=tmp_path)
    for what in (wheel, package):
        run(*PIP, "--python", str(python), "install", "--quiet", str(what), cwd=tmp_path)
    told = json.loads(run(str(python), "-W", "error", "-c", PROGRAM, cwd=tmp_path))
    assert told["version"] == wheel.name.split("-")[1]
    assert Path(told["file"]).is_relative_to(tmp_path / "fresh")
    assert (told["client"], told["reward"], told["steps"]) == ("LettersEnv", 1.0, 1)
    assert told["mcp"] == "MCPEnvironment"
