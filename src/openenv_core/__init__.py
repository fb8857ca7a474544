"""The old name of `openenv.core`: every module and every object under it is the one of `openenv.core`."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import openenv.core
from openenv._alias import install_alias

if TYPE_CHECKING:
    from openenv.core import *  # noqa: F403

__all__ = openenv.core.__all__
__path__ = list(openenv.core.__path__)  # for pkgutil

install_alias(__name__, "openenv.core")
warnings.warn("The package openenv_core has become openenv.core: import from there.", DeprecationWarning, stacklevel=2)


def __getattr__(name: str) -> Any:
    return getattr(openenv.core, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(openenv.core)})
