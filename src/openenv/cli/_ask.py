"""From what a person types to the value of a field, by the field's JSON Schema. Pure.

A value that does not fit is refused with the reason, so that it can be asked for again. The server has the last word.
"""

from __future__ import annotations

import json
import math
import operator
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from openenv.cli._show import plain
from openenv.core.wire.json_codec import MalformedFrame, parse_json

__all__ = ["BadValue", "Field", "constants_of", "fields_of", "from_line", "pairs_of"]

_TRUE = {"true", "t", "yes", "y", "1", "on"}
_FALSE = {"false", "f", "no", "n", "0", "off"}
_BOUNDS = (
    ("minimum", ">=", operator.ge),
    ("exclusiveMinimum", ">", operator.gt),
    ("maximum", "<=", operator.le),
    ("exclusiveMaximum", "<", operator.lt),
)


class BadValue(Exception):
    """What was typed does not fit. Says why."""


@dataclass(frozen=True)
class Field:
    """One field of an action, or one argument of a tool.

    Attributes:
        name: its name.
        schema: its JSON Schema, references resolved; of a field that may be null, the schema of its value.
        required: whether it must be given.
        nullable: whether it may be null.
    """

    name: str
    schema: Mapping[str, Any]
    required: bool
    nullable: bool = False

    @property
    def choices(self) -> list[Any] | None:
        """The values that it may have, if they are listed."""
        if "const" in self.schema:
            return [self.schema["const"]]
        found = self.schema.get("enum")
        return list(found) if isinstance(found, list) else None

    @property
    def kind(self) -> str:
        """Its JSON type; ``any`` if the schema does not say one."""
        kind = self.schema.get("type")
        return kind if isinstance(kind, str) else "any"

    def described(self) -> str:
        """What may be typed, in brackets: type or choices, bounds, default."""
        choices = self.choices
        parts = [" | ".join(map(plain, choices)) if choices else self.kind]
        parts += [f"{sign} {self.schema[key]}" for key, sign, _ in _BOUNDS if key in self.schema]
        if "pattern" in self.schema:
            parts.append(f"like {self.schema['pattern']}")
        if self.kind in ("array", "object"):
            parts.append("JSON")
        if not self.required:
            default = self.schema.get("default")
            parts.append("may be left out" if default is None else f"default {plain(default)}")
        return f"{self.name} ({', '.join(parts)})"

    def read(self, text: str) -> Any:
        """The value that a text stands for.

        Raises:
            BadValue: it fits no value of the field.
        """
        if self.nullable and text in ("null", "None"):
            return None
        choices = self.choices
        if choices is not None:
            for choice in choices:
                if text == plain(choice) or text == json.dumps(choice):
                    return choice
            raise BadValue(f"{self.name} is one of {', '.join(map(plain, choices))}, not {text!r}")
        value = self._typed(text)
        self._check(value)
        return value

    def _typed(self, text: str) -> Any:
        match self.kind:
            case "string":
                return text
            case "integer":
                return self._number(text, int, "a whole number")
            case "number":
                number = self._number(text, float, "a number")
                return int(number) if math.isfinite(number) and number == int(number) and "." not in text else number
            case "boolean":
                if text.lower() in _TRUE | _FALSE:
                    return text.lower() in _TRUE
                raise BadValue(f"{self.name} is true or false, not {text!r}")
            case "array" | "object" as kind:
                value = self._json(text)
                if not isinstance(value, list if kind == "array" else dict):
                    example = "[1, 2]" if kind == "array" else '{"key": 1}'
                    raise BadValue(f"{self.name} is a JSON {kind}, as {example}, not {text!r}")
                return value
        try:
            return parse_json(text)  # of a union, or of a schema that says nothing: JSON if it is that, else a text
        except MalformedFrame:
            return text

    def _number(self, text: str, cast: Any, what: str) -> Any:
        try:
            return cast(text)
        except ValueError:
            raise BadValue(f"{self.name} is {what}, not {text!r}") from None

    def _json(self, text: str) -> Any:
        try:
            return parse_json(text)
        except MalformedFrame as error:
            raise BadValue(f"{self.name} is JSON: {error}") from None

    def _check(self, value: Any) -> None:
        schema = self.schema
        if isinstance(value, int | float) and not isinstance(value, bool):
            for key, sign, holds in _BOUNDS:
                if _is_number(schema.get(key)) and not holds(value, schema[key]):
                    raise BadValue(f"{self.name} must be {sign} {schema[key]}, and {plain(value)} is not")
            step = schema.get("multipleOf")
            if _is_number(step) and step > 0 and not _is_multiple(value, step):
                raise BadValue(f"{self.name} must be a multiple of {step}, and {plain(value)} is not")
        least, most = ("minLength", "maxLength") if isinstance(value, str) else ("minItems", "maxItems")
        if isinstance(value, str | list):
            unit = "characters" if isinstance(value, str) else "items"
            if len(value) < (schema[least] if _is_number(schema.get(least)) else 0):
                raise BadValue(f"{self.name} must have at least {schema[least]} {unit}, and has {len(value)}")
            if len(value) > (schema[most] if _is_number(schema.get(most)) else math.inf):
                raise BadValue(f"{self.name} must have at most {schema[most]} {unit}, and has {len(value)}")
        if isinstance(value, str) and isinstance(schema.get("pattern"), str) and not _matches(schema["pattern"], value):
            raise BadValue(f"{self.name} must match {schema['pattern']}, and {value!r} does not")


