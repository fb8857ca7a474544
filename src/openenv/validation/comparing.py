"""The rules that show in one episode beside another: played again in the same session, in another session, in another
process, and beside a neighbour. What differs says which rule is broken.
"""

from __future__ import annotations

import time
from contextlib import closing

from openenv.core.exceptions import CapacityError, OpenEnvError
from openenv.validation.episodes import Episode, Trouble, differences, identities, playing
from openenv.validation.look import MOVES, SEED, Look, few
from openenv.validation.report import Verdict
from openenv.validation.subject import Server

__all__ = ["compare"]

TOGETHER = 60
"""Steps that two sessions play at the same time."""


def compare(look: Look, first: Episode, second: Episode) -> None:
    """Judge by what differs.

    Args:
        look: at what.
        first: an episode.
        second: the same in the same session.
    """
    report = look.report
    if time.monotonic() > look.ends:
        report.skipped("the time was over: --max-time", "seed", "leftover", "sessions", "thread")
        return
    with closing(look.server.client()) as client:
        third = look.replay(client, first)
    trouble = second.trouble or third.trouble
    if second.trouble is not None:
        text = f"the second episode of a session breaks off: {second.trouble.call}: {second.trouble.text}"
        look.fail("leftover", text, "make reset() begin anew whatever the last episode left")
    elif third.trouble is not None:
        _blame_session(look, first, third.trouble, "a second session")
    if trouble is not None:
        return
    fresh = _fresh(look, first)
    same, other = differences(first, second), differences(first, third)
    _judge(look, same, other, fresh, identities(first) - same)
    if not any(one.verdict is Verdict.FAIL for rule in ("seed", "sessions") for one in report.of(rule)):
        _check_together(look, first, other)
    _check_seed_taken(look)
    report.passed("seed", "leftover", "sessions")
    if look.again is None:
        report.skipped("seen only where the application is: give its folder", "thread")
    else:
        report.passed("thread")


def _fresh(look: Look, first: Episode) -> set[str] | None:
    """What differs from the same episode in another process; None where that cannot be."""
    if look.again is None:
        return None
    with look.again() as probe, closing(probe.client()) as client:
        return differences(first, look.replay(client, first))


def _judge(look: Look, same: set[str], other: set[str], fresh: set[str] | None, names: set[str]) -> None:
    """Say which rule is broken.

    Args:
        look: at what.
        same: what differs in the second episode of the same session.
        other: what differs in another session.
        fresh: what differs in another process.
        names: what may be a name of the instance.
    """
    seed = ((same & other) | (other - same)) - names if fresh is None else fresh - names
    outside = set() if fresh is None else other - names
    left = same - other if fresh is None else same
    if seed:  # then whatever else differs may be luck
        look.fail(
            "seed",
            f"two episodes with seed {SEED} and the same actions differ in {few(sorted(seed))}",
            "draw every random number of an episode from one generator that reset(seed=...) makes",
        )
        look.report.skipped("episodes that differ anyhow tell nothing of it", "leftover", "sessions")
    elif outside:
        look.fail(
            "sessions",
            f"a later session differs from the first in {few(sorted(outside))}",
            "keep what an episode changes in the instance, not in the class or the module",
        )
        look.report.skipped("what sessions share hides it", "leftover")
    elif left:
        look.fail(
            "leftover",
            f"the second episode of a session differs from the first in {few(sorted(left))}",
            "set every attribute that an episode changes in reset()",
        )


def _blame_session(look: Look, first: Episode, trouble: Trouble, when: str) -> None:
    """A second session failed where the first did not: is it the thread?"""
    if look.again is not None and _works_on_one_thread(look, first):
        text = f"{when}, on a thread of its own, breaks off: {trouble.call}: {trouble.text}"
        look.fail("thread", text, "set REQUIRES_SINGLE_THREAD_EXECUTOR = True on the environment class")
        return
    text = f"{when} breaks off where the first did not: {trouble.call}: {trouble.text}"
    look.fail("sessions", text, "keep all state in the instance; or set SUPPORTS_CONCURRENT_SESSIONS = False")


def _works_on_one_thread(look: Look, first: Episode) -> bool:
    """Whether sessions one after another, and two at a time, are well where one thread runs them all."""
    assert look.again is not None, "it can be started again"
    with look.again("single") as probe:
        for _ in range(2):
            with closing(probe.client()) as client:
                if look.replay(client, first).trouble is not None:
                    return False
        if look.facts.get("capacity") == 1:
            return True
        try:
            return all(one.trouble is None for one in _together(look, probe))
        except OpenEnvError:
            return False


def _together(look: Look, server: Server) -> tuple[Episode, Episode]:
    """Play in two sessions at the same time: as ever in one, something else in the other.

    Raises:
        OpenEnvError: there is no second session to be had.
    """
    beside, other = Episode(), Episode()
    with closing(server.client()) as client, closing(server.client()) as neighbour:
        client.connect()
        neighbour.connect()
        mine = playing(client, look.actions(), beside, seed=SEED, ends=look.ends)
        its = playing(neighbour, look.actions(others=True), other, seed=SEED + 1, ends=look.ends)
        going = True
        while going and len(beside.steps) < TOGETHER:
            going = next(mine, mine) is None
            next(its, None)
    return beside, other


def _check_together(look: Look, first: Episode, known: set[str]) -> None:
    """Play beside another session, and see whether anything is different for it."""
    if look.facts.get("capacity") == 1:
        return _note_capacity(look, 1)
    try:
        beside, other = _together(look, look.server)
    except CapacityError as error:
        return _note_capacity(look, error.max)
    except OpenEnvError as error:
        return look.fail("sessions", f"a second session cannot be opened: {error}", MOVES["other"])
    trouble = beside.trouble or other.trouble
    if trouble is not None and trouble.kind == "full":
        return _note_capacity(look, 1)
    if trouble is not None:
        return _blame_session(look, first, trouble, "one of two sessions")
    changed = differences(first, beside) - known - identities(first)
    if changed:
        text = f"another session changes what this one sees: {few(sorted(changed))}"
        look.fail("sessions", text, "keep all state in the instance; or set SUPPORTS_CONCURRENT_SESSIONS = False")
    return None


def _note_capacity(look: Look, most: int | None) -> None:
    text = f"it takes {most or 1} session at a time; training wants one for each environment of a batch"
    if look.facts.get("concurrent"):
        look.warn("sessions", text, "its class allows more: pass max_concurrent_envs=N to create_app()")
    else:
        move = "if instances share nothing, set SUPPORTS_CONCURRENT_SESSIONS = True and pass max_concurrent_envs=N"
        look.warn("sessions", text, move)


def _check_seed_taken(look: Look) -> None:
    if any(not note.get("takes_seed", True) for note in look.server.notes() if note["event"] == "made"):
        text = "its reset() does not take seed, so the server drops the one that a client names"
        look.warn("seed", text, "declare reset(self, seed=None, episode_id=None, **kwargs), and draw from the seed")
