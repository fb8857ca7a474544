"""The client's side of the policy link over all its connections: when to dial, when to send, when a chunk is void.

A policy server keeps what belongs to an environment for exactly one connection. So when a connection ends, whatever the
reason, every action chunk that it brought is void, and the caller has to hear of it before anything is sent on another
one [7.6]. Three numbers carry the rule:

``connection``
    how many connections were opened; the open one has this number.
``actions_from``
    the connection that answered the last infer, or None: nobody executes anything. If it is another one than the one
    that is open, the next call sets it to None and raises `ConnectionReplaced`, once.
``owed``
    the environments that the first infer after that has to name: all that ever held an action, for every plan is
    void.

An infer dials if it must; a feedback never does. A feedback that fails is told and never repeated.

The table is in `openenv.policy.link_states`; here are its rules. An event without a cell raises `IllegalLinkEvent` and
changes nothing; so does a rule that refuses a call (`PolicyUsageError`).

Not in this room: sockets, time (who waits how long, and how often one dials), what is in a message.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from typing import TypeAlias

from openenv.core.exceptions import (
    ConnectionReplaced,
    OpenEnvError,
    Outcome,
    PolicyProtocolError,
    PolicyUsageError,
    ServerStopped,
    SessionClosedError,
)
from openenv.policy.closing import Ending
from openenv.policy.link_states import TABLE, IllegalLinkEvent, LinkEvent, LinkState
from openenv.policy.protocol import Conversation, IllegalEnvs, State

__all__ = [
    "Dial",
    "Done",
    "Effect",
    "Fail",
    "LinkMachine",
    "Send",
]


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a connection and read its metadata; then report ``opened`` or ``dropped``."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send the message of the call on the open connection."""


@dataclass(frozen=True, slots=True)
class Done:
    """The call is finished."""


@dataclass(frozen=True, slots=True)
class Fail:
    """The call ends with this error."""

    error: OpenEnvError


Effect: TypeAlias = Dial | Send | Done | Fail


