"""How a connection of the policy link ended, and what that means [7]. The reason text decides, not the close code."""

from __future__ import annotations

from dataclasses import dataclass

from openenv.core.exceptions import Outcome
from openenv.policy.messages import FEEDBACK_TIMEOUT, SERVER_RESYNC, SERVER_STOP

__all__ = ["Ending"]

_WORDS = {SERVER_STOP: "stop", SERVER_RESYNC: "resync", FEEDBACK_TIMEOUT: "feedback_timeout"}


@dataclass(frozen=True, slots=True)
class Ending:
    """How a connection ended.

    Attributes:
        code: WebSocket close code, if there was one.
        reason: text that came with it.
        detail: what was seen, in words.
        cause: why this end dropped it, in one word (``timeout``, ``cancelled``); empty if the peer or the network did.
        outcome: what became of the call that met it.
    """

    code: int | None = None
    reason: str = ""
    detail: str = ""
    cause: str = ""
    outcome: Outcome = Outcome.NOT_APPLIED

    @property
    def is_stop(self) -> bool:
        """The server's run is finished [7.1]."""
        return self.reason == SERVER_STOP

    @property
    def word(self) -> str:
        """The ending in one word, as in `ConnectionReplaced.reason`."""
        if self.cause:
            return self.cause
        return _WORDS.get(self.reason, "closed" if self.code is not None else "connection")
