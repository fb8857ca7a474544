"""What the web page is told of an environment before it opens a session: names, README, and what a form can ask for.

Nothing here knows HTTP, and no environment is made.
"""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from openenv.core.env_server.interfaces import Environment

__all__ = ["display_description", "display_title", "reset_schema", "split_front_matter"]

_USUAL: Mapping[str, Any] = {
    "seed": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None, "title": "Seed"},
    "episode_id": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Episode Id"},
}
"""What every `Environment.reset` takes."""

_FRONT_MATTER = re.compile(r"\A\ufeff?---[ \t]*\n(.*?)\n---[ \t]*(?:\n|\Z)", re.DOTALL)
_SETTING = re.compile(r"^([A-Za-z_]+):[ \t]*(.+?)[ \t]*$", re.MULTILINE)
_ARGUMENT = re.compile(r"^( *)\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s+(.*)$")


def reset_schema(env_class: type[Any] | None) -> dict[str, Any]:
    """The parameters of an environment's reset, as a JSON Schema of an object.

    Args:
        env_class: its class; None where that is not known, then only the usual ones are told.

    Returns:
        The schema; ``additionalProperties`` says whether reset takes more than it names. Descriptions are those of
        an ``Args:`` section in its docstring.
    """
    function = _reset_of(env_class)
    if function is None:
        return {"type": "object", "properties": dict(_USUAL), "additionalProperties": True}
    described = _described(inspect.getdoc(function) or "")
    hints = _hints(function)
    properties: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    required, more = [], False
    for name, parameter in list(inspect.signature(function).parameters.items())[1:]:
        if parameter.kind is parameter.VAR_KEYWORD:
            more = True
        elif parameter.kind not in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            schema = _schema_of(hints.get(name, Any))
            definitions.update(schema.pop("$defs", {}))
            schema.setdefault("title", name.replace("_", " ").title())
            if name in described:
                schema["description"] = described[name]
            if parameter.default is parameter.empty:
                required.append(name)
            elif _is_json(parameter.default):
                schema["default"] = parameter.default
            properties[name] = schema
    whole = {"type": "object", "properties": properties, "required": required, "additionalProperties": more}
    return {**whole, "$defs": definitions} if definitions else whole


def split_front_matter(readme: str) -> tuple[dict[str, str], str]:
    """Part a README into the settings that the Hub keeps at its top, and the text."""
    found = _FRONT_MATTER.match(readme)
    if found is None:
        return {}, readme
    settings = {key: value.strip("'\"") for key, value in _SETTING.findall(found.group(1))}
    return settings, readme[found.end() :]


def display_title(name: str, given: str | None, settings: Mapping[str, str]) -> str:
    """The heading of the page: what was given, what the README's settings say, or the name made readable."""
    if given or settings.get("title"):
        return given or settings["title"]
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ").replace("-", " ").split()
    return " ".join(word if word.isupper() else word.capitalize() for word in words) or name


def display_description(told: str, settings: Mapping[str, str], readme: str) -> str:
    """The line below the heading: what the environment says of itself; where that is nothing but a class name, the
    short description in the README's settings, or the first sentence of its text."""
    if not re.fullmatch(r"\S+ environment", told):
        return told
    if settings.get("short_description"):
        return settings["short_description"]
    paragraphs = (part.strip() for part in re.split(r"\n\s*\n", readme))
    text = next((part for part in paragraphs if re.match(r"[A-Z][^|`]*$", part)), "")
    sentence = re.match(r"(?s).{1,160}?\.(?=\s|$)", text)
    return " ".join(sentence.group().split()) if sentence else told


def _reset_of(env_class: type[Any] | None) -> Callable[..., Any] | None:
    if env_class is None or not issubclass(env_class, Environment):
        return None
    is_async = env_class.reset_async is not Environment.reset_async
    return env_class.reset_async if is_async else env_class.reset


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception:  # names that exist for type checkers only: the form then takes any JSON
        return {}


def _schema_of(hint: Any) -> dict[str, Any]:
    try:
        return TypeAdapter(hint).json_schema()
    except PydanticUserError:  # a type that has no JSON Schema: the form takes any JSON
        return {}


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _described(doc: str) -> dict[str, str]:
    """The entries of the ``Args:`` section of a docstring."""
    _, found, section = doc.partition("\nArgs:\n")
    entries: dict[str, str] = {}
    indent, name = None, ""
    for line in section.splitlines() if found else ():
        if line.strip() and not line.startswith(" "):
            break
        entry = _ARGUMENT.match(line)
        if entry and indent in (None, len(entry.group(1))):
            indent, name = len(entry.group(1)), entry.group(2)
            entries[name] = entry.group(3)
        elif name and line.strip():
            entries[name] += " " + line.strip()
    return entries
