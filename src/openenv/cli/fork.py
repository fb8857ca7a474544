"""``openenv fork``: copy a Space to your account; with ``--safe`` the copy runs this package instead of upstream's.

The copy's address, or with ``--dry-run`` what would be edited, goes to stdout, everything else to stderr. Exit code 0;
1 if it was refused on the way, 2 if it could not begin. A Space that is not understood is refused before it is copied.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from openenv.cli._hub import Hub, HubError, SpaceNow, known_token, need_hub
from openenv.cli._parcel import is_secret
from openenv.cli._says import failed, note, pairs, printable, wrong
from openenv.cli._space_files import Refusal
from openenv.cli._swap import Swap, wanted_files
from openenv.cli._wheel import WHEEL, git_reference, write_wheel

__all__ = ["fork"]

_PLACE = f"wheels/{WHEEL}"
_REFERENCE = re.compile(r"(==|>=|~=)[\w.,<>=~!*]+|https?://\S+\.whl(#\S+)?|git\+https?://\S+@[\w./-]+")


def fork(
    source_space: Annotated[str, typer.Argument(help="The Space to copy, as owner/name.")],
    repo_id: Annotated[
        str | None, typer.Option("--repo-id", "-r", help="The copy, as owner/name. Default: the same name, yours.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Make the copy private.")] = False,
    set_env: Annotated[
        list[str] | None, typer.Option("--set-env", "-e", help="Variable KEY=VALUE; repeatable.")
    ] = None,
    set_secret: Annotated[
        list[str] | None,
        typer.Option("--set-secret", "--secret", "-s", help="Secret KEY=VALUE; KEY alone: from the environment."),
    ] = None,
    hardware: Annotated[str, typer.Option("--hardware", "-H", help="Hardware, as cpu-basic, t4-medium.")] = "cpu-basic",
    safe: Annotated[bool, typer.Option("--safe", help="Swap upstream's package for this one.")] = False,
    openenv: Annotated[
        str | None,
        typer.Option(
            "--openenv",
            help="With --safe, what to install: git+https://...@commit, the URL of a wheel, or a version as ==0.11.0. "
            "By default the very openenv that runs.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --safe, show the edits, and copy nothing.")] = False,
) -> None:
    """Copy a Space to your account, and make the copy safe."""
    variables = pairs("fork", "--set-env", set_env or [])
    secrets = pairs("fork", "--set-secret", set_secret or [], from_environment=True)
    for option, given in (("SOURCE_SPACE", source_space), ("--repo-id", repo_id)):
        if given is not None and re.fullmatch(r"[\w.-]+/[\w.-]+", given) is None:
            raise wrong("fork", f"{option} {given} is not owner/name")
    if not safe and (openenv is not None or dry_run):
        raise wrong("fork", "--openenv and --dry-run are about the edits that --safe makes")
    reference = _reference(openenv, private) if safe else None
    need_hub("fork")
    if public := [key for key, value in variables.items() if is_secret(value, [known_token()])]:
        text = f"everybody can read variables, and {public[0]} looks like a secret: use --set-secret for it"
        raise wrong("fork", text)
    hub = Hub(tuple(secrets.values()))
    try:
        source = hub.space(source_space)
        if source is None:
            raise HubError(f"there is no Space {source_space}, or it is private and this token may not see it")
        if reference is not None:
            swap = _plan(hub, source, reference.shown(hub, repo_id or f"YOU/{source_space.split('/')[1]}"))
            if dry_run:
                typer.echo(printable(_diff(swap)), nl=False)
                return
        target = repo_id or f"{hub.user()}/{source_space.split('/')[1]}"
        if hub.space(target) is not None:
            raise HubError(f"there is a Space {target} already; name another with --repo-id")
        note(f"copying {source_space} to {target} ...")
        hub.duplicate(source_space, target, private=private, hardware=hardware, variables=variables, secrets=secrets)
        if reference is not None:
            _make_safe(hub, target, reference)
        typer.echo(hub.page(target))
    except Refusal as refusal:
        raise failed("fork", f"{source_space} was not copied: {refusal}") from None
    except HubError as error:
        raise failed("fork", str(error)) from None


@dataclass(frozen=True)
class _Reference:
    """What the copy is to install: what was named, or a wheel that is put into it."""

    named: str | None
    wheel: bytes = b""

    def at(self, hub: Hub, space: str, commit: str) -> str:
        """The reference, once the wheel is in a commit of the Space."""
        if self.named is not None:
            return self.named
        digest = hashlib.sha256(self.wheel).hexdigest()
        return f"{hub.page(space)}/resolve/{commit}/{_PLACE}#sha256={digest}"

    def shown(self, hub: Hub, space: str) -> str:
        """The same, before there is such a commit."""
        return self.at(hub, space, "COMMIT")


def _reference(given: str | None, private: bool) -> _Reference:
    if given is not None:
        if "@" in urlsplit(given.removeprefix("git+")).netloc:
            raise wrong("fork", "--openenv holds credentials, which everybody who sees the copy could read")
        if _REFERENCE.fullmatch(given) is None:
            text = "it takes git+https://host/repository@commit, the URL of a .whl file, or a version as ==0.11.0"
            raise wrong("fork", f"--openenv {given}: {text}")
        return _Reference(given)
    named = git_reference()
    if named is not None:
        return _Reference(named)
    if private:
        text = "a private Space's image cannot fetch a wheel from it: name one that it can fetch with --openenv"
        raise wrong("fork", f"--private --safe: {text}")
    try:
        with tempfile.TemporaryDirectory(prefix="openenv-wheel-") as folder:
            return _Reference(None, write_wheel(Path(folder)).read_bytes())
    except PackageNotFoundError:
        raise wrong(
            "fork", "openenv is not installed here, so no wheel of it can be made: name one with --openenv"
        ) from None


def _plan(hub: Hub, space: SpaceNow, reference: str) -> Swap:
    if space.sdk not in ("docker", ""):
        raise Refusal(f"it is a Space with sdk: {space.sdk}, and no environment server")
    paths = wanted_files(space.files)
    note(f"reading {len(paths)} files of {space.name} ...")
    try:
        texts = {path: data.decode() for path, data in hub.read(space.name, space.commit, paths).items()}
    except UnicodeDecodeError as error:
        raise Refusal(f"one of its files is not a text in UTF-8 ({error})") from None
    swap = Swap(texts, space.files, reference)
    swap.run()
    return swap


def _make_safe(hub: Hub, target: str, reference: _Reference) -> None:
    """Edit the copy; what is edited is what was copied, whatever became of the source meanwhile."""
    half = f"{target} was copied, but still runs upstream's package"
    try:
        copied = _there(hub, target)
        commit = copied.commit
        if reference.wheel:
            note(f"sending {WHEEL} ...")
            commit = hub.commit(target, {_PLACE: reference.wheel}, f"Add {WHEEL}", parent=commit)
        swap = _plan(hub, copied, reference.at(hub, target, commit))
        note(_diff(swap).rstrip())
        for text in swap.notes:
            note(text)
        edits: Mapping[str, bytes] = {path: text.encode() for path, text in swap.edited.items() if text is not None}
        deleted: Iterable[str] = [path for path, text in swap.edited.items() if text is None]
        hub.commit(target, edits, "Run the session-safe openenv", deleted=deleted, parent=commit)
    except (Refusal, HubError) as error:
        raise HubError(f"{half}: {error}") from None


def _there(hub: Hub, target: str) -> SpaceNow:
    found = hub.space(target)
    if found is None:
        raise HubError(f"the Hub does not show {target} yet")
    return found


def _diff(swap: Swap) -> str:
    parts = []
    for path, new in sorted(swap.edited.items()):
        old = swap.files[path].splitlines(keepends=True)
        if new is None:
            parts.append(f"--- a/{path}\n+++ /dev/null\n({len(old)} lines are taken out)\n")
        else:
            for line in difflib.unified_diff(old, new.splitlines(keepends=True), f"a/{path}", f"b/{path}"):
                parts.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(parts)
