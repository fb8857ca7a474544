"""Clients by name: of installed environment packages, of addresses, and of Spaces. See `AutoEnv` and `AutoAction`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openenv._lazy import lazy_exports

if TYPE_CHECKING:
    from openenv.auto._discovery import EnvironmentDiscovery, EnvironmentInfo, get_discovery, reset_discovery
    from openenv.auto.auto_action import AutoAction
    from openenv.auto.auto_env import AutoEnv

__all__ = [
    "AutoAction",
    "AutoEnv",
    "EnvironmentDiscovery",
    "EnvironmentInfo",
    "get_discovery",
    "reset_discovery",
]

_DISCOVERY = ("EnvironmentDiscovery", "EnvironmentInfo", "get_discovery", "reset_discovery")

if not TYPE_CHECKING:  # a type checker would take any name for granted
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            **dict.fromkeys(_DISCOVERY, f"{__name__}._discovery"),
            "AutoAction": f"{__name__}.auto_action",
            "AutoEnv": f"{__name__}.auto_env",
        },
    )
