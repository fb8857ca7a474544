"""``openenv init``: packages that are whole, and refusals that touch nothing."""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import json
import os
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import Distribution
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from openenv import __version__
from openenv.cli import _wheel
from openenv.cli._templates import TEMPLATES
from openenv.cli._wheel import WHEEL, git_reference, write_wheel
from openenv.cli.app import app

ROOT = Path(__file__).parents[2]
RUFF = [str(Path(sys.executable).with_name("ruff"))]
MYPY = [str(Path(sys.executable).with_name("mypy"))]


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=100)


def init(*arguments: str, cwd: Path) -> Result:
    """The command, in this process."""
    with contextlib.chdir(cwd):
        return CliRunner().invoke(app, ["init", *arguments])


def files(folder: Path) -> set[str]:
    return {str(one.relative_to(folder)) for one in folder.rglob("*")}


@pytest.mark.parametrize("template", list(TEMPLATES))
def test_a_package_passes_its_own_tests_and_is_clean(template: str, tmp_path: Path) -> None:
    done = init("my_game_env", "--template", template, cwd=tmp_path)
    package = tmp_path / "my_game_env"
    assert (done.exit_code, done.stdout) == (0, f"{package}\n")
    assert "cd my_game_env" in done.stderr
    assert "my_game_env/server/my_game_environment.py" in done.stderr
    for command in (
        [*RUFF, "check", "."],
        [*RUFF, "format", "--check", "."],
        [*MYPY, "--strict", "--cache-dir", str(ROOT / ".mypy_cache"), "my_game_env"]
        if template == "typed"
        else [*RUFF, "--version"],
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "error"],
    ):
        checked = run(*command, cwd=package)
        assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("name", ["x", "a_b_c", "very_long_name_of_a_game_that_nobody_would_ever_type_env"])
def test_a_name_of_any_length_makes_code_that_is_clean(name: str, tmp_path: Path) -> None:
    for template in TEMPLATES:
        done = init(name, "-t", template, "-o", template, "--openenv", "==0.11.0", cwd=tmp_path)
        assert done.exit_code == 0, done.stderr
        assert f"cd {tmp_path / template / name}" in done.stderr
        checked = run(*RUFF, "check", ".", cwd=tmp_path / template / name)
        assert checked.returncode == 0, checked.stdout
    assert not [one for one in files(tmp_path) if "NAME" in one or "BASE" in one or one.endswith(".tmpl")]
    for path in tmp_path.rglob("*.*"):
        assert path.is_dir() or "@@" not in path.read_text()


def test_the_names_in_it_are_those_that_discovery_looks_for(tmp_path: Path) -> None:
    init("word_maze_env", cwd=tmp_path)
    package = tmp_path / "word_maze_env"
    project = tomllib.loads((package / "pyproject.toml").read_text())
    assert project["project"]["name"] == "openenv-word-maze-env"
    assert project["project"]["scripts"] == {"word-maze-env": "word_maze_env.server.app:main"}
    assert "class WordMazeEnv(EnvClient[WordMazeAction" in (package / "word_maze_env" / "client.py").read_text()
    assert "app: word_maze_env.server.app:app\n" in (package / "openenv.yaml").read_text()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("MyGame", "perhaps my_game"),
        ("my-game", "perhaps my_game"),
        ("my game", "perhaps my_game"),
        ("9lives", "perhaps lives"),
        ("_x", "perhaps x"),
        ("a__b", "perhaps a_b"),
        ("", "lower case letters"),
        ("../x", "perhaps x"),
        ("grün", "perhaps gr_n"),
        ("class", "perhaps class_env"),
        ("json", "perhaps json_env"),
        ("openenv", "perhaps openenv_env"),
    ],
)
def test_bad_names_are_refused_with_a_better_one(name: str, hint: str, tmp_path: Path) -> None:
    done = init("--", name, cwd=tmp_path)
    assert (done.exit_code, done.stdout) == (2, "")
    assert hint in done.stderr
    assert "Traceback" not in done.stderr
    assert files(tmp_path) == set()


@pytest.mark.parametrize("what", ["file", "full", "link", "parent"])
def test_nothing_that_is_there_is_overwritten(what: str, tmp_path: Path) -> None:
    target, options = tmp_path / "my_env", []
    if what == "file":
        target.write_text("mine")
    elif what == "full":
        target.mkdir()
        (target / "notes.txt").write_text("mine")
    elif what == "link":
        (tmp_path / "elsewhere").mkdir()
        target.symlink_to(tmp_path / "elsewhere")
    else:
        (tmp_path / "parent").write_text("mine")
        options = ["--output-dir", "parent"]
    before = files(tmp_path)
    done = init("my_env", *options, cwd=tmp_path)
    assert (done.exit_code, done.stdout) == (2, "")
    assert ("exists" in done.stderr) or ("is a file" in done.stderr)
    assert files(tmp_path) == before


