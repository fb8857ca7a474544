"""One policy for all connections: infers become batches, feedbacks become learn steps, failures stay where they belong.

Sockets and messages are not known here; a connection is a number.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from openenv.core.exceptions import PolicyActionError
from openenv.policy.metrics import ServerMetrics
from openenv.policy.policy import EnvKey, Observations, Policy, Transitions
from openenv.policy.rows import Observation, signature
from openenv.policy.running import PolicyRunner
from openenv.policy.scheduler import InferQueue, Scheduler

__all__ = ["ConnectionGone", "PolicyFailed", "PolicyService"]

logger = logging.getLogger("openenv.policy")

Array: TypeAlias = "npt.NDArray[Any]"


class PolicyFailed(Exception):
    """The policy raised; it has been logged. Never leaves the server."""


class ConnectionGone(Exception):
    """The connection closed while its infer waited. Never leaves the server."""


@dataclass(slots=True, eq=False)
class PendingInfer:
    """An infer that waits for its actions."""

    connection: int
    envs: int
    since: float
    keys: Sequence[EnvKey]
    step_ids: Array
    obs: Observation
    answer: asyncio.Future[Array] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def fail(self, error: Exception) -> None:
        """End the wait without actions, if it has not ended."""
        if not self.answer.done():
            self.answer.set_exception(error)


class PolicyService:
    """Calls a policy for all connections of a server.

    Args:
        policy: see `Policy`.
        metrics: where its work is counted.
        horizon: what ``H`` of every answer must be; None for any.
        action_dim: what the width of an action must be; None for any.
        mini_infer_batch_size: envs that make a batch; None: one infer of every open connection.
        warn_after_s: seconds after which a wait for a batch is warned about.
        on_finished: called on the loop when the policy says that it has finished.
        on_failure: called on the loop with what the policy raised.
    """

    def __init__(
        self,
        policy: Policy,
        metrics: ServerMetrics,
        *,
        horizon: int | None = None,
        action_dim: int | None = None,
        mini_infer_batch_size: int | None = None,
        warn_after_s: float = 5.0,
        on_finished: Callable[[], object] = lambda: None,
        on_failure: Callable[[Exception], object] = lambda error: None,
    ) -> None:
        self._policy = policy
        self._metrics = metrics
        self._horizon = horizon
        self._action_dim = action_dim
        self._on_finished = on_finished
        self._on_failure = on_failure
        self._runner = PolicyRunner()
        self._queue: InferQueue[PendingInfer] = InferQueue(mini_infer_batch_size, warn_after_s=warn_after_s)
        self._scheduler = Scheduler(self._queue, self._run_batch, self._now)
        self._pending: dict[int, PendingInfer] = {}
        self._forgetting: set[asyncio.Task[None]] = set()

    @property
    def is_learning(self) -> bool:
        """Whether a learn step is in flight."""
        return self._runner.is_learning

    def learning(self) -> AbstractContextManager[None]:
        """Hold the policy while its weights change; from any thread."""
        return self._runner.learning()

    async def serve(self) -> None:
        """Run batches until cancelled."""
        await self._scheduler.serve()

    def close(self) -> None:
        """Call the policy no more, not even to say that connections have closed."""
        for task in self._forgetting:
            task.cancel()
        self._runner.close()

    # ------------------------------------------------------------ connections

    def opened(self, connection: int) -> None:
        """A connection came: batches wait for it from now on."""
        self._queue.opened(connection)
        self._metrics.connections += 1
        self._metrics.open_connections = self._queue.connections
        self._scheduler.wake()

    def closed(self, connection: int) -> None:
        """A connection went, or is about to. May be said again."""
        if not self._queue.closed(connection):
            return
        self._metrics.open_connections = self._queue.connections
        self._scheduler.wake()
        pending = self._pending.pop(connection, None)
        if pending is not None:
            pending.fail(ConnectionGone())
        hook = getattr(self._policy, "connection_closed", None)
        if hook is not None:
            task = asyncio.get_running_loop().create_task(self._forget(hook, connection))
            self._forgetting.add(task)
            task.add_done_callback(self._forgetting.discard)

    async def _forget(self, hook: Callable[[int], Any], connection: int) -> None:
        try:
            await self._runner.call(hook, lambda: connection, lambda returned: None)
        except Exception as error:  # the connection is gone, and nobody else is concerned
            self._failed("connection_closed()", error)

    # ------------------------------------------------------------ inference

    async def infer(self, connection: int, keys: Sequence[EnvKey], step_ids: Array, obs: Observation) -> Array:
        """Wait for the batch, and for this infer's part of the answer.

        Returns:
            ``[n, H, ...]``, of which this caller alone may keep views.

        Raises:
            PolicyFailed: the policy raised, or its actions do not fit.
            ConnectionGone: `closed` was called meanwhile.
        """
        pending = PendingInfer(connection, len(keys), self._now(), keys, step_ids, obs)
        self._pending[connection] = pending
        self._queue.put(pending)
        self._scheduler.wake()
        try:
            return await pending.answer
        finally:
            self._pending.pop(connection, None)

    async def _run_batch(self, batch: list[PendingInfer]) -> None:
        """One call of the policy for all whose observations are of one make; usually that is all."""
        now = self._now()
        for pending in batch:
            self._metrics.infer_wait_s += now - pending.since
            self._metrics.longest_infer_wait_s = max(self._metrics.longest_infer_wait_s, now - pending.since)
        alike: defaultdict[object, list[PendingInfer]] = defaultdict(list)
        for pending in batch:
            alike[signature(pending.obs)].append(pending)
        for group in alike.values():
            try:
                await self._act(group)
            except Exception as error:  # whatever a policy raises costs those who asked, and nobody else
                self._failed("act()", error)
                for pending in group:
                    pending.fail(PolicyFailed())

    async def _act(self, group: Sequence[PendingInfer]) -> None:
        count = sum(pending.envs for pending in group)
        began = self._now()
        actions = await self._runner.call(
            self._policy.act, lambda: _joined(group), lambda returned: self._checked(returned, count)
        )
        self._metrics.act_s += self._now() - began
        self._metrics.batches += 1
        self._metrics.rows += count
        self._metrics.largest_batch = max(self._metrics.largest_batch, count)
        start = 0
        for pending in group:
            if not pending.answer.done():
                pending.answer.set_result(actions[start : start + pending.envs])
            start += pending.envs

    def _checked(self, returned: Any, count: int) -> Array:
        """The policy's actions as an array of our own, for the policy may use its buffer again."""
        actions = np.array(returned)
        if actions.dtype.kind not in "fiu" or actions.ndim < 2 or actions.shape[0] != count or actions.shape[1] < 1:
            raise PolicyActionError(
                f"act() returned {actions.dtype} {list(actions.shape)} for {count} envs; it must return numbers "
                f"[{count}, H, ...]"
            )
        horizon, width = actions.shape[1], int(np.prod(actions.shape[2:]))
        if self._horizon not in (None, horizon) or self._action_dim not in (None, width):
            raise PolicyActionError(
                f"act() returned chunks of {horizon} actions of width {width}, and the metadata declares "
                f"action_horizon {self._horizon} and action_dim {self._action_dim}"
            )
        actions.flags.writeable = False
        return actions

    # ------------------------------------------------------------ learning

    async def feedback(self, make: Callable[[], Transitions]) -> None:
        """Hand transitions to the policy, if it wants them.

        Args:
            make: makes them, off the loop.

        Raises:
            PolicyFailed: the policy raised.
        """
        hook = getattr(self._policy, "feedback", None)
        if hook is None:
            return
        began = self._now()
        try:
            finished = await self._runner.call(hook, make, self._is_finished, learns=True)
        except Exception as error:  # whatever a policy raises costs the one who sent this, and nobody else
            self._failed("feedback()", error)
            raise PolicyFailed from None
        self._metrics.feedback_s += self._now() - began
        self._scheduler.wake()
        if finished:
            self._on_finished()

    def _is_finished(self, _: Any) -> bool:
        return bool(getattr(self._policy, "finished", False))

    def _failed(self, what: str, error: Exception) -> None:
        logger.error("%s of the policy failed: %s", what, error, exc_info=error)
        self._on_failure(error)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _joined(group: Sequence[PendingInfer]) -> Observations:
    return Observations.join(
        keys=[key for pending in group for key in pending.keys],
        step_ids=np.concatenate([pending.step_ids for pending in group]),
        parts=[(pending.obs, pending.envs) for pending in group],
    )
