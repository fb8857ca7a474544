"""The rules about an environment that runs: they are looked at over the network, with the clients that users have.

One episode is played, played again in the same session, in another session and in another process; what differs between
them says which rule is broken.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from openenv.core.exceptions import CapacityError, OpenEnvError
from openenv.validation.episodes import Actions, Episode, Trouble, differences, identities, play, playing
from openenv.validation.report import NotValidated, Report, Verdict
from openenv.validation.schemas import misfits, sample
from openenv.validation.subject import Probe, Server
from openenv.validation.tools import check_tools, tool_actions

__all__ = ["EPISODE_RULES", "Options", "check_running"]

SEED = 7
TOGETHER = 60
"""Steps that two sessions play at the same time."""
TOOL_CALLS = 200
"""Most tool calls of an episode: an environment of tools may go on for ever."""

EPISODE_RULES = ("reset", "step", "schema", "seed", "leftover", "done", "sessions", "thread", "close", "tools")

_IGNORED = frozenset({"done", "reward", "metadata"})
_MOVES = {
    "raised": "mend what it raised; for a move that is not allowed raise InvalidActionError",
    "late": "make it return, or let it be cancelled (Environment.cancel); --timeout allows more",
    "lost": "see the server's log: an environment must not end its process",
    "factory": "see the server's log: the constructor must not raise",
    "full": "close other sessions, or let the server have more",
    "other": "see the server's log",
}


@dataclass(frozen=True)
class Options:
    """How thoroughly to look.

    Attributes:
        timeout_s: seconds that any answer may take.
        start_s: seconds that the application may take to start.
        max_time_s: seconds for everything that runs.
        steps: most steps of an episode.
        actions: actions that every episode begins with.
    """

    timeout_s: float = 10.0
    start_s: float = 60.0
    max_time_s: float = 120.0
    steps: int = 1000
    actions: Sequence[Any] = ()


@dataclass
class _Run:
    """One look at one server.

    Attributes:
        server: where the episodes are played.
        report: what was found.
        options: how thoroughly.
        again: starts the application in another process, with options of the probe; None where that cannot be.
        ends: when to stop.
    """

    server: Server
    report: Report
    options: Options
    again: Callable[..., Probe] | None
    ends: float
    make: Callable[[random.Random], Any] = lambda draw: {}
    with_tools: bool = False
    facts: dict[str, Any] = field(default_factory=dict)

    def actions(self, *, others: bool = False) -> Actions:
        return Actions(self.make, () if others else self.options.actions, others=others)

    def fail(self, rule: str, text: str, move: str) -> None:
        self.report.add(rule, Verdict.FAIL, text, move)

    def warn(self, rule: str, text: str, move: str) -> None:
        self.report.add(rule, Verdict.WARN, text, move)


def check_running(server: Server, report: Report, options: Options, again: Callable[..., Probe] | None = None) -> None:
    """Look at everything that runs, and add it to a report.

    Args:
        server: a server that answers.
        report: what was found.
        options: how thoroughly to look.
        again: starts the application in another process, with options of the probe; None where that cannot be.

    Raises:
        NotValidated: the server is none of environments.
    """
    run = _Run(server, report, options, again, time.monotonic() + options.max_time_s)
    schema = server.ask("/schema")
    if not isinstance(schema, dict) or not all(
        isinstance(schema.get(part), dict) for part in ("action", "observation")
    ):
        raise NotValidated(f"{server.url}/schema does not describe actions and observations")
    report.passed("starts")
    run.facts = next((note for note in server.notes() if note["event"] == "serves"), {})
    if _prepare(run, schema):
        _check_episodes(run, schema)
    _check_blocked(run)
    report.skipped("what came before it failed", *EPISODE_RULES)


def _prepare(run: _Run, schema: dict[str, Any]) -> bool:
    """Find out which actions there are. Returns whether there are any."""
    action = schema["action"]
    run.with_tools = {"tool_name", "arguments"} <= set(action.get("properties", {}))
    if not run.with_tools:
        run.make = lambda draw: sample(action, draw)
        run.report.skipped("its actions are no tool calls", "tools")
        return True
    try:
        with closing(run.server.tool_client()) as client:
            tools = client.list_tools()
    except OpenEnvError as error:
        run.fail("tools", f"the tools cannot be listed: {error}", "see the server's log")
        return False
    check_tools(tools, run.report)
    run.make = tool_actions(tools)
    return bool(tools)


def _check_episodes(run: _Run, schema: dict[str, Any]) -> None:
    with closing(run.server.client()) as client:
        began = time.monotonic()
        most = min(run.options.steps, TOOL_CALLS) if run.with_tools else run.options.steps
        first = play(client, run.actions(), steps=most, seed=SEED, ends=_quarter(run, began))
        if first.trouble is not None:
            _blame(run, first.trouble)
        _check_one(run, first, schema)
        broken = first.trouble is not None
        second = Episode() if broken else _replay(run, client, first)
    if first.trouble is None or first.trouble.kind not in ("late", "lost"):
        _check_close(run)
    if broken:
        return
    if run.report.of("close") and run.report.of("close")[0].verdict is Verdict.FAIL:
        run.report.skipped("its sessions do not end", "seed", "leftover", "sessions", "thread")
        return
    _compare(run, first, second)


def _quarter(run: _Run, began: float) -> float:
    return began + (run.ends - began) / 4


def _replay(run: _Run, client: Any, first: Episode) -> Episode:
    return play(client, run.actions(), steps=len(first.steps), seed=SEED, ends=run.ends)


def _blame(run: _Run, trouble: Trouble) -> None:
    """Say what broke an episode off."""
    if trouble.kind == "factory" and run.again is not None:
        with run.again("construct") as probe:
            made = next((note for note in probe.notes() if note["event"] == "constructed"), {"error": "?"})
        if not made["error"]:
            run.fail(
                "thread",
                "its constructor raises on the thread of a session, and works on the main thread",
                "do not use what only the main thread may, as signal handlers; or start a process of your own for it",
            )
            return
        trouble = Trouble(trouble.call, "factory", f"{trouble.text} It raised {made['error']}.")
    rule = "step" if trouble.call == "step" else "reset"
    number = f" {trouble.number}" if trouble.number else ""
    run.fail(rule, f"{trouble.call}{number}: {trouble.text}", _MOVES[trouble.kind])


def _check_one(run: _Run, episode: Episode, schema: dict[str, Any]) -> None:
    """What one episode tells."""
    if episode.reset is not None:
        run.report.passed("reset")
        _check_shapes(run, episode, schema)
    refused, count = episode.refused, len(episode.steps)
    if count and refused == count:
        why = episode.misshaped or f"the last answer was {episode.steps[-1]['refused']!r}"
        run.warn("step", f"all {count} actions that were tried were refused: {why}", "name some with --actions FILE")
    if episode.trouble is not None:
        return
    run.report.passed("step")
    if not episode.done and run.with_tools:
        run.report.skipped(f"no done in {count} tool calls; an environment of tools may go on for ever", "done")
    elif not episode.done:
        move = "return done=True from step() at the end; or show an episode that ends with --actions FILE"
        run.warn("done", f"no done in {count} steps", move)
    else:
        run.report.passed("done")


def _check_shapes(run: _Run, episode: Episode, schema: dict[str, Any]) -> None:
    found: list[str] = []
    if not run.with_tools:  # those begin with a plain observation
        found += misfits(schema.get("reset_observation") or schema["observation"], episode.reset, ignore=_IGNORED)
    for step in episode.steps:
        if "observation" in step:
            found += misfits(schema["observation"], step["observation"], ignore=_IGNORED)
    if episode.first is not None and isinstance(schema.get("state"), dict):
        found += [f"state: {text}" for text in misfits(schema["state"], episode.first)]
    if found:
        unique = list(dict.fromkeys(found))
        run.fail("schema", _few(unique), "give create_app() the classes that reset() and step() return")
    else:
        run.report.passed("schema")


# ---------------------------------------------------------------- one episode beside another


def _compare(run: _Run, first: Episode, second: Episode) -> None:
    report = run.report
    if time.monotonic() > run.ends:
        report.skipped("the time was over: --max-time", "seed", "leftover", "sessions", "thread")
        return
    with closing(run.server.client()) as client:
        third = _replay(run, client, first)
    trouble = second.trouble or third.trouble
    if second.trouble is not None:
        text = f"the second episode of a session breaks off: {second.trouble.call}: {second.trouble.text}"
        run.fail("leftover", text, "make reset() begin anew whatever the last episode left")
    elif third.trouble is not None:
        _blame_session(run, first, third.trouble, "a second session")
    if trouble is not None:
        return
    fresh = _fresh(run, first)
    same, other = differences(first, second), differences(first, third)
    _judge(run, same, other, fresh, identities(first) - same)
    if not any(one.verdict is Verdict.FAIL for rule in ("seed", "sessions") for one in report.of(rule)):
        _check_together(run, first, other)
    _check_seed_taken(run)
    report.passed("seed", "leftover", "sessions")
    if run.again is None:
        report.skipped("seen only where the application is: give its folder", "thread")
    else:
        report.passed("thread")


def _fresh(run: _Run, first: Episode) -> set[str] | None:
    """What differs from the same episode in another process; None where that cannot be."""
    if run.again is None:
        return None
    with run.again() as probe, closing(probe.client()) as client:
        return differences(first, _replay(run, client, first))


def _judge(run: _Run, same: set[str], other: set[str], fresh: set[str] | None, names: set[str]) -> None:
    """Say which rule is broken.

    Args:
        run: what is looked at.
        same: what differs in the second episode of the same session.
        other: what differs in another session.
        fresh: what differs in another process.
        names: what may be a name of the instance.
    """
    seed = ((same & other) | (other - same)) - names if fresh is None else fresh - names
    outside = set() if fresh is None else other - names
    left = same - other if fresh is None else same
    if seed:  # then whatever else differs may be luck
        run.fail(
            "seed",
            f"two episodes with seed {SEED} and the same actions differ in {_few(sorted(seed))}",
            "draw every random number of an episode from one generator that reset(seed=...) makes",
        )
        run.report.skipped("episodes that differ anyhow tell nothing of it", "leftover", "sessions")
    elif outside:
        run.fail(
            "sessions",
            f"a later session differs from the first in {_few(sorted(outside))}",
            "keep what an episode changes in the instance, not in the class or the module",
        )
        run.report.skipped("what sessions share hides it", "leftover")
    elif left:
        run.fail(
            "leftover",
            f"the second episode of a session differs from the first in {_few(sorted(left))}",
            "set every attribute that an episode changes in reset()",
        )


def _blame_session(run: _Run, first: Episode, trouble: Trouble, when: str) -> None:
    """A second session failed where the first did not: is it the thread?"""
    if run.again is not None:
        with run.again("single") as probe:
            with closing(probe.client()) as client:
                alone = _replay(run, client, first).trouble
            beside, other = _together(run, probe)
        if alone is None and beside.trouble is None and other.trouble is None:
            text = f"{when}, on a thread of its own, breaks off: {trouble.call}: {trouble.text}"
            run.fail("thread", text, "set REQUIRES_SINGLE_THREAD_EXECUTOR = True on the environment class")
            return
    text = f"{when} breaks off where the first did not: {trouble.call}: {trouble.text}"
    run.fail("sessions", text, "keep all state in the instance; or set SUPPORTS_CONCURRENT_SESSIONS = False")


def _together(run: _Run, server: Server) -> tuple[Episode, Episode]:
    """Play in two sessions at the same time: as ever in one, something else in the other.

    Raises:
        OpenEnvError: there is no second session to be had.
    """
    beside, other = Episode(), Episode()
    with closing(server.client()) as client, closing(server.client()) as neighbour:
        client.connect()
        neighbour.connect()
        mine = playing(client, run.actions(), beside, seed=SEED, ends=run.ends)
        its = playing(neighbour, run.actions(others=True), other, seed=SEED + 1, ends=run.ends)
        going = True
        while going and len(beside.steps) < TOGETHER:
            going = next(mine, mine) is None
            next(its, None)
    return beside, other


def _check_together(run: _Run, first: Episode, known: set[str]) -> None:
    """Play beside another session, and see whether anything is different for it."""
    if run.facts.get("capacity") == 1:
        return _note_capacity(run, 1)
    try:
        beside, other = _together(run, run.server)
    except CapacityError as error:
        return _note_capacity(run, error.max)
    except OpenEnvError as error:
        return run.fail("sessions", f"a second session cannot be opened: {error}", _MOVES["other"])
    trouble = beside.trouble or other.trouble
    if trouble is not None and trouble.kind == "full":
        return _note_capacity(run, 1)
    if trouble is not None:
        return _blame_session(run, first, trouble, "one of two sessions")
    changed = differences(first, beside) - known - identities(first)
    if changed:
        text = f"another session changes what this one sees: {_few(sorted(changed))}"
        run.fail("sessions", text, "keep all state in the instance; or set SUPPORTS_CONCURRENT_SESSIONS = False")
    return None


def _note_capacity(run: _Run, most: int | None) -> None:
    text = f"it takes {most or 1} session at a time; training wants one for each environment of a batch"
    if run.facts.get("concurrent"):
        run.warn("sessions", text, "its class allows more: pass max_concurrent_envs=N to create_app()")
    else:
        move = "if instances share nothing, set SUPPORTS_CONCURRENT_SESSIONS = True and pass max_concurrent_envs=N"
        run.warn("sessions", text, move)


# ---------------------------------------------------------------- what its process notes


def _check_close(run: _Run) -> None:
    """Every environment that was made is closed once by now."""
    server = run.server
    if not isinstance(server, Probe) or not run.facts:
        run.report.skipped("seen only where the application is: give its folder", "close")
        return

    def numbers(event: str) -> list[int]:
        return [note["env"] for note in server.notes() if note["event"] == event]

    ended = server.waited(lambda notes: set(numbers("made")) <= set(numbers("closed")))
    if not ended and set(numbers("close")) >= set(numbers("made")):
        run.fail(
            "close", f"close() has not returned after {server.timeout_s:g} s", "make it return; leave no waiting in it"
        )
    elif not ended:
        run.fail("close", "close() was not called when the session had ended", "make the running call return")
    calls = numbers("close")
    if len(calls) > len(set(calls)):
        text = f"close() was called {max(calls.count(number) for number in calls)} times for one environment"
        run.fail("close", text, "leave it to the server: it calls close() once, when the session ends")
    raised = sorted({note["error"] for note in server.notes() if note["event"] == "closed" and note["error"]})
    if raised:
        run.fail("close", f"close() raised {_few(raised)}", "make it succeed also after a failed episode")
    run.report.passed("close")


def _check_seed_taken(run: _Run) -> None:
    if any(not note.get("takes_seed", True) for note in run.server.notes() if note["event"] == "made"):
        text = "its reset() does not take seed, so the server drops the one that a client names"
        run.warn("seed", text, "declare reset(self, seed=None, episode_id=None, **kwargs), and draw from the seed")


def _check_blocked(run: _Run) -> None:
    blocked = [note["text"] for note in run.server.notes() if note["event"] == "blocked"]
    if blocked:
        move = "await what takes long; or override reset and step, which have a thread of their own"
        run.fail("thread", blocked[0], move)


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
