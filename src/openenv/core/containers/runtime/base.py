"""What a provider is: two families, one for container images and one for everything else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

__all__ = ["ContainerProvider", "KubernetesProvider", "RuntimeProvider"]


class ContainerProvider(ABC):
    """Starts one server from a container image.

    One whose ``start_container`` needs no argument can be handed to a client: ``EnvClient(provider=...)`` starts it.
    """

    @abstractmethod
    def start_container(
        self, image: str, port: int | None = None, env_vars: Mapping[str, str] | None = None, **kwargs: Any
    ) -> str:
        """Start the server.

        Args:
            image: the image, or whatever the provider takes in its place.
            port: port to reach it at; by default the provider chooses.
            env_vars: variables for the server's environment.
            **kwargs: what else the provider takes.

        Returns:
            The server's address, as ``http://localhost:8000``. It may not answer yet.

        Raises:
            ProviderError: it could not be started; nothing is left of it.
        """

    @abstractmethod
    def stop_container(self) -> None:
        """Stop the server and remove what is left of it. Nothing to stop is no error.

        Raises:
            ProviderError: it is still there. Call again.
        """

    @abstractmethod
    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """Wait until the server answers.

        Args:
            base_url: its address, as `start_container` returned it.
            timeout_s: seconds to wait.

        Raises:
            ProviderTimeoutError: it did not, in time. It is not stopped.
            ProviderError: it ended.
        """

    def close(self) -> None:
        """Give back what the provider holds; called when it is left as a context manager."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class KubernetesProvider(ContainerProvider):
    """A name that is kept for a provider on a Kubernetes cluster. There is none yet, so it cannot be made."""


class RuntimeProvider(ABC):
    """Starts one server that is no container, as a local process.

    As a context manager it is started on entering and stopped on leaving.
    """

    @abstractmethod
    def start(self, port: int | None = None, env_vars: Mapping[str, str] | None = None, **kwargs: Any) -> str:
        """Start the server. Arguments, result and errors as for `ContainerProvider.start_container`."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the server; as `ContainerProvider.stop_container`."""

    @abstractmethod
    def wait_for_ready(self, timeout_s: float = 30.0) -> None:
        """Wait until the server answers; as `ContainerProvider.wait_for_ready`."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
