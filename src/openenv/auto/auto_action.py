"""`AutoAction`: the class of an environment's actions, from a name."""

from __future__ import annotations

import sys
from typing import Any

from openenv.auto._discovery import EnvironmentInfo, _is_hub_url, get_discovery, unknown_environment
from openenv.auto._schema_models import client_with_models
from openenv.auto.auto_env import AutoEnv, _ask, _is_address
from openenv.core.generic_client import GenericAction

__all__ = ["AutoAction"]

_ADVICE = "use GenericAction, or AutoAction.from_env() with the address of its server."
_RULE = "-" * 70


class AutoAction:
    """Finds the classes of actions; not to be instantiated."""

    def __init__(self) -> None:
        raise TypeError(
            "AutoAction is a factory class: call AutoAction.from_env() or AutoAction.from_hub(), make no instance."
        )

    @classmethod
    def from_env(cls, name: str, skip_install: bool = False, **kwargs: Any) -> type[Any]:
        """The class of an environment's actions. Nothing is ever installed for it.

        Args:
            name: as for `AutoEnv.from_env`. Of an address, or of a Space whose package is not installed, the class is
                made from the server's ``/schema``; where that cannot be read, it is `GenericAction`.
            skip_install: give `GenericAction`, whatever is installed.
            **kwargs: ``token`` and ``headers`` for the server.

        Raises:
            ValueError: no such environment is installed.
            ImportError: it is, and its class cannot be imported.
        """
        if skip_install:
            return GenericAction
        env_name: str | None = name
        if _is_address(name):
            return _from_server(name, kwargs)
        if _is_hub_url(name):
            env_name = AutoEnv._ensure_package_from_hub(name)
        if env_name is None:
            return _from_server(AutoEnv._resolve_space_url(name), kwargs)
        info = get_discovery().get_environment_by_name(env_name)
        if info is None:
            raise unknown_environment(env_name, get_discovery().discover(), _ADVICE)
        try:
            return info.get_action_class()
        except ImportError as error:
            raise ImportError(
                f"Failed to import the action class of {env_name!r}, whose package is installed: {error} "
                f"Try: pip install --force-reinstall {info.package_name}"
            ) from error

    @classmethod
    def from_hub(cls, env_name: str, skip_install: bool = False, **kwargs: Any) -> type[Any]:
        """The same as `from_env`."""
        return cls.from_env(env_name, skip_install=skip_install, **kwargs)

    @classmethod
    def get_action_info(cls, name: str) -> dict[str, Any]:
        """What is known of the actions of an installed environment.

        Raises:
            ValueError: none is called so.
        """
        info: EnvironmentInfo | None = get_discovery().get_environment_by_name(name)
        if info is None:
            raise ValueError(
                f"Unknown environment: {name!r} is not installed. AutoAction.list_actions() tells what is."
            )
        return {
            "env_key": info.env_key,
            "env_name": info.name,
            "package": info.package_name,
            "action_class": info.action_class_name,
            "observation_class": info.observation_class_name,
            "module": info.client_module_path,
        }

    @classmethod
    def list_actions(cls) -> None:
        """Print the actions of the installed environments."""
        found = get_discovery().discover()
        lines = ["Available Action Classes:", _RULE]
        if not found:
            lines += ["  No OpenEnv environments found.", "  Install environments with: pip install openenv-<env-name>"]
        for key in sorted(found):
            lines += [f"  {key:<15}: {found[key].action_class_name}", f"{'':19}Package: {found[key].package_name}"]
        lines += [_RULE, f"Total: {len(found)} action classes"]
        sys.stdout.write("\n".join(lines) + "\n")


def _from_server(base_url: str, kwargs: dict[str, Any]) -> type[Any]:
    schema = _ask(base_url, "/schema", kwargs)
    return GenericAction if schema is None else client_with_models(schema).action_model
