"""Writes the state tables of docs/SPEC-env-link.md from the tables that the client and the server run on.

``python scripts/spec_tables.py`` brings the page up to date; ``--check`` only says whether it is.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from openenv.core.session import server, states
from openenv.core.session.events import Event

PAGE = Path(__file__).resolve().parents[1] / "docs" / "SPEC-env-link.md"

EFFECTS = {
    server.Effect.NOTHING: "",
    server.Effect.RUN: "run it",
    server.Effect.BUSY: "answer BUSY (E12)",
    server.Effect.REFUSE: "answer SESSION_ERROR",
    server.Effect.CANCEL_CALL: "ask the environment to end its call (E13)",
    server.Effect.ANSWER_CANCEL: "answer by the numbers (E13)",
    server.Effect.REPLACE: "attach, close the older socket (E22)",
    server.Effect.ATTACH: "attach (E21)",
    server.Effect.ANSWER_LOST: "answer lost (E20)",
    server.Effect.CLOSE_ENV: "close the environment",
    server.Effect.FREE: "free the slot",
}
SERVER_EVENTS = {
    server.Event.BUILT: "the environment is made",
    server.Event.BUILD_FAILED: "it cannot be made",
    server.Event.CALL: "a call comes",
    server.Event.CALL_DONE: "the call has ended",
    server.Event.CANCEL: "cancel comes",
    server.Event.DROP: "the socket is gone, no resume (P16, E6, E17)",
    server.Event.DROP_LEASED: "the socket is gone, resume (E17)",
    server.Event.RESUME: "a resume with a good token",
    server.Event.TIMER: "idle for too long, lease over, evicted (E19)",
    server.Event.DRAIN: "the server stops",
    server.Event.CLOSE: "close or release comes",
    server.Event.ENV_CLOSED: "the environment is closed",
}
RULES = {
    "already_open": "nothing to do",
    "answer": (
        "the reply of the call in flight, by number and type, goes to its caller (E7); any other frame loses "
        "the session"
    ),
    "answer_abandoned": "the fate of the abandoned call (E15); then the waiting call has its turn",
    "answer_not_taken": (
        "the answer came as its caller gave up: kept as a late result (E15); without numbers the session is lost (E16)"
    ),
    "answer_too_large": "the reply is over the client's own limit: an error, applied; the session goes on",
    "ask": (
        "wait for the fate of an abandoned call (E14); refuse what E15a refuses; hand over a late result "
        "(E15); else send"
    ),
    "call_suspended": "refuse what E15a refuses; else wait for the resume",
    "connect_lost": "open a new session, so that the reset finds it open",
    "dial_again": "dial again after a pause, while there is time (E23); else raise",
    "drop_busy": (
        "a lease: dial to resume (E20). Otherwise the session is lost, the call's outcome unknown; a reset "
        "starts over on a new session"
    ),
    "drop_idle": (
        "a lease: dial to resume. A session that was never used: begin anew (E6). Otherwise the session is lost"
    ),
    "drop_lost": "close the socket",
    "end": "say close, or release if the socket is gone (E18, E25); a call in flight raises",
    "give_up_call": "the call is abandoned, cancel is sent (E13, E14); without numbers the session is lost (E16)",
    "give_up_opening": "raise why the session could not be opened",
    "give_up_suspended": (
        "a call that was sent is abandoned, one that was not raises a timeout, not applied; dialling goes on (E23)"
    ),
    "give_up_waiting": "a timeout, not applied; the abandoned call stays abandoned (E14)",
    "lose_loop": "what held the socket is gone: the session is lost",
    "lose_suspended": (
        "the session is lost, a step's outcome unknown (E27); a waiting reset opens a new one. never_called: "
        "begin anew (E6)"
    ),
    "open_elsewhere": "a waiting reset gives the old session up and opens a new one, release first (E25)",
    "open_first": "open a session",
    "open_for_call": "open a session for the first call of a client that has never reset; else refuse (E15a)",
    "opening_over": "the time for connecting is over: raise; after a loss the call's own time counts",
    "refuse": "session lost, not applied; nothing is sent (P25)",
    "refuse_closed": "the client is closed; nothing is sent",
    "reset_lost": "open a session and send the reset in it",
    "resume": "last_seq decides (E21): wait for the reply, send the call again or cancel it, or give the session up",
    "resume_again": "dial again after a pause (E23)",
    "settle_now": "return the late result, if there is one (E15)",
    "start_session": "the session is open: send the call that opened it",
    "stay": "nothing",
    "unasked": "the fate of an abandoned call (E15); any other frame that nobody asked for loses the session",
    "wait_for_resume": "wait for the resume (E25)",
}


def grid(corner: str, columns: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown."""
    head = [corner, *columns]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(one or " " for one in line) + " |" for line in lines)


def server_table() -> str:
    """States, events and effects of a session at its server."""

    def cell(state: server.State, event: server.Event) -> str:
        found = server.TABLE.get((state, event))
        if found is None:
            return ""
        following, effect = found
        moved = "" if following is state else f"**{following.name}**"
        return ": ".join(filter(None, [moved, EFFECTS[effect]])) or "–"

    rows = [[SERVER_EVENTS[event], *(cell(state, event) for state in server.State)] for event in server.Event]
    return grid("", (state.name for state in server.State), rows)


def client_table() -> str:
    """Rows, events and rules of a client."""

    def cell(row: states.Row, event: Event) -> str:
        rule = states.TABLE.get((row, event))
        return f"`{rule}`" if rule else ""

    rows = [[event.value, *(cell(row, event) for row in states.Row)] for event in Event]
    return grid("", (row.value for row in states.Row), rows)


def rules_table() -> str:
    """What each rule of a client does.

    Raises:
        KeyError: a rule is not explained here.
    """
    return grid("rule", ["what it does"], [[f"`{rule}`", RULES[rule]] for rule in sorted(set(states.TABLE.values()))])


def written(text: str) -> str:
    """The page with its tables written anew."""
    for name, table in (("server", server_table()), ("client", client_table()), ("rules", rules_table())):
        begin, end = f"<!-- table: {name} -->\n", "<!-- end -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        text, count = pattern.subn(lambda _, block=f"{begin}{table}\n{end}": block, text)
        if count != 1:
            raise ValueError(f"{PAGE.name} has {count} places for the table '{name}'")
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the state tables of the specification.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is not current")
    check = parser.parse_args().check
    old = PAGE.read_text(encoding="utf-8")
    new = written(old)
    if check:
        return int(old != new)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
