"""A training server: a policy behind a WebSocket, for any number of rollout clients.

This module starts, stops and closes. What a connection says is in `openenv.policy.connection`, when the policy is
called in `openenv.policy.service`, who may connect in `openenv.policy.edge`.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from websockets.asyncio.server import Server, ServerConnection
from websockets.asyncio.server import serve as serve_websocket

from openenv.policy.connection import Connection, ConnectionSettings
from openenv.policy.edge import Edge
from openenv.policy.large_frames import PolicySocket
from openenv.policy.messages import SERVER_STOP
from openenv.policy.metrics import ServerMetrics
from openenv.policy.policy import Policy
from openenv.policy.server_metadata import assemble
from openenv.policy.service import PolicyService

__all__ = ["PolicyServer"]

logger = logging.getLogger("openenv.policy")

GOING_AWAY = 1001
MAX_QUEUED_FRAMES = 64
"""Frames of a client that are read ahead; past this the socket is not read, and pings wait. A client sends two messages
at most, a feedback and an infer, but may send them in fragments."""


class _SocketLog(logging.LoggerAdapter[logging.Logger]):
    """What the WebSocket library logs, without a traceback for each port scan and each health check."""

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        if msg == "opening handshake failed":
            level, kwargs = logging.INFO, {**kwargs, "exc_info": None}
        super().log(level, msg, *args, **kwargs)


class PolicyServer:
    """Serves a policy.

    Three ways to run it: ``await server.serve()`` on a loop of yours, ``server.run()`` to block, ``with server:`` for a
    thread. ``with`` and ``async with`` end with `stop`, or, after an exception, with `shutdown`. A server runs once.

    Args:
        policy: any object with ``act``; see `openenv.policy.Policy`.
        host: address to listen at.
        port: port to listen at; 0 for any that is free, see `port`.
        metadata: told to clients, before what the policy says of itself.
        api_key: what clients must send as ``Authorization: Api-Key <key>``; None lets everyone in.
        allowed_origins: origins of web pages that may connect; none by default, ``"*"`` for all.
        mini_infer_batch_size: envs that make a batch. None: a batch is one infer of every open connection.
        feedback_timeout_s: seconds that a client may take from an action to its feedback; None for no limit. While the
            policy learns nobody is timed out.
        slow_batch_warning_s: seconds after which a wait for a batch is warned about.
        reuse_feedback_obs: let clients leave out observations that they have sent in a feedback.
        max_message_bytes: largest message that is read; None for no limit. A larger one costs its connection (1009).
        ping_interval_s: seconds between pings, and time for their answer; None for no pings.
        close_timeout_s: seconds that a client may take to answer a close.
        fatal_policy_errors: let an exception of the policy end the server, and raise it from `serve`, `run` and
            ``with``. By default it costs the connections that asked.

    Raises:
        ValueError: a key that no header can carry, or a batch size below 1.
    """

    def __init__(
        self,
        policy: Policy,
        host: str = "0.0.0.0",
        port: int = 8000,
        *,
        metadata: Mapping[str, Any] | None = None,
        api_key: str | None = None,
        allowed_origins: Collection[str] = (),
        mini_infer_batch_size: int | None = None,
        feedback_timeout_s: float | None = 60.0,
        slow_batch_warning_s: float = 5.0,
        reuse_feedback_obs: bool = True,
        max_message_bytes: int | None = None,
        ping_interval_s: float | None = 20.0,
        close_timeout_s: float = 5.0,
        fatal_policy_errors: bool = False,
    ) -> None:
        self.host = host
        self.metrics = ServerMetrics()
        self._port = port
        self._fatal = fatal_policy_errors
        self._edge = Edge(api_key, allowed_origins, self.metrics)
        told = assemble(policy, metadata, reuse=reuse_feedback_obs)
        self._settings = ConnectionSettings(metadata=told, feedback_timeout_s=feedback_timeout_s)
        self._service = PolicyService(
            policy,
            self.metrics,
            horizon=told.action_horizon,
            action_dim=told.action_dim,
            mini_infer_batch_size=mini_infer_batch_size,
            warn_after_s=slow_batch_warning_s,
            on_finished=self.stop,
            on_failure=self._policy_failed,
        )
        self._transport: dict[str, Any] = {
            "max_size": max_message_bytes,
            "ping_interval": ping_interval_s,
            "ping_timeout": ping_interval_s,
            "close_timeout": close_timeout_s,
        }
        self._connections: dict[ServerConnection, asyncio.Task[Any]] = {}
        self._numbered = 0
        self._error: BaseException | None = None
        self._reason: str | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: Server | None = None
        self._batches: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------ what it is

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return self._port

    @property
    def url(self) -> str:
        """The address for clients on this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(self.host, self.host)
        return f"ws://{host}:{self._port}"

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Hold the policy while its weights change, from a thread of yours: ``with server.learning(): ...``.

        Plain ``act`` and ``feedback`` methods wait, and nobody's feedback is timed out. Coroutines do not wait.
        """
        with self._service.learning():
            yield

    # ------------------------------------------------------------ ending

    def stop(self) -> None:
        """End the run: clients are told to stop, and not to come back. From any thread; returns at once."""
        self._end(SERVER_STOP)

    def shutdown(self) -> None:
        """Go away without ending the run: clients come back when they can. From any thread; returns at once."""
        self._end("")

    def _end(self, reason: str) -> None:
        if self._reason is not None:
            return
        self._reason = reason
        if self._loop is None:
            self._ending.set()  # nobody waits for it yet
            return
        try:
            self._loop.call_soon_threadsafe(self._ending.set)
        except RuntimeError:
            pass  # the loop is closed: it has ended already

    def _policy_failed(self, error: Exception) -> None:
        if self._fatal and self._error is None:
            self._error = error
            self.shutdown()

    # ------------------------------------------------------------ running on a loop

    async def serve(self) -> None:
        """Serve until `stop` or `shutdown` is called, or the policy has finished.

        Raises:
            OSError: the address cannot be listened at.
            Exception: what the policy raised, with ``fatal_policy_errors``.
        """
        await self.start()
        try:
            await self.ended()
        finally:
            self._end("")  # it was cancelled, unless it has ended already
            await self._until_closed()

    async def ended(self) -> None:
        """Wait until a server that was started has ended, by whoever's wish.

        Raises:
            Exception: what the policy raised, with ``fatal_policy_errors``.
        """
        await self._until_closed()
        if self._error is not None:
            raise self._error

    async def _until_closed(self) -> None:
        assert self._closing is not None
        await asyncio.shield(self._closing)

    async def start(self) -> None:
        """Begin to listen, on the running loop. `serve` and ``async with`` do this; `ended` waits for the end.

        Raises:
            OSError: the address cannot be listened at.
            RuntimeError: it was started before.
        """
        if self._loop is not None:
            raise RuntimeError("A PolicyServer runs once: make a new one.")
        self._loop = asyncio.get_running_loop()
        self._listener = await serve_websocket(
            self._handle,
            self.host,
            self._port,
            compression=None,
            create_connection=PolicySocket,
            process_request=self._edge,
            max_queue=MAX_QUEUED_FRAMES,
            logger=_SocketLog(logging.getLogger("openenv.policy.sockets")),
            **self._transport,
        )
        self._port = next(iter(self._listener.sockets)).getsockname()[1]
        self._batches = asyncio.create_task(self._run_batches())
        self._closing = asyncio.create_task(self._close())
        logger.info("policy server listens at %s:%s", self.host, self._port)
        if not self._edge.wants_key and self.host in ("", "0.0.0.0", "::"):
            logger.warning("everyone who reaches port %s may use this server; see api_key= and host=", self._port)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._end(SERVER_STOP if error is None else "")
        if error is None:
            await self.ended()
        else:
            await self._until_closed()

    async def _run_batches(self) -> None:
        try:
            await self._service.serve()
        except Exception as error:  # a bug of ours: without batches nobody can be served
            logger.exception("the scheduler failed; the server ends")
            self._error = self._error or error
            self.shutdown()

    async def _handle(self, socket: ServerConnection) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._reason is not None:
            await socket.close(GOING_AWAY, self._reason)
            return
        assert isinstance(socket, PolicySocket)
        socket.take_large(self._transport["max_size"])
        self._numbered += 1
        self._connections[socket] = task
        try:
            await Connection(self._numbered, socket, self._service, self._settings, self.metrics).serve()
        finally:
            del self._connections[socket]

    async def _close(self) -> None:
        """When it is time, say goodbye to everyone, those who wait for an action or for the policy included."""
        await self._ending.wait()
        assert self._listener is not None
        assert self._batches is not None
        assert self._reason is not None
        logger.info("policy server ends (%s)", self._reason or "shutdown")
        self._listener.close(close_connections=False)
        open_now = list(self._connections.items())
        goodbyes = [socket.close(GOING_AWAY, self._reason) for socket, _ in open_now]
        await asyncio.gather(*goodbyes, return_exceptions=True)  # one that fails must not keep the others
        for _, task in open_now:
            task.cancel()  # it may wait for a call of the policy that takes minutes
        self._batches.cancel()
        await asyncio.gather(self._batches, *(task for _, task in open_now), return_exceptions=True)
        self._service.close()
        await self._listener.wait_closed()

    # ------------------------------------------------------------ running by itself

    def run(self) -> None:
        """Serve until `stop` or `shutdown` is called, the policy has finished, or SIGINT or SIGTERM comes.

        A signal is a `shutdown`: clients come back to the server that is started next. A second one interrupts.

        Raises:
            OSError: the address cannot be listened at.
            Exception: what the policy raised, with ``fatal_policy_errors``.
        """
        asyncio.run(self._run())

    async def _run(self) -> None:
        with self._on_signals():
            await self.serve()

    @contextmanager
    def _on_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()

        def forget() -> None:
            for number in numbers:
                loop.remove_signal_handler(number)

        def heard() -> None:
            forget()
            self.shutdown()

        try:
            for number in numbers:
                loop.add_signal_handler(number, heard)
        except NotImplementedError:
            numbers = ()  # a loop without signals, as on Windows: KeyboardInterrupt ends it
        try:
            yield
        finally:
            forget()

    def __enter__(self) -> Self:
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._serve_in_thread, args=(started,), name="openenv-policy-server")
        self._thread.daemon = True
        self._thread.start()
        started.result()
        return self

    def _serve_in_thread(self, started: Future[None]) -> None:
        async def main() -> None:
            try:
                await self.start()
            except BaseException as error:  # raised by whoever waits for the start
                started.set_exception(error)
                return
            started.set_result(None)
            await self._until_closed()

        asyncio.run(main())

    def __exit__(self, kind: object, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._end(SERVER_STOP if error is None else "")
        assert self._thread is not None
        self._thread.join()
        if error is None and self._error is not None:
            raise self._error
