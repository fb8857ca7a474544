"""Names that are imported when they are first used (PEP 562), so that a package costs nothing to import."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_exports"]


def lazy_exports(
    package: str,
    where: Mapping[str, str],
    submodules: tuple[str, ...] = (),
    out_of_scope: Mapping[str, str] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make ``__getattr__`` and ``__dir__`` for a package whose names live in other modules.

    Args:
        package: the package's ``__name__``.
        where: for each name, the absolute module that defines it.
        submodules: submodules that may be reached as attributes.
        out_of_scope: names that other OpenEnv packages have here and this one does not, with what to do instead. Asking
            for one raises an ImportError that says so, as ``from package import name`` would swallow any other error.

    Returns:
        The two module functions of PEP 562.
    """
    missing = out_of_scope or {}

    def module_getattr(name: str) -> Any:
        if name in where:
            value = getattr(import_module(where[name]), name)
        elif name in submodules:
            value = import_module(f"{package}.{name}")
        elif name in missing:
            raise ImportError(f"{package}.{name} is not part of this package: {missing[name]}", name=package)
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    def module_dir() -> list[str]:
        return sorted({*vars(sys.modules[package]), *where, *submodules})

    return module_getattr, module_dir
