"""The default hooks of a client: from its type parameters to payloads and back."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar, cast, get_args, get_origin

import pydantic  # whose names load when they are first used; importing a client must stay cheap

from openenv.core.client_types import StepResult
from openenv.core.exceptions import ActionValidationError, ReplyValidationError
from openenv.core.wire.frames import Request, encode, is_text
from openenv.core.wire.json_codec import UnencodableValue, dump_model, holds_arrays, without_arrays

__all__ = ["action_payload", "encode_request", "parse_model", "parse_result", "reconcile", "type_arguments"]

ModelT = TypeVar("ModelT")


def type_arguments(cls: type, generic: type) -> tuple[Any, ...]:
    """Find what a class gives for the type parameters of one of its generic bases.

    Args:
        cls: as ``class SudokuEnv(EnvClient[Move, Board, State])``, or a subclass of it.
        generic: the base, as ``EnvClient``.

    Returns:
        One entry a parameter; a parameter that nobody filled stays a `TypeVar`.
    """
    if cls is generic:
        return tuple(getattr(cls, "__parameters__", ()))
    bases = getattr(cls, "__orig_bases__", ()) if "__orig_bases__" in vars(cls) else cls.__bases__
    for base in bases:
        origin = get_origin(base) or base
        if not (inspect.isclass(origin) and issubclass(origin, generic)):
            continue
        given = dict(zip(getattr(origin, "__parameters__", ()), get_args(base), strict=False))
        return tuple(given.get(argument, argument) for argument in type_arguments(origin, generic))
    return tuple(getattr(generic, "__parameters__", ()))


def action_payload(action: Any) -> dict[str, Any]:
    """Turn an action into the ``data`` of a step request.

    Args:
        action: a pydantic model, a mapping, a dataclass, or an object with attributes.

    Raises:
        ActionValidationError: it is none of these, or a field has no JSON form.
    """
    if isinstance(action, pydantic.BaseModel):
        return _dumped(action)
    if isinstance(action, Mapping):
        return dict(action)
    if dataclasses.is_dataclass(action) and not isinstance(action, type):
        return {field.name: getattr(action, field.name) for field in dataclasses.fields(action)}
    if hasattr(action, "__dict__") and not isinstance(action, type):
        return dict(vars(action))
    raise ActionValidationError(
        f"An action must be a pydantic model, a dict or an object with attributes, not {type(action).__name__}",
        code="NOT_ENCODABLE",
    )


def _dumped(model: pydantic.BaseModel) -> dict[str, Any]:
    try:
        return dump_model(model, keep=True)
    except UnencodableValue as error:
        raise _not_encodable(error) from error


def _not_encodable(error: UnencodableValue) -> ActionValidationError:
    text = str(error)
    return ActionValidationError(
        f"The call was not sent: {text}", field=error.path, code="NOT_ENCODABLE", data={"type": error.type_name}
    )


def encode_request(frame: Mapping[str, Any], *, binary: bool) -> Request:
    """Encode a request frame.

    Args:
        frame: the object.
        binary: whether this client would use binary frames.

    Returns:
        Its forms: text, and the binary one if text would change something in it. Which is sent is known when the
        session is open.

    Raises:
        ActionValidationError: a value inside has no form; names its field.
    """
    try:
        packed = encode(frame, binary=True) if binary else b""
        text = packed if is_text(packed) else encode(frame, binary=False)
    except UnencodableValue as error:
        inner = UnencodableValue(error.path.removeprefix("data").lstrip("."), error.type_name, error.why)
        raise _not_encodable(inner) from error
    return Request(text, b"" if packed == text else packed)


def parse_model(model: Any, data: Any) -> Any:
    """Read a reply's data as ``model`` says: a pydantic model is validated, anything else keeps the data as it is.

    Raises:
        ReplyValidationError: the data does not fit the model.
    """
    if not (inspect.isclass(model) and issubclass(model, pydantic.BaseModel)):
        return data
    try:
        return model.model_validate(data)
    except pydantic.ValidationError as error:
        if holds_arrays(data):  # for a field of lists
            return parse_model(model, without_arrays(data))
        raise ReplyValidationError(
            model=model.__name__,
            errors=[cast("dict[str, Any]", item) for item in error.errors(include_url=False, include_context=False)],
            payload=data if isinstance(data, dict) else {"data": data},
        ) from error


def parse_result(model: Any, payload: Mapping[str, Any]) -> StepResult[Any]:
    """Read the data of an observation frame; ``reward`` and ``done`` stand beside the observation and go into both.

    Args:
        model: the observation's pydantic model; anything else leaves the observation a dict.
        payload: ``{"observation": {...}, "reward": ..., "done": ..., "metadata": {...}?}``.

    Raises:
        ReplyValidationError: the observation does not fit the model.
    """
    observation = payload.get("observation", {})
    reward = payload.get("reward")
    done = bool(payload.get("done", False))
    metadata = payload.get("metadata")
    if inspect.isclass(model) and issubclass(model, pydantic.BaseModel) and isinstance(observation, dict):
        beside = {"reward": reward, "done": done}
        takes_more = model.model_config.get("extra") == "allow"
        fitting = {name: value for name, value in beside.items() if takes_more or name in model.model_fields}
        observation = {**observation, **fitting}
    return StepResult(
        observation=parse_model(model, observation),
        reward=reward,
        done=done,
        metadata=metadata if isinstance(metadata, dict) else None,
    )


def reconcile(result: StepResult[ModelT], payload: Mapping[str, Any] = MappingProxyType({})) -> StepResult[ModelT]:
    """Make a result whole, whatever a hook filled: reward and done are the same in result and observation, and how the
    episode ended is as the server told it; ``done`` alone means terminated (E30)."""
    observation: Any = result.observation
    if hasattr(observation, "reward") and not _same(result.reward, observation.reward):
        if result.reward is None:
            result.reward = observation.reward
        else:
            observation = _with(observation, "reward", result.reward)
    if hasattr(observation, "done") and observation.done != result.done:
        result.done = True  # one of the two says so
        observation = _with(observation, "done", True)
    result.observation = observation
    result.truncated = result.truncated or payload.get("truncated") is True
    result.terminated = result.terminated or payload.get("terminated") is True
    if result.done and not result.truncated:
        result.terminated = True
    return result


def _same(one: Any, other: Any) -> bool:
    """1, 1.0 and True are different rewards, and NaN is the same as itself."""
    return type(one) is type(other) and (one == other or (one != one and other != other))


def _with(observation: Any, name: str, value: Any) -> Any:
    try:
        setattr(observation, name, value)
    except (AttributeError, TypeError, pydantic.ValidationError):  # frozen: make a copy that says it
        if isinstance(observation, pydantic.BaseModel):
            return observation.model_copy(update={name: value})
        if dataclasses.is_dataclass(observation) and not isinstance(observation, type):
            return dataclasses.replace(observation, **{name: value})
    return observation
