"""The project as a whole: versions, weight, links, and nothing in it that belongs to one machine."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import openenv

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob(".claude/docs/*.md"), *ROOT.glob("envs/*/*.md")]
)


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


# The parts are joined here so that this file does not hold what it forbids.
FORBIDDEN = [
    r"(^|[^\w.])/(?:" + "|".join(["w" + "ork", "f" + "arm", "r" + "oot", "h" + "ome/[a-z]"]) + ")/",
    r"--(?:extra-)?" + "index-url",
    r"--" + "registry",
    r"--" + "find-links",
    "py" + r"pi\.org",
    "python" + r"hosted\.org",
]


def test_no_machine_path_and_no_registry_in_tracked_files() -> None:
    pattern = re.compile("|".join(FORBIDDEN), re.MULTILINE)
    found = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {match.group().strip()}" for match in pattern.finditer(text)]
    assert not found


def test_version_is_the_same_everywhere() -> None:
    number = PYPROJECT["project"]["version"]
    assert openenv.__version__ == version("openenv") == number
    changelog = (ROOT / "CHANGELOG.md").read_text()
    newest = re.search(r"^## \[?(\d+\.\d+\.\d+)", changelog, re.MULTILINE)
    assert newest is not None
    assert newest.group(1) == number


def test_changelog_states_its_policy_before_any_release() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert changelog.index("## Compatibility policy") < changelog.index(f"## [{openenv.__version__}]")


def closure(name: str) -> set[str]:
    """Every distribution that the base install of ``name`` brings along, without ``name``."""
    seen: set[str] = set()
    todo: list[tuple[str, frozenset[str]]] = [(name, frozenset())]
    done: set[tuple[str, frozenset[str]]] = set()
    while todo:
        distribution, extras = todo.pop()
        if (distribution, extras) in done:
            continue
        done.add((distribution, extras))
        for line in requires(distribution) or []:
            wanted = Requirement(line)
            if wanted.marker is None or any(wanted.marker.evaluate({"extra": e}) for e in extras or {""}):
                child = canonicalize_name(wanted.name)
                seen.add(child)
                todo.append((child, frozenset(wanted.extras)))
    return seen - {name}


def test_base_install_is_small() -> None:
    names = closure("openenv")
    assert {"websockets", "pydantic", "starlette"} <= names  # direct and indirect ones are counted
    assert len(names) <= 18, sorted(names)


def test_dev_tools_stay_out_of_the_base_install() -> None:
    assert not {"pytest", "mypy", "ruff", "typer", "rich", "numpy", "msgpack"} & closure("openenv")


def test_readme_names_both_commands_and_the_contributors_page_in_order() -> None:
    readme = (ROOT / "README.md").read_text()
    first_screen = readme[: readme.index("\n## ")]
    assert "SessionLostError" in first_screen
    assert readme.index("make demo") < readme.index("make test") < readme.index("pip install")
    assert ".claude/docs/PRINCIPLES.md" in readme


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_of_a_page_exist(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    paths = re.findall(r"`((?:src|tests|docs|envs|\.claude|\.ci)/[\w./-]+)`", text)
    missing += [path for path in paths if not (ROOT / path).exists()]
    assert not missing


@pytest.mark.parametrize("script", [".ci/run", ".claude/hooks/lint.sh", ".claude/hooks/test.sh"])
def test_scripts_can_be_run(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    assert "set -euo pipefail" in (ROOT / script).read_text()
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)


def test_ci_runs_tests_and_demo() -> None:
    lines = (ROOT / ".ci/run").read_text().splitlines()
    assert {"make test", "make demo"} <= set(lines)
