"""What a server knows of the envs of one connection: the chunk that each is running, and its last observation.

It lives exactly as long as the connection. No sockets, no policies.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from openenv.core.exceptions import PolicyProtocolError
from openenv.policy.info import split_info
from openenv.policy.messages import Feedback, Infer
from openenv.policy.observation_cache import ObservationCache
from openenv.policy.policy import EnvKey, Observations, Transitions, read_only
from openenv.policy.rows import Observation, signature, view_rows

__all__ = ["EnvStates", "FedChunks"]

Array: TypeAlias = "npt.NDArray[Any]"


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    """A chunk that was sent, with the observation that it was chosen for."""

    step_id: int
    obs: dict[str, Any]
    make: object
    actions: Array


class EnvStates:
    """The envs of one connection.

    Args:
        connection: its number.
        reuses: whether its client may leave out rows that it has fed back; only then are they kept.
    """

    def __init__(self, connection: int, *, reuses: bool = True) -> None:
        self._connection = connection
        self._reuses = reuses
        self._chunks: dict[int, _Chunk] = {}
        self.cache = ObservationCache()

    def keys(self, envs: Sequence[int]) -> list[EnvKey]:
        """Envs by names that no other connection has."""
        return [EnvKey(self._connection, env) for env in envs]

    def answered(self, infer: Infer, obs: Observation, actions: Array) -> None:
        """Remember an answer, until its feedback.

        Args:
            infer: of ``n`` envs.
            obs: what they were answered for, ``n`` rows.
            actions: ``[n, H, ...]``.
        """
        make = signature(obs)
        for row, env in enumerate(infer.env_indices.tolist()):
            self._chunks[env] = _Chunk(int(infer.step_ids[row]), view_rows(obs, row, row + 1), make, actions[row])

    def fed(self, feedback: Feedback, strays: Collection[int]) -> FedChunks | None:
        """Match a feedback with the chunks that it is for.

        Args:
            feedback: what came of them.
            strays: envs of it that hold no action of this connection.

        Returns:
            What the policy may learn from; None if there is nothing.

        Raises:
            PolicyProtocolError: the client has changed the make of its observations between the chunks.
        """
        envs: list[int] = feedback.env_indices.tolist()
        obs = feedback.observation.to_map()
        if self._reuses:
            self.cache.on_feedback(envs, obs, feedback.terminated, feedback.truncated)
        rows = [row for row, env in enumerate(envs) if env not in strays]
        if not rows:
            return None
        chunks = [self._chunks.pop(envs[row]) for row in rows]
        if len({chunk.make for chunk in chunks}) > 1:
            raise PolicyProtocolError(
                "it is for chunks whose observations had different names, dtypes or shapes", field="env_indices"
            )
        return FedChunks(self.keys([envs[row] for row in rows]), rows, feedback, obs, chunks)


class FedChunks:
    """Chunks and what became of them. Cheap to make; `transitions` does the copying."""

    def __init__(
        self, keys: list[EnvKey], rows: list[int], feedback: Feedback, obs: Observation, chunks: list[_Chunk]
    ) -> None:
        self._keys = keys
        self._rows = rows
        self._feedback = feedback
        self._obs = obs
        self._chunks = chunks

    def __len__(self) -> int:
        return len(self._keys)

    def transitions(self) -> Transitions:
        """Put them together for the policy."""
        fed, rows = self._feedback, self._rows
        info = split_info(fed.info, len(fed.env_indices))
        after = self._obs if len(rows) == len(info) else fed.observation.rows(rows).to_map()
        before = [(chunk.obs, 1) for chunk in self._chunks]
        step_ids = np.array([chunk.step_id for chunk in self._chunks])
        return Transitions(
            keys=self._keys,
            observations=Observations.join(self._keys, step_ids, before),
            actions=read_only(np.stack([chunk.actions for chunk in self._chunks])),
            rewards=fed.rewards[rows],
            next_observations=Observations.join(self._keys, step_ids + 1, [(after, len(rows))]),
            terminated=fed.terminated[rows],
            truncated=fed.truncated[rows],
            info=[info[row] for row in rows],
        )
