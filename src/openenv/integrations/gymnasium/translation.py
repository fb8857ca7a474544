"""What an environment says of itself, and how Gymnasium's values become a client's calls and results.

A server of ``envs/gymnasium_env`` tells its spaces in its state, as JSON Schemas; any other environment is used with
spaces and two functions that its user gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from openenv.core.client_types import StepResult
from openenv.integrations.gymnasium.spaces import space_from_schema
from openenv.integrations.gymnasium.values import value_from_wire, value_to_wire

__all__ = ["Told", "Translation", "translation_of"]

Space = gymnasium.Space[Any]


@dataclass(frozen=True)
class Told:
    """What is known of the environment behind a session.

    Attributes:
        observation_space: of one environment.
        action_space: likewise.
        env_id: name under which it is registered on the server; None if it has none.
        render_mode: ``rgb_array``, ``ansi``, or None if it draws nothing.
        render_fps: frames a second at which it is meant to be seen.
        reward_threshold: return at which it counts as solved.
    """

    observation_space: Space
    action_space: Space
    env_id: str | None = None
    render_mode: str | None = None
    render_fps: int | None = None
    reward_threshold: float | None = None

    @classmethod
    def read(cls, state: Any) -> Told:
        """Read it from a server's state.

        Raises:
            ValueError: the state does not tell the spaces.
        """
        try:
            observation, action = field(state, "observation_space"), field(state, "action_space")
        except (AttributeError, KeyError):
            raise ValueError(
                "The server does not tell its spaces, so it does not serve envs/gymnasium_env. Pass observation_space, "
                "action_space, to_action and to_observation."
            ) from None
        return cls(
            space_from_schema(observation),
            space_from_schema(action),
            **{name: field(state, name, None) for name in _FACTS},
        )


_FACTS = ("env_id", "render_mode", "render_fps", "reward_threshold")
_RAISE = object()


def field(value: Any, name: str, default: Any = _RAISE) -> Any:
    """A member of a mapping or an attribute of a model: generic clients have the one, typed ones the other."""
    if isinstance(value, Mapping):
        return value[name] if default is _RAISE else value.get(name, default)
    return getattr(value, name) if default is _RAISE else getattr(value, name, default)


@dataclass(frozen=True)
class Translation:
    """From Gymnasium's values to a client's and back.

    Attributes:
        to_action: makes of an action what the client's ``step()`` takes.
        to_observation: makes an observation of the client's result.
        to_info: likewise the info.
        to_ends: likewise whether the episode was terminated, and whether it was truncated.
        to_arguments: makes the arguments of the client's ``reset()`` of the options.
        foreign: it was given by the user, so the server's state tells no spaces and takes no request to render.
    """

    to_action: Callable[[Any], Any]
    to_observation: Callable[[StepResult[Any]], Any]
    to_info: Callable[[StepResult[Any]], dict[str, Any]]
    to_ends: Callable[[StepResult[Any]], tuple[bool, bool]]
    to_arguments: Callable[[Mapping[str, Any]], dict[str, Any]]
    foreign: bool = False


def translation_of(
    told: Told,
    choice: Mapping[str, Any],
    to_action: Callable[[Any], Any] | None,
    to_observation: Callable[[StepResult[Any]], Any] | None,
) -> Translation:
    """The user's translation, or that of a server of ``envs/gymnasium_env``, with its choice at every reset."""
    if to_action is not None and to_observation is not None:
        return Translation(
            to_action=to_action,
            to_observation=to_observation,
            to_info=lambda result: dict(result.metadata or {}),
            to_ends=lambda result: (result.terminated, result.truncated),
            to_arguments=dict,
            foreign=True,
        )
    return Translation(
        to_action=lambda action: {"action": value_to_wire(told.action_space, action)},
        to_observation=lambda result: value_from_wire(told.observation_space, field(result.observation, "obs")),
        to_info=lambda result: _own(field(result.observation, "info", None) or {}),
        to_ends=lambda result: (_flag(result, "terminated"), _flag(result, "truncated")),
        to_arguments=lambda options: {**choice, "options": dict(options)} if options else dict(choice),
    )


def _flag(result: StepResult[Any], name: str) -> bool:
    """As the observation says: beside ``done`` the plain dialect has no room for it."""
    return bool(field(result.observation, name))


def _own(value: Any) -> Any:
    """The same with arrays that may be written to; those from a frame are views of it."""
    if isinstance(value, dict):
        return {key: _own(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_own(item) for item in value]
    return value.copy() if isinstance(value, np.ndarray) else value
