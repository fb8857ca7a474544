"""What the installed TRL can do, by its version; nothing here imports it."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

__all__ = ["OLDEST", "owns_reward", "trl_version"]

OLDEST = (1, 6)
"""Before it, a sample without a reward counted as one with reward 0, and moved the baseline of its group."""


@lru_cache(maxsize=1)
def trl_version() -> tuple[int, int] | None:
    """Major and minor version of the installed TRL; None if there is none."""
    try:
        found = re.match(r"(\d+)\.(\d+)", version("trl"))
    except PackageNotFoundError:
        return None
    return (int(found[1]), int(found[2])) if found else None


def owns_reward() -> bool:
    """Whether the trainer asks an environment for its reward (``get_reward``, 1.8), and does not offer it as a tool."""
    return (trl_version() or (999, 0)) >= (1, 8)
