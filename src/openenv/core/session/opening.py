"""The first words on a fresh socket: welcome, then open or resume. Pure, as the machine it serves.

An `Opening` is made for one socket. It is fed the frames that arrive until it has an outcome, and says what
to send. A socket without the subprotocol has no opening: it is of the plain dialect and says nothing first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from openenv.core.exceptions import ConnectError
from openenv.core.session.events import DialFailure
from openenv.core.session.features import Feature, agreed
from openenv.core.wire.json_codec import MalformedFrame
from openenv.core.wire.messages import Reply, WSErrorCode, capacity_error, error_from_frame
from openenv.core.wire.v1 import (
    PROTOCOL,
    CloseCode,
    Lease,
    Lost,
    LostReason,
    Open,
    Opened,
    Queued,
    Release,
    Resume,
    Resumed,
    Welcome,
)

__all__ = ["Opening", "OpeningOutcome", "SessionOpened"]


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A new session.

    Attributes:
        features: what both ends use; none for the plain dialect.
        lease: the right to come back to it; None for the plain dialect.
        max_message_bytes: largest frame the server reads; None if unknown.
        server: what the server calls itself.
    """

    features: frozenset[Feature] = frozenset()
    lease: Lease | None = None
    max_message_bytes: int | None = None
    server: str = ""


OpeningOutcome = SessionOpened | Resumed | Lost | DialFailure


@dataclass
class Opening:
    """The client's half of the opening.

    Attributes:
        wants: features this client would use.
        resume: the session to come back to; None for a new one.
        releases: sessions that this client does not want any more.
        max_message_bytes: largest reply this client takes.
        url: the address, for errors.
        wait_for_slot_s: how long to wait for a slot of a full server, in seconds.
        position: where this client stands in the server's line; 0 if it does not wait.
        outcome: how it ended; None while it goes on.
    """

    wants: frozenset[Feature]
    resume: Resume | None = None
    releases: Sequence[Lease] = ()
    max_message_bytes: int | None = None
    url: str = ""
    wait_for_slot_s: float = 0.0
    position: int = 0
    outcome: OpeningOutcome | None = None
    _welcome: Welcome | None = field(default=None, init=False)

    def receive(self, frame: Reply) -> list[dict[str, Any]]:
        """Take one frame.

        Returns:
            Frames to send, in order.

        Raises:
            MalformedFrame: the server does not keep to the protocol.
        """
        if self._welcome is None:
            return self._on_welcome(frame)
        match frame.kind:
            case "queued":
                self.position = Queued.read(frame.data).position
            case "opened" if self.resume is None:
                opened = Opened.read(frame.data)
                self.outcome = SessionOpened(
                    features=self._features(),
                    lease=Lease(opened.session, opened.token, self._welcome.epoch),
                    max_message_bytes=self._welcome.max_message_bytes,
                    server=self._welcome.server,
                )
            case "resumed" if self.resume is not None:
                self.outcome = Resumed.read(frame.data)
            case "lost" if self.resume is not None:
                self.outcome = Lost.read(frame.data)
            case "error":
                full = frame.code == WSErrorCode.CAPACITY_REACHED
                error = capacity_error(frame, self.url) if full else error_from_frame(frame)
                waited = self.wait_for_slot_s > 0 and Feature.QUEUE in self._features()
                self.outcome = DialFailure(error, retryable=full and not waited)
            case _:
                raise MalformedFrame(f"a '{frame.kind}' frame came while the session was being opened")
        return []

    def closed(self, code: int | None, reason: str, detail: str) -> OpeningOutcome:
        """The socket ended before the opening did."""
        final = CloseCode.final(code, reason)
        if self.resume is not None and final is not None:
            return Lost(reason or final.name.lower())
        error = ConnectError(
            f"Failed to connect to {self.url}: {detail} while the session was being opened.", url=self.url
        )
        return DialFailure(error, retryable=final is not CloseCode.PROTOCOL)

    def broken(self, detail: str) -> DialFailure:
        """The server does not keep to the protocol."""
        return DialFailure(ConnectError(f"Failed to connect to {self.url}: {detail}.", url=self.url), retryable=False)

    def _on_welcome(self, frame: Reply) -> list[dict[str, Any]]:
        if frame.kind != "welcome":
            raise MalformedFrame(f"the server's first frame is '{frame.kind}' and not 'welcome'")
        welcome = self._welcome = Welcome.read(frame.data)
        if welcome.protocol != PROTOCOL:
            raise MalformedFrame(f"the server speaks version {welcome.protocol} of openenv.v1's frames")
        if self.resume is not None:
            if welcome.epoch != self.resume.lease.epoch:
                self.outcome = Lost(LostReason.EPOCH)
                return []
            return [self.resume.frame()]
        mine = [lease for lease in self.releases if lease.epoch == welcome.epoch]
        uses = tuple(sorted(feature.value for feature in self._features()))
        wait_s = self.wait_for_slot_s if Feature.QUEUE in self._features() else 0.0
        ask = Open(uses=uses, max_message_bytes=self.max_message_bytes, wait_for_slot_s=wait_s)
        return [*(Release(lease.session, lease.token).frame() for lease in mine), ask.frame()]

    def _features(self) -> frozenset[Feature]:
        return agreed(self.wants, self._welcome.features if self._welcome else ())
