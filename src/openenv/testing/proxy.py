"""A TCP proxy that cuts connections on command, to stand between a client and a server.

It forwards bytes and knows nothing of what they mean. It runs on an event loop in a thread of its own, so
that blocking and async tests use it alike, and a blocked test does not stall it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Literal, TypeVar

__all__ = ["CutMode", "CuttingProxy"]

CutMode = Literal["rst", "fin"]
"""``rst`` resets a connection, as a crash or a firewall does; ``fin`` closes it, as an orderly end does."""

_CHUNK = 64 * 1024
_FLUSH_S = 1.0  # a peer that does not read what is left may hold up an orderly end this long
_LINGER_NONE = struct.pack("ii", 1, 0)  # close() then sends RST instead of FIN

T = TypeVar("T")


class CuttingProxy:
    """Forward TCP connections to a target until they are cut.

    Use it as a context manager, or call :meth:`start` and :meth:`close`::

        with CuttingProxy("127.0.0.1", 8000) as proxy:
            client = GenericEnvClient(base_url=proxy.url)
            ...
            proxy.cut_all()

    All methods may be called from any thread.

    Args:
        target_host: where the server listens.
        target_port: its port.
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
    """

    def __init__(self, target_host: str, target_port: int, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.target_host = target_host
        self.target_port = target_port
        self.host = host
        self._port = port
        self._links: set[_Link] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop = asyncio.Event()

    # ---------------------------------------------------------------- life

    def start(self) -> CuttingProxy:
        """Listen.

        Returns:
            The proxy itself.

        Raises:
            OSError: the port is taken.
            RuntimeError: it is running already.
        """
        if self._thread is not None:
            raise RuntimeError("this proxy is running already")
        listening: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(listening,), name="openenv-proxy", daemon=True)
        self._thread.start()
        try:
            listening.result()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Reset every connection and stop listening. Closing twice does nothing."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended already: it could not listen
                self._loop.call_soon_threadsafe(self._stop.set)
        thread.join()
        self._loop = None

    def __enter__(self) -> CuttingProxy:
        return self if self._thread is not None else self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # ---------------------------------------------------------------- use

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._port

    @property
    def url(self) -> str:
        """Base URL for a client."""
        return f"http://{self.host}:{self._port}"

    @property
    def connections(self) -> int:
        """Connections that are open on both sides."""
        return self._call(self._count())

    def cut_all(self, mode: CutMode = "rst") -> int:
        """Cut every open connection, on both sides. Connections made afterwards are forwarded as before.

        Args:
            mode: ``rst`` or ``fin``. With ``fin``, bytes that the proxy has taken are still delivered.

        Returns:
            How many were cut; their sockets are closed when this returns.

        Raises:
            RuntimeError: the proxy is not running.
            ValueError: an unknown mode.
        """
        if mode not in ("rst", "fin"):
            raise ValueError(f"mode must be 'rst' or 'fin', not {mode!r}")
        return self._call(self._cut(mode))

    # ---------------------------------------------------------------- on the proxy's loop

    def _run(self, listening: Future[None]) -> None:
        asyncio.run(self._serve(listening))  # cancels what is left of the links

    async def _serve(self, listening: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            server = await asyncio.start_server(self._accept, self.host, self._port)
        except OSError as error:
            listening.set_exception(error)
            return
        self._port = server.sockets[0].getsockname()[1]
        listening.set_result(None)
        await self._stop.wait()
        server.close()
        await self._cut("rst")

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            target = await asyncio.open_connection(self.target_host, self.target_port)
        except OSError:
            _end(writer, "rst")
            return
        link = _Link((reader, writer), target)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)

    async def _count(self) -> int:
        return len(self._links)

    async def _cut(self, mode: CutMode) -> int:
        links = list(self._links)
        await asyncio.gather(*(link.cut(mode) for link in links))
        return len(links)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise RuntimeError("this proxy is not running")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class _Link:
    """One forwarded connection: the client's socket, the server's, and a pump each way."""

    def __init__(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._client = client
        self._server = server
        self._pumps: list[asyncio.Task[None]] = []
        self._mode: CutMode = "fin"
        self._closed = asyncio.Event()

    async def run(self) -> None:
        """Forward both ways until both sides have ended, one fails, or it is cut."""
        self._pumps = [
            asyncio.create_task(self._pump(self._client[0], self._server[1])),
            asyncio.create_task(self._pump(self._server[0], self._client[1])),
        ]
        try:
            _, pending = await asyncio.wait(self._pumps, return_when=asyncio.FIRST_EXCEPTION)
            for pump in pending:
                pump.cancel()
            results = await asyncio.gather(*self._pumps, return_exceptions=True)
            if any(isinstance(result, OSError) for result in results):
                self._mode = "rst"  # one side was reset, so is the other
        finally:
            for _, writer in (self._client, self._server):
                _end(writer, self._mode)
            for _, writer in (self._client, self._server):
                await _ended(writer)
            self._closed.set()

    async def cut(self, mode: CutMode) -> None:
        """End both sides, and wait until their sockets are closed."""
        self._mode = mode
        for pump in self._pumps:
            pump.cancel()
        if mode == "rst":
            for _, writer in (self._client, self._server):
                _end(writer, mode)
        await self._closed.wait()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(_CHUNK):
            sink.write(data)
            await sink.drain()
        sink.write_eof()


def _end(writer: asyncio.StreamWriter, mode: CutMode) -> None:
    if mode == "rst":
        with contextlib.suppress(OSError):  # already closed by the peer
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
        writer.transport.abort()
    else:
        writer.close()


async def _ended(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):  # how it ended does not matter here
        try:
            await asyncio.wait_for(writer.wait_closed(), _FLUSH_S)
        except TimeoutError:
            writer.transport.abort()
