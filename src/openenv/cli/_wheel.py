"""The running openenv as something that others can install: a wheel of its files, or the commit that it came from.

The package indexes know another project under this name, so an image cannot ask them for it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit

import openenv
from openenv import __version__

__all__ = ["WHEEL", "git_reference", "write_wheel"]

WHEEL = f"openenv-{__version__}-py3-none-any.whl"
"""Name of the file that `write_wheel` writes."""

_PACKAGES = ("openenv", "openenv_core")
_TAGS = "Wheel-Version: 1.0\nGenerator: openenv\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_DATE = (2020, 1, 1, 0, 0, 0)  # of every file, so that the same files are the same wheel


def git_reference() -> str | None:
    """What installs the very commit that this openenv was installed from, as ``git+https://...@<commit>``.

    Returns:
        None if it was not installed from a public repository.
    """
    try:
        told = json.loads(_installed().read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return None
    source = told.get("vcs_info", {})
    if source.get("vcs") != "git" or not str(told.get("url", "")).startswith("https://"):
        return None
    url = urlsplit(told["url"])
    open_to_all = url._replace(netloc=url.netloc.rpartition("@")[2])  # its credentials are not for others
    return f"git+{open_to_all.geturl()}@{source['commit_id']}"


def write_wheel(folder: Path) -> Path:
    """Write a wheel of the openenv that runs.

    Args:
        folder: where to; made if it is not there.

    Returns:
        The file.

    Raises:
        PackageNotFoundError: openenv runs from its sources and was not installed.
    """
    installed, info = _installed(), f"openenv-{__version__}.dist-info"
    files = _sources()
    files[f"{info}/METADATA"] = _metadata(installed).encode()
    files[f"{info}/WHEEL"] = _TAGS.encode()
    files[f"{info}/entry_points.txt"] = (installed.read_text("entry_points.txt") or "").encode()
    files[f"{info}/licenses/LICENSE"] = (installed.read_text("licenses/LICENSE") or "").encode()
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / WHEEL
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _DATE)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return wheel


def _installed() -> Distribution:
    return distribution("openenv")


def _metadata(installed: Distribution) -> str:
    """Its metadata; with the version of the files, which may be newer where it was installed in editable form."""
    lines = (installed.read_text("METADATA") or "").splitlines(keepends=True)
    return "".join(f"Version: {__version__}\n" if line.startswith("Version:") else line for line in lines)


def _sources() -> dict[str, bytes]:
    root = Path(openenv.__file__).parent.parent
    found = {}
    for package in _PACKAGES:
        for file in sorted((root / package).rglob("*")):
            inner = file.relative_to(root).parts
            if file.is_file() and "__pycache__" not in inner and not any(part.startswith(".") for part in inner):
                found[file.relative_to(root).as_posix()] = file.read_bytes()
    return found


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
