"""The clauses of the policy link. The number before the letter is the section of the protocol's text.

Checkers of the field name a rule by its section alone; the letter tells the rules of one section apart.
"""

from __future__ import annotations

from collections.abc import Iterable

from openenv.conformance.clauses import Clause, Dialect

__all__ = ["POLICY_CLAUSES", "REUSE", "select_policy"]

REUSE = "reuse-feedback-obs"
"""Name of the one feature that there is."""


def _of(number: str, ends: str, title: str, text: str, feature: str = "") -> Clause:
    return Clause(number, title, text, Dialect.POLICY, ends, feature)


_ALL = [
    _of("1a", "sc", "binary frames", "One message is one binary frame."),
    _of("1b", "s", "pings", "A server answers pings while it works out an action."),
    _of("1.1a", "sc", "no compression", "Neither end negotiates permessage-deflate; a client does not offer it."),
    _of("1.1b", "sc", "no frame limit", "Neither end refuses a frame for its size."),
    _of("2a", "sc", "envelope", "A message is a msgpack map whose str key message_type names its type by a str."),
    _of("3.1a", "sc", "arrays", "An array is a map of four bin keys, its data in C order and of the right length."),
    _of("3.1b", "sc", "any form", "Byte order and width are read from the dtype; keys may come in any order."),
    _of("3.4a", "sc", "text", "Text is a U array (which clients send) or a list of strings; both are accepted."),
    _of("4a", "sc", "alternation", "metadata, then infer, action, feedback in turn; nothing else, nothing twice."),
    _of("4.3a", "sc", "env_ids", "env_ids of an action are the env_indices asked for; rows are told apart by them."),
    _of("4.3b", "sc", "sets differ", "Feedback names the envs whose chunk ended, whichever were asked for last."),
    _of("4.3c", "c", "feedback needs an action", "Feedback names only envs that hold an action of this connection."),
    _of("4.3d", "c", "feedback before infer", "An env does not infer again before it fed back."),
    _of("4.4a", "sc", "indices", "Indices are not negative, unique in a message, and scoped to the connection."),
    _of("5.1a", "sc", "metadata first", "The server speaks first, once, and the client waits for it."),
    _of("5.1b", "c", "no key is required", "A client starts with whatever metadata, even none."),
    _of("5.1c", "c", "unknown is ignored", "Unknown keys, and known ones of a wrong type, are as good as absent."),
    _of("5.1d", "s", "metadata values", "Known keys hold what they should: positive integers, strings, a list of str."),
    _of("5.1e", "s", "metadata is true", "Actions have the declared horizon and width."),
    _of("5.2a", "c", "infer", "images, states, text, env_indices and step_ids, batched alike."),
    _of("5.2b", "c", "current observation", "An infer carries the observation that the env has now."),
    _of("5.2c", "s", "any number of envs", "The number of envs may change from message to message."),
    _of("5.3a", "sc", "time-major", "An action is [horizon, envs, ...]."),
    _of("5.3b", "sc", "numbers", "An action is numeric, of whatever dtype it says."),
    _of("5.3c", "c", "at most the horizon", "A client executes 1 to H steps of a chunk, then asks again."),
    _of("5.3d", "c", "without env_ids", "An action without env_ids is in the order of the request."),
    _of("5.4a", "c", "summed reward", "A reward is the sum over the executed steps of the chunk."),
    _of("5.4b", "c", "terminal observation", "Feedback carries the observation after the last step, before any reset."),
    _of("5.4c", "c", "feedback", "obs, rewards, terminated, truncated and info, batched alike."),
    _of("5.4d", "c", "flags", "terminated and truncated are those of the last executed step."),
    _of("5.4e", "c", "flushed early", "A chunk ends with the step that ends the episode."),
    _of("7.1a", "sc", "stop", "The end of the run is close 1001 'plugrl-server-stop'; a client then exits with 0."),
    _of("7.1b", "sc", "stop is for all", "Every connection is told; a client that was told does not come back."),
    _of("7.1c", "c", "stop at any point", "A stop is one in mid-feedback and in place of metadata too."),
    _of("7.2a", "s", "bad infer", "An infer that lacks a key is answered by close 1001 'plugrl-server-resync'."),
    _of("7.2b", "s", "out of turn", "An infer where feedback is due is answered by a resync."),
    _of("7.2c", "s", "bad feedback", "Feedback whose counts do not fit its envs is answered by a resync."),
    _of("7.2d", "s", "no message", "A text frame, bytes that are no message, or a forged array cost a resync."),
    _of("7.2e", "s", "only that connection", "A protocol error ends one connection; others live on, new ones come."),
    _of("7.2f", "s", "odd indices", "No env at all, or one named twice, is not fatal to the server."),
    _of("7.3a", "sc", "feedback timeout", "1001 'Feedback timeout' ends a connection and not the run."),
    _of("7.4a", "c", "text is fatal", "After a text frame a client closes, says nothing more, and stops."),
    _of("7.5a", "", "the client's end", "A client that is done closes with 1000."),
    _of("7.6a", "sc", "infer comes first", "The first message of every connection is an infer."),
    _of("7.6b", "c", "no old chunk", "Chunks of an earlier connection are not executed and not fed back."),
    _of("7.6c", "c", "every env asks anew", "The first infer of a new connection names every env."),
    _of("7.6d", "c", "envs go on", "A reconnect resets no env; it goes on in mid-episode."),
    _of("7.6e", "c", "ended is reset", "An env whose episode ended is reset although its feedback was dropped."),
    _of("7.6f", "c", "any close", "After any close but a stop, a client comes back."),
    _of("7.6g", "s", "feedback without action", "Feedback of an env that holds no action is dropped or refused."),
    _of("10.1a", "sc", "only if listed", "reuse is sent only where the server lists it, and answered there.", REUSE),
    _of("10.1b", "sc", "never after the end", "A terminal observation is not reused.", REUSE),
    _of("10.1c", "sc", "only what was fed back", "What was not fed back on this connection is not reused.", REUSE),
    _of("10.1d", "sc", "its shape", "reuse is a bool array [n]; data holds exactly the rows that are false.", REUSE),
    _of("10.1e", "s", "optional", "A server that lists it serves clients that do not use it.", REUSE),
]

POLICY_CLAUSES: dict[str, Clause] = {one.id: one for one in _ALL}
"""All clauses by number, in order."""


def select_policy(end: str, *, only: Iterable[str] = (), features: Iterable[str] | None = None) -> list[Clause]:
    """The clauses by which an end is graded.

    Args:
        end: ``s`` or ``c``.
        only: numbers to choose from; empty for all.
        features: leave out clauses of other features than these, but for the one that forbids what is not listed;
            None leaves out nothing.
    """
    wanted = set(only)
    listed = None if features is None else {"", *features}
    return [
        one
        for one in _ALL
        if end in one.ends
        and (not wanted or one.id in wanted)
        and (listed is None or one.feature in listed or one.id == "10.1a")
    ]
