"""What a server knows of the envs of one connection: the chunk that each is running, and its last observation.

It lives exactly as long as the connection. No sockets, no policies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from openenv.policy.observation_cache import ObservationCache
from openenv.policy.policy import EnvKey, Observations, Transitions, read_only
from openenv.policy.rows import GROUPS, Observation, RowsError, signature, view_rows

__all__ = ["EnvStates", "Fed"]

Array: TypeAlias = "npt.NDArray[Any]"


@dataclass(frozen=True, slots=True, eq=False)
class Fed:
    """A checked feedback.

    Attributes:
        envs: whose, ``[m]``, none twice.
        obs: after the last step, ``m`` rows.
        rewards: ``[m]``.
        terminated: ``bool [m]``.
        truncated: ``bool [m]``.
        info: a map for each env.
    """

    envs: Sequence[int]
    obs: Observation
    rewards: Array
    terminated: Array
    truncated: Array
    info: Sequence[Mapping[Any, Any]]


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
    """

    def __init__(self, connection: int) -> None:
        self._connection = connection
        self._chunks: dict[int, _Chunk] = {}
        self.cache = ObservationCache()

    def keys(self, envs: Sequence[int]) -> list[EnvKey]:
        """Envs by names that no other connection has."""
        return [EnvKey(self._connection, env) for env in envs]

    def answered(self, envs: Sequence[int], step_ids: Array, obs: Observation, actions: Array) -> list[int]:
        """Remember an answer.

        Args:
            envs: who asked, ``[n]``.
            step_ids: ``[n]``.
            obs: what they were answered for, ``n`` rows.
            actions: ``[n, H, ...]``.

        Returns:
            Envs that had a chunk without feedback, which is forgotten.
        """
        replaced = [env for env in envs if env in self._chunks]
        make = signature(obs)
        for row, env in enumerate(envs):
            self._chunks[env] = _Chunk(int(step_ids[row]), view_rows(obs, row, row + 1), make, actions[row])
        return replaced

    def fed(self, fed: Fed) -> tuple[FedChunks | None, list[int]]:
        """Match a feedback with the chunks that it is for.

        Returns:
            What the policy may learn from, if anything, and the envs that had no chunk on this connection.

        Raises:
            RowsError: the client has changed the make of its observations between the chunks of one feedback.
        """
        self.cache.on_feedback(list(fed.envs), fed.obs, fed.terminated, fed.truncated)
        rows = [row for row, env in enumerate(fed.envs) if env in self._chunks]
        strangers = [env for env in fed.envs if env not in self._chunks]
        if not rows:
            return None, strangers
        chunks = [self._chunks.pop(fed.envs[row]) for row in rows]
        if len({chunk.make for chunk in chunks}) > 1:
            raise RowsError("a feedback is for chunks whose observations had different names, dtypes or shapes")
        return FedChunks(self.keys([fed.envs[row] for row in rows]), rows, fed, chunks), strangers


class FedChunks:
    """Chunks and what became of them. Cheap to make; `transitions` does the copying."""

    def __init__(self, keys: list[EnvKey], rows: list[int], fed: Fed, chunks: list[_Chunk]) -> None:
        self._keys = keys
        self._rows = rows
        self._fed = fed
        self._chunks = chunks

    def __len__(self) -> int:
        return len(self._keys)

    def transitions(self) -> Transitions:
        """Put them together for the policy."""
        fed, rows = self._fed, self._rows
        all_rows = len(rows) == len(fed.envs)
        before = [(chunk.obs, 1) for chunk in self._chunks]
        after = fed.obs if all_rows else _chosen(fed.obs, rows)
        step_ids = np.array([chunk.step_id for chunk in self._chunks])
        return Transitions(
            keys=self._keys,
            observations=Observations.join(self._keys, step_ids, before),
            actions=read_only(np.stack([chunk.actions for chunk in self._chunks])),
            rewards=fed.rewards[rows],
            next_observations=Observations.join(self._keys, step_ids + 1, [(after, len(rows))]),
            terminated=fed.terminated[rows],
            truncated=fed.truncated[rows],
            info=[fed.info[row] for row in rows],
        )


def _chosen(obs: Observation, rows: list[int]) -> dict[str, Any]:
    chosen: dict[str, Any] = {group: {name: array[rows] for name, array in obs[group].items()} for group in GROUPS}
    text = obs["text"]
    if isinstance(text, list | tuple):
        text = [text[row] for row in rows]
    elif isinstance(text, np.ndarray):
        text = text[rows]
    chosen["text"] = text
    return chosen
