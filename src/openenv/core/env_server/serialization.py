"""Observations, states and actions to and from the JSON values that cross the wire.

Values that JSON cannot hold raise `UnencodableValue`, which names the field; they never turn into null or text.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from openenv.core.env_server.types import Action
from openenv.core.wire.json_codec import dump_model, holds_arrays, without_arrays

__all__ = [
    "deserialize_action",
    "deserialize_action_with_preprocessing",
    "serialize_observation",
    "serialize_state",
]

ActT = TypeVar("ActT", bound=Action)

_MCP_TYPES = ("list_tools", "call_tool")


def serialize_observation(observation: BaseModel, *, keep: bool = False) -> dict[str, Any]:
    """Turn an observation into the ``data`` of an observation frame.

    Args:
        observation: an `Observation`.
        keep: leave arrays and declared bytes as they are, for an encoder that chooses the form of the frame.

    Returns:
        ``observation`` (its fields without reward and done), ``reward``, ``done``, and ``metadata`` if there is any.

    Raises:
        TypeError: it is not an observation.
        UnencodableValue: a field has no JSON form.
    """
    if not isinstance(observation, BaseModel):
        raise TypeError(f"reset() and step() must return an Observation, not {type(observation).__name__}")
    fields = dump_model(observation, keep=keep)
    reward = fields.pop("reward", None)
    done = fields.pop("done", False)
    data = {"observation": fields, "reward": reward, "done": done}
    if fields.get("metadata"):
        data["metadata"] = fields["metadata"]
    return data


def serialize_state(state: Any, *, keep: bool = False) -> dict[str, Any]:
    """Turn a state into the ``data`` of a state frame.

    Args:
        state: a `State`, or a mapping.
        keep: as for `serialize_observation`.

    Raises:
        TypeError: it is neither a model nor a mapping.
        UnencodableValue: a field has no JSON form.
    """
    if isinstance(state, BaseModel):
        return dump_model(state, keep=keep)
    try:
        return dict(state)
    except (TypeError, ValueError) as error:
        raise TypeError(f"state must be a State or a mapping, not {type(state).__name__}") from error


def deserialize_action(action_data: Mapping[str, Any], action_cls: type[ActT]) -> ActT:
    """Make an action from its fields.

    An environment whose action class is `Action` itself or one of the MCP actions takes any MCP action;
    for every other class, that class decides.

    Raises:
        pydantic.ValidationError: the fields do not fit the class.
    """
    chosen = _mcp_class(action_data, action_cls) or action_cls
    try:
        return cast(ActT, chosen.model_validate(action_data))
    except ValidationError:
        if not holds_arrays(action_data):
            raise
    return cast(ActT, chosen.model_validate(without_arrays(action_data)))  # a field of lists, sent by an array's owner


def deserialize_action_with_preprocessing(action_data: Mapping[str, Any], action_cls: type[ActT]) -> ActT:
    """Make an action from the fields of a web form, where some values arrive as text.

    ``tokens`` may be a JSON list in text (a tensor, if torch is loaded), ``action_id`` a number in text, and the
    ``arguments`` of a tool call a JSON object in text.

    Raises:
        pydantic.ValidationError: the fields do not fit the class.
    """
    data = dict(action_data)
    if data.get("type") == "call_tool" and isinstance(data.get("arguments"), str):
        data["arguments"] = _from_text(data["arguments"], data["arguments"])
    if _mcp_class(data, action_cls) is not None:
        return deserialize_action(data, action_cls)
    if isinstance(data.get("tokens"), str):
        data["tokens"] = _from_text(data["tokens"], [])
    if isinstance(data.get("tokens"), list) and "torch" in sys.modules:
        torch = sys.modules["torch"]
        data["tokens"] = torch.tensor(data["tokens"], dtype=torch.long)
    if isinstance(data.get("action_id"), str):
        try:
            data["action_id"] = int(data["action_id"])
        except ValueError:
            pass  # the action class says what is wrong with it
    return action_cls.model_validate(data)


def _from_text(text: str, otherwise: Any) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return otherwise


def _mcp_class(action_data: Mapping[str, Any], action_cls: type[Action]) -> type[Action] | None:
    kind = action_data.get("type")
    if kind not in _MCP_TYPES:
        return None
    from openenv.core.env_server.mcp_types import CallToolAction, ListToolsAction

    classes: dict[str, type[Action]] = {"list_tools": ListToolsAction, "call_tool": CallToolAction}
    if action_cls is Action or action_cls in classes.values():
        return classes[kind]
    return None
