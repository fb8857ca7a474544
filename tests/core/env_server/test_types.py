"""The models: what they take, what they keep apart, and what importing them costs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy
import pytest
from pydantic import ValidationError

from openenv.core.env_server import types
from openenv.core.env_server.types import (
    Action,
    ConcurrencyConfig,
    Observation,
    SchemaResponse,
    ServerCapacityStatus,
    State,
)
from openenv.core.wire.messages import WSErrorCode


@pytest.mark.parametrize("value", [True, False, 0, 1, 0.0, 1.0, -3, 2.5, None])
def test_a_reward_keeps_its_type(value: Any) -> None:
    reward = Observation(reward=value).reward
    assert reward == value
    assert type(reward) is type(value)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (numpy.float32(0.5), 0.5),
        (numpy.float64(1.0), 1.0),
        (numpy.int64(3), 3),
        (numpy.bool_(True), True),
        (numpy.array(2.0), 2.0),
    ],
)
def test_a_numpy_reward_becomes_the_python_number(value: Any, plain: Any) -> None:
    made = Observation(reward=value)
    assigned = Observation()
    assigned.reward = value
    for reward in (made.reward, assigned.reward):
        assert reward == plain
        assert type(reward) is type(plain)


def test_a_numpy_done_becomes_a_bool() -> None:
    assert Observation(done=numpy.all([True, True])).done is True


@pytest.mark.parametrize("value", ["1.0x", [1], numpy.array([1.0, 2.0])])
def test_what_is_no_number_is_no_reward(value: Any) -> None:
    with pytest.raises(ValidationError):
        Observation(reward=value)


def test_unknown_fields_are_refused_by_actions_and_observations_and_kept_by_states() -> None:
    with pytest.raises(ValidationError):
        Action(bogus=1)  # type: ignore[call-arg]
    with pytest.raises(ValidationError):
        Observation(bogus=1)  # type: ignore[call-arg]
    state = State(board=[1, 2])  # type: ignore[call-arg]
    assert state.model_dump() == {"episode_id": None, "step_count": 0, "board": [1, 2]}


def test_assignments_are_validated() -> None:
    observation = Observation()
    with pytest.raises(ValidationError):
        observation.done = "perhaps"  # type: ignore[assignment]
    state = State()
    with pytest.raises(ValidationError):
        state.step_count = -1


def test_nested_nan_survives_a_json_dump() -> None:
    class Anything(Observation):
        value: Any = None

    dumped = Anything(value=[float("nan")], metadata={"x": float("inf")}).model_dump(mode="json")
    assert dumped["value"][0] != dumped["value"][0]
    assert dumped["metadata"]["x"] == float("inf")


def test_arbitrary_types_are_allowed() -> None:
    class Thing:
        pass

    class WithThing(Observation):
        thing: Thing

    thing = Thing()
    assert WithThing(thing=thing).thing is thing


def test_capacity_status_counts() -> None:
    assert ServerCapacityStatus.from_counts(1, 3).available_slots == 2
    assert ServerCapacityStatus.from_counts(3, 3).is_at_capacity
    assert not ServerCapacityStatus.from_counts(2, 3).is_at_capacity


def test_concurrency_config_has_bounds() -> None:
    assert (ConcurrencyConfig().max_concurrent_envs, ConcurrencyConfig().session_timeout) == (1, None)
    for wrong in ({"max_concurrent_envs": 0}, {"session_timeout": 0}, {"other": 1}):
        with pytest.raises(ValidationError):
            ConcurrencyConfig(**wrong)  # type: ignore[arg-type]


def test_schemas_without_one_for_reset_have_the_form_of_older_servers() -> None:
    older: dict[str, Any] = {"action": {}, "observation": {}, "state": {}}
    told = SchemaResponse(**older)
    assert told.model_dump() == older == json.loads(told.model_dump_json())
    assert SchemaResponse(**older, reset_observation={"a": 1}).model_dump()["reset_observation"] == {"a": 1}
    assert set(SchemaResponse.model_json_schema(mode="serialization")["properties"]) == {*older, "reset_observation"}


def test_the_error_codes_are_those_of_the_wire() -> None:
    assert types.WSErrorCode is WSErrorCode


def test_every_exported_name_exists() -> None:
    assert [name for name in types.__all__ if not hasattr(types, name)] == []


@pytest.mark.parametrize("module", ["types", "interfaces", "exceptions", "serialization"])
def test_environment_code_loads_no_web_framework(module: str) -> None:
    code = f"import sys, openenv.core.env_server.{module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"fastapi", "starlette", "uvicorn", "numpy"} & set(loaded) == set()
