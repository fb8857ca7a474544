"""The rules about the files of a package. Nothing of it is imported or run."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openenv._package import MANIFEST, NoApp, find_app
from openenv.auto._manifest import read_manifest
from openenv.core.env_server.web_page import split_front_matter
from openenv.validation.dockerfile import check_dockerfile
from openenv.validation.report import Report, Verdict

__all__ = ["FILE_RULES", "check_files"]

FILE_RULES = ("manifest", "project", "readme", "dockerfile")

_EXAMPLE = (
    "as: spec_version: 1 / name: my_env / type: space / runtime: fastapi / app: my_env.server.app:app / port: 8000"
)


def check_files(folder: Path, report: Report) -> None:
    """Look at the files of a package.

    Args:
        folder: where they are.
        report: what was found is added to it.
    """
    manifest = _check_manifest(folder, report)
    _check_project(folder, report)
    front = _check_readme(folder, manifest, report)
    check_dockerfile(folder, manifest, front, report)
    report.passed(*FILE_RULES)


def _check_manifest(folder: Path, report: Report) -> Mapping[str, Any]:
    file = folder / MANIFEST
    if not file.is_file():
        report.add("manifest", Verdict.FAIL, f"there is no {MANIFEST}", f"write one, {_EXAMPLE}")
        return {}
    values = read_manifest(file)
    if not values:
        report.add("manifest", Verdict.FAIL, f"{MANIFEST} is no list of names and values", f"write it {_EXAMPLE}")
        return {}
    try:
        source = find_app(str(folder))
    except NoApp as error:
        report.add("manifest", Verdict.FAIL, str(error), f"write it {_EXAMPLE}")
    else:
        module = source.reference.partition(":")[0].replace(".", "/")
        if not any((folder / place).exists() for place in (f"{module}.py", f"{module}/__init__.py")):
            text = f"app: {source.reference} names a module that is not in this folder"
            report.add("manifest", Verdict.FAIL, text, f"there should be {module}.py")
    name = values.get("name")
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][\w-]*", name):
        text = f"name: {name!r} is no name" if "name" in values else "it has no name"
        report.add("manifest", Verdict.FAIL, text, "add a line name: my_env")
    port = values.get("port", 8000)
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
        report.add("manifest", Verdict.FAIL, f"port: {port!r} is no port", "write port: 8000")
    if values.get("spec_version") != 1:
        text = f"spec_version is {values.get('spec_version')!r}"
        report.add("manifest", Verdict.WARN, text, "write spec_version: 1")
    return values


def _check_project(folder: Path, report: Report) -> None:
    file = folder / "pyproject.toml"
    if not file.is_file():
        report.add("project", Verdict.FAIL, "there is no pyproject.toml", "write one, as openenv init does")
        return
    try:
        project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        report.add("project", Verdict.FAIL, f"pyproject.toml cannot be read: {error}", "mend that line")
        return
    if not project.get("name"):
        report.add(
            "project", Verdict.FAIL, "pyproject.toml names no project", "add [project] with a name and a version"
        )
    if not project.get("version") and "version" not in project.get("dynamic", []):
        report.add("project", Verdict.FAIL, "pyproject.toml has no version", 'add version = "0.1.0"')
    asked = [str(one) for one in project.get("dependencies", [])]
    if not any(re.match(r"openenv(-core)?\b(?!-)", one) for one in asked):
        text = "pyproject.toml does not ask for openenv"
        report.add("project", Verdict.FAIL, text, 'add "openenv>=0.11" to its dependencies')


def _check_readme(folder: Path, manifest: Mapping[str, Any], report: Report) -> Mapping[str, str]:
    file = folder / "README.md"
    if not file.is_file():
        report.add("readme", Verdict.WARN, "there is no README.md", "write one; a Space reads its settings from it")
        return {}
    text = file.read_text(encoding="utf-8", errors="replace")
    front, _ = split_front_matter(text)
    if not front:
        move = "begin it with --- / title: My env / sdk: docker / app_port: 8000 / ---"
        report.add("readme", Verdict.WARN, "README.md has no front matter, so it makes no Space", move)
        return {}
    if front.get("sdk") != "docker":
        text = f"README.md says sdk: {front.get('sdk', '(nothing)')}"
        report.add("readme", Verdict.WARN, text, "an environment is a Space of sdk: docker")
    if not front.get("title"):
        report.add("readme", Verdict.WARN, "README.md has no title in its front matter", "add title: My env")
    port, told = front.get("app_port", "7860"), manifest.get("port", 8000)
    if isinstance(told, int) and port != str(told):
        text = f"README.md says app_port: {port}, and {MANIFEST} port: {told}"
        report.add("readme", Verdict.WARN, text, "make them the same: a Space forwards to app_port")
    return front
