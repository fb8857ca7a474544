"""The calls of an agent as scripts: what to do on the network, step by step, for whoever carries the steps out.

A script is a generator. It yields a step, a function of the transport, and is sent what the step returned, or thrown
what it raised. The blocking agent calls each step, the asynchronous one awaits it; everything else (the machine, the
retries, the timeouts, what may be reused) is here, once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from openenv.core.exceptions import (
    CallTimeoutError,
    ConnectError,
    PolicyProtocolError,
    PolicyUsageError,
)
from openenv.core.session.backoff import Backoff
from openenv.core.transport.base import DialError, TransportClosed
from openenv.core.wire.arrays import Buffer
from openenv.policy.closing import Ending
from openenv.policy.link import Dial, Effect, Fail, LinkMachine
from openenv.policy.link_states import LinkState
from openenv.policy.messages import (
    REUSE_FEEDBACK_OBS,
    Action,
    Feedback,
    Infer,
    Metadata,
    encode_message,
    parse,
)
from openenv.policy.reuse import FedBackRows
from openenv.policy.transport import Frame

__all__ = ["AgentOptions", "Exchange", "Script"]

logger = logging.getLogger("openenv.policy")

T = TypeVar("T")
Step: TypeAlias = Callable[[Any], Any]
Script: TypeAlias = Generator[Step, Any, T]


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """How an agent behaves. Durations are in seconds; None is no limit.

    Attributes:
        url: the server, for error texts.
        reconnect_on_server_stop: wait for the next run when the server's run is over.
        reuse_feedback_obs: use ``reuse-feedback-obs`` where the server lists it.
        replan_steps: steps of each chunk that the caller executes, for a warning if the chunks are shorter.
        connect_timeout_s: for opening a connection, all attempts together.
        next_run_timeout_s: the same after a server stop, with ``reconnect_on_server_stop``.
        open_timeout_s: for one attempt, up to the metadata.
        infer_timeout_s: for an infer on one connection, up to its action.
        feedback_timeout_s: for sending a feedback.
        backoff: waits between attempts.
        clock: seconds that only go up.
    """

    url: str
    reconnect_on_server_stop: bool = False
    reuse_feedback_obs: bool = True
    replan_steps: int | None = None
    connect_timeout_s: float | None = 60.0
    next_run_timeout_s: float | None = None
    open_timeout_s: float | None = 30.0
    infer_timeout_s: float | None = 900.0
    feedback_timeout_s: float | None = 60.0
    backoff: Backoff = field(default_factory=Backoff)
    clock: Callable[[], float] = time.monotonic


class Exchange:
    """The state of one agent, and its calls as scripts.

    Args:
        options: how it behaves.
        abort: ends the connection at once.
    """

    def __init__(self, options: AgentOptions, abort: Callable[[], None]) -> None:
        self.options = options
        self.machine = LinkMachine(reconnect_on_server_stop=options.reconnect_on_server_stop)
        self.metadata: Metadata | None = None
        self.reused = 0
        self._abort = abort
        self._fed_back = FedBackRows()
        self._reuses = False
        self._warned = False
        self._after_stop = False
        self._busy = threading.Lock()

    # -- calls

    def connect(self, timeout_s: float | None) -> Script[Metadata]:
        """Open a connection if there is none, and read what the server says of itself."""
        with self._call():
            effect = self.machine.connect()
            if isinstance(effect, Dial):
                effect = yield from self._open(lambda: timeout_s)
            _finish(effect)
            assert self.metadata is not None  # read whenever a connection is opened
            return self.metadata

    def infer(self, request: Infer) -> Script[Action]:
        """Ask for action chunks.

        Args:
            request: with every row; those that the server holds are left out here.
        """
        with self._call():
            parts = encode_message(request)  # what cannot be sent is refused before anything has changed
            effect = self.machine.infer(request.env_indices.tolist())
            while True:
                if isinstance(effect, Dial):
                    effect = yield from self._open(self._patience)
                _finish(effect)
                answer = yield from self._ask(request, parts)
                if isinstance(answer, Action):
                    return answer
                effect = answer

    def feedback(self, feedback: Feedback) -> Script[None]:
        """Tell what came of action chunks. Never dials and never repeats."""
        with self._call():
            parts = encode_message(feedback)
            _finish(self.machine.feedback(feedback.env_indices.tolist()))
            timeout_s = self.options.feedback_timeout_s
            try:
                yield lambda io: io.send(parts, timeout_s)
            except TransportClosed as error:
                _finish(self._dropped(_ending(error)))
            except TimeoutError:
                self._abort()
                _finish(self._dropped(Ending(detail=f"the feedback was not taken in {timeout_s} s", cause="timeout")))
            if self._reuses:
                self._fed_back.remember(feedback)
            _finish(self.machine.sent())

    def replace(self, why: str) -> Script[None]:
        """Leave the connection, and every chunk that it brought; the next call tells that by `ConnectionReplaced`."""
        with self._call():
            yield lambda io: io.close()
            if self.machine.state is not LinkState.CLOSED:
                self._dropped(Ending(detail=why))

    def close(self) -> Script[None]:
        """End the connection with a close frame. A call under way in another thread ends with an error."""
        self.machine.close()
        yield lambda io: io.close()

    @contextmanager
    def _call(self) -> Iterator[None]:
        """One call at a time; one that is left in the middle takes its connection with it, for its answer may come."""
        if not self._busy.acquire(blocking=False):
            raise PolicyUsageError("another call of this agent is under way")
        try:
            yield
        except BaseException:  # raised on; the link must know that nobody waits any more
            if self.machine.state in (LinkState.DIALING, LinkState.ASKED, LinkState.FEEDING):
                self._abort()
                self.machine.gave_up(Ending(detail="the call was cancelled", cause="cancelled"))
            raise
        finally:
            self._busy.release()

    # -- opening

    def _patience(self) -> float | None:
        return self.options.next_run_timeout_s if self._after_stop else self.options.connect_timeout_s

    def _dropped(self, ending: Ending) -> Effect:
        self._after_stop |= ending.is_stop  # until another run has introduced itself
        logger.info("connection %d to %s ended: %s", self.machine.connection, self.options.url, ending)
        return self.machine.dropped(ending)

    def _open(self, patience: Callable[[], float | None]) -> Script[Effect]:
        """Dial until metadata came or the time is over; a server stop that is met on the way begins it anew."""
        clock, attempt, began = self.options.clock, 0, self.options.clock()
        timeout_s = patience()
        while True:
            attempt += 1
            left = None if timeout_s is None else max(began + timeout_s - clock(), 0.001)
            outcome = yield from self._attempt(_least(left, self.options.open_timeout_s))
            if not isinstance(outcome, ConnectError):
                return outcome
            if self.machine.state is LinkState.CLOSED:
                return self.machine.connect()  # which says that it is closed
            if patience() != timeout_s:
                timeout_s, began = patience(), clock()
            delay = self.options.backoff.delay(attempt)
            if timeout_s is not None and clock() + delay >= began + timeout_s:
                self.machine.gave_up(Ending(detail=str(outcome)))
                raise ConnectError(
                    f"{outcome} {attempt} attempts in {timeout_s:g} s. Start the policy server, or allow more with "
                    "connect_timeout_s=.",
                    url=self.options.url,
                    status=outcome.status,
                    attempts=attempt,
                ) from outcome
            yield _sleep(delay)

    def _attempt(self, limit: float | None) -> Script[Effect | ConnectError]:
        """Dial once. A `ConnectError` is returned if another try may go better."""
        began = self.options.clock()
        try:
            yield lambda io: io.dial(limit)
            left = None if limit is None else max(began + limit - self.options.clock(), 0.001)
            frame = yield lambda io: io.receive(left)
        except DialError as error:
            failure = error.failure.error
            if error.failure.retryable and isinstance(failure, ConnectError):
                return failure
            self.machine.gave_up(Ending(detail=str(failure)))
            raise failure from failure.__cause__
        except TimeoutError:
            self._abort()
            return self._failure(f"no metadata came within {limit} s")
        except TransportClosed as error:
            ending = _ending(error)
            effect = self._dropped(ending)
            return effect if isinstance(effect, Fail) else self._failure(f"{ending.detail} before its metadata came")
        return (yield from self._welcome(frame))

    def _failure(self, why: str) -> ConnectError:
        return ConnectError(f"Failed to connect to {self.options.url}: {why}.", url=self.options.url)

    def _welcome(self, frame: Frame) -> Script[Effect]:
        try:
            metadata = _expect(Metadata, frame)
        except PolicyProtocolError as error:
            return (yield from self._broken(error))
        effect = self.machine.opened()
        if self.machine.state is LinkState.CLOSED:
            self._abort()
            return effect
        self.metadata, self._after_stop = metadata, False
        self._fed_back.forget()
        self._reuses = self.options.reuse_feedback_obs and REUSE_FEEDBACK_OBS in metadata.features
        self._report(metadata)
        return effect

    def _report(self, metadata: Metadata) -> None:
        shown = [f"{key}={str(value)[:60]}" for key, value in metadata.data.items() if key in _SHOWN]
        logger.info("connection %d to %s: %s", self.machine.connection, self.options.url, " ".join(shown) or "no data")
        horizon, replan = metadata.action_horizon, self.options.replan_steps
        if horizon is not None and replan is not None and replan > horizon:
            logger.warning("replan_steps is %d, but the server's action chunks have %d steps", replan, horizon)

    # -- asking

    def _ask(self, request: Infer, parts: Sequence[Buffer]) -> Script[Action | Effect]:
        """Send an infer on the open connection and wait for its action."""
        limit, began = self.options.infer_timeout_s, self.options.clock()
        reuse = self._fed_back.reusable(request.env_indices, request.observation) if self._reuses else None
        if reuse is not None and reuse.any():
            sent = request.observation.rows(~reuse)
            parts = encode_message(Infer(sent, request.env_indices, request.step_ids, reuse))
        try:
            yield lambda io: io.send(parts, limit)
            left = None if limit is None else max(began + limit - self.options.clock(), 0.001)
            frame = yield lambda io: io.receive(left)
        except TransportClosed as error:
            return self._dropped(_ending(error))
        except TimeoutError:
            self._abort()
            self.machine.gave_up(Ending(detail=f"no action in {limit} s", cause="timeout"))
            raise CallTimeoutError(
                operation="infer", timeout_s=limit, setting="infer_timeout_s", detail="its connection was dropped"
            ) from None
        try:
            chunk = _expect(Action, frame).for_envs(request.env_indices)
        except PolicyProtocolError as error:
            return (yield from self._broken(error))
        _finish(self.machine.answered(request.env_indices.tolist()))
        self.reused += 0 if reuse is None else int(reuse.sum())
        declared = self.metadata.action_horizon if self.metadata is not None else None
        if declared not in (None, chunk.horizon) and not self._warned:
            self._warned = True
            logger.warning("action chunks have %d steps, and the server declared %d", chunk.horizon, declared)
        return chunk

    def _broken(self, error: PolicyProtocolError) -> Script[Effect]:
        """The server broke the protocol: close, and send nothing more [7.4]."""
        effect = self.machine.broke(error)
        yield lambda io: io.close()
        return effect


M = TypeVar("M", Metadata, Action)

_SHOWN = ("server", "server_version", "algorithm", "policy", "protocol_version", "action_horizon", "features")


def _expect(kind: type[M], frame: Frame) -> M:
    message = parse(frame)
    if not isinstance(message, kind):
        raise PolicyProtocolError(f"{type(message).__name__.lower()} came where {kind.__name__.lower()} is due")
    return message


def _sleep(seconds: float) -> Step:
    return lambda io: io.sleep(seconds)


def _finish(effect: Effect) -> None:
    if isinstance(effect, Fail):
        raise effect.error


def _ending(error: TransportClosed) -> Ending:
    drop = error.drop
    return Ending(None if drop.by_us else drop.code, "" if drop.by_us else drop.reason, drop.detail)


def _least(*limits: float | None) -> float | None:
    return min((limit for limit in limits if limit is not None), default=None)
