"""A stand-in for a Space of the Hugging Face Hub, in front of a server of yours.

It has a Space's manners: it sleeps until somebody asks for it, answers 404 to who has no token, lives under a path
prefix, and cuts sockets. It reads the head of each request and forwards the rest as bytes; of what it has seen it
keeps no secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from openenv.testing._forward import end_socket

__all__ = ["SpaceRequest", "SpaceStub"]

_CHUNK = 64 * 1024
_LONGEST_HEAD = 64 * 1024
_HEAD_S = 30.0
_PAGES = {
    307: "Temporary Redirect",
    400: "Bad Request",
    404: "Not Found",
    502: "Bad Gateway",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class SpaceRequest:
    """A request that the stub has seen.

    Attributes:
        method: as ``GET``.
        target: path and query, as it was asked for.
        websocket: whether it asked for a WebSocket.
        authorized: whether it had the token.
        answer: status of the stub's own answer; None if it was forwarded.
    """

    method: str
    target: str
    websocket: bool
    authorized: bool
    answer: int | None


@dataclass(frozen=True, slots=True)
class _Head:
    method: str
    target: str
    headers: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str:
        return next((value for key, value in self.headers if key.lower() == name), "")

    @property
    def websocket(self) -> bool:
        return self.get("upgrade").lower() == "websocket"

    def forwarded(self, target: str) -> bytes:
        """The head for the server behind: without the token, and for this one request only."""
        dropped = {"authorization"} if self.websocket else {"authorization", "connection"}
        lines = [f"{self.method} {target} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in self.headers if name.lower() not in dropped]
        if not self.websocket:
            lines.append("Connection: close")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class SpaceStub:
    """Forward requests to a server, with the manners of a private Space.

    Use it as a context manager, or call :meth:`start` and :meth:`close`::

        with SpaceStub("http://127.0.0.1:8000", token="hf_test") as space:
            client = GenericEnvClient(base_url=space.url, token="hf_test").sync()
            client.wait_ready(timeout=60)

    Args:
        target: base URL of the server behind.
        token: every request must have it, as ``Authorization: Bearer``; others get 404. Empty: a public Space.
        sleep_s: seconds that it answers 503 from the first request on.
        cut_after_s: each WebSocket is reset after so many seconds; or one number a WebSocket, in the order in which
            they are opened, and those that follow are left alone. None: never.
        prefix: path under which it lives.
    """

    def __init__(
        self,
        target: str,
        token: str = "hf_stub_token",
        *,
        sleep_s: float = 20.0,
        cut_after_s: float | Iterable[float] | None = None,
        prefix: str = "/spaces/org/name",
    ) -> None:
        parts = urlsplit(target if "://" in target else f"http://{target}")
        self._behind = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._token = token
        self._sleep_s = sleep_s
        self._prefix = "/" + prefix.strip("/") if prefix.strip("/") else ""
        self._lifetimes = _lifetimes(cut_after_s)
        self._awake_at: float | None = None
        self._redirect: str | None = None
        self._requests: list[SpaceRequest] = []
        self._sockets: set[asyncio.StreamWriter] = set()
        self._port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop = asyncio.Event()

    # ---------------------------------------------------------------- life

    def start(self) -> Self:
        """Listen on a free port of this machine.

        Raises:
            RuntimeError: it is running already.
        """
        if self._thread is not None:
            raise RuntimeError("this Space is running already")
        listening: Future[None] = Future()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(listening)), name="openenv-space", daemon=True
        )
        self._thread.start()
        try:
            listening.result()
        except BaseException:  # raised on; a Ctrl-C must not leave the thread behind
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

    def __enter__(self) -> Self:
        return self if self._thread is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---------------------------------------------------------------- what a test sees and does

    @property
    def url(self) -> str:
        """Base URL for a client, with the prefix."""
        return f"http://127.0.0.1:{self._port}{self._prefix}"

    @property
    def requests(self) -> list[SpaceRequest]:
        """Every request so far, in order."""
        return list(self._requests)

    def wake(self) -> None:
        """End its sleep at once."""
        self._awake_at = 0.0

    def sleep(self, seconds: float | None = None) -> None:
        """Put it to sleep; the next request starts to wake it up. Sockets that are open are reset.

        Args:
            seconds: how long it then takes. Default: as it was given.
        """
        self._sleep_s = self._sleep_s if seconds is None else seconds
        self._awake_at = None
        self.cut()

    def cut(self) -> int:
        """Reset the WebSockets that are open; returns how many."""
        if self._loop is None or self._thread is None:
            raise RuntimeError("this Space is not running")
        return asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result()

    def redirect(self, base_url: str | None) -> None:
        """Answer requests with 307 and the same route of another server from now on; None: no longer."""
        self._redirect = None if base_url is None else base_url.rstrip("/")

    # ---------------------------------------------------------------- on its own loop

    async def _serve(self, listening: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_LONGEST_HEAD)
        except OSError as error:
            listening.set_exception(error)
            return
        self._port = server.sockets[0].getsockname()[1]
        listening.set_result(None)
        await self._stop.wait()
        server.close()
        await self._cut()
        handlers = asyncio.all_tasks() - {asyncio.current_task()}
        for handler in handlers:
            handler.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)

    async def _cut(self) -> int:
        sockets = list(self._sockets)
        for writer in sockets:
            end_socket(writer, "rst")
        return len(sockets)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEAD_S):
                head = await _read_head(reader)
            if head is not None:
                await self._handle(head, reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client has left, or speaks no HTTP
        except asyncio.CancelledError:
            pass  # the stub closes; a handler that ends as cancelled would be reported
        finally:
            writer.transport.abort() if writer in self._sockets else writer.close()
            self._sockets.discard(writer)

    async def _handle(self, head: _Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        authorized = not self._token or hmac.compare_digest(
            head.get("authorization").encode(), f"Bearer {self._token}".encode()
        )
        answer = self._own_answer(head, authorized)
        self._requests.append(SpaceRequest(head.method, head.target, head.websocket, authorized, answer))
        if answer is not None:
            location = f"{self._redirect}{self._route(head)}" if answer == 307 else ""
            await _say(writer, answer, location)
            return
        try:
            upstream = await asyncio.open_connection(*self._behind)
        except OSError:
            await _say(writer, 502)
            return
        upstream[1].write(head.forwarded(self._route(head)))
        await self._forward(head, (reader, writer), upstream)

    def _own_answer(self, head: _Head, authorized: bool) -> int | None:
        """The status with which the stub answers itself; None if the server behind is to answer."""
        if not authorized or not (head.target + "/").startswith(self._prefix + "/"):
            return 404
        now = time.monotonic()
        if self._awake_at is None:
            self._awake_at = now + self._sleep_s
        if now < self._awake_at:
            return 503
        return 307 if self._redirect is not None else None

    def _route(self, head: _Head) -> str:
        return head.target.removeprefix(self._prefix) or "/"

    async def _forward(
        self,
        head: _Head,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        lifetime = next(self._lifetimes, None) if head.websocket else None
        if head.websocket:
            self._sockets.add(client[1])
        sending = asyncio.ensure_future(_pump(client[0], server[1]))
        answering = asyncio.ensure_future(_pump(server[0], client[1]))
        pumps = {sending, answering}
        try:
            # A client that has asked may close its half; the answer ends an HTTP exchange. Either end ends a socket.
            until = pumps if head.websocket else {answering}
            done, _ = await asyncio.wait(until, timeout=lifetime, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                end_socket(client[1], "rst")
            elif head.websocket:
                await asyncio.wait(pumps, timeout=1.0)  # the close frame of the other end
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            server[1].close()


async def _read_head(reader: asyncio.StreamReader) -> _Head | None:
    raw = await reader.readuntil(b"\r\n\r\n")
    first, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3:
        return None
    pairs = tuple((name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines))
    return _Head(words[0], words[1], pairs)


async def _say(writer: asyncio.StreamWriter, status: int, location: str = "") -> None:
    body = f"<!doctype html><title>{_PAGES[status]}</title>".encode()
    lines = [f"HTTP/1.1 {status} {_PAGES[status]}", "Content-Type: text/html", f"Content-Length: {len(body)}"]
    lines += ["Connection: close", *([f"Location: {location}"] if location else [])]
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body)
    await writer.drain()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(_CHUNK):
            sink.write(data)
            await sink.drain()
        sink.write_eof()
    except OSError:
        pass  # one side is gone; the other one's pump ends the pair


def _lifetimes(given: float | Iterable[float] | None) -> Iterator[float]:
    if given is None:
        return
    if isinstance(given, int | float):
        while True:
            yield float(given)
    yield from given
