"""Who may stand between a client and its calls: the seam for adapters that retry, record or refuse.

Nothing else is here. A watcher sees requests and replies, not bytes; what may be sent when is still decided by the
session machine, for every call that a watcher lets through.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from openenv.core.session.events import Op
from openenv.core.wire.messages import Reply

if TYPE_CHECKING:
    from openenv.core.env_client import EnvClient

__all__ = ["CallWatcher", "Exchange", "watcher_of_new_clients"]

Exchange = Callable[..., Awaitable[Reply]]
"""``EnvClient._exchange``: makes one call. Arguments: op, frame, and by keyword ``timeout_s`` and ``episode_id``."""


class CallWatcher(Protocol):
    """Carries out the calls of the clients that it watches."""

    async def call(
        self, client: EnvClient[Any, Any, Any], op: Op, frame: Mapping[str, Any] | None, options: dict[str, Any]
    ) -> Reply:
        """Carry out one call, on the event loop of the client's session.

        Args:
            client: the client; ``client._exchange(op, frame, **options)`` makes the call.
            op: what is asked.
            frame: its request frame; None where it has none.
            options: further arguments of ``_exchange``.
        """
        ...


watcher_of_new_clients: ContextVar[CallWatcher | None] = ContextVar("watcher_of_new_clients", default=None)
"""The watcher that clients get which are made in this context."""
