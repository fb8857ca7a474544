"""The arguments that both adapters take, made into the setting of their sessions, and what Gymnasium is told of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
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
    env_id: str | None,
    env_kwargs: Mapping[str, Any] | None,
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
    if env_kwargs and env_id is None:
        raise ValueError("env_kwargs are for an environment of your choice: give env_id too")
    if env_id is not None and to_action is not None:
        raise ValueError("env_id is for servers of envs/gymnasium_env, which need no to_action and to_observation")
    choice = _choice(env_id, env_kwargs, render_mode)
    if observation_space is not None and action_space is not None:
        told = Told(observation_space, action_space, env_id=env_id, render_mode=None if to_action else render_mode)
    else:
        read = ask(client, choice)
        told = replace(
            read,
            observation_space=observation_space or read.observation_space,
            action_space=action_space or read.action_space,
        )
    if render_mode is not None and render_mode != told.render_mode:
        raise ValueError(
            f"the environment of this server draws with render_mode={told.render_mode!r}, not {render_mode!r}"
        )
    translation = translation_of(told, choice, to_action, to_observation)
    return Setting(told, translation, on_session_lost, dict(reset_options or {}))


def _choice(env_id: str | None, env_kwargs: Mapping[str, Any] | None, render_mode: str | None) -> dict[str, Any]:
    """The arguments of the server's ``reset()`` that choose an environment."""
    if env_id is None:
        return {}
    drawing = {} if render_mode is None else {"render_mode": render_mode}
    return {"env_id": env_id, "env_kwargs": {**(env_kwargs or {}), **drawing}}


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
