"""From what a caller gives to the messages that are sent. Each fault raises `PolicyUsageError` with its path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from openenv.core.exceptions import PolicyProtocolError, PolicyUsageError
from openenv.policy import checks
from openenv.policy.checks import Array
from openenv.policy.info import count_rows
from openenv.policy.messages import Feedback, Infer, as_indices
from openenv.policy.observation import Observation

__all__ = ["make_feedback", "make_infer"]


def make_infer(
    observation: Observation | Mapping[str, Any],
    env_indices: Sequence[int] | Array,
    step_ids: Sequence[int] | Array,
) -> Infer:
    """An infer that carries every row. Raises `PolicyUsageError`."""
    envs = as_indices(env_indices)
    return Infer(Observation.of(observation, len(envs)), envs, _vector(step_ids, "step_ids", len(envs), "iu"))


def make_feedback(
    observation: Observation | Mapping[str, Any],
    env_indices: Sequence[int] | Array,
    step_ids: Sequence[int] | Array,
    rewards: Sequence[float] | Array,
    terminated: Sequence[bool] | Array,
    truncated: Sequence[bool] | Array,
    info: Mapping[str, Any] | None,
) -> Feedback:
    """A feedback; rewards are rounded to float32, as the wire has them. Raises `PolicyUsageError`."""
    envs = as_indices(env_indices)
    count = len(envs)
    numbers = np.asarray(rewards)
    given = dict(info or {})
    try:
        count_rows(given, count, "info")
    except PolicyProtocolError as error:
        raise PolicyUsageError(error.detail, field=error.field) from None
    return Feedback(
        observation=Observation.of(observation, count),
        env_indices=envs,
        step_ids=_vector(step_ids, "step_ids", count, "iu"),
        rewards=_vector(numbers.astype("<f4") if numbers.dtype.kind in "fiu" else numbers, "rewards", count, "f"),
        terminated=_vector(terminated, "terminated", count, "b"),
        truncated=_vector(truncated, "truncated", count, "b"),
        info=given,
    )


def _vector(value: Sequence[Any] | Array, name: str, count: int, kinds: str) -> Array:
    try:
        found = checks.vector(np.asarray(value), name, kinds, count)
    except PolicyProtocolError as error:
        raise PolicyUsageError(error.detail, field=error.field) from None
    return found.astype(np.int64) if kinds == "iu" else found
