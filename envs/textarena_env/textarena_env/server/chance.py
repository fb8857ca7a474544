"""Chance of its own for each session.

TextArena deals with the global ``random`` and seeds it at each reset, so sessions of one process would disturb one
another and the rest of the process. Here the modules of TextArena get a stand-in for that module, which draws from the
generator of the session whose call is running. Games that draw from numpy are not covered.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

__all__ = ["drawing_from", "isolate"]

_generator: ContextVar[random.Random | None] = ContextVar("textarena_generator", default=None)


class _Dice:
    """Stands for the module ``random``; outside of ``drawing_from`` it is that module."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_generator.get() or random, name, None) or getattr(random, name)


_DICE = _Dice()


def isolate() -> None:
    """Hand the stand-in to each module of TextArena that is loaded; once more after a game has loaded its own."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "textarena" and module is not None:
            for known_as, value in list(vars(module).items()):
                if value is random:
                    setattr(module, known_as, _DICE)


@contextmanager
def drawing_from(generator: random.Random) -> Iterator[None]:
    """What TextArena draws in this block, in this thread, comes from the generator.

    Args:
        generator: of the session; ``random.seed`` in the block seeds it.
    """
    token = _generator.set(generator)
    try:
        yield
    finally:
        _generator.reset(token)
