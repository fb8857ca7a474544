"""What tests of tool clients share: servers with tools, and our client in both its forms under one set of words."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from interop.sides import Mirror
from openenv.core.mcp_client import MCPToolClient
from openenv.testing.proxy import FaultProxy

__all__ = ["Player", "proxied", "ran_on"]


class Player:
    """An `MCPToolClient`, async on a loop of its own or blocking in threads; each call can be started or made.

    Args:
        url: the server.
        mode: ``async`` or ``sync``.
        client: use this client.
        **options: of the client.
    """

    def __init__(self, url: str, mode: str, client: MCPToolClient | None = None, **options: Any) -> None:
        self.mode = mode
        self.client = client or MCPToolClient(url, **options)
        if mode == "async":
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
            self._thread.start()
        else:
            self._threads = ThreadPoolExecutor(8)

    def start(self, method: str, /, *args: Any, of: Any = None, **kwargs: Any) -> Future[Any]:
        """Start a call; ``of``: of this other client."""
        client = of if of is not None else self.client if self.mode == "async" else self.client.sync()
        if self.mode == "sync":
            return self._threads.submit(getattr(client, method), *args, **kwargs)

        async def call() -> Any:
            return await getattr(client, method)(*args, **kwargs)

        return asyncio.run_coroutine_threadsafe(call(), self._loop)

    def do(self, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Make a call and wait for its end."""
        return self.start(method, *args, **kwargs).result(40)

    def tool(self, name: str, /, **arguments: Any) -> Any:
        """Call a tool."""
        return self.do("call_tool", name, **arguments)

    def end(self) -> None:
        """Close the client, and what this player is made of."""
        try:
            self.do("close")
        finally:
            self.let_go()

    def let_go(self) -> None:
        """The same without closing the client."""
        if self.mode == "sync":
            self._threads.shutdown()
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()


@contextmanager
def proxied(server: Mirror, mode: str, **options: Any) -> Iterator[tuple[FaultProxy, Player]]:
    """A player whose connections can be broken."""
    with FaultProxy("127.0.0.1", server.port) as proxy:
        player = Player(proxy.url, mode, **options)
        try:
            yield proxy, player
        finally:
            proxy.heal()
            player.end()


def ran_on(server: Mirror, mark: str) -> list[int]:
    """The environments on which a marked tool call ran, once for each time."""
    return [one["env_no"] for one in server.events("tool", mark=mark)]
