"""`EnvClient`: what a trainer holds.

Here a method call becomes a request frame and a reply becomes a result, on the event loop where it belongs.
What may be sent when is decided by the session machine; moving frames is the link's work.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import logging
import os
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, cast

from openenv.core.client_types import ClientSession, StepResult
from openenv.core.exceptions import ForeignLoopError, ForkedClientError, LateResultError, SessionLostError
from openenv.core.hooks import (
    action_payload,
    encode_request,
    parse_model,
    parse_result,
    reconcile,
    type_arguments,
)
from openenv.core.link import NOTHING, EnvLink, News
from openenv.core.pending import PendingCall
from openenv.core.session.client import ClientMachine
from openenv.core.session.events import Event, Op
from openenv.core.session.features import Feature, enabled_features
from openenv.core.session.states import State
from openenv.core.startup import ProvidedServer, StartHandle
from openenv.core.transport.address import Address
from openenv.core.transport.aio import WebSocketConnector, WebSocketTransport
from openenv.core.transport.credentials import Credentials
from openenv.core.transport.io_thread import IoThread
from openenv.core.watching import CallWatcher, watcher_of_new_clients
from openenv.core.wire.array_values import installed
from openenv.core.wire.messages import CallKind, Reply, request
from openenv.core.wire.v1 import SUBPROTOCOL

if TYPE_CHECKING:
    from openenv.core.sync_client import SyncEnvClient

__all__ = ["ClientSession", "EnvClient", "StepResult"]

logger = logging.getLogger("openenv.client")

ActT = TypeVar("ActT")
ObsT = TypeVar("ObsT")
StateT = TypeVar("StateT")
T = TypeVar("T")


class _Unset(Enum):
    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET = _Unset.UNSET
"""An argument that was not given; ``None`` means *no limit*."""

Seconds = float | None
MaybeSeconds = float | None | _Unset


class _Holder:
    """Keeps a client's link where its finalizer finds it."""

    def __init__(self) -> None:
        self.link: EnvLink | None = None
        self.pid = os.getpid()


def _release(holder: _Holder) -> None:
    """Finalizer of a dropped client: say good-bye on the socket. A forked child leaves its parent's sockets alone."""
    if holder.link is not None and holder.pid == os.getpid():
        holder.link.abandon()


@dataclass(frozen=True)
class Dialer:
    """Dials a client's server. Knows nothing of the client, which must be free to be dropped while this lives."""

    address: Address | None
    server: ProvidedServer | None
    headers: Mapping[str, str] = field(repr=False)
    ping: tuple[float | None, float | None]
    max_message_bytes: int | None
    credentials: Credentials
    subprotocols: tuple[str, ...] = ()

    async def __call__(self) -> WebSocketTransport:
        return await self.dial(await self.where())

    async def where(self) -> Address:
        """The server's address; a provider's server is started first."""
        address = self.address
        if self.server is not None:
            address = Address.parse(await self.server.base_url())
        assert address is not None, "a client has an address or a provider"
        return address

    def headers_for(self, address: Address) -> dict[str, str]:
        """The headers of every request to the server, with its token."""
        return self.credentials.headers(address, self.headers)

    async def ask(self, route: str, timeout_s: float) -> dict[str, Any]:
        """What the server answers at one of its plain HTTP routes, as ``/schema``.

        Raises:
            ConnectError: nothing usable.
        """
        from openenv.core.transport.probe import NotReady, get_json

        address = await self.where()
        try:
            return await get_json(address, route, self.headers_for(address), timeout_s)
        except NotReady as found:
            raise found.error from found.error.__cause__

    async def wait(self, timeout_s: float | None) -> None:
        """Wait until the server is ready; see `wait_until_ready`."""
        from openenv.core.transport.probe import wait_until_ready

        address = await self.where()
        await wait_until_ready(address, self.headers_for(address), timeout_s)

    async def dial(self, address: Address, headers: Mapping[str, str] = MappingProxyType({})) -> WebSocketTransport:
        """Dial once, with further headers.

        Raises:
            DialError: it failed.
        """
        connector = WebSocketConnector(
            address=address,
            headers={**self.headers_for(address), **headers},
            ping_interval_s=self.ping[0],
            ping_timeout_s=self.ping[1],
            max_message_bytes=self.max_message_bytes,
            subprotocols=self.subprotocols,
        )
        return await connector()


