"""What a client call returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

__all__ = ["ClientSession", "StepResult"]

ObsT = TypeVar("ObsT")


@dataclass
class StepResult(Generic[ObsT]):
    """The environment's answer to ``reset()`` or ``step()``.

    Attributes:
        observation: what the environment shows.
        reward: reward of this step as the environment sent it (bool, int, float), or None for none.
        done: whether the episode has ended.
        metadata: further values the environment sent beside the observation, or None.
        terminated: the episode ended in itself: a goal, a failure. A server that does not tell it apart means this.
        truncated: the episode was cut off from outside, as by a limit of steps.
    """

    observation: ObsT
    reward: float | None = None
    done: bool = False
    metadata: dict[str, Any] | None = None
    terminated: bool = False
    truncated: bool = False


@dataclass(frozen=True)
class ClientSession:
    """Where a client stands.

    Attributes:
        id: public id of the session, as the server's log names it; None with a plain server, or without a session.
        number: sessions this client has opened; the present one has this number.
        resumes: how often a session was resumed after its connection had broken.
        losses: how many sessions were lost.
    """

    id: str | None
    number: int
    resumes: int = 0
    losses: int = 0
