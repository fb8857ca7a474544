"""The client's half of ``reuse-feedback-obs``: which rows of an infer the server holds already [10.1].

A row is left out only if the last feedback that named its environment, on this connection, carried the very same bytes:
same names in the same order, dtype, shape, and data; text the same str. Values that merely compare equal (0.0 and -0.0)
do not count, and NaN does. The rows are kept as copies, since callers use their arrays again.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from openenv.policy.checks import Array
from openenv.policy.messages import Feedback
from openenv.policy.observation import Observation

__all__ = ["FedBackRows"]


class FedBackRows:
    """Copies of what was fed back on the open connection."""

    def __init__(self) -> None:
        self._rows: dict[int, Hashable] = {}

    def forget(self) -> None:
        """Another connection is open: its server end holds nothing."""
        self._rows.clear()

    def remember(self, feedback: Feedback) -> None:
        """A feedback was sent. What ended an episode is forgotten: the next observation is that of a reset."""
        ended = np.logical_or(feedback.terminated, feedback.truncated).tolist()
        for row, env in enumerate(feedback.env_indices.tolist()):
            if ended[row]:
                self._rows.pop(env, None)
            else:
                self._rows[env] = _fingerprint(feedback.observation, row)

    def reusable(self, env_indices: Array, observation: Observation) -> Array:
        """Which rows the server holds.

        Args:
            env_indices: ``[n]``.
            observation: batched to all n.

        Returns:
            ``[n]`` bool.
        """
        held = [
            env in self._rows and self._rows[env] == _fingerprint(observation, row)
            for row, env in enumerate(env_indices.tolist())
        ]
        return np.array(held, dtype=np.bool_)


def _fingerprint(observation: Observation, row: int) -> Hashable:
    groups = (observation.images, observation.states)
    arrays = tuple(
        tuple((name, rows.dtype.str, rows.shape[1:], rows[row].tobytes()) for name, rows in group.items())
        for group in groups
    )
    return arrays, str(observation.text[row])
