"""What befalls one episode, drawn from its seed: what its caller does, and what the network does to it meanwhile."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["Act", "Cut", "Fault", "Schedule", "draw"]

REQUEST_BYTES = 1500
REPLY_BYTES = 2500
"""Bytes within which the first cut of an episode falls, each way: seeds in a row go through all of them, from the
handshake over welcome, open and the calls."""
STRIDE = 613

OPENING_BYTES = 700
"""Bytes within which later cuts fall: handshake, welcome, resume and what is sent again."""


@dataclass(frozen=True)
class Act:
    """What a caller does: ``step``, ``reset``, ``state`` or ``settle``.

    Attributes:
        kind: one of these.
        op: what a step is to do on the server.
        arg: its argument.
        patience_s: seconds after which the caller gives up; None for never.
        by_timeout: it gives up by the call's own timeout, and not by cancelling it.
    """

    kind: str
    op: str = "inc"
    arg: float | int | None = None
    patience_s: float | None = None
    by_timeout: bool = False


@dataclass(frozen=True)
class Cut:
    """The connection that carries them is cut after ``count`` more bytes one way, counted from the cut before."""

    count: int
    direction: str
    mode: str


@dataclass(frozen=True)
class Fault:
    """What else befalls an episode, ``after_s`` seconds after the fault before it.

    ``hole``: nothing passes on the open connection any more, until it is
    reset or (``late``) what was held arrives after all.
    ``refuse``: no new connections for a while. ``ghost``: a resume of long ago arrives late. ``takeover``: another
    holder of the token resumes. ``kill``: the server is killed, and started anew.
    """

    kind: str
    after_s: float = 0.0
    late: bool = False


@dataclass(frozen=True)
class Schedule:
    """What befalls one episode.

    Attributes:
        cuts: one after another.
        gentle: nothing in it may cost the session.
        ends: ``close``, or ``close_busy`` with a call in flight.
    """

    seed: int
    acts: tuple[Act, ...]
    cuts: tuple[Cut, ...]
    faults: tuple[Fault, ...]
    ends: str
    gentle: bool


def draw(seed: int, *, kills: bool = False) -> Schedule:
    """The schedule of a seed."""
    rng = random.Random(seed)
    acts = tuple(_act(rng) for _ in range(rng.randint(3, 8)))
    cuts = (_first_cut(seed, rng), *(_cut(rng) for _ in range(rng.choice((0, 0, 1, 1, 2, 3)))))
    faults = [_fault(rng) for _ in range(rng.choice((0, 0, 0, 1, 1, 2)))]
    if kills:
        faults.insert(rng.randint(0, len(faults)), Fault("kill", rng.uniform(0, 0.05)))
    elif rng.random() < 0.1:
        faults.append(Fault("takeover", rng.uniform(0, 0.05)))
    gentle = all(fault.kind not in ("takeover", "kill") for fault in faults)
    ends = "close_busy" if rng.random() < 0.1 else "close"
    return Schedule(seed, acts, cuts, tuple(faults), ends, gentle)


def _act(rng: random.Random) -> Act:
    patience = rng.uniform(0.0, 0.03) if rng.random() < 0.25 else None
    by_timeout = rng.random() < 0.5 and patience is not None and patience > 0
    kind = rng.choices(("step", "reset", "state", "settle"), (85, 5, 5, 5))[0]
    if kind != "step":
        return Act(kind, patience_s=patience if kind == "reset" else None, by_timeout=by_timeout)
    op = rng.choices(("inc", "sleep", "big"), (60, 30, 10))[0]
    arg = {"inc": None, "sleep": round(rng.uniform(0.0, 0.03), 4), "big": rng.randint(1000, 40_000)}[op]
    return Act("step", op, arg, patience, by_timeout)


def _first_cut(seed: int, rng: random.Random) -> Cut:
    place = seed * STRIDE % (REQUEST_BYTES + REPLY_BYTES)
    mode = rng.choice(("rst", "fin"))
    if place < REQUEST_BYTES:
        return Cut(place, "request", mode)
    return Cut(place - REQUEST_BYTES, "reply", mode)


def _cut(rng: random.Random) -> Cut:
    return Cut(rng.randrange(OPENING_BYTES), rng.choice(("request", "reply")), rng.choice(("rst", "fin")))


def _fault(rng: random.Random) -> Fault:
    kind = rng.choices(("hole", "refuse", "ghost"), (40, 20, 40))[0]
    return Fault(kind, rng.uniform(0.0, 0.05), late=rng.random() < 0.6)
