"""Building an image and pushing it, with the container engine's own command. Its output goes to stderr as it comes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from openenv.cli._says import failed, note, wrong
from openenv.core.containers.runtime.engine import ContainerEngine
from openenv.core.exceptions import ProviderError

__all__ = ["build_image", "push_image"]


def build_image(
    command: str,
    folder: Path,
    tag: str,
    *,
    context: Path | None = None,
    dockerfile: Path | None = None,
    no_cache: bool = False,
    build_args: Mapping[str, str] | None = None,
) -> None:
    """Build an environment's image.

    Args:
        command: the command of ours, for messages.
        folder: the environment's folder.
        tag: the image's name.
        context: what the Dockerfile sees; by default the folder.
        dockerfile: by default the folder's own, else that of its ``server/``.
        no_cache: build every layer anew.
        build_args: arguments of the Dockerfile; their values are not shown.

    Raises:
        typer.Exit: it was not built.
    """
    if not folder.is_dir():
        raise wrong(command, f"{folder} is no folder")
    context = context or folder
    if not context.is_dir():
        raise wrong(command, f"the build context {context} is no folder")
    places = [dockerfile] if dockerfile is not None else [context / "Dockerfile", folder / "server" / "Dockerfile"]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        looked = " and ".join(map(str, places))
        raise wrong(command, f"there is no Dockerfile at {looked}; name one with --dockerfile, or see `openenv init`")
    options = ["--no-cache"] * no_cache
    for key, value in (build_args or {}).items():
        options += ["--build-arg", f"{key}={value}"]
    _run(command, "build", ["build", "--tag", tag, "--file", str(found), *options, str(context)])


def push_image(command: str, tag: str) -> None:
    """Push an image to the registry that its name says.

    Raises:
        typer.Exit: it was not pushed.
    """
    _run(command, "push", ["push", tag])


def _run(command: str, what: str, arguments: list[str]) -> None:
    try:
        engine = ContainerEngine().name
    except ProviderError as error:
        raise wrong(command, str(error)) from None
    note(f"{engine} {what} ...")
    done = subprocess.run([engine, *arguments], stdout=sys.stderr.fileno(), check=False)
    if done.returncode:
        raise failed(command, f"`{engine} {what}` ended with {done.returncode}; what went wrong stands above")
