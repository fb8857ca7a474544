"""The container providers under one module, from where env packages import them."""

from __future__ import annotations

from openenv.core.containers.runtime.base import ContainerProvider, KubernetesProvider, RuntimeProvider
from openenv.core.containers.runtime.local_docker import LocalDockerProvider
from openenv.core.containers.runtime.swarm import DockerSwarmProvider

__all__ = [
    "ContainerProvider",
    "DockerSwarmProvider",
    "KubernetesProvider",
    "LocalDockerProvider",
    "RuntimeProvider",
]
