"""What is known of an environment before it is made, and where its README is found."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import pytest

from openenv.core.env_server import env_metadata
from openenv.core.env_server.types import EnvironmentMetadata
from openenv.core.env_server.web_interface import create_web_interface_app, load_environment_metadata
from support.envs import CountAction, CountEnv, CountObservation


class Told(CountEnv):
    made = 0

    def __init__(self) -> None:
        super().__init__()
        Told.made += 1

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(name="told", description="by itself")


def make() -> CountEnv:
    raise AssertionError("a factory is not called")


class Maker:
    def __call__(self) -> CountEnv:
        raise AssertionError("a factory is not called")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ENV_README_PATH", raising=False)
    monkeypatch.setattr(env_metadata, "_IN_IMAGES", (tmp_path / "image" / "README.md",))
    return tmp_path


def test_an_environment_is_asked() -> None:
    assert load_environment_metadata(Told(), "ignored").name == "told"


@pytest.mark.parametrize(
    ("env", "env_name", "name", "description"),
    [
        (Told, None, "Told", "Told environment"),
        (Told, "count", "count", "Told environment"),
        (make, None, "make", "make environment"),
        (make, "count", "count", "count environment"),
        (functools.partial(Told), "count", "count", "Told environment"),
        (functools.partial(functools.partial(make)), None, "make", "make environment"),
        (Maker(), None, "Maker", "Maker environment"),
    ],
)
def test_what_makes_an_environment_is_not_called(env: Any, env_name: str | None, name: str, description: str) -> None:
    Told.made = 0
    told = load_environment_metadata(env, env_name)
    assert (told.name, told.description, told.version, told.readme_content) == (name, description, "1.0.0", None)
    assert Told.made == 0


def test_the_readme_is_the_first_there_is(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [elsewhere / "given.md", elsewhere / "envs" / "count" / "README.md", elsewhere / "image" / "README.md"]
    monkeypatch.setenv("ENV_README_PATH", str(places[0]))
    for place in reversed(places):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"# {place.name} é", encoding="utf-8")
        assert load_environment_metadata(Told, "count").readme_content == f"# {place.name} é"
    places[0].unlink()
    places[0].mkdir()  # what cannot be read is passed over
    assert load_environment_metadata(Told, "count").readme_content == "# README.md é"


def test_a_package_has_its_readme_beside_its_manifest(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = elsewhere / "count_env"
    module = folder / "count_env" / "server" / "environment.py"
    module.parent.mkdir(parents=True)
    (folder / "README.md").write_text("# Count")
    monkeypatch.setattr(sys.modules[__name__], "__file__", str(module))
    assert load_environment_metadata(Told, "other").readme_content is None
    (folder / "openenv.yaml").write_text("name: count_env")
    assert load_environment_metadata(Told, "other").readme_content == "# Count"


def test_an_app_of_the_web_interface_serves_the_environment() -> None:
    app = create_web_interface_app(CountEnv, CountAction, CountObservation, env_name="count")
    assert "/ws" in {getattr(route, "path", "") for route in app.routes}
