"""Sessions that belong to no socket: opened over POST ``/mcp``, used over it, and by one attached ``/ws`` at a time.

Who may use one: whoever knows its id, as in other OpenEnv servers, or, where its client asked for a token, whoever
holds that. Sessions of sockets are not in this table, so their ids open nothing. What travels in which header:

========================= =====================================================================================
``OpenEnv-Features``      what a client can do, and what the server will: ``token``, ``idempotency``
``OpenEnv-Session-Token`` the secret, told once when the session is opened, and carried by each later request
``OpenEnv-Session``       on the handshake of ``/ws``: the session to attach to, by the holder of its token
``Idempotency-Key``       names one request of a session, which is run once however often it comes; and the request
                          that opens one, which opens one only
========================= =====================================================================================
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import json
import secrets
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from openenv.core.env_server.calls import CallError
from openenv.core.env_server.json_rpc import RpcError, RpcRequest
from openenv.core.env_server.mcp_types import JsonRpcErrorCode
from openenv.core.env_server.sessions import EndReason, Session, SessionManager
from openenv.core.exceptions import SessionNotFoundError
from openenv.core.session.leases import digest_of
from openenv.core.wire.json_codec import encode
from openenv.core.wire.messages import WSErrorCode

__all__ = [
    "FEATURES_HEADER",
    "IDLE_S",
    "KEY_HEADER",
    "SESSION_HEADER",
    "TOKEN_HEADER",
    "HeldSession",
    "HeldSessions",
    "ReplyCache",
    "wanted_session",
]

FEATURES_HEADER = "OpenEnv-Features"
TOKEN_HEADER = "OpenEnv-Session-Token"
SESSION_HEADER = "OpenEnv-Session"
KEY_HEADER = "Idempotency-Key"

IDLE_S = 1800.0
"""A session without a socket ends after this many seconds without a request."""
KEPT_REPLIES = 64
KEPT_KEYS = 10_000


class Attached(Protocol):
    """A socket that is attached to a session."""

    def replace(self) -> None:
        """Another one has taken its place."""


@dataclass(slots=True)
class _Entry:
    digest: bytes
    request_id: Any
    task: asyncio.Task[bytes] | None
    size: int = 0


class ReplyCache:
    """The requests of one session that carried a key, and their last replies.

    Args:
        max_bytes: most bytes of replies that are kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._kept: OrderedDict[str, _Entry] = OrderedDict()
        self._size = 0

    async def once(self, key: str, request: RpcRequest, run: Callable[[], Coroutine[Any, Any, bytes]]) -> bytes:
        """The reply to a request: run it, or wait for the one that runs, or find it.

        Args:
            key: its name.
            request: what is asked for.
            run: runs it.

        Raises:
            RpcError: the key was used for something else, or its reply is kept no more.
        """
        digest = digest_of(json.dumps([request.method, request.params], sort_keys=True))
        entry = self._entries.get(key)
        if entry is None:
            task = asyncio.create_task(run())
            entry = self._entries[key] = _Entry(digest, request.id, task)
            task.add_done_callback(functools.partial(self._ran, key, entry))
            while len(self._entries) > KEPT_KEYS and next(iter(self._entries.values())).task is None:
                self._entries.popitem(last=False)
        elif not hmac.compare_digest(entry.digest, digest):
            raise RpcError(JsonRpcErrorCode.INVALID_PARAMS, f"The {KEY_HEADER} was used before, with other params")
        if entry.task is None:
            text = "The request was run before; its reply is not kept any more"
            raise RpcError(JsonRpcErrorCode.SERVER_ERROR, text, {"outcome": "unknown"})
        reply = await asyncio.shield(entry.task)
        return reply if entry.request_id == request.id else _renamed(reply, request.id)

    def _ran(self, key: str, entry: _Entry, task: asyncio.Task[bytes]) -> None:
        if task.cancelled() or task.exception() is not None:
            return
        entry.size = len(task.result())
        self._kept[key] = entry
        self._size += entry.size
        while self._size > self._max_bytes or len(self._kept) > KEPT_REPLIES:
            _, oldest = self._kept.popitem(last=False)
            oldest.task = None
            self._size -= oldest.size


