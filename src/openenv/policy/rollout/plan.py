"""Who needs an action chunk, who runs which step of one, and what is to be told of it. Pure: no envs, no network.

A chunk is fed back when it has been run to its end (or as far as ``replan_steps`` says), when its episode ended, or
when it was cut short. Messages alternate: after an action exactly one feedback is due, after a feedback exactly one
infer [4], so that what came of a chunk may have to wait for other envs to ask. Where envs ask while a feedback is due
and nothing has ended, a chunk that has begun is cut short, which any client may do [5.3].
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Chunk", "EnvPlan", "Plan"]

Array: TypeAlias = "npt.NDArray[Any]"


@dataclass(slots=True)
class Chunk:
    """The actions that an env was given.

    Attributes:
        actions: ``[H, *da]``, as far as they are to be run.
        ran: how many of them have been.
        reward: sum over those.
    """

    actions: Array
    ran: int = 0
    reward: float = 0.0

    @property
    def over(self) -> bool:
        """Whether all of it has been run."""
        return self.ran >= len(self.actions)


@dataclass(slots=True)
class EnvPlan:
    """One env.

    Attributes:
        chunk: what it runs; None if it has to ask.
        held: it holds an action of this connection that has not been fed back.
        step_id: chunks completed in its episode.
        steps: env steps of its episode.
        total: reward of its episode.
        ready: it has an observation to ask with; not while its env resets itself.
        last: the action that it was last given ``[*da]``; None before the first.
    """

    chunk: Chunk | None = None
    held: bool = False
    step_id: int = 0
    steps: int = 0
    total: float = 0.0
    ready: bool = True
    last: Array | None = None


@dataclass
class Plan:
    """The chunks of all envs on one connection.

    Args:
        num_envs: how many there are.
        replan_steps: steps of each chunk to run; None for all.

    Attributes:
        envs: each env's state.
        feedback_due: an action came, and no feedback since.
    """

    num_envs: int
    replan_steps: int | None = None
    envs: list[EnvPlan] = field(init=False)
    feedback_due: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.num_envs < 1 or (self.replan_steps is not None and self.replan_steps < 1):
            raise ValueError("there must be an env, and a step of a chunk to run")
        self.envs = [EnvPlan() for _ in range(self.num_envs)]

    def asking(self) -> list[int]:
        """Envs without a chunk that may ask for one now."""
        return [i for i, env in enumerate(self.envs) if env.chunk is None and env.ready and not env.held]

    def take(self, envs: Sequence[int], action: Array) -> None:
        """Give each of these envs its row of an action ``[H, n, *da]``."""
        steps = action[: self.replan_steps]
        for row, index in enumerate(envs):
            self.envs[index].chunk = Chunk(steps[:, row])
            self.envs[index].held = True
        self.feedback_due = True

    def actions(self) -> Array:
        """The next action of each env ``[n, *da]``.

        An env that resets itself takes none, but a vector env wants one, and whoever maps it may refuse what is no
        action: such an env is given once more what it had last.
        """
        for env in self.envs:
            if env.chunk is not None:
                env.last = env.chunk.actions[env.chunk.ran]
        given = [env.last for env in sorted(self.envs, key=lambda env: env.chunk is None) if env.last is not None]
        like = given[0]  # of this connection if any is: the policy may have become another
        rows = [like if env.last is None or env.last.shape != like.shape else env.last for env in self.envs]
        return np.stack(rows)

    def stepped(self, rewards: Array, done: Array, lost: Array) -> list[int]:
        """Note a step of all envs.

        Args:
            rewards: ``[n]``.
            done: ``bool [n]``, episodes that ended.
            lost: ``bool [n]``, envs whose step has no result; it does not count.

        Returns:
            Envs whose chunk has ended by it, lost ones with a step of their chunk behind them included.
        """
        ended = []
        for index, env in enumerate(self.envs):
            chunk = env.chunk
            if chunk is None:
                continue
            if not lost[index]:
                chunk.ran += 1
                chunk.reward += float(rewards[index])
                env.steps += 1
                env.total += float(rewards[index])
            if chunk.ran and (lost[index] or done[index] or chunk.over):
                ended.append(index)
        return ended

    def unfinished(self, lost: Array) -> list[int]:
        """Lost envs that hold an action of which nothing was run: nothing can be fed back for them."""
        return [i for i, env in enumerate(self.envs) if lost[i] and env.chunk is not None and not env.chunk.ran]

    def cut(self) -> list[int]:
        """Envs whose chunk is to be cut short, so that a feedback can be sent: those farthest into theirs."""
        begun = [(env.chunk.ran, i) for i, env in enumerate(self.envs) if env.chunk is not None and env.chunk.ran]
        most = max((ran for ran, _ in begun), default=0)
        return [i for ran, i in begun if ran == most]

    def finish(self, envs: Iterable[int]) -> tuple[Array, Array]:
        """Take these envs' chunks, to be fed back. Returns their step ids and reward sums."""
        chosen = [self.envs[index] for index in envs]
        ids = np.array([env.step_id for env in chosen], np.int64)
        sums = np.array([env.chunk.reward if env.chunk else 0.0 for env in chosen], np.float64)
        for env in chosen:
            env.chunk = None
            env.step_id += 1
        return ids, sums

    def fed_back(self, envs: Iterable[int]) -> None:
        """A feedback that names these envs was sent."""
        for index in envs:
            self.envs[index].held = False
        self.feedback_due = False

    def begin(self, envs: Iterable[int], *, ready: bool = True) -> None:
        """New episodes; not ``ready`` while the envs still reset themselves."""
        for index in envs:
            env = self.envs[index]
            env.chunk, env.step_id, env.steps, env.total, env.ready = None, 0, 0, 0.0, ready

    def drop(self) -> None:
        """The connection is gone: every chunk is void, with what was collected for it [7.6]."""
        for env in self.envs:
            env.chunk, env.held = None, False
        self.feedback_due = False
