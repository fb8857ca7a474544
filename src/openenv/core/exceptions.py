"""Every error this package raises on purpose, in one tree.

::

    OpenEnvError
    ├── ConnectError                 (ConnectionError)   no session could be opened
    │   └── CapacityError            (RuntimeError)      the server is full
    ├── SessionLostError             (ConnectionError)   the session is gone until reset()
    ├── SessionClosedError           (RuntimeError)      this client was closed
    ├── NotResetError                (RuntimeError)      require_reset=True, and no reset yet
    ├── CallTimeoutError             (TimeoutError)      no answer in time
    ├── OutcomeUnknownError          (RuntimeError)      what became of an earlier call cannot be known
    ├── LateResultError              (RuntimeError)      an earlier call was applied; here is its result
    ├── MessageTooLargeError         (RuntimeError)      a frame is over a limit
    ├── ReplyValidationError         (ValueError)        a reply does not fit the client's models
    ├── ForkedClientError            (RuntimeError)      used in a forked child
    ├── ForeignLoopError             (RuntimeError)      used from another event loop
    ├── ServerError                  (RuntimeError)      the server answered with an error frame
    │   ├── EnvExecutionError                            the environment raised
    │   ├── ActionValidationError    (TypeError)         an action does not fit, or does not encode
    │   ├── InvalidActionError                           the environment does not allow this move
    │   ├── ToolCallError                                a tool failed
    │   └── EnvironmentFactoryError                      the environment could not be built
    ├── ProviderError                (RuntimeError)      a provider could not start its server
    │   └── ProviderTimeoutError     (TimeoutError)      the server did not become ready in time
    ├── LLMError                     (RuntimeError)      a language model's service failed
    ├── PolicyLinkError                                  the policy link:
    │   ├── ConnectionReplaced       (ConnectionError)   another connection: every action chunk is void
    │   ├── ServerStopped            (ConnectionError)   the training server has finished its run
    │   ├── PolicyUsageError         (ValueError)        the caller broke the protocol; nothing was sent
    │   ├── PolicyProtocolError      (ValueError)        the peer broke the protocol
    │   │   └── ReuseError                               an observation to be reused is not held here
    │   └── PolicyActionError        (ValueError)        a policy's actions are not what its server needs
    ├── ConcurrencyConfigurationError                    more sessions than the class allows
    ├── SessionCapacityError                             server side: no free slot
    ├── SessionNotFoundError                             server side: no such session
    └── SessionCreationError                             server side: a session could not be made

In brackets: the builtin that callers of other OpenEnv clients catch in the same situation.

``outcome`` says what became of the call that failed: ``not_applied`` (the environment never saw it),
``applied`` (it ran), or ``unknown`` (its request may have arrived; nobody can tell from here).
Every error pickles, and none has an empty text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Self

__all__ = [
    "ActionValidationError",
    "CallTimeoutError",
    "CapacityError",
    "ConcurrencyConfigurationError",
    "ConnectError",
    "ConnectionReplaced",
    "EnvExecutionError",
    "EnvironmentFactoryError",
    "ForeignLoopError",
    "ForkedClientError",
    "InvalidActionError",
    "LLMError",
    "LateResultError",
    "MessageTooLargeError",
    "NotResetError",
    "OpenEnvError",
    "Outcome",
    "OutcomeUnknownError",
    "PolicyActionError",
    "PolicyLinkError",
    "PolicyProtocolError",
    "PolicyUsageError",
    "ProviderError",
    "ProviderTimeoutError",
    "ReplyValidationError",
    "ReuseError",
    "ServerError",
    "ServerStopped",
    "SessionCapacityError",
    "SessionClosedError",
    "SessionCreationError",
    "SessionLostError",
    "SessionNotFoundError",
    "ToolCallError",
]


class Outcome(StrEnum):
    """What became of a call that failed."""

    NOT_APPLIED = "not_applied"
    APPLIED = "applied"
    UNKNOWN = "unknown"

    @classmethod
    def from_applied(cls, applied: bool | None) -> Outcome:
        """Read a server's ``applied`` flag: true, false, or null for unknown."""
        if applied is None:
            return cls.UNKNOWN
        return cls.APPLIED if applied else cls.NOT_APPLIED

    @property
    def sentence(self) -> str:
        """The outcome in words, for the end of an error text."""
        return _SENTENCES[self]


