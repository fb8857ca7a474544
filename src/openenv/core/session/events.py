"""What goes into the client machine, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from openenv.core.exceptions import OpenEnvError, Outcome, SessionLostError
from openenv.core.wire.messages import CallKind, Reply

__all__ = [
    "Call",
    "CloseSocket",
    "Complete",
    "Dial",
    "DialFailure",
    "Drop",
    "Due",
    "Effect",
    "Event",
    "Fail",
    "GaveUp",
    "Log",
    "Loss",
    "Op",
    "Oversized",
    "Post",
    "PostFailure",
    "SayRelease",
    "Send",
    "SendCancel",
    "Tell",
]


class Op(StrEnum):
    """What a caller asks of a client."""

    CONNECT = "connect"
    RESET = "reset"
    STEP = "step"
    STATE = "state"
    TOOL = "call_tool"
    LIST_TOOLS = "list_tools"
    SETTLE = "settle"

    @property
    def kind(self) -> CallKind:
        """The request frame that carries it."""
        return CallKind.MCP if self in (Op.TOOL, Op.LIST_TOOLS) else CallKind(self.value)


class Event(StrEnum):
    """What can happen to a client."""

    CONNECT = "connect"
    RESET = "reset"
    CALL = "step, state or tool call"
    SETTLE = "settle"
    OPENED = "the session opened"
    DIAL_FAILED = "the dial failed"
    RECEIVED = "a frame arrived"
    OVERSIZED = "a frame over the limit arrived"
    DROPPED = "the connection dropped"
    OPENING_OVER = "the time for opening is over"
    GAVE_UP = "the caller gave up"
    CLOSE = "close"
    LOOP_CLOSED = "the event loop was closed"
    RESUMED = "the server resumed the session"
    RESUME_LOST = "the server has lost the session"
    CREATED = "the session was made over HTTP"
    REACHED = "the server took the socket"
    ATTACHED = "a socket was attached to the session"
    POSTED = "the answer to an HTTP request arrived"
    POST_FAILED = "an HTTP request failed"


@dataclass(slots=True, eq=False)
class Call:
    """One call of a user, from the moment it was made to its one outcome.

    Attributes:
        op: what was asked.
        made_in: number of the session it was made in; 0 when there was none yet.
        closes: how often the client had been closed when it was made.
        deadline: when its time is over, on the clock given to the machine; None for never.
        dial_deadline: when the time for opening a connection is over.
        timeout_s: the time that was allowed, in seconds, for the error text.
        setting: name of the argument that sets it.
        connect_timeout_s: how much of it was allowed for opening a connection.
        size: bytes of its request frame.
        episode_id: the episode a reset asked for, if it named one.
        seq: its number within the session, from 1, once it was sent.
        sends: how often its frame was handed to a socket.
        refused: a connection ended over it, or over its reply, as too large.
        numbered: its answer is its own beyond doubt, by its number or by the connection that it comes on.
        doubtful: an earlier sending of it may have been applied.
        resets: how many resets had begun when it was sent; what it is told belongs to that episode.
        handed: what it was told of an earlier call that was given up, instead of being sent.
    """

    op: Op
    made_in: int = 0
    closes: int = 0
    deadline: float | None = None
    dial_deadline: float | None = None
    timeout_s: float | None = None
    setting: str = "timeout_s"
    connect_timeout_s: float | None = None
    size: int = 0
    episode_id: str | None = None
    seq: int = 0
    sends: int = 0
    refused: bool = False
    numbered: bool = False
    doubtful: bool = False
    resets: int = 0
    handed: Due | None = None

    def opening_limit(self, *, returning: bool) -> tuple[float | None, str]:
        """Seconds for opening a connection, and the argument that sets them. A client on its way back from a loss
        (``returning``) has the whole time of its call: its old session may still hold its place."""
        mine = (self.timeout_s, self.setting)
        if returning or self.connect_timeout_s is None:
            return mine
        if self.timeout_s is not None and self.timeout_s < self.connect_timeout_s:
            return mine
        return self.connect_timeout_s, "connect_timeout_s"


@dataclass(frozen=True, slots=True)
class Drop:
    """How a connection ended.

    Attributes:
        code: close code, from the peer if it sent one.
        reason: text that came with it.
        detail: what was seen, in words.
        by_us: the close code was ours (a dead peer, an oversized frame).
        size: bytes of the frame that was too large for us, if that is known.
        limit: our limit that it was over.
    """

    code: int | None = None
    reason: str = ""
    detail: str = "the connection was closed"
    by_us: bool = False
    size: int | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class DialFailure:
    """Why a dial failed.

    Attributes:
        error: what to raise if it is not tried again.
        retryable: whether another try may go better (refused, not answering, 502 to 504).
        busy: the server is up, and the session is there; it only has to end what it does for an older socket.
    """

    error: OpenEnvError
    retryable: bool = True
    busy: bool = False


@dataclass(frozen=True, slots=True)
class PostFailure:
    """Why an HTTP request has no answer.

    Attributes:
        error: what to raise if it is not sent again.
        doubtful: the server may have got it, and run it.
        retryable: whether another try may go better.
    """

    error: OpenEnvError
    doubtful: bool
    retryable: bool = True


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The caller no longer waits for this call.

    Attributes:
        cause: ``timeout``, ``cancelled`` or ``interrupted``.
        call: the call.
        reply: its answer, if that had come already.
        error: its error, if that had come already.
    """

    cause: str
    call: Call
    reply: Reply | None = None
    error: OpenEnvError | None = None


