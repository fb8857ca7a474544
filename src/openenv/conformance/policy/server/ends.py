"""How a server ends connections: the one without feedback, and all of them when the run is over."""

from __future__ import annotations

import threading
import time

from websockets.exceptions import ConnectionClosed

from openenv.conformance.policy.judge import Fault, Judge
from openenv.conformance.policy.server.peer import Peer, Target, ended
from openenv.conformance.policy.server.phases import STOP, step
from openenv.conformance.report import Skip

__all__: list[str] = []

FEEDBACK_TIMEOUT = (1001, "Feedback timeout")
_EVERY = 5


@step("timeout", "7.3a")
def _no_feedback(target: Target, judge: Judge) -> None:
    """no feedback for longer than the server is set to wait"""
    if target.feedback_timeout_s is None:
        raise Skip("--feedback-timeout tells how long the server is set to wait")
    with Peer(target, judge) as one:
        one.ask([0])
        one.action([0])
        limit = target.feedback_timeout_s + target.wait_s
        try:
            one.ws.recv(limit)
        except TimeoutError:
            raise Fault("7.3a", "no-timeout", f"without feedback nothing came within {limit:g} s") from None
        except ConnectionClosed as closed:
            text = f"without feedback the connection was closed with {ended(closed)}"
            judge.expect(ended(closed) == FEEDBACK_TIMEOUT, "7.3a", "wrong-close", text)
            return
        raise Fault("7.3a", "unasked-message", "a message came where only feedback was due")


@step("stop", "7.1a")
def _until_stop(target: Target, judge: Judge) -> None:
    """two connections that go on until the server stops"""
    if not target.until_stop:
        raise Skip("--until-stop goes on until the server stops")
    with Peer(target, judge) as one, Peer(target, judge) as two:
        runs = [_Run(peer, target) for peer in (one, two)]
        for run in runs:
            run.start()
        while all(run.is_alive() for run in runs):
            runs[0].join(0.05)
        until = time.monotonic() + target.wait_s
        for run in runs:
            run.join(max(0.0, until - time.monotonic()))
        said = [run for run in runs if run.ended is not None]
        if not said:
            faults = [run.fault for run in runs if run.fault is not None]
            raise faults[0] if faults else Fault("7.1a", "no-stop", f"no stop in {target.max_exchanges} exchanges")
        text = "the run ended with close {}, not with 1001 'plugrl-server-stop'"
        for run in said:
            judge.expect(run.ended == STOP, "7.1a", "wrong-close", text.format(run.ended))
        for run in runs:
            told = run.ended is not None
            text = f"one connection was told of the stop; another was not within {target.wait_s:g} s"
            judge.expect(told, "7.1b", "not-told", text)
            run.over.set()


class _Run(threading.Thread):
    """Exchanges on one connection until it ends."""

    def __init__(self, peer: Peer, target: Target) -> None:
        super().__init__(daemon=True)
        self.peer = peer
        self.target = target
        self.over = threading.Event()
        self.ended: tuple[int, str] | None = None
        self.fault: Fault | None = None

    def run(self) -> None:
        try:
            for count in range(self.target.max_exchanges):
                if self.over.is_set():
                    return
                self.peer.exchange([0], done=[0] if count % _EVERY == 0 else ())
        except Fault as fault:
            closed = self.peer.ws.close_code
            if closed is None:
                self.fault = fault
            else:
                self.ended = (closed, self.peer.ws.close_reason or "")
