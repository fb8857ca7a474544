"""``openenv build``: build an environment's image with docker, podman or nerdctl.

The image's name goes to stdout, the engine's output to stderr. Exit code 0; 1 if the build failed, 2 if it could not
begin.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from openenv.auto._manifest import read_manifest
from openenv.cli._images import build_image
from openenv.cli._says import pairs

__all__ = ["build"]


def build(
    env_path: Annotated[Path, typer.Argument(help="The environment's folder.")] = Path("."),
    tag: Annotated[
        str | None, typer.Option("--tag", "-t", help="Name of the image; by default openenv-<environment>.")
    ] = None,
    context: Annotated[
        Path | None, typer.Option("--context", "-c", help="What the Dockerfile sees; by default the folder.")
    ] = None,
    dockerfile: Annotated[
        Path | None, typer.Option("--dockerfile", "-f", help="By default the context's, else server/Dockerfile.")
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Build every layer anew.")] = False,
    build_arg: Annotated[
        list[str] | None, typer.Option(help="Argument KEY=VALUE of the Dockerfile; repeatable.")
    ] = None,
) -> None:
    """Build an environment's image."""
    arguments = pairs("build", "--build-arg", build_arg or [])
    name = tag or f"openenv-{_name(env_path)}"
    build_image(
        "build",
        env_path,
        name,
        context=context,
        dockerfile=dockerfile,
        no_cache=no_cache,
        build_args=arguments,
    )
    typer.echo(name)


def _name(folder: Path) -> str:
    """As the manifest names it, else as the folder is named."""
    file = folder / "openenv.yaml"
    manifest = read_manifest(file) if file.is_file() else None
    name = str((manifest or {}).get("name") or folder.resolve().name)
    return name.removesuffix("_env").lower()
