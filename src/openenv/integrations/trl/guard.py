"""Stands between the clients of one environment and their calls, and carries out what is to be done about losses.

Everything here runs where the clients' frames move. Tools, rewards and trainers are elsewhere.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from openenv.core.env_client import EnvClient
from openenv.core.exceptions import (
    CallTimeoutError,
    CapacityError,
    ConnectError,
    EnvExecutionError,
    EnvironmentFactoryError,
    InvalidActionError,
    OpenEnvError,
    Outcome,
    ServerError,
    SessionClosedError,
    SessionLostError,
)
from openenv.core.session.backoff import Backoff
from openenv.core.session.events import Op
from openenv.core.wire.messages import Reply
from openenv.integrations.trl.episode import LOST_CALL, OVER, Episode, Options, differing

__all__ = ["BACKOFF", "Client", "Guard"]

logger = logging.getLogger("openenv.client")

Client = EnvClient[Any, Any, Any]
Frame = Mapping[str, Any]

BACKOFF = Backoff(first_s=0.5, longest_s=10.0)
FAILED_RESETS = 3
"""Resets in which the environment itself may fail, before that ends the training."""

_REFUSED = frozenset({400, 401, 403, 405})
"""Statuses of a refused handshake that no waiting changes."""


@dataclass
class _Seat:
    """What one client has played since its last reset: the tape of a replay."""

    start: tuple[Frame, dict[str, Any]] | None = None
    moves: list[tuple[Op, Frame, dict[str, Any]]] = field(default_factory=list)
    whole: bool = True
    done: bool = False
    resumes: int = 0


class Pool(Protocol):
    """What a guard tells the factory of its environment."""

    def revive(self, asking: Guard) -> None:
        """A reset is about to begin."""
        ...

    def note_dealt(self, frame: Frame, data: Mapping[str, Any]) -> None:
        """A reset was answered."""
        ...

    def note_lost(self) -> None:
        """An episode is lost."""
        ...


class Guard:
    """The watcher of the clients of one environment.

    Args:
        options: what to do when the network fails.
        name: of the environment, for the log.
        pool: its factory.
    """

    def __init__(self, options: Options, name: str, pool: Pool) -> None:
        self.options = options
        self.name = name
        self.episode = Episode()
        self._pool = pool
        self._seats: WeakKeyDictionary[Client, _Seat] = WeakKeyDictionary()
        self._deadline: float | None = None
        self.began = time.monotonic()

    @property
    def clients(self) -> list[Client]:
        """The clients that it has seen."""
        return list(self._seats)

    def adopt(self, client: Client) -> None:
        """Watch a client from now on.

        Raises:
            ValueError: another environment has it already.
        """
        if client._watcher not in (None, self):
            raise ValueError(
                f"{self.name}: two environments share one client, so they would play in one session. Make a client "
                "in each environment's __init__."
            )
        client._watcher = self
        self._seats.setdefault(client, _Seat())

    def begin(self, seed: int | None) -> None:
        """A new episode; its reset may take until the deadline."""
        self.note_resumes()
        self.episode = Episode(number=self.episode.number + 1, seed=seed)
        for client in self.clients:
            self._seats[client] = _Seat(resumes=client._machine.resumes)
        self.began = time.monotonic()
        self._deadline = self.began + self.options.reset_deadline_s
        self._pool.revive(self)

    def begun(self) -> None:
        """The reset is over. One that hid a loss has begun an episode that is lost."""
        self._deadline = None
        if self.episode.lost is not None:
            self.lose(self.episode.lost)

    def again(self) -> None:
        """The reset is tried again."""
        self.episode = Episode(number=self.episode.number, seed=self.episode.seed)

    def as_ending(self) -> SessionLostError:
        """What ends a training with ``on_session_lost="abort"``."""
        lost, episode = self.episode.lost, self.episode
        error = SessionLostError(
            f"{self.name}: episode {episode.number} was lost after {episode.moves} move(s), and on_session_lost is "
            f"'abort'. {lost}",
            reason=getattr(lost, "reason", "unreachable"),
            outcome=Outcome.UNKNOWN if lost is None else lost.outcome,
            steps=episode.moves,
        )
        error.__cause__ = lost
        return error

    def remaining_s(self) -> float:
        """Seconds that are left for the reset."""
        until = time.monotonic() + self.options.reset_deadline_s if self._deadline is None else self._deadline
        return until - time.monotonic()

    def is_final(self, error: OpenEnvError) -> bool:
        """Whether a reset is not tried again after this: its handshake was refused for a reason that stays."""
        return not self.options.patient or (isinstance(error, ConnectError) and error.status in _REFUSED)

    def note_resumes(self) -> None:
        """Count the resumes of this episode."""
        self.episode.resumes = sum(client._machine.resumes - seat.resumes for client, seat in self._seats.items())

    # ------------------------------------------------------------------ calls

    async def call(self, client: Client, op: Op, frame: Frame | None, options: dict[str, Any]) -> Reply:
        """See `openenv.core.watching.CallWatcher`."""
        if client not in self._seats:
            self._seats[client] = _Seat()
        if op in (Op.RESET, Op.CONNECT):
            return await self._open(client, op, frame, options)
        if op is Op.SETTLE or self.episode.number == 0:
            return await client._exchange(op, frame, **options)
        return await self._act(client, op, frame or {}, options)

    async def _open(self, client: Client, op: Op, frame: Frame | None, options: dict[str, Any]) -> Reply:
        """A reset, tried again until the deadline. In an episode that is lost only the next episode's reset counts."""
        if self.episode.lost is not None:
            raise self.episode.as_told()
        frame = self._seeded(frame) if op is Op.RESET else frame
        reply = await self._persist(client, op, frame, options)
        if op is Op.RESET and frame is not None:
            seat = self._seats[client]
            self._seats[client] = _Seat(start=self._taped(frame, reply), resumes=seat.resumes)
            self.episode.done = reply.data.get("done") is True
            self._pool.note_dealt(frame, reply.data)
        return reply

    def _seeded(self, frame: Frame | None) -> Frame | None:
        data = (frame or {}).get("data")
        if frame is None or not isinstance(data, dict) or self.episode.seed is None or data.get("seed") is not None:
            return frame
        return {**frame, "data": {**data, "seed": self.episode.seed}}

    async def _persist(self, client: Client, op: Op, frame: Frame | None, options: dict[str, Any]) -> Reply:
        attempt, began = 0, time.monotonic()
        until = began + self.remaining_s()
        while True:
            attempt += 1
            try:
                return await client._exchange(op, frame, **self._within(client, op, options, until))
            except (*LOST_CALL, EnvExecutionError, EnvironmentFactoryError) as error:
                delay = BACKOFF.delay(attempt)
                if isinstance(error, ServerError) and (attempt >= FAILED_RESETS or not self.options.patient):
                    raise
                if self.is_final(error) or time.monotonic() + delay >= until:
                    raise self._gave_up(error, attempt, time.monotonic() - began) from error
                if attempt == 1:
                    logger.warning("%s: %s fails, and is tried again: %s", self.name, op.value, error)
                await asyncio.sleep(delay)

    def _within(self, client: Client, op: Op, options: dict[str, Any], until: float) -> dict[str, Any]:
        own = options.get("timeout_s", client._timeouts[op][0])
        left = max(until - time.monotonic(), 0.001)
        return {**options, "timeout_s": min(own, left) if isinstance(own, int | float) else left}

    def _gave_up(self, error: OpenEnvError, attempts: int, seconds: float) -> OpenEnvError:
        if self.is_final(error):
            return error
        text = (
            f"{self.name}: no episode could be started in {seconds:.0f} s and {attempts} attempt(s) "
            f"(reset_deadline_s={self.options.reset_deadline_s:g}). Is the server up? The last error: {error}"
        )
        if isinstance(error, CapacityError):
            return CapacityError(text, active=error.active, max=error.max, url=error.url, attempts=attempts)
        url, status = (error.url, error.status) if isinstance(error, ConnectError) else ("", None)
        return ConnectError(text, url=url, status=status, attempts=attempts)

    async def _act(self, client: Client, op: Op, frame: Frame, options: dict[str, Any]) -> Reply:
        episode, seat = self.episode, self._seats[client]
        if episode.lost is not None:
            raise episode.as_told()
        if seat.done and op is Op.STEP:
            episode.refused_over = True
            raise InvalidActionError(OVER)
        try:
            reply = await self._settled(client, op, frame, options)
        except LOST_CALL as error:
            reply = await self._after_loss(client, op, frame, options, error)
        except SessionClosedError as error:
            episode.lost = error
            raise
        except asyncio.CancelledError:
            self.lose(SessionLostError(reason="cancelled", outcome=Outcome.UNKNOWN, steps=episode.moves))
            raise
        except EnvExecutionError as error:
            seat = self._seats[client]
            seat.whole = seat.whole and error.outcome is Outcome.NOT_APPLIED
            raise
        self._note(self._seats[client], op, frame, reply)
        return reply

    def _note(self, seat: _Seat, op: Op, frame: Frame, reply: Reply) -> None:
        if op not in (Op.STEP, Op.TOOL):
            return
        self.episode.moves += 1
        if op is Op.STEP:
            self.episode.note_reply(reply.data)
            seat.done = self.episode.done
        if (taped := self._taped(frame, reply)) is not None:
            seat.moves.append((op, *taped))

    def _taped(self, frame: Frame, reply: Reply) -> tuple[Frame, dict[str, Any]] | None:
        """Copies for the tape, as the user's code may change what it is given."""
        if self.options.on_session_lost != "replay":
            return None
        return copy.deepcopy(dict(frame)), copy.deepcopy(reply.data)

    async def _settled(self, client: Client, op: Op, frame: Frame, options: dict[str, Any]) -> Reply:
        """Make a call; if its own time is over, wait for its fate for as long as the budget allows.

        A call that was not applied is sent again; one that was hands over its late result; nothing runs twice.
        """
        try:
            return await client._exchange(op, frame, **options)
        except CallTimeoutError as error:
            late = error
        until = time.monotonic() + self.options.late_budget_s
        while (left := until - time.monotonic()) > 0:
            try:
                if late.outcome is not Outcome.NOT_APPLIED:
                    reply = await client._exchange(Op.SETTLE, timeout_s=left)
                    if reply.kind != "none":
                        return reply
                left = max(until - time.monotonic(), 0.001)
                return await client._exchange(op, frame, **{**options, "timeout_s": left})
            except CallTimeoutError as error:
                late = error
                await asyncio.sleep(0.05)  # a refusal that took no time must not spin
        raise late

    # ------------------------------------------------------------------ losses

    async def _after_loss(
        self, client: Client, op: Op, frame: Frame, options: dict[str, Any], error: OpenEnvError
    ) -> Reply:
        if self.options.on_session_lost == "replay" and op is not Op.TOOL:
            try:
                return await self._replay(client, op, frame, options)
            except LOST_CALL as again:
                error = again
        self.lose(error)
        raise self.episode.as_told()

    def lose(self, error: OpenEnvError) -> None:
        """A call of this episode has ended without its result, for good."""
        self.episode.lost = error
        if self._deadline is not None:
            return  # inside the reset, which is tried again
        self._pool.note_lost()
        logger.warning(
            "%s: episode %d is lost after %d move(s) and will be %s: %s",
            self.name,
            self.episode.number,
            self.episode.moves,
            "the end of this run" if self.options.on_session_lost == "abort" else "masked",
            error,
        )

    async def _replay(self, client: Client, op: Op, frame: Frame, options: dict[str, Any]) -> Reply:
        """Play the tape in a new session, then make the call that failed.

        Raises:
            SessionLostError: it cannot be played, or the new session shows something else, or it was lost too often.
            ConnectError: no new session could be opened.
        """
        seat, episode = self._seats[client], self.episode
        while True:
            episode.replays += 1
            try:
                await self._rewind(client, seat)
                reply = await self._settled(client, op, frame, options)
            except LOST_CALL as error:
                given_up = getattr(error, "reason", "") == "replay" or isinstance(error, ConnectError)
                if given_up or episode.replays >= self.options.replay_attempts:
                    raise
            else:
                logger.info("%s: episode %d goes on after a replay", self.name, episode.number)
                return reply

    async def _rewind(self, client: Client, seat: _Seat) -> None:
        if seat.start is None or not seat.whole:
            raise self._other("a call of this episode cannot be played again")
        begun = await self._persist(client, Op.RESET, seat.start[0], {})
        self._require_same(seat.start[1], begun, 0)
        for number, (op, asked, answered) in enumerate(seat.moves, 1):
            try:
                self._require_same(answered, await self._settled(client, op, asked, {}), number)
            except ServerError as error:
                raise self._other(f"move {number}, played again, failed: {error}") from error

    def _require_same(self, before: Mapping[str, Any], now: Reply, number: int) -> None:
        names = differing(before, now.data, self.options.volatile)
        if names:
            what = f"move {number}" if number else "the reset"
            raise self._other(f"{what}, played again, showed something else in {', '.join(names[:5])}")

    def _other(self, why: str) -> SessionLostError:
        return SessionLostError(reason="replay", steps=self.episode.moves, detail=why)
