"""The old name of `openenv.core`: every module and every object under it is the one of `openenv.core`."""

from __future__ import annotations

from openenv._alias import install_alias

install_alias(__name__, "openenv.core")

import warnings  # noqa: E402
from importlib import import_module  # noqa: E402
from types import ModuleType  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

import openenv.core  # noqa: E402

if TYPE_CHECKING:
    from openenv.core import *  # noqa: F403

__all__ = openenv.core.__all__
__path__ = list(openenv.core.__path__)  # for pkgutil

warnings.warn("The package openenv_core has become openenv.core: import from there.", DeprecationWarning, stacklevel=2)

if not TYPE_CHECKING:  # a type checker would take any name for granted

    def __getattr__(name: str) -> Any:
        value = getattr(openenv.core, name)
        return import_module(f"{__name__}.{name}") if isinstance(value, ModuleType) else value

    def __dir__() -> list[str]:
        return sorted({*globals(), *dir(openenv.core)})
