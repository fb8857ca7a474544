"""Which packages are found, and what they are said to be."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from openenv.auto import AutoAction, AutoEnv, EnvironmentDiscovery, EnvironmentInfo, get_discovery, reset_discovery
from openenv.auto import _manifest as manifests
from openenv.auto._discovery import (
    _create_env_info_from_package,
    _default_cache_file,
    _infer_class_name,
    _is_hub_url,
    _is_trusted_cache_file,
    _normalize_env_name,
)
from openenv.auto._manifest import read_manifest


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    reset_discovery()
    yield
    reset_discovery()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path, alone with its distributions."""
    monkeypatch.syspath_prepend(str(tmp_path))
    found = lambda: [PathDistribution(one) for one in sorted(tmp_path.glob("*.dist-info"))]  # noqa: E731
    monkeypatch.setattr("importlib.metadata.distributions", found)
    return tmp_path


def install(site: Path, package: str, module: str, manifest: str | None = None, client: str = "") -> None:
    info = site / f"{package.replace('-', '_')}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    (info / "RECORD").write_text(f"{module}/client.py,,\n{module}/__init__.py,,\n")
    (site / module).mkdir()
    (site / module / "__init__.py").write_text(
        "raise AssertionError('looking for it has imported it')\n" if not client else ""
    )
    (site / module / "client.py").write_text(client)
    if manifest is not None:
        (site / module / "openenv.yaml").write_text(manifest)


@pytest.mark.parametrize("name", ["browser_gym", "browser-gym", "browser_gym_env", "browser-gym-env"])
def test_one_name_for_all_spellings(name: str) -> None:
    assert _normalize_env_name(name) == "browser_gym_env"


@pytest.mark.parametrize(
    ("name", "is_hub"),
    [("org/env", True), ("https://huggingface.co/spaces/org/env", True), ("echo", False), ("echo-env", False)],
)
def test_names_of_the_hub(name: str, is_hub: bool) -> None:
    assert _is_hub_url(name) is is_hub


def test_classes_by_convention() -> None:
    assert [_infer_class_name("browser_gym_env", kind) for kind in ("client", "action", "observation")] == [
        "BrowserGymEnv",
        "BrowserGymAction",
        "BrowserGymObservation",
    ]
    with pytest.raises(ValueError, match="state"):
        _infer_class_name("echo_env", "state")


def test_a_package_is_found_without_importing_it(site: Path) -> None:
    install(
        site,
        "openenv-maze-env",
        "maze_env",
        "name: maze_env\ndescription: A maze  # small\naction: Walk\nspec_version: 1\n",
    )
    info = EnvironmentDiscovery().discover()["maze"]
    assert (info.name, info.package_name, info.version) == ("maze_env", "openenv-maze-env", "1.2")
    assert (info.client_class_name, info.action_class_name, info.observation_class_name) == (
        "MazeEnv",
        "Walk",
        "MazeObservation",
    )
    assert (info.description, info.spec_version, info.default_image) == ("A maze", 1, "maze-env:latest")
    assert info.manifest is not None
    assert "maze_env" not in sys.modules


def test_a_module_with_another_name_than_its_package(site: Path) -> None:
    install(site, "openenv-labyrinth", "minotaur")
    (info,) = EnvironmentDiscovery().discover().values()
    assert info.client_module_path == "minotaur.client"


def test_core_is_no_environment(site: Path) -> None:
    for package in ("openenv_core", "openenv", "other"):
        install(site, package, package.replace("-", "_") + "_x")
    assert EnvironmentDiscovery().discover() == {}


def test_what_was_found_is_kept_until_asked_anew(site: Path) -> None:
    discovery = get_discovery()
    assert discovery is get_discovery()
    assert discovery.discover() == {}
    install(site, "openenv-late-env", "late_env")
    assert discovery.discover() == {}
    assert list(discovery.discover(use_cache=False)) == ["late"]
    discovery.clear_cache()
    assert discovery.get_environment_by_name("late-env") is not None


def test_a_class_is_also_found_among_the_models(site: Path) -> None:
    install(site, "openenv-attic-env", "attic_env", client="class AtticEnv: ...\n")
    (site / "attic_env" / "models.py").write_text("class AtticAction: ...\n")
    assert AutoEnv.get_env_class("attic").__name__ == "AtticEnv"
    assert AutoAction.from_env("attic").__name__ == "AtticAction"
    info = get_discovery().get_environment("attic")
    assert info is not None
    with pytest.raises(ImportError, match=r"AtticObservation.*pip install --force-reinstall openenv-attic-env"):
        info.get_observation_class()


