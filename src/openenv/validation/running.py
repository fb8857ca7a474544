"""The rules about an environment that runs: they are looked at over the network, with the clients that users have.

Here is what one episode tells, and what its process notes; `openenv.validation.comparing` has the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from openenv.core.exceptions import OpenEnvError
from openenv.validation.comparing import compare
from openenv.validation.episodes import Episode, Trouble, play
from openenv.validation.look import MOVES, SEED, Look, Options, few
from openenv.validation.report import NotValidated, Report, Verdict
from openenv.validation.schemas import misfits, sample
from openenv.validation.subject import Probe, Server
from openenv.validation.tools import check_tools, tool_actions

__all__ = ["EPISODE_RULES", "check_running"]

TOOL_CALLS = 200
"""Most tool calls of an episode: an environment of tools may go on for ever."""

EPISODE_RULES = ("reset", "step", "schema", "seed", "leftover", "done", "sessions", "thread", "close", "tools")

_IGNORED = frozenset({"done", "reward", "metadata"})


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
    look = Look(server, report, options, again, time.monotonic() + options.max_time_s)
    schema = server.ask("/schema")
    if not isinstance(schema, dict) or not all(
        isinstance(schema.get(part), dict) for part in ("action", "observation")
    ):
        raise NotValidated(f"{server.url}/schema does not describe actions and observations")
    report.passed("starts")
    look.facts = next((note for note in server.notes() if note["event"] == "serves"), {})
    if _prepare(look, schema):
        _check_episodes(look, schema)
    _check_blocked(look)
    report.skipped("what came before it failed", *EPISODE_RULES)


def _prepare(look: Look, schema: dict[str, Any]) -> bool:
    """Find out which actions there are. Returns whether there are any."""
    action = schema["action"]
    look.with_tools = {"tool_name", "arguments"} <= set(action.get("properties", {}))
    if not look.with_tools:
        look.make = lambda draw: sample(action, draw)
        look.report.skipped("its actions are no tool calls", "tools")
        return True
    try:
        with closing(look.server.tool_client()) as client:
            tools = client.list_tools()
    except OpenEnvError as error:
        look.fail("tools", f"the tools cannot be listed: {error}", "see the server's log")
        return False
    check_tools(tools, look.report)
    look.make = tool_actions(tools)
    return bool(tools)


def _check_episodes(look: Look, schema: dict[str, Any]) -> None:
    with closing(look.server.client()) as client:
        began = time.monotonic()
        most = min(look.options.steps, TOOL_CALLS) if look.with_tools else look.options.steps
        first = play(client, look.actions(), steps=most, seed=SEED, ends=_quarter(look, began))
        if first.trouble is not None:
            _blame(look, first.trouble)
        _check_one(look, first, schema)
        broken = first.trouble is not None
        second = Episode() if broken else look.replay(client, first)
    if first.trouble is None or first.trouble.kind not in ("late", "lost"):
        _check_close(look)
    if broken:
        return
    if look.report.of("close") and look.report.of("close")[0].verdict is Verdict.FAIL:
        look.report.skipped("its sessions do not end", "seed", "leftover", "sessions", "thread")
        return
    compare(look, first, second)


def _quarter(look: Look, began: float) -> float:
    return began + (look.ends - began) / 4


def _blame(look: Look, trouble: Trouble) -> None:
    """Say what broke an episode off."""
    if trouble.kind == "factory" and look.again is not None:
        with look.again("construct") as probe:
            made = next((note for note in probe.notes() if note["event"] == "constructed"), {"error": "?"})
        if not made["error"]:
            look.fail(
                "thread",
                "its constructor raises on the thread of a session, and works on the main thread",
                "do not use what only the main thread may, as signal handlers; or start a process of your own for it",
            )
            return
        trouble = Trouble(trouble.call, "factory", f"{trouble.text} It raised {made['error']}.")
    rule = "step" if trouble.call == "step" else "reset"
    number = f" {trouble.number}" if trouble.number else ""
    look.fail(rule, f"{trouble.call}{number}: {trouble.text}", MOVES[trouble.kind])


def _check_one(look: Look, episode: Episode, schema: dict[str, Any]) -> None:
    """What one episode tells."""
    if episode.reset is not None:
        look.report.passed("reset")
        _check_shapes(look, episode, schema)
    refused, count = episode.refused, len(episode.steps)
    if count and refused == count:
        why = episode.misshaped or f"the last answer was {episode.steps[-1]['refused']!r}"
        look.warn("step", f"all {count} actions that were tried were refused: {why}", "name some with --actions FILE")
    if episode.trouble is not None:
        return
    look.report.passed("step")
    if not episode.done and look.with_tools:
        look.report.skipped(f"no done in {count} tool calls; an environment of tools may go on for ever", "done")
    elif not episode.done:
        move = "return done=True from step() at the end; or show an episode that ends with --actions FILE"
        look.warn("done", f"no done in {count} steps", move)
    else:
        look.report.passed("done")


def _check_shapes(look: Look, episode: Episode, schema: dict[str, Any]) -> None:
    found: list[str] = []
    if not look.with_tools:  # those begin with a plain observation
        found += misfits(schema.get("reset_observation") or schema["observation"], episode.reset, ignore=_IGNORED)
    for step in episode.steps:
        if "observation" in step:
            found += misfits(schema["observation"], step["observation"], ignore=_IGNORED)
    if episode.first is not None and isinstance(schema.get("state"), dict):
        found += [f"state: {text}" for text in misfits(schema["state"], episode.first)]
    if found:
        unique = list(dict.fromkeys(found))
        look.fail("schema", few(unique), "give create_app() the classes that reset() and step() return")
    else:
        look.report.passed("schema")


# ---------------------------------------------------------------- what its process notes


def _check_close(look: Look) -> None:
    """Every environment that was made is closed once by now."""
    server = look.server
    if not isinstance(server, Probe) or not look.facts:
        look.report.skipped("seen only where the application is: give its folder", "close")
        return

    def numbers(event: str) -> list[int]:
        return [note["env"] for note in server.notes() if note["event"] == event]

    ended = server.waited(lambda notes: set(numbers("made")) <= set(numbers("closed")))
    if not ended and set(numbers("close")) >= set(numbers("made")):
        look.fail(
            "close", f"close() has not returned after {server.timeout_s:g} s", "make it return; leave no waiting in it"
        )
    elif not ended:
        look.fail("close", "close() was not called when the session had ended", "make the running call return")
    calls = numbers("close")
    if len(calls) > len(set(calls)):
        text = f"close() was called {max(calls.count(number) for number in calls)} times for one environment"
        look.fail("close", text, "leave it to the server: it calls close() once, when the session ends")
    raised = sorted({note["error"] for note in server.notes() if note["event"] == "closed" and note["error"]})
    if raised:
        look.fail("close", f"close() raised {few(raised)}", "make it succeed also after a failed episode")
    look.report.passed("close")


def _check_blocked(look: Look) -> None:
    blocked = [note["text"] for note in look.server.notes() if note["event"] == "blocked"]
    if len(blocked) > 1:  # one that does so does it in every episode; a machine that stalls does not
        move = "await what takes long; or override reset and step, which have a thread of their own"
        look.fail("thread", blocked[0], move)
