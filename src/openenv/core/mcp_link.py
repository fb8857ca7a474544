"""Runs an attached machine: its session over HTTP, its socket as for every client.

Here is what such a client does beside an `EnvLink`: making and closing the session, posting tool calls, and the first
words on a socket that is attached. When any of it happens is for the machine to say.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from openenv.core.exceptions import ConnectError, MessageTooLargeError, Outcome, ServerError
from openenv.core.link import GOODBYE, DialOutcome, EnvLink, News
from openenv.core.session.attached import AttachedMachine
from openenv.core.session.attaching import Attaching, AttachOutcome
from openenv.core.session.events import Call, DialFailure, Effect, Event, Op, Oversized, Post, PostFailure, SayRelease
from openenv.core.transport.base import FrameTransport, PostError, TransportClosed
from openenv.core.transport.http import HttpAnswer, HttpPoster, post_without_loop
from openenv.core.wire.json_codec import MalformedFrame, decode, encode
from openenv.core.wire.jsonrpc import (
    FEATURES_HEADER,
    IDEMPOTENCY_HEADER,
    TOKEN_HEADER,
    HeldSession,
    Response,
    RpcMethod,
    offered_features,
    read_features,
    request_body,
    session_error,
    told_session,
)
from openenv.core.wire.messages import Reply, reply_from_frame

__all__ = ["McpLink"]

CLOSING_S = 2.0
"""How long the end of a session may take: telling the server, and hearing that the environment is closed."""

_METHOD = {Op.TOOL: RpcMethod.CALL, Op.LIST_TOOLS: RpcMethod.LIST}


class McpLink(EnvLink):
    """One client's connection to the session that it holds over HTTP.

    Args:
        machine: the client's session machine.
        attach: opens one socket for a session.
        poster: makes what posts to the server's ``/mcp``; may start the server first.
        hook: as for `EnvLink`.
        url: the server's address, for texts.
    """

    machine: AttachedMachine

    def __init__(
        self,
        machine: AttachedMachine,
        attach: Callable[[HeldSession], Awaitable[FrameTransport]],
        poster: Callable[[], Awaitable[HttpPoster]],
        hook: Callable[[News], object] | None = None,
        url: str = "",
    ) -> None:
        super().__init__(machine, self._no_socket_alone, hook)
        self._attach = attach
        self._make_poster = poster
        self._poster: HttpPoster | None = None
        self._posting: asyncio.Task[None] | None = None
        self._key: tuple[Call, str] | None = None
        self._opening_key: str | None = None
        self._url = url

    @staticmethod
    async def _no_socket_alone() -> FrameTransport:
        raise AssertionError("a socket here belongs to a session that was made before it")

    # ------------------------------------------------------------------ the machine's hands

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Post(call, delay):
                    self._posting = self._spawn(self._post(call, delay))
                case SayRelease():
                    earlier = set(self._closing)
                    self._closing_task(self._close_sessions(self.machine.held_farewells(), earlier))
                case _:
                    super()._carry_out((effect,))
        if self.machine.call is None and self._posting is not None:
            self._posting.cancel()  # its call has ended
            self._posting = None

    async def _say_goodbye(self, transport: FrameTransport) -> None:
        await transport.close(GOODBYE)

    # ------------------------------------------------------------------ opening

    async def _connect(self) -> FrameTransport | None:
        held = self.machine.held
        return None if held is None else await self._attach(held)

    async def _open(self, transport: FrameTransport | None) -> DialOutcome:
        if transport is None:
            return await self._create()
        held = self.machine.held
        assert held is not None, "a socket is attached to a session"
        attaching = Attaching(held.session_id, self._url)
        self._feed(Event.REACHED)
        try:
            return await self._first_words(transport, attaching)
        except TransportClosed as closed:
            return attaching.closed(closed.drop.detail)
        except MalformedFrame as error:
            return attaching.broken(str(error))

    @staticmethod
    async def _first_words(transport: FrameTransport, attaching: Attaching) -> AttachOutcome:
        try:
            await transport.send(encode(attaching.question()))
        except TransportClosed:
            pass  # a refusal may stand before the end
        frame = await transport.receive()
        if isinstance(frame, Oversized):
            raise MalformedFrame("an oversized frame")
        return attaching.receive(reply_from_frame(decode(frame)))

    async def _create(self) -> HeldSession | DialFailure:
        """Make a session. One that is made although nobody waits for it any more is closed again."""
        while self._closing:  # of former sessions, which may hold the last slot
            await asyncio.wait(self._closing)
        making = self.loop.create_task(self._ask_for_session())
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            self._closing_task(self._close_orphan(making))
            raise

    async def _ask_for_session(self) -> HeldSession | DialFailure:
        poster = await self._posted_to()
        body = request_body(1, RpcMethod.CREATE)
        if self._opening_key is None:  # the same until there is an answer: one that was lost told of a session
            self._opening_key = str(uuid.uuid4())
        headers = {FEATURES_HEADER: offered_features(), IDEMPOTENCY_HEADER: self._opening_key}
        try:
            answer = await poster.post(body, headers)
            response = _response(answer, 1)
            self._opening_key = None
        except PostError as error:
            return DialFailure(_not_made(error.failure, self._url), retryable=error.failure.retryable)
        except MalformedFrame as error:
            text = f"Failed to connect to {poster.shown}: {error}."
            return DialFailure(ConnectError(text, url=self._url), retryable=False)
        if response.is_error:
            return DialFailure(session_error(response, self._url), retryable=False)
        told = told_session(response)
        if told is None:
            text = f"Failed to connect to {poster.shown}: the server made a session and did not tell its id."
            return DialFailure(ConnectError(text, url=self._url), retryable=False)
        features = read_features(answer.headers.get(FEATURES_HEADER, ""))
        return HeldSession(told, answer.headers.get(TOKEN_HEADER, ""), features)

    async def _posted_to(self) -> HttpPoster:
        if self._poster is None:
            self._poster = await self._make_poster()
        return self._poster

    # ------------------------------------------------------------------ tool calls

    async def _post(self, call: Call, delay: float) -> None:
        me = asyncio.current_task()
        if delay:
            await asyncio.sleep(delay)
        event = await self._post_once(call)
        if self._posting is me:
            self._posting = None
            self._feed(*event)

    async def _post_once(self, call: Call) -> tuple[Event, Reply | PostFailure | str]:
        held = self.machine.held
        assert held is not None, "a tool is called in a session"
        key = self._key_of(call)
        body = request_body(key, _METHOD[call.op], held.session_id, self._requests[call].text)
        try:
            poster = await self._posted_to()
            answer = await poster.post(body, {IDEMPOTENCY_HEADER: key, **_credentials(held)})
            response = _response(answer, key)
        except PostError as error:
            return Event.POST_FAILED, error.failure
        except MalformedFrame as error:
            failure = ServerError(f"{error}", code="MALFORMED", outcome=Outcome.UNKNOWN)
            return Event.POST_FAILED, PostFailure(failure, doubtful=True, retryable=False)
        except _TooLarge as error:
            return Event.POST_FAILED, PostFailure(error.error, doubtful=False, retryable=False)
        except Exception as error:  # a task that ended without a word would leave its caller waiting
            text = f"the request failed with {type(error).__name__}: {error}"
            failure = ServerError(text, code="CLIENT_ERROR", outcome=Outcome.UNKNOWN)
            return Event.POST_FAILED, PostFailure(failure, doubtful=True, retryable=False)
        if response.session_unknown:
            return Event.RESUME_LOST, response.message
        if response.session_not_ready:
            failure = ServerError(response.message, code=str(response.code), outcome=Outcome.NOT_APPLIED)
            return Event.POST_FAILED, PostFailure(failure, doubtful=False)
        return Event.POSTED, Reply("mcp", response.as_dict())

    def _key_of(self, call: Call) -> str:
        """The same each time that a call is sent."""
        if self._key is None or self._key[0] is not call:
            self._key = (call, str(uuid.uuid4()))
        return self._key[1]

    # ------------------------------------------------------------------ ending

    async def close(self) -> None:
        await super().close()
        if self._poster is not None:
            await self._poster.close()

    async def settled(self) -> None:
        """Wait until sockets and sessions that were let go of are closed; not for ever."""
        if self._closing:
            await asyncio.wait(self._closing, timeout=2 * CLOSING_S)

    def _farewell(self) -> None:
        super()._farewell()
        if self._poster is not None and self.loop.is_closed():
            self._poster.drop()

    def abandon(self) -> None:
        self._farewell()
        if self.loop.is_running() and threading.main_thread().is_alive():
            self.loop.call_soon_threadsafe(self._feed, Event.CLOSE)
            return
        for held in (*self.machine.held_farewells(), *filter(None, (self.machine.held,))):
            if self._poster is not None:
                post_without_loop(self._poster, _closing_body(held), _credentials(held), CLOSING_S)

    async def _close_sessions(self, sessions: Sequence[HeldSession], earlier: Collection[asyncio.Task[None]]) -> None:
        """Detach, close, confirm: a session is closed when its server says so, and not while a socket is attached."""
        try:
            async with asyncio.timeout(CLOSING_S):
                if earlier:
                    await asyncio.wait(earlier)
                for held in sessions:
                    await self._close_session(held)
        except (TimeoutError, PostError, MalformedFrame, _TooLarge):
            pass  # the server frees it when it has been idle for long enough
        if self._poster is not None and self.machine.held is None and self.machine.call is None:
            await self._poster.close()  # a client that was dropped has nobody else to do it

    async def _close_session(self, held: HeldSession) -> None:
        poster = await self._posted_to()
        wait_s = 0.01
        while True:
            response = _response(await poster.post(_closing_body(held), _credentials(held)), 1)
            closing = isinstance(response.result, dict) and response.result.get("closing") is True
            if not closing:
                return
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, 0.2)

    async def _close_orphan(self, making: asyncio.Task[HeldSession | DialFailure]) -> None:
        made = await making
        if isinstance(made, HeldSession):
            await self._close_sessions((made,), ())


class _TooLarge(Exception):
    def __init__(self, frame: Oversized) -> None:
        self.error = MessageTooLargeError(
            size=frame.size, limit=frame.limit, direction="received", outcome=Outcome.APPLIED
        )
        super().__init__(str(self.error))


def _response(answer: HttpAnswer, request_id: int | str) -> Response:
    """Read an answer.

    Raises:
        MalformedFrame: it is no JSON-RPC response to this request.
        _TooLarge: it is over this client's limit.
    """
    if isinstance(answer.body, Oversized):
        raise _TooLarge(answer.body)
    return Response.read(decode(answer.body), request_id)


def _closing_body(held: HeldSession) -> bytes:
    return request_body(1, RpcMethod.CLOSE, held.session_id)


def _credentials(held: HeldSession) -> dict[str, str]:
    return {FEATURES_HEADER: offered_features(), **({TOKEN_HEADER: held.token} if held.token else {})}


def _not_made(failure: PostFailure, url: str) -> ConnectError:
    """No session was made, as far as its caller is concerned, so no call was applied."""
    error = failure.error
    if not isinstance(error, ConnectError):
        error = ConnectError(f"Failed to connect to {url}: {error}", url=url)
        error.__cause__ = failure.error
    error.outcome = Outcome.NOT_APPLIED
    return error
