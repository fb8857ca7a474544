"""Providers by name: those of this package, and those that other packages declare.

A package declares one in its ``pyproject.toml``::

    [project.entry-points."openenv.providers"]
    mycloud = "mycloud_openenv:MyCloudProvider"
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

__all__ = ["GROUP", "load_provider", "provider_names"]

GROUP = "openenv.providers"

_OWN = {
    "docker": ("openenv.core.containers.runtime.local_docker", "LocalDockerProvider"),
    "swarm": ("openenv.core.containers.runtime.swarm", "DockerSwarmProvider"),
    "uv": ("openenv.core.containers.runtime.uv_provider", "UVProvider"),
}


def provider_names() -> list[str]:
    """Names that `load_provider` knows; reads the metadata of installed packages, and imports none."""
    return sorted({*_OWN, *(entry.name for entry in entry_points(group=GROUP))})


def load_provider(name: str, **kwargs: Any) -> Any:
    """Make a provider by its name.

    Args:
        name: ``docker``, ``swarm``, ``uv``, or one that an installed package declares. A package cannot replace one
            of the three.
        **kwargs: for the provider's constructor.

    Returns:
        The provider.

    Raises:
        ValueError: there is none of that name.
        ProviderError: it cannot work here.
    """
    if name in _OWN:
        module, cls = _OWN[name]
        return getattr(import_module(module), cls)(**kwargs)
    for entry in entry_points(group=GROUP, name=name):
        return entry.load()(**kwargs)
    raise ValueError(f"there is no provider {name!r}; there are {', '.join(provider_names())}")
