"""The probe environment as a server sees it, and the action values that tell whose step was executed, and when.

Env j is j steps of nothing but counting: an episode has 3, 5 or 7 steps, ``t`` counts them, ``a`` is the last action,
every reward is 1. With a value for each env, step and request, what a client executed can be read from ``a``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from openenv.conformance.policy.messages import Array

__all__ = ["DTYPES", "MAX_ENVS", "MAX_HORIZON", "MAX_WIDTH", "Origin", "episode_length", "origin", "values"]

MAX_ENVS, MAX_HORIZON, MAX_WIDTH = 1000, 99, 9
_STEP, _ENV, _REQUEST = 10_000, 10, 1_000_000
DTYPES = {"float64": 1000, "float32": 16, "int64": 1000, "int32": 1000}
"""Dtypes that hold the values exactly, and how many requests they tell apart."""


def episode_length(env: int) -> int:
    """Steps of an episode of env number ``env``."""
    return 3 + 2 * (env % 3)


def values(envs: Sequence[int], horizon: int, width: int, dtype: str, request: int) -> Array:
    """An action ``[horizon, envs, width]``; that of request 0 is 10000*k + 10*j + d."""
    step = np.arange(horizon)[:, None, None] * _STEP
    env = np.asarray(envs)[None, :, None] * _ENV
    column = np.arange(width)[None, None, :]
    made: Array = (step + env + column + request % DTYPES[dtype] * _REQUEST).astype(dtype)
    return made


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose step a value is: request (as far as the dtype tells), step in the chunk, env."""

    request: int
    step: int
    env: int


def origin(row: Array) -> Origin | None:
    """Where an executed action ``[width]`` comes from; None if from no answer."""
    first = float(row.flat[0])
    if not np.isfinite(first) or first < 0 or first != int(first):
        return None
    number = int(first)
    expected: Any = number + np.arange(row.size)
    if number % _ENV or not np.array_equal(row.ravel(), expected):
        return None
    return Origin(number // _REQUEST, number % _REQUEST // _STEP, number % _STEP // _ENV)
