"""Requests to environment calls, and what can go wrong to error data. Shared by the WebSocket and HTTP adapters.

Everything here that looks at a request or a reply runs on the session's thread: decoding, validation (which may be
the env author's code) and encoding cost the event loop nothing.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import BaseModel, ValidationError

from openenv.core.env_server.cancelling import CallCancelled
from openenv.core.env_server.runner import Crash, EnvRunner
from openenv.core.env_server.serialization import deserialize_action, serialize_observation, serialize_state
from openenv.core.env_server.types import Action
from openenv.core.exceptions import (
    ConcurrencyConfigurationError,
    EnvironmentFactoryError,
    InvalidActionError,
    OpenEnvError,
    SessionCapacityError,
)
from openenv.core.wire.json_codec import UnencodableValue, encode
from openenv.core.wire.messages import INVALID_ACTION, CallKind, WSErrorCode
from openenv.core.wire.v1 import V1ErrorCode

__all__ = [
    "Call",
    "CallError",
    "Work",
    "cancelled_call",
    "clip",
    "env_raised",
    "refusal",
    "run_call",
    "validation_error",
]

logger = logging.getLogger("openenv.server")

MAX_TEXT = 2000
"""Longest error text sent to a client, in characters."""
MAX_ERRORS = 20
"""Most entries of a pydantic error list sent to a client."""
MAX_INPUT = 200
"""Largest refused value that is sent back, in characters of text and numbers."""


class CallError(Exception):
    """A request was refused or failed; the session goes on.

    Attributes:
        code: code of the error frame.
        message: text of the error frame.
        extra: its other members.
        trace: where the message is an environment's own words, what finds them in the log; else None.
    """

    def __init__(
        self, code: WSErrorCode | V1ErrorCode, message: str, *, trace: str | None = None, **extra: Any
    ) -> None:
        self.code = code
        self.message = clip(message)
        self.extra = extra
        self.trace = trace
        super().__init__(self.message)

    @property
    def data(self) -> dict[str, Any]:
        """The ``data`` of the error frame."""
        return {"message": self.message, "code": self.code.value, **self.extra}

    @property
    def hidden(self) -> CallError:
        """The same without the environment's own words and the type of what it raised."""
        if self.trace is None:
            return self
        text = f"The environment failed; the server's log has it as error {self.trace}"
        extra = {name: value for name, value in self.extra.items() if name != "error_type"}
        if "errors" in extra:
            extra["errors"] = [{"type": "value_error", "loc": [], "msg": text, "input": None}]
        return CallError(self.code, text, **extra)

    @property
    def applied(self) -> bool | None:
        """Whether the environment ran the call; None for unknown."""
        applied = self.extra.get("applied", False)
        return applied if isinstance(applied, bool) else None


@dataclass(slots=True)
class Call:
    """A decoded request.

    Attributes:
        kind: reset, step or state.
        data: arguments of a reset, or fields of an action.
        kwargs: further arguments of a step.
    """

    kind: CallKind
    data: Mapping[str, Any] = field(default_factory=dict)
    kwargs: Mapping[str, Any] = field(default_factory=dict)


class Work(Protocol):
    """What a session runs: one request of any adapter."""

    async def __call__(self, runner: EnvRunner) -> bytes:
        """Run it.

        Raises:
            CallError: it was refused or failed.
        """
        ...


async def run_call(
    runner: EnvRunner, call: Call, action_cls: type[Action], reply: Callable[[dict[str, Any]], bytes]
) -> bytes:
    """Run a call and encode its reply.

    Args:
        runner: runs the environment.
        call: what to run.
        action_cls: the environment's action class.
        reply: makes the reply from the observation or state data; runs on the session's thread.

    Raises:
        CallError: it was refused or failed; says whether it was applied.
    """

    def finish(value: Any) -> bytes:
        try:
            state = call.kind is CallKind.STATE
            return reply(serialize_state(value, keep=True) if state else serialize_observation(value, keep=True))
        except UnencodableValue as error:
            raise _after(error) from error
        except Exception as error:  # a serializer of the env author raised; the step has run all the same
            trace = _new_trace()
            logger.exception("the reply of %s.%s() cannot be encoded (error %s)", runner.name, call.kind, trace)
            raise _after(error, trace) from error

    def arguments() -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        if call.kind is CallKind.RESET:
            return (), call.data
        return (make_action(call.data, action_cls),), call.kwargs

    runner.running = call.kind.value
    try:
        if call.kind is CallKind.STATE:
            return await runner.read(lambda env: finish(_read_state(env)))
        answer = await runner.call(call.kind.value, arguments, finish)
        runner.steps += call.kind is CallKind.STEP
        return answer
    except CallCancelled as cancelled:
        raise cancelled_call(cancelled.applied) from cancelled
    except Crash as crash:
        if runner.cancelling.asked and not isinstance(crash.cause, InvalidActionError):
            raise cancelled_call(None) from crash.cause  # its way to end early
        raise env_raised(crash.cause, f"{runner.name}.{call.kind}") from crash.cause


