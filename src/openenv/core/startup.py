"""A server that is started for a client by a provider (a container, a local process)."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["ProvidedServer"]


class ProvidedServer:
    """Starts a provider's server when it is first needed, and stops it when the client is closed.

    A connection that fails or drops never stops it: the server may be busy, and its state is the episode.

    Args:
        provider: has ``start_container()`` or ``start()``, ``wait_for_ready()`` and ``stop_container()`` or ``stop()``.
        base_url: where the server is, if it runs already; then it is only stopped.
    """

    def __init__(self, provider: Any, base_url: str | None) -> None:
        self._provider = provider
        self._base_url = base_url
        self._starting = asyncio.Lock()

    async def base_url(self) -> str:
        """The server's address; starts it first if need be. The provider runs in a thread, as it may block."""
        async with self._starting:
            if self._base_url is None:
                self._base_url = await asyncio.to_thread(self._start)
            return self._base_url

    def _start(self) -> str:
        provider = self._provider
        if hasattr(provider, "start_container"):
            url = str(provider.start_container())
            provider.wait_for_ready(url)
        else:
            url = str(provider.start())
            provider.wait_for_ready()
        return url

    async def stop(self) -> None:
        """Stop the server, once."""
        provider, self._provider = self._provider, None
        if provider is not None:
            stop = getattr(provider, "stop_container", None) or provider.stop
            await asyncio.to_thread(stop)
            self._base_url = None
