"""``openenv push``: send an environment to a Space of the Hugging Face Hub, or its image to a registry.

The Space's address, or with ``--dry-run`` the list of files, goes to stdout, everything else to stderr. Exit code 0;
1 if it was refused on the way, 2 if it could not begin. Nothing leaves the machine before every file was looked at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated

import typer

from openenv.auto._manifest import read_manifest
from openenv.cli._hub import Hub, HubError, known_token, need_hub
from openenv.cli._images import build_image, push_image
from openenv.cli._parcel import Parcel, gather, is_secret
from openenv.cli._says import failed, note, pairs, wrong
from openenv.cli._space_files import WEB_VARIABLE, Refusal, SpaceFiles

__all__ = ["push"]

_SPACE = re.compile(r"([\w.-]+/)?[\w.-]+")


@dataclass(frozen=True)
class _Order:
    """What is to be sent, and how."""

    folder: Path
    name: str
    port: int | None
    interface: bool
    base_image: str | None
    exclude: Path | None
    private: bool
    hardware: str | None
    variables: dict[str, str]
    secrets: dict[str, str]
    create_pr: bool
    delete: tuple[str, ...]


def push(
    directory: Annotated[Path, typer.Argument(help="The environment's folder, with its openenv.yaml.")] = Path("."),
    repo_id: Annotated[
        str | None,
        typer.Option("--repo-id", "-r", help="The Space, as name or owner/name. Default: your account, env's name."),
    ] = None,
    base_image: Annotated[
        str | None, typer.Option("--base-image", "-b", help="Image to build on, in place of the Dockerfile's.")
    ] = None,
    interface: Annotated[
        bool | None,
        typer.Option("--interface/--no-interface", help="Open on the web page; by default for Spaces."),
    ] = None,
    registry: Annotated[
        str | None, typer.Option(help="Build the image and push it to this registry, as ghcr.io/me; no Space.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make the Space private.")] = False,
    create_pr: Annotated[bool, typer.Option("--create-pr", help="Open a pull request on an existing Space.")] = False,
    exclude: Annotated[
        Path | None, typer.Option(help="File of more patterns to leave out, as in a .gitignore.")
    ] = None,
    delete: Annotated[
        list[str] | None, typer.Option(help="Pattern of files to take out of the Space in the same commit; repeatable.")
    ] = None,
    hardware: Annotated[str | None, typer.Option("--hardware", "-H", help="Hardware, as cpu-basic, t4-medium.")] = None,
    count: Annotated[
        int, typer.Option("--count", "-n", min=1, help="Number of Spaces; with more than one, -1, -2 ... are appended.")
    ] = 1,
    env_var: Annotated[
        list[str] | None,
        typer.Option("--env-var", "-e", help="Variable KEY=VALUE, over those of openenv.yaml; repeatable."),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(help="Secret KEY=VALUE; KEY alone takes it from the environment. Never shown. Repeatable."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent, and send nothing.")] = False,
) -> None:
    """Publish an environment: a Space on the Hugging Face Hub, or an image in a registry."""
    variables = pairs("push", "--env-var", env_var or [])
    secrets = pairs("push", "--secret", secret or [], from_environment=True)
    _check_options(registry, create_pr, count, bool(variables or secrets))
    name, port, own = _manifest(directory)
    if repo_id is not None and _SPACE.fullmatch(repo_id) is None:
        raise wrong("push", f"--repo-id {repo_id} is not name or owner/name")
    if registry is not None:
        _to_registry(directory, name, registry, bool(interface), dry_run)
        return
    need_hub("push")
    order = _Order(
        directory.resolve(),
        name,
        port,
        interface is not False,
        base_image,
        _exclude_file(directory, exclude),
        private,
        hardware,
        {**own, **variables},
        secrets,
        create_pr,
        tuple(delete or ()),
    )
    parcel = _pack(order)
    if dry_run:
        _show(order, parcel, repo_id, count)
    else:
        _to_spaces(order, parcel, repo_id or name, count)


def _to_spaces(order: _Order, parcel: Parcel, space: str, count: int) -> None:
    hub = Hub(tuple(order.secrets.values()))
    try:
        space = space if "/" in space else f"{hub.user()}/{space}"
        for target in [space] if count == 1 else [f"{space}-{number}" for number in range(1, count + 1)]:
            typer.echo(_send(hub, target, order, parcel))
    except HubError as error:
        raise failed("push", str(error)) from None


def _exclude_file(directory: Path, given: Path | None) -> Path | None:
    """The file of ``--exclude``, which may be named as it is seen from the environment's folder."""
    if given is None:
        return None
    found = next((path for path in (given, directory / given) if path.is_file()), None)
    if found is None:
        raise wrong("push", f"--exclude {given} is no file")
    return found


