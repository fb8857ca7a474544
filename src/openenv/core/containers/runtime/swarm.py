"""`DockerSwarmProvider`: several containers behind one port."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from openenv.core.containers.runtime.base import ContainerProvider
from openenv.core.containers.runtime.cleanup import Leftover
from openenv.core.containers.runtime.engine import ContainerEngine, Refused, env_options, unique_name
from openenv.core.containers.runtime.readiness import free_port, wait_until_healthy
from openenv.core.exceptions import ProviderError, ProviderTimeoutError

__all__ = ["DockerSwarmProvider"]

_SETTINGS = {"replicas", "cpu_limit", "memory_limit", "constraints", "labels", "command"}


class DockerSwarmProvider(ContainerProvider):
    """Runs an image as a service of Docker's swarm mode: several replicas, one port, which all interfaces have.

    A WebSocket session stays with the replica that it was opened on. A session that has lost its socket can be resumed
    only if the balancer happens to choose the same one; otherwise its client is told that it is lost.

    The service is removed by `stop_container`, when a start fails, and when this process ends; the swarm stays.

    Args:
        auto_init_swarm: make this machine a swarm if it is none.
        overlay_network: network for the service; made if there is none of that name.

    Raises:
        ProviderError: no Docker that works, or no swarm.
    """

    def __init__(self, *, auto_init_swarm: bool = True, overlay_network: str | None = None) -> None:
        self._engine = ContainerEngine("docker")
        self._overlay_network = overlay_network
        self._service_name: str | None = None
        self._service_id: str | None = None
        self._published_port: int | None = None
        self._leftover: Leftover | None = None
        self._need_swarm(auto_init_swarm)
        if overlay_network is not None:
            self._need_network(overlay_network)

    def _need_swarm(self, may_init: bool) -> None:
        state = self._engine.run("info", "--format", "{{.Swarm.LocalNodeState}}").lower()
        if state == "active":
            return
        if not may_init:
            raise ProviderError(
                f"Docker's swarm mode is not active (it is {state or 'unknown'}): run `docker swarm init`, or pass "
                "auto_init_swarm=True."
            )
        self._engine.run("swarm", "init")

    def _need_network(self, name: str) -> None:
        try:
            self._engine.run("network", "inspect", name)
        except Refused:
            self._engine.run("network", "create", "--driver", "overlay", "--attachable", name)

    def start_container(
        self, image: str, port: int | None = None, env_vars: Mapping[str, str] | None = None, **kwargs: Any
    ) -> str:
        """Make the service.

        Args:
            image: the image.
            port: port of this machine; by default the system chooses.
            env_vars: variables for the containers, handed over by name.
            **kwargs: ``replicas`` (2), ``cpu_limit``, ``memory_limit``, ``constraints`` (a list), ``labels`` (a dict),
                ``command``.

        Returns:
            The service's address.

        Raises:
            ValueError: another keyword.
            ProviderError: a service of this provider runs already, or Docker refused; nothing is left.
        """
        unknown = set(kwargs) - _SETTINGS
        if unknown:
            raise ValueError(f"unsupported for DockerSwarmProvider: {', '.join(sorted(unknown))}")
        if self._service_name is not None:
            raise ProviderError("This provider runs a service already; stop it first, or make another provider.")
        port = free_port() if port is None else port
        variables, handed = env_options(env_vars)
        command = kwargs.get("command") or ()
        words = shlex.split(command) if isinstance(command, str) else list(command)
        name = self._service_name = unique_name(image, "-swarm")
        self._leftover = Leftover(self.stop_container, [self._engine.name, "service", "rm", name])
        network = [] if self._overlay_network is None else ["--network", self._overlay_network]
        replicas = str(max(1, int(kwargs.get("replicas", 2))))
        try:
            self._service_id = self._engine.run(
                *("service", "create", "--detach", "--name", name, "--replicas", replicas),
                *("--publish", f"{port}:8000"),
                *network,
                *variables,
                *_limits(kwargs),
                image,
                *words,
                timeout_s=None,
                env_vars=handed,
            )
        except BaseException as error:  # raised on; nothing is left running
            try:
                self.stop_container()
            except ProviderError:
                pass  # the first error is the one to tell; it is tried again by stop_container() and at exit
            if isinstance(error, Refused):
                raise Refused(f"The service could not be made. {error}", stderr=error.stderr) from error
            raise
        self._published_port = port
        return f"http://localhost:{port}"

    def stop_container(self) -> None:
        """Remove the service. See `ContainerProvider.stop_container`."""
        if self._service_name is None:
            return
        self._engine.remove(["service", "rm", self._service_name])
        leftover, self._leftover = self._leftover, None
        self._service_name = self._service_id = self._published_port = None
        if leftover is not None:
            leftover.settled()

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """Wait until one replica answers; others may still be starting. See `ContainerProvider.wait_for_ready`."""
        try:
            wait_until_healthy(f"{base_url.rstrip('/')}/health", timeout_s, what="Swarm service")
        except ProviderTimeoutError as error:
            raise ProviderTimeoutError(str(error), logs=self.logs()) from None

    def logs(self) -> str:
        """What became of the replicas, and the end of what they wrote."""
        if self._service_name is None:
            return ""
        tasks = self._engine.logs("service", "ps", "--no-trunc", self._service_name)
        return f"{tasks}\n{self._engine.logs('service', 'logs', '--tail', '50', self._service_name)}".strip()

    def close(self) -> None:
        """Remove the service."""
        self.stop_container()


def _limits(given: Mapping[str, Any]) -> list[str]:
    constraints: Sequence[str] = given.get("constraints") or ()
    labels: Mapping[str, str] = given.get("labels") or {}
    options = [("--limit-cpu", given.get("cpu_limit")), ("--limit-memory", given.get("memory_limit"))]
    options += [("--constraint", constraint) for constraint in constraints]
    options += [("--label", f"{name}={value}") for name, value in labels.items()]
    return [word for flag, value in options if value is not None for word in (flag, str(value))]
