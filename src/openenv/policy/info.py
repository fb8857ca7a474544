"""The ``info`` map of a feedback: one map for all its environments, and how it is split into one for each [5.4].

The number of rows is the leading dimension of the first array that is found, among the values of the map and those of
maps in it. Every array of that leading dimension is split; everything else is for all. A map without any array is one
row, unless it is empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from openenv.policy.checks import refuse

__all__ = ["count_rows", "split_info"]


def _values(info: Mapping[str, Any]) -> Iterator[Any]:
    for value in info.values():
        if isinstance(value, Mapping):
            yield from value.values()
        else:
            yield value


def count_rows(info: Mapping[str, Any], count: int, path: str = "info") -> None:
    """Check that a map can be split into this many rows.

    Raises:
        PolicyProtocolError: it cannot.
    """
    if not info:
        return
    found = next((len(value) for value in _values(info) if isinstance(value, np.ndarray) and value.ndim), None)
    if found is None and count != 1:
        raise refuse(path, f"a map without an array is for one environment, and the feedback names {count}")
    if found is not None and found != count:
        raise refuse(path, f"an array has leading dimension {found}, and the feedback names {count} environments")


def split_info(info: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Split the map of a feedback into one for each of its environments.

    Args:
        info: the map.
        count: environments of the feedback.

    Returns:
        Maps in the order of the feedback's ``env_indices``, with views of the arrays' rows.

    Raises:
        PolicyProtocolError: the map has another number of rows.
    """
    count_rows(info, count)
    return [{key: _row(value, row, count) for key, value in info.items()} for row in range(count)]


def _row(value: Any, row: int, count: int, *, inner: bool = False) -> Any:
    if isinstance(value, np.ndarray) and value.ndim and len(value) == count:
        return value[row]
    if isinstance(value, Mapping) and not inner:
        return {key: _row(item, row, count, inner=True) for key, item in value.items()}
    return value