_SENTENCES = {
    Outcome.NOT_APPLIED: "The call was not applied.",
    Outcome.APPLIED: "The call was applied.",
    Outcome.UNKNOWN: "Whether the call was applied is unknown.",
}


def _restore(cls: type[OpenEnvError], message: str, fields: dict[str, Any]) -> OpenEnvError:
    error = cls.__new__(cls, message)
    error.args = (message,)
    error.__dict__.update(fields)
    return error


class OpenEnvError(Exception):
    """Base of all errors of this package.

    Attributes:
        outcome: what became of the call that failed, where a call failed.
    """

    outcome: Outcome = Outcome.NOT_APPLIED

    def __init__(self, message: str = "") -> None:
        super().__init__(message)

    def __str__(self) -> str:
        return str(self.args[0]) if self.args and self.args[0] else type(self).__name__

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args[0] if self.args else "", dict(self.__dict__))


# ---------------------------------------------------------------- opening


class ConnectError(OpenEnvError, ConnectionError):
    """No session could be opened: wrong address, nobody listening, or the handshake was refused.

    Attributes:
        url: the address that was dialled, without credentials.
        status: HTTP status of a refused handshake, if there was one.
        attempts: number of dials that were made.
    """

    def __init__(
        self, message: str | None = None, *, url: str = "", status: int | None = None, attempts: int = 1
    ) -> None:
        self.url = url
        self.status = status
        self.attempts = attempts
        super().__init__(message or f"Failed to connect to {url}.")


class CapacityError(ConnectError, RuntimeError):
    """Every session slot of the server is taken.

    Attributes:
        active: sessions that are open on the server.
        max: sessions that the server allows.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        active: int | None = None,
        max: int | None = None,
        url: str = "",
        attempts: int = 1,
    ) -> None:
        self.active = active
        self.max = max
        taken = f"{active} of {max} sessions are open" if max is not None else "all sessions are taken"
        super().__init__(
            message
            or f"The server at {url or 'this address'} is full: {taken}. Close a client, or let the author of the "
            "server allow more: set SUPPORTS_CONCURRENT_SESSIONS = True on the environment class and pass "
            "max_concurrent_envs=N to create_app().",
            url=url,
            attempts=attempts,
        )


# ---------------------------------------------------------------- the session


class SessionLostError(OpenEnvError, ConnectionError):
    """The session that ``reset()`` opened is gone, and its episode with it.

    Raised by every step, state and tool call until ``reset()`` has opened a new session.

    Attributes:
        reason: why, in one word. Seen by the client: ``connection``, ``timeout``, ``cancelled``, ``interrupted``,
            ``protocol``, ``too_large``, ``loop_closed``, ``reset_failed`` (a reset began in this session, none has
            completed), ``unreachable`` (not resumed in time), ``replaced`` (the call was made in an earlier session),
            ``gone`` (a session held over HTTP that the server does not know any more).
            ``gone`` (the server does not know the session any more).
            Told by the server: ``server``, ``server_restart``, ``draining``, ``idle``, ``capacity``, ``replaced``
            (somebody else resumed it), and, when it cannot be resumed, the words of
            `openenv.core.wire.v1.LostReason`.
        close_code: WebSocket close code, if the peer sent one.
        close_reason: text that came with the close code.
        outcome: what became of the call that raised this error.
        episode_id: the lost episode, if it was named.
        steps: steps that were answered in the lost episode.
        session: number of the lost session, counted by this client from 1.
        detail: what was seen, in words.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        reason: str = "connection",
        close_code: int | None = None,
        close_reason: str = "",
        outcome: Outcome | str = Outcome.NOT_APPLIED,
        episode_id: str | None = None,
        steps: int = 0,
        session: int = 0,
        detail: str = "",
    ) -> None:
        self.reason = reason
        self.close_code = close_code
        self.close_reason = close_reason
        self.outcome = Outcome(outcome)
        self.episode_id = episode_id
        self.steps = steps
        self.session = session
        self.detail = detail
        super().__init__(message or self._text())

    def _text(self) -> str:
        if self.reason == "reset_failed":
            return (
                f"No reset() has completed in this session, so there is no episode to act in [reset_failed]. "
                f"{self.outcome.sentence} Call reset() first; step, state and tool calls wait for it."
            )
        episode = f" (episode {self.episode_id})" if self.episode_id else ""
        seen = f": {self.detail}" if self.detail else ""
        return (
            f"Session {self.session} was lost after {self.steps} step(s){episode} [{self.reason}]{seen}. "
            f"{self.outcome.sentence} The environment of this episode no longer exists for this client; "
            "call reset() to start a new episode."
        )


