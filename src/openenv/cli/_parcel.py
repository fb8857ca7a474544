"""Which files of an environment's folder are sent to a Space.

What a repository or an image would not take is left out as ``.gitignore`` and ``.dockerignore`` say. What must never
leave the machine is left out whatever they say: hidden files and folders, virtual environments, caches, keys. A file
that holds a secret in its text stops everything, since to leave it out in silence would break the environment.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

__all__ = ["Parcel", "gather", "is_secret"]

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
    rb"(?<![A-Za-z0-9_-])(?:hf_[A-Za-z0-9]{30,}|sk-(?=[A-Za-z_-]*[0-9])[A-Za-z0-9_-]{32,}|gh[pousr]_[A-Za-z0-9]{36,}"
    rb"|github_pat_[A-Za-z0-9_]{30,}|glpat-[A-Za-z0-9_-]{20,}|xox[abprs]-[A-Za-z0-9-]{20,}|AIza[A-Za-z0-9_-]{35}"
    rb"|A[KS]IA[0-9A-Z]{16})"
    rb"|-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----"
)
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # as the shell of Windows writes what is redirected to a file
_AT_ONCE = 4_000_000  # bytes of a file that are searched at a time
_LONGEST = 1_000  # bytes of a secret; two parts of a file share as many, so that one between them is found


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
        search = _search(tokens)
        return [f"{path}:{line}" for path in self.files for line in self._lines_with(search, path)]

    def _lines_with(self, search: re.Pattern[bytes], path: str) -> list[int]:
        held = self.files[path]
        with BytesIO(held) if isinstance(held, bytes) else held.open("rb") as file:
            return _found_in(file, search)


def is_secret(text: str, tokens: Iterable[str] = ()) -> bool:
    """Whether a text holds what looks like a secret, or one of those that are known."""
    return _search(tokens).search(text.encode(errors="replace")) is not None


def _search(tokens: Iterable[str]) -> re.Pattern[bytes]:
    known = [token.encode() for token in tokens if len(token) >= 8]
    return re.compile(b"|".join((_SECRET.pattern, *map(re.escape, known))))


def _found_in(file: BinaryIO, search: re.Pattern[bytes]) -> list[int]:
    """The lines of a file in which something is found, from 1; of its text, where it is in UTF-16."""
    wide = codecs.getincrementaldecoder("utf-16")("replace") if file.read(2) in _WIDE else None
    file.seek(0)
    found: dict[int, None] = {}
    rest, line = b"", 1
    while part := file.read(_AT_ONCE):
        text = rest + (part if wide is None else wide.decode(part).encode("utf-8", "replace"))
        at = 0
        for match in search.finditer(text):
            line, at = line + text.count(b"\n", at, match.start()), match.start()
            found[line] = None
        kept = max(at, len(text) - _LONGEST)
        line, rest = line + text.count(b"\n", at, kept), text[kept:]
    return list(found)


def gather(folder: Path, exclude: Path | None = None) -> Parcel:
    """Collect the files of an environment's folder.

    Args:
        folder: the folder.
        exclude: a file of further patterns, as in a ``.gitignore``.

    Raises:
        OSError: something cannot be read.
        ValueError: a file of patterns is not understood.
    """
    walk = _Walk(folder, None if exclude is None else _spec(exclude), _docker_spec(folder))
    walk.through(folder, tuple(_rules_above(folder)))
    return walk.parcel


@dataclass(frozen=True)
class _Rules:
    """A ``.gitignore``.

    Attributes:
        base: path of its folder in the root; empty for the root, and for folders above it.
        above: path of the root in its folder, where that is above.
        shown: its own name, for a reader.
        spec: what it says.
    """

    base: str
    above: str
    shown: str
    spec: GitIgnoreSpec

    def say(self, name: str) -> bool | None:
        """Whether it leaves something out; None if it has no word on it."""
        return self.spec.check_file(self.above + name.removeprefix(self.base)).include


def _rules_above(folder: Path) -> list[_Rules]:
    """The rules of the repository that the folder stands in, the outermost first.

    One that leaves out the whole folder has nothing to say of its files: whoever sends it wants them.
    """
    root = folder.resolve()
    top = next((place for place in root.parents if (place / ".git").exists()), None)
    if top is None or (root / ".git").exists():
        return []
    found = []
    for place in (root, *root.parents)[: len(root.relative_to(top).parts) + 1]:
        own = [place / ".gitignore"] if place != root else []
        for file in own + [top / ".git" / "info" / "exclude"] * (place == top):
            if file.is_file():
                above = f"{root.relative_to(place).as_posix()}/"
                rules = _Rules("", above, str(file), _spec(file))
                found += [] if rules.say("") else [rules]
    return found[::-1]


@dataclass
class _Walk:
    """Goes through a folder, by name."""

    root: Path
    exclude: GitIgnoreSpec | None
    docker: GitIgnoreSpec | None
    parcel: Parcel = field(default_factory=Parcel)

    def through(self, folder: Path, rules: tuple[_Rules, ...]) -> None:
        """Collect what stays, by the ``.gitignore`` files of the folders above and this one's own."""
        own = folder / ".gitignore"
        if own.is_file():
            here = folder.relative_to(self.root).as_posix()
            base = "" if here == "." else f"{here}/"
            rules = (*rules, _Rules(base, "", f"{base}.gitignore", _spec(own)))
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

    def _ignored(self, name: str, shown: str, rules: tuple[_Rules, ...]) -> str:
        if self.exclude is not None and self.exclude.match_file(shown):
            return "--exclude"
        for one in reversed(rules):  # the nearest file that has a word on it decides
            said = one.say(shown)
            if said is not None:
                if said:
                    return one.shown
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
    if not path.is_dir() and not path.is_file():
        return "neither a file nor a folder"
    return _never_by_link(path, root) if path.is_symlink() else ""


