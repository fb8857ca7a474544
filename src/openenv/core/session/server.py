"""The life of one session on the server, as a table. Pure: no sockets, no clock, no threads.

A session owns one environment and one slot of the server's capacity. Both are taken before the environment's
constructor runs, and the slot is given back after its ``close()`` has returned. At most one thing of the
environment runs at any moment: its constructor, one call, or ``close()``.

Events are what happens to a session: frames of its client, the fate of its socket, timers, the end of
something that ran. The table answers each event with the next state and one effect, which the caller carries out.
Two rules make the table readable:

1. What a peer, a clock or an operator may do at any moment always has a cell, even if nothing follows from it.
2. Everything else is a mistake of the caller: `IllegalEvent` is raised, and nothing has changed.

Two states of the protocol stand in two rows each, because what may follow depends on whether the environment is
busy: LEASED (a session whose socket is gone, kept for its client) is `LEASED` or `LEASED_BUSY`; CLOSING is `ENDING`
while the constructor or the last call still runs, then `CLOSING` while ``close()`` runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

__all__ = ["TABLE", "Effect", "Event", "IllegalEvent", "ServerSession", "State"]


class State(StrEnum):
    """Where a session stands."""

    OPENING = "opening"
    """The slot is taken, the constructor runs."""
    IDLE = "idle"
    RUNNING = "running"
    """One call runs."""
    LEASED = "leased"
    """The socket is gone; the client may come back."""
    LEASED_BUSY = "leased_busy"
    """The same, and its last call still runs."""
    ENDING = "ending"
    """The session is over, but the constructor or the last call still runs."""
    CLOSING = "closing"
    """``close()`` runs."""
    CLOSED = "closed"
    """The slot is free."""


class Event(StrEnum):
    """What can happen to a session."""

    BUILT = "built"
    BUILD_FAILED = "build_failed"
    CALL = "call"
    CALL_DONE = "call_done"
    CANCEL = "cancel"
    DROP = "drop"
    """The socket is gone, and the session does not outlive its socket."""
    DROP_LEASED = "drop_leased"
    """The socket is gone, and the client may resume."""
    RESUME = "resume"
    """A client came with a good token."""
    TIMER = "timer"
    """Idle for too long, lease over, or evicted for somebody who waits."""
    DRAIN = "drain"
    """The server stops."""
    CLOSE = "close"
    """The client said close, or released the session."""
    ENV_CLOSED = "env_closed"


class Effect(StrEnum):
    """What the caller has to do."""

    NOTHING = "nothing"
    RUN = "run"
    """Run the call."""
    BUSY = "busy"
    """Answer BUSY: the call is not run and not queued."""
    REFUSE = "refuse"
    """Answer that the session is over: the call is not run."""
    CANCEL_CALL = "cancel_call"
    """Ask the environment to cut its call short."""
    ANSWER_CANCEL = "answer_cancel"
    """Nothing runs; answer from the numbers of the calls."""
    REPLACE = "replace"
    """Attach the new socket, close the older one."""
    ATTACH = "attach"
    """Attach the new socket."""
    ANSWER_LOST = "answer_lost"
    """Tell the client that the session is over."""
    CLOSE_ENV = "close_env"
    """Run the environment's ``close()``, once."""
    FREE = "free"
    """Give the slot back."""


S, E, F = State, Event, Effect
Cell = tuple[State, Effect]