class SessionClosedError(OpenEnvError, RuntimeError):
    """This client was closed; ``connect()`` or ``reset()`` opens a new session."""

    def __init__(self, message: str | None = None, *, outcome: Outcome | str = Outcome.NOT_APPLIED) -> None:
        self.outcome = Outcome(outcome)
        super().__init__(
            message or f"This client is closed. {self.outcome.sentence} Call reset() to open a new session."
        )


class NotResetError(OpenEnvError, RuntimeError):
    """``require_reset=True``, and no reset has completed in this session."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or "This client was made with require_reset=True: call reset() before this call.")


class CallTimeoutError(OpenEnvError, TimeoutError):
    """A call had no answer within its time.

    Attributes:
        operation: ``connect``, ``reset``, ``step``, ``state`` ...
        timeout_s: the time that was allowed, in seconds.
        setting: name of the argument that sets this time.
        outcome: what became of the call.
        detail: what it waited for, in words, if that is known.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        operation: str = "call",
        timeout_s: float | None = None,
        setting: str = "timeout_s",
        outcome: Outcome | str = Outcome.UNKNOWN,
        detail: str = "",
    ) -> None:
        self.operation = operation
        self.timeout_s = timeout_s
        self.setting = setting
        self.outcome = Outcome(outcome)
        self.detail = detail
        waited = f"within {timeout_s:g} s" if timeout_s is not None else "in time"
        super().__init__(
            message
            or f"{operation}() was not answered {waited} ({setting}){': ' + detail if detail else ''}. "
            f"{self.outcome.sentence} Allow more with {setting}=, or None for no limit."
        )


class OutcomeUnknownError(OpenEnvError, RuntimeError):
    """A call that was given up has ended without a result; whether or how far it was applied cannot be known.

    Raised once, by the next call, which was not sent. The session goes on: ``state()`` shows where it stands.

    Attributes:
        operation: the call that was given up.
        outcome: ``unknown``, or ``applied`` if it took effect and its result is lost.
    """

    def __init__(
        self, message: str | None = None, *, operation: str = "call", outcome: Outcome | str = Outcome.UNKNOWN
    ) -> None:
        self.operation = operation
        self.outcome = Outcome(outcome)
        super().__init__(
            message
            or f"The {operation}() that was given up ended without a result. {self.outcome.sentence} The call that "
            "raises this was not sent. Look at state() before you go on, or reset()."
        )


