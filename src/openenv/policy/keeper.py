"""The keeper: one thread of a process that looks after connections while nobody uses them.

A blocking agent owns its socket, so between two calls somebody else must answer the server's pings and its close, and
notice a server that has died. Connections in use cost it nothing: it waits for the idle ones only.

Not in this room: what a connection does in its turn; see `openenv.policy.socket_link`.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from typing import Protocol

__all__ = ["Keeper", "Kept"]

logger = logging.getLogger("openenv.policy")

ROUND_S = 1.0
"""Seconds between two looks at the connections whose ping may be due."""

_ONCE = getattr(select, "EPOLLONESHOT", 0)
_READABLE = getattr(select, "EPOLLIN", 0) | _ONCE


class Kept(Protocol):
    """A connection, as the keeper sees it."""

    def fileno(self) -> int:
        """Its socket's."""
        ...

    def idle_turn(self) -> None:
        """Read what has come and send what is due, without waiting; nothing if the connection is in use."""
        ...

    def abort(self) -> None:
        """End it at once."""
        ...


class Keeper:
    """Use `Keeper.shared()`."""

    _shared: Keeper | None = None
    _guard = threading.Lock()

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._epoll = select.epoll()
        self._kept: dict[int, Kept] = {}
        self._thread = threading.Thread(target=self._run, name="openenv-keeper", daemon=True)
        self._thread.start()

    @classmethod
    def shared(cls) -> Keeper:
        """The keeper of this process; started when it is first needed, and anew in a forked child."""
        shared = cls._shared
        if shared is not None and shared._pid == os.getpid():
            return shared
        with cls._guard:
            if cls._shared is None or cls._shared._pid != os.getpid():
                cls._shared = cls()
            return cls._shared

    def add(self, connection: Kept) -> None:
        """Begin with a connection, which is in use."""
        self._kept[connection.fileno()] = connection
        self._epoll.register(connection.fileno(), _ONCE)

    def watch(self, connection: Kept) -> None:
        """The connection is idle now: it gets its turn when bytes come, once."""
        self._epoll.modify(connection.fileno(), _READABLE)

    def ignore(self, connection: Kept) -> None:
        """The connection is in use, and its user reads."""
        self._epoll.modify(connection.fileno(), _ONCE)

    def forget(self, connection: Kept) -> None:
        """The connection is about to be closed. Nothing happens in a forked child, whose parent keeps it."""
        if self._pid == os.getpid() and self._kept.pop(connection.fileno(), None) is not None:
            self._epoll.unregister(connection.fileno())

    def _run(self) -> None:
        looked = time.monotonic()
        while True:
            due = looked + ROUND_S - time.monotonic()
            ready = self._epoll.poll(max(due, 0.0))
            for number, _ in ready:
                self._turn(self._kept.get(number))
            if time.monotonic() >= looked + ROUND_S:
                looked = time.monotonic()
                for connection in list(self._kept.values()):
                    self._turn(connection)

    def _turn(self, connection: Kept | None) -> None:
        if connection is None:  # closed since
            return
        try:
            connection.idle_turn()
        except Exception:  # its user is told by the next call; all others still need this thread
            logger.debug("an idle connection failed", exc_info=True)
            connection.abort()


def _after_fork() -> None:
    """A forked child has no keeper, and a guard that may be held by a thread that is not there."""
    Keeper._guard = threading.Lock()
    Keeper._shared = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
