"""Runs a client machine over a transport, on one event loop.

The rules are in the machine; here are its hands: the queue of callers, the dial, the reader, the clock.
A link lives on the event loop it was made on. Its machine may outlive it and go on with another link.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from openenv.core.exceptions import CallTimeoutError, ConnectError, OpenEnvError, Outcome
from openenv.core.session.attaching import Attached, AttachOutcome, Gone
from openenv.core.session.client import ClientMachine
from openenv.core.session.events import (
    Call,
    CloseSocket,
    Complete,
    Dial,
    DialFailure,
    Drop,
    Effect,
    Event,
    Fail,
    GaveUp,
    Log,
    Loss,
    Op,
    Oversized,
    SayRelease,
    Send,
    SendCancel,
    Tell,
)
from openenv.core.session.features import Feature
from openenv.core.session.opening import OpeningOutcome, SessionOpened
from openenv.core.session.states import State
from openenv.core.transport.base import Connector, DialError, FrameTransport, TransportClosed
from openenv.core.wire.frames import Request, numbered
from openenv.core.wire.frames import decode as decode_frame
from openenv.core.wire.json_codec import MalformedFrame, decode, encode
from openenv.core.wire.jsonrpc import HeldSession
from openenv.core.wire.messages import Reply, close_message, reply_from_frame
from openenv.core.wire.v1 import Cancel, Lease, Lost, LostReason, Release, Resumed

__all__ = ["GOODBYE", "DialOutcome", "EnvLink", "News"]

logger = logging.getLogger("openenv.client")

GOODBYE = encode(close_message())

NOTHING = Request()

News = Loss | int | None
"""What a hook is told: a loss, a position in the line for a slot, or (None) that the session was resumed."""

DialOutcome = OpeningOutcome | HeldSession | AttachOutcome

OPENING_TIMEOUT_S = 15.0
"""How long a server may take for the first words on a socket, before the dial counts as failed."""

RELEASE_TIMEOUT_S = 1.0

_EVENT = {Op.CONNECT: Event.CONNECT, Op.RESET: Event.RESET, Op.SETTLE: Event.SETTLE}


class EnvLink:
    """One client's connection to its server.

    Args:
        machine: the client's session machine.
        connector: dials the server once.
        hook: told of each loss, of each resumed session (None), and of each position in a server's line.
    """

    def __init__(
        self, machine: ClientMachine, connector: Connector, hook: Callable[[News], object] | None = None
    ) -> None:
        self.machine = machine
        self._hook = hook
        self.loop = asyncio.get_running_loop()
        self._connector = connector
        self._turns = asyncio.Lock()  # served first come, first served
        self._transport: FrameTransport | None = None
        self._dialing: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself keeps tasks only weakly
        self._answer: asyncio.Future[Reply | None] | None = None
        self._requests: dict[Call, Request] = {}
        self._unsent: Call | None = None
        self._ends: WeakKeyDictionary[asyncio.Task[Any], GaveUp] = WeakKeyDictionary()  # a task's last call
        self._not_taken: list[GaveUp] = []

    @property
    def transport(self) -> FrameTransport | None:
        """The open connection, if there is one."""
        return self._transport

    # ------------------------------------------------------------------ calls

    async def call(
        self,
        op: Op,
        request: Request = NOTHING,
        *,
        timeout_s: float | None,
        setting: str,
        connect_timeout_s: float | None,
        episode_id: str | None = None,
    ) -> Reply | None:
        """Make one call, in its turn.

        Args:
            op: what is asked.
            request: its request frame; nothing for CONNECT.
            timeout_s: seconds for everything: waiting for a turn, connecting, sending, receiving; None for no limit.
            setting: name of the argument behind ``timeout_s``, for the error text.
            connect_timeout_s: seconds of these for opening a connection.
            episode_id: the episode that a reset asks for.

        Returns:
            The reply; None for CONNECT.

        Raises:
            OpenEnvError: the call failed; its ``outcome`` says whether it was applied.
        """
        now = self.loop.time()
        deadline = None if timeout_s is None else now + timeout_s
        dials = [end for end in (deadline, None if connect_timeout_s is None else now + connect_timeout_s) if end]
        call = self.machine.new_call(
            op,
            deadline=deadline,
            dial_deadline=min(dials, default=None),
            timeout_s=timeout_s,
            setting=setting,
            connect_timeout_s=connect_timeout_s,
            size=len(request),
            episode_id=episode_id,
        )
        try:
            async with asyncio.timeout_at(deadline) as scope:
                async with self._turns:
                    self._tell_not_taken()
                    try:
                        reply = await self._in_turn(call, request, scope)
                    except OpenEnvError as error:
                        self._note_end(call, None, error)
                        raise
                    self._note_end(call, reply)
                    return reply
        except TimeoutError as error:
            if isinstance(error, OpenEnvError):
                raise
            detail = "an earlier call of this client is still running"
            raise CallTimeoutError(
                operation=op.value,
                timeout_s=timeout_s,
                setting=setting,
                outcome=Outcome.NOT_APPLIED,
                detail=detail,
            ) from None

    async def _in_turn(self, call: Call, request: Request, scope: asyncio.Timeout) -> Reply | None:
        answer: asyncio.Future[Reply | None] = self.loop.create_future()
        self._answer = answer
        self._requests[call] = request
        try:
            self._feed(_EVENT.get(call.op, Event.CALL), call)
            try:
                await self._flush()
                dial_end = call.dial_deadline
                if dial_end is not None and self.machine.state in (State.OPENING, State.SUSPENDED):
                    return await self._await_opening(call, answer, dial_end)
                return await answer
            except asyncio.CancelledError:
                return self._given_up(call, scope)
        finally:
            self._answer = None
            del self._requests[call]
            if self._unsent is call:
                self._unsent = None
            if answer.done() and not answer.cancelled():
                answer.exception()  # seen: a caller that was cancelled does not take it

    async def _await_opening(self, call: Call, answer: asyncio.Future[Reply | None], end: float) -> Reply | None:
        """Opening has a time of its own; what its end means is for the machine to say."""

        def too_late() -> None:
            if self.machine.call is call and self.machine.state in (State.OPENING, State.SUSPENDED):
                self._feed(Event.OPENING_OVER)

        timer = self.loop.call_at(end, too_late)
        try:
            return await answer
        finally:
            timer.cancel()

    def _given_up(self, call: Call, scope: asyncio.Timeout) -> Reply | None:
        """The time is over, or the caller was cancelled, while the call had its turn."""
        timed_out = scope.expired()
        answer = self._place()
        if answer.done() and timed_out:
            return answer.result()  # it arrived at the last moment
        end = GaveUp("timeout" if timed_out else "cancelled", call, *_told(answer))
        if not answer.done() or _tells_something(end):
            self._feed(Event.GAVE_UP, end)
        if answer.done():
            answer.exception()  # seen, also if the cancellation hides it
        if timed_out:
            return answer.result()
        raise asyncio.CancelledError

    def interrupted(self, task: asyncio.Task[Any]) -> None:
        """A task has ended and its outcome reached nobody (its thread was interrupted): what its last call was told is
        kept for the next one. Other threads may have made calls since; theirs is not touched."""
        end = self._ends.pop(task, None)
        if end is not None and _tells_something(end):
            self._not_taken.append(end)
            if not self._turns.locked():
                self._tell_not_taken()

    def _note_end(self, call: Call, reply: Reply | None, error: OpenEnvError | None = None) -> None:
        task = asyncio.current_task()
        if task is not None:  # a copy has no traceback, whose frames would hold the task and the client for ever
            self._ends[task] = GaveUp("interrupted", call, reply, copy.copy(error))

    def _tell_not_taken(self) -> None:
        ends, self._not_taken = self._not_taken, []
        for end in ends:
            self._feed(Event.GAVE_UP, end)

    async def close(self) -> None:
        """End the session. Bounded: about a second, whatever the server does."""
        self._feed(Event.CLOSE)
        await self.settled()

    async def settled(self) -> None:
        """Wait until the sockets that were let go of are closed."""
        while self._closing:
            await asyncio.wait(self._closing)

    def loop_closed(self) -> None:
        """The event loop of this link was closed: its session is lost, for nobody can read its connection."""
        for effect in self.machine.handle(Event.LOOP_CLOSED):
            if isinstance(effect, Log):
                logger.warning("%s", effect.text)
            elif isinstance(effect, Tell):
                self._tell(effect.loss)
        self._farewell()

    def _farewell(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.farewell(GOODBYE)

    def abandon(self) -> None:
        """Nobody uses this connection any more. Callable from any thread, also when the loop is closed."""
        self._farewell()
        try:
            self.loop.call_soon_threadsafe(self._feed, Event.CLOSE)  # or a resume would go on, and hold it for ever
        except RuntimeError:
            pass  # the loop is closed: nothing goes on there

    # ------------------------------------------------------------------ the machine's hands

    def _feed(self, event: Event, payload: Any = None) -> None:
        self._carry_out(self.machine.handle(event, payload, self.loop.time()))

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(call):
                    self._unsent = call
                case Complete(_, reply):
                    self._resolve(reply, None)
                case Fail(_, error):
                    self._resolve(None, error)
                case Dial(delay):
                    self._dialing = self._spawn(self._dial(delay))
                case SendCancel(seq):
                    self._send_soon(encode(Cancel(seq).frame()))
                case SayRelease():
                    self._closing_task(self._release(self.machine.farewells()))
                case CloseSocket(goodbye):
                    self._let_go(goodbye)
                case Log(text, warning):
                    logger.log(logging.WARNING if warning else logging.INFO, "%s", text)
                case Tell(loss):
                    self._tell(loss)

    def _tell(self, news: News) -> None:
        if self._hook is None:
            return
        try:
            self._hook(news)
        except BaseException:  # a user's hook must not break the session it is told of, not even by sys.exit()
            logger.exception("a session hook raised")

    def _resolve(self, reply: Reply | None, error: OpenEnvError | None) -> None:
        if self._answer is None:
            return
        answer = self._place()
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(reply)

    def _place(self) -> asyncio.Future[Reply | None]:
        """Where the verdict on the call in its turn goes. A cancelled task cancels the future it awaits, and the
        verdict may come after that and before the task runs: then it finds a new one."""
        if self._answer is None or self._answer.cancelled():
            self._answer = self.loop.create_future()
        return self._answer

    async def _flush(self) -> None:
        """Write the frame that the machine wants sent."""
        transport, frame = self._transport, self._outgoing()
        if transport is not None and frame is not None:
            await _send_if_open(transport, frame)

    def _outgoing(self) -> bytes | None:
        call, self._unsent = self._unsent, None
        if call is None:
            return None
        frame = self._requests[call].sent(binary=self._binary)
        return numbered(frame, call.seq) if self.machine.numbered else frame

    @property
    def _binary(self) -> bool:
        return Feature.MSGPACK in self.machine.features

    async def _dial(self, delay: float) -> None:
        me = asyncio.current_task()
        transport: FrameTransport | None = None
        outcome: DialOutcome
        try:
            if delay:
                await asyncio.sleep(delay)
            transport = await self._connect()
            outcome = await self._open(transport)
        except DialError as error:
            outcome = error.failure
        except OpenEnvError as error:
            outcome = DialFailure(error, retryable=False)
        except asyncio.CancelledError:
            if transport is not None:
                transport.abort()
            raise
        except Exception as error:  # whatever a connector raises, the caller who waits for it must hear of it
            failure = ConnectError(f"Failed to connect: {type(error).__name__}: {error}")
            failure.__cause__ = error
            outcome = DialFailure(failure, retryable=False)
        opened = isinstance(outcome, SessionOpened | Resumed | Attached)
        if transport is not None and (self._dialing is not me or not opened):
            transport.abort()
        if self._dialing is not me:
            return
        self._dialing = None
        if opened and transport is not None:
            self._transport = transport
            self._spawn(self._read(transport))
        self._feed(*_event(outcome))
        await self._flush()

    async def _connect(self) -> FrameTransport | None:
        """Open a socket for the session that the machine wants."""
        return await self._connector()

    async def _open(self, transport: FrameTransport | None) -> DialOutcome:
        """The first words on a fresh socket; a plain one needs none."""
        assert transport is not None, "a session of this kind lives on its socket"
        opening = self.machine.opening()
        if transport.subprotocol is None:
            return SessionOpened() if opening.resume is None else Lost(LostReason.EPOCH)
        try:
            async with asyncio.timeout(OPENING_TIMEOUT_S) as patience:
                while opening.outcome is None:
                    frame = await transport.receive()
                    if isinstance(frame, Oversized):
                        raise MalformedFrame("an oversized frame")
                    for answer in opening.receive(reply_from_frame(decode(frame))):
                        await transport.send(encode(answer))
                    if opening.position:  # in line: the caller's own time is the limit
                        patience.reschedule(None)
                        self._tell(opening.position)
            return opening.outcome
        except TransportClosed as closed:
            return opening.closed(closed.drop.code, closed.drop.reason, closed.drop.detail)
        except MalformedFrame as error:
            return opening.broken(str(error))
        except TimeoutError:
            return opening.closed(None, "", f"no answer for {OPENING_TIMEOUT_S:g} s")

    async def _say_goodbye(self, transport: FrameTransport) -> None:
        """End the session. A socket that does not answer may have been dead already; then the session is kept for a
        client that will not come, so it is released on another one, for which nobody waits."""
        answered = await transport.close(GOODBYE)
        if not answered and self.machine.farewells():
            self._spawn(self._release(self.machine.farewells()))

    async def _release(self, leases: Sequence[Lease]) -> None:
        """Tell the server, once and within about a second, that these sessions are not wanted any more (E25)."""
        try:
            async with asyncio.timeout(RELEASE_TIMEOUT_S):
                transport = await self._connector()
                try:
                    await transport.receive()  # welcome
                    for lease in leases:
                        await transport.send(encode(Release(lease.session, lease.token).frame()))
                finally:
                    await transport.close(GOODBYE)
        except (TimeoutError, DialError, TransportClosed, OpenEnvError):
            pass  # its lease runs out by itself

    async def _read(self, transport: FrameTransport) -> None:
        while True:
            try:
                frame = await transport.receive()
                if transport is not self._transport:
                    return
                self._received(frame)
            except TransportClosed as closed:
                self._dropped(transport, closed.drop)
                return
            except Exception as error:  # a reader that ended without a word would leave its caller waiting
                transport.abort()
                self._dropped(transport, Drop(detail=f"reading failed with {type(error).__name__}: {error}"))
                return

    def _received(self, frame: str | bytes | Oversized) -> None:
        if isinstance(frame, Oversized):
            self._feed(Event.OVERSIZED, frame)
            return
        try:
            reply = reply_from_frame(decode_frame(frame, binary=self._binary))
        except MalformedFrame as error:
            reply = Reply("malformed", {"message": str(error)})
        self._feed(Event.RECEIVED, reply)
        request = self._outgoing()
        if request is not None:  # the fate of a call that was given up is known, and the next one has its turn
            self._send_soon(request)

    def _dropped(self, transport: FrameTransport, drop: Drop) -> None:
        if transport is self._transport:
            self._transport = None
            self._feed(Event.DROPPED, drop)

    def _let_go(self, goodbye: bool) -> None:
        dialing, self._dialing = self._dialing, None
        if dialing is not None:
            dialing.cancel()
        transport, self._transport = self._transport, None
        self._unsent = None
        if transport is None:
            return
        if not goodbye:
            transport.abort()
            return
        self._closing_task(self._say_goodbye(transport))

    def _closing_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._spawn(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _send_soon(self, frame: bytes) -> None:
        if self._transport is not None:
            self._spawn(_send_if_open(self._transport, frame))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _event(outcome: DialOutcome) -> tuple[Event, Any]:
    """How an opening ended, as an event for the machine."""
    match outcome:
        case HeldSession():
            return Event.CREATED, outcome
        case Attached():
            return Event.ATTACHED, None
        case Gone(detail):
            return Event.RESUME_LOST, detail
        case SessionOpened():
            return Event.OPENED, outcome
        case Resumed():
            return Event.RESUMED, outcome
        case Lost(reason):
            return Event.RESUME_LOST, reason
        case _:
            return Event.DIAL_FAILED, outcome


def _told(answer: asyncio.Future[Reply | None]) -> tuple[Reply | None, OpenEnvError | None]:
    """What has come for a call: its reply, or its error."""
    if not answer.done():
        return None, None
    error = answer.exception()
    if error is None:
        return answer.result(), None
    return None, error if isinstance(error, OpenEnvError) else None


def _tells_something(end: GaveUp) -> bool:
    """Whether a call was told anything that the next one must know, if its own caller has not heard it: that it took
    effect, or what became of a call before it."""
    if end.error is None or end.call.handed is not None:
        return True
    return end.call.numbered and end.error.outcome is not Outcome.NOT_APPLIED


async def _send_if_open(transport: FrameTransport, frame: bytes) -> None:
    try:
        await transport.send(frame)
    except TransportClosed:
        pass  # the reader meets the same end and tells the machine how it came
