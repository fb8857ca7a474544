"""The command line of a container engine: docker, podman or nerdctl. What is needed they take alike."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence

from openenv.core.exceptions import ProviderError

__all__ = ["ENGINES", "ContainerEngine", "Refused"]

ENGINES = ("docker", "podman", "nerdctl")

_VERSION_S = 10.0
_COMMAND_S = 60.0
_PAUSES_S = (0.2, 1.0)

_OWN_VARIABLES = re.compile(
    r"(?i)(PATH|HOME|TMPDIR|SHELL|LD_.*|GO.*|SSL_.*|XDG_.*|DBUS_.*|.*_PROXY|"
    r"(DOCKER|BUILDKIT|BUILDX|COMPOSE|CONTAINER|CONTAINERS|CONTAINERD|NERDCTL|PODMAN|REGISTRY|CNI|STORAGE)_.*)"
)
"""Variables that mean something to the command line itself, which it must not be given for a container's sake."""

_GONE = re.compile(r"(?i)no such (container|object|service)|no container with|not found")


class Refused(ProviderError):
    """The engine answered a command with an error.

    Attributes:
        stderr: what it wrote.
    """

    def __init__(self, message: str | None = None, *, logs: str = "", stderr: str = "") -> None:
        self.stderr = stderr
        super().__init__(message, logs=logs)

    @property
    def is_gone(self) -> bool:
        """Whether it says that there is nothing of that name."""
        return _GONE.search(self.stderr) is not None


class ContainerEngine:
    """One engine's command line.

    Args:
        name: the command; by default the first of `ENGINES` that is there and works.

    Raises:
        ProviderError: there is none, or it does not work.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name or self._first_that_works()
        if name is not None:
            why = self._why_not(name)
            if why:
                raise ProviderError(f"{name} is not available: {why}")

    def _first_that_works(self) -> str:
        reasons = []
        for name in ENGINES:
            why = self._why_not(name)
            if not why:
                return name
            reasons.append(f"{name}: {why}")
        raise ProviderError(
            "Docker is not available. Install and start Docker, Podman or nerdctl, or run the package with UVProvider. "
            f"({'; '.join(reasons)})"
        )

    def _why_not(self, name: str) -> str:
        if shutil.which(name) is None:
            return "not on PATH"
        try:
            done = subprocess.run([name, "version"], capture_output=True, text=True, timeout=_VERSION_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        words = done.stderr.strip() or f"`{name} version` ended with {done.returncode}"
        return "" if done.returncode == 0 else words.splitlines()[-1]

    def run(
        self, *arguments: str, timeout_s: float | None = _COMMAND_S, env_vars: Mapping[str, str] | None = None
    ) -> str:
        """Run one command.

        Args:
            arguments: its arguments.
            timeout_s: seconds it may take; None for no limit.
            env_vars: variables for its environment, that the arguments hand on by name.

        Returns:
            What it wrote.

        Raises:
            Refused: it ended with an error, or not in time.
        """
        environment = {**os.environ, **(env_vars or {})}
        shown = " ".join((self.name, *map(_masked, arguments)))
        try:
            done = subprocess.run(
                [self.name, *arguments],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                env=environment,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Refused(f"`{shown}` took longer than {timeout_s:g} s.") from error
        except OSError as error:
            raise Refused(f"`{shown}` could not be run: {error}") from error
        if done.returncode != 0:
            words = done.stderr.strip() or done.stdout.strip()
            raise Refused(f"`{shown}` ended with {done.returncode}: {words}", stderr=words)
        return done.stdout.strip()

    def logs(self, *command: str) -> str:
        """The end of what a container wrote; empty if it cannot be had.

        Args:
            command: the command that tells, as ``logs`` or ``service logs``, with the name.
        """
        try:
            done = subprocess.run(
                [self.name, *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_COMMAND_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.strip()[-4000:] if done.returncode == 0 else ""

    def remove(self, *steps: Sequence[str]) -> None:
        """Take something away with commands, the last of which removes it; tried a few times.

        Args:
            steps: the commands.

        Raises:
            Refused: it is still there.
        """
        for pause in (*_PAUSES_S, None):
            try:
                for step in steps[:-1]:
                    try:
                        self.run(*step)
                    except Refused:
                        pass  # what it was to prepare, the last step forces
                self.run(*steps[-1])
                return
            except Refused as refused:
                if refused.is_gone:
                    return
                if pause is None:
                    raise
                time.sleep(pause)


def env_options(env_vars: Mapping[str, str] | None) -> tuple[list[str], dict[str, str]]:
    """How a container is given its variables: by name, so that values stand in no list of processes and no error.

    Returns:
        The options, and the variables that the command itself must be run with.
    """
    options: list[str] = []
    handed: dict[str, str] = {}
    for name, value in (env_vars or {}).items():
        if _OWN_VARIABLES.fullmatch(name):
            options += ["--env", f"{name}={value}"]
        else:
            options += ["--env", name]
            handed[name] = str(value)
    return options, handed


def _masked(argument: str) -> str:
    return re.sub(r"^([A-Za-z_]\w*)=.*", r"\1=***", argument, flags=re.DOTALL)


def unique_name(image: str, suffix: str = "") -> str:
    """A name for a container of an image, that no other has."""
    stem = re.sub(r"[^a-zA-Z0-9_.-]", "-", image.split("/")[-1].split("@")[0].split(":")[0]) or "env"
    return f"{stem}{suffix}-{os.getpid()}-{time.time_ns()}"
