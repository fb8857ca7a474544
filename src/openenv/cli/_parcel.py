"""Which files of an environment's folder are sent to a Space.

What a repository or an image would not take is left out as ``.gitignore`` and ``.dockerignore`` say. What must never
leave the machine is left out whatever they say: hidden files and folders, virtual environments, caches, keys. A file
that holds a secret in its text stops everything, since to leave it out in silence would break the environment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

__all__ = ["Parcel", "gather"]

_KEPT_HIDDEN = frozenset((".dockerignore", ".gitattributes", ".gitignore", ".python-version"))
_ALWAYS = frozenset(("Dockerfile", "README.md", "openenv.yaml", "server/Dockerfile"))
"""What a Space needs, although images leave it out."""

_JUNK = ("__pycache__", "node_modules", "venv", "*.egg-info", "*.pyc", "*.pyo", "*.swp", "*~")
_JUNK_AT_ROOT = ("build", "dist")
_KEYS = ("*.pem", "*.key", "*.p12", "*.pfx", "*.kdbx", "*.env", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*")
_CREDENTIALS = (
    *("credentials.json", "service_account*.json", "service-account*.json", "netrc", "token", "token.txt"),
    *("secrets.json", "secrets.toml", "secrets.yaml", "secrets.yml"),
)

_SECRET = re.compile(
    rb"hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{32,}|gh[pousr]_[A-Za-z0-9]{36,}|AKIA[0-9A-Z]{16}"
    rb"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
_SEARCHED = 2_000_000  # bytes; larger files are data


@dataclass
class Parcel:
    """The files, and what was left out.

    Attributes:
        files: path in the Space, with slashes: the file, or its bytes if they are other than the file's.
        left_out: path in the folder, and why. A folder ends with a slash.
    """

    files: dict[str, Path | bytes] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def read(self, path: str) -> bytes | None:
        """A file's bytes; None if it is not among them."""
        held = self.files.get(path)
        return held.read_bytes() if isinstance(held, Path) else held

    def text(self, path: str) -> str | None:
        """A file's text; None if it is not among them.

        Raises:
            ValueError: it is not UTF-8.
        """
        data = self.read(path)
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not a text in UTF-8") from None

    def size(self, path: str) -> int:
        """A file's size in bytes."""
        held = self.files[path]
        return held.stat().st_size if isinstance(held, Path) else len(held)

    def secrets(self, tokens: Iterable[str] = ()) -> list[str]:
        """Where secrets stand in the files, as ``path:line``; the secrets are not told.

        Args:
            tokens: secrets that are known, as the user's own token.
        """
        known = [token.encode() for token in tokens if len(token) >= 8]
        found = []
        for path in self.files:
            data = self.read(path) if self.size(path) <= _SEARCHED else None
            for number, line in enumerate((data or b"").splitlines(), start=1):
                if _SECRET.search(line) or any(token in line for token in known):
                    found.append(f"{path}:{number}")
        return found


def gather(folder: Path, exclude: Path | None = None) -> Parcel:
    """Collect the files of an environment's folder.

    Args:
        folder: the folder.
        exclude: a file of further patterns, as in a ``.gitignore``.

    Raises:
        OSError: something cannot be read.
    """
    lines = None if exclude is None else exclude.read_text(encoding="utf-8").splitlines()
    walk = _Walk(folder, None if lines is None else _spec(lines), _docker_spec(folder))
    walk.through(folder, ())
    return walk.parcel


@dataclass
class _Walk:
    """Goes through a folder, by name."""

    root: Path
    exclude: GitIgnoreSpec | None
    docker: GitIgnoreSpec | None
    parcel: Parcel = field(default_factory=Parcel)

    def through(self, folder: Path, rules: tuple[tuple[str, GitIgnoreSpec], ...]) -> None:
        """Collect what stays, by the ``.gitignore`` files of the folders above and this one's own."""
        own = folder / ".gitignore"
        if own.is_file():
            here = folder.relative_to(self.root).as_posix()
            lines = own.read_text(encoding="utf-8", errors="replace").splitlines()
            rules = (*rules, ("" if here == "." else f"{here}/", _spec(lines)))
        for path in sorted(folder.iterdir()):
            name = path.relative_to(self.root).as_posix()
            shown = name + "/" * path.is_dir()
            why = _never(path, self.root) or self._ignored(name, shown, rules)
            if why:
                self.parcel.left_out[shown] = why
            elif path.is_dir():
                self.through(path, rules)
            else:
                self.parcel.files[name] = path

    def _ignored(self, name: str, shown: str, rules: tuple[tuple[str, GitIgnoreSpec], ...]) -> str:
        if self.exclude is not None and self.exclude.match_file(shown):
            return "--exclude"
        for base, spec in reversed(rules):  # the nearest file that has a word on it decides
            said = spec.check_file(shown.removeprefix(base)).include
            if said is not None:
                if said:
                    return f"{base}.gitignore"
                break
        # Of a folder that an image leaves out, a file may be taken back in: so it is asked of files alone.
        docker = self.docker if name not in _ALWAYS and name == shown else None
        return ".dockerignore" if docker is not None and docker.match_file(name) else ""


def _never(path: Path, root: Path) -> str:
    if path.name.startswith(".") and (path.name not in _KEPT_HIDDEN or path.is_dir()):
        return "hidden"
    if any(fnmatch(path.name, pattern) for pattern in _JUNK):
        return "made by tools"
    if path.parent == root and path.is_dir() and path.name in _JUNK_AT_ROOT:
        return "made by tools"
    if path.is_dir() and (path / "pyvenv.cfg").exists():
        return "a virtual environment"
    if not path.is_dir() and any(fnmatch(path.name.lower(), pattern) for pattern in (*_KEYS, *_CREDENTIALS)):
        return "its name is one of secrets"
    if path.is_symlink():
        if path.is_dir():
            return "a link to a folder"
        if not path.resolve().is_relative_to(root.resolve()):
            return "a link that leads out of the folder"
    return "" if path.is_dir() or path.is_file() else "neither a file nor a folder"


def _spec(lines: Iterable[str]) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(lines)


def _docker_spec(folder: Path) -> GitIgnoreSpec | None:
    """The rules of ``.dockerignore``, whose patterns begin at the folder itself."""
    file = folder / ".dockerignore"
    if not file.is_file():
        return None
    lines = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        pattern = line.strip()
        if pattern and not pattern.startswith("#"):
            back, pattern = ("!", pattern[1:].strip()) if pattern.startswith("!") else ("", pattern)
            lines.append(f"{back}/{PurePosixPath(pattern.lstrip('/')).as_posix()}")
    return _spec(lines)
