"""The counting server with a clause of the protocol taken out, as ``OPENENV_BROKEN`` names it: for the controls."""

from __future__ import annotations

import os
from typing import Any

from openenv.core.env_server import channel, ws_v1
from openenv.core.session import leases, ledger
from openenv.testing.counting import app

__all__ = ["app"]

_request, _present = ledger.Ledger.request, leases.TokenRing.present


def _without_dedupe(self: Any, seq: int | None, digest: bytes) -> ledger.Verdict:
    """Whatever comes is run, if nothing runs."""
    if seq is not None and not self.running:
        self.last_seq = seq - 1
    return _request(self, seq, digest)


def _void_at_once(self: Any, token: str, attempt: int) -> Any:
    verdict = _present(self, token, attempt)
    self.arrived()
    return verdict


class _Open:
    """A peer that stays open when it is replaced."""

    def __init__(self, peer: Any) -> None:
        self._peer = peer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._peer, name)

    def finish(self, code: int, reason: str, *, flush: bool = True) -> None:
        if code != 4000:
            self._peer.finish(code, reason, flush=flush)


_resume, _take = channel.Channel.resume, ws_v1.V1Socket._take


def _leave_older(self: Any, peer: Any, token: str, last_reply: int) -> None:
    if self.peer is not None:
        self.peer = _Open(self.peer)
    _resume(self, peer, token, last_reply)


async def _take_from_any(self: Any, frame: Any, session: Any) -> None:
    """Frames of an older socket count as if it were the attached one."""
    attached, session.peer = session.peer, self
    try:
        await _take(self, frame, session)
    finally:
        if session.peer is self:
            session.peer = attached


match os.environ.get("OPENENV_BROKEN"):
    case "dedupe":
        ledger.Ledger.request = _without_dedupe  # type: ignore[method-assign]
    case "old_token":
        leases.TokenRing.present = _void_at_once  # type: ignore[method-assign]
    case "old_sockets":
        channel.Channel.resume = _leave_older  # type: ignore[method-assign]
        ws_v1.V1Socket._take = _take_from_any  # type: ignore[method-assign]
        ledger.Ledger.request = _without_dedupe  # type: ignore[method-assign]
