"""Observations, states and tool results as text: boards as they are, tables aligned, the rest as JSON. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["plain", "shown", "shown_result"]

_BESIDE = frozenset(("done", "reward"))
_WIDEST_LINE = 100
_LONGEST_BLOB = 2000
_BLOB = re.compile(r"[A-Za-z0-9+/=\s]+")


def shown_result(observation: Any, reward: Any, ending: str) -> str:
    """The result of a reset or step.

    Args:
        observation: what the environment shows.
        reward: None for none.
        ending: how the episode ended; empty while it goes on.
    """
    seen = observation
    if isinstance(observation, Mapping):
        seen = {name: value for name, value in observation.items() if name not in _BESIDE}
        if not seen.get("metadata", True):
            del seen["metadata"]
    parts = [shown(seen)] if seen not in ({}, None) else []
    last = [] if reward is None else [f"reward: {reward}"]
    if ending:
        last.append(f"done ({ending})")
    if last:
        parts.append(", ".join(last))
    return "\n".join(parts) or "(nothing to see)"


def shown(value: Any) -> str:
    """A value as text for people."""
    if not isinstance(value, Mapping):
        return _block(value)
    if len(value) == 1 and isinstance(only := next(iter(value.values())), str) and "\n" in only:
        return only.rstrip("\n")
    lines = []
    for name, one in value.items():
        block = _block(one)
        if "\n" in block:
            lines.append(f"{name}:\n{block if isinstance(one, str) else _indented(block)}")
        else:
            lines.append(f"{name}: {block}")
    return "\n".join(lines)


def _block(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        few = len(getattr(value, "shape", ())) <= 2 and getattr(value, "size", 0) <= 256
        return _block(value.tolist()) if few else f"<array of {value.dtype}, shape {tuple(value.shape)}>"
    if isinstance(value, list):
        table = _grid(value) or _records(value)
        if table:
            return table
    if isinstance(value, Mapping) and value and all(not isinstance(one, Mapping | list) for one in value.values()):
        return shown(value) if len(value) > 1 else _json(value)
    return _json(value)


def _text(value: str) -> str:
    if value.startswith("data:") and ";base64," in value[:100]:
        return f"<{value[5 : value.index(';')]}, {len(value):,} characters>"
    if len(value) > _LONGEST_BLOB and "\n" not in value and _BLOB.fullmatch(value):
        return f"<{len(value):,} characters of base64>"
    return value.rstrip("\n")


def _grid(rows: Sequence[Any]) -> str:
    """Rows of plain values, all of one length, as columns."""
    if not rows or not all(isinstance(row, list) and row and len(row) == len(rows[0]) for row in rows):
        return ""
    if not all(_is_plain(cell) for row in rows for cell in row):
        return ""
    return _columns([[plain(cell) for cell in row] for row in rows])


def _records(rows: Sequence[Any]) -> str:
    """Objects with the same members, as a table with a header."""
    if len(rows) < 2 or not all(isinstance(row, dict) and row and row.keys() == rows[0].keys() for row in rows):
        return ""
    if not all(_is_plain(cell) for row in rows for cell in row.values()):
        return ""
    return _columns([list(rows[0]), *([plain(row[name]) for name in rows[0]] for row in rows)])


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    if sum(widths) > 2 * _WIDEST_LINE:
        return ""
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float) or (isinstance(value, str) and "\n" not in value)


def plain(value: Any) -> str:
    """A value in one line: a text as it is, the rest as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=_block)
    return text if len(text) <= _WIDEST_LINE else json.dumps(value, ensure_ascii=False, indent=2, default=_block)


def _indented(block: str) -> str:
    return "\n".join(f"  {line}" for line in block.splitlines())
