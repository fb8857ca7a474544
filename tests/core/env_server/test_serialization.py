"""Observations, states and actions to JSON values and back."""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any

import numpy
import pytest
from pydantic import ValidationError

from openenv.core.env_server.mcp_types import CallToolAction, ListToolsAction
from openenv.core.env_server.serialization import (
    deserialize_action,
    deserialize_action_with_preprocessing,
    serialize_observation,
    serialize_state,
)
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.wire.json_codec import UnencodableValue


class Board(Observation):
    cells: Any = None


class Move(Action):
    type: str = "move"
    tokens: Any = None
    action_id: Any = None
    tool_name: str = ""


def test_reward_and_done_stand_beside_the_observation() -> None:
    data = serialize_observation(Board(cells=[1], reward=2, done=True))
    assert data == {"observation": {"metadata": {}, "cells": [1]}, "reward": 2, "done": True}
    assert list(data) == ["observation", "reward", "done"]


def test_metadata_is_copied_to_the_side_only_if_there_is_any() -> None:
    data = serialize_observation(Board(metadata={"k": 1}))
    assert data["metadata"] == data["observation"]["metadata"] == {"k": 1}
    assert "metadata" not in serialize_observation(Board())


@pytest.mark.parametrize("reward", [True, 1, 1.0, 0, 0.0, False, None])
def test_rewards_keep_their_type(reward: Any) -> None:
    assert type(serialize_observation(Board(reward=reward))["reward"]) is type(reward)


def test_non_finite_numbers_are_kept() -> None:
    data = serialize_observation(Board(reward=math.nan, cells={"a": [math.inf]}, metadata={"b": -math.inf}))
    assert math.isnan(data["reward"])
    assert data["observation"]["cells"] == {"a": [math.inf]}
    assert data["metadata"] == {"b": -math.inf}


def test_arrays_become_lists() -> None:
    assert serialize_observation(Board(cells=numpy.eye(2)))["observation"]["cells"] == [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize(("value", "path"), [({"x": [b"1"]}, "cells.x"), ([object()], "cells[0]")])
def test_what_has_no_json_form_is_named(value: Any, path: str) -> None:
    with pytest.raises(UnencodableValue) as caught:
        serialize_observation(Board(cells=value))
    assert path in str(caught.value)


def test_only_models_are_observations() -> None:
    with pytest.raises(TypeError, match="must return an Observation, not NoneType"):
        serialize_observation(None)  # type: ignore[arg-type]


def test_states_are_models_or_mappings() -> None:
    assert serialize_state(State(board=1)) == {"episode_id": None, "step_count": 0, "board": 1}  # type: ignore[call-arg]
    assert serialize_state({"a": 1}) == {"a": 1}
    with pytest.raises(TypeError, match="state must be a State or a mapping, not int"):
        serialize_state(5)


def test_actions_are_validated_by_their_class() -> None:
    assert deserialize_action({"type": "move"}, Move) == Move()
    with pytest.raises(ValidationError):
        deserialize_action({"bogus": 1}, Move)


@pytest.mark.parametrize("action_cls", [Action, CallToolAction, ListToolsAction])
def test_mcp_actions_are_read_where_the_class_is_open_to_them(action_cls: type[Action]) -> None:
    call = deserialize_action({"type": "call_tool", "tool_name": "t", "arguments": {"a": 1}}, action_cls)
    assert call == CallToolAction(tool_name="t", arguments={"a": 1})
    assert deserialize_action({"type": "list_tools"}, action_cls) == ListToolsAction()


def test_another_class_decides_for_itself() -> None:
    assert type(deserialize_action({"type": "call_tool", "tool_name": "t"}, Move)) is Move


def test_form_values_that_arrive_as_text() -> None:
    made = deserialize_action_with_preprocessing({"tokens": "[1, 2]", "action_id": "3"}, Move)
    assert (made.tokens, made.action_id) == ([1, 2], 3)
    broken = deserialize_action_with_preprocessing({"tokens": "no", "action_id": "x"}, Move)
    assert (broken.tokens, broken.action_id) == ([], "x")
    call = deserialize_action_with_preprocessing(
        {"type": "call_tool", "tool_name": "t", "arguments": '{"a": 1}'}, Action
    )
    assert call == CallToolAction(tool_name="t", arguments={"a": 1})
    with pytest.raises(ValidationError):
        deserialize_action_with_preprocessing({"type": "call_tool", "tool_name": "t", "arguments": "{"}, Action)


def test_tokens_become_a_tensor_where_torch_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = ModuleType("torch")
    torch.long = "int64"  # type: ignore[attr-defined]
    torch.tensor = lambda value, dtype: (tuple(value), dtype)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert deserialize_action_with_preprocessing({"tokens": [1]}, Move).tokens == ((1,), "int64")