def test_a_package_that_does_not_import_says_how_to_mend_it(site: Path) -> None:
    install(site, "openenv-broken-env", "broken_env", client="import a_module_that_is_not_there\n")
    for call in (AutoEnv.from_env, AutoAction.from_env):
        with pytest.raises(ImportError, match=r"Failed to import.*a_module_that_is_not_there.*reinstall"):
            call("broken")


@pytest.mark.parametrize("library", [True, False])
def test_a_manifest_with_and_without_a_yaml_library(
    library: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not library:
        monkeypatch.setattr(manifests, "find_spec", lambda name: None)
    path = tmp_path / "openenv.yaml"
    path.write_text(
        "# c\nspec_version: 1\nname: 'a_env'\ndescription: \"x: y\" # z\nport: 8000\nempty:\nlist:\n  - a: b\n"
    )
    found = read_manifest(path)
    assert found is not None
    expected = {"spec_version": 1, "name": "a_env", "description": "x: y", "port": 8000, "empty": None}
    assert {name: found[name] for name in expected} == expected


def test_a_manifest_that_cannot_be_read_costs_only_itself(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    install(site, "openenv-odd-env", "odd_env", "name: [\n")
    assert EnvironmentDiscovery().discover()["odd"].manifest is None
    assert "openenv.yaml cannot be read" in caplog.text


def test_lists(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    AutoEnv.list_environments()
    AutoAction.list_actions()
    assert capsys.readouterr().out.count("No OpenEnv environments found") == 2
    install(site, "openenv-maze-env", "maze_env")
    get_discovery().clear_cache()
    AutoEnv.list_environments()
    AutoAction.list_actions()
    out = capsys.readouterr().out
    assert "Available OpenEnv Environments" in out
    assert "Total: 1 environments" in out
    assert "Total: 1 action classes" in out
    assert "MazeAction" in out


def test_the_manifest_of_an_editable_package_stands_beside_it() -> None:
    info = _create_env_info_from_package("openenv-echo-env", "echo_env", "0")
    assert info is not None
    assert (info.manifest or {}).get("app") == "echo_env.server.app:app"


# ---------------------------------------------------------------- what is kept in a file


def kept() -> EnvironmentInfo:
    return EnvironmentInfo(
        "chess",
        "chess_env",
        "openenv-chess-env",
        "1",
        "d",
        "chess_env.client",
        "ChessEnv",
        "A",
        "O",
        "chess-env:latest",
    )


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "openenv" / "discovery_cache.json"


def test_what_was_found_can_be_kept_in_a_file_of_this_user_alone(file: Path) -> None:
    discovery = EnvironmentDiscovery()
    assert discovery._load_cache() is None
    file.parent.mkdir()
    file.write_text("{}")
    file.chmod(0o666)
    discovery._save_cache({"chess": kept()})
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [one.name for one in file.parent.iterdir()] == [file.name]
    assert EnvironmentDiscovery()._load_cache() == {"chess": kept()}
    reset_discovery()
    assert file.exists()
    discovery.clear_cache()
    assert not file.exists()


def test_discovery_neither_reads_nor_writes_it(file: Path) -> None:
    EnvironmentDiscovery()._save_cache({"chess": kept()})
    before = file.read_bytes()
    assert "chess" not in EnvironmentDiscovery().discover()
    assert file.read_bytes() == before


def test_a_file_that_others_could_have_written_is_not_read(file: Path, tmp_path: Path) -> None:
    discovery = EnvironmentDiscovery()
    discovery._save_cache({"chess": kept()})
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(file)
    os.mkfifo(pipe, 0o600)
    for path in (link, pipe, tmp_path):  # opening the pipe would wait for a writer
        discovery._cache_file = path
        assert discovery._load_cache() is None
    discovery._cache_file = file
    assert _is_trusted_cache_file(file)
    file.chmod(0o620)
    assert not _is_trusted_cache_file(file)
    assert discovery._load_cache() is None


@pytest.mark.parametrize("text", ["", "[]", '{"chess": 1}', '{"chess": {"of": "another version"}}'])
def test_a_file_that_makes_no_sense_counts_for_none(file: Path, text: str) -> None:
    discovery = EnvironmentDiscovery()
    discovery._save_cache({})
    file.write_text(text)
    assert discovery._load_cache() is None


@pytest.mark.parametrize("given", ["cache", ""])
def test_the_file_is_never_under_the_working_directory(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    assert _default_cache_file() == Path.home() / ".cache" / "openenv" / "discovery_cache.json"
    monkeypatch.setenv("HOME", "here")
    with pytest.raises(RuntimeError, match="absolute home directory"):
        _default_cache_file()
