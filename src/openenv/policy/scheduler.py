"""When the infers of all connections are run as one batch.

`InferQueue` decides and knows neither clock, sockets nor policies. `Scheduler` runs what it says, and is woken by
events: an infer was queued or withdrawn, a connection came or went. It never polls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

__all__ = ["InferQueue", "Scheduler", "Waiting"]

logger = logging.getLogger("openenv.policy")


class Waiting(Protocol):
    """An infer that waits for its batch."""

    @property
    def connection(self) -> int:
        """Number of its connection."""

    @property
    def envs(self) -> int:
        """Number of its envs."""

    @property
    def since(self) -> float:
        """When it was queued, in seconds of the caller's clock."""


W = TypeVar("W", bound=Waiting)


class InferQueue(Generic[W]):
    """Infers that wait, at most one a connection, and the rule when there are enough of them.

    Args:
        mini_infer_batch_size: number of envs that make a batch. None: one infer of every open connection, so that a
            client waits for its slower peers.
        warn_after_s: seconds after which a wait is worth a warning.
    """

    def __init__(self, mini_infer_batch_size: int | None = None, *, warn_after_s: float = 5.0) -> None:
        if mini_infer_batch_size is not None and mini_infer_batch_size < 1:
            raise ValueError("mini_infer_batch_size must be 1 or more, or None for one infer of every connection")
        self._size = mini_infer_batch_size
        self._warn_after_s = warn_after_s
        self._open: set[int] = set()
        self._queued: dict[int, W] = {}
        self._warned = False

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._open)

    def opened(self, connection: int) -> None:
        """A connection came."""
        self._open.add(connection)

    def closed(self, connection: int) -> bool:
        """A connection went; what it had queued goes with it. False if it was not open."""
        if connection not in self._open:
            return False
        self._open.remove(connection)
        self._queued.pop(connection, None)
        return True

    def put(self, infer: W) -> None:
        """Queue an infer of an open connection that has none queued."""
        self._queued[infer.connection] = infer

    @property
    def ready(self) -> bool:
        """Whether a batch can run now."""
        if not self._queued:
            return False
        if self._size is not None:
            return sum(infer.envs for infer in self._queued.values()) >= self._size
        return len(self._queued) >= len(self._open)

    def take(self) -> list[W]:
        """All that waits, oldest first."""
        batch = list(self._queued.values())
        self._queued.clear()
        self._warned = False
        return batch

    def warning_at(self) -> float | None:
        """When to look at `warning` again; None if there is nothing to warn of."""
        if self._warned or not self._queued or self.ready:
            return None
        return next(iter(self._queued.values())).since + self._warn_after_s

    def warning(self, now: float) -> str | None:
        """What the queue waits for, if it has waited too long; once for each batch. Nothing is forced."""
        due = self.warning_at()
        if due is None or now < due:
            return None
        self._warned = True
        waited = now - next(iter(self._queued.values())).since
        if self._size is None:
            missing = sorted(self._open - self._queued.keys())
            return f"inference has waited {waited:.1f} s for connection(s) {missing}, which have not sent an infer"
        envs = sum(infer.envs for infer in self._queued.values())
        stuck = (
            "; every open connection waits, so more must connect, or mini_infer_batch_size be smaller"
            if len(self._queued) == len(self._open)
            else ""
        )
        return f"inference has waited {waited:.1f} s: {envs} of {self._size} envs are there{stuck}"


class Scheduler(Generic[W]):
    """Runs the batches of a queue, one after the other.

    Args:
        queue: what waits. Call `wake` after each change of it.
        run: runs a batch; must not raise.
        clock: seconds, the same clock as in ``since``.
    """

    def __init__(
        self, queue: InferQueue[W], run: Callable[[list[W]], Awaitable[None]], clock: Callable[[], float]
    ) -> None:
        self._queue = queue
        self._run = run
        self._clock = clock
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Something has changed: look at the queue again."""
        self._changed.set()

    async def serve(self) -> None:
        """Run batches until cancelled."""
        while True:
            self._changed.clear()
            if self._queue.ready:
                await self._run(self._queue.take())
            else:
                await self._wait()

    async def _wait(self) -> None:
        due = self._queue.warning_at()
        try:
            async with asyncio.timeout(None if due is None else max(0.0, due - self._clock())):
                await self._changed.wait()
        except TimeoutError:
            warning = self._queue.warning(self._clock())
            if warning is not None:
                logger.warning("%s", warning)
