"""What ``openenv init`` writes: which templates there are, and how one becomes a package of a name.

A template is a folder of ``.tmpl`` files over those of ``shared``. In their paths ``NAME`` is the package's name
and ``BASE`` the same without ``_env``; in their text ``@@word@@`` stands for a word of `Words`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

__all__ = ["TEMPLATES", "Source", "Template", "render", "words_of"]

_ENDING = ".tmpl"
_LINE_LENGTH = 120
_WORD = re.compile(r"@@(\w+)@@")


@dataclass(frozen=True, slots=True)
class Template:
    """A kind of package.

    Attributes:
        about: what it is, for ``--help``.
        description: what its package says of itself.
        extra: which extra of openenv it needs; empty for none.
        requires: what it needs beside openenv.
        action: its action class, and the module it comes from if not the package's own models.
        observation: its observation class, likewise.
        example: what its README shows.
    """

    about: str
    description: str
    extra: str
    requires: tuple[str, ...]
    action: str
    observation: str
    example: str
    models: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """What the package installs as openenv.

    Attributes:
        reference: a version, a URL of a wheel, ``git+https://...``; empty for the wheel beside it.
        wheel: name of that wheel; empty without one.
    """

    reference: str = ""
    wheel: str = ""


TEMPLATES: Mapping[str, Template] = {
    "typed": Template(
        about="actions, observations and state as models of its own",
        description="Find a secret number: an environment with typed actions.",
        extra="",
        requires=(),
        action="@@Name@@Action",
        observation="@@Name@@Observation",
        example="""\
from @@name@@ import @@Name@@Action, @@Name@@Env

with @@Name@@Env(base_url="http://localhost:8000").sync() as env:
    env.reset(seed=7)
    result = env.step(@@Name@@Action(number=50))
    print(result.observation.hint, result.reward, result.done)""",
    ),
    "mcp": Template(
        about="actions that are calls of tools (MCP)",
        description="Find a secret number: an environment whose actions are calls of tools.",
        extra="mcp",
        requires=(),
        action="CallToolAction",
        observation="CallToolObservation",
        models="from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation\n",
        example="""\
from @@name@@ import @@Name@@Env

with @@Name@@Env(base_url="http://localhost:8000").sync() as env:
    env.reset(seed=7)
    print([tool.name for tool in env.list_tools()])
    print(env.call_tool("guess", number=50))""",
    ),
    "gymnasium": Template(
        about="a Gymnasium environment",
        description="CartPole of Gymnasium as an environment behind a network.",
        extra="",
        requires=("gymnasium>=1.1",),
        action="@@Name@@Action",
        observation="@@Name@@Observation",
        example="""\
from @@name@@ import @@Name@@Action, @@Name@@Env

with @@Name@@Env(base_url="http://localhost:8000").sync() as env:
    env.reset(seed=7)
    result = env.step(@@Name@@Action(action=1))
    print(result.observation.values, result.reward, result.done)""",
    ),
}


def words_of(name: str, template: Template, source: Source) -> dict[str, str]:
    """The words that stand for ``@@word@@``.

    Args:
        name: the package's name, in snake case.
        template: its kind.
        source: what it installs as openenv.
    """
    base = name.removesuffix("_env") or name
    words = [word for word in base.split("_") if word]
    own = template.action.startswith("@@")
    imports = [f"from {name}.server.{base}_environment import @@Name@@Environment"]
    models = "@@Name@@Action, @@Name@@Observation, @@Name@@State" if own else "@@Name@@State"
    imports.insert(0, f"from {name}.models import {models}")
    dependencies = [f"openenv{_extra(template)}>=0.11", *template.requires]
    return {
        "name": name,
        "base": base,
        "Name": "".join(word[:1].upper() + word[1:] for word in words),
        "slug": name.replace("_", "-").strip("-"),
        "title": " ".join([*(word.capitalize() for word in words), "Environment"]),
        "description": template.description,
        "dependencies": ", ".join(f'"{one}"' for one in dependencies),
        "action": template.action,
        "observation": template.observation,
        "app_imports": template.models + "\n" + "\n".join(imports),
        "example": template.example,
        "files": _files(name, base, own),
        **_source_words(template, source),
    }


def render(kind: str, words: Mapping[str, str]) -> dict[str, str]:
    """The files of a package.

    Args:
        kind: which of `TEMPLATES`.
        words: see `words_of`.

    Returns:
        Text by path.
    """
    root = resources.files("openenv.cli") / "templates"
    found: dict[str, str] = {}
    for layer in ("shared", kind):
        for path, text in _walk(root / layer):
            found[path.replace("NAME", words["name"]).replace("BASE", words["base"])] = _filled(text, words)
    return dict(sorted(found.items()))


def _walk(folder: Traversable, before: str = "") -> list[tuple[str, str]]:
    found = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _walk(entry, f"{before}{entry.name}/")
        elif entry.name.endswith(_ENDING):
            found.append((before + entry.name.removesuffix(_ENDING), entry.read_text(encoding="utf-8")))
    return found


def _filled(text: str, words: Mapping[str, str]) -> str:
    while (filled := _WORD.sub(lambda match: words[match[1]], text)) != text:
        text = filled
    lines = [_wrapped(line) for line in text.rstrip().splitlines()]
    return "\n".join([*lines, ""]) if text.strip() else ""


def _wrapped(line: str) -> str:
    """An import that a long name has made too long, as formatters would write it."""
    imported = re.fullmatch(r"(from \S+ import )([^()]+)", line)
    if imported is None or len(line) <= _LINE_LENGTH:
        return line
    return "\n".join([f"{imported[1]}(", *(f"    {name.strip()}," for name in imported[2].split(",")), ")"])


def _extra(template: Template) -> str:
    return f"[{template.extra}]" if template.extra else ""


def _source_words(template: Template, source: Source) -> dict[str, str]:
    extra = _extra(template)
    words = {"docker_git": "", "docker_copy": "", "uv_source": ""}
    if source.wheel:
        words["docker_openenv"] = f"./wheels/{source.wheel}{extra}"
        words["docker_copy"] = "COPY --chown=user wheels wheels\n"
        words["uv_source"] = f'\n[tool.uv.sources]\nopenenv = {{ path = "wheels/{source.wheel}" }}'
    elif "://" in source.reference:
        words["docker_openenv"] = f"openenv{extra} @ {source.reference}"
        if source.reference.startswith("git+"):
            words["docker_git"] = (
                "RUN apt-get update && apt-get install --yes --no-install-recommends git "
                "&& rm -rf /var/lib/apt/lists/*\n"
            )
            url, _, revision = source.reference.removeprefix("git+").rpartition("@")
            words["uv_source"] = f'\n[tool.uv.sources]\nopenenv = {{ git = "{url}", rev = "{revision}" }}'
        else:
            words["uv_source"] = f'\n[tool.uv.sources]\nopenenv = {{ url = "{source.reference}" }}'
    else:
        words["docker_openenv"] = f"openenv{extra}{source.reference}"
    return words


def _files(name: str, base: str, own_models: bool) -> str:
    models = "what crosses the wire: action, observation, state" if own_models else "the state"
    rows = {
        f"{name}/server/{base}_environment.py": "the environment: **your rules go here**",
        f"{name}/models.py": models,
        f"{name}/client.py": "the client class",
        f"{name}/server/app.py": "the application, and the command that serves it",
    }
    return "\n".join(f"| `{path}` | {what} |" for path, what in rows.items())
