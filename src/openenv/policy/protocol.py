"""The order of messages on one connection of the policy link: one machine, driven by both ends.

On each connection, strictly: ``metadata (infer action feedback)*`` [4]. The server speaks first and once; after an
action exactly one feedback is due, after a feedback exactly one infer. Which environments a message may name follows
from who holds an action [4.1, 4.2]:

1. An environment holds an action from the action message that names it until the feedback that names it, and only on
   the connection that brought it.
2. An infer may name only environments that hold none, a feedback only those that hold one, and an action names
   exactly those of its infer.

Infer and feedback need not name the same environments: the alternation is flow control only.

`TABLE` says in which state which message may come, and what state follows. Whatever else happens raises and changes
nothing: `IllegalMessage` for a message out of turn, `IllegalEnvs` for one that names the wrong environments. The same
machine stands at both ends: at the client it keeps us from sending what the server would have to refuse, at the server
it refuses what comes. A server that wants to be lenient about environments asks `strays` first, and leaves those out.

Not in this room: connection numbers and reconnecting (`openenv.policy.link`), what is in a message, sockets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

__all__ = ["TABLE", "Conversation", "Event", "IllegalEnvs", "IllegalEvent", "IllegalMessage", "State"]


class State(StrEnum):
    """What is due on a connection."""

    METADATA = "metadata is due"
    INFER = "an infer is due"
    ACTION = "an action is due"
    FEEDBACK = "a feedback is due"
    CLOSED = "closed"


class Event(StrEnum):
    """What happens on a connection."""

    METADATA = "metadata"
    INFER = "infer"
    ACTION = "action"
    FEEDBACK = "feedback"
    CLOSE = "close"


TABLE: Mapping[tuple[State, Event], State] = {
    (State.METADATA, Event.METADATA): State.INFER,
    (State.INFER, Event.INFER): State.ACTION,
    (State.ACTION, Event.ACTION): State.FEEDBACK,
    (State.FEEDBACK, Event.FEEDBACK): State.INFER,
    (State.METADATA, Event.CLOSE): State.CLOSED,
    (State.INFER, Event.CLOSE): State.CLOSED,
    (State.ACTION, Event.CLOSE): State.CLOSED,
    (State.FEEDBACK, Event.CLOSE): State.CLOSED,
}


class IllegalEvent(RuntimeError):
    """Something that may not happen now. Nothing was changed."""


class IllegalMessage(IllegalEvent):
    """A message out of turn.

    Attributes:
        state: what is due instead.
        event: what came.
    """

    def __init__(self, state: State, event: Event) -> None:
        self.state = state
        self.event = event
        super().__init__(f"'{event}' while {state}")


class IllegalEnvs(IllegalEvent):
    """A message that names environments which it may not name.

    Attributes:
        event: the message.
        env_ids: the environments.
    """

    def __init__(self, event: Event, env_ids: Iterable[int], why: str) -> None:
        self.event = event
        self.env_ids = tuple(sorted(env_ids))
        shown = ", ".join(str(env) for env in self.env_ids[:32]) or "none"
        super().__init__(f"'{event}' names environments that {why}: {shown}")


class Conversation:
    """The messages of one connection, in order. Environments are kept for this connection only."""

    def __init__(self) -> None:
        self.state = State.METADATA
        self._holding: frozenset[int] = frozenset()
        self._asked: frozenset[int] = frozenset()

    @property
    def holding(self) -> frozenset[int]:
        """Environments that hold an action of this connection."""
        return self._holding

    @property
    def asked(self) -> frozenset[int]:
        """Environments of the infer that awaits its action."""
        return self._asked

    def check(self, event: Event) -> State:
        """The state that would follow.

        Raises:
            IllegalMessage: this may not happen now.
        """
        following = TABLE.get((self.state, event))
        if following is None:
            raise IllegalMessage(self.state, event)
        return following

    def metadata(self) -> None:
        """The server's metadata was sent, or came."""
        self.state = self.check(Event.METADATA)

    def infer(self, env_ids: Iterable[int]) -> None:
        """An infer was sent, or came.

        Raises:
            IllegalMessage: it is not its turn.
            IllegalEnvs: an environment still holds an action.
        """
        following = self.check(Event.INFER)
        asked = frozenset(env_ids)
        if asked & self._holding:
            raise IllegalEnvs(Event.INFER, asked & self._holding, "have not fed back yet")
        self.state, self._asked = following, asked

    def action(self, env_ids: Iterable[int]) -> None:
        """An action was sent, or came.

        Raises:
            IllegalMessage: it is not its turn.
            IllegalEnvs: it is not for the environments of the infer.
        """
        following = self.check(Event.ACTION)
        answered = frozenset(env_ids)
        if answered != self._asked:
            raise IllegalEnvs(Event.ACTION, answered ^ self._asked, "differ from those of the infer")
        self.state = following
        self._holding, self._asked = self._holding | answered, frozenset()

    def feedback(self, env_ids: Iterable[int]) -> None:
        """A feedback was sent, or came.

        Raises:
            IllegalMessage: it is not its turn.
            IllegalEnvs: an environment holds no action of this connection.
        """
        following = self.check(Event.FEEDBACK)
        named = frozenset(env_ids)
        if strays := self.strays(named):
            raise IllegalEnvs(Event.FEEDBACK, strays, "hold no action of this connection")
        self.state, self._holding = following, self._holding - named

    def strays(self, env_ids: Iterable[int]) -> frozenset[int]:
        """Those of the environments that hold no action of this connection: nothing can be fed back for them."""
        return frozenset(env_ids) - self._holding

    def close(self) -> None:
        """The connection ended: nobody holds anything any more."""
        self.state = self.check(Event.CLOSE)
        self._holding = self._asked = frozenset()