TABLE: Mapping[tuple[State, Event], Cell] = {
    (S.OPENING, E.BUILT): (S.IDLE, F.NOTHING),
    (S.OPENING, E.BUILD_FAILED): (S.CLOSED, F.FREE),
    (S.OPENING, E.CALL): (S.OPENING, F.BUSY),
    (S.OPENING, E.CANCEL): (S.OPENING, F.NOTHING),
    (S.OPENING, E.DROP): (S.ENDING, F.NOTHING),
    (S.OPENING, E.DROP_LEASED): (S.ENDING, F.NOTHING),
    (S.OPENING, E.DRAIN): (S.ENDING, F.NOTHING),
    (S.OPENING, E.CLOSE): (S.ENDING, F.NOTHING),
    #
    (S.IDLE, E.CALL): (S.RUNNING, F.RUN),
    (S.IDLE, E.CANCEL): (S.IDLE, F.ANSWER_CANCEL),
    (S.IDLE, E.DROP): (S.CLOSING, F.CLOSE_ENV),
    (S.IDLE, E.DROP_LEASED): (S.LEASED, F.NOTHING),
    (S.IDLE, E.RESUME): (S.IDLE, F.REPLACE),
    (S.IDLE, E.TIMER): (S.CLOSING, F.CLOSE_ENV),
    (S.IDLE, E.DRAIN): (S.CLOSING, F.CLOSE_ENV),
    (S.IDLE, E.CLOSE): (S.CLOSING, F.CLOSE_ENV),
    #
    (S.RUNNING, E.CALL): (S.RUNNING, F.BUSY),
    (S.RUNNING, E.CALL_DONE): (S.IDLE, F.NOTHING),
    (S.RUNNING, E.CANCEL): (S.RUNNING, F.CANCEL_CALL),
    (S.RUNNING, E.DROP): (S.ENDING, F.NOTHING),
    (S.RUNNING, E.DROP_LEASED): (S.LEASED_BUSY, F.NOTHING),
    (S.RUNNING, E.RESUME): (S.RUNNING, F.REPLACE),
    (S.RUNNING, E.TIMER): (S.RUNNING, F.NOTHING),  # a running call is never idle
    (S.RUNNING, E.DRAIN): (S.ENDING, F.NOTHING),
    (S.RUNNING, E.CLOSE): (S.ENDING, F.CANCEL_CALL),
    #
    (S.LEASED, E.RESUME): (S.IDLE, F.ATTACH),
    (S.LEASED, E.TIMER): (S.CLOSING, F.CLOSE_ENV),
    (S.LEASED, E.DRAIN): (S.CLOSING, F.CLOSE_ENV),
    (S.LEASED, E.CLOSE): (S.CLOSING, F.CLOSE_ENV),
    #
    (S.LEASED_BUSY, E.CALL_DONE): (S.LEASED, F.NOTHING),
    (S.LEASED_BUSY, E.RESUME): (S.RUNNING, F.ATTACH),
    (S.LEASED_BUSY, E.TIMER): (S.ENDING, F.NOTHING),
    (S.LEASED_BUSY, E.DRAIN): (S.ENDING, F.NOTHING),
    (S.LEASED_BUSY, E.CLOSE): (S.ENDING, F.CANCEL_CALL),
    #
    (S.ENDING, E.BUILT): (S.CLOSING, F.CLOSE_ENV),
    (S.ENDING, E.BUILD_FAILED): (S.CLOSED, F.FREE),
    (S.ENDING, E.CALL_DONE): (S.CLOSING, F.CLOSE_ENV),
    (S.ENDING, E.CALL): (S.ENDING, F.REFUSE),
    (S.ENDING, E.RESUME): (S.ENDING, F.ANSWER_LOST),
    #
    (S.CLOSING, E.ENV_CLOSED): (S.CLOSED, F.FREE),
    (S.CLOSING, E.CALL): (S.CLOSING, F.REFUSE),
    (S.CLOSING, E.RESUME): (S.CLOSING, F.ANSWER_LOST),
    #
    (S.CLOSED, E.CALL): (S.CLOSED, F.REFUSE),
    (S.CLOSED, E.RESUME): (S.CLOSED, F.ANSWER_LOST),
    # A session that is over is not ended twice.
    **{
        (state, event): (state, F.NOTHING)
        for state in (S.ENDING, S.CLOSING, S.CLOSED)
        for event in (E.CANCEL, E.DROP, E.DROP_LEASED, E.TIMER, E.DRAIN, E.CLOSE)
    },
}


class IllegalEvent(RuntimeError):
    """An event that cannot happen in this state: a mistake of the caller. Nothing has changed."""

    def __init__(self, state: State, event: Event) -> None:
        self.state = state
        self.event = event
        super().__init__(f"'{event}' cannot happen to a session that is '{state}'")


class ServerSession:
    """One walk through the table.

    Attributes:
        state: where the session stands.
    """

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = State.OPENING

    def receive(self, event: Event) -> Effect:
        """Take an event.

        Returns:
            What the caller has to do now.

        Raises:
            IllegalEvent: the event cannot happen here; nothing has changed.
        """
        cell = TABLE.get((self.state, event))
        if cell is None:
            raise IllegalEvent(self.state, event)
        self.state, effect = cell
        return effect

    @property
    def busy(self) -> bool:
        """Whether something of the environment runs: constructor, call or ``close()``."""
        return self.state not in (State.IDLE, State.LEASED, State.CLOSED)

    @property
    def over(self) -> bool:
        """Whether no further call is run."""
        return self.state in (State.ENDING, State.CLOSING, State.CLOSED)