def fields_of(schema: Mapping[str, Any]) -> list[Field]:
    """The fields of an object's schema that a person is asked for, the required ones first.

    ``metadata``, which every action has, is not asked for, and neither is what can have one value only.
    """
    required = _required(schema)
    found = []
    for name, given in _mapping(schema.get("properties")).items():
        own, nullable = _resolved(given, schema)
        if "const" in own or (name == "metadata" and name not in required):
            continue
        found.append(Field(name, own, name in required, nullable))
    return sorted(found, key=lambda field: not field.required)


def constants_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that can have one value only, and must be given."""
    required = _required(schema)
    resolved = {name: _resolved(given, schema)[0] for name, given in _mapping(schema.get("properties")).items()}
    return {name: own["const"] for name, own in resolved.items() if "const" in own and name in required}


def from_line(fields: Sequence[Field], line: str) -> dict[str, Any]:
    """The values that a line names: a JSON object, ``name=value`` pairs, or bare values in the order of the fields.

    Where there is one field, or one that is required, the whole line is its value. Where none is required, bare values
    are those of the first fields.

    Raises:
        BadValue: it is none of these, or a value does not fit.
    """
    text = line.strip()
    if text.startswith("{"):
        try:
            found = parse_json(text)
        except MalformedFrame as error:
            raise BadValue(f"this is no JSON: {error}") from None
        assert isinstance(found, dict)
        return found
    known = {field.name: field for field in fields}
    pairs = pairs_of(text)
    if pairs is not None and (pairs.keys() <= known.keys() or not fields):
        values = {name: known[name].read(value) if name in known else value for name, value in pairs.items()}
        if missing := [field.name for field in fields if field.required and field.name not in values]:
            raise BadValue(f"{', '.join(missing)} must be given, too")
        return values
    main = [field for field in fields if field.required]
    if text and len(main or fields) == 1:
        only = (main or fields)[0]
        return {only.name: only.read(text)}
    words = _words(text)
    for asked in (main, fields if main else fields[: len(words)]):
        if words and len(words) == len(asked):
            return {field.name: field.read(word) for field, word in zip(asked, words, strict=True)}
    names = " ".join(f"{field.name}=..." for field in main or fields)
    raise BadValue(f"{line.strip()!r} is not understood; type {names or 'a JSON object'}, or an empty line to be asked")


def pairs_of(line: str) -> dict[str, str] | None:
    """The ``name=value`` pairs of a line; None if there is anything else in it."""
    words = _words(line)
    found = [re.fullmatch(r"([A-Za-z_][\w-]*)=(.*)", word, re.S) for word in words]
    if not words or not all(found):
        return None
    return {match[1]: match[2] for match in found if match is not None}


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # an apostrophe in a text
        return line.split()


def _required(schema: Mapping[str, Any]) -> set[str]:
    given = schema.get("required")
    return {name for name in given if isinstance(name, str)} if isinstance(given, list) else set()


def _mapping(given: Any) -> dict[str, Any]:
    """What a schema has in a place of a mapping; nothing if that is none."""
    return given if isinstance(given, dict) else {}


def _resolved(given: Any, root: Mapping[str, Any], depth: int = 10) -> tuple[Mapping[str, Any], bool]:
    """A field's schema with what it refers to, and whether it may be null."""
    own: dict[str, Any] = dict(_mapping(given))
    for _ in range(10):  # a reference to a reference, not for ever
        name = str(own.get("$ref", "")).rsplit("/", 1)[-1]
        if not name:
            break
        rest = {key: value for key, value in own.items() if key != "$ref"}
        own = {**_mapping(_mapping(root.get("$defs", root.get("definitions"))).get(name)), **rest}
    several = own.get("anyOf") or own.get("oneOf") or []
    if not isinstance(several, list) or depth == 0:  # one that leads to itself says nothing
        return own, False
    kept = [one for one in several if isinstance(one, dict) and one.get("type") != "null"]
    nullable = len(kept) < len(several)
    if len(kept) == 1:
        inner, _ = _resolved(kept[0], root, depth - 1)
        return {**inner, **{key: value for key, value in own.items() if key not in ("anyOf", "oneOf")}}, nullable
    return own, nullable


def _is_number(given: Any) -> TypeGuard[float]:
    return isinstance(given, int | float) and not isinstance(given, bool)


def _is_multiple(value: float, step: float) -> bool:
    try:
        return math.isclose(value / step, round(value / step))
    except (OverflowError, ValueError):  # infinite, not a number, or too large to tell: the server will
        return True


def _matches(pattern: str, value: str) -> bool:
    try:
        return re.search(pattern, value) is not None
    except re.error:
        return True  # of another dialect: the server will tell
