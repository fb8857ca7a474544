"""What both directions of the array codec share: its limits, its marks, and how a refused value finds its path."""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import find_spec
from typing import Any

__all__ = [
    "MAX_CONTAINERS",
    "MAX_DEPTH",
    "NDARRAY",
    "NPGENERIC",
    "SIZES",
    "Refused",
    "cast_numbers",
    "installed",
    "load_msgpack",
    "load_numpy",
    "shown",
]

MAX_DEPTH = 100
"""Deepest nesting of maps and arrays, sent or received."""

MAX_CONTAINERS = 2**18
"""Most maps and lists in one received frame: an empty one is a single byte there and some sixty in memory."""

NDARRAY = b"__ndarray__"
NPGENERIC = b"__npgeneric__"
SIZES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "m": (8,), "M": (8,)}


class Refused(Exception):
    """A value was refused; the path to it is collected on the way up."""

    def __init__(self, why: str, type_name: str = "") -> None:
        self.why = why
        self.type_name = type_name
        self.keys: list[object] = []
        super().__init__(why)

    @property
    def path(self) -> str:
        """Where the value stands, as ``data.states.t``."""
        text = ""
        for key in reversed(self.keys):
            text += f"[{key}]" if isinstance(key, int) else f"{'.' if text else ''}{shown(key)}"
        return text


def shown(key: object) -> str:
    """A value for an error text: short, whatever it is."""
    text = key if isinstance(key, str) else repr(key)
    return text if len(text) <= 80 else f"{text[:77]}..."


@cache
def installed() -> bool:
    """Whether numpy and msgpack are there, without importing them."""
    return all(name in sys.modules or find_spec(name) is not None for name in ("numpy", "msgpack"))


@cache
def load_numpy() -> Any:
    """The module ``numpy``.

    Raises:
        ImportError: it is not installed; says what to install.
    """
    try:
        import numpy
    except ImportError as error:
        raise ImportError("Arrays on the wire need numpy: pip install 'openenv[policy]'") from error
    return numpy


@cache
def load_msgpack() -> Any:
    """The module ``msgpack``.

    Raises:
        ImportError: it is not installed; says what to install.
    """
    try:
        import msgpack  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError("Binary frames need msgpack: pip install 'openenv[policy]'") from error
    return msgpack


def cast_numbers(value: Any, plain: Any, wanted: Any) -> Any:
    """Make an array of a dtype, unless a value would change by it; a float may lose digits, as floats do.

    Args:
        value: nested lists.
        plain: the array that numpy makes of them. Where it has mixed large integers, it has rounded them to floats.
        wanted: the dtype.

    Raises:
        ValueError: a value does not fit.
    """
    np = load_numpy()
    if wanted.kind in "iu" and plain.dtype.kind == "f":
        plain = np.array(value, object)
    try:
        with np.errstate(invalid="ignore", over="ignore"):
            array = plain.astype(wanted)
    except (OverflowError, TypeError, ValueError):
        raise ValueError(f"a value does not fit into {wanted}") from None
    if wanted.kind in "biu":
        kept = array == plain
    else:
        kept = ~np.isinf(array) | np.isinf(plain) if wanted.kind == "f" else True
    if not np.all(kept):
        raise ValueError(f"a value does not fit into {wanted}")
    return array
