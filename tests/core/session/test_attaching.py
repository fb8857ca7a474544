"""The first words on a socket that is attached to a session."""

from __future__ import annotations

from typing import Any

import pytest

from openenv.core.session.attaching import Attached, Attaching, Gone
from openenv.core.session.events import DialFailure
from openenv.core.wire.json_codec import MalformedFrame
from openenv.core.wire.messages import Reply

ATTACHING = Attaching("s-1", "ws://x/ws")


def named(session: Any) -> Reply:
    return Reply("mcp", {"jsonrpc": "2.0", "id": 0, "result": {"session_id": session}})


def refused(code: str, message: str) -> Reply:
    return Reply("error", {"code": code, "message": message})


def test_the_answer_names_the_session() -> None:
    assert ATTACHING.question()["data"]["method"] == "openenv/session/create"
    assert ATTACHING.receive(named("s-1")) == Attached()


@pytest.mark.parametrize("reply", [named("s-2"), named(None), Reply("observation", {}), Reply("state", {})])
def test_a_socket_that_reached_another_session_is_not_used(reply: Reply) -> None:
    outcome = ATTACHING.receive(reply)
    assert isinstance(outcome, DialFailure)
    assert not outcome.retryable


def test_what_is_no_answer() -> None:
    with pytest.raises(MalformedFrame):
        ATTACHING.receive(Reply("mcp", {}))


def test_refusals() -> None:
    assert isinstance(ATTACHING.receive(refused("SESSION_ERROR", "Unknown session_id: s-1")), Gone)
    for text in ("Session s-1 already has an attached WebSocket", "Session s-1 is still initializing"):
        busy = ATTACHING.receive(refused("SESSION_ERROR", text))
        assert isinstance(busy, DialFailure)
        assert (busy.retryable, busy.busy) == (True, True)
    for code, text in (("SESSION_ERROR", "another reason"), ("EXECUTION_ERROR", "x")):
        final = ATTACHING.receive(refused(code, text))
        assert isinstance(final, DialFailure)
        assert (final.retryable, final.busy) == (False, False)


def test_ends_before_an_answer() -> None:
    cut, broken = ATTACHING.closed("the connection was cut"), ATTACHING.broken("the frame is not JSON")
    assert isinstance(cut, DialFailure)
    assert isinstance(broken, DialFailure)
    assert (cut.retryable, broken.retryable) == (True, False)
