"""The server's half of ``reuse-feedback-obs`` (SPEC 10.1): the last observation of every env of one connection.

An infer may leave out the rows that the server has had already, in the last feedback that named their env. Whether a
row may be reused is decided here, and only here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from openenv.core.exceptions import ReuseError
from openenv.policy.rows import Observation, RowsError, check_rows, copy_row, merge, view_rows

__all__ = ["ObservationCache", "ReuseError"]

_ENDED = "the last feedback ended its episode"
_NOT_SPLIT = "the last feedback could not be split into rows"


class ObservationCache:
    """What one connection's feedbacks have left behind, a row for each env.

    Feed it every feedback, also those of clients that never reuse, wherever reuse is offered. Rows are copies: they
    keep no frame alive.
    """

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, Any] | str] = {}

    def on_feedback(self, env_indices: Any, obs: Any, terminated: Any, truncated: Any) -> None:
        """Remember the rows of a feedback, or why they cannot be used. Never raises, whatever it is given.

        Args:
            env_indices: whole numbers, ``[m]``. Envs that are not named keep what they have.
            obs: batched observation, ``m`` rows.
            terminated: ``[m]`` flags.
            truncated: ``[m]`` flags.
        """
        indices = _whole_numbers(env_indices)
        if indices is None:
            return  # nobody is named
        count = len(indices)
        flags = [_flags(terminated, count), _flags(truncated, count)]
        splits = _splits(obs, count) and len(set(indices)) == count
        for row, env in enumerate(indices):
            if any(one is not None and one[row] for one in flags):
                self._rows[env] = _ENDED
            elif splits and all(one is not None for one in flags):
                self._rows[env] = copy_row(obs, row)
            else:
                self._rows[env] = _NOT_SPLIT

    def complete(self, env_indices: Any, obs: Any, reuse: Any) -> Any:
        """Fill the rows that an infer left out.

        Args:
            env_indices: whole numbers, ``[n]``.
            obs: batched observation of the rows that were sent, in the order of ``env_indices``.
            reuse: bool array ``[n]``, true where a row was left out; None if all were sent.

        Returns:
            An observation of ``n`` rows; the same object if nothing was left out.

        Raises:
            ReuseError: a row is not there to be reused, or the message does not fit together. Nothing has changed.
        """
        if reuse is None:
            return obs
        indices = _whole_numbers(env_indices)
        if not indices:
            raise ReuseError("env_indices must be whole numbers, one or more")
        if len(set(indices)) != len(indices):
            raise ReuseError("an infer names an env twice")
        left_out = _reuse_flags(reuse, len(indices))
        rows = {env: self._row(env) for env, out in zip(indices, left_out, strict=True) if out}
        sent = len(indices) - len(rows)
        try:
            check_rows(obs, sent)
            return _filled(indices, rows, obs) if rows else obs
        except RowsError as error:
            raise ReuseError(str(error)) from None

    def _row(self, env: int) -> dict[str, Any]:
        row = self._rows.get(env)
        if row is None:
            raise ReuseError(f"env {env} had no feedback here, on this connection", field="reuse")
        if isinstance(row, str):
            raise ReuseError(f"env {env} has no observation to reuse: {row}", field="reuse")
        return row


def _filled(indices: Sequence[int], rows: dict[int, dict[str, Any]], obs: Observation) -> dict[str, Any]:
    """Cached and sent rows in the order of the envs; neighbours that were sent stay together."""
    parts: list[tuple[Observation, int]] = []
    taken = run = 0
    for env in [*indices, None]:
        if env is not None and env not in rows:
            run += 1
            continue
        if run:
            parts.append((view_rows(obs, taken, taken + run), run))
            taken, run = taken + run, 0
        if env is not None:
            parts.append((rows[env], 1))
    return merge(parts)


def _whole_numbers(values: Any) -> list[int] | None:
    if isinstance(values, np.ndarray):
        numbers: list[int] | None = values.tolist() if values.ndim == 1 and values.dtype.kind in "iu" else None
        return numbers
    if isinstance(values, list | tuple) and all(isinstance(one, int | np.integer) for one in values):
        return None if any(isinstance(one, bool) for one in values) else [int(one) for one in values]
    return None


def _flags(values: Any, count: int) -> list[bool] | None:
    if isinstance(values, np.ndarray):
        flags: list[bool] | None = values.tolist() if values.shape == (count,) and values.dtype.kind == "b" else None
        return flags
    if isinstance(values, list | tuple) and all(isinstance(one, bool | np.bool_) for one in values):
        return [bool(one) for one in values] if len(values) == count else None
    return None


def _splits(obs: Any, count: int) -> bool:
    try:
        check_rows(obs, count)
    except RowsError:
        return False
    return True


def _reuse_flags(reuse: Any, count: int) -> list[bool]:
    flags = _flags(reuse, count) if isinstance(reuse, np.ndarray) else None
    if flags is None:
        raise ReuseError(f"reuse must be a bool array of shape [{count}]", field="reuse")
    return flags
