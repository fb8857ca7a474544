"""From requests to environment calls, and from what goes wrong to error data."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from openenv.core.env_server.calls import CallError, clip, env_raised, make_action, refusal, validation_error
from openenv.core.env_server.types import Action
from openenv.core.exceptions import (
    ConcurrencyConfigurationError,
    EnvironmentFactoryError,
    InvalidActionError,
    SessionCapacityError,
    SessionCreationError,
    SessionNotFoundError,
)
from openenv.core.wire.json_codec import encode
from openenv.core.wire.messages import Reply, WSErrorCode, error_from_frame


class Point(BaseModel):
    x: int
    y: list[int] = []


def refused(data: Any) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        Point.model_validate(data)
    return caught.value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a", "a"),
        ([1, "b", None], [1, "b", None]),
        ("x" * 500, "<str of length 500, not shown>"),
        (list(range(500)), "<list of length 500, not shown>"),
        ([10**1000], "<list of length 1, not shown>"),
        ("\ud800", "<str of length 1, not shown>"),
        (object(), "<object, not shown>"),
        (b"raw", "<bytes of length 3, not shown>"),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_refused_values_are_shown_if_they_are_small(value: Any, shown: Any) -> None:
    data = validation_error(refused({"x": value})).data
    assert data["errors"][0]["input"] == shown
    assert data["errors"][0]["loc"] == ["x"]
    encode(data)


def test_a_place_can_be_put_in_front() -> None:
    error = validation_error(refused({"x": 1, "y": [1, "a"]}), ("body",))
    assert error.data["errors"][0]["loc"] == ["body", "y", 1]


def test_texts_are_cut_and_always_encode() -> None:
    assert clip("short") == "short"
    assert clip("x" * 30, 10) == "xxxxxxxxxx... (30 characters)"
    assert clip("\ud800") == "\\ud800"


def test_a_validator_that_raises_anything_refuses_the_action() -> None:
    class Explosive(Action):
        def __init__(self, **data: Any) -> None:
            raise OSError("validator broke")

        @classmethod
        def model_validate(cls, *args: Any, **kwargs: Any) -> Any:
            return cls()

    with pytest.raises(CallError) as caught:
        make_action({"a": 1}, Explosive)
    assert caught.value.code is WSErrorCode.VALIDATION_ERROR
    assert caught.value.data["errors"][0]["msg"] == "validator broke"


def test_a_refused_move_reads_back_as_the_same_error(caplog: pytest.LogCaptureFixture) -> None:
    data = env_raised(InvalidActionError("occupied"), "E.step").data
    error = error_from_frame(Reply("error", data))
    assert type(error) is InvalidActionError
    assert str(error) == "occupied"
    assert caplog.records == []


def test_an_error_without_a_text_has_its_type_as_text(caplog: pytest.LogCaptureFixture) -> None:
    data = env_raised(ZeroDivisionError(), "E.step").data
    assert data == {
        "message": "ZeroDivisionError",
        "code": "EXECUTION_ERROR",
        "error_type": "ZeroDivisionError",
        "applied": None,
    }
    assert "E.step() raised ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    ("error", "code", "extra"),
    [
        (SessionCapacityError(1, 1), "CAPACITY_REACHED", {"active_sessions": 1, "max_sessions": 1}),
        (EnvironmentFactoryError("E"), "FACTORY_ERROR", {"factory_name": "E"}),
        (ConcurrencyConfigurationError("E", 2), "FACTORY_ERROR", {"factory_name": "E"}),
        (SessionNotFoundError("x"), "SESSION_ERROR", {}),
        (SessionCreationError("no"), "SESSION_ERROR", {}),
    ],
)
def test_refusals(error: Any, code: str, extra: dict[str, Any]) -> None:
    assert refusal(error).data == {"message": str(error), "code": code, **extra}
