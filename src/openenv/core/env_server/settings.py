"""Settings of a server that stand in environment variables: one way to read each kind."""

from __future__ import annotations

import os
from collections.abc import Mapping

__all__ = ["flag", "number"]

_YES = ("true", "1", "yes")


def flag(variable: str, default: bool = False) -> bool:
    """Whether a variable says yes, in any case: ``true``, ``1`` or ``yes``.

    Args:
        variable: its name.
        default: what holds if it is not set, or empty.
    """
    given = os.environ.get(variable, "").strip().lower()
    return given in _YES if given else default


def number(
    environ: Mapping[str, str],
    variable: str,
    otherwise: float,
    kind: type[int] | type[float] = float,
    *,
    zero: bool = True,
) -> float:
    """The finite number that a variable holds.

    Args:
        environ: the variables.
        variable: its name.
        otherwise: what holds if it is not set, or empty.
        kind: int for a whole number.
        zero: whether it may be 0.

    Raises:
        ValueError: it is no such number.
    """
    given = environ.get(variable)
    if not given:
        return otherwise
    try:
        value = kind(given)
    except ValueError:
        value = -1
    if not 0 <= value < float("inf") or (value == 0 and not zero):
        raise ValueError(f"{variable} must be a number {'of at least' if zero else 'above'} 0, not {given!r}")
    return value