class LateResultError(OpenEnvError, RuntimeError):
    """A call that was given up was applied after all, and its result has come.

    Raised once, by the next step, state or tool call, which was not sent. ``settle()`` returns the result instead.

    Attributes:
        operation: the call that was given up.
        result: its result, as the call would have returned it.
        reply: the frame that carried it.
        outcome: ``applied``, of the call that was given up.
    """

    def __init__(
        self, message: str | None = None, *, operation: str = "step", result: Any = None, reply: Any = None
    ) -> None:
        self.operation = operation
        self.result = result
        self.reply = reply
        self.outcome = Outcome.APPLIED
        super().__init__(
            message
            or f"The {operation}() that was given up was applied, and its result is in .result. The call that raises "
            "this was not sent. Take the result and go on; settle() after a timeout returns it without this error."
        )


class MessageTooLargeError(OpenEnvError, RuntimeError):
    """A frame is larger than one end accepts.

    Attributes:
        size: size of the message in bytes, if known.
        limit: the limit in bytes, if known.
        direction: ``sent`` or ``received``.
        outcome: ``not_applied`` for a request that was refused, ``applied`` for a reply that was.
        session_lost: whether the session ended over it; otherwise it goes on.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        size: int | None = None,
        limit: int | None = None,
        direction: str = "sent",
        outcome: Outcome | str = Outcome.NOT_APPLIED,
        session_lost: bool = False,
    ) -> None:
        self.size = size
        self.limit = limit
        self.direction = direction
        self.outcome = Outcome(outcome)
        self.session_lost = session_lost
        what = f"A message of {size} bytes" if size is not None else "A message"
        bound = f"the limit of {limit} bytes" if limit is not None else "the limit"
        whose = "the server's" if direction == "sent" else "this client's"
        knob = (
            "Send less in one action, or raise the server's ws_max_size."
            if direction == "sent"
            else "Raise max_message_size_mb on the client."
        )
        end = " The server ended the session over it; call reset()." if session_lost else " The session goes on."
        super().__init__(
            message or f"{what} is over {bound} ({whose}, {direction}). {self.outcome.sentence}{end} {knob}"
        )


class ReplyValidationError(OpenEnvError, ValueError):
    """A reply does not fit the client's observation or state model; the session goes on.

    Attributes:
        model: name of the model.
        errors: what does not fit, each with ``loc``, ``msg`` and ``type``.
        payload: the reply's data as it arrived, so that nothing is lost.
        outcome: ``applied``: the server has run the call.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        model: str = "",
        errors: Sequence[Mapping[str, Any]] = (),
        payload: Mapping[str, Any] | None = None,
    ) -> None:
        self.model = model
        self.errors = [dict(error) for error in errors]
        self.payload = dict(payload or {})
        self.outcome = Outcome.APPLIED
        places = ", ".join(".".join(str(part) for part in error.get("loc", ())) or "(root)" for error in self.errors)
        super().__init__(
            message
            or f"The server's reply does not fit {model or 'the model'}{': ' + places if places else ''}. "
            f"{self.outcome.sentence} The session goes on; the data is in .payload. Is the client's env package "
            "of the same version as the server's?"
        )


class ForkedClientError(OpenEnvError, RuntimeError):
    """A client was used in a forked child; the session belongs to the parent process."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(
            message
            or "This client was made in another process and its session belongs to that process. "
            "Nothing was sent. Make a new client after fork()."
        )


class ForeignLoopError(OpenEnvError, RuntimeError):
    """A client whose session lives on one event loop was used from another one."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(
            message
            or "The session of this client lives on another event loop that is still running. Nothing was "
            'sent. Use the client from that loop, or make it with io="thread" to share it between loops and threads.'
        )


# ---------------------------------------------------------------- error frames


class ServerError(OpenEnvError, RuntimeError):
    """The server answered a call with an error frame; the session goes on.

    Attributes:
        code: the server's error code, as ``VALIDATION_ERROR``.
        message: the server's text.
        outcome: what became of the call.
        data: the other members of the error frame.
    """

    def __init__(
        self,
        message: str = "",
        *,
        code: str = "",
        outcome: Outcome | str = Outcome.UNKNOWN,
        data: Mapping[str, Any] | None = None,
        text: str | None = None,
    ) -> None:
        self.message = message
        self.code = code
        self.outcome = Outcome(outcome)
        self.data = dict(data or {})
        super().__init__(text or f"Server error: {message or 'no message'} (code: {code or 'none'})")