def test_an_empty_folder_is_taken_and_a_missing_one_made(tmp_path: Path) -> None:
    (tmp_path / "my_env").mkdir()
    assert init("my_env", cwd=tmp_path).exit_code == 0
    assert (tmp_path / "my_env" / "openenv.yaml").is_file()
    assert init("my_env", "-o", "a/b", cwd=tmp_path).exit_code == 0
    assert (tmp_path / "a" / "b" / "my_env" / "Dockerfile").is_file()


@pytest.mark.skipif(os.geteuid() == 0, reason="the super-user may write everywhere")
def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = init("my_env", cwd=tmp_path)
    tmp_path.chmod(0o700)
    assert done.exit_code == 1
    assert "Permission denied" in done.stderr


# ---------------------------------------------------------------- what the image installs as openenv


def test_the_image_installs_the_openenv_that_made_it(tmp_path: Path) -> None:
    assert init("my_env", "-t", "mcp", cwd=tmp_path).exit_code == 0
    docker = (tmp_path / "my_env" / "Dockerfile").read_text()
    assert f'ARG OPENENV="./wheels/{WHEEL}[mcp]"\n' in docker
    assert docker.index("COPY --chown=user wheels wheels") < docker.index("ARG OPENENV")
    assert (tmp_path / "my_env" / "wheels" / WHEEL).stat().st_size > 100_000
    project = tomllib.loads((tmp_path / "my_env" / "pyproject.toml").read_text())
    assert project["tool"]["uv"]["sources"] == {"openenv": {"path": f"wheels/{WHEEL}"}}


@pytest.mark.parametrize(
    ("reference", "installed", "git"),
    [
        ("==0.11.0", 'ARG OPENENV="openenv==0.11.0"\n', False),
        ("https://x.example/openenv-1-py3-none-any.whl", "openenv @ https://x.example/", False),
        ("git+https://x.example/openenv@abc123", 'ARG OPENENV="openenv @ git+https://x.example/openenv@abc123"', True),
    ],
)
def test_the_image_installs_what_it_is_told_to(reference: str, installed: str, git: bool, tmp_path: Path) -> None:
    assert init("my_env", "--openenv", reference, cwd=tmp_path).exit_code == 0
    docker = (tmp_path / "my_env" / "Dockerfile").read_text()
    assert installed in docker
    assert ("--no-install-recommends git" in docker) is git
    assert "COPY --chown=user wheels" not in docker
    assert not (tmp_path / "my_env" / "wheels").exists()
    sources = tomllib.loads((tmp_path / "my_env" / "pyproject.toml").read_text())["tool"].get("uv", {})
    assert sources == {
        "==0.11.0": {},
        "https://x.example/openenv-1-py3-none-any.whl": {"sources": {"openenv": {"url": reference}}},
    }.get(reference, {"sources": {"openenv": {"git": "https://x.example/openenv", "rev": "abc123"}}})


@pytest.mark.parametrize(
    "reference", ["", "latest", "git+https://x.example/openenv", "https://x.example/a.zip", '==1"']
)
def test_what_pins_nothing_is_refused(reference: str, tmp_path: Path) -> None:
    done = init("my_env", "--openenv", reference, cwd=tmp_path)
    assert done.exit_code == 2
    assert "it takes git+https://" in done.stderr
    assert files(tmp_path) == set()


def test_the_wheel_holds_every_file_and_its_record_is_right(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path)
    first = wheel.read_bytes()
    assert write_wheel(tmp_path).read_bytes() == first
    with zipfile.ZipFile(wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    source = Path(_wheel.openenv.__file__).parent
    assert held["openenv/core/exceptions.py"] == (source / "core" / "exceptions.py").read_bytes()
    assert {"openenv/py.typed", "openenv_core/__init__.py", "openenv/cli/templates/shared/Dockerfile.tmpl"} <= set(held)
    info = f"openenv-{__version__}.dist-info"
    assert f"\nVersion: {__version__}\n".encode() in held[f"{info}/METADATA"]
    rows = list(csv.reader(held[f"{info}/RECORD"].decode().splitlines()))
    assert {row[0] for row in rows} == set(held)
    for name, digest, size in rows:
        if digest:
            found = base64.urlsafe_b64encode(hashlib.sha256(held[name]).digest()).rstrip(b"=").decode()
            assert (f"sha256={found}", len(held[name])) == (digest, int(size))


@pytest.mark.parametrize(
    ("told", "reference"),
    [
        (None, None),
        ({"url": "file:///x", "dir_info": {"editable": True}}, None),
        ({"url": "https://x.example/o", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}, True),
        ({"url": "https://me:pw@x.example/o", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}, True),
        ({"url": "ssh://x.example/o", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}, None),
    ],
)
def test_an_openenv_from_a_repository_is_told_by_its_commit(
    told: dict[str, object] | None, reference: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "openenv-1.dist-info"
    info.mkdir()
    if told is not None:
        (info / "direct_url.json").write_text(json.dumps(told))
    monkeypatch.setattr(_wheel, "_installed", lambda: Distribution.at(info))
    assert git_reference() == ("git+https://x.example/o@c0ffee" if reference else None)
