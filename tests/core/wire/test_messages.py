"""Frames of the plain dialect, and the typed error behind every error frame."""

from __future__ import annotations

from typing import Any

import pytest

from openenv.core.exceptions import (
    ActionValidationError,
    EnvExecutionError,
    EnvironmentFactoryError,
    InvalidActionError,
    OpenEnvError,
    Outcome,
    ServerError,
)
from openenv.core.wire.json_codec import MalformedFrame
from openenv.core.wire.messages import (
    INVALID_ACTION,
    REPLY_TYPE,
    CallKind,
    Reply,
    WSErrorCode,
    close_message,
    error_from_frame,
    reply_from_frame,
    request,
)


@pytest.mark.parametrize("kind", list(CallKind))
def test_a_request_has_its_type_and_its_data(kind: CallKind) -> None:
    frame = request(kind, {"seed": 3})
    assert frame == ({"type": "state"} if kind is CallKind.STATE else {"type": kind.value, "data": {"seed": 3}})
    assert kind in REPLY_TYPE


def test_a_request_without_data_says_so_with_an_empty_object() -> None:
    assert request(CallKind.RESET) == {"type": "reset", "data": {}}
    assert close_message() == {"type": "close"}


def test_a_reply_is_read() -> None:
    reply = reply_from_frame({"type": "observation", "data": {"reward": 1}, "more": 2})
    assert reply == Reply("observation", {"reward": 1})
    assert not reply.is_error
    assert Reply("error", {"code": 5}).code == ""


@pytest.mark.parametrize(
    "frame",
    [{}, {"type": "state"}, {"type": 1, "data": {}}, {"data": {}}, {"type": "state", "data": []}, {"type": None}],
)
def test_a_frame_that_is_no_reply_is_malformed(frame: dict[str, Any]) -> None:
    with pytest.raises(MalformedFrame):
        reply_from_frame(frame)


def told(code: str, **data: Any) -> Any:
    return error_from_frame(Reply("error", {"message": "told", "code": code, **data}))


CASES: list[tuple[str, dict[str, Any], type[OpenEnvError], Outcome]] = [
    ("INVALID_JSON", {}, ServerError, Outcome.NOT_APPLIED),
    ("UNKNOWN_TYPE", {}, ServerError, Outcome.NOT_APPLIED),
    ("VALIDATION_ERROR", {"errors": [{"loc": ["row"], "msg": "bad"}]}, ActionValidationError, Outcome.NOT_APPLIED),
    ("VALIDATION_ERROR", {"errors": [{"type": INVALID_ACTION}]}, InvalidActionError, Outcome.NOT_APPLIED),
    ("VALIDATION_ERROR", {"errors": "nonsense"}, ActionValidationError, Outcome.NOT_APPLIED),
    ("EXECUTION_ERROR", {}, EnvExecutionError, Outcome.UNKNOWN),
    ("EXECUTION_ERROR", {"applied": True}, EnvExecutionError, Outcome.APPLIED),
    ("EXECUTION_ERROR", {"applied": False}, EnvExecutionError, Outcome.NOT_APPLIED),
    ("EXECUTION_ERROR", {"applied": "yes"}, EnvExecutionError, Outcome.UNKNOWN),
    ("FACTORY_ERROR", {"factory_name": "make"}, EnvironmentFactoryError, Outcome.NOT_APPLIED),
    ("CAPACITY_REACHED", {}, ServerError, Outcome.UNKNOWN),
    ("SESSION_ERROR", {"applied": False}, ServerError, Outcome.NOT_APPLIED),
    ("A_NEW_CODE", {"applied": True}, ServerError, Outcome.APPLIED),
    ("", {}, ServerError, Outcome.UNKNOWN),
]


def test_every_code_is_tried() -> None:
    assert set(WSErrorCode) <= {code for code, *_ in CASES}


@pytest.mark.parametrize(("code", "data", "kind", "outcome"), CASES)
def test_an_error_frame_has_its_type(
    code: str, data: dict[str, Any], kind: type[OpenEnvError], outcome: Outcome
) -> None:
    error = told(code, **data)
    assert type(error) is kind
    assert error.outcome is outcome
    assert "told" in str(error)
    assert error.code == code


def test_fields_are_told() -> None:
    error = told("EXECUTION_ERROR", error_type="ZeroDivisionError", applied=True)
    assert (error.error_type, error.message, error.applied) == ("ZeroDivisionError", "told", True)
    refused = told("VALIDATION_ERROR", errors=[{"loc": ["board", 2, "cell"], "msg": "too big", "type": "less_than"}])
    assert refused.field == "board.2.cell"
    assert refused.errors[0]["msg"] == "too big"
    assert "board.2.cell: too big" in str(refused)
    assert told("FACTORY_ERROR", factory_name="make").factory_name == "make"
    assert told("NEW", hint="x").data == {"hint": "x"}


@pytest.mark.parametrize("message", [None, "", 7, ["x"], {"a": 1}])
@pytest.mark.parametrize("code", [*WSErrorCode, "", None, 7])
def test_a_strange_error_frame_still_has_a_text(code: Any, message: Any) -> None:
    for errors in (None, [], [{}], [{"loc": None}], [{"loc": [None]}], [3], {"loc": 1}):
        error = error_from_frame(Reply("error", {"message": message, "code": code, "errors": errors}))
        assert isinstance(error, ServerError)
        assert str(error)


@pytest.mark.parametrize("loc", [3, None, "abc", {"a": 1}, [["deep"]], []])
def test_an_odd_place_in_an_error_frame_is_still_an_error(loc: object) -> None:
    data = {"message": "odd", "code": "VALIDATION_ERROR", "errors": [{"loc": loc, "msg": None}]}
    error = error_from_frame(Reply("error", data))
    assert isinstance(error, ActionValidationError)
    assert str(error)
