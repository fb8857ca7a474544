"""The client's states, and the table of what may happen in each.

A client holds at most one session at a time, and a session is one environment on the server. What a
caller may do, and what a dropped connection means, depends on the state alone:

NEW
    No session, and none was lost. The first call opens one.
OPENING
    A connection is being dialled for the call in flight (again and again, until its time is over).
OPEN
    The session's socket is up: *idle*, or *busy* with the one call in flight.
SUSPENDED
    The socket is gone, the session is not: the server keeps it, and a resume brings it back.
LOST
    The session is gone and its episode with it. Nothing but a completed reset leads out.
CLOSED
    The user closed the client. A reset or a connect begins anew.

Two rules carry everything else.

1. *A call belongs to a session.* A step, state or tool call is sent only in the session that the
   client's last reset completed in (or, before any reset, in the session of its first call). If that
   session is gone when the call's turn comes, the call fails; it is never sent anywhere else.
2. *An answer belongs to a request.* A frame that no request asked for, or of another type than its
   request wants, proves that requests and replies no longer match, so the session is lost.

A client of tools holds its session over HTTP (``openenv/session/create``), where it outlives every socket, and
attaches a socket only for reset, step and state. `ATTACHED_TABLE` is the table of such a client. It knows no
SUSPENDED; instead it knows

DETACHED
    The session is there and no socket is. Tool calls go over HTTP as always; a reset, step or state attaches a
    socket first.

and *posting*, an open or detached session with a call in flight over HTTP. There the first rule says as well: what
may have been sent and would act twice is not sent again, unless the server knows it by its key; its caller is told
once that its outcome is unknown, and the session goes on.

`TABLE` names, for each row (the state, with OPEN split into idle, busy and settling) and each event, the rule of
`ClientMachine` that says what happens. An event without a cell is a fault of the machine's driver: it
raises `IllegalEvent` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from openenv.core.session.events import Event

__all__ = ["ATTACHED_TABLE", "TABLE", "IllegalEvent", "Row", "State"]


class State(StrEnum):
    """State of a client."""

    NEW = "new"
    OPENING = "opening"
    OPEN = "open"
    SUSPENDED = "suspended"
    DETACHED = "detached"
    LOST = "lost"
    CLOSED = "closed"


class Row(StrEnum):
    """Rows of the table: the states, with OPEN split by what the client waits for."""

    NEW = "new"
    OPENING = "opening"
    IDLE = "open, idle"
    BUSY = "open, call in flight"
    SETTLING = "open, waiting for the fate of a call that was given up"
    SUSPENDED = "suspended"
    DETACHED = "detached"
    POSTING = "call in flight over HTTP"
    LOST = "lost"
    CLOSED = "closed"


class IllegalEvent(RuntimeError):
    """An event that cannot happen in this row; the driver is at fault, and nothing was changed."""

    def __init__(self, row: Row, event: Event) -> None:
        self.row = row
        self.event = event
        super().__init__(f"'{event}' cannot happen while the client is '{row}'")


TABLE: Mapping[tuple[Row, Event], str] = {
    (Row.NEW, Event.CONNECT): "open_first",
    (Row.NEW, Event.RESET): "open_first",
    (Row.NEW, Event.CALL): "open_for_call",
    (Row.NEW, Event.SETTLE): "settle_now",
    (Row.NEW, Event.GAVE_UP): "stay",
    (Row.NEW, Event.CLOSE): "end",
    (Row.NEW, Event.LOOP_CLOSED): "stay",
    (Row.OPENING, Event.OPENED): "start_session",
    (Row.OPENING, Event.DIAL_FAILED): "dial_again",
    (Row.OPENING, Event.OPENING_OVER): "opening_over",
    (Row.OPENING, Event.GAVE_UP): "give_up_opening",
    (Row.OPENING, Event.CLOSE): "end",
    (Row.OPENING, Event.LOOP_CLOSED): "give_up_opening",
    (Row.IDLE, Event.CONNECT): "already_open",
    (Row.IDLE, Event.RESET): "ask",
    (Row.IDLE, Event.CALL): "ask",
    (Row.IDLE, Event.SETTLE): "ask",
    (Row.IDLE, Event.RECEIVED): "unasked",
    (Row.IDLE, Event.OVERSIZED): "unasked",
    (Row.IDLE, Event.DROPPED): "drop_idle",
    (Row.IDLE, Event.GAVE_UP): "answer_not_taken",
    (Row.IDLE, Event.CLOSE): "end",
    (Row.IDLE, Event.LOOP_CLOSED): "lose_loop",
    (Row.BUSY, Event.RECEIVED): "answer",
    (Row.BUSY, Event.OVERSIZED): "answer_too_large",
    (Row.BUSY, Event.DROPPED): "drop_busy",
    (Row.BUSY, Event.GAVE_UP): "give_up_call",
    (Row.BUSY, Event.CLOSE): "end",
    (Row.BUSY, Event.LOOP_CLOSED): "lose_loop",
    (Row.SETTLING, Event.RECEIVED): "answer_abandoned",
    (Row.SETTLING, Event.OVERSIZED): "unasked",
    (Row.SETTLING, Event.DROPPED): "drop_idle",
    (Row.SETTLING, Event.GAVE_UP): "give_up_waiting",
    (Row.SETTLING, Event.CLOSE): "end",
    (Row.SETTLING, Event.LOOP_CLOSED): "lose_loop",
    (Row.SUSPENDED, Event.CONNECT): "wait_for_resume",
    (Row.SUSPENDED, Event.RESET): "wait_for_resume",
    (Row.SUSPENDED, Event.CALL): "call_suspended",
    (Row.SUSPENDED, Event.SETTLE): "ask",
    (Row.SUSPENDED, Event.OPENING_OVER): "open_elsewhere",
    (Row.SUSPENDED, Event.DIAL_FAILED): "resume_again",
    (Row.SUSPENDED, Event.RESUMED): "resume",
    (Row.SUSPENDED, Event.RESUME_LOST): "lose_suspended",
    (Row.SUSPENDED, Event.GAVE_UP): "give_up_suspended",
    (Row.SUSPENDED, Event.CLOSE): "end",
    (Row.SUSPENDED, Event.LOOP_CLOSED): "lose_loop",
    (Row.LOST, Event.CONNECT): "connect_lost",
    (Row.LOST, Event.RESET): "reset_lost",
    (Row.LOST, Event.CALL): "refuse",
    (Row.LOST, Event.SETTLE): "settle_now",
    (Row.LOST, Event.RECEIVED): "unasked",
    (Row.LOST, Event.OVERSIZED): "unasked",
    (Row.LOST, Event.DROPPED): "drop_lost",
    (Row.LOST, Event.GAVE_UP): "stay",
    (Row.LOST, Event.CLOSE): "end",
    (Row.LOST, Event.LOOP_CLOSED): "drop_lost",
    (Row.CLOSED, Event.CONNECT): "open_first",
    (Row.CLOSED, Event.RESET): "open_first",
    (Row.CLOSED, Event.CALL): "refuse_closed",
    (Row.CLOSED, Event.SETTLE): "settle_now",
    (Row.CLOSED, Event.GAVE_UP): "stay",
    (Row.CLOSED, Event.CLOSE): "stay",
    (Row.CLOSED, Event.LOOP_CLOSED): "stay",
}

ATTACHED_TABLE: Mapping[tuple[Row, Event], str] = {
    **{cell: rule for cell, rule in TABLE.items() if cell[0] in (Row.NEW, Row.CLOSED)},
    (Row.OPENING, Event.CREATED): "hold",
    (Row.OPENING, Event.REACHED): "reach",
    (Row.OPENING, Event.ATTACHED): "attach",
    (Row.OPENING, Event.DIAL_FAILED): "dial_again",
    (Row.OPENING, Event.RESUME_LOST): "gone",
    (Row.OPENING, Event.OPENING_OVER): "opening_over",
    (Row.OPENING, Event.GAVE_UP): "give_up_opening",
    (Row.OPENING, Event.CLOSE): "end",
    (Row.OPENING, Event.LOOP_CLOSED): "give_up_opening",
    (Row.IDLE, Event.CONNECT): "already_open",
    (Row.IDLE, Event.RESET): "ask",
    (Row.IDLE, Event.CALL): "ask",
    (Row.IDLE, Event.SETTLE): "ask",
    (Row.IDLE, Event.RECEIVED): "unasked",
    (Row.IDLE, Event.OVERSIZED): "unasked",
    (Row.IDLE, Event.DROPPED): "detach",
    (Row.IDLE, Event.GAVE_UP): "answer_not_taken",
    (Row.IDLE, Event.CLOSE): "end",
    (Row.IDLE, Event.LOOP_CLOSED): "detach",
    (Row.BUSY, Event.RECEIVED): "answer",
    (Row.BUSY, Event.OVERSIZED): "answer_too_large",
    (Row.BUSY, Event.DROPPED): "drop_busy",
    (Row.BUSY, Event.GAVE_UP): "give_up_call",
    (Row.BUSY, Event.CLOSE): "end",
    (Row.BUSY, Event.LOOP_CLOSED): "lose_loop",
    (Row.POSTING, Event.RECEIVED): "unasked",
    (Row.POSTING, Event.OVERSIZED): "unasked",
    (Row.POSTING, Event.DROPPED): "detach",
    (Row.POSTING, Event.POSTED): "take_post",
    (Row.POSTING, Event.POST_FAILED): "post_again",
    (Row.POSTING, Event.RESUME_LOST): "gone",
    (Row.POSTING, Event.GAVE_UP): "give_up_post",
    (Row.POSTING, Event.CLOSE): "end",
    (Row.POSTING, Event.LOOP_CLOSED): "lose_loop",
    (Row.DETACHED, Event.CONNECT): "open_again",
    (Row.DETACHED, Event.RESET): "open_again",
    (Row.DETACHED, Event.CALL): "call_detached",
    (Row.DETACHED, Event.SETTLE): "settle_now",
    (Row.DETACHED, Event.GAVE_UP): "answer_not_taken",
    (Row.DETACHED, Event.CLOSE): "end",
    (Row.DETACHED, Event.LOOP_CLOSED): "stay",
    (Row.LOST, Event.CONNECT): "connect_lost",
    (Row.LOST, Event.RESET): "reset_lost",
    (Row.LOST, Event.CALL): "refuse",
    (Row.LOST, Event.SETTLE): "settle_now",
    (Row.LOST, Event.RECEIVED): "unasked",
    (Row.LOST, Event.OVERSIZED): "unasked",
    (Row.LOST, Event.DROPPED): "drop_lost",
    (Row.LOST, Event.GAVE_UP): "stay",
    (Row.LOST, Event.CLOSE): "end",
    (Row.LOST, Event.LOOP_CLOSED): "drop_lost",
}
