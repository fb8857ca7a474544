"""Tools that environments work with: repositories on a git server, Python code in an interpreter of its own.

Importing this package loads nothing of it; each name loads its module when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from openenv._lazy import lazy_exports

if TYPE_CHECKING:
    from openenv.core.tools.git_server_client import GitServerClient, RepoInfo
    from openenv.core.tools.local_python_executor import PyExecutor

__all__ = ["GitServerClient", "PyExecutor", "RepoInfo"]

_MODULES = {
    "openenv.core.tools.git_server_client": ("GitServerClient", "RepoInfo"),
    "openenv.core.tools.local_python_executor": ("PyExecutor",),
}

if not TYPE_CHECKING:  # a type checker would take any name for granted
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {name: module for module, names in _MODULES.items() for name in names},
        submodules=("git_server_client", "local_python_executor"),
    )
