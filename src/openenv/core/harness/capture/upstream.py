"""The sampling that a training allows: the model's own distribution, at some temperature, and nothing cut off it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

__all__ = ["NON_POLICY_SAMPLING", "training_sampling"]

NON_POLICY_SAMPLING: Mapping[str, float | int] = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Settings that would make the sampled distribution another one than the trained one, at their neutral values."""


def training_sampling(sampling: Mapping[str, Any] | None) -> dict[str, float | int]:
    """Check and complete the sampling settings of a training.

    Args:
        sampling: ``temperature``, and others at their neutral values only; None for no settings at all.

    Returns:
        The temperature with every other setting at its neutral value; empty for None.

    Raises:
        ValueError: an unknown setting, one that is not neutral, or no positive temperature.
    """
    if sampling is None:
        return {}
    if not isinstance(sampling, Mapping):
        raise ValueError(f"sampling settings are a mapping, not {type(sampling).__name__}")
    unknown = sorted(set(sampling) - {"temperature", *NON_POLICY_SAMPLING})
    if unknown:
        raise ValueError(f"a training does not know the sampling settings {', '.join(unknown)}")
    temperature = sampling.get("temperature")
    if not _is_number(temperature) or not 0 < temperature < math.inf:  # type: ignore[operator]
        raise ValueError(f"a training needs a positive temperature, not {temperature!r}")
    for name, neutral in NON_POLICY_SAMPLING.items():
        given = sampling.get(name, neutral)
        if not _is_number(given) or (given != neutral and not (name == "top_k" and given == 0)):
            raise ValueError(f"a training samples the whole distribution: {name} must be {neutral}, not {given!r}")
    return {"temperature": float(temperature), **NON_POLICY_SAMPLING}  # type: ignore[arg-type]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