@dataclass(frozen=True, slots=True)
class Due:
    """What a call that was given up has left to be told: its late reply, or why there is none."""

    op: Op
    reply: Reply | None = None
    error: OpenEnvError | None = None


@dataclass(frozen=True, slots=True)
class Oversized:
    """A frame that was read and thrown away because it is over the limit (bytes)."""

    size: int
    limit: int


@dataclass(frozen=True, slots=True)
class Loss:
    """A lost session, as remembered until a reset has completed."""

    reason: str
    session: int
    close_code: int | None = None
    close_reason: str = ""
    episode_id: str | None = None
    steps: int = 0
    detail: str = ""

    def error(self, outcome: Outcome = Outcome.NOT_APPLIED) -> SessionLostError:
        """The error for a call that met this loss."""
        return SessionLostError(
            reason=self.reason,
            close_code=self.close_code,
            close_reason=self.close_reason,
            outcome=outcome,
            episode_id=self.episode_id,
            steps=self.steps,
            session=self.session,
            detail=self.detail,
        )


# ------------------------------------------------------------------ effects


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a connection after ``delay`` seconds, then tell OPENED or DIAL_FAILED. ``resume``: to resume a session."""

    delay: float = 0.0
    resume: bool = False


@dataclass(frozen=True, slots=True)
class Send:
    """Write the frame of this call to the open socket."""

    call: Call


@dataclass(frozen=True, slots=True)
class Post:
    """Send this call over HTTP after ``delay`` seconds, with the same key each time; then tell POSTED, POST_FAILED or
    RESUME_LOST."""

    call: Call
    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class SendCancel:
    """Tell the server that the caller of request ``seq`` gave up."""

    seq: int


@dataclass(frozen=True, slots=True)
class SayRelease:
    """Try once, on a socket of its own, to tell the server that the given-up sessions are not wanted any more."""


@dataclass(frozen=True, slots=True)
class CloseSocket:
    """Get rid of the socket, or of the dial under way. ``goodbye``: say that the session is over first."""

    goodbye: bool = False


@dataclass(frozen=True, slots=True)
class Complete:
    """The call has its answer."""

    call: Call
    reply: Reply | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """The call ends with this error."""

    call: Call
    error: OpenEnvError


@dataclass(frozen=True, slots=True)
class Log:
    """One line for the log, a warning or for information."""

    text: str
    warning: bool = True


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell the user's hooks: of this loss, or (None) that the session was resumed."""

    loss: Loss | None


Effect = Dial | Send | Post | SendCancel | SayRelease | CloseSocket | Complete | Fail | Log | Tell
