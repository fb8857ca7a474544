"""Checks of single values of a message. Each raises `PolicyProtocolError` with the path of what does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from openenv.core.exceptions import PolicyProtocolError

__all__ = ["Array", "indices", "mapping", "member", "refuse", "text_rows", "vector"]

Array: TypeAlias = "np.ndarray[Any, Any]"

_KINDS = {"b": "bool", "f": "float", "iu": "integer", "u": "uint8"}


def refuse(path: str, detail: str) -> PolicyProtocolError:
    """The error for a value that does not fit."""
    return PolicyProtocolError(detail, field=path)


def mapping(value: object, path: str) -> Mapping[Any, Any]:
    """A map."""
    if not isinstance(value, Mapping):
        raise refuse(path, f"a map is expected, and {described(value)} is there")
    return value


def member(parent: Mapping[Any, Any], key: str, path: str = "") -> Any:
    """The value of a key that has to be there."""
    if key not in parent:
        raise refuse(f"{path}.{key}" if path else key, "the key is missing")
    return parent[key]


def described(value: object) -> str:
    """A value in a few words, for an error text."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype.str} with shape {list(value.shape)}"
    return f"a {type(value).__name__}"


def array(value: object, path: str) -> Array:
    """An array."""
    if not isinstance(value, np.ndarray):
        raise refuse(path, f"an array is expected, and {described(value)} is there")
    return value


def vector(value: object, path: str, kinds: str, length: int | None = None) -> Array:
    """A one-dimensional array of one of some kinds.

    Args:
        value: what was sent.
        path: where it stood.
        kinds: dtype kinds that are allowed, as ``"iu"``.
        length: elements that are expected; None for any number.
    """
    found = array(value, path)
    if found.ndim != 1 or found.dtype.kind not in kinds:
        raise refuse(path, f"a vector of {_KINDS[kinds]} is expected, and {described(found)} is there")
    if length is not None and len(found) != length:
        raise refuse(path, f"{length} entries are expected, and {len(found)} are there")
    return found


def indices(value: object, path: str) -> Array:
    """Environment indices: at least one, not negative, each only once; as native int64."""
    found = vector(value, path, "iu").astype(np.int64)
    if not len(found):
        raise refuse(path, "no environment is named")
    if found.min() < 0:
        raise refuse(path, f"{found.min()} is no environment index")
    if len(np.unique(found)) != len(found):
        raise refuse(path, "an environment is named twice")
    return found


def text_rows(value: object, path: str, count: int) -> Array:
    """The text of an observation, in either form, as an array of str.

    Args:
        value: an array of text, or a list of str; anything that is empty if no rows are sent.
        path: where it stood.
        count: rows that are expected.
    """
    if isinstance(value, np.ndarray):
        rows, fits = value, value.ndim == 1 and (value.dtype.kind == "U" or not len(value))
    elif isinstance(value, list | tuple) and all(isinstance(row, str) for row in value):
        rows, fits = np.array(value, dtype=np.str_), True
    else:
        raise refuse(path, f"an array of text or a list of str is expected, and {described(value)} is there")
    if not fits:
        raise refuse(path, f"a vector of text is expected, and {described(value)} is there")
    if len(rows) != count:
        raise refuse(path, f"leading dimension {len(rows)} where {count} rows are sent")
    return rows if rows.dtype.kind == "U" else np.array([], dtype=np.str_)
