"""A TCP proxy that fails on command, to stand between a client and a server.

It forwards bytes and knows nothing of what they mean. It runs on an event loop in a thread of its own, so
that blocking and async tests use it alike, and a blocked test does not stall it. As a process of its own::

    python -m openenv.testing.proxy --target 127.0.0.1:8000

prints its address, then reads commands from standard input and answers each with ``ok N`` or ``error TEXT``.
The commands are those of `openenv.testing.controls`; it ends with its input.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from openenv.testing._forward import Cut, Link, Reader, Rules, Shared, end_socket, ways
from openenv.testing.controls import COMMANDS, CutMode, Direction, ProxyControls, RefuseMode, check, parse

__all__ = ["FaultProxy", "main"]

T = TypeVar("T")


class FaultProxy(ProxyControls):
    """Forward TCP connections to a target, until told to do something else. See `ProxyControls` for what.

    Use it as a context manager, or call :meth:`start` and :meth:`close`::

        with FaultProxy("127.0.0.1", 8000) as proxy:
            client = GenericEnvClient(base_url=proxy.url)
            ...
            proxy.cut("rst")

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
        self._links: dict[int, Link] = {}
        self._accepted = 0
        self._refusing: RefuseMode | None = None
        self._news = threading.Condition()
        self._shared = Shared(news=self._tell)
        self._server: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop = asyncio.Event()

    # ---------------------------------------------------------------- life

    def start(self) -> Self:
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

    def __enter__(self) -> Self:
        return self if self._thread is not None else self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def port(self) -> int:
        return self._port

    # ---------------------------------------------------------------- commands

    def _do(self, command: str, *arguments: str | float | None) -> int:
        pairs = zip(COMMANDS[command], arguments, strict=True)
        checked = [check(name, value, default) for (name, default), value in pairs]
        if command.startswith("wait_for_"):
            return self._wait(command, checked)
        return self._call(self._carry_out(command, checked))

    async def _carry_out(self, command: str, arguments: list[Any]) -> int:
        match command:
            case "cut":
                result = await self._cut(*arguments)
            case "refuse":
                result = await self._refuse(arguments[0])
            case "heal":
                result = await self._heal()
            case "connections":
                return len(self._links)
            case "accepted":
                return self._accepted
            case "passed":
                return self._count_passed(arguments[0])
            case _:
                result = self._rule(command, arguments)
        self._tell()
        return result

    def _rule(self, command: str, arguments: list[Any]) -> int:
        """Change the rules of connections; returns how many open ones are concerned."""
        *values, number = arguments
        links = [link for link in self._links.values() if number in (None, link.number)]
        if command == "cut_after":  # by whichever connection comes first
            count, direction, mode = values
            rules = [self._shared.rules] if number is None else [link.rules for link in links]
            for table in rules:
                for way in ways(direction):
                    table[way].cut = Cut(count, mode)
            return len(links)
        for table in [link.rules for link in links] + ([self._shared.rules] if number is None else []):
            for way in ways(values[-1]):
                if command == "delay":
                    table[way].delay_s = values[0]
                else:
                    table[way].held = command == "hold"
        for link in links:
            link.rules_changed()
        return len(links)

    async def _cut(self, mode: CutMode, number: int | None) -> int:
        links = [link for link in self._links.values() if number in (None, link.number)]
        await asyncio.gather(*(link.cut(mode) for link in links))
        return len(links)

    async def _refuse(self, mode: RefuseMode) -> int:
        self._refusing = mode
        if mode == "closed" and self._server is not None:
            self._server.close()
            self._server = None
        return len(self._links)

    async def _heal(self) -> int:
        self._refusing = None
        if self._server is None:
            await self._listen()
        for table in [self._shared.rules, *(link.rules for link in self._links.values())]:
            for rules in table.values():
                rules.__dict__.update(Rules().__dict__)
        for link in self._links.values():
            link.rules_changed()
        return len(self._links)

    def _wait(self, command: str, arguments: list[Any]) -> int:
        *wanted, timeout_s = arguments
        measures: dict[str, tuple[Callable[[], int], Callable[[int], bool]]] = {
            "wait_for_connections": (lambda: self._accepted, lambda seen: seen >= wanted[0]),
            "wait_for_open": (lambda: len(self._links), lambda seen: seen == wanted[0]),
            "wait_for_held": (lambda: self._count_held(wanted[0]), lambda seen: seen >= wanted[1]),
            "wait_for_passed": (lambda: self._count_passed(wanted[0]), lambda seen: seen >= wanted[1]),
            "wait_for_cuts": (lambda: self._shared.cuts, lambda seen: seen >= wanted[0]),
        }
        measure, enough = measures[command]
        with self._news:
            if not self._news.wait_for(lambda: enough(measure()), timeout_s):
                raise TimeoutError(f"{command} {' '.join(map(str, wanted))}: {measure()} after {timeout_s:g} s")
            return measure()

    def _count_held(self, direction: Direction) -> int:
        return sum(link.held[way] for link in list(self._links.values()) for way in ways(direction))

    def _count_passed(self, direction: Direction) -> int:
        return sum(self._shared.passed[way] for way in ways(direction))

    def _tell(self) -> None:
        with self._news:
            self._news.notify_all()

    # ---------------------------------------------------------------- on the proxy's loop

    def _run(self, listening: Future[None]) -> None:
        asyncio.run(self._serve(listening))  # cancels what is left of the links

    async def _serve(self, listening: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            await self._listen()
        except OSError as error:
            listening.set_exception(error)
            return
        listening.set_result(None)
        await self._stop.wait()
        if self._server is not None:
            self._server.close()
        await self._cut("rst", None)

    async def _listen(self) -> None:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.create_server((self.host, self._port), family=family, backlog=1024)
        self._port = listener.getsockname()[1]
        loop = asyncio.get_running_loop()

        def protocol() -> asyncio.StreamReaderProtocol:
            reader = Reader(loop=loop)
            return asyncio.StreamReaderProtocol(reader, lambda _, writer: self._accept(reader, writer), loop=loop)

        self._server = await loop.create_server(protocol, sock=listener, backlog=1024)

    async def _dial(self) -> tuple[Reader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        reader = Reader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        transport, _ = await loop.create_connection(lambda: protocol, self.target_host, self.target_port)
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _accept(self, reader: Reader, writer: asyncio.StreamWriter) -> None:
        self._accepted += 1
        number = self._accepted
        if self._refusing is not None:
            end_socket(writer, "rst")
            self._tell()
            return
        try:
            target = await self._dial()
        except OSError:
            end_socket(writer, "rst")
            self._tell()
            return
        link = self._links[number] = Link(number, (reader, writer), target, self._shared)
        self._tell()
        try:
            await link.run()
        finally:
            del self._links[number]
            self._tell()

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            work.close()
            raise RuntimeError("this proxy is not running")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


# ---------------------------------------------------------------- the command


def _answer(proxy: FaultProxy, line: str) -> str:
    try:
        command, arguments = parse(line)
        return f"ok {proxy._do(command, *arguments)}"
    except (ValueError, TimeoutError, OSError) as error:
        return f"error {type(error).__name__} {error}"


def main(arguments: list[str] | None = None) -> int:
    """Run a proxy until standard input ends.

    Args:
        arguments: of the command line; those of the process by default.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(prog="python -m openenv.testing.proxy", description="A proxy that fails.")
    parser.add_argument("--target", required=True, metavar="HOST:PORT", help="the server")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 takes a free one")
    options = parser.parse_args(arguments)
    host, _, port = options.target.rpartition(":")
    if not port.isdigit():
        parser.error("--target must be HOST:PORT")
    target = str(host).strip("[]") or "127.0.0.1"
    with FaultProxy(target, int(port), host=options.host, port=options.port) as proxy:
        sys.stdout.write(f"{proxy.url}\n")
        sys.stdout.flush()
        for line in sys.stdin:
            if line.strip():
                sys.stdout.write(_answer(proxy, line) + "\n")
                sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
