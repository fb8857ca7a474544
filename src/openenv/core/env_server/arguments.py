"""What `create_app` is given, looked at before the first client comes: only what can never work is refused."""

from __future__ import annotations

import inspect
from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State

__all__ = ["require_factory", "require_models"]


def require_factory(env: object) -> None:
    """Refuse what cannot make environments.

    Args:
        env: the environment class, or a callable that makes one.

    Raises:
        TypeError: it is an instance, a client or model class, a class with abstract methods, or cannot be called.
    """
    name = type(env).__name__
    if isinstance(env, Environment):
        raise TypeError(
            f"env must be a callable, because every session needs an environment of its own, and not an instance: pass "
            f"the class ({name}) or a factory (lambda: {name}(...)) instead."
        )
    if not callable(env):
        raise TypeError(f"env must be a callable that makes an environment, as its class is, not {name}")
    if isinstance(env, type):
        _require_environment_class(env)


def require_models(action_cls: object, observation_cls: object) -> None:
    """Refuse model classes that no call could be served with.

    Args:
        action_cls: must validate what clients send, as `Action` and other pydantic models do.
        observation_cls: must be a pydantic model class, as `Observation` is.

    Raises:
        TypeError: one of them is no model class, or they are swapped.
    """
    if _is(action_cls, Observation, but=Action) or _is(observation_cls, Action, but=Observation):
        swapped = _is(action_cls, Observation) and _is(observation_cls, Action)
        told = "they seem to be swapped" if swapped else "an action class is an Action, an observation an Observation"
        raise TypeError(
            f"create_app() got {_shown(action_cls)} as action class and {_shown(observation_cls)} as observation "
            f"class: {told}. The order is create_app(environment, action, observation)."
        )
    for what, base, given in (("action", "Action", action_cls), ("observation", "Observation", observation_cls)):
        if not (isinstance(given, type) and callable(getattr(given, "model_validate", None))):
            raise TypeError(
                f"create_app() needs the {what} class, a subclass of {base}, not {_shown(given)}. "
                "The order is create_app(environment, action, observation)."
            )


def _require_environment_class(env: type[Any]) -> None:
    if any(base.__name__ == "EnvClient" and base.__module__.startswith("openenv") for base in env.__mro__):
        raise TypeError(
            f"create_app() got {env.__name__}, which is a client (EnvClient): pass the Environment class, which runs "
            "on the server."
        )
    if issubclass(env, Action | Observation | State):
        raise TypeError(
            f"create_app() got the model {env.__name__} as environment. "
            "The order is create_app(environment, action, observation)."
        )
    if inspect.isabstract(env):
        missing = ", ".join(sorted(env.__abstractmethods__))
        raise TypeError(f"{env.__name__} cannot be built: it does not define {missing}, which an Environment needs.")


def _is(given: object, kind: type[Any], but: type[Any] | None = None) -> bool:
    return isinstance(given, type) and issubclass(given, kind) and not (but is not None and issubclass(given, but))


def _shown(given: object) -> str:
    return given.__name__ if isinstance(given, type) else repr(given)[:80]
