"""Providers: they start an environment's server, say when it is ready, and leave nothing behind.

Importing this package loads nothing of it; each name loads its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from openenv._lazy import lazy_exports

if TYPE_CHECKING:
    from openenv.core.containers.runtime.base import ContainerProvider, KubernetesProvider, RuntimeProvider
    from openenv.core.containers.runtime.local_docker import LocalDockerProvider
    from openenv.core.containers.runtime.registry import load_provider, provider_names
    from openenv.core.containers.runtime.swarm import DockerSwarmProvider
    from openenv.core.containers.runtime.uv_provider import UVProvider

__all__ = [
    "ContainerProvider",
    "DockerSwarmProvider",
    "KubernetesProvider",
    "LocalDockerProvider",
    "RuntimeProvider",
    "UVProvider",
    "load_provider",
    "provider_names",
]

_MODULES = {
    "openenv.core.containers.runtime.base": ("ContainerProvider", "KubernetesProvider", "RuntimeProvider"),
    "openenv.core.containers.runtime.local_docker": ("LocalDockerProvider",),
    "openenv.core.containers.runtime.registry": ("load_provider", "provider_names"),
    "openenv.core.containers.runtime.swarm": ("DockerSwarmProvider",),
    "openenv.core.containers.runtime.uv_provider": ("UVProvider",),
}

if not TYPE_CHECKING:  # a type checker would take any name for granted
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {name: module for module, names in _MODULES.items() for name in names},
        submodules=("base", "local_docker", "providers", "registry", "swarm", "uv_provider"),
    )
