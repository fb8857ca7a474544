"""The arguments that both adapters take, made into the setting of their sessions, and what Gymnasium is told of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from openenv.integrations.gymnasium.session import Client, OnLoss, Setting, ask
from openenv.integrations.gymnasium.translation import Told, translation_of

__all__ = ["SINGLE", "make_setting", "make_spec", "metadata_of"]

Space = gymnasium.Space[Any]
SINGLE = "openenv.integrations.gymnasium.env:GymnasiumEnv"
"""What a spec makes."""


def make_setting(
    client: Client,
    *,
    observation_space: Space | None,
    action_space: Space | None,
    to_action: Callable[[Any], Any] | None,
    to_observation: Callable[[Any], Any] | None,
    render_mode: str | None,
    reset_options: Mapping[str, Any] | None,
    on_session_lost: OnLoss,
) -> Setting:
    """Check the arguments of an adapter; ask the server for what they do not say.

    Raises:
        ValueError: they do not go together, or the server does not tell what is missing.
        OpenEnvError: the server could not be asked.
    """
    if on_session_lost not in ("truncate", "raise"):
        raise ValueError(f'on_session_lost must be "truncate" or "raise", not {on_session_lost!r}')
    if (to_action is None) != (to_observation is None):
        raise ValueError("to_action and to_observation go together: give both or neither")
    if to_action is not None and (observation_space is None or action_space is None):
        raise ValueError("to_action and to_observation need observation_space and action_space beside them")
    if observation_space is not None and action_space is not None:
        told = Told(observation_space, action_space, render_mode=None if to_action else render_mode)
    else:
        read = ask(client)
        told = Told(
            observation_space or read.observation_space,
            action_space or read.action_space,
            env_id=read.env_id,
            render_mode=read.render_mode,
            render_fps=read.render_fps,
            reward_threshold=read.reward_threshold,
        )
    if render_mode is not None and render_mode != told.render_mode:
        raise ValueError(
            f"the environment of this server draws with render_mode={told.render_mode!r}, not {render_mode!r}"
        )
    return Setting(told, translation_of(told, to_action, to_observation), on_session_lost, dict(reset_options or {}))


def metadata_of(told: Told) -> dict[str, Any]:
    """Gymnasium's metadata of an environment."""
    metadata: dict[str, Any] = {"render_modes": [] if told.render_mode is None else [told.render_mode]}
    if told.render_fps is not None:
        metadata["render_fps"] = told.render_fps
    return metadata


def make_spec(told: Told, entry_point: str, arguments: Mapping[str, Any]) -> EnvSpec:
    """The spec from which ``gymnasium.make`` makes the same environment: on the same server, in another session."""
    return EnvSpec(
        id=told.env_id or "openenv/environment",
        entry_point=entry_point,
        reward_threshold=told.reward_threshold,
        kwargs={name: value for name, value in arguments.items() if value is not None},
    )