class EnvExecutionError(ServerError):
    """The environment raised an exception while it ran a call.

    Attributes:
        error_type: name of the exception's type on the server, if it was told.
        message: its text.
        applied: whether the action took effect: true, false, or None for unknown.
    """

    def __init__(
        self,
        message: str = "",
        *,
        error_type: str | None = None,
        applied: bool | None = None,
        code: str = "EXECUTION_ERROR",
        data: Mapping[str, Any] | None = None,
    ) -> None:
        self.error_type = error_type
        self.applied = applied
        outcome = Outcome.from_applied(applied)
        kind = f"{error_type}: " if error_type else ""
        super().__init__(
            message,
            code=code,
            outcome=outcome,
            data=data,
            text=f"Server error: the environment raised {kind}{message or 'no message'} (code: {code}). "
            f"{outcome.sentence} The session goes on.",
        )


class ActionValidationError(ServerError, TypeError):
    """An action or an argument does not fit the environment's schema, or cannot be encoded. It was not applied.

    Attributes:
        field: path of the value that was refused, as ``board[2].cell``; empty if unknown.
        errors: the server's list of errors, each with ``loc``, ``msg`` and ``type``.
    """

    def __init__(
        self,
        message: str = "",
        *,
        field: str = "",
        errors: Sequence[Mapping[str, Any]] = (),
        code: str = "VALIDATION_ERROR",
        data: Mapping[str, Any] | None = None,
    ) -> None:
        self.field = field
        self.errors = [dict(error) for error in errors]
        super().__init__(
            message,
            code=code,
            outcome=Outcome.NOT_APPLIED,
            data=data,
            text=f"{message or 'The action was refused'} (code: {code}). "
            f"{Outcome.NOT_APPLIED.sentence} The session goes on.",
        )


