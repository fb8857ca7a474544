"""One session: its environment, its calls, and its end.

A `Session` has one task, its life: it builds the environment, waits for the end, closes the environment. Whoever
wants a session to end asks that task, through the table of `openenv.core.session.server`; nobody else closes an
environment.

Idle sessions. A session is live while one of its calls runs, and for ``idle_timeout_s`` after the last frame or
request it received, whatever that asked for (a state request counts; so does a frame that was refused). Past that
it is ended: a WebSocket is closed with code 4001 ``idle``, so that its client hears of it. Pings of the WebSocket
layer do not reach an ASGI application and count for nothing. A session that was opened and has heard nothing at all
ends after ten minutes, whatever ``idle_timeout_s`` is: nothing is lost with it. A session whose socket is gone and
that is kept for its client has the time of its lease instead.

Everything here runs on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from openenv.core.env_server.calls import CallError, Work
from openenv.core.env_server.observing import Observers, SessionEvent, SessionEventKind
from openenv.core.env_server.runner import Crash, EnvRunner, EnvThread
from openenv.core.env_server.types import SessionInfo
from openenv.core.exceptions import (
    ConcurrencyConfigurationError,
    EnvironmentFactoryError,
    OpenEnvError,
    SessionCreationError,
    SessionNotFoundError,
)
from openenv.core.session.server import Effect, Event, ServerSession, State
from openenv.core.wire.messages import WSErrorCode

__all__ = ["EndReason", "Session", "Setup"]

logger = logging.getLogger("openenv.server")

SILENT_S = 600.0
"""A session that never received anything ends after this many seconds."""


class EndReason(StrEnum):
    """Why a session ended."""

    CLOSED = "closed"
    DROPPED = "dropped"
    IDLE = "idle"
    EVICTED = "evicted"
    GAVE_WAY = "gave way"
    EXPIRED = "expired"
    DRAINING = "draining"
    FAILED = "failed"


_EVENTS = {
    EndReason.CLOSED: Event.CLOSE,
    EndReason.DROPPED: Event.DROP,
    EndReason.IDLE: Event.TIMER,
    EndReason.EVICTED: Event.TIMER,
    EndReason.GAVE_WAY: Event.CLOSE,  # whatever it is doing
    EndReason.EXPIRED: Event.TIMER,
    EndReason.DRAINING: Event.DRAIN,
}


@dataclass(frozen=True, slots=True)
class Setup:
    """How environments are made.

    Attributes:
        factory: makes one.
        name: what the factory is called in errors.
        check: looks at a new environment, on its thread; raises an `OpenEnvError` to refuse it.
        thread: the thread of all sessions, where the class wants a single one; None for one each.
        expose_errors: tell clients what an environment raised; otherwise only where the log has it.
        observers: told what happens to the sessions.
    """

    factory: Callable[[], Any]
    name: str
    check: Callable[[Any], None] = lambda env: None
    thread: EnvThread | None = None
    expose_errors: bool = True
    observers: Observers = field(default_factory=Observers)


class Session:
    """One environment and its client. Made by `SessionManager.open`.

    Attributes:
        id: a random name.
        ending: done when the session ends; its result says why.
        closed: done when ``close()`` of the environment has returned.
        pinned: it is in use even while it is silent: a socket that may leave without it is attached.
        leased_at: when its socket was lost, on the loop's clock; None while it has one.
        claimed: its client has named it, or may be trusted to. Nobody may know of an evictable one that is not claimed.
    """

    def __init__(
        self, setup: Setup, *, idle_timeout_s: float | None, evictable: bool, on_freed: Callable[[Session], None]
    ) -> None:
        self.id = str(uuid.uuid4())
        self.evictable = evictable
        self.created_at = self.last_activity_at = time.time()
        self.machine = ServerSession()
        self._setup = setup
        self._thread = setup.thread or EnvThread()
        self._runner = EnvRunner(setup.factory, self._thread)
        self._idle_timeout_s = idle_timeout_s
        self._on_freed = on_freed
        self._loop = asyncio.get_running_loop()
        self._touched = self._loop.time()
        self.leased_at: float | None = None
        self.pinned = False
        self.claimed = True
        self._heard = False
        self._timer: asyncio.TimerHandle | None = None
        self._turn = asyncio.Lock()
        self._close_env = asyncio.Event()
        self._call: asyncio.Task[bytes | CallError] | None = None
        self._ready: asyncio.Future[OpenEnvError | None] = self._loop.create_future()
        self.ending: asyncio.Future[EndReason] = self._loop.create_future()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.life = self._loop.create_task(self._live(), name=f"openenv-session-{self.id}")

    # ------------------------------------------------------------ what adapters use

    async def ready(self) -> None:
        """Wait for the environment.

        Raises:
            EnvironmentFactoryError: it could not be built.
            ConcurrencyConfigurationError: its class does not allow this many.
            SessionCreationError: the session was ended first.
        """
        error = await asyncio.shield(self._ready)
        if error is not None:
            raise error

    async def call(self, work: Work) -> bytes:
        """Run one request, after those that came before it.

        A caller that is cancelled leaves the call running; the session is busy until it has returned.

        Raises:
            CallError: the request was refused or failed; the session goes on.
            SessionNotFoundError: the session is over; nothing was run.
        """
        self.touch()
        await self._turn.acquire()
        try:
            call = self.start(work)
        except SessionNotFoundError:
            self._turn.release()
            raise
        call.add_done_callback(lambda _: self._turn.release())
        reply = await asyncio.shield(call)
        if isinstance(reply, CallError):
            raise reply
        return reply

    def start(
        self, work: Work, told: Callable[[bytes | CallError], object] | None = None
    ) -> asyncio.Task[bytes | CallError]:
        """Start one request at once; none may be running. The task outlives the session's socket.

        Args:
            work: the request.
            told: called with its reply, as the last thing that the task does.

        Raises:
            SessionNotFoundError: the session is over; nothing was run.
        """
        if self.machine.receive(Event.CALL) is not Effect.RUN:
            raise SessionNotFoundError(self.id)
        self._call = self._loop.create_task(self._run(work, told))
        return self._call

    def cancel(self) -> bool:
        """Ask the running call to end early. Returns whether it will hear of it."""
        return self.machine.receive(Event.CANCEL) is Effect.CANCEL_CALL and self._runner.cancel()

    def lease(self) -> bool:
        """The socket is gone: keep the session for its client. Returns False if it cannot be kept, and ends."""
        over = self.machine.over
        self.machine.receive(Event.DROP_LEASED)
        if self.machine.over:
            if not over:
                self._tell_end(EndReason.DROPPED)
            return False
        self.leased_at = self._loop.time()
        self._tell(SessionEventKind.LEASED)
        return True

    def resume(self) -> None:
        """A client has come back, while the session was leased or before its former socket was known to be gone."""
        if self.machine.state is not State.OPENING:  # there, only its first call waits: no state depends on a socket
            self.machine.receive(Event.RESUME)
        self.leased_at = None
        self.touch()
        self._tell(SessionEventKind.RESUMED)

    def touch(self) -> None:
        """Note that the client has spoken."""
        self._heard = True
        self._touched = self._loop.time()
        self.last_activity_at = time.time()

    def end(self, reason: EndReason) -> None:
        """Ask the session to end: when the constructor or the running call has returned, its environment closes."""
        over = self.machine.over
        effect = self.machine.receive(_EVENTS[reason])
        if effect is Effect.CLOSE_ENV:
            self._close_env.set()
        elif effect is Effect.CANCEL_CALL:
            self._runner.cancel()
        if self.machine.over and not over:
            self._tell_end(reason)

    @property
    def spare_s(self) -> float | None:
        """Seconds for which a newcomer could have had its slot: how long it is leased, or (where that may end it)
        idle; None if it could not."""
        if self.machine.over:
            return None
        if self.leased_at is not None:
            return self._loop.time() - self.leased_at
        if self.evictable and self.machine.state is State.IDLE:
            return self._loop.time() - self._touched
        return None

    @property
    def info(self) -> SessionInfo:
        """What may be told about the session."""
        return SessionInfo(
            session_id=self.id,
            created_at=self.created_at,
            last_activity_at=self.last_activity_at,
            step_count=self._runner.steps,
            environment_type=self._runner.name or self._setup.name,
        )

    # ------------------------------------------------------------ its life

    async def _live(self) -> None:
        try:
            if await self._build():
                self._arm_timer()
                await self._close_env.wait()
                await self._runner.close()
                self.machine.receive(Event.ENV_CLOSED)
        except asyncio.CancelledError:  # the loop ends before the session did: close without waiting
            self._tell_end(EndReason.DROPPED)
            self._thread.post(self._runner.close_now)
            raise
        finally:
            self._freed()

    async def _build(self) -> bool:
        error: OpenEnvError
        began = self._loop.time()
        try:
            await self._runner.build(self._setup.check)
        except ConcurrencyConfigurationError as raised:
            error = raised
        except Exception as raised:  # the constructor may raise anything; its text is for the log only
            cause = raised.cause if isinstance(raised, Crash) else raised
            logger.error("the environment factory '%s' failed", self._setup.name, exc_info=cause)
            error = EnvironmentFactoryError(self._setup.name)
        else:
            if self.machine.receive(Event.BUILT) is Effect.CLOSE_ENV:
                self._close_env.set()
                self._ready.set_result(SessionCreationError("the session has ended"))
            else:
                self._ready.set_result(None)
                self._tell(SessionEventKind.OPENED, seconds=self._loop.time() - began)
            return True
        self.machine.receive(Event.BUILD_FAILED)
        self._tell_end(EndReason.FAILED)
        self._freed()
        self._ready.set_result(error)
        return False

    async def _run(self, work: Work, told: Callable[[bytes | CallError], object] | None = None) -> bytes | CallError:
        began, self._runner.running = self._loop.time(), ""
        reply: bytes | CallError = b""
        try:
            reply = await work(self._runner)
        except CallError as error:
            reply = error if self._setup.expose_errors else error.hidden
        except Exception:  # a mistake of ours must not leave the session busy for ever
            logger.exception("a call of session %s failed", self.id)
            reply = CallError(WSErrorCode.SESSION_ERROR, "Internal error", applied=None)
        finally:
            await self._runner.cancelling.settle()
            self.touch()
            if self.machine.receive(Event.CALL_DONE) is Effect.CLOSE_ENV:
                self._close_env.set()
            self._call = None
            self._tell(
                SessionEventKind.CALLED,
                call=self._runner.running,
                seconds=self._loop.time() - began,
                error=reply.code.value if isinstance(reply, CallError) else "",
            )
        if told is not None:
            told(reply)
        return reply

    def _tell(self, kind: SessionEventKind, **said: Any) -> None:
        if self._setup.observers.any:
            self._setup.observers.tell(SessionEvent(kind, self.id, **said))

    def _tell_end(self, reason: EndReason) -> None:
        if not self.ending.done():
            self.ending.set_result(reason)
            self._tell(SessionEventKind.ENDED, reason=reason.value)

    def _freed(self) -> None:
        if self.closed.done():
            return
        if self._timer is not None:
            self._timer.cancel()
        if self._setup.thread is None:
            self._thread.stop()
        self._tell_end(EndReason.CLOSED)
        self.closed.set_result(None)
        self._on_freed(self)
        self._tell(SessionEventKind.CLOSED)

    def _arm_timer(self) -> None:
        """End the session if it has been idle for too long, or look again when it may have been."""
        limit = self._idle_timeout_s if self._heard else min(self._idle_timeout_s or SILENT_S, SILENT_S)
        if limit is None or self.machine.over:
            return
        left = self._touched + limit - self._loop.time()
        if self.machine.busy or self.pinned or self.leased_at is not None:  # a lease has a time of its own
            left = max(left, limit)
        if left > 0:
            self._timer = self._loop.call_later(left, self._arm_timer)
            return
        logger.info("session %s was idle for %g s: closed", self.id, limit)
        self.end(EndReason.IDLE)
