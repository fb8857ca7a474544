"""What a policy object must have to be served, and what it is given.

Arrays that a policy is given are read-only and may be views of the frame they came in: copy what is kept for long.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy.typing as npt

from openenv.policy.rows import Observation, merge

__all__ = ["EnvKey", "Observations", "Policy", "Transitions"]

Array: TypeAlias = "npt.NDArray[Any]"


class EnvKey(NamedTuple):
    """An env of a client. Clients number their envs on their own, so ``env`` alone does not tell two of them apart.

    Attributes:
        connection: number of the connection, never given twice in the life of a server.
        env: the client's index of the env.
    """

    connection: int
    env: int


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """A batch of observations, of one connection or of several.

    Attributes:
        keys: whose they are, ``[n]``.
        step_ids: chunks completed in the current episode, ``[n]``; 0 after a reset.
        images: name to ``uint8 [n, h, w, c]``.
        states: name to float ``[n, d]``.
        text: array of str, ``[n]``.
    """

    keys: Sequence[EnvKey]
    step_ids: Array
    images: Mapping[str, Array]
    states: Mapping[str, Array]
    text: Array

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def join(cls, keys: Sequence[EnvKey], step_ids: Array, parts: Sequence[tuple[Observation, int]]) -> Observations:
        """Make a batch of checked observations, given with their numbers of rows.

        Raises:
            RowsError: they differ in names, dtypes or shapes.
        """
        merged = merge(parts)
        return cls(
            keys=keys,
            step_ids=step_ids,
            images={name: read_only(array) for name, array in merged["images"].items()},
            states={name: read_only(array) for name, array in merged["states"].items()},
            text=read_only(merged["text"]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Transitions:
    """What became of action chunks: a feedback, with what led to it. All of one connection.

    Attributes:
        keys: whose they are, ``[m]``.
        observations: what `act` was given for these envs, ``m`` rows.
        actions: the chunks that were sent, ``[m, H, ...]``. A client may have run a prefix of a chunk only.
        rewards: sum over the steps that were run, ``[m]``.
        next_observations: after the last step; the terminal one where the episode ended.
        terminated: ``bool [m]``.
        truncated: ``bool [m]``.
        info: a map for each env, ``[m]``.
    """

    keys: Sequence[EnvKey]
    observations: Observations
    actions: Array
    rewards: Array
    next_observations: Observations
    terminated: Array
    truncated: Array
    info: Sequence[Mapping[str, Any]]

    def __len__(self) -> int:
        return len(self.keys)


class Policy(Protocol):
    """Anything with `act`. Every method but ``metadata`` may be ``async``.

    A plain method runs in one worker thread, one call at a time, and may take as long as it needs: connections stay
    open meanwhile. A coroutine runs on the server's event loop, also one call at a time, and must not block it.

    These are looked for, and may be missing:

    * ``feedback(transitions: Transitions)``: learn. While it runs nobody is timed out.
    * ``metadata``: a mapping, or a method that returns one: what clients are told. The attributes ``action_horizon``
      and ``action_dim`` are told, too.
    * ``connection_closed(connection: int)``: this connection's envs are gone. Forget what was kept for them. Not called
      when the server itself ends.
    * ``finished``: once true, after a feedback, the run is over, and the server tells its clients to stop.

    Envs say nothing when they are reset: ``step_ids`` is 0 then.
    """

    def act(self, observations: Observations, /) -> Any | Awaitable[Any]:
        """Choose action chunks.

        Args:
            observations: a batch of ``n`` envs.

        Returns:
            Numbers, ``[n, H, ...]``: a chunk of ``H`` actions for each env, in the order of ``observations.keys``.
        """


def read_only(array: Array) -> Array:
    """The same array, not to be written to."""
    view = array.view()
    view.flags.writeable = False
    return view