class LinkMachine:
    """The client's rules. Calls go in through `connect`, `infer` and `feedback`, and what happened through the others.

    Args:
        reconnect_on_server_stop: wait for the next run when the server's run is over, instead of stopping.
    """

    def __init__(self, *, reconnect_on_server_stop: bool = False) -> None:
        self.state = LinkState.DOWN
        self.connection = 0
        self.actions_from: int | None = None
        self.owed: frozenset[int] = frozenset()
        self.conversation = Conversation()
        self._waits = reconnect_on_server_stop
        self._known: frozenset[int] = frozenset()
        self._named: frozenset[int] = frozenset()
        self._operation = "infer"
        self._ending = Ending()
        self._final: OpenEnvError | None = None

    # -- calls

    def connect(self) -> Effect:
        """Open a connection if there is none."""
        return self._apply(LinkEvent.CONNECT, "connect", frozenset())

    def infer(self, env_ids: Iterable[int]) -> Effect:
        """Ask for actions.

        Raises:
            PolicyUsageError: a feedback is due first; an environment holds an action; or the first infer after
                `ConnectionReplaced` does not name every environment.
        """
        return self._apply(LinkEvent.INFER, "infer", frozenset(env_ids))

    def feedback(self, env_ids: Iterable[int]) -> Effect:
        """Feed back what came of actions.

        Raises:
            PolicyUsageError: no feedback is due, or an environment holds no action.
        """
        return self._apply(LinkEvent.FEEDBACK, "feedback", frozenset(env_ids))

    def close(self) -> None:
        """The caller is done."""
        self._apply(LinkEvent.CLOSE)

    def retire(self, env_ids: Iterable[int]) -> None:
        """These environments will never ask again, so nothing is owed for them."""
        gone = frozenset(env_ids)
        self._known -= gone
        self.owed -= gone

    # -- what happened

    def opened(self) -> Effect:
        """A connection is open and its metadata was read."""
        return self._apply(LinkEvent.OPENED)

    def answered(self, env_ids: Iterable[int]) -> Effect:
        """The action came.

        Raises:
            IllegalEnvs: it is not for the environments that asked.
        """
        return self._apply(LinkEvent.ANSWERED, None, frozenset(env_ids))

    def sent(self) -> Effect:
        """The feedback was handed to the network."""
        return self._apply(LinkEvent.SENT)

    def dropped(self, ending: Ending) -> Effect:
        """The connection ended, or one that was being opened did."""
        return self._apply(LinkEvent.DROPPED, ending=ending)

    def gave_up(self, ending: Ending) -> None:
        """The caller of the call under way waits no longer; its connection is let go, for an answer may still come."""
        self._apply(LinkEvent.GAVE_UP, ending=ending)

    def broke(self, error: PolicyProtocolError) -> Effect:
        """The server sent what it may not send."""
        self._check(LinkEvent.BROKE)
        if self.state is not LinkState.CLOSED:
            self._final = error
        return self._apply(LinkEvent.BROKE)

    # -- rules

    def _check(self, event: LinkEvent) -> str:
        rule = TABLE.get((self.state, event))
        if rule is None:
            raise IllegalLinkEvent(self.state, event)
        return rule

    def _apply(
        self,
        event: LinkEvent,
        operation: str | None = None,
        named: frozenset[int] = frozenset(),
        ending: Ending | None = None,
    ) -> Effect:
        rule = self._check(event)
        effect: Effect = getattr(self, f"_{rule}")(operation or self._operation, named, ending or Ending())
        return effect

    def _stay(self, operation: str, named: frozenset[int], ending: Ending) -> Effect:
        return Done()

    def _already_open(self, operation: str, named: frozenset[int], ending: Ending) -> Effect:
        return Done()

    def _dial(self, operation: str, named: frozenset[int], ending: Ending) -> Effect:
        if operation == "infer" and self.actions_from is None:
            self._refuse_unless_all_are_named(named)
        self.state, self._operation, self._named = LinkState.DIALING, operation, named
        return Dial()

    def _open(self, operation: str, named: frozenset[int], ending: Ending) -> Effect:
        self.connection += 1
        self.conversation = Conversation()
        self.conversation.metadata()
        if self.actions_from is not None:
            self.state = LinkState.REPLACED
            return Done() if operation == "connect" else self._tell_replaced(operation, self._named, ending)
        self.state = LinkState.READY
        return Done() if operation == "connect" else self._ask(operation, self._named, ending)

    def _ask(self, operation: str, named: frozenset[int], ending: Ending) -> Effect:
        self._refuse_unless_all_are_named(named)
        try:
            self.conversation.infer(named)
        except IllegalEnvs as error:
            raise PolicyUsageError(str(error), field="env_indices") from None
        self.state, self._operation, self._named = LinkState.ASKED, operation, named
        return Send()

    def _refuse_unless_all_are_named(self, named: frozenset[int]) -> None:
        missing = sorted(self.owed - named)
        if missing:
            raise PolicyUsageError(
                "the first infer() on a new connection has to name every environment, since every action chunk is "
                f"void; missing: {', '.join(map(str, missing[:32]))} (retire() those that are finished for good)",
                field="env_indices",
            )

    def _take_action(self, operation: str, named: frozenset[int], ending: Ending) -> Effect:
        self.conversation.action(named)
        self.state, self.actions_from, self.owed = LinkState.ACTING, self.connection, frozenset()
        self._known |= named
        return Done()

    def _feed(self, operation: str, named: frozenset[int], ending: Ending) -> Effect:
        try:
            self.conversation.feedback(named)
        except IllegalEnvs as error:
            raise PolicyUsageError(str(error), field="env_indices") from None
        self.state, self._operation = LinkState.FEEDING, operation
        return Send()

    def _fed(self, operation: str, named: frozenset[int], ending: Ending) -> Effect:
        self.state = LinkState.READY
        return Done()

    def _refuse_infer(self, operation: str, named: frozenset[int], ending: Ending) -> Effect:
        raise PolicyUsageError("infer() is called where a feedback() is due: after each action exactly one")

    def _refuse_feedback(self, operation: str, named: frozenset[int], ending: Ending) -> Effect:
        if self.actions_from is None:  # the actions, if any, are of an older connection
            return self._tell_replaced(operation, named, ending)
        raise PolicyUsageError("feedback() is called where an infer() is due: after each feedback exactly one")

    def _tell_replaced(self, operation: str, named: frozenset[int], ending: Ending) -> Effect:
        lost, self.actions_from = self.actions_from or 0, None
        is_open = self.state in (LinkState.REPLACED, LinkState.READY)
        self.state = LinkState.READY if is_open else LinkState.DOWN
        self.owed = self._known
        return Fail(
            ConnectionReplaced(
                env_ids=sorted(self._known),
                lost_connection=lost,
                connection=self.connection if is_open else None,
                operation=operation,
                reason=self._ending.word,
                close_code=self._ending.code,
                close_reason=self._ending.reason,
                outcome=ending.outcome,
            )
        )

    def _dial_again(self, operation: str, named: frozenset[int], ending: Ending) -> Effect:
        if ending.is_stop and not self._waits:
            return self._stop(operation, ending)
        self._note(ending)
        self.state = LinkState.DIALING
        return Dial()

    def _drop_idle(self, operation: str, named: frozenset[int], ending: Ending) -> Effect:
        if ending.is_stop and not self._waits:
            return self._stop(operation, ending)
        self._note(ending)
        self.state = LinkState.DOWN
        return Done()

    def _lose_feedback(self, operation: str, named: frozenset[int], ending: Ending) -> Effect:
        if ending.is_stop and not self._waits:
            return self._stop(operation, ending)
        self._note(ending)
        return self._tell_replaced(operation, named, Ending(outcome=Outcome.UNKNOWN))

    def _give_up(self, operation: str, named: frozenset[int], ending: Ending) -> Effect:
        self._note(ending)
        self.state = LinkState.DOWN
        return Done()

    def _stop(self, operation: str, ending: Ending) -> Effect:
        self._note(ending)
        self.state = LinkState.STOPPED
        self._final = ServerStopped(operation=operation, close_code=ending.code, close_reason=ending.reason)
        return Fail(self._final)

    def _break_off(self, operation: str, named: frozenset[int], ending: Ending) -> Effect:
        self.state = LinkState.BROKEN
        return self._tell_again(operation, named, ending)

    def _end(self, operation: str, named: frozenset[int], ending: Ending) -> Effect:
        self.state, self.actions_from, self.owed = LinkState.CLOSED, None, frozenset()
        self._final = SessionClosedError("This agent is closed. Nothing was sent. Make a new one to go on.")
        return Done()

    def _tell_again(self, operation: str, named: frozenset[int], ending: Ending) -> Effect:
        assert self._final is not None  # set on the way into each of these rows
        return Fail(copy(self._final))

    def _note(self, ending: Ending) -> None:
        """Keep how the connection ended that brought the actions which the caller holds."""
        if self.conversation.state is State.CLOSED:  # it ended earlier; what ended now brought nothing
            return
        self.conversation.close()
        if self.actions_from == self.connection:
            self._ending = ending
