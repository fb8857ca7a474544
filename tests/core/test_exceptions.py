"""The exception tree: what each is caught as, that each pickles, and that none is silent."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest

from openenv.core import exceptions
from openenv.core.exceptions import (
    ActionValidationError,
    CallTimeoutError,
    CapacityError,
    ConnectError,
    ConnectionReplaced,
    EnvExecutionError,
    LLMError,
    MessageTooLargeError,
    OpenEnvError,
    Outcome,
    PolicyProtocolError,
    PolicyUsageError,
    ProviderError,
    ReplyValidationError,
    ReuseError,
    ServerStopped,
    SessionLostError,
)

CLASSES = [
    value
    for value in vars(exceptions).values()
    if inspect.isclass(value) and issubclass(value, OpenEnvError) and value.__module__ == exceptions.__name__
]

BUILTINS = {
    "ConnectError": ConnectionError,
    "CapacityError": (ConnectionError, RuntimeError),
    "SessionLostError": ConnectionError,
    "SessionClosedError": RuntimeError,
    "NotResetError": RuntimeError,
    "CallTimeoutError": TimeoutError,
    "MessageTooLargeError": RuntimeError,
    "ReplyValidationError": ValueError,
    "ForkedClientError": RuntimeError,
    "ForeignLoopError": RuntimeError,
    "ServerError": RuntimeError,
    "EnvExecutionError": RuntimeError,
    "ActionValidationError": (RuntimeError, TypeError),
    "InvalidActionError": RuntimeError,
    "EnvironmentFactoryError": RuntimeError,
    "ConnectionReplaced": ConnectionError,
    "ServerStopped": ConnectionError,
    "PolicyUsageError": ValueError,
    "PolicyProtocolError": ValueError,
    "ReuseError": ValueError,
    "ProviderError": RuntimeError,
    "ProviderTimeoutError": (RuntimeError, TimeoutError),
    "LLMError": RuntimeError,
}


def test_every_class_is_public_and_drawn_in_the_tree() -> None:
    assert {cls.__name__ for cls in CLASSES} | {"Outcome"} == set(exceptions.__all__)
    for cls in CLASSES:
        assert cls.__name__ in (exceptions.__doc__ or "")


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_it_has_a_text_and_an_outcome_without_any_argument(cls: type[OpenEnvError]) -> None:
    error = cls()
    assert str(error)
    assert isinstance(error.outcome, Outcome)
    for builtin in found if isinstance(found := BUILTINS.get(cls.__name__, Exception), tuple) else (found,):
        assert isinstance(error, builtin)


@pytest.mark.parametrize(
    "error",
    [
        *[cls() for cls in CLASSES],
        SessionLostError(reason="idle", close_code=4001, outcome="unknown", episode_id="e", steps=3, session=2),
        CapacityError(active=3, max=4, url="ws://h/ws", attempts=5),
        ConnectError(url="ws://h/ws", status=503, attempts=2),
        CallTimeoutError(operation="step", timeout_s=1.5, setting="step_timeout_s"),
        MessageTooLargeError(size=11, limit=10, direction="received", outcome="applied"),
        EnvExecutionError("boom", error_type="KeyError", applied=True, data={"k": [1]}),
        ActionValidationError("no", field="a.b", errors=[{"loc": ["a", "b"]}]),
        ProviderError("no", logs="Traceback"),
        LLMError("no", status=500, url="http://h"),
        ReplyValidationError(model="Board", errors=[{"loc": ("x",)}], payload={"y": 1}),
        ConnectionReplaced(env_ids=[0, 3], lost_connection=1, connection=2, reason="resync", close_code=1001),
        ServerStopped(operation="feedback", close_code=1001, close_reason="plugrl-server-stop"),
        ReuseError("no feedback here", field="reuse[1]"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_it_pickles_and_copies_whole(error: OpenEnvError) -> None:
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert vars(twin) == vars(error)
        assert twin.args == error.args


@pytest.mark.parametrize(
    ("error", "parts"),
    [
        (
            SessionLostError(reason="connection", episode_id="ep-7", steps=3, session=2, outcome="unknown"),
            ["Session 2", "3 step(s)", "ep-7", "connection", "unknown", "reset()"],
        ),
        (CapacityError(active=3, max=4), ["3 of 4", "SUPPORTS_CONCURRENT_SESSIONS = True", "max_concurrent_envs="]),
        (
            CallTimeoutError(operation="reset", timeout_s=2, setting="reset_timeout_s"),
            ["reset()", "2 s", "reset_timeout_s"],
        ),
        (MessageTooLargeError(size=11, limit=10), ["11 bytes", "10 bytes", "not applied", "ws_max_size"]),
        (MessageTooLargeError(direction="received", outcome="applied"), ["was applied", "max_message_size_mb"]),
        (MessageTooLargeError(session_lost=True), ["reset()"]),
        (
            ConnectionReplaced(env_ids=[0, 3], lost_connection=1, connection=2, reason="resync", close_code=1001),
            ["Connection 1", "connection 2", "resync", "1001", "not applied", "void", "infer() for all of: 0, 3"],
        ),
        (ConnectionReplaced(env_ids=range(40)), ["31 and 8 more"]),
        (ServerStopped(operation="feedback"), ["feedback()", "success", "reconnect_on_server_stop=True"]),
        (PolicyUsageError("too wide", field="data.states.t"), ["data.states.t: too wide", "Nothing was sent"]),
        (PolicyProtocolError("too wide", field="data.action"), ["data.action: too wide", "openenv conformance"]),
        (EnvExecutionError("boom", error_type="KeyError", applied=None), ["KeyError: boom", "unknown", "goes on"]),
    ],
)
def test_the_text_tells_what_happened_and_the_next_move(error: Any, parts: list[str]) -> None:
    for part in parts:
        assert part in str(error)


@pytest.mark.parametrize(
    ("applied", "outcome"), [(True, Outcome.APPLIED), (False, Outcome.NOT_APPLIED), (None, Outcome.UNKNOWN)]
)
def test_the_outcome_follows_the_applied_flag(applied: bool | None, outcome: Outcome) -> None:
    assert Outcome.from_applied(applied) is outcome
    assert outcome.sentence
