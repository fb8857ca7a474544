"""A Space's files with upstream's package taken out and another reference put in. Pure: texts in, texts out.

Only what names the package is edited, where it is understood for certain: requirements in ``pyproject.toml`` and
``requirements.txt``, ``pip`` and ``uv`` commands of the Dockerfile. A ``uv.lock`` that pins the package is taken out.
Anything else that brings the package in is refused, with the reason.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from openenv.cli._space_files import Refusal

__all__ = ["Swap", "wanted_files"]

_NAMES = ("openenv", "openenv-core")
_REPOSITORY = (
    r"(?:git\+)?https://github\.com/(?:meta-pytorch|huggingface|openenv)/openenv(?:\.git)?(?![\w-])[^\s\"'\\;&]*"
)
_WORD = re.compile(
    r"""(?P<quote>["']?)(?<![\w./@$\{-])"""
    rf"""(?P<package>(?-i:openenv(?:[-_]core)?)(?![\w./-]|=[^=])(?:\[[^\]\s]*\])?"""
    rf"""(?:\s*@\s*{_REPOSITORY}|(?:==|[<>!~]=|[<>])[^\s"'\\;&]+)?"""
    rf"""|{_REPOSITORY})(?P=quote)""",
    re.I,
)
_INSTALLS = re.compile(r"\b(?:pip3?\s+install|uv\s+add|uv\s+tool\s+install|pipx\s+install)\b")
_VENDORED = re.compile(r"(?:^|/)(?:openenv|openenv_core|src/core)/(?:core/)?(?:env_server|http_env_client\.py)")
_OLD_PYTHON = re.compile(r"^\s*FROM\s+(?:\S*/)?python:3\.(\d+)", re.I | re.M)

_REQUIREMENTS = frozenset(("build-system.requires", "project.dependencies", "tool.uv.dev-dependencies"))

_BORROWED = {
    "fastmcp": "fastmcp",
    "gradio": "gradio",
    "huggingface_hub": "huggingface_hub",
    "jsonschema": "jsonschema",
    "openai": "openai",
    "packaging": "packaging",
    "requests": "requests",
    "rich": "rich",
    "tomli": "tomli",
    "typer": "typer",
    "yaml": "pyyaml",
}
"""Modules that upstream's package brings along and this one's ``core`` extra may not, and what installs them."""


def wanted_files(paths: Iterable[str]) -> list[str]:
    """Which of a Space's files must be read to swap the package: those that may be edited, and its Python."""
    names = {"Dockerfile", "pyproject.toml", "uv.lock", ".python-version"}
    return [
        path
        for path in paths
        if path.endswith(".py")
        or (path.count("/") <= 1 and (path.split("/")[-1] in names or re.search(r"requirements[\w-]*\.txt$", path)))
    ]


@dataclass
class Swap:
    """One Space's swap.

    Attributes:
        files: the texts that `wanted_files` names.
        paths: paths of all files of the Space.
        reference: what to install: ``git+https://...@commit``, the URL of a wheel, or a version as ``==0.11.0``.
        edited: the new texts; None for a file that is taken out. Filled by `run`.
        notes: what a person should know beside the edits. Filled by `run`.
    """

    files: Mapping[str, str]
    paths: Iterable[str]
    reference: str
    edited: dict[str, str | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _swapped: int = 0
    _beside: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Make the edits.

        Raises:
            Refusal: something is not understood; nothing is to be done then.
        """
        self._refuse_what_cannot_work()
        self._beside = self._borrowed()
        for path, text in self.files.items():
            name = path.split("/")[-1]
            if name == "pyproject.toml":
                self._keep(path, self._pyproject(path, text))
            elif name.endswith(".txt"):
                self._keep(path, self._requirements(path, text))
            elif name == "uv.lock" and re.search(r'^name = "openenv(-core)?"$', text, re.M):
                self.edited[path] = None
                self.notes.append(f"{path} pins upstream's package: it is taken out, and versions are resolved anew")
        for path, text in self.files.items():
            if path.split("/")[-1] == "Dockerfile":
                self._keep(path, self._dockerfile(path, text))
        if not self._swapped:
            raise Refusal(
                "nothing in its Dockerfile, pyproject.toml or requirements.txt installs openenv: it may come with the "
                "base image, or be installed by a script. Swap it by hand"
            )

    def _keep(self, path: str, text: str) -> None:
        if text != self.files[path]:
            self.edited[path] = text

    def _refuse_what_cannot_work(self) -> None:
        if vendored := next(filter(_VENDORED.search, self.paths), None):
            raise Refusal(f"the Space brings its own copy of the package ({vendored}). Take that out by hand")
        dockerfiles = [text for path, text in self.files.items() if path.split("/")[-1] == "Dockerfile"]
        if not dockerfiles:
            raise Refusal("it has no Dockerfile, so it is no environment server")
        pinned = re.match(r"3\.(\d+)", self.files.get(".python-version", ""))
        for match in (*(found for text in dockerfiles for found in _OLD_PYTHON.finditer(text)), pinned):
            if match is not None and int(match[1]) < 11:
                raise Refusal(f"its image has Python 3.{match[1]}, and this package needs 3.11. Change its FROM first")
        for text in dockerfiles:
            if re.search(r"git\s+clone\s[^\n]*openenv", text, re.I):
                raise Refusal("its Dockerfile clones upstream's repository. Replace that by an installation by hand")
            if self.reference.startswith("git+") and not re.search(r"\bgit\b(?!\+)", text):
                raise Refusal("its image has no git to install from a repository with; give the URL of a wheel")
            if re.search(r"--workers[=\s]+(?:[2-9]|\d\d)", text):
                self.notes.append("it runs several workers, among which sessions are lost: set --workers 1")

    # ---------------------------------------------------------------- requirements

    def _ours(self) -> str:
        link = "" if re.match(r"[<>=~!]", self.reference) else " @ "
        return f"openenv[core]{link}{self.reference}"

    def _is_upstreams(self, text: str, path: str) -> bool:
        from packaging.requirements import InvalidRequirement, Requirement

        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            if re.fullmatch(_REPOSITORY, text.strip(), re.I):
                return True
            if "openenv" in text.lower():
                raise Refusal(f"{path}: {text.strip()!r} is not understood. Swap it by hand") from None
            return False
        if requirement.name.lower().replace("_", "-") not in _NAMES:
            return False
        if requirement.url is not None and re.fullmatch(_REPOSITORY, requirement.url, re.I) is None:
            raise Refusal(f"{path} installs openenv from {requirement.url}, which is not upstream's. Swap it by hand")
        if requirement.marker is not None:
            raise Refusal(f"{path} installs openenv under a condition ({requirement.marker}). Swap it by hand")
        return True

    def _pyproject(self, path: str, text: str) -> str:
        try:
            before = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise Refusal(f"{path} cannot be read: {error}") from None
        tool = before.get("tool", {})
        if any(name in tool.get("poetry", {}).get("dependencies", {}) for name in _NAMES):
            raise Refusal(f"{path} is Poetry's. Swap openenv there by hand")
        found = {one for one in _requirements_of(before) if self._is_upstreams(one, path)}
        if not found:
            return text
        text = "".join(self._in_toml(line, found) if asks else line for line, asks in _lines_that_ask(text))
        text = re.sub(r'^[ \t]*"?openenv(?:-core)?"?[ \t]*=[ \t]*\{[^}\n]*\}[^\n]*\n', "", text, flags=re.M)
        text = self._newer_python(text, before.get("project", {}).get("requires-python"), path)
        if "hatchling" in str(before.get("build-system", {}).get("build-backend", "")) and "://" in self.reference:
            text = _with_direct_references(text, tool, path)
        after = tomllib.loads(text)
        left = [one for one in _requirements_of(after) if one != self._ours() and self._is_upstreams(one, path)]
        if left or any(name in after.get("tool", {}).get("uv", {}).get("sources", {}) for name in _NAMES):
            raise Refusal(f"{path} names openenv in a way that is not understood. Swap it by hand")
        self._swapped += 1
        return text

    def _in_toml(self, line: str, found: set[str]) -> str:
        for one in found:
            for quote in "\"'":
                if f"{quote}{one}{quote}" in line:
                    new = ", ".join(f"{quote}{part}{quote}" for part in (self._ours(), *self._beside))
                    return line.replace(f"{quote}{one}{quote}", new)
        return line

    def _newer_python(self, text: str, required: str | None, path: str) -> str:
        lowest = re.search(r">=\s*3\.(\d+)", required or "")
        if required is None or lowest is None or int(lowest[1]) >= 11:
            return text
        newer = required.replace(lowest[0], ">=3.11")
        edited = re.sub(rf'^(\s*requires-python\s*=\s*["\']){re.escape(required)}', rf"\g<1>{newer}", text, flags=re.M)
        if edited == text:
            raise Refusal(f"{path}: requires-python is not understood; this package needs >=3.11")
        return edited

    def _requirements(self, path: str, text: str) -> str:
        lines = []
        for line in text.splitlines(keepends=True):
            bare = re.sub(r"(^|\s)#.*", "", line).strip()
            if bare.startswith("-") and "openenv" in bare.lower():
                raise Refusal(f"{path}: {bare!r} is not understood. Swap it by hand")
            if not bare or bare.startswith("-") or not self._is_upstreams(bare, path):
                lines.append(line)
                continue
            lines.append("\n".join((line.replace(bare, self._ours()).rstrip(), *self._beside)) + "\n")
            self._swapped += 1
        return "".join(lines)

    def _borrowed(self) -> list[str]:
        """What the environment's code imports that came along with upstream's package and is not asked for."""
        code = "\n".join(text for path, text in self.files.items() if path.endswith(".py"))
        asked = "\n".join(text for path, text in self.files.items() if not path.endswith((".py", "uv.lock")))
        modules = set(re.findall(r"^\s*(?:import|from)\s+(\w+)", code, re.M)) & _BORROWED.keys()
        found = [_BORROWED[module] for module in sorted(modules)]
        missing = [name for name in found if name != "fastmcp" and not re.search(rf"\b{name}\b", asked, re.I)]
        if missing:
            self.notes.append(f"its code imports {', '.join(missing)}, which came with upstream's package: added")
        return missing

    # ---------------------------------------------------------------- Dockerfile

    def _dockerfile(self, path: str, text: str) -> str:
        locks = [name for name, new in self.edited.items() if name.endswith("uv.lock") and new is None]
        done = []
        for instruction in _instructions(text):
            word = instruction.split(None, 1)[0].upper() if instruction.strip() else ""
            if word == "COPY" and re.search(r"\bsrc/(?:core|openenv)\b", instruction):
                raise Refusal(f"{path} copies upstream's sources ({instruction.strip()}). Take that out by hand")
            if (word == "RUN" and _INSTALLS.search(instruction)) or word == "ARG":
                instruction = self._in_command(instruction)
            if locks and word == "COPY":
                instruction = re.sub(r"[ \t]\S*\buv\.lock(?=[ \t])", "", instruction)
            if locks and word == "RUN" and "uv sync" in instruction and "uv.lock" not in instruction:
                instruction = re.sub(r"[ \t]--(?:frozen|locked)\b", "", instruction)
            done.append(instruction)
        return "".join(done)

    def _in_command(self, instruction: str) -> str:
        def swapped(match: re.Match[str]) -> str:
            self._swapped += 1
            quote = match["quote"] or '"'
            return " ".join((f"{quote}{self._ours()}{quote}", *self._beside))

        return _WORD.sub(swapped, instruction)


def _requirements_of(project: Mapping[str, Any]) -> list[str]:
    """Every requirement in a ``pyproject.toml``."""
    table = project.get("project", {})
    lists = [table.get("dependencies", []), *table.get("optional-dependencies", {}).values()]
    lists += [*project.get("dependency-groups", {}).values(), project.get("build-system", {}).get("requires", [])]
    lists.append(project.get("tool", {}).get("uv", {}).get("dev-dependencies", []))
    return [one for group in lists for one in group if isinstance(one, str)]


def _lines_that_ask(text: str) -> Iterator[tuple[str, bool]]:
    """The lines of a ``pyproject.toml``, and whether they stand in a list of requirements and are no comment."""
    table = key = ""
    for line in text.splitlines(keepends=True):
        if header := re.match(r"\s*\[([\w.\s\"-]+)\]\s*(?:#.*)?$", line):
            table, key = header[1].replace('"', "").strip(), ""
        elif begun := re.match(r"\s*\"?([\w.-]+)\"?\s*=", line):
            key = begun[1]
        place = f"{table}.{key}" if table else key
        asks = place in _REQUIREMENTS or table in ("project.optional-dependencies", "dependency-groups")
        yield line, asks and not line.lstrip().startswith("#")


def _with_direct_references(text: str, tool: Mapping[str, Any], path: str) -> str:
    """Hatchling takes the URL of a requirement only where it is told so."""
    metadata = tool.get("hatch", {}).get("metadata")
    if metadata is None:
        return f"{text.rstrip()}\n\n[tool.hatch.metadata]\nallow-direct-references = true\n"
    if metadata.get("allow-direct-references"):
        return text
    edited = re.sub(r"^\[tool\.hatch\.metadata\]\n", r"\g<0>allow-direct-references = true\n", text, flags=re.M)
    if edited == text:
        raise Refusal(f"{path}: its hatch metadata is not understood; set allow-direct-references = true")
    return edited


def _instructions(text: str) -> list[str]:
    """A Dockerfile's instructions, each with the lines that continue it; comments and blank lines between are their
    own."""
    found: list[str] = []
    continues = False
    for line in text.splitlines(keepends=True):
        comment = line.lstrip().startswith("#")
        if continues:
            found[-1] += line
        else:
            found.append(line)
        continues = (continues and (comment or not line.strip())) or (not comment and line.rstrip().endswith("\\"))
    return found
