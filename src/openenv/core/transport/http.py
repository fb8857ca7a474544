"""The HTTP half of a client of tools, on `httpx`, which is loaded when it is first used.

It posts a body and brings back the answer, or says how it failed and whether the server may have got it. What that
means for a session is not for this room.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
import ssl
import threading
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from openenv.core.exceptions import ConnectError, MessageTooLargeError, OpenEnvError, Outcome, ServerError
from openenv.core.session.events import Oversized, PostFailure
from openenv.core.transport.address import Address
from openenv.core.transport.aio import RETRYABLE_STATUS, may_pass, reason_of, user_agent
from openenv.core.transport.base import PostError

if TYPE_CHECKING:
    import httpx

__all__ = ["HttpAnswer", "HttpPoster", "first_cause", "post_without_loop", "quiet", "settings_of"]

KEEPALIVE_S = 3.0
"""How long an idle connection is used again: less than servers keep it (uvicorn: 5 s), for a request on a connection
that is just being closed has an unknown fate."""


TOO_LARGE = 413

_posting = contextvars.ContextVar("_posting", default=False)


class _Quiet(logging.Filter):
    """The library logs URLs, and at DEBUG headers, and with them tokens. Of our requests nothing is logged there."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not _posting.get()


_quiet = _Quiet()
_LOGGERS = ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.http2", "httpcore.proxy", "httpcore.socks")


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Have the library log nothing of the requests that are made here."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_quiet)  # which adds it once
    said = _posting.set(True)
    try:
        yield
    finally:
        _posting.reset(said)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer with status 200.

    Attributes:
        headers: its headers, by any case.
        body: its bytes; `Oversized` if they were too many.
    """

    headers: Mapping[str, str]
    body: bytes | Oversized


@dataclass
class HttpPoster:
    """Posts JSON to one route of one server, on one event loop.

    Attributes:
        address: the server.
        route: the route, as ``/mcp``.
        headers: headers of every request.
        connect_timeout_s: seconds for opening a connection; None for no limit.
        max_message_bytes: largest answer that is kept; None for no limit.
    """

    address: Address
    route: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    connect_timeout_s: float | None = None
    max_message_bytes: int | None = None
    _client: httpx.AsyncClient | None = field(default=None, init=False, repr=False)

    @property
    def shown(self) -> str:
        """Where it posts to, for texts."""
        return self.address.shown.replace("ws", "http", 1).removesuffix("/ws") + self.route

    async def post(self, body: bytes, headers: Mapping[str, str]) -> HttpAnswer:
        """Post once.

        Raises:
            PostError: there is no answer, or one with another status than 200.
        """
        import httpx

        if self._client is None:
            self._client = self._new_client()
        url = self.address.http(self.route)
        with quiet():
            try:
                async with self._client.stream("POST", url, content=body, headers=dict(headers)) as response:
                    if response.status_code != 200:
                        raise PostError(self._refused(response.status_code, len(body)))
                    return HttpAnswer(response.headers, await self._read(response))
            except (httpx.HTTPError, httpx.InvalidURL, OSError, RuntimeError) as error:
                raise PostError(self._failure(error)) from error

    async def _read(self, response: httpx.Response) -> bytes | Oversized:
        limit, size = self.max_message_bytes, 0
        parts = []
        async for part in response.aiter_bytes():
            size += len(part)
            if limit is None or size <= limit:
                parts.append(part)
            else:
                parts.clear()
        return b"".join(parts) if limit is None or size <= limit else Oversized(size, limit)

    async def close(self) -> None:
        """Close its connections; a later post opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def drop(self) -> None:
        """Let go of idle connections whose event loop is closed; for finalizers, best effort."""
        client, self._client = self._client, None
        try:
            for connection in client._transport._pool.connections:  # type: ignore[union-attr]
                transport = connection._connection._network_stream._stream._transport
                transport._sock.close()
                transport._sock = None  # nobody else will close it
        except (AttributeError, OSError):
            pass  # another version of the library: the garbage collector closes them, with a warning

    def _new_client(self) -> httpx.AsyncClient:
        import httpx

        return httpx.AsyncClient(
            **settings_of(self.address, self.headers),
            timeout=httpx.Timeout(None, connect=self.connect_timeout_s),
            limits=httpx.Limits(keepalive_expiry=KEEPALIVE_S),
        )

    def _refused(self, status: int, size: int) -> PostFailure:
        """A gateway's 5xx does not say whether the request had reached the server behind it."""
        if status == TOO_LARGE:
            return PostFailure(MessageTooLargeError(size=size, direction="sent"), doubtful=False, retryable=False)
        error = ConnectError(f"POST {self.shown} failed: {reason_of(Exception(), status)}.", url=self.shown)
        error.status = status
        sent = status >= 500
        error.outcome = Outcome.UNKNOWN if sent else Outcome.NOT_APPLIED
        return PostFailure(error, doubtful=sent, retryable=status in RETRYABLE_STATUS)

    def _failure(self, error: Exception) -> PostFailure:
        import httpx

        unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout | httpx.ProxyError)
        wrong = isinstance(error, httpx.UnsupportedProtocol | httpx.InvalidURL)
        cause = first_cause(error)
        sent = not (unsent or wrong)
        failure: OpenEnvError
        if sent:
            text = f"POST {self.shown} has no answer: {reason_of(cause, None)}."
            failure = ServerError(text, code="NO_ANSWER", outcome=Outcome.UNKNOWN, text=text)
        else:
            reason = reason_of(cause, None)
            failure = ConnectError(f"Failed to connect to {self.shown}: {reason}{'' if reason[-1] == '?' else '.'}")
            failure.url = self.shown
        failure.__cause__ = error
        return PostFailure(failure, doubtful=sent, retryable=not wrong and (sent or may_pass(cause) or cause is error))


def settings_of(address: Address, headers: Mapping[str, str]) -> dict[str, Any]:
    """Certificates, proxies and headers as for the WebSocket half."""
    secure = address.url.startswith("wss")
    return {
        "headers": {"User-Agent": user_agent(), "Content-Type": "application/json", **headers},
        "verify": ssl.create_default_context() if secure else False,
        "trust_env": not address.loopback,
        "follow_redirects": False,
    }


def first_cause(error: BaseException) -> Exception:
    """The error of the operating system or of TLS behind one of the library's, if there is one."""
    found = [one for one in _chain(error) if isinstance(one, OSError)]
    return found[-1] if found else Exception(str(error) or type(error).__name__)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
        if isinstance(error, BaseExceptionGroup):  # one for each address of a name
            error = error.exceptions[0]


def post_without_loop(poster: HttpPoster, body: bytes, headers: Mapping[str, str], timeout_s: float) -> None:
    """Post once, best effort, where no event loop can; for finalizers. Nobody waits for it, except that a process that
    is about to end waits ``timeout_s`` seconds at the most."""
    if not threading.main_thread().is_alive():  # the interpreter shuts down: no thread can be started any more
        _post_blocking(poster, body, headers, timeout_s)
        return
    arguments = (poster, body, headers, timeout_s)
    threading.Thread(target=_post_blocking, args=arguments, name="openenv-farewell", daemon=True).start()


def _post_blocking(poster: HttpPoster, body: bytes, headers: Mapping[str, str], timeout_s: float) -> None:
    import httpx

    try:
        with quiet(), httpx.Client(**settings_of(poster.address, poster.headers), timeout=timeout_s) as client:
            client.post(poster.address.http(poster.route), content=body, headers=dict(headers))
    except (httpx.HTTPError, httpx.InvalidURL, OSError, RuntimeError):
        pass  # the server frees an idle session by itself