class InvalidActionError(ServerError):
    """The environment does not allow this move; nothing changed and the episode goes on.

    An environment raises it as ``InvalidActionError("why")`` and its client raises the same.
    """

    def __init__(self, message: str = "", *, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(
            message,
            code="VALIDATION_ERROR",
            outcome=Outcome.NOT_APPLIED,
            data=data,
            text=message or "The environment does not allow this action.",
        )


class ToolCallError(ServerError):
    """A tool failed, or there is no such tool, or its arguments do not fit; the session goes on.

    Attributes:
        tool: the tool that was called.
        message: what went wrong, as the tool or the server tells it.
        content: what the tool gave its caller to read, a list of MCP content blocks; empty if it gave nothing.
        structured_content: the same as an object, if the tool gave one.
        error_type: ``execution_error``, ``invalid_args``, ``tool_not_found``, ``timeout`` ..., if the server told it.
        code: the server's code.
        outcome: ``applied`` for a tool that ran and failed, ``not_applied`` for a call that was refused before it ran;
            ``unknown`` where the server does not tell these apart.
    """

    def __init__(
        self,
        message: str = "",
        *,
        tool: str = "",
        content: Sequence[Any] = (),
        structured_content: Mapping[str, Any] | None = None,
        error_type: str | None = None,
        code: str = "TOOL_ERROR",
        outcome: Outcome | str = Outcome.UNKNOWN,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        self.tool = tool
        self.content = list(content)
        self.structured_content = None if structured_content is None else dict(structured_content)
        self.error_type = error_type
        kind = f" ({error_type})" if error_type else ""
        super().__init__(
            message,
            code=code,
            outcome=outcome,
            data=data,
            text=f"Tool '{tool}' failed{kind}: {message or 'no message'}. {Outcome(outcome).sentence} The session "
            "goes on.",
        )


class EnvironmentFactoryError(ServerError):
    """The server could not build an environment.

    Attributes:
        factory_name: name of the factory that failed.
    """

    def __init__(self, factory_name: str = "", message: str | None = None) -> None:
        self.factory_name = factory_name
        text = message or f"Environment factory '{factory_name}' failed to create instance."
        super().__init__(text, code="FACTORY_ERROR", outcome=Outcome.NOT_APPLIED, text=text)


# ---------------------------------------------------------------- beside the session


class ProviderError(OpenEnvError, RuntimeError):
    """A provider could not start its server. Nothing of it is left running.

    Attributes:
        logs: what the server wrote before it failed; the end of it.
    """

    def __init__(self, message: str | None = None, *, logs: str = "") -> None:
        self.logs = logs
        text = message or "The provider could not start its server."
        super().__init__(f"{text}\nThe server wrote:\n{logs}" if logs else text)


class ProviderTimeoutError(ProviderError, TimeoutError):
    """A provider's server did not become ready in time."""

    def __new__(cls, *args: Any, **_: Any) -> Self:
        return TimeoutError.__new__(cls, *args)  # by order of inheritance it would be RuntimeError's, which refuses

    def __init__(self, message: str | None = None, *, logs: str = "") -> None:
        super().__init__(message or "The server did not become ready in time.", logs=logs)


class LLMError(OpenEnvError, RuntimeError):
    """A language model's service refused a request, could not be reached, or gave an answer that makes no sense.

    Attributes:
        status: its HTTP status; None if there was no answer.
        url: the address that was asked.
    """

    def __init__(self, message: str | None = None, *, status: int | None = None, url: str = "") -> None:
        self.status = status
        self.url = url
        super().__init__(message or "The language model's service failed.")


# ---------------------------------------------------------------- the policy link


class PolicyLinkError(OpenEnvError):
    """Base of the errors of the policy link, between a rollout client and a training server."""


class ConnectionReplaced(PolicyLinkError, ConnectionError):
    """The connection that brought the current action chunks is gone, so every one of them is void.

    Told once for each lost connection; the call that raises it sent nothing, or could not know whether it arrived, and
    is never repeated. Drop all chunks and their rewards, and call ``infer()`` for every environment in ``env_ids``. The
    environments themselves go on; one whose episode has ended is still to be reset.

    Attributes:
        env_ids: every environment of this client; the next ``infer()`` has to name all of them.
        lost_connection: number of the lost connection, counted by this client from 1; 0 if there was none.
        connection: number of the connection that is open now; None while there is none.
        operation: the call that raised this, ``infer`` or ``feedback``.
        reason: why, in one word: ``resync`` (the server saw a protocol error), ``stop`` (its run ended, and this client
            waits for the next one), ``feedback_timeout``, ``timeout``, ``cancelled``, ``closed`` (any other close
            frame), ``connection``.
        close_code: WebSocket close code, if the peer sent one.
        close_reason: text that came with the close code.
        outcome: ``not_applied`` if nothing was sent, ``unknown`` if a feedback may have arrived.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        env_ids: Sequence[int] = (),
        lost_connection: int = 0,
        connection: int | None = None,
        operation: str = "infer",
        reason: str = "connection",
        close_code: int | None = None,
        close_reason: str = "",
        outcome: Outcome | str = Outcome.NOT_APPLIED,
    ) -> None:
        self.env_ids = tuple(env_ids)
        self.lost_connection = lost_connection
        self.connection = connection
        self.operation = operation
        self.reason = reason
        self.close_code = close_code
        self.close_reason = close_reason
        self.outcome = Outcome(outcome)
        super().__init__(message or self._text())

    def _text(self) -> str:
        code = f" with {self.close_code} {self.close_reason!r}" if self.close_code is not None else ""
        now = f", and connection {self.connection} has taken its place" if self.connection is not None else ""
        envs = ", ".join(str(env) for env in self.env_ids[:32]) or "every environment"
        more = f" and {len(self.env_ids) - 32} more" if len(self.env_ids) > 32 else ""
        return (
            f"Connection {self.lost_connection} to the policy server ended{code} [{self.reason}]{now}. "
            f"{self.outcome.sentence} Every action chunk that it brought is void: drop them and their rewards, reset "
            f"what has ended, and call infer() for all of: {envs}{more}."
        )


class ServerStopped(PolicyLinkError, ConnectionError):
    """The training server has finished its run; there is nothing more to do.

    Attributes:
        operation: the call that learned of it.
        close_code: WebSocket close code.
        close_reason: text that came with the close code.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        operation: str = "infer",
        close_code: int | None = None,
        close_reason: str = "",
    ) -> None:
        self.operation = operation
        self.close_code = close_code
        self.close_reason = close_reason
        super().__init__(
            message
            or f"The policy server has finished its run ({operation}() learned of it). End this rollout with success, "
            "or make the agent with reconnect_on_server_stop=True to wait for the next run."
        )


class PolicyUsageError(PolicyLinkError, ValueError):
    """A call on the policy link does not fit the protocol. Nothing was sent and nothing has changed.

    Attributes:
        field: path of the value that does not fit, as ``data.states.t``; empty if it is the call itself.
        detail: what is wrong.
    """

    def __init__(self, detail: str = "the call does not fit the protocol", *, field: str = "") -> None:
        self.field = field
        self.detail = detail
        place = f"{field}: " if field else ""
        super().__init__(f"{place}{detail}. Nothing was sent; correct the call and make it again.")


class PolicyProtocolError(PolicyLinkError, ValueError):
    """The peer sent what the policy link does not allow. The connection is closed over it.

    Attributes:
        field: path of the value that does not fit, as ``data.states.t``; empty if it is the message itself.
        detail: what is wrong.
    """

    def __init__(self, detail: str = "the message does not fit the protocol", *, field: str = "") -> None:
        self.field = field
        self.detail = detail
        place = f"{field}: " if field else ""
        super().__init__(
            f"Policy link: {place}{detail}. The connection is closed; grade the peer with "
            "`openenv conformance` to see which clause it breaks."
        )


class ReuseError(PolicyProtocolError):
    """An infer message asks for an observation to be used again that this connection does not hold."""


class PolicyActionError(PolicyLinkError, ValueError):
    """A policy returned actions that are not what was asked for, or not what its server has declared; none was sent."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or "A policy's act() must return numbers [n, H, ...]: a chunk for each env.")


# ---------------------------------------------------------------- the server's own


class ConcurrencyConfigurationError(OpenEnvError):
    """A server was configured for more sessions than its environment class allows."""

    def __init__(self, environment_name: str = "", max_concurrent_envs: int = 1, message: str | None = None) -> None:
        self.environment_name = environment_name
        self.max_concurrent_envs = max_concurrent_envs
        super().__init__(
            message
            or f"'{environment_name}' does not allow {max_concurrent_envs} sessions at once. Set "
            "SUPPORTS_CONCURRENT_SESSIONS = True on the class if its instances share no state, or use "
            "max_concurrent_envs=1."
        )


class SessionCapacityError(OpenEnvError):
    """No session slot is free on this server."""

    def __init__(self, active_sessions: int = 0, max_sessions: int = 1, message: str | None = None) -> None:
        self.active_sessions = active_sessions
        self.max_sessions = max_sessions
        super().__init__(
            message
            or f"Server at capacity: {active_sessions}/{max_sessions} sessions active. Cannot accept new connections."
        )


class SessionNotFoundError(OpenEnvError):
    """No session has this id: it never existed, or it has ended."""

    def __init__(self, session_id: str = "", message: str | None = None) -> None:
        self.session_id = session_id
        super().__init__(message or f"Unknown session_id: {session_id}")


class SessionCreationError(OpenEnvError):
    """A session could not be created."""

    def __init__(self, reason: str = "", message: str | None = None) -> None:
        self.reason = reason
        super().__init__(message or f"A session could not be created: {reason or 'no reason given'}")
