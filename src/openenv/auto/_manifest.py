"""Reads ``openenv.yaml``. A manifest is a flat list of names and plain values, so no YAML library is needed for it;
where one is installed, it reads the rest as well."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

__all__ = ["find_manifest", "read_manifest"]

logger = logging.getLogger("openenv.client")

FILE = "openenv.yaml"

_LINE = re.compile(r"^([A-Za-z_][\w-]*):(?:\s+(.*?))?\s*$")


def find_manifest(module_name: str) -> Path | None:
    """The manifest of an installed package: in it, or beside it where it is installed in editable form. The package is
    not imported for that."""
    try:
        spec = find_spec(module_name)
    except (ImportError, ValueError, AttributeError):
        return None
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        here = Path(place)
        for folder in (here, here.parent, here.parent.parent):
            if (folder / FILE).is_file() and (folder is here or (folder / "pyproject.toml").is_file()):
                return folder / FILE
    return None


def read_manifest(path: Path) -> dict[str, Any] | None:
    """A manifest's values; None if it cannot be read, which is logged."""
    try:
        text = path.read_text(encoding="utf-8")
        found = _library()(text) if find_spec("yaml") is not None else _plain(text)
    except Exception as error:  # the library's own errors have no base that is known here; one manifest fails, not all
        logger.warning("%s cannot be read: %s: %s", path, type(error).__name__, error)
        return None
    return found if isinstance(found, dict) else None


def _library() -> Callable[[str], Any]:
    load: Callable[[str], Any] = import_module("yaml").safe_load
    return load


def _plain(text: str) -> dict[str, Any]:
    lines = (line for line in text.splitlines() if line and line[0] not in " \t-#")
    return {match[1]: _value(match[2] or "") for match in map(_LINE.match, lines) if match}


def _value(text: str) -> Any:
    if text[:1] in ('"', "'") and text[:1] in text[1:]:
        return text[1 : text.index(text[0], 1)]
    plain = re.split(r"\s+#", text)[0].strip()
    if re.fullmatch(r"[-+]?\d+", plain):
        return int(plain)
    return {"true": True, "false": False, "null": None, "~": None, "": None}.get(plain.lower(), plain)
