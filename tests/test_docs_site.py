"""The pages of the documentation site: all are found, every link has its goal, and what is wrong is told.

The site itself is built by ``make docs``, in an environment of its own.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


docs_site = script("docs_site")
docs_api = script("docs_api")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small repository, with nothing wrong in it."""
    write(tmp_path, "README.md", "# Home\n\n[guide](docs/guide.md#two-words) [program](examples/play.py)\n")
    write(tmp_path, "docs/guide.md", "# Guide\n\n## `Two` words\n\n[home](../README.md) [up](#guide)\n")
    write(tmp_path, "docs/picture.svg", "<svg/>")
    write(tmp_path, "examples/play.py", "print('played')\n")
    write(tmp_path, "envs/maze/README.md", "---\ntitle: A Space\n---\n# Maze\n\n[guide](../../docs/guide.md)\n")
    navigate(tmp_path, "index.md", "guide.md", "environments/maze.md")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def navigate(root: Path, *pages: str) -> None:
    entries = ", ".join(f'{{ "Page" = "{page}" }}' for page in pages)
    write(root, "zensical.toml", f'[project]\nnav = [{{ "All" = [{entries}] }}]\n')


def test_all_pages_are_in_order() -> None:
    pages = docs_site.Pages.gather(ROOT, [page.path for page in docs_api.existing()])
    assert pages.problems == []
    assert {"index.md", "guide.md", "changelog.md", "guarantees.md", "differences.md"} <= set(pages.text)


def test_links_follow_their_pages(root: Path) -> None:
    pages = docs_site.Pages.gather(root)
    assert pages.problems == []
    assert pages.text["index.md"] == "# Home\n\n[guide](guide.md#two-words) [program](files/examples/play.py)\n"
    assert pages.text["guide.md"].endswith("[home](index.md) [up](#guide)\n")
    assert pages.text["environments/maze.md"] == "# Maze\n\n[guide](../guide.md)\n"


def test_pages_and_what_they_show_are_written_and_taken_away(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "build"
    write(folder, "old.md", "# Once a page\n")
    docs_site.Pages.gather(root).write(folder, {"api/made.md": "# Made\n"})
    written = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert written == {
        "index.md",
        "guide.md",
        "environments/maze.md",
        "picture.svg",
        "files/examples/play.py",
        "api/made.md",
    }


def test_code_is_left_alone(root: Path) -> None:
    text = (
        "# Guide\n\n## `Two` words\n\n`[a](nowhere.md)` and ``[b](`c`)``\n\n```python\nx[0](first)\n# no heading\n```\n"
    )
    write(root, "docs/guide.md", text)
    pages = docs_site.Pages.gather(root)
    assert pages.problems == []
    assert pages.text["guide.md"] == text


def test_what_belongs_to_a_list_item_is_indented_for_the_site() -> None:
    text = "* one\n  more\n  * inner\n\n  ```python\n  if x:\n      y\n  ```\n\n1. two\n   * inner\n\nOut\n\n    code\n"
    wanted = (
        "* one\n    more\n    * inner\n\n    ```python\n    if x:\n        y\n    ```\n\n"
        "1. two\n    * inner\n\nOut\n\n    code\n"
    )
    assert docs_site.indented(text) == wanted
    block = "```\n* a\n  b\n```\n"
    assert docs_site.indented(block) == block


def test_a_page_that_is_not_in_the_navigation_is_told(root: Path) -> None:
    write(root, "docs/new.md", "# New\n")
    assert docs_site.Pages.gather(root).problems == [
        'new.md is not in the navigation: add { "Its title" = "new.md" }, to nav in zensical.toml'
    ]
    (generated,) = docs_site.Pages.gather(root, ["new.md", "api/x.md"]).problems[:1]
    assert generated.startswith("api/x.md is not in the navigation")


def test_a_navigation_that_leads_nowhere_or_twice_is_told(root: Path) -> None:
    navigate(root, "index.md", "guide.md", "guide.md", "gone.md", "environments/maze.md")
    told = docs_site.Pages.gather(root).problems
    assert "zensical.toml: the navigation has gone.md, which is no page" in told
    assert "zensical.toml: the navigation has guide.md more than once" in told


@pytest.mark.parametrize(
    ("link", "told"),
    [
        ("gone.md", "docs/guide.md:3: gone.md leads to no file"),
        ("../envs/maze", "docs/guide.md:3: ../envs/maze leads to no file"),  # a folder has no page in the site
        ("#three", "docs/guide.md:3: #three leads to no heading of docs/guide.md"),
        ("../README.md#away", "docs/guide.md:3: ../README.md#away leads to no heading of README.md"),
        ("#twice", "docs/guide.md:3: #twice leads to no heading of docs/guide.md"),
        ("#no-heading", "docs/guide.md:3: #no-heading leads to no heading of docs/guide.md"),
    ],
)
def test_a_link_without_its_goal_is_told(root: Path, link: str, told: str) -> None:
    text = f"# Guide\n\n[over\ntwo lines]({link})\n\n## Two words\n## Twice\n## Twice\n```bash\n# no heading\n```\n"
    write(root, "docs/guide.md", text)
    assert docs_site.Pages.gather(root).problems == [told.replace(":3:", ":4:")]


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Calls (feature `seq`)", "calls-feature-seq"),
        ("5. openenv.v1", "5-openenvv1"),
        ("`reuse-feedback-obs` [10.1]", "reuse-feedback-obs-101"),
        ("A [link](page.md) in it", "a-link-in-it"),
        ("On tools, and_more", "on-tools-and_more"),
    ],
)
def test_anchors_are_those_of_repository_hosts(heading: str, anchor: str) -> None:
    assert docs_site.anchors(f"## {heading}\n") == {anchor}


def test_faults_of_a_built_site_are_told(tmp_path: Path) -> None:
    write(tmp_path, "index.html", '<a href="a/b.html#x">to b</a><a href="#here">here</a><p id="here"><a href="a">a</a>')
    write(tmp_path, "a/b.html", '<p id="x"><img src="../picture.png"><a href="../index.html#gone">home</a>')
    write(tmp_path, "404.html", '<a href="/anywhere">not looked at</a><script src="https://cdn.example/x.js"></script>')
    assert docs_site.faults_of_site(tmp_path) == [
        "404.html loads https://cdn.example/x.js",
        "a/b.html links to ../index.html#gone, a page without this anchor",
        "a/b.html links to ../picture.png, which is not there",
        "index.html links to a, which is not there",
    ]


def test_only_pages_whose_modules_are_there_are_made(tmp_path: Path) -> None:
    write(tmp_path, "openenv/trl.py", "")
    (tmp_path / "openenv" / "testing").mkdir()
    assert [page.path for page in docs_api.existing(tmp_path)] == ["api/trl.md", "api/testing.md"]
