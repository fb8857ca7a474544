"""All sessions of a server: how many there may be, who makes room for whom, and the drain at the end.

`SessionManager` owns every environment of every route. A slot is taken before the environment's constructor runs
and given back after its ``close()`` has returned. What one session is, is in `openenv.core.env_server.session`.

Everything here runs on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from openenv.core.env_server.calls import CallError
from openenv.core.env_server.session import EndReason, Session, Setup
from openenv.core.env_server.types import ServerCapacityStatus
from openenv.core.env_server.waiting import Place, WaitingLine
from openenv.core.exceptions import SessionCapacityError, SessionCreationError, SessionNotFoundError
from openenv.core.wire.messages import WSErrorCode

__all__ = ["EndReason", "Session", "SessionManager", "Setup"]

logger = logging.getLogger("openenv.server")

T = TypeVar("T")

EVICT_AFTER_S = 5.0
"""A session that lost its socket, or is evictable and idle, for this long makes room for a newcomer at a full
server."""
RETRY_AFTER_S = 1.0
"""When to come again to a full server that has no such session."""
EVICTION_WAIT_S = 10.0
"""How long a newcomer waits for the evicted environment to close."""


class SessionManager:
    """All sessions of one server.

    Args:
        setup: how environments are made.
        max_sessions: most environments alive at any moment.
        drain_grace_s: seconds that `drain` lets running calls and ``close()`` take.
        evict_after_s: unused for this long, a leased (or evictable) session makes room for a newcomer; 5 s by default.

    Attributes:
        guests: sessions of a class of which only one may live: they end for whoever comes here; None for none.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        max_sessions: int = 1,
        drain_grace_s: float = 10.0,
        evict_after_s: float | None = None,
    ) -> None:
        self.max_sessions = max_sessions
        self._evict_after_s = evict_after_s
        self.drain_grace_s = drain_grace_s
        self.draining = False
        self.setup = setup
        self.guests: SessionManager | None = None
        self._sessions: dict[str, Session] = {}
        self._line = WaitingLine()
        self._drain: asyncio.Task[None] | None = None
        self._over: asyncio.Future[None] | None = None

    @property
    def started(self) -> bool:
        """Whether the app that this serves was started, so that its event loop lasts."""
        return self._over is not None

    @property
    def active(self) -> int:
        """Slots that are taken, also by environments that are being built or closed."""
        return len(self._sessions)

    @property
    def full(self) -> bool:
        """Whether a newcomer has to wait for somebody to go."""
        return self.active >= self.max_sessions or (self.guests is not None and self.guests.active > 0)

    @property
    def capacity(self) -> ServerCapacityStatus:
        """How full the server is."""
        return ServerCapacityStatus.from_counts(self.active, self.max_sessions)

    def get(self, session_id: str) -> Session:
        """Find an open session.

        Raises:
            SessionNotFoundError: there is none of this name, or it is over.
        """
        session = self._sessions.get(session_id)
        if session is None or session.machine.over:
            raise SessionNotFoundError(session_id)
        return session

    async def open(self, *, idle_timeout_s: float | None = None, evictable: bool = False) -> Session:
        """Take a slot and start building an environment; wait for it with `Session.ready`.

        At a full server, leased sessions and evictable idle ones end for the newcomer after 5 s, oldest first; before
        them, and at once, those that nobody has claimed.

        Args:
            idle_timeout_s: seconds of silence after which the session ends; None for never.
            evictable: whether it may end earlier, for a newcomer at a full server.

        Raises:
            SessionCapacityError: every slot is taken.
            SessionCreationError: the server is shutting down.
        """
        while (self.full or self._line) and not self.draining:
            if self._line:  # a free slot belongs to the head of the line
                raise SessionCapacityError(self.active, self.max_sessions)
            await self._evict_one()
        return self._start(idle_timeout_s, evictable)

    async def open_in_turn(
        self, *, wait_s: float, told: Callable[[int], object], idle_timeout_s: float | None = None
    ) -> Session:
        """As `open`, but wait in line for a slot; whoever came first is served first (E28).

        Args:
            wait_s: longest wait, in seconds.
            told: called with the position in the line, 1 for its head, whenever that has changed.
            idle_timeout_s: as for `open`.

        Raises:
            SessionCapacityError: no slot became free in time.
            SessionCreationError: the server is shutting down.
        """
        if not self.full and not self._line:
            return self._start(idle_timeout_s, evictable=False)
        try:
            async with asyncio.timeout(wait_s), self._line.place(told) as place:
                await self._turn(place)
                return self._start(idle_timeout_s, evictable=False)
        except TimeoutError:
            raise SessionCapacityError(self.active, self.max_sessions) from None

    async def _turn(self, place: Place) -> None:
        """Wait until this place is the head of the line and a slot is free."""
        while not self.draining:
            if place.position > 1:
                await place.change()
            elif not self.full:
                return
            else:
                try:
                    await self._evict_one()
                except SessionCapacityError:
                    await place.change(self.retry_after_s)

    def _start(self, idle_timeout_s: float | None, evictable: bool) -> Session:
        if self.draining:
            raise SessionCreationError("the server is shutting down")
        session = Session(self.setup, idle_timeout_s=idle_timeout_s, evictable=evictable, on_freed=self._forget)
        self._sessions[session.id] = session
        return session

    async def _evict_one(self) -> None:
        if self.active < self.max_sessions and self.guests is not None:
            return await self.guests.give_way()
        spare = [(one.spare_s or 0.0, one) for one in self._sessions.values() if one.spare_s is not None]
        ready = [(age, one) for age, one in spare if age > self.evict_after_s or not one.claimed]
        if not ready:
            raise SessionCapacityError(self.active, self.max_sessions)
        # one whose call still runs frees its slot only when that has returned: the last to be asked
        age, oldest = max(ready, key=lambda pair: (not pair[1].machine.busy, not pair[1].claimed, pair[0]))
        logger.info("session %s was unused for %.1f s: evicted for a newcomer", oldest.id, age)
        oldest.end(EndReason.EVICTED)
        _, late = await asyncio.wait([oldest.closed], timeout=EVICTION_WAIT_S)
        if late:
            raise SessionCapacityError(self.active, self.max_sessions)
        return None

    async def give_way(self) -> None:
        """End every session, whatever it is doing, for one that goes first.

        Raises:
            SessionCapacityError: a call of one has not returned in time.
        """
        sessions = list(self._sessions.values())
        for session in sessions:
            logger.info("session %s gives way", session.id)
            session.end(EndReason.GAVE_WAY)
        if sessions:
            _, late = await asyncio.wait([session.closed for session in sessions], timeout=EVICTION_WAIT_S)
            if late:
                raise SessionCapacityError(len(late), self.max_sessions)

    @property
    def evict_after_s(self) -> float:
        """How long an unused session is safe from newcomers, in seconds."""
        return EVICT_AFTER_S if self._evict_after_s is None else self._evict_after_s

    @property
    def retry_after_s(self) -> float:
        """When a newcomer that was refused may come again, in seconds: when the next slot can be taken from an unused
        session, if there is one."""
        ages = [age for one in self._sessions.values() if (age := one.spare_s) is not None]
        return max(0.1, self.evict_after_s - max(ages)) if ages else RETRY_AFTER_S

    def _forget(self, session: Session) -> None:
        self._sessions.pop(session.id, None)
        self._line.wake()

    # ------------------------------------------------------------ the end

    def start(self) -> None:
        """Note the loop that the server runs on, and admit sessions."""
        self.draining = False
        self._drain = None
        self._over = asyncio.get_running_loop().create_future()

    def begin_drain(self) -> asyncio.Task[None]:
        """Stop admitting sessions and begin to end those that are open; a second call joins the first."""
        if self._drain is None:
            self.draining = True
            self._line.wake()
            self._drain = asyncio.get_running_loop().create_task(self._end_all(), name="openenv-drain")
        return self._drain

    async def drain(self) -> None:
        """Close every environment once, within the grace. What is busy for longer is left and logged."""
        await asyncio.shield(self.begin_drain())

    async def or_drained(self, waiting: asyncio.Future[Any]) -> bool:
        """Wait for something, or until a drain has run out of time. Returns whether it has come."""
        if self._over is None:
            await asyncio.wait([waiting])
        else:
            await asyncio.wait([waiting, self._over], return_when=asyncio.FIRST_COMPLETED)
        return waiting.done()

    async def bounded(self, waiting: Coroutine[Any, Any, T]) -> T:
        """Wait for something of a session, but not longer than a draining server waits for it.

        Raises:
            CallError: the server stops and the call has not returned.
        """
        task = asyncio.ensure_future(waiting)
        try:
            if await self.or_drained(task):
                return task.result()
        finally:
            task.cancel()
        raise CallError(WSErrorCode.SESSION_ERROR, "The server stops; the call has not returned", applied=None)

    async def _end_all(self) -> None:
        sessions = list(self._sessions.values())
        for session in sessions:
            session.end(EndReason.DRAINING)
        if sessions:
            logger.info("draining: %d session(s), %g s", len(sessions), self.drain_grace_s)
            await asyncio.wait([session.closed for session in sessions], timeout=self.drain_grace_s)
        for session in sessions:
            if not session.closed.done():
                logger.warning("session %s (%s) not closed: busy", session.id, session.info.environment_type)
        if self._over is not None and not self._over.done():
            self._over.set_result(None)
