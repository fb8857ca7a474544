"""A file that keeps which environments are installed, for programs that want one.

Whoever can write it chooses which modules are imported later, so it is read only if it is a regular file of this user
that nobody else can write. Discovery itself keeps what it found in memory: a list in a file goes stale.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["default_cache_file", "is_trusted_cache_file", "open_trusted_cache", "read_cache", "write_cache"]


def default_cache_file() -> Path:
    """``openenv/discovery_cache.json`` under ``XDG_CACHE_HOME``, or else under ``.cache`` of the home directory.

    Raises:
        RuntimeError: neither is an absolute path; a relative one would depend on the working directory.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not given.is_absolute():
        home = Path.home()
        if not home.is_absolute():
            raise RuntimeError(f"There is no absolute home directory, but {str(home)!r}: set HOME or XDG_CACHE_HOME.")
        given = home / ".cache"
    return given / "openenv" / "discovery_cache.json"


def is_trusted_cache_file(path: Path) -> bool:
    """Whether a file is this user's and nobody else may write it. Where files have no owners: yes."""
    if os.name != "posix":
        return True
    try:
        return _is_ours(path.stat())
    except OSError:
        return False


def open_trusted_cache(path: Path) -> int | None:
    """Open a file to read, and look at what was opened; a link, a pipe or a file that others can write gives None.

    Returns:
        A descriptor for the caller to close.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and (os.name != "posix" or _is_ours(found)):
        return descriptor
    os.close(descriptor)
    return None


def _is_ours(found: os.stat_result) -> bool:
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def read_cache(path: Path) -> dict[str, dict[str, Any]] | None:
    """What `write_cache` has put there; None if there is nothing that can be trusted and read."""
    descriptor = open_trusted_cache(path)
    if descriptor is None:
        return None
    with os.fdopen(descriptor, encoding="utf-8") as file:
        try:
            kept = json.load(file)
        except ValueError:
            return None
    return kept if isinstance(kept, dict) and all(isinstance(one, dict) for one in kept.values()) else None


def write_cache(path: Path, entries: dict[str, dict[str, Any]]) -> None:
    """Write a file for this user alone, all of it or nothing.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, name = tempfile.mkstemp(prefix=path.name, dir=path.parent)  # made with mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(entries, file)
        Path(name).replace(path)
    except BaseException:  # raised on; half a file is left to nobody
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
