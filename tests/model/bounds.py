"""How far the explorations go. Those of `ORDINARY` take seconds each; `OPENENV_SOAK=1` adds those of `SOAK`."""

from __future__ import annotations

import os

from model.roles import RESET, SETTLE, STEP
from model.state import Bounds, Left

__all__ = ["ALL", "CHOSEN", "SMALL", "SOAKING"]

SOAKING = os.environ.get("OPENENV_SOAK", "") not in ("", "0")

ALL = (RESET, STEP, SETTLE)

ORDINARY: dict[str, tuple[int, Bounds]] = {
    # name: (capacity, bounds)
    "two cuts": (1, Bounds((3,), Left(cuts=2))),
    "a cut, a caller who gives up": (1, Bounds((3,), Left(cuts=1, give_ups=1), ALL)),
    "two cuts, a caller who gives up": (1, Bounds((2,), Left(cuts=2, give_ups=1), ALL)),
    "a caller who gives up twice": (1, Bounds((3,), Left(give_ups=2), ALL)),
    "a restart, a cut, a caller who gives up": (1, Bounds((2,), Left(cuts=1, restarts=1, give_ups=1), ALL)),
    "a restart, a cut": (1, Bounds((3,), Left(cuts=1, restarts=1))),
    "a timer, a cut, a caller who gives up": (1, Bounds((2,), Left(cuts=1, timers=1, give_ups=1), ALL)),
    "a reset that fails, a cut, a restart": (1, Bounds((3,), Left(cuts=1, failures=1, restarts=1))),
    "a reset that fails, a caller who gives up": (1, Bounds((3,), Left(cuts=1, failures=1, give_ups=1))),
    "a close, a cut, a caller who gives up": (1, Bounds((2,), Left(cuts=1, give_ups=1, closes=1))),
    "two holders": (2, Bounds((2, 1), Left(clones=1))),
    "two holders, a caller who gives up": (2, Bounds((1, 1), Left(clones=1, give_ups=1))),
    "two holders, a cut": (2, Bounds((1, 1), Left(cuts=1, clones=1))),
    "a newcomer": (1, Bounds((2, 1), Left(cuts=1), evicts=True)),
    "a newcomer, a caller who gives up": (1, Bounds((1, 1), Left(cuts=1, give_ups=1), evicts=True)),
}

SOAK: dict[str, tuple[int, Bounds]] = {
    "three cuts": (1, Bounds((3,), Left(cuts=3))),
    "a cut, a caller who gives up twice": (1, Bounds((3,), Left(cuts=1, give_ups=2), ALL)),
    "two cuts, three calls, a caller who gives up": (1, Bounds((3,), Left(cuts=2, give_ups=1), ALL)),
    "a timer, a cut, three calls, a caller who gives up": (1, Bounds((3,), Left(cuts=1, timers=1, give_ups=1))),
    "a reset that fails, two cuts, a caller who gives up": (1, Bounds((3,), Left(cuts=2, failures=1, give_ups=1))),
    "a close, a cut, three calls, a caller who gives up": (1, Bounds((3,), Left(cuts=1, give_ups=1, closes=1))),
    "two holders, a cut, three calls": (2, Bounds((2, 1), Left(cuts=1, clones=1))),
    "two holders, two cuts": (2, Bounds((1, 1), Left(cuts=2, clones=1))),
    "a newcomer, two cuts": (1, Bounds((2, 1), Left(cuts=2), evicts=True)),
    "two newcomers who give up": (1, Bounds((2, 1), Left(cuts=1, give_ups=1), evicts=True)),
}

SMALL: dict[str, tuple[int, Bounds]] = {
    # for the package's own machines, which are slower
    "two cuts": (1, Bounds((2,), Left(cuts=2))),
    "a cut, three calls": (1, Bounds((3,), Left(cuts=1))),
    "a cut, a caller who gives up": (1, Bounds((2,), Left(cuts=1, give_ups=1), ALL)),
    "a caller who gives up twice": (1, Bounds((3,), Left(give_ups=2))),
    "a restart, a caller who gives up": (1, Bounds((2,), Left(restarts=1, give_ups=1), ALL)),
    "a timer, a cut": (1, Bounds((2,), Left(cuts=1, timers=1))),
    "a timer, a caller who gives up": (1, Bounds((3,), Left(timers=1, give_ups=1))),
    "a reset that fails, a cut, a restart": (1, Bounds((2,), Left(cuts=1, failures=1, restarts=1))),
    "a reset that fails, a caller who gives up": (1, Bounds((3,), Left(failures=1, give_ups=1))),
    "a close, a cut": (1, Bounds((2,), Left(cuts=1, closes=1))),
    "a close, a caller who gives up": (1, Bounds((3,), Left(give_ups=1, closes=1))),
    "two holders": (2, Bounds((1, 1), Left(clones=1))),
    "two holders, a caller who gives up": (2, Bounds((1, 1), Left(clones=1, give_ups=1))),
    "a newcomer, a cut": (1, Bounds((1, 1), Left(cuts=1), evicts=True)),
}

CHOSEN = ORDINARY | (SOAK if SOAKING else {})
