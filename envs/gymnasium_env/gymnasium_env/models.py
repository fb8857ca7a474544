"""What crosses the wire. Elements of spaces are as `openenv.gymnasium.value_to_wire` makes them."""

from __future__ import annotations

from typing import Annotated, Any

import gymnasium
import numpy as np
from pydantic import Field, WithJsonSchema, create_model

from openenv.core.arrays import ImageSpec
from openenv.core.env_server.types import Action, Observation, State
from openenv.gymnasium import space_to_schema

__all__ = ["GymnasiumAction", "GymnasiumObservation", "GymnasiumState", "models_for"]


class GymnasiumAction(Action):
    """A step, a look, or both.

    Attributes:
        action: an element of the action space; None to look only: nothing is applied, and the last observation comes
            again.
        render: draw the environment as it then stands.
    """

    action: Any = None
    render: bool = False


class GymnasiumObservation(Observation):
    """What the environment returned.

    Attributes:
        obs: an element of the observation space.
        info: what the environment says beside it.
        terminated: the episode ended in itself.
        truncated: it was cut off, as by a limit of steps.
        frame: the drawing that was asked for, as a PNG image.
        text: likewise, of an environment that draws with letters.
    """

    obs: Any = None
    info: dict[str, Any] = Field(default_factory=dict)
    terminated: bool = False
    truncated: bool = False
    frame: Annotated[np.ndarray, ImageSpec("png")] | None = None
    text: str | None = None


class GymnasiumState(State):
    """What the environment is, and where its episode stands; may be asked for before the first reset.

    Attributes:
        env_id: name under which it is registered; None if a program made it.
        observation_space: JSON Schema of ``obs``; `openenv.gymnasium.space_from_schema` makes the space of it.
        action_space: likewise, of ``action``.
        render_mode: ``rgb_array`` (``frame``), ``ansi`` (``text``), or None if it draws nothing.
        render_fps: frames a second at which it is meant to be seen.
        reward_threshold: return at which it counts as solved.
        seed: of the last reset that had one.
    """

    env_id: str | None = None
    observation_space: dict[str, Any] = Field(default_factory=dict)
    action_space: dict[str, Any] = Field(default_factory=dict)
    render_mode: str | None = None
    render_fps: float | None = None
    reward_threshold: float | None = None
    seed: int | None = None


def models_for(
    observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
) -> tuple[type[GymnasiumAction], type[GymnasiumObservation]]:
    """The models with the spaces in their JSON Schemas, which ``GET /schema`` shows.

    Raises:
        TypeError: a space has no schema.
    """
    action = {**space_to_schema(action_space), "description": "None to look only."}
    return (
        create_model(
            "GymnasiumAction", __base__=GymnasiumAction, action=(Annotated[Any, WithJsonSchema(action)], None)
        ),
        create_model(
            "GymnasiumObservation",
            __base__=GymnasiumObservation,
            obs=(Annotated[Any, WithJsonSchema(space_to_schema(observation_space))], None),
        ),
    )
