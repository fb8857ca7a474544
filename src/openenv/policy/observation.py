"""A batch of observations: ``images``, ``states`` and ``text``, each with one row an environment [5.2]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from openenv.core.exceptions import PolicyProtocolError, PolicyUsageError
from openenv.policy import checks
from openenv.policy.checks import Array, refuse

__all__ = ["Observation"]

_GROUPS = frozenset({"images", "states", "text"})


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """A batch of observations. Make one with `of`.

    Attributes:
        images: name to ``[n, height, width, channels]`` uint8; may be empty.
        states: name to ``[n, d]`` float; may be empty.
        text: ``[n]`` array of str.
    """

    images: Mapping[str, Array]
    states: Mapping[str, Array]
    text: Array

    def __len__(self) -> int:
        return len(self.text)

    @classmethod
    def of(cls, value: Observation | Mapping[str, Any], count: int, path: str = "observation") -> Observation:
        """Make one from what a user gives.

        Args:
            value: an observation, or a map of ``images``, ``states`` and ``text``, of which each may be missing. Text
                is an array or a sequence of str, or one str for all rows.
            count: rows that it has to have.
            path: what to call it in an error.

        Raises:
            PolicyUsageError: it does not fit; names the path.
        """
        if isinstance(value, cls):
            value = value.to_map()
        if not isinstance(value, Mapping):
            raise PolicyUsageError(f"a map is expected, and {checks.described(value)} is there", field=path)
        text = value.get("text", "")
        given = {
            **value,
            "images": _as_arrays(value.get("images", {})),
            "states": _as_arrays(value.get("states", {})),
            "text": _as_text([text] * count if isinstance(text, str) else text, f"{path}.text"),
        }
        try:
            return cls.parse(given, count, path)
        except PolicyProtocolError as error:
            raise PolicyUsageError(error.detail, field=error.field) from None

    @classmethod
    def parse(cls, value: object, count: int, path: str) -> Observation:
        """Read one from a decoded message.

        Args:
            value: what was sent.
            count: rows that are expected; 0 is allowed, if every row is to be reused.
            path: where it stood.

        Raises:
            PolicyProtocolError: it does not fit; names the path.
        """
        groups = checks.mapping(value, path)
        extra = [str(key)[:80] for key in groups if key not in _GROUPS]
        if extra:
            raise refuse(path, f"there are keys besides images, states and text: {', '.join(extra[:5])}")
        return cls(
            images=_group(checks.member(groups, "images", path), count, f"{path}.images", "u", 4),
            states=_group(checks.member(groups, "states", path), count, f"{path}.states", "f", 2),
            text=checks.text_rows(checks.member(groups, "text", path), f"{path}.text", count),
        )

    def rows(self, which: Array | slice | Sequence[int]) -> Observation:
        """Some of the rows, in the order given.

        Args:
            which: bool mask, indices, or slice. All but a slice copy.
        """
        return Observation(
            {name: rows[which] for name, rows in self.images.items()},
            {name: rows[which] for name, rows in self.states.items()},
            self.text[which],
        )

    def to_map(self) -> dict[str, Any]:
        """The observation as the map that is sent."""
        return {"images": dict(self.images), "states": dict(self.states), "text": self.text}


def _as_arrays(group: object) -> object:
    return {name: np.asarray(rows) for name, rows in group.items()} if isinstance(group, Mapping) else group


def _as_text(text: object, path: str) -> object:
    rows = list(text) if isinstance(text, list | tuple) else []
    if any(isinstance(row, str) and row.endswith("\0") for row in rows):
        raise PolicyUsageError("a text that ends in NUL would lose it on its way", field=path)
    return text


def _group(value: object, count: int, path: str, kind: str, ndim: int) -> dict[str, Array]:
    group = checks.mapping(value, path)
    for name, rows in group.items():
        place = f"{path}.{str(name)[:80]}"
        if not isinstance(name, str):
            raise refuse(place, "a name is no str")
        found = checks.array(rows, place)
        if found.dtype.kind != kind or found.ndim != ndim or (kind == "u" and found.dtype.itemsize != 1):
            wanted = "uint8 [n, height, width, channels]" if kind == "u" else "float [n, d]"
            raise refuse(place, f"{wanted} is expected, and {checks.described(found)} is there")
        if len(found) != count:
            raise refuse(place, f"leading dimension {len(found)} where {count} rows are sent")
    return dict(group)