class HeldSession:
    """One such session.

    Attributes:
        session: the environment.
        replies: to its requests that carried a key.
        used: somebody has asked for it by its id, and its token if it has one.
    """

    def __init__(self, session: Session, with_token: bool, max_reply_bytes: int) -> None:
        self.session = session
        self.used = False
        self.replies = ReplyCache(max_reply_bytes)
        self._guarded = with_token
        self._tokens: list[bytes] = []
        self._attached: Attached | None = None
        self._closing = False

    def new_token(self) -> str | None:
        """A token for an answer that tells of the session; None if it has none. Which answer arrives is shown by the
        first use: until then each of them is good, afterwards only that one."""
        if not self._guarded:
            return None
        token = secrets.token_urlsafe(32)
        self._tokens.append(digest_of(token))
        return token

    def use(self, token: str | None) -> bool:
        """Whether a request with this token may use it."""
        if self._guarded:
            given = digest_of(token or "")
            fitting = [one for one in self._tokens if hmac.compare_digest(one, given)]
            if not fitting:
                return False
            self._tokens = fitting
        self.used = True
        return True

    def attach(self, socket: Attached) -> None:
        """Attach a socket. Of the holders of a token the newest wins; an id alone wins nothing.

        Raises:
            CallError: another one is attached.
        """
        former = self._attached
        if former is not None and not self._guarded:
            text = f"Session {self.session.id} already has an attached WebSocket"
            raise CallError(WSErrorCode.SESSION_ERROR, text)
        self._attached = socket
        self.session.pinned = True
        self.session.touch()
        if former is not None:
            former.replace()

    def detach(self, socket: Attached) -> None:
        """The socket is gone; the session stays, unless it was to be closed."""
        if self._attached is not socket:
            return
        self._attached = None
        self.session.pinned = False
        self.session.touch()
        if self._closing:
            self.session.end(EndReason.CLOSED)

    def close(self) -> dict[str, Any]:
        """End the session, or let it end when its socket has left. Returns what to tell."""
        told = {"session_id": self.session.id}
        if self._attached is not None:
            self._closing = True
            return {**told, "closed": False, "closing": True}
        self.session.end(EndReason.CLOSED)
        return {**told, "closed": True}


class HeldSessions:
    """The sessions of one server that belong to no socket.

    Args:
        manager: owns them.
        idle_timeout_s: seconds without a request or an attached socket after which one ends; None for never.
        max_reply_bytes: most bytes of replies that are kept for one of them.
    """

    def __init__(self, manager: SessionManager, idle_timeout_s: float | None, max_reply_bytes: int) -> None:
        self._manager = manager
        self._idle_timeout_s = idle_timeout_s
        self._max_reply_bytes = max_reply_bytes
        self._held: dict[str, HeldSession] = {}
        self._opened: dict[bytes, asyncio.Task[HeldSession]] = {}

    async def open_once(self, key: str, with_token: bool) -> tuple[HeldSession, str | None]:
        """As `open`; a request that comes again with its key gets the same session, as long as that lives.

        Raises:
            OpenEnvError: as `open`; another try with the key may go better.
            RpcError: the session is in use already, so its client has had the answer, and the token is told no more.
        """
        name = digest_of(key)
        opening = self._opened.get(name)
        if opening is None:
            opening = self._opened[name] = asyncio.create_task(self._open(with_token))
            opening.add_done_callback(functools.partial(self._forget, name))
        held = await asyncio.shield(opening)
        if held.used:
            text = f"The {KEY_HEADER} was used before, and the session that it opened is in use"
            raise RpcError(JsonRpcErrorCode.INVALID_PARAMS, text)
        return held, held.new_token()

    def _forget(self, name: bytes, opening: asyncio.Task[HeldSession]) -> None:
        """Forget what came to nothing at once, and a session with its end."""
        if opening.cancelled() or opening.exception() is not None:
            del self._opened[name]
        else:
            opening.result().session.ending.add_done_callback(lambda _: self._opened.pop(name, None))

    async def open(self, with_token: bool) -> tuple[HeldSession, str | None]:
        """Open a session, and wait for its environment.

        Returns:
            The session, and its token if it has one.

        Raises:
            OpenEnvError: there is no place for it, or no environment.
        """
        held = await self._open(with_token)
        return held, held.new_token()

    async def _open(self, with_token: bool) -> HeldSession:
        session = await self._manager.open(idle_timeout_s=self._idle_timeout_s)
        await session.ready()
        held = self._held[session.id] = HeldSession(session, with_token, self._max_reply_bytes)
        session.ending.add_done_callback(lambda _: self._held.pop(session.id, None))
        return held

    def find(self, session_id: str, token: str | None) -> HeldSession:
        """A session that may be used.

        Raises:
            SessionNotFoundError: there is none of this id, it is over, or the token is not its own.
        """
        held = self._held.get(session_id)
        if held is None or held.session.machine.over or not held.use(token):
            raise SessionNotFoundError(session_id[:200])
        return held


def wanted_session(headers: Mapping[str, str], query: str | None) -> tuple[str, str | None] | None:
    """Id and token of the session that a handshake wants to attach to; None if it wants a new one."""
    named = headers.get(SESSION_HEADER)
    if named:
        return named, headers.get(TOKEN_HEADER)
    return (query, None) if query else None


def _renamed(reply: bytes, request_id: Any) -> bytes:
    return encode({**json.loads(reply), "id": request_id})
