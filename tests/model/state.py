"""A state of everything: network, callers, what the onlooker noted, and what may still happen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from model.roles import RESET, STEP

NOBODY = -1


class Violation(Exception):
    """Something happened that must never happen."""


class Sk(NamedTuple):
    """A socket. ``mine``: the client still holds its end; ``gone``: the server does not."""

    owner: int
    mine: bool = True
    gone: bool = False
    broken: bool = False
    c2s: tuple[Any, ...] = ()
    s2c: tuple[Any, ...] = ()


class Rec(NamedTuple):
    """A call, as the onlooker sees it. ``episode``: the reset whose episode its caller means."""

    kind: str
    owner: int
    episode: int
    runs: int = 0
    sid: int = 0
    told: str = ""


class Env(NamedTuple):
    sid: int
    owner: int
    episode: int = NOBODY


class Left(NamedTuple):
    """How often each of these may still happen."""

    cuts: int = 0
    give_ups: int = 0
    timers: int = 0
    restarts: int = 0
    failures: int = 0
    closes: int = 0
    clones: int = 0


NOTHING = Left()


class W(NamedTuple):
    """A state of everything."""

    srv: Any
    clients: tuple[Any, ...]
    socks: tuple[Sk | None, ...]
    envs: tuple[Env, ...]
    recs: tuple[Rec, ...]
    pending: tuple[int, ...]
    seen: tuple[int, ...]  # the reset that each caller saw complete last
    owed: tuple[tuple[int, bool] | None, ...]  # a call that was given up, and whether its result has arrived
    makes: tuple[int, ...]
    left: Left
    attaches: int = 0


@dataclass(frozen=True)
class Bounds:
    """What may happen how often.

    ``calls``: for each client; ``kinds``: which ones; ``evicts``: leases give way to those who wait.
    """

    calls: tuple[int, ...] = (3,)
    left: Left = NOTHING
    kinds: tuple[str, ...] = (RESET, STEP)
    evicts: bool = False
