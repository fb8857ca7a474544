"""What `create_app` is given, looked at before the first client comes: only what can never work is refused, and what
can be known without calling the factory is read."""

from __future__ import annotations

import functools
import inspect
import typing
from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, ConcurrencyConfig, Observation, ServerMode, State

__all__ = ["class_of", "concurrency_of", "mode_of", "name_of", "require_factory", "require_models"]


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


def concurrency_of(max_concurrent_envs: int | None, config: ConcurrencyConfig | None) -> ConcurrencyConfig:
    """The capacity, given in one of two ways; a single environment by default.

    Raises:
        ValueError: it is given in both.
    """
    if max_concurrent_envs is not None and config is not None:
        raise ValueError("give either max_concurrent_envs or concurrency_config, not both")
    if config is not None:
        return config
    return ConcurrencyConfig(max_concurrent_envs=1 if max_concurrent_envs is None else max_concurrent_envs)


def class_of(factory: Any) -> type[Any] | None:
    """The class a factory makes, where that can be known without calling it."""
    factory = _unbound(factory)
    if isinstance(factory, type):
        return factory
    try:
        told = typing.get_type_hints(factory).get("return")
    except Exception:  # hints that do not resolve, or a callable that has none: the class stays unknown
        return None
    return told if isinstance(told, type) and issubclass(told, Environment) and told is not Environment else None


def name_of(factory: Any, env_class: type[Any] | None) -> str:
    """What a factory is called: as the class that it makes, where that is known."""
    factory = _unbound(factory)
    if env_class is not None and factory is not env_class:
        return env_class.__name__
    return str(getattr(factory, "__name__", None) or type(factory).__name__)


def mode_of(mode: ServerMode | str) -> ServerMode:
    """The mode that a word stands for.

    Raises:
        ValueError: it stands for none.
    """
    try:
        return ServerMode(str(mode).lower())
    except ValueError:
        raise ValueError(f"Invalid mode: '{mode}'. Must be one of: {[one.value for one in ServerMode]}") from None


def _unbound(factory: Any) -> Any:
    """What a partial calls."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    return factory


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
