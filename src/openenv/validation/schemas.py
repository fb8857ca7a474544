"""JSON schemas as pydantic writes them: making values that fit, and seeing whether a value fits.

As much of JSON Schema as models of actions and observations use. Pure: the same random numbers make the same values.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

__all__ = ["misfits", "sample"]

Schema = Mapping[str, Any]

_SPAN = 10
_DEEP = 6
_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list, tuple),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}


def sample(schema: Schema, draw: random.Random) -> Any:
    """A value that fits a schema. Patterns and formats of texts are not looked at.

    Args:
        schema: of the value.
        draw: the random numbers.
    """
    return _sample(schema, draw, schema.get("$defs", {}), _DEEP)


def _sample(schema: Schema, draw: random.Random, defs: Schema, depth: int) -> Any:
    schema = _resolved(schema, defs)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return draw.choice(list(schema["enum"]))
    for union in ("anyOf", "oneOf"):
        if union in schema:
            chosen = [one for one in schema[union] if _resolved(one, defs).get("type") != "null"]
            return _sample(draw.choice(chosen or schema[union]), draw, defs, depth)
    kind = schema.get("type")
    match kind[0] if isinstance(kind, list) else kind:
        case "integer":
            low, high = _bounds(schema, 1)
            step = int(schema.get("multipleOf", 1))
            return draw.randint(math.ceil(low / step), math.floor(high / step)) * step
        case "number":
            low, high = _bounds(schema, 1e-3)
            return round(draw.uniform(low, high), 3)
        case "boolean":
            return draw.random() < 0.5
        case "string":
            length = min(max(schema.get("minLength", 1), 3), schema.get("maxLength", 8))
            return "".join(draw.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(length))
        case "array":
            return _sample_array(schema, draw, defs, depth)
        case "object":
            return _sample_object(schema, draw, defs, depth)
    return None


def _sample_array(schema: Schema, draw: random.Random, defs: Schema, depth: int) -> list[Any]:
    first = [_sample(one, draw, defs, depth - 1) for one in schema.get("prefixItems", [])]
    least = max(schema.get("minItems", 0), len(first))
    most = min(schema.get("maxItems", least + 2), least + 2) if depth > 0 and schema.get("items") else least
    count = draw.randint(least, max(least, most)) - len(first)
    return first + [_sample(schema.get("items", {}), draw, defs, depth - 1) for _ in range(count)]


def _sample_object(schema: Schema, draw: random.Random, defs: Schema, depth: int) -> dict[str, Any]:
    required, made = schema.get("required", []), {}
    for name, one in schema.get("properties", {}).items():
        wanted = name in required or (name != "metadata" and depth > 0 and draw.random() < 0.8)
        if wanted:
            made[name] = _sample(one, draw, defs, depth - 1)
    return made


def _bounds(schema: Schema, inside: float) -> tuple[float, float]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"] + inside
    if "exclusiveMaximum" in schema:
        high = schema["exclusiveMaximum"] - inside
    if low is None:
        low = 0 if high is None else min(0, high - _SPAN)
    return low, max(low, low + _SPAN if high is None else high)


def _resolved(schema: Schema, defs: Schema) -> Schema:
    for _ in range(_DEEP):
        if "$ref" in schema:
            schema = {**defs.get(str(schema["$ref"]).rpartition("/")[2], {}), **_without(schema, "$ref")}
        elif len(schema.get("allOf", [])) == 1:
            schema = {**schema["allOf"][0], **_without(schema, "allOf")}
        else:
            break
    return schema


def _without(schema: Schema, name: str) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != name}


def misfits(schema: Schema, value: Any, *, ignore: frozenset[str] = frozenset()) -> list[str]:
    """Where a value does not fit a schema: names of fields, and why.

    Args:
        schema: of the value.
        value: as it came.
        ignore: members of the outermost object that are not looked at, whether they are there or not.
    """
    outer = {name: one for name, one in schema.get("properties", {}).items() if name not in ignore}
    required = [name for name in schema.get("required", []) if name not in ignore]
    shown = {name: one for name, one in value.items() if name not in ignore} if isinstance(value, dict) else value
    trimmed = {**schema, "properties": outer, "required": required}
    return _misfits(trimmed, shown, "", schema.get("$defs", {}), _DEEP)


def _misfits(schema: Schema, value: Any, path: str, defs: Schema, depth: int) -> list[str]:
    schema = _resolved(schema, defs)
    where = path or "the whole"
    if depth == 0:
        return []
    if "const" in schema or "enum" in schema:
        allowed = [schema["const"]] if "const" in schema else schema["enum"]
        return [] if value in allowed else [f"{where} is {_short(value)}, not one of {_short(allowed)}"]
    for union in ("anyOf", "oneOf"):
        if union in schema:
            tried = [_misfits(one, value, path, defs, depth - 1) for one in schema[union]]
            return [] if not all(tried) else min(tried, key=len)
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        return [f"{where} is {type(value).__name__} {_short(value)}, not {' or '.join(kinds)}"]
    if isinstance(value, dict):
        return _misfits_object(schema, value, path, defs, depth)
    if isinstance(value, list) and "items" in schema:
        return [text for one in value for text in _misfits(schema["items"], one, f"{path}[]", defs, depth - 1)][:1]
    return []


def _misfits_object(schema: Schema, value: Mapping[str, Any], path: str, defs: Schema, depth: int) -> list[str]:
    known, prefix = schema.get("properties", {}), f"{path}." if path else ""
    found = [f"{prefix}{name} is missing" for name in schema.get("required", []) if name not in value]
    for name, one in value.items():
        if name in known:
            found += _misfits(known[name], one, prefix + name, defs, depth - 1)
        elif schema.get("additionalProperties") is False:
            found.append(f"{prefix}{name} is not in the schema")
    return found


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if not isinstance(value, dict | list | tuple | str | int | float | None):
        return True  # an array or bytes, which binary frames carry as what they are
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, (object,)))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