def cancelled_call(applied: bool | None) -> CallError:
    """The error data for a call that ended early, because its caller gave up."""
    return CallError(V1ErrorCode.CANCELLED, "The call was cancelled", applied=applied)


def _read_state(env: Any) -> Any:
    try:
        return env.state
    except BaseException as raised:  # as for every call of an environment
        raise Crash(raised) from raised


def make_action(data: Mapping[str, Any], action_cls: type[Action]) -> Action:
    """Validate an action.

    Raises:
        CallError: it does not fit, whatever the class raised over it.
    """
    try:
        return deserialize_action(data, action_cls)
    except ValidationError as error:
        raise validation_error(error) from error
    except Exception as error:  # a validator raised what pydantic does not wrap: still the fault of this action
        trace = _new_trace()
        logger.info("a validator of %s raised (error %s)", action_cls.__name__, trace, exc_info=error)
        raise CallError(
            WSErrorCode.VALIDATION_ERROR,
            "Invalid message",
            trace=trace,
            errors=[
                {
                    "type": type(error).__name__,
                    "loc": [],
                    "msg": clip(str(error) or type(error).__name__),
                    "input": _small(dict(data)),
                }
            ],
        ) from error


def _after(error: Exception, trace: str | None = None) -> CallError:
    text = str(error) or type(error).__name__
    return CallError(WSErrorCode.EXECUTION_ERROR, text, trace=trace, error_type=type(error).__name__, applied=True)


def _new_trace() -> str:
    return uuid.uuid4().hex[:8]


def env_raised(raised: BaseException, where: str) -> CallError:
    """The error data for what an environment raised; logged, unless it only refused a move."""
    if isinstance(raised, InvalidActionError):
        text = clip(str(raised))
        entry = {"type": INVALID_ACTION, "loc": ["action"], "msg": text, "input": None}
        return CallError(WSErrorCode.VALIDATION_ERROR, text, errors=[entry])
    trace = _new_trace()
    logger.error("%s() raised %s (error %s)", where, type(raised).__name__, trace, exc_info=raised)
    text = str(raised) or type(raised).__name__
    return CallError(WSErrorCode.EXECUTION_ERROR, text, trace=trace, error_type=type(raised).__name__, applied=None)


def refusal(error: OpenEnvError) -> CallError:
    """The error data for a session that was not opened."""
    match error:
        case SessionCapacityError():
            return CallError(
                WSErrorCode.CAPACITY_REACHED,
                str(error),
                active_sessions=error.active_sessions,
                max_sessions=error.max_sessions,
            )
        case EnvironmentFactoryError():
            return CallError(WSErrorCode.FACTORY_ERROR, str(error), factory_name=error.factory_name)
        case ConcurrencyConfigurationError():
            return CallError(WSErrorCode.FACTORY_ERROR, str(error), factory_name=error.environment_name)
        case _:
            return CallError(WSErrorCode.SESSION_ERROR, str(error))


# ---------------------------------------------------------------- texts and values of bounded size


def validation_error(error: ValidationError, loc: tuple[str, ...] = ()) -> CallError:
    """The error data for input that does not fit a model.

    Args:
        error: what pydantic said.
        loc: put before each place.
    """
    entries = []
    for entry in error.errors(include_context=False)[:MAX_ERRORS]:
        shown: dict[str, Any] = {
            "type": clip(entry["type"], MAX_INPUT),
            "loc": [part if isinstance(part, int) else clip(str(part), MAX_INPUT) for part in (*loc, *entry["loc"])],
            "msg": clip(entry["msg"]),
            "input": _small(entry["input"]),
        }
        if "url" in entry:
            shown["url"] = entry["url"]
        entries.append(shown)
    return CallError(WSErrorCode.VALIDATION_ERROR, "Invalid message", errors=entries)


def clip(text: str, limit: int = MAX_TEXT) -> str:
    """Cut a text that is too long to be sent back, and what UTF-8 cannot carry out of it."""
    text = text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _small(value: Any) -> Any:
    """The value, if it is small and plain; else a word about it. Looks at no more of it than that takes."""
    if _weight(value, MAX_INPUT) <= MAX_INPUT:
        try:
            encode(value)
            return value
        except UnencodableValue:
            pass  # a lone surrogate, say: described below
    return f"<{_describe(value)}, not shown>"


def _weight(value: Any, budget: int) -> int:
    if value is None or isinstance(value, bool | float):
        return 1
    if isinstance(value, int):
        return 1 + value.bit_length() // 3
    if isinstance(value, str):
        return 1 + len(value)
    if isinstance(value, BaseModel) or not isinstance(value, list | tuple | dict):
        return budget + 1
    weight = 1
    for part in value.items() if isinstance(value, dict) else value:
        weight += _weight(part, budget - weight)
        if weight > budget:
            break
    return weight


def _describe(value: Any) -> str:
    try:
        return f"{type(value).__name__} of length {len(value)}"
    except Exception:  # __len__ of a foreign type may raise anything; its name is enough
        return type(value).__name__
