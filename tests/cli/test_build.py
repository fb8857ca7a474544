"""``openenv build``: what the container engine is asked for, and what is said when it cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.commands import openenv
from support.fake_engine import FakeEngine


@pytest.fixture
def engine(tmp_path: Path) -> FakeEngine:
    (tmp_path / "bin").mkdir()
    return FakeEngine(tmp_path / "bin")


@pytest.fixture
def env(tmp_path: Path) -> Path:
    folder = tmp_path / "my_game_env"
    (folder / "server").mkdir(parents=True)
    (folder / "openenv.yaml").write_text("name: my_game_env\n")
    (folder / "server" / "Dockerfile").write_text("FROM scratch\n")
    return folder


def path(engine: FakeEngine) -> dict[str, str]:
    return {"PATH": str(engine.folder)}


def test_the_image_is_built_from_the_folder_and_named(engine: FakeEngine, env: Path) -> None:
    engine.install("docker")
    done = openenv("build", env, env=path(engine))
    assert (done.returncode, done.stdout) == (0, "openenv-my_game\n"), done.stderr
    dockerfile = str(env / "server" / "Dockerfile")
    assert engine.calls() == [["build", "--tag", "openenv-my_game", "--file", dockerfile, str(env)]]
    (env / "Dockerfile").write_text("FROM scratch\n")
    openenv("build", env, env=path(engine))
    assert engine.calls()[1][4] == str(env / "Dockerfile")


def test_its_options_reach_the_engine(engine: FakeEngine, env: Path, tmp_path: Path) -> None:
    engine.install("podman")
    other = tmp_path / "Other.dockerfile"
    other.write_text("FROM scratch\n")
    options = (
        "-t",
        "game:1",
        "-c",
        env / "server",
        "-f",
        other,
        "--no-cache",
        "--build-arg",
        "A=1",
        "--build-arg",
        "B=",
    )
    done = openenv("build", env, *options, env=path(engine))
    assert (done.returncode, done.stdout) == (0, "game:1\n"), done.stderr
    arguments = ["--no-cache", "--build-arg", "A=1", "--build-arg", "B="]
    assert engine.calls() == [["build", "--tag", "game:1", "--file", str(other), *arguments, str(env / "server")]]
    assert set(engine.names()) == {"podman"}


def test_a_failed_build_shows_the_engines_words(engine: FakeEngine, env: Path) -> None:
    engine.install("docker")
    engine.plan(build=[{"stderr": "no space left on device", "code": 7}])
    done = openenv("build", env, env=path(engine))
    assert (done.returncode, done.stdout) == (1, "")
    assert "no space left on device" in done.stderr
    assert "ended with 7" in done.stderr


def test_what_is_missing_is_said(engine: FakeEngine, env: Path, tmp_path: Path) -> None:
    none = openenv("build", env, env={"PATH": str(engine.folder)})
    assert (none.returncode, "Install and start Docker" in none.stderr) == (2, True)
    engine.install("docker")
    (env / "server" / "Dockerfile").unlink()
    bare = openenv("build", env, env=path(engine))
    assert (bare.returncode, "no Dockerfile" in bare.stderr) == (2, True)
    assert openenv("build", tmp_path / "none", env=path(engine)).returncode == 2
    assert openenv("build", env, "--build-arg", "A", env=path(engine)).returncode == 2
    assert engine.calls() == []
