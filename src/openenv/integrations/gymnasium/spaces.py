"""Gymnasium spaces as JSON Schema, and back.

A schema says with the standard keywords what a value looks like in JSON, for any reader. What they cannot say stands
beside them under ``gymnasium``, and from that alone the space is made again::

    {"type": "integer", "minimum": 0, "maximum": 1,
     "gymnasium": {"space": "Discrete", "n": 2, "start": 0, "dtype": "int64"}}

A bound of a `Box` is one number if all its elements share it, else nested lists; null stands for none. How values cross
the wire is told in `openenv.integrations.gymnasium.values`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from openenv.core.arrays import ArraySpec

__all__ = ["KEYWORD", "space_from_schema", "space_to_schema"]

KEYWORD = "gymnasium"
"""The keyword under which a schema keeps what JSON Schema has no words for."""
MAX_ELEMENTS = 2**27
"""Most elements of one array: a schema of a few bytes may claim any shape."""

_WRONG = (AssertionError, AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)

Space = spaces.Space[Any]
Schema = dict[str, Any]


def space_to_schema(space: Space) -> Schema:
    """Describe a space.

    Args:
        space: one of Gymnasium's own, or made of these.

    Returns:
        A JSON Schema of plain JSON values.

    Raises:
        TypeError: a space of another class; names it.
    """
    for kind, (write, _) in _KINDS.items():
        if isinstance(space, kind):
            schema, about = write(space)
            return {**schema, KEYWORD: {"space": kind.__name__, **about}}
    known = ", ".join(kind.__name__ for kind in _KINDS)
    raise TypeError(f"{space!r} is a {type(space).__name__}, which has no schema; made of {known} it would have one")


def space_from_schema(schema: Mapping[str, Any]) -> Space:
    """Make the space that a schema describes.

    Args:
        schema: as `space_to_schema` returned it, also after its way through JSON.

    Raises:
        ValueError: it describes none: the keyword ``gymnasium`` is missing or wrong, or an array is too large.
    """
    about = schema.get(KEYWORD) if isinstance(schema, Mapping) else None
    if not isinstance(about, Mapping):
        raise ValueError(f"the schema has no {KEYWORD!r} keyword, which says what space it describes")
    for kind, (_, read) in _KINDS.items():
        if kind.__name__ == about.get("space"):
            try:
                return read(schema, about)
            except _WRONG as error:
                raise ValueError(f"the schema of a {kind.__name__} is incomplete or wrong: {error}") from error
    raise ValueError(f"the schema describes a {about.get('space')!r}, which is no known space")


def _array_schema(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Schema:
    return ArraySpec(dtype.name, shape).json_schema()


def _shape(about: Mapping[str, Any]) -> tuple[int, ...]:
    shape = tuple(int(length) for length in about["shape"])
    if min(shape, default=0) < 0 or math.prod(shape) > MAX_ELEMENTS:
        raise ValueError(f"an array of shape {shape} is too large")
    return shape


# ------------------------------------------------------------------ arrays and numbers


def _write_box(space: spaces.Box) -> tuple[Schema, Schema]:
    about = {
        "low": _bound(space.low),
        "high": _bound(space.high),
        "shape": list(space.shape),
        "dtype": space.dtype.name,
    }
    return _array_schema(space.dtype, space.shape), about


def _bound(values: Any) -> Any:
    def plain(value: Any) -> Any:
        if isinstance(value, list):
            return [plain(item) for item in value]
        return None if isinstance(value, float) and math.isinf(value) else value

    if not values.size:
        return 0
    if (values == values.flat[0]).all():
        return plain(values.flat[0].item())
    return plain(values.tolist())


def _read_box(schema: Schema, about: Schema) -> Space:
    shape, dtype = _shape(about), np.dtype(about["dtype"])
    if dtype.kind not in "biuf":
        raise ValueError(f"an array of {dtype.kind!r} elements holds no numbers")

    def bound(told: Any, none: float) -> Any:
        def plain(value: Any) -> Any:
            if isinstance(value, list):
                return [plain(item) for item in value]
            return none if value is None else value

        return np.broadcast_to(np.array(plain(told), dtype), shape)

    low, high = bound(about["low"], -math.inf), bound(about["high"], math.inf)
    return spaces.Box(low, high, shape, dtype.type)


def _write_discrete(space: spaces.Discrete) -> tuple[Schema, Schema]:
    n, start = int(space.n), int(space.start)
    limits = {"type": "integer", "minimum": start, "maximum": start + n - 1}
    return limits, {"n": n, "start": start, "dtype": np.dtype(space.dtype).name}


def _read_discrete(schema: Schema, about: Schema) -> Space:
    return spaces.Discrete(int(about["n"]), start=int(about["start"]), **_other_dtype(about))


def _other_dtype(about: Schema) -> dict[str, Any]:
    """Older versions of Gymnasium take no dtype for some spaces; the usual one need not be named."""
    return {} if about["dtype"] == "int64" else {"dtype": np.dtype(about["dtype"]).type}


def _write_multi_binary(space: spaces.MultiBinary) -> tuple[Schema, Schema]:
    n = [int(length) for length in space.n] if isinstance(space.n, tuple) else int(space.n)
    return _array_schema(np.dtype(np.int8), space.shape), {"n": n}


def _read_multi_binary(schema: Schema, about: Schema) -> Space:
    n = about["n"]
    shape = _shape({"shape": n if isinstance(n, list) else [n]})
    return spaces.MultiBinary(shape if isinstance(n, list) else shape[0])


def _write_multi_discrete(space: spaces.MultiDiscrete) -> tuple[Schema, Schema]:
    dtype = np.dtype(space.dtype)
    about = {"nvec": space.nvec.tolist(), "start": space.start.tolist(), "dtype": dtype.name}
    return _array_schema(dtype, space.nvec.shape), about


def _read_multi_discrete(schema: Schema, about: Schema) -> Space:
    dtype: Any = np.dtype(about["dtype"])
    nvec, start = np.array(about["nvec"], dtype), np.array(about["start"], dtype)
    return spaces.MultiDiscrete(nvec, dtype=dtype.type, start=start)


def _write_text(space: spaces.Text) -> tuple[Schema, Schema]:
    least, most = int(space.min_length), int(space.max_length)
    about = {"min_length": least, "max_length": most, "charset": "".join(sorted(space.character_set))}
    return {"type": "string", "minLength": least, "maxLength": most}, about


def _read_text(schema: Schema, about: Schema) -> Space:
    return spaces.Text(int(about["max_length"]), min_length=int(about["min_length"]), charset=str(about["charset"]))


# ------------------------------------------------------------------ spaces of spaces


def _write_dict(space: spaces.Dict) -> tuple[Schema, Schema]:
    for key in space.spaces:
        if not isinstance(key, str):
            raise TypeError(f"the key {key!r} of a Dict is a {type(key).__name__}; only text is a key in JSON")
    children = {key: space_to_schema(child) for key, child in space.spaces.items()}
    schema = {"type": "object", "properties": children, "required": list(children), "additionalProperties": False}
    return schema, {"keys": list(children)}


def _read_dict(schema: Schema, about: Schema) -> Space:
    return spaces.Dict({key: space_from_schema(schema["properties"][key]) for key in about["keys"]})


def _tuple_schema(children: list[Any]) -> Schema:
    count = len(children)
    return {"type": "array", "prefixItems": children, "items": False, "minItems": count, "maxItems": count}


def _write_tuple(space: spaces.Tuple[Any]) -> tuple[Schema, Schema]:
    return _tuple_schema([space_to_schema(child) for child in space.spaces]), {}


def _read_tuple(schema: Schema, about: Schema) -> Space:
    return spaces.Tuple(tuple(space_from_schema(child) for child in schema["prefixItems"]))


def _write_sequence(space: spaces.Sequence) -> tuple[Schema, Schema]:
    child = space_to_schema(space.feature_space)
    if space.stack:  # the elements lie in arrays of their own, whatever they are made of
        _check_stack(space.feature_space)
        return {}, {"stack": True, "element": child}
    return {"type": "array", "items": child}, {"stack": False, "element": child}


def _check_stack(space: Space) -> None:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for part in space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces:
            _check_stack(part)
    elif not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiBinary | spaces.MultiDiscrete):
        raise TypeError(f"a stacked Sequence of {type(space).__name__} has no wire form; without stack=True it has one")


def _read_sequence(schema: Schema, about: Schema) -> Space:
    element = space_from_schema(about["element"])
    if about["stack"]:
        _check_stack(element)
    return spaces.Sequence(element, stack=bool(about["stack"]))


def _write_graph(space: spaces.Graph) -> tuple[Schema, Schema]:
    node = space_to_schema(space.node_space)
    edge = None if space.edge_space is None else space_to_schema(space.edge_space)
    links = ArraySpec("int32", (None, 2)).json_schema()
    schema = {
        "type": "object",
        "properties": {
            "nodes": {"type": "array", "items": node},
            "edges": {"type": "null"} if edge is None else {"type": ["array", "null"], "items": edge},
            "edge_links": {**links, "type": ["array", "null"]},
        },
        "required": ["nodes", "edges", "edge_links"],
        "additionalProperties": False,
    }
    return schema, {"node": node, "edge": edge}


def _read_graph(schema: Schema, about: Schema) -> Space:
    edge = about["edge"]
    return spaces.Graph(space_from_schema(about["node"]), None if edge is None else space_from_schema(edge))


def _write_one_of(space: spaces.OneOf[Any]) -> tuple[Schema, Schema]:
    children = [space_to_schema(child) for child in space.spaces]
    return {"oneOf": [_tuple_schema([{"const": index}, child]) for index, child in enumerate(children)]}, {}


def _read_one_of(schema: Schema, about: Schema) -> Space:
    return spaces.OneOf(tuple(space_from_schema(child["prefixItems"][1]) for child in schema["oneOf"]))


_KINDS: dict[type[Any], tuple[Callable[[Any], tuple[Schema, Schema]], Callable[[Any, Any], Space]]] = {
    spaces.Box: (_write_box, _read_box),
    spaces.Discrete: (_write_discrete, _read_discrete),
    spaces.MultiBinary: (_write_multi_binary, _read_multi_binary),
    spaces.MultiDiscrete: (_write_multi_discrete, _read_multi_discrete),
    spaces.Text: (_write_text, _read_text),
    spaces.Dict: (_write_dict, _read_dict),
    spaces.Tuple: (_write_tuple, _read_tuple),
    spaces.Sequence: (_write_sequence, _read_sequence),
    spaces.Graph: (_write_graph, _read_graph),
    spaces.OneOf: (_write_one_of, _read_one_of),
}
