"""Names that are imported when they are first used (PEP 562), so that a package costs nothing to import."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_exports"]


def lazy_exports(
    package: str, where: Mapping[str, str], submodules: tuple[str, ...] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make ``__getattr__`` and ``__dir__`` for a package whose names live in other modules.

    Args:
        package: the package's ``__name__``.
        where: for each name, the absolute module that defines it.
        submodules: submodules that may be reached as attributes.

    Returns:
        The two module functions of PEP 562.
    """

    def module_getattr(name: str) -> Any:
        if name in where:
            value = getattr(import_module(where[name]), name)
        elif name in submodules:
            value = import_module(f"{package}.{name}")
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    def module_dir() -> list[str]:
        return sorted({*vars(sys.modules[package]), *where, *submodules})

    return module_getattr, module_dir