def _check_options(registry: str | None, create_pr: bool, count: int, settings: bool) -> None:
    if registry is not None and (create_pr or count > 1 or settings):
        raise wrong("push", "an image goes to the registry: --create-pr, --count, --env-var and --secret are of Spaces")
    if create_pr and (count > 1 or settings):
        raise wrong("push", "--create-pr proposes files to one Space: its settings, and other Spaces, are not for it")


def _manifest(directory: Path) -> tuple[str, int | None, dict[str, str]]:
    """Name, port and variables of an environment's manifest."""
    file = directory / "openenv.yaml"
    if not file.is_file():
        raise wrong("push", f"{directory} has no openenv.yaml: name an environment's folder, or `openenv init` one")
    manifest = read_manifest(file)
    name = "" if manifest is None else str(manifest.get("name") or "")
    if manifest is None or re.fullmatch(r"[\w.-]+", name) is None:
        raise wrong("push", f"{file} cannot be used: it needs a line `name: my_env`")
    variables = manifest.get("variables") or {}
    if not isinstance(variables, dict):
        raise wrong("push", f"{file}: variables must be a mapping of KEY: value")
    port = manifest.get("port")
    return name, port if isinstance(port, int) else None, {str(key): str(value) for key, value in variables.items()}


def _pack(order: _Order) -> Parcel:
    try:
        parcel = gather(order.folder, order.exclude)
        changes = SpaceFiles(parcel, order.name, order.port, order.interface, order.base_image).prepare()
        found = parcel.secrets([known_token(), *order.secrets.values()])
    except (OSError, ValueError, Refusal) as error:
        raise wrong("push", str(error)) from None
    for change in changes:
        note(change)
    if public := [key for key, value in order.variables.items() if is_secret(value, [known_token()])]:
        raise wrong("push", f"everybody can read variables, and {public[0]} looks like a secret: use --secret for it")
    if found:
        text = f"what looks like a secret stands in {', '.join(found[:5])}{' and others' if found[5:] else ''}"
        raise wrong("push", f"{text}: pass it with --secret and read it from the environment, or --exclude the file")
    return parcel


def _show(order: _Order, parcel: Parcel, repo_id: str | None, count: int) -> None:
    for path, why in parcel.left_out.items():
        note(f"left out: {path} ({why})")
    where = repo_id or order.name
    note(f"to {where if '/' in where else f'<your account>/{where}'}{f'-1 ... -{count}' if count > 1 else ''}:")
    for kind, given in (("variable", order.variables), ("secret", dict.fromkeys(order.secrets, "***"))):
        for key, value in given.items():
            note(f"{kind} {key}={value}")
    for path in sorted(parcel.files):
        typer.echo(path)
    total = sum(map(parcel.size, parcel.files))
    note(f"{len(parcel.files)} files, {total:,} bytes; nothing was sent")


def _send(hub: Hub, target: str, order: _Order, parcel: Parcel) -> str:
    """Send to one Space; its address, or the pull request's."""
    there = hub.space(target)
    if order.create_pr and there is None:
        raise HubError(f"there is no Space {target} for a pull request; push without --create-pr makes it")
    if order.private and there is not None and not there.private:
        raise HubError(f"{target} is there and public, which --private does not change; make it private on its page")
    if not order.create_pr:
        if there is None:
            hub.create(target, private=order.private, hardware=order.hardware)
            note(f"made {target}")
        elif order.hardware is not None:
            hub.set_hardware(target, order.hardware)
        # Before the files, so that the server that is built from them has them from the first.
        hub.configure(target, order.variables, order.secrets)
        for kind, given in (("variable", order.variables), ("secret", order.secrets)):
            for key in given:
                note(f"set {kind} {key}")
    old = there.files if there is not None else ()
    deleted = [path for path in old if path not in parcel.files and any(fnmatch(path, one) for one in order.delete)]
    note(f"sending {len(parcel.files)} files to {target} ...")
    made = hub.commit(
        target, parcel.files, f"Push {order.name} with openenv", deleted=deleted, create_pr=order.create_pr
    )
    if order.create_pr:
        return made
    note(f"commit {made[:12]}; the Space builds now, which takes some minutes: `openenv doctor` tells when it is up")
    return hub.page(target)


def _to_registry(directory: Path, name: str, registry: str, interface: bool, dry_run: bool) -> None:
    tag = f"{registry.rstrip('/')}/{name}"
    if dry_run:
        typer.echo(tag)
        return
    build_image("push", directory, tag, build_args={WEB_VARIABLE: "true"} if interface else {})
    push_image("push", tag)
    typer.echo(tag)
