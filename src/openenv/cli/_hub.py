"""The Hugging Face Hub, through its own library, which is loaded when a command needs it.

What may be asked of it, and its errors as one line with the next move. Neither the user's token nor the value of a
secret is in any text that leaves here.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openenv import __version__
from openenv.cli._says import wrong

__all__ = ["Hub", "HubError", "SpaceNow", "known_token", "need_hub"]

INSTALL = "pip install 'openenv[hub]'"

_WORDS = {
    401: "the Hub does not take this token: log in with `hf auth login`, or set HF_TOKEN",
    402: "the Hub wants a payment for this: see the account's billing, or choose --hardware cpu-basic",
    403: "this token may not do that: it needs write access to the Spaces of the account or organization",
    404: "there is nothing of that name, or this token may not see it",
    409: "there is something of that name already",
    429: "the Hub limits this account for now: try again later",
}


def need_hub(command: str) -> None:
    """Look for the ``hub`` extra.

    Raises:
        typer.Exit: it is not there.
    """
    try:
        import huggingface_hub  # noqa: F401
        import pathspec  # noqa: F401
    except ModuleNotFoundError as error:
        raise wrong(command, f"{error.name} is not installed. Run: {INSTALL}") from None


def known_token() -> str:
    """The user's token, so that it can be kept out of files and messages; empty without one."""
    from huggingface_hub import get_token

    return str(get_token() or "")


class HubError(Exception):
    """The Hub did not do it. Says why.

    Attributes:
        status: HTTP status of its answer, if there was one.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        self.status = status
        super().__init__(message)


@dataclass(frozen=True)
class SpaceNow:
    """A Space as the Hub knows it.

    Attributes:
        name: as ``owner/name``.
        commit: the commit that it is at.
        private: whether only its owners see it.
        sdk: as ``docker``.
        files: paths of its files.
    """

    name: str
    commit: str
    private: bool
    sdk: str
    files: tuple[str, ...]


@dataclass
class Hub:
    """One user's access.

    Attributes:
        secrets: values that no message may show.
    """

    secrets: tuple[str, ...] = ()
    _api: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        from huggingface_hub import HfApi

        endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or None
        self._api = HfApi(endpoint=endpoint, library_name="openenv", library_version=__version__)

    @property
    def endpoint(self) -> str:
        """The Hub's address."""
        return str(self._api.endpoint)

    def page(self, space: str) -> str:
        """Where a Space is seen."""
        return f"{self.endpoint}/spaces/{space}"

    def user(self) -> str:
        """The name of the account whose token is used.

        Raises:
            HubError: there is no token, or it is not taken.
        """
        if not known_token():
            raise HubError("there is no token: log in with `hf auth login`, or set HF_TOKEN")
        return str(self._asked("who you are", self._api.whoami)["name"])

    def space(self, name: str) -> SpaceNow | None:
        """A Space; None if there is none of that name.

        Raises:
            HubError: the Hub does not tell.
        """
        try:
            info = self._asked(f"for {name}", self._api.space_info, name)
        except HubError as error:
            if error.status == 404:
                return None
            raise
        files = tuple(sibling.rfilename for sibling in info.siblings or ())
        return SpaceNow(name, str(info.sha), bool(info.private), str(info.sdk or ""), files)

    def create(self, name: str, *, private: bool, hardware: str | None) -> None:
        """Make a Space for a Dockerfile."""
        more = {} if hardware is None else {"space_hardware": hardware}
        make = self._api.create_repo
        self._asked(f"to create {name}", make, name, repo_type="space", space_sdk="docker", private=private, **more)

    def set_hardware(self, name: str, hardware: str) -> None:
        """Move a Space that is there to other hardware."""
        self._asked(f"for {hardware}", self._api.request_space_hardware, name, hardware)

    def configure(self, name: str, variables: Mapping[str, str], secrets: Mapping[str, str]) -> None:
        """Set a Space's variables and secrets, beside those it has."""
        for set_one, given in (
            (self._api.add_space_secret, secrets),
            (self._api.add_space_variable, variables),
        ):
            for key, value in given.items():
                self._asked(f"to set {key}", set_one, name, key, value)

    def commit(
        self,
        name: str,
        files: Mapping[str, Path | bytes],
        message: str,
        *,
        deleted: Iterable[str] = (),
        create_pr: bool = False,
        parent: str | None = None,
    ) -> str:
        """Send files in one commit.

        Args:
            name: the Space.
            files: path in it, and the file or its bytes.
            message: of the commit.
            deleted: paths to take out.
            create_pr: open a pull request with it.
            parent: the commit that it must follow.

        Returns:
            The commit's id; for a pull request its address.

        Raises:
            HubError: it was not taken.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        operations: list[Any] = [CommitOperationDelete(path, is_folder=False) for path in deleted]
        for path, held in files.items():
            operations.append(CommitOperationAdd(path, str(held) if isinstance(held, Path) else held))
        made = self._asked(
            f"to take the files of {name}",
            self._api.create_commit,
            name,
            operations,
            commit_message=message,
            repo_type="space",
            create_pr=create_pr,
            parent_commit=parent,
        )
        return str(made.pr_url) if create_pr else str(made.oid)

    def read(self, name: str, commit: str, paths: Iterable[str]) -> dict[str, bytes]:
        """Some files of a Space at one commit."""
        found = {}
        with tempfile.TemporaryDirectory(prefix="openenv-space-") as folder:
            for path in paths:
                load = self._api.hf_hub_download
                options = {"repo_type": "space", "revision": commit, "local_dir": folder}
                file = self._asked(f"for {path} of {name}", load, name, path, **options)
                found[path] = Path(file).read_bytes()
        return found

    def duplicate(
        self,
        source: str,
        target: str,
        *,
        private: bool,
        hardware: str,
        variables: Mapping[str, str],
        secrets: Mapping[str, str],
    ) -> None:
        """Copy a Space, with its history, on the Hub's side."""
        listed = [[{"key": key, "value": value} for key, value in given.items()] for given in (variables, secrets)]
        if hasattr(self._api, "duplicate_repo"):
            copy, more, prefix = self._api.duplicate_repo, {"repo_type": "space"}, "space_"
        else:  # before version 2 of the library
            copy, more, prefix = self._api.duplicate_space, {}, ""
        settings = {"hardware": hardware, "variables": listed[0] or None, "secrets": listed[1] or None}
        options = {f"{prefix}{key}": value for key, value in settings.items() if value is not None}
        what = f"to duplicate {source} as {target}"
        self._asked(what, copy, source, target, private=private, **more, **options)

    def _asked(self, what: str, ask: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            return ask(*arguments, **options)
        except Exception as error:
            # The library's errors have no base of their own, and those of its transport differ by its version; each of
            # them means that the Hub did not do it, and is told as that.
            raise self._told(what, error) from None

    def _told(self, what: str, error: Exception) -> HubError:
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", None)
        said = str(getattr(error, "server_message", None) or "").strip()
        words = _WORDS.get(status or 0) or (said if status else f"{type(error).__name__}: {error}")
        if status is not None:
            words = f"HTTP {status}, {words}{f' (it says: {said})' if said and said != words else ''}"
        text = f"the Hub was asked {what}: {words}"
        for secret in self._never_shown():
            text = text.replace(secret, "***")
        return HubError(text, status)

    def _never_shown(self) -> tuple[str, ...]:
        return tuple(secret for secret in (*self.secrets, known_token()) if secret)
