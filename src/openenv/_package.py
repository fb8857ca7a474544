"""An environment package on disk, and its application: what ``openenv.yaml`` names, or what ``module:app`` does."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openenv.auto._manifest import FILE, read_manifest

__all__ = ["MANIFEST", "AppSource", "NoApp", "find_app", "load_app"]

MANIFEST = FILE

_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class NoApp(ValueError):
    """There is no application; the text says why, and what to do."""


@dataclass(frozen=True, slots=True)
class AppSource:
    """Where an application is.

    Attributes:
        reference: as ``module:name``.
        folder: what must be on the path of modules.
        manifest: the values of ``openenv.yaml``; empty where there is none.
    """

    reference: str
    folder: Path
    manifest: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What it is called."""
        return str(self.manifest.get("name") or self.reference.partition(":")[0].partition(".")[0])


def find_app(target: str | None = None) -> AppSource:
    """Find an application.

    Args:
        target: a folder with ``openenv.yaml``, or that file; or ``module:name``. By default the present folder.

    Raises:
        NoApp: there is none.
    """
    path = Path(target or ".")
    if target is not None and not path.exists() and _REFERENCE.fullmatch(target):
        return AppSource(target, Path.cwd(), {})
    folder = path.parent if path.name == MANIFEST else path
    if not folder.is_dir():
        raise NoApp(f"{target} is neither a folder nor module:app")
    manifest = folder / MANIFEST
    if not manifest.is_file():
        raise NoApp(f"there is no {MANIFEST} in {folder.resolve()}: name a folder that has one, or module:app")
    values = read_manifest(manifest)
    reference = (values or {}).get("app")
    if values is None:
        raise NoApp(f"{manifest} cannot be read as a list of names and values")
    if not isinstance(reference, str) or not _REFERENCE.fullmatch(reference):
        raise NoApp(f"{manifest} does not say where the application is: it needs a line app: package.module:name")
    return AppSource(reference, folder.resolve(), values)


def load_app(source: AppSource) -> Any:
    """Import an application. Its folder stays on the path of modules.

    Raises:
        NoApp: its module has no such name.
        Exception: what its module raised when it was imported.
    """
    if str(source.folder) not in sys.path:
        sys.path.insert(0, str(source.folder))
    module, _, name = source.reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise NoApp(f"the module {module} has no {name}") from None
    return found
