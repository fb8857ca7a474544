"""States and table of the policy link's client.

`TABLE` names, for each row and event, the rule of `openenv.policy.link.LinkMachine` that says what happens. An event
without a cell is a fault of the machine's driver: it raises `IllegalLinkEvent` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from openenv.policy.protocol import IllegalEvent

__all__ = ["TABLE", "IllegalLinkEvent", "LinkEvent", "LinkState"]


class LinkState(StrEnum):
    """Rows of the table."""

    DOWN = "no connection"
    DIALING = "a connection is being opened"
    REPLACED = "open, and the caller holds actions of an older connection"
    READY = "open, an infer is due"
    ASKED = "open, an action is due"
    ACTING = "open, a feedback is due"
    FEEDING = "open, a feedback is being sent"
    STOPPED = "the server's run is over"
    BROKEN = "the server broke the protocol"
    CLOSED = "closed"


class LinkEvent(StrEnum):
    """Columns of the table."""

    CONNECT = "connect() is called"
    INFER = "infer() is called"
    FEEDBACK = "feedback() is called"
    OPENED = "metadata came"
    ANSWERED = "an action came"
    SENT = "the feedback was sent"
    DROPPED = "the connection ended"
    GAVE_UP = "the caller waits no longer"
    BROKE = "something came that may not come"
    CLOSE = "close() is called"


class IllegalLinkEvent(IllegalEvent):
    """An event that cannot happen in this row; the driver is at fault, and nothing was changed."""

    def __init__(self, row: LinkState, event: LinkEvent) -> None:
        self.row = row
        self.event = event
        super().__init__(f"'{event}' cannot happen while the link is '{row}'")


_R, _E = LinkState, LinkEvent
TABLE: Mapping[tuple[LinkState, LinkEvent], str] = {
    (_R.DOWN, _E.CONNECT): "dial",
    (_R.DOWN, _E.INFER): "dial",
    (_R.DOWN, _E.FEEDBACK): "tell_replaced",
    (_R.DOWN, _E.CLOSE): "end",
    (_R.DIALING, _E.OPENED): "open",
    (_R.DIALING, _E.DROPPED): "dial_again",
    (_R.DIALING, _E.GAVE_UP): "give_up",
    (_R.DIALING, _E.BROKE): "break_off",
    (_R.DIALING, _E.CLOSE): "end",
    (_R.REPLACED, _E.CONNECT): "already_open",
    (_R.REPLACED, _E.INFER): "tell_replaced",
    (_R.REPLACED, _E.FEEDBACK): "tell_replaced",
    (_R.REPLACED, _E.DROPPED): "drop_idle",
    (_R.REPLACED, _E.CLOSE): "end",
    (_R.READY, _E.CONNECT): "already_open",
    (_R.READY, _E.INFER): "ask",
    (_R.READY, _E.FEEDBACK): "refuse_feedback",
    (_R.READY, _E.DROPPED): "drop_idle",
    (_R.READY, _E.CLOSE): "end",
    (_R.ASKED, _E.ANSWERED): "take_action",
    (_R.ASKED, _E.DROPPED): "dial_again",
    (_R.ASKED, _E.GAVE_UP): "give_up",
    (_R.ASKED, _E.BROKE): "break_off",
    (_R.ASKED, _E.CLOSE): "end",
    (_R.ACTING, _E.CONNECT): "already_open",
    (_R.ACTING, _E.INFER): "refuse_infer",
    (_R.ACTING, _E.FEEDBACK): "feed",
    (_R.ACTING, _E.DROPPED): "drop_idle",
    (_R.ACTING, _E.CLOSE): "end",
    (_R.FEEDING, _E.SENT): "fed",
    (_R.FEEDING, _E.DROPPED): "lose_feedback",
    (_R.FEEDING, _E.GAVE_UP): "give_up",
    (_R.FEEDING, _E.CLOSE): "end",
    (_R.STOPPED, _E.CONNECT): "tell_again",
    (_R.STOPPED, _E.INFER): "tell_again",
    (_R.STOPPED, _E.FEEDBACK): "tell_again",
    (_R.STOPPED, _E.CLOSE): "end",
    (_R.BROKEN, _E.CONNECT): "tell_again",
    (_R.BROKEN, _E.INFER): "tell_again",
    (_R.BROKEN, _E.FEEDBACK): "tell_again",
    (_R.BROKEN, _E.CLOSE): "end",
    (_R.CLOSED, _E.CONNECT): "tell_again",
    (_R.CLOSED, _E.INFER): "tell_again",
    (_R.CLOSED, _E.FEEDBACK): "tell_again",
    (_R.CLOSED, _E.OPENED): "tell_again",  # close() came from another thread, under a call
    (_R.CLOSED, _E.ANSWERED): "tell_again",
    (_R.CLOSED, _E.SENT): "tell_again",
    (_R.CLOSED, _E.DROPPED): "tell_again",
    (_R.CLOSED, _E.GAVE_UP): "stay",
    (_R.CLOSED, _E.BROKE): "tell_again",
    (_R.CLOSED, _E.CLOSE): "stay",
}
