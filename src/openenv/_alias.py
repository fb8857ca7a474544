"""Make one package a second name of another, to any depth, without a second copy of anything.

A module under the alias *is* the module under the real name: one object in ``sys.modules`` under two names.
So classes compare, pickle and reload as if the alias did not exist.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

__all__ = ["install_alias"]


class _AliasLoader(Loader):
    """Hands out the real module. The import system stamps the alias's spec on it; that is undone at once."""

    def __init__(self, real: str) -> None:
        self._real = real
        self._own_spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._real)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._own_spec


class _AliasFinder(MetaPathFinder):
    """Finds ``alias.x.y`` wherever ``real.x.y`` is."""

    def __init__(self, alias: str, real: str) -> None:
        self.alias = alias
        self._real = real

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{self.alias}."):
            return None
        real = self._real + fullname.removeprefix(self.alias)
        found = find_spec(real)
        if found is None:
            return None
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(fullname, _AliasLoader(real), origin=found.origin, is_package=is_package)


def install_alias(alias: str, real: str) -> None:
    """Let ``import alias.anything`` give ``real.anything``. A second call for the same alias does nothing.

    The finder goes first: after the ordinary one, which finds the same files, it would come too late. Call this on
    the first line of the alias package: until then another thread can import the package, but nothing below it.

    Args:
        alias: the second name of the package; its top module must exist.
        real: the package it stands for.
    """
    if not any(isinstance(finder, _AliasFinder) and finder.alias == alias for finder in sys.meta_path):
        sys.meta_path.insert(0, _AliasFinder(alias, real))
