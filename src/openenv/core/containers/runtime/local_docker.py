"""`LocalDockerProvider`: a container on this machine."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

from openenv.core.containers.runtime.base import ContainerProvider
from openenv.core.containers.runtime.cleanup import Leftover
from openenv.core.containers.runtime.engine import ContainerEngine, Refused, env_options, unique_name
from openenv.core.containers.runtime.readiness import free_port, wait_until_healthy
from openenv.core.exceptions import ProviderError, ProviderTimeoutError

__all__ = ["LocalDockerProvider"]

_PORT_TAKEN = re.compile(r"(?i)port is already allocated|address already in use|port is already in use")
_PORT_ATTEMPTS = 3
_LOOK_AGAIN_S = 1.0


class LocalDockerProvider(ContainerProvider):
    """Runs an image with Docker, Podman or nerdctl; its server is reached from this machine only.

    The container is removed by `stop_container`, when a start fails, and when this process ends, however it ends.

    Args:
        engine: ``docker``, ``podman`` or ``nerdctl``; by default the first that is there and works.

    Raises:
        ProviderError: there is no engine that works.
    """

    def __init__(self, engine: str | None = None) -> None:
        self._engine = ContainerEngine(engine)
        self._container_id: str | None = None
        self._container_name: str | None = None
        self._leftover: Leftover | None = None

    def start_container(
        self,
        image: str,
        port: int | None = None,
        env_vars: Mapping[str, str] | None = None,
        *,
        container_port: int = 8000,
        command: str | Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> str:
        """Run the image, pulling it first if need be.

        Args:
            image: the image.
            port: port of this machine; by default the system chooses.
            env_vars: variables for the container. They are handed over by name: no list of processes shows a value.
            container_port: port on which the server listens in the container.
            command: replaces the image's command.
            environment: more of ``env_vars``, under the name that some clients' callers give them.
            **kwargs: further options of the engine's ``run``: ``memory="1g"`` is ``--memory 1g``; True stands for an
                option without a value, a list for an option that is given several times.

        Returns:
            The server's address.

        Raises:
            ProviderError: a container of this provider runs already, or the engine refused; nothing is left.
        """
        if self._container_name is not None:
            raise ProviderError("This provider runs a container already; stop it first, or make another provider.")
        variables, handed = env_options({**(env_vars or {}), **(environment or {})})
        options = [*variables, *_options(kwargs)]
        words = shlex.split(command) if isinstance(command, str) else list(command)
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            chosen = self._find_available_port() if port is None else port
            mapping = f"127.0.0.1:{chosen}:{container_port}"
            try:
                self._run(image, ["--publish", mapping, *options], words, handed)
            except Refused as refused:
                somebody_was_faster = port is None and _PORT_TAKEN.search(refused.stderr) is not None
                if not somebody_was_faster or attempt == _PORT_ATTEMPTS or self._container_name is not None:
                    raise
                continue
            return f"http://localhost:{chosen}"
        raise AssertionError("the last attempt returns or raises")

    def _run(self, image: str, options: Sequence[str], words: Sequence[str], handed: Mapping[str, str]) -> None:
        name = self._container_name = self._generate_container_name(image)
        removal = ["rm", "--force", "--volumes", name]
        self._leftover = Leftover(self.stop_container, [self._engine.name, *removal])
        try:
            told = self._engine.run(
                "run", "--detach", "--name", name, *options, image, *words, timeout_s=None, env_vars=handed
            )
            self._container_id = told.splitlines()[-1] if told else name
        except Refused as refused:
            logs = self._engine.logs("logs", "--tail", "50", name)
            self._take_back()
            raise Refused(
                f"The container could not be started. {refused}", logs=logs, stderr=refused.stderr
            ) from refused
        except BaseException:  # Ctrl-C: the engine may be about to make the container
            self._take_back(patient=True)
            raise

    def _take_back(self, *, patient: bool = False) -> None:
        try:
            self._remove()
            if patient:
                time.sleep(0.2)
                self._remove()
        except ProviderError:
            return  # the first error is the one to tell; what is left is tried again by stop_container() and at exit
        self._forget()

    def _remove(self) -> None:
        name = self._container_id or self._container_name
        if name is not None:
            self._engine.remove(["stop", name], ["rm", "--force", "--volumes", name])

    def _forget(self) -> None:
        leftover, self._leftover = self._leftover, None
        self._container_id = self._container_name = None
        if leftover is not None:
            leftover.settled()

    def stop_container(self) -> None:
        """Stop and remove the container. See `ContainerProvider.stop_container`."""
        self._remove()
        self._forget()

    def wait_for_ready(self, base_url: str, timeout_s: float = 30.0) -> None:
        """Wait until ``/health`` answers. See `ContainerProvider.wait_for_ready`.

        Raises:
            ProviderTimeoutError: it did not, in time; what the container wrote is in the error. It is not stopped.
            ProviderError: the container ended; what it wrote is in the error. It is removed.
        """
        looked = time.monotonic()

        def still_there() -> None:
            nonlocal looked
            if time.monotonic() - looked >= _LOOK_AGAIN_S:
                looked = time.monotonic()
                self._check_running()

        try:
            wait_until_healthy(f"{base_url.rstrip('/')}/health", timeout_s, still_there, what="Container")
        except ProviderTimeoutError as error:
            raise ProviderTimeoutError(str(error), logs=self.logs()) from None

    def _check_running(self) -> None:
        name = self._container_id or self._container_name
        if name is None:
            return
        try:
            state = self._engine.run("inspect", "--format", "{{.State.Status}} {{.State.ExitCode}}", name)
        except Refused as refused:
            if not refused.is_gone:
                return  # the engine is busy; the server may come up all the same
            self._forget()
            raise ProviderError("The container is gone: somebody removed it while it was starting.") from refused
        if state.split()[:1] in (["exited"], ["dead"], ["stopped"]):
            logs = self.logs()
            self._take_back()
            raise ProviderError(f"The container ended while it was starting ({state}).", logs=logs)

    def logs(self) -> str:
        """The end of what the container wrote."""
        name = self._container_id or self._container_name
        return "" if name is None else self._engine.logs("logs", "--tail", "50", name)

    def close(self) -> None:
        """Stop and remove the container."""
        self.stop_container()

    def _find_available_port(self) -> int:
        """A free port; a subclass may choose differently."""
        return free_port()

    def _generate_container_name(self, image: str) -> str:
        """A name for the container; a subclass may choose differently."""
        return unique_name(image)


def _options(given: Mapping[str, Any]) -> list[str]:
    """Keyword arguments as options of a command line."""
    options: list[str] = []
    for name, value in given.items():
        flag = f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, list | tuple) else [value]:
            if one is None or one is False:
                continue
            options += [flag] if one is True else [flag, str(one)]
    return options
