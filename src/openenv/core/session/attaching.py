"""The first words on a socket that is attached to a session made over HTTP. Pure.

A server greets nobody there, and takes the socket before it looks at the session. So the client asks which session it
has reached, and sends nothing else until the answer names its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from openenv.core.exceptions import ConnectError
from openenv.core.session.events import DialFailure
from openenv.core.wire.jsonrpc import STILL_INITIALIZING, UNKNOWN_SESSION, Response, RpcMethod, told_session
from openenv.core.wire.messages import CallKind, Reply, WSErrorCode, error_from_frame, request

__all__ = ["AttachOutcome", "Attached", "Attaching", "Gone"]

ALREADY_ATTACHED = "already has an attached WebSocket"


@dataclass(frozen=True, slots=True)
class Attached:
    """The socket is attached to the session."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The server has no such session; ``detail``: its words."""

    detail: str


AttachOutcome = Attached | Gone | DialFailure


@dataclass(frozen=True, slots=True)
class Attaching:
    """The client's half of it.

    Attributes:
        session_id: the session to reach.
        url: the address, for errors.
    """

    session_id: str
    url: str = ""

    def question(self) -> dict[str, Any]:
        """The one frame to send."""
        return request(CallKind.MCP, {"jsonrpc": "2.0", "id": 0, "method": RpcMethod.CREATE.value, "params": {}})

    def receive(self, reply: Reply) -> AttachOutcome:
        """Take the first frame that comes.

        Raises:
            MalformedFrame: the server does not keep to the protocol.
        """
        if reply.is_error:
            return self._refused(reply)
        if reply.kind == CallKind.MCP and told_session(Response.read(reply.data)) == self.session_id:
            return Attached()
        return self._failure("its server does not attach a socket to the session that the socket asks for", again=False)

    def closed(self, detail: str) -> AttachOutcome:
        """The socket ended before it said anything."""
        return self._failure(f"{detail} while the socket was being attached to its session")

    def broken(self, detail: str) -> AttachOutcome:
        """The server does not keep to the protocol."""
        return self._failure(detail, again=False)

    def _refused(self, reply: Reply) -> AttachOutcome:
        message = str(reply.data.get("message") or "")
        if reply.code != WSErrorCode.SESSION_ERROR:
            return DialFailure(error_from_frame(reply), retryable=False)
        if message.startswith(UNKNOWN_SESSION):
            return Gone(message)
        busy = ALREADY_ATTACHED in message or STILL_INITIALIZING in message
        return self._failure(f"the server refused it: {message.rstrip('.')}", again=busy, busy=busy)

    def _failure(self, why: str, *, again: bool = True, busy: bool = False) -> DialFailure:
        error = ConnectError(f"Failed to connect to {self.url}: {why}.", url=self.url)
        return DialFailure(error, retryable=again, busy=busy)
