"""Tools for testing clients and servers against a network that fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openenv._lazy import lazy_exports

if TYPE_CHECKING:
    from openenv.testing.proxy import CutMode, CuttingProxy

__all__ = ["CutMode", "CuttingProxy"]

__getattr__, __dir__ = lazy_exports(__name__, dict.fromkeys(__all__, "openenv.testing.proxy"))
