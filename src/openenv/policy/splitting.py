"""The ``info`` of a feedback, cut into one map for each env (SPEC 5.4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

__all__ = ["InfoError", "split_info"]


class InfoError(ValueError):
    """An info does not have as many entries as the feedback has envs."""


def split_info(info: Mapping[Any, Any], count: int) -> list[dict[Any, Any]]:
    """Cut an info into ``count`` maps.

    The first array at the top, or one level down, tells how many entries there are; arrays of that length are cut,
    anything else belongs to every env. A map without arrays is one entry. An empty one fits any number.

    Raises:
        InfoError: it has another number of entries.
    """
    if not info:
        return [{} for _ in range(count)]
    entries = next((array.shape[0] for array in _arrays(info)), 1)
    if entries != count:
        raise InfoError(
            f"info has {entries} entries, and the feedback {count} envs; make every value an array [{count}]"
        )
    return [_entry(info, row, count, nested=True) for row in range(count)]


def _arrays(info: Mapping[Any, Any]) -> Iterator[Any]:
    for value in info.values():
        for one in value.values() if isinstance(value, Mapping) else (value,):
            if isinstance(one, np.ndarray) and one.ndim:
                yield one


def _entry(info: Mapping[Any, Any], row: int, count: int, *, nested: bool) -> dict[Any, Any]:
    entry = {}
    for key, value in info.items():
        if isinstance(value, np.ndarray) and value.shape[:1] == (count,):
            entry[key] = value[row]
        elif nested and isinstance(value, Mapping):
            entry[key] = _entry(value, row, count, nested=False)
        else:
            entry[key] = value
    return entry
