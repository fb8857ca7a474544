"""Cutting batched observations into rows, and joining them again, without changing a value or a dtype.

An observation is a map with exactly the keys ``images``, ``states`` and ``text``: two maps from a name to an array, and
the texts; all of them batched over the same envs. Checking a whole message is not done here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["GROUPS", "Observation", "RowsError", "check_rows", "copy_row", "merge", "signature", "texts", "view_rows"]

Observation: TypeAlias = Mapping[str, Any]
"""A batched observation as it is on the wire: ``images``, ``states`` and ``text``."""

Text: TypeAlias = "npt.NDArray[Any] | Sequence[str] | str | None"

GROUPS = ("images", "states")
_KEYS = {*GROUPS, "text"}


class RowsError(ValueError):
    """An observation that is not what it should be; the text names the part."""


def check_rows(obs: Any, count: int) -> None:
    """See that everything in an observation is batched to ``count`` rows.

    Raises:
        RowsError: it is not.
    """
    if not isinstance(obs, Mapping) or obs.keys() != _KEYS:
        raise RowsError("an observation must have exactly the keys images, states and text")
    for group in GROUPS:
        if not isinstance(obs[group], Mapping):
            raise RowsError(f"{group} must be a map from names to arrays")
        for name, array in obs[group].items():
            if not isinstance(array, np.ndarray):
                raise RowsError(f"{group}[{name!r}] must be an array")
            _check_leading(f"{group}[{name!r}]", array.shape, count)
    _check_text(obs["text"], count)


def _check_leading(where: str, shape: tuple[int, ...], count: int) -> None:
    if shape[:1] != (count,):
        raise RowsError(f"{where} has the shape {shape}, so its leading dimension is not {count}")


def _check_text(text: Any, count: int) -> None:
    if text is None or isinstance(text, str):
        return
    if isinstance(text, np.ndarray):
        _check_leading("text", text.shape, count)
        if text.ndim != 1 or (count and text.dtype.kind != "U"):
            raise RowsError(f"text must be a one-dimensional array of strings, not {text.dtype.str} {text.shape}")
    elif isinstance(text, list | tuple):
        _check_leading("text", (len(text),), count)
        if not all(isinstance(one, str) for one in text):
            raise RowsError("text must hold strings only")
    else:
        raise RowsError("text must be an array or a list of strings")


def copy_row(obs: Observation, index: int) -> dict[str, Any]:
    """One row of a checked observation, as an observation of one row that owns its memory."""
    row: dict[str, Any] = {
        group: {name: array[index : index + 1].copy() for name, array in obs[group].items()} for group in GROUPS
    }
    text = obs["text"]
    if isinstance(text, np.ndarray):
        row["text"] = text[index : index + 1].copy()
    else:
        row["text"] = text if text is None or isinstance(text, str) else [text[index]]
    return row


def view_rows(obs: Observation, start: int, stop: int) -> dict[str, Any]:
    """Some rows of a checked observation; arrays are views."""
    rows: dict[str, Any] = {group: {name: array[start:stop] for name, array in obs[group].items()} for group in GROUPS}
    text = obs["text"]
    rows["text"] = text if text is None or isinstance(text, str) else text[start:stop]
    return rows


def signature(obs: Observation) -> frozenset[tuple[str, str, str, tuple[int, ...]]]:
    """What two observations must have in common to be joined: names, dtypes and trailing shapes."""
    return frozenset(
        (group, name, array.dtype.str, array.shape[1:]) for group in GROUPS for name, array in obs[group].items()
    )


def merge(parts: Sequence[tuple[Observation, int]]) -> dict[str, Any]:
    """Join checked observations, given with their numbers of rows, in order.

    Returns:
        New arrays; where there is but one part, its own.

    Raises:
        RowsError: names, dtypes or trailing shapes differ. Nothing is promoted.
    """
    first = parts[0][0]
    merged: dict[str, Any] = {group: _merge_group(group, [obs[group] for obs, _ in parts]) for group in GROUPS}
    merged["text"] = first["text"] if len(parts) == 1 else _merge_text([(obs["text"], count) for obs, count in parts])
    return merged


def _merge_group(group: str, maps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = maps[0]
    for other in maps[1:]:
        if other.keys() != first.keys():
            raise RowsError(f"rows cannot be merged: {group} has the names {list(first)} and {list(other)}")
    return {name: _merge_arrays(f"{group}[{name!r}]", [one[name] for one in maps]) for name in first}


def _merge_arrays(where: str, arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    first = arrays[0]
    for other in arrays[1:]:
        if other.dtype != first.dtype:
            raise RowsError(f"rows of {where} cannot be merged: dtypes {first.dtype.str} and {other.dtype.str}")
        if other.shape[1:] != first.shape[1:]:
            raise RowsError(f"rows of {where} cannot be merged: row shapes {first.shape[1:]} and {other.shape[1:]}")
    return first if len(arrays) == 1 else np.concatenate(arrays)


def _merge_text(parts: Sequence[tuple[Text, int]]) -> Text:
    first = parts[0][0]
    if all(isinstance(text, np.ndarray) for text, _ in parts):
        return np.concatenate([text for text, _ in parts])
    if all(isinstance(text, str | None) and text == first for text, _ in parts):
        return first
    return list(_each(parts))


def _each(parts: Iterable[tuple[Text, int]]) -> Iterable[str]:
    for text, count in parts:
        yield from texts(text, count)


def texts(text: Text, count: int) -> list[str]:
    """The texts of ``count`` rows as a list; one text stands for all rows, none for empty ones."""
    if text is None or isinstance(text, str):
        return [text or ""] * count
    return [str(one) for one in text]
