"""Servers that are started for a client by a provider, and the handle of a client that is yet to be started."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from openenv.core.exceptions import OpenEnvError, ProviderError, ProviderTimeoutError

__all__ = ["ProvidedServer", "StartHandle", "started"]


class _Client(Protocol):
    async def connect(self) -> Any: ...

    async def close(self) -> None: ...


class _Blocking(Protocol):
    def connect(self) -> Any: ...

    def close(self) -> None: ...


T = TypeVar("T")
ClientT = TypeVar("ClientT", bound=_Client)
BlockingT = TypeVar("BlockingT", bound=_Blocking)


class ProvidedServer:
    """Starts a provider's server when it is first needed, and stops it when the client is closed.

    A connection that fails or drops never stops it: the server may be busy, and its state is the episode. A start that
    fails is taken back. A stop that fails raises, and is tried again by the next one.

    Args:
        provider: has ``start_container()`` or ``start()``, ``wait_for_ready()`` and ``stop_container()`` or ``stop()``;
            or the name of one, as `load_provider` knows it.
        base_url: where the server is, if it runs already; then it is only stopped.
    """

    def __init__(self, provider: Any, base_url: str | None) -> None:
        self._provider = provider
        self._given = base_url
        self._url = base_url
        self._ready = base_url is not None
        self._to_stop = base_url is not None
        self._asking = threading.Lock()  # one at a time asks the provider to start or stop
        self._starts = 0

    async def base_url(self) -> str:
        """The server's address; starts it first if need be, in a thread, as a provider may block.

        Who gives up waiting leaves the start to those who come after.

        Raises:
            ProviderError: it could not be started.
            ValueError: the provider must be given an image to start.
        """
        if self._ready and self._url is not None:
            return self._url
        return await asyncio.to_thread(self._start)

    def _start(self) -> str:
        with self._asking:
            if self._url is None:
                self._to_stop = True
                self._starts += 1
                try:
                    self._url = self._ask_to_start()
                except BaseException:  # raised on; nothing is left running
                    self._take_back()
                    raise
            url, number = self._url, self._starts
        if not self._ready:
            try:
                with _told("The server did not become ready"):
                    container = hasattr(self._provider, "start_container")
                    self._provider.wait_for_ready(*([url] if container else []))
            except BaseException:  # raised on; nothing is left running
                with self._asking:
                    if number == self._starts:
                        self._take_back()
                raise
            self._ready = True
        return url

    def _ask_to_start(self) -> str:
        if isinstance(self._provider, str):
            from openenv.core.containers.runtime.registry import load_provider

            self._provider = load_provider(self._provider)
        start = getattr(self._provider, "start_container", None)
        if start is None:
            start = self._provider.start
        elif missing := _required(start):
            raise ValueError(
                f"{type(self._provider).__name__} does not start by itself: start_container() requires "
                f"{', '.join(missing)}. Use from_docker_image(), or start it and pass its address as base_url."
            )
        with _told("The provider could not start its server"):
            return str(start())

    def _take_back(self) -> None:
        with contextlib.suppress(Exception):  # the error of the start is the one to tell
            self._stop()

    def _stop(self) -> None:
        if self._to_stop:
            stop = getattr(self._provider, "stop_container", None) or getattr(self._provider, "stop", None)
            if stop is not None:
                stop()
        self._to_stop = False
        if self._given is None:
            self._url, self._ready = None, False

    def _stop_in_turn(self) -> None:
        with self._asking:
            self._stop()

    @property
    def provider(self) -> Any:
        """The provider that was given; once it was asked for a server, the provider and not its name."""
        return self._provider

    @property
    def url(self) -> str | None:
        """The server's address, once it is started."""
        return self._url

    async def stop(self) -> None:
        """Stop the server. Once it is stopped, this does nothing.

        Raises:
            Exception: the provider's own: it could not be stopped. Call again.
        """
        if self._to_stop:
            await asyncio.shield(asyncio.to_thread(self._stop_in_turn))


@contextlib.contextmanager
def _told(what: str) -> Generator[None]:
    """Turn what a provider raises into an error of this package; wrong arguments stay what they are."""
    try:
        yield
    except (OpenEnvError, TypeError, ValueError):
        raise
    except Exception as error:  # raised on, as what callers catch: a provider of an author may raise anything
        kind = ProviderTimeoutError if isinstance(error, TimeoutError) else ProviderError
        raise kind(f"{what}: {type(error).__name__}: {error}") from error