MethodT = TypeVar("MethodT", bound=Callable[..., Coroutine[Any, Any, Any]])


def bare(method: MethodT) -> MethodT:
    """Let a coroutine method be called without ``await`` too; type checkers see the coroutine. See `_dispatch`."""

    @functools.wraps(method)
    def call(self: EnvClient[Any, Any, Any], /, *args: Any, **kwargs: Any) -> Any:
        return self._dispatch(method.__name__, functools.partial(method, self, *args, **kwargs))

    return cast("MethodT", call)


class EnvClient(Generic[ActT, ObsT, StateT]):
    """Client of one environment behind a WebSocket.

    Subclass it with your models, ``class SudokuEnv(EnvClient[Move, Board, State]): pass``, and the hooks follow
    them; or override `_step_payload`, `_parse_result` and `_parse_state`.

    The methods are used in three ways. With ``await`` on an event loop. Through ``client.sync()``, which blocks and
    is fully typed. Or bare: without a running loop a call runs to its end and returns its value; under a running
    loop it returns a handle that can be awaited or whose result can be used.

    **A lost session is never replaced silently.** When the connection breaks, the client resumes its session where the
    server keeps it. Where not, step and state raise `SessionLostError` until ``reset()`` has opened a new session and
    completed.

    Args:
        base_url: server address, as ``http://localhost:8000``. ``/ws`` is appended; a prefix and a query are kept.
        connect_timeout_s: seconds for opening a connection, retries included. None for no limit.
        message_timeout_s: seconds for a reset, step or state call, everything included. None for no limit.
        max_message_size_mb: largest reply that is accepted, in millions of bytes. None for no limit.
        websocket_ping_interval_s: seconds between keepalive pings. None for none.
        websocket_ping_timeout_s: seconds to wait for a pong before the connection counts as dead. None for ever.
        provider: starts the server if there is no ``base_url``, and is stopped by ``close()``; or the name of one, as
            `load_provider` knows it. The time of a start is the provider's own, and not part of any time given here.
        mode: ``simulation`` or ``production``; default from ``OPENENV_CLIENT_MODE``, else ``simulation``.
        headers: further headers of the WebSocket handshake, as ``{"Authorization": "Bearer ..."}``.
        reset_timeout_s: seconds for a reset; default ``message_timeout_s``.
        step_timeout_s: seconds for a step; default ``message_timeout_s``.
        state_timeout_s: seconds for a state call; default ``message_timeout_s``.
        io: ``auto`` keeps the session on the event loop that uses it; ``thread`` puts it on the I/O thread, so that a
            blocked loop does not lose it and several loops can share it.
        require_reset: refuse step and state before the first reset, rather than warn once.
        resume: come back to the session when its connection breaks, where the server can do that. ``OPENENV_FEATURES``
            in the environment switches this and other features off for a whole process.
        on_resumed: called with the session after each resume, on the thread that moves the frames; must not block.
        on_session_lost: called with the error after each loss, likewise.
        wait_for_slot: seconds to wait in line at a full server, where the server has a line; first come, first served.
            Opening a connection then may take this long even if ``connect_timeout_s`` is shorter; a reset or step that
            has to open one is bounded by its own time as well, so call ``connect()`` first. None: do not wait.
        on_queued: called with the position in the line, 1 for its head, whenever it has changed.
        token: for every request to the server, as ``Authorization: Bearer``; not taken along to another host. Default:
            if the server is a Space on the Hugging Face Hub, ``HF_TOKEN``, or what ``hf auth login`` has stored. False:
            none.

    Raises:
        ValueError: no usable address and no provider, an unknown mode, a bad number, or what can be no token.
    """

    def __init__(
        self,
        base_url: str | None = None,
        connect_timeout_s: float | None = 10.0,
        message_timeout_s: float | None = 60.0,
        max_message_size_mb: float | None = 100.0,
        websocket_ping_interval_s: float | None = 20.0,
        websocket_ping_timeout_s: float | None = 20.0,
        provider: Any = None,
        mode: str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        reset_timeout_s: MaybeSeconds = UNSET,
        step_timeout_s: MaybeSeconds = UNSET,
        state_timeout_s: MaybeSeconds = UNSET,
        io: Literal["auto", "thread"] = "auto",
        require_reset: bool = False,
        resume: bool = True,
        on_resumed: Callable[[ClientSession], object] | None = None,
        on_session_lost: Callable[[SessionLostError], object] | None = None,
        wait_for_slot: float | None = None,
        on_queued: Callable[[int], object] | None = None,
        token: str | bool | None = None,
    ) -> None:
        if base_url is None and provider is None:
            raise ValueError("EnvClient requires either base_url or provider.")
        if io not in ("auto", "thread"):
            raise ValueError(f'io must be "auto" or "thread", not {io!r}.')
        self._address = None if base_url is None else Address.parse(base_url)
        self._base_url = base_url
        self._mode = _mode(mode)
        self._connect_timeout = seconds("connect_timeout_s", connect_timeout_s)
        self._wait_for_slot = seconds("wait_for_slot", wait_for_slot) or 0.0
        if self._connect_timeout is not None and self._wait_for_slot:  # and time for the server to say that it is over
            self._connect_timeout = max(self._connect_timeout, self._wait_for_slot + 2.0)
        message = seconds("message_timeout_s", message_timeout_s)
        self._timeouts: dict[Op, tuple[Seconds, str]] = {Op.CONNECT: (self._connect_timeout, "connect_timeout_s")}
        for op, given in ((Op.RESET, reset_timeout_s), (Op.STEP, step_timeout_s), (Op.STATE, state_timeout_s)):
            name = f"{op.value}_timeout_s"
            self._timeouts[op] = (message, "message_timeout_s") if given is UNSET else (seconds(name, given), name)
        self._timeouts[Op.TOOL] = self._timeouts[Op.LIST_TOOLS] = (message, "message_timeout_s")
        self._timeouts[Op.SETTLE] = self._timeouts[Op.STEP]
        self._io = io
        self._require_reset = require_reset
        self._server = None if provider is None else ProvidedServer(provider, base_url)
        self._features = enabled_features(os.environ, resume=resume, msgpack=installed())
        self._hooks = (on_resumed, on_session_lost, on_queued)
        self._watcher: CallWatcher | None = watcher_of_new_clients.get()
        size = _positive("max_message_size_mb", max_message_size_mb, "megabytes")
        self._dialer = Dialer(
            self._address,
            self._server,
            dict(headers or {}),
            (
                seconds("websocket_ping_interval_s", websocket_ping_interval_s),
                seconds("websocket_ping_timeout_s", websocket_ping_timeout_s),
            ),
            None if size is None else int(size * 1_000_000),
            Credentials(token),
            (SUBPROTOCOL,) if self._features else (),
        )
        self._begin()

    def _begin(self) -> None:
        """Everything that a child session does not share with its parent."""
        self._machine = self._new_machine()
        self._holder = _Holder()
        self._pending: list[PendingCall[Any]] = []
        self._children: list[weakref.ref[EnvClient[Any, Any, Any]]] = []
        self._sync: SyncEnvClient[ActT, ObsT, StateT] | None = None
        self._warned_step_arguments = False
        weakref.finalize(self, _release, self._holder)

    # ------------------------------------------------------------------ servers that are started for it

    @classmethod
    def from_docker_image(
        cls, image: str, provider: Any = None, **kwargs: Any
    ) -> StartHandle[Self, SyncEnvClient[ActT, ObsT, StateT]]:
        """A client of a server in a container that is started for it, and stopped when it is closed.

        Nothing happens until the handle is used: ``await`` it, or call its ``sync()``; once.

        Args:
            image: the image.
            provider: starts the container: a `ContainerProvider` or the name of one. Default: `LocalDockerProvider`.
            **kwargs: ``ready_timeout_s``, seconds to wait for the server; arguments of the client, as
                ``message_timeout_s``; the others are for the provider's ``start_container``, as ``env_vars``.
        """
        from openenv.core.starting import in_container

        return StartHandle(lambda: in_container(cls, image, provider, kwargs), lambda client: client.sync())

    @classmethod
    def from_env(
        cls, repo_id: str, *, use_docker: bool = True, provider: Any = None, **kwargs: Any
    ) -> StartHandle[Self, SyncEnvClient[ActT, ObsT, StateT]]:
        """A client of a Hugging Face Space that is run on this machine for it: its code is fetched and executed.

        Nothing happens until the handle is used: ``await`` it, or call its ``sync()``; once. For a Space that runs on
        the Hub, give its address as ``base_url``.

        Args:
            repo_id: the Space, as ``openenv/echo_env``.
            use_docker: run its image in a container; otherwise its repository with `UVProvider`.
            provider: starts it: of the family that ``use_docker`` says.
            **kwargs: as for `from_docker_image`; with ``use_docker``, ``tag`` chooses the image's tag. Without it, the
                arguments of `UVProvider`, as ``project_path`` for a clone that is there already, and of its ``start``.
        """
        from openenv.core.starting import space_in_container, space_with_uv

        start = space_in_container if use_docker else space_with_uv
        return StartHandle(lambda: start(cls, repo_id, provider, kwargs), lambda client: client.sync())

    def _new_machine(self) -> ClientMachine:
        return ClientMachine(
            require_reset=self._require_reset,
            url=self._shown_url,
            wants=self._features,
            max_message_bytes=self._dialer.max_message_bytes,
            wait_for_slot_s=self._wait_for_slot,
        )

    def _new_link(self) -> EnvLink:
        return EnvLink(self._machine, self._dialer, self._news_hook())

    # ------------------------------------------------------------------ hooks

    def _step_payload(self, action: ActT) -> dict[str, Any]:
        """The ``data`` of a step request. Default: the action's fields.

        Raises:
            ActionValidationError: the action has no fields, or one of them no JSON form.
        """
        return action_payload(action)

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[ObsT]:
        """A result from the ``data`` of an observation frame. Default: by the class's second type parameter.

        Raises:
            ReplyValidationError: the observation does not fit.
        """
        return parse_result(type_arguments(type(self), EnvClient)[1], payload)

    def _parse_state(self, payload: dict[str, Any]) -> StateT:
        """A state from the ``data`` of a state frame. Default: by the class's third type parameter.

        Raises:
            ReplyValidationError: the state does not fit.
        """
        state: StateT = parse_model(type_arguments(type(self), EnvClient)[2], payload)
        return state

    # ------------------------------------------------------------------ the public calls

    @bare
    async def connect(self) -> Self:
        """Open the session's connection, if it is not open. Never clears a loss.

        Raises:
            ConnectError: it could not be opened in ``connect_timeout_s``.
        """
        await self._call(Op.CONNECT)
        return self

    @bare
    async def wait_ready(self, timeout: float | None = 300.0) -> Self:
        """Wait until the server is ready: one that sleeps, that nobody listens at yet, or that has only half started.

        Opens no session. What is waited for is logged, on ``openenv.client``.

        Args:
            timeout: seconds to wait; None for ever.

        Returns:
            The client.

        Raises:
            ConnectError: it was not ready in time; or it has refused (401, 403, 404), and the text says what that
                usually means.
        """
        await self._server_ready()
        await self._dialer.wait(seconds("timeout", timeout))
        return self

    @bare
    async def reset(self, *, timeout_s: MaybeSeconds = UNSET, **kwargs: Any) -> StepResult[ObsT]:
        """Start an episode; opens a new session if there is none or the old one is lost.

        Args:
            timeout_s: seconds for this call, connecting included; None for no limit.
            **kwargs: ``seed``, ``episode_id`` and whatever else the environment's reset takes.

        Returns:
            The first observation.

        Raises:
            ConnectError: no session could be opened; `CapacityError` if the server is full.
            CallTimeoutError: no answer in time.
            EnvExecutionError: the environment raised.
        """
        episode = kwargs.get("episode_id")
        frame = request(CallKind.RESET, kwargs)
        reply = await self._ask(
            Op.RESET, frame, timeout_s=timeout_s, episode_id=episode if isinstance(episode, str) else None
        )
        return self._result(reply)

    @bare
    async def step(self, action: ActT, *, timeout_s: MaybeSeconds = UNSET, **kwargs: Any) -> StepResult[ObsT]:
        """Apply one action, at most once.

        Args:
            action: the action.
            timeout_s: seconds for this call; None for no limit.
            **kwargs: accepted for callers of other clients; not sent, and named in one warning.

        Returns:
            Observation, reward and done.

        Raises:
            SessionLostError: the session is gone; raised until a ``reset()`` has completed.
            InvalidActionError: the environment does not allow it; nothing changed.
            ActionValidationError: the action does not fit or does not encode; nothing was applied.
            EnvExecutionError: the environment raised.
            CallTimeoutError: no answer in time; the session is lost unless the server numbers its calls.
            MessageTooLargeError: action or observation is over a limit.
            SessionClosedError: the client was closed.
        """
        if kwargs and not self._warned_step_arguments:
            self._warned_step_arguments = True
            logger.warning("step() takes an action only; %s did not go to the server", ", ".join(sorted(kwargs)))
        frame = request(CallKind.STEP, self._step_payload(action))
        reply = await self._ask(Op.STEP, frame, timeout_s=timeout_s)
        return self._result(reply)

    @bare
    async def state(self, *, timeout_s: MaybeSeconds = UNSET) -> StateT:
        """Read the environment's state.

        Args:
            timeout_s: seconds for this call; None for no limit.

        Raises:
            SessionLostError: the session is gone; raised until a ``reset()`` has completed.
            CallTimeoutError: no answer in time.
        """
        reply = await self._ask(Op.STATE, request(CallKind.STATE), timeout_s=timeout_s)
        return self._parse_state(reply.data)

    @bare
    async def settle(self, *, timeout_s: MaybeSeconds = UNSET) -> StepResult[ObsT] | None:
        """Learn what became of a call that was given up (a timeout, a cancellation, a signal).

        Args:
            timeout_s: seconds to wait for it; None for no limit. Default: as for a step.

        Returns:
            The late result of a reset or step that was applied; None if there is nothing to tell: no call was
            given up, or it was not applied, or its session has been lost since (what the call itself raised then
            holds: its outcome is unknown).

        Raises:
            OutcomeUnknownError: it ended without a result, and may have been applied.
            CallTimeoutError: it still runs. Call again, or ``reset()``.
            SessionLostError: the session was lost while this waited.
        """
        reply = await self._call(Op.SETTLE, timeout_s=timeout_s)
        return self._result(reply) if reply.kind == "observation" else None

    @bare
    async def disconnect(self) -> None:
        """End the session, but keep a provider's server."""
        await self._end()

    @bare
    async def close(self) -> None:
        """End the session and its children, and stop a provider's server. Never stalls; may be repeated."""
        children = [child for ref in self._children if (child := ref()) is not None]
        self._children.clear()
        ends = await asyncio.gather(self._end(), *(child.close() for child in children), return_exceptions=True)
        if self._server is not None:
            await self._server.stop()
        for failure in filter(None, ends):
            raise failure

    @bare
    async def new_session(self) -> Self:
        """A second client of the same server with a session of its own; closed with this one.

        Raises:
            ConnectError: its connection could not be opened.
        """
        child = copy.copy(self)
        child._server = None
        child._begin()
        self._children = [ref for ref in self._children if ref() is not None]
        self._children.append(weakref.ref(child))
        await child.connect()
        return child

    def sync(self) -> SyncEnvClient[ActT, ObsT, StateT]:
        """This client with blocking methods; always the same object."""
        if self._sync is None:
            from openenv.core.sync_client import SyncEnvClient

            self._sync = SyncEnvClient(self)
        return self._sync

    @property
    def base_url(self) -> str | None:
        """The address that was given, or where the provider has started the server; None before that."""
        server = self._dialer.server
        return self._base_url if server is None else server.url

    @property
    def mode(self) -> str:
        """``simulation`` or ``production``."""
        return self._mode

    @property
    def features(self) -> frozenset[str]:
        """Features that the session uses (``seq``, ``cancel``, ``resume``); none with a plain server."""
        return frozenset(feature.value for feature in self._machine.features)

    @property
    def session(self) -> ClientSession:
        """The present session: its public id, its number, and how often this client resumed and lost sessions."""
        return _client_session(self._machine)

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __enter__(self) -> Self:
        self._finished(self.connect())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finished(self.close())

    def __repr__(self) -> str:
        where = f"{self._shown_url}, mode={self._mode}, {self._machine.state.value}"
        return f"<{type(self).__name__} {where}, session {self._machine.number}>"

    # ------------------------------------------------------------------ one request and its reply

    def _result(self, reply: Reply) -> StepResult[ObsT]:
        return reconcile(self._parse_result(reply.data), reply.data)

    async def _send_and_receive(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Send one request frame given as a dict, and return its reply frame as a dict; for subclasses.

        Where a class or an object has its own, ``reset()``, ``step()`` and ``state()`` go through it: the way to look
        at frames, or to play without a server. The times of a single call are not known there.

        Raises:
            ValueError: its type is not ``reset``, ``step``, ``state`` or ``mcp``.
        """
        kind = CallKind(str(message.get("type")))
        op = Op.TOOL if kind is CallKind.MCP else Op(kind.value)
        reply = await self._call(op, message)
        return {"type": reply.kind, "data": reply.data}

    async def _ask(self, op: Op, frame: Mapping[str, Any], **options: Any) -> Reply:
        """`_call`, by way of a `_send_and_receive` that is not this class's, if there is one."""
        if getattr(self._send_and_receive, "__func__", None) is EnvClient._send_and_receive:
            return await self._call(op, frame, **options)
        answer = await self._send_and_receive(dict(frame))
        return Reply("state" if op is Op.STATE else "observation", answer["data"])

    async def _call(self, op: Op, frame: Mapping[str, Any] | None = None, **options: Any) -> Reply:
        if self._watcher is not None:
            return await self._watcher.call(self, op, frame, options)
        return await self._exchange(op, frame, **options)

    async def _exchange(
        self,
        op: Op,
        frame: Mapping[str, Any] | None = None,
        *,
        timeout_s: MaybeSeconds = UNSET,
        episode_id: str | None = None,
    ) -> Reply:
        request = NOTHING if frame is None else encode_request(frame, binary=Feature.MSGPACK in self._features)
        limit, setting = self._timeouts[op]
        if timeout_s is not UNSET:
            limit, setting = seconds("timeout_s", timeout_s), "timeout_s"
        if self._may_dial(op):
            await self._server_ready()
        try:
            reply = await self._bind().call(
                op,
                request,
                timeout_s=limit,
                setting=setting,
                connect_timeout_s=self._connect_timeout,
                episode_id=episode_id,
            )
        except LateResultError as late:
            if late.reply is not None and late.reply.kind == "observation":
                late.result = self._result(late.reply)
            raise
        return reply or Reply("none")

    def _may_dial(self, op: Op) -> bool:
        return op in (Op.CONNECT, Op.RESET) or self._machine.state is State.NEW

    async def _server_ready(self) -> None:
        """Have the provider's server started before the time for a connection begins."""
        self._check_process()
        if self._dialer.server is not None:
            await self._dialer.server.base_url()

    async def _end(self) -> None:
        if self._holder.link is None:  # never used: nothing is open
            self._machine.handle(Event.CLOSE)
        else:
            await self._bind().close()

    # ------------------------------------------------------------------ which loop, which thread

    def _dispatch(self, name: str, work: Callable[[], Coroutine[Any, Any, T]]) -> Any:
        """A bare call: its value without a running loop, a handle under one."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._blocking(work)
        call = PendingCall[T](
            name,
            here=lambda: self._await_here(work),
            blocking=lambda: self._blocking(work),
            started=self._begin_pending,
        )
        self._pending.append(call)
        return call

    def _begin_pending(self, call: PendingCall[Any]) -> list[PendingCall[Any]]:
        """Take a call that begins, and all that were made before it, off the list of those not begun."""
        waiting = self._pending.copy()  # other threads make and begin calls as well
        if call not in waiting:
            return []
        earlier = waiting[: waiting.index(call)]
        for begun in (*earlier, call):
            with contextlib.suppress(ValueError):
                self._pending.remove(begun)
        return earlier

    def _blocking(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a call on the I/O thread and wait for it."""
        self._check_process()
        link = self._holder.link
        if link is not None and not IoThread.owns(link.loop) and not self._may_move(link):
            raise ForeignLoopError
        return IoThread.shared().run(work, self._interrupted)

    def _finished(self, value: Any) -> Any:
        """What a method of this client, perhaps a subclass's own, has come to: a value, a handle, or a coroutine."""
        if isinstance(value, PendingCall):
            return value.result()
        if not isinstance(value, Awaitable):
            return value
        coroutine = value if isinstance(value, Coroutine) else _awaiting(value)
        return self._blocking(lambda: coroutine)

    async def _await_here(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a call for the event loop that awaits it: on that loop, or on the I/O thread if the session is there."""
        self._check_process()
        link = self._holder.link
        on_thread = self._io == "thread" or (link is not None and IoThread.owns(link.loop))
        if not on_thread or IoThread.owns(asyncio.get_running_loop()):
            return await work()
        return await IoThread.shared().bridge(work, self._interrupted)

    def _interrupted(self, task: asyncio.Task[Any]) -> None:
        if self._holder.link is not None:
            self._holder.link.interrupted(task)

    def _bind(self) -> EnvLink:
        """The link on the running event loop.

        Raises:
            ForeignLoopError: the session lives on another loop that is not closed.
            ForkedClientError: this is a forked child of the process that made the client.
        """
        self._check_process()
        link = self._holder.link
        if link is not None:
            if link.loop is asyncio.get_running_loop():
                return link
            if not self._may_move(link):
                raise ForeignLoopError
            if link.loop.is_closed():
                link.loop_closed()
        self._holder.link = self._new_link()
        return self._holder.link

    def _news_hook(self) -> Callable[[News], object]:
        return _hook(self._machine, *self._hooks)

    def _may_move(self, link: EnvLink) -> bool:
        return link.loop.is_closed() or self._machine.state in (State.NEW, State.CLOSED)

    def _check_process(self) -> None:
        if self._holder.pid != os.getpid():
            raise ForkedClientError

    # ------------------------------------------------------------------ names that env packages touch

    @property
    def _shown_url(self) -> str:
        return "a provided server" if self._address is None else self._address.shown

    @property
    def _ws_url(self) -> str | None:
        if self._address is not None:
            return self._address.url
        return None if self.base_url is None else Address.parse(self.base_url).url

    @property
    def _ws(self) -> Any:
        """The open WebSocket connection, or None. To look at; frames sent on it bypass every guarantee."""
        link = self._holder.link
        transport = None if link is None else link.transport
        return transport.connection if isinstance(transport, WebSocketTransport) else None

    @_ws.setter
    def _ws(self, connection: Any) -> None:
        """Some packages open a connection of their own in ``connect()``. No call may go to the session behind it, which
        this client has not opened: it is closed, and the next call opens one."""
        if connection is None:
            return
        logger.warning("%s was given a connection that is not its own: closed; it opens its own", type(self).__name__)
        closing = connection.close()
        if isinstance(closing, Awaitable):
            self._foreign = asyncio.ensure_future(closing)  # a loop keeps no task alive by itself


async def _awaiting(value: Awaitable[Any]) -> Any:
    return await value


def _client_session(machine: ClientMachine) -> ClientSession:
    return ClientSession(id=machine.session_id, number=machine.number, resumes=machine.resumes, losses=machine.losses)


def _hook(
    machine: ClientMachine,
    on_resumed: Callable[[ClientSession], object] | None,
    on_session_lost: Callable[[SessionLostError], object] | None,
    on_queued: Callable[[int], object] | None,
) -> Callable[[News], object]:
    def told(news: News) -> None:
        if isinstance(news, int):
            if on_queued is not None:
                on_queued(news)
        elif news is None:
            if on_resumed is not None:
                on_resumed(_client_session(machine))
        elif on_session_lost is not None:
            on_session_lost(news.error())

    return told


def _mode(mode: str | None) -> str:
    chosen = (mode or os.environ.get("OPENENV_CLIENT_MODE") or "simulation").lower()
    if chosen not in ("simulation", "production"):
        raise ValueError(f"Invalid mode: {chosen!r}. Must be 'simulation' or 'production'.")
    return chosen


def seconds(name: str, value: float | _Unset | None) -> Seconds:
    """Read a time limit in seconds; None for no limit.

    Raises:
        ValueError: it is neither None nor a positive number.
    """
    return None if value is UNSET else _positive(name, value, "seconds")


def _positive(name: str, value: Any, unit: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{name} must be a positive number of {unit}, or None for no limit, not {value!r}.")
    return float(value)
