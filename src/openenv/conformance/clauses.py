"""The clauses of the env link: numbers that specification, checkers and planted bugs all cite.

P1 and on are of the plain dialect, E1 and on of ``openenv.v1``. A clause with ``safety`` is more than the plain
dialect asks: upstream 0.10.0 is known not to keep it, and two ends without it still understand each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["CLAUSES", "Clause", "Dialect", "clause", "select"]


class Dialect(StrEnum):
    """Which language a clause is of."""

    PLAIN = "plain"
    V1 = "openenv.v1"
    POLICY = "policy"


@dataclass(frozen=True, slots=True)
class Clause:
    """One numbered rule.

    Attributes:
        id: its number.
        title: a few words.
        text: the rule in one sentence.
        dialect: of which language.
        ends: which ends a checker can grade by it: ``s`` server, ``c`` client.
        feature: the negotiated feature that it belongs to; empty for none.
        safety: whether it is more than the plain dialect asks.
    """

    id: str
    title: str
    text: str
    dialect: Dialect
    ends: str
    feature: str = ""
    safety: bool = False


def _plain(number: int, ends: str, title: str, text: str, safety: bool = False) -> Clause:
    return Clause(f"P{number}", title, text, Dialect.PLAIN, ends, safety=safety)


def _v1(number: str, ends: str, feature: str, title: str, text: str) -> Clause:
    return Clause(f"E{number}", title, text, Dialect.V1, ends, feature)


_ALL = [
    _plain(1, "s", "silence", "The server accepts the upgrade on /ws and says nothing until it is asked."),
    _plain(
        2, "sc", "one frame, one reply", "Frames are answered one by one and in order, also when they are pipelined."
    ),
    _plain(3, "s", "observation", "reset and step are answered by 'observation' with observation, reward and done."),
    _plain(4, "s", "state", "state is answered by 'state' with an object; a 'data' member in the request is an error."),
    _plain(5, "s", "own environment", "Each socket has an environment of its own, which no other socket can reach."),
    _plain(6, "s", "no order of calls", "step and state are answered before any reset, and step after done."),
    _plain(
        7, "sc", "closed envelopes", "A request has 'type' and 'data' and no other member; more is VALIDATION_ERROR."
    ),
    _plain(
        8, "sc", "step", "The data of step is the action itself; without it, or with a wrong one, VALIDATION_ERROR."
    ),
    _plain(9, "sc", "reset", "The data of reset is optional and holds its arguments; null is VALIDATION_ERROR."),
    _plain(10, "s", "INVALID_JSON", "Text that is not JSON is answered by INVALID_JSON, and the session goes on."),
    _plain(
        11, "s", "UNKNOWN_TYPE", "A missing or unknown 'type' is answered by UNKNOWN_TYPE, and the session goes on."
    ),
    _plain(12, "s", "VALIDATION_ERROR", "It carries a list 'errors' with type, loc and msg, and the session goes on."),
    _plain(
        13,
        "sc",
        "EXECUTION_ERROR",
        "An exception of the env becomes EXECUTION_ERROR; the session goes on.",
    ),
    _plain(14, "c", "text frames", "A client's frames are text and JSON objects."),
    _plain(15, "sc", "close", "'close' has no reply: the socket is closed with 1000; a client that is done says it."),
    _plain(16, "s", "the end of a session", "The end of a socket ends its session: the slot becomes free for another."),
    _plain(
        17, "sc", "CAPACITY_REACHED", "A full server accepts, says active_sessions and max_sessions, and closes 1000."
    ),
    _plain(18, "s", "SESSION_ERROR", "An unknown ?session_id is answered by SESSION_ERROR and close 1000."),
    _plain(
        19, "s", "mcp", "mcp is answered by 'mcp' with JSON-RPC: -32601 for an unknown method, -32600 for a bad body."
    ),
    _plain(20, "s", "size", "A frame over the server's limit is answered by an error or by close code 1009."),
    _plain(
        21, "s", "no frame is fatal", "JSON that is no object, or a binary frame, costs one error frame.", safety=True
    ),
    _plain(
        22, "s", "values", "NaN and infinities cross unchanged or are refused; they never become null.", safety=True
    ),
    _plain(23, "s", "vanished peer", "A frame that waits is not run when its peer is gone.", safety=True),
    _plain(24, "c", "one call at a time", "A client sends no request while another is unanswered.", safety=True),
    _plain(
        25,
        "c",
        "right session",
        "After a loss no step or state is sent before a reset, tried again or not.",
        safety=True,
    ),
    _plain(
        26, "c", "own answer", "A reply that comes after its caller gave up never answers another call.", safety=True
    ),
    _plain(27, "c", "at most once", "A step that may have arrived is never sent again.", safety=True),
    _v1("1", "sc", "", "subprotocol", "The client offers openenv.v1; a server that does not echo it is plain."),
    _v1("2", "sc", "", "welcome", "A server that echoes it sends welcome first, then nothing until it is asked."),
    _v1("3", "sc", "", "open", "release*, then one open or resume; opened, or CAPACITY_REACHED and close 1013."),
    _v1(
        "4", "sc", "", "features", "Used only if listed and named in open.uses; unknown names and members are ignored."
    ),
    _v1("5", "sc", "", "token", "A secret of 256 bits, apart from the public session, never in a URL or header."),
    _v1("6", "s", "", "first frame", "A silent socket is closed; a session that was never called is not leased."),
    _v1("7", "sc", "seq", "numbers", "Requests are numbered 1, 2, 3 ... and the reply carries the number."),
    _v1(
        "8",
        "s",
        "seq",
        "replay",
        "The same request again is answered from the cache; other numbers or bytes run nothing.",
    ),
    _v1("9", "sc", "seq", "bytes", "What is sent again is the very same bytes; the server compares bytes."),
    _v1("10", "sc", "", "REPLY_TOO_LARGE", "Too large a reply becomes an error, too large a request is not sent."),
    _v1("11", "s", "", "applied", "Every error frame that answers a call carries applied: true, false or null."),
    _v1("12", "sc", "", "BUSY", "The server reads while a call runs; a second call gets BUSY and is not run."),
    _v1("13", "sc", "cancel", "cancel", "Ends the running call, or one that has not come; is idempotent."),
    _v1(
        "14", "c", "seq", "abandoned", "The next call waits for the fate of one that was given up; nothing new is sent."
    ),
    _v1(
        "15",
        "c",
        "seq",
        "fate",
        "A late result is handed over once and nothing is sent; not applied goes on in silence.",
    ),
    _v1("15a", "c", "", "reset first", "A session refuses step and state until a reset has completed in it."),
    _v1("15b", "", "", "settle", "The text of a timeout says to call settle()."),
    _v1("16", "c", "", "plain give-up", "Against a plain server a call that was given up loses the session."),
    _v1("17", "s", "resume", "who is leased", "Only a session whose open.uses names resume outlives its socket."),
    _v1(
        "18",
        "sc",
        "resume",
        "ends",
        "'close' is answered by 1000 'closed' and ends for good; any other end makes a lease.",
    ),
    _v1("19", "s", "resume", "lease", "A running call ends into the cache; a lease gives way to who waits for a slot."),
    _v1(
        "20",
        "sc",
        "resume",
        "resume",
        "Answered by resumed with a new token, or lost with a reason; ghosts change nothing.",
    ),
    _v1("21", "sc", "resume", "the missing reply", "It is pushed once; a client re-sends only what did not arrive."),
    _v1(
        "22",
        "sc",
        "resume",
        "newest holder",
        "The older socket is closed with 4000; a client told so does not come back.",
    ),
    _v1(
        "23", "c", "resume", "reconnecting", "A suspended client dials again, with backoff, until it is told of a loss."
    ),
    _v1("24", "sc", "", "final codes", "1000 closed, 1013, 4000 to 4003 end a session; no other code does."),
    _v1("25", "sc", "resume", "release", "A session that its client gave up is released before the next open."),
    _v1("26", "", "resume", "workers", "Several workers without routing between them do not offer resume."),
    _v1("27", "c", "resume", "grace over", "A reply lost with its session is a loss; the step is never sent again."),
    _v1("28", "sc", "queue", "queue", "Who waits is told a position at each change and served in order of arrival."),
    _v1("29", "s", "", "values", "NaN and infinities are the tokens of Python's json."),
    _v1("30", "s", "", "terminated, truncated", "They stand beside done in observation replies."),
]

CLAUSES: dict[str, Clause] = {one.id: one for one in _ALL}
"""All clauses by number, in order."""


def clause(number: str) -> Clause:
    """The clause of a number.

    Raises:
        KeyError: there is none.
    """
    return CLAUSES[number]


def select(end: str, *, plain_only: bool = False, only: Iterable[str] = ()) -> list[Clause]:
    """The clauses by which an end is graded.

    Args:
        end: ``s`` or ``c``.
        plain_only: leave out those of ``openenv.v1``.
        only: numbers to choose from; empty for all.
    """
    wanted = set(only)
    return [
        one
        for one in _ALL
        if end in one.ends and (not wanted or one.id in wanted) and not (plain_only and one.dialect is Dialect.V1)
    ]