def _required(function: Callable[..., Any]) -> list[str]:
    """Names of the arguments that a function cannot do without."""
    parameters = inspect.signature(function).parameters.values()
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is one.empty and one.kind not in optional]


def started(
    start: Callable[[], str], ready: Callable[[str], object], make: Callable[[str], T], stop: Callable[[], object]
) -> T:
    """Start a provider's server, wait for it, and make something of its address; stop it if any of that fails.

    Args:
        start: starts it and returns its address.
        ready: waits for the server at an address.
        make: makes the client for an address.
        stop: stops it.

    Raises:
        ProviderError: it could not be started.
    """
    try:
        with _told("The provider could not start its server"):
            url = start()
            ready(url)
        return make(url)
    except BaseException:  # raised on; nothing is left running
        with contextlib.suppress(Exception):  # the error of the start is the one to tell
            stop()
        raise


class StartHandle(Coroutine[Any, Any, ClientT], Generic[ClientT, BlockingT]):
    """A client whose server is not started yet; good for one use.

    ``await handle`` starts the server and gives the connected client, ``handle.sync()`` the blocking one;
    ``async with`` and ``with`` do the same and close it at the end. As a coroutine it fits ``asyncio.run(handle)``.

    Args:
        start: starts the server and makes the client; may block.
        blocking: makes a client blocking.
    """

    def __init__(self, start: Callable[[], ClientT], blocking: Callable[[ClientT], BlockingT]) -> None:
        self._start = start
        self._blocking = blocking
        self._used = False
        self._running: Coroutine[Any, Any, ClientT] | None = None
        self._client: ClientT | None = None
        self._guard = threading.Lock()
        self._made: ClientT | None = None
        self._gone = False

    def _use(self) -> Callable[[], ClientT]:
        if self._used:
            raise RuntimeError("This handle has already been resolved: call the factory again for another server.")
        self._used = True
        return self._start

    async def _resolve(self) -> ClientT:
        start = self._use()
        try:
            client = await asyncio.to_thread(self._start_in_thread, start)
            await client.connect()
        except BaseException as error:  # raised on; nothing is left running
            await self._left(error)
            raise
        self._client = client
        return client

    def _start_in_thread(self, start: Callable[[], ClientT]) -> ClientT:
        client = start()
        with self._guard:
            self._made = client
            gone = self._gone
        if gone:
            self._close_quietly(client)
        return client

    async def _left(self, error: BaseException) -> None:
        """The caller gets no client. One that is started already is closed; one that is only now being started is
        closed by its thread, whatever becomes of the caller's event loop."""
        with self._guard:
            self._gone = True
            made = self._made
        if made is None:
            return
        if isinstance(error, Exception):
            await asyncio.to_thread(self._close_quietly, made)
        else:  # a cancelled caller does not wait
            threading.Thread(target=self._close_quietly, args=(made,), name="openenv-left-start").start()

    def _close_quietly(self, client: ClientT) -> None:
        with contextlib.suppress(Exception):  # the error of the start is the one to tell
            self._blocking(client).close()

    def sync(self) -> BlockingT:
        """Start the server and give the connected, blocking client.

        Raises:
            RuntimeError: the handle was used before.
            ProviderError: the server could not be started.
            ConnectError: it could not be connected to.
        """
        client = self._use()()
        blocking = self._blocking(client)
        try:
            blocking.connect()
        except BaseException:  # raised on; nothing is left open
            self._close_quietly(client)
            raise
        self._client = client
        return blocking

    def __await__(self) -> Generator[Any, Any, ClientT]:
        return self._resolve().__await__()

    def send(self, value: Any, /) -> Any:
        """Of the coroutine protocol."""
        return self._coroutine().send(value)

    def throw(self, *error: Any) -> Any:
        """Of the coroutine protocol."""
        return self._coroutine().throw(*error)

    def close(self) -> None:
        """Of the coroutine protocol: a handle that is closed is used."""
        self._used = True
        if self._running is not None:
            self._running.close()

    def _coroutine(self) -> Coroutine[Any, Any, ClientT]:
        if self._running is None:
            if self._used:
                self._use()
            self._running = self._resolve()
        return self._running

    async def __aenter__(self) -> ClientT:
        return await self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()

    def __enter__(self) -> BlockingT:
        return self.sync()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            self._blocking(self._client).close()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{name!r}: this is the handle of a client that is not started yet; await it, or call its sync() first"
        )