def _never_by_link(path: Path, root: Path) -> str:
    """Of a link, what it leads to is sent, and must be something that may be."""
    if path.is_dir():
        return "a link to a folder"
    target, top = path.resolve(), root.resolve()
    if not target.is_relative_to(top):
        return "a link that leads out of the folder"
    on_the_way = (target, *target.parents)[: len(target.relative_to(top).parts)]
    why = next(filter(None, (_never(one, top) for one in reversed(on_the_way))), "")
    return why and f"a link to what is left out: {why}"


def _spec(file: Path) -> GitIgnoreSpec:
    return _spec_of(file, _lines(file))


def _spec_of(file: Path, lines: Iterable[str]) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec

    spec = GitIgnoreSpec.from_lines(())
    for line in lines:
        try:
            spec += GitIgnoreSpec.from_lines([line])
        except (ValueError, re.error) as error:
            raise ValueError(f"{file}: the pattern {line!r} is not understood") from error
    return spec


def _lines(file: Path) -> list[str]:
    """The lines of a file of patterns, read as the names of files are; a mark of the encoding is no pattern."""
    text = file.read_text(encoding="utf-8-sig", errors="surrogateescape")
    if "\0" in text:
        raise ValueError(f"{file} is in UTF-16, which is read by nobody: write it in UTF-8")
    return text.splitlines()


def _docker_spec(folder: Path) -> GitIgnoreSpec | None:
    """The rules of ``.dockerignore``, whose patterns begin at the folder itself."""
    file = folder / ".dockerignore"
    if not file.is_file():
        return None
    lines = []
    for line in _lines(file):
        pattern = line.strip()
        if pattern and not pattern.startswith("#"):
            back, pattern = ("!", pattern[1:].strip()) if pattern.startswith("!") else ("", pattern)
            lines.append(f"{back}/{PurePosixPath(pattern.lstrip('/')).as_posix()}")
    return _spec_of(file, lines)
