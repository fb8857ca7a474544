"""The blocking agent: what a rollout holds to ask a policy server for actions.

All rules are in `openenv.policy.link` and `openenv.policy.exchange`; here a script's steps are called one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from openenv.core.transport.aio import WebSocketConnector
from openenv.policy.agent_base import AgentBase
from openenv.policy.checks import Array
from openenv.policy.direct import DirectTransport, is_wanted
from openenv.policy.exchange import Script
from openenv.policy.messages import Action, Metadata
from openenv.policy.observation import Observation
from openenv.policy.requests import make_feedback, make_infer
from openenv.policy.transport import IoThreadTransport, Transport

__all__ = ["WebSocketEnvClientAgent"]

T = TypeVar("T")


class WebSocketEnvClientAgent(AgentBase[Transport]):
    """Asks a policy server for action chunks, and tells it what came of them.

    Calls alternate: each `infer` that returns is followed by one `feedback`, which may name other environments. When
    the connection is lost, the next call raises `ConnectionReplaced` once: every chunk is void, and the next `infer`
    has to name every environment. One agent is for one thread at a time; only `close` may be called from another.

    The arguments are those of `AgentBase`. Usable as a context manager.
    """

    def _make_transport(self, connector: WebSocketConnector) -> Transport:
        return DirectTransport(connector) if is_wanted(self._direct_socket) else IoThreadTransport(connector)

    def connect(self, timeout_s: float | None = None) -> Metadata:
        """Wait until the server is there and has introduced itself; nothing is sent.

        Args:
            timeout_s: seconds for all attempts together; None for ``connect_timeout_s``.

        Returns:
            What the server says of itself; any key may be missing.

        Raises:
            ConnectError: nobody answered in time, or the handshake was refused.
            ServerStopped: the server's run is over.
            PolicyProtocolError: what answered does not speak this protocol.
        """
        return self._run(self._exchange.connect(self._patience(timeout_s)))

    def infer(
        self,
        observation: Observation | Mapping[str, Any],
        env_indices: Sequence[int] | Array,
        step_ids: Sequence[int] | Array,
    ) -> Action:
        """Ask for action chunks; opens a connection if there is none.

        Args:
            observation: ``images`` (name to uint8 ``[n, height, width, channels]``), ``states`` (name to float
                ``[n, d]``) and ``text`` (``[n]``, or one str for all), each of which may be missing.
            env_indices: ``[n]`` small integers, the environments without a chunk.
            step_ids: ``[n]`` integers, chunks that each has completed in its episode; 0 after a reset.

        Returns:
            ``action`` ``[H, n, *da]`` with axis 1 in the order of ``env_indices``: a read-only view, in the server's
            dtype. Any prefix of the H steps may be executed.

        Raises:
            ConnectionReplaced: the connection that brought the current chunks is gone. Nothing was sent.
            ServerStopped: the server's run is over.
            CallTimeoutError: no action within ``infer_timeout_s``; the connection was dropped.
            ConnectError: no connection within ``connect_timeout_s``.
            PolicyUsageError: the call does not fit; nothing was sent.
            PolicyProtocolError: the server broke the protocol; this agent is of no more use.
            SessionClosedError: this agent was closed.
        """
        return self._run(self._exchange.infer(make_infer(observation, env_indices, step_ids)))

    def feedback(
        self,
        observation: Observation | Mapping[str, Any],
        env_indices: Sequence[int] | Array,
        step_ids: Sequence[int] | Array,
        rewards: Sequence[float] | Array,
        terminated: Sequence[bool] | Array,
        truncated: Sequence[bool] | Array,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        """Tell what came of chunks that have ended. Never opens a connection, and is never repeated.

        Args:
            observation: after the last executed step; of an episode that ended, its terminal observation.
            env_indices: ``[m]``, the environments whose chunk ended on this step.
            step_ids: ``[m]`` integers, as for `infer`.
            rewards: ``[m]`` sums over the executed steps of each chunk.
            terminated: ``[m]`` bool, of the last step.
            truncated: ``[m]`` bool, of the last step.
            info: map whose arrays have m rows (see `openenv.policy.info`); ``episode`` is read by servers.

        Raises:
            ConnectionReplaced: the connection is gone; whether this feedback arrived is in ``outcome``.
            ServerStopped: the server's run is over.
            PolicyUsageError: the call does not fit; nothing was sent.
            SessionClosedError: this agent was closed.
        """
        message = make_feedback(observation, env_indices, step_ids, rewards, terminated, truncated, info)
        self._run(self._exchange.feedback(message))

    def replace(self, why: str) -> None:
        """Leave the connection on purpose, because an environment cannot keep to what the server expects of it.

        Every chunk is void, as after a loss: the next `infer` or `feedback` raises `ConnectionReplaced` once.

        Args:
            why: for the log and for the error.
        """
        self._run(self._exchange.replace(why))

    def close(self) -> None:
        """Say goodbye (close code 1000). Takes about a second at most; further calls raise `SessionClosedError`."""
        self._run(self._exchange.close())

    def __enter__(self) -> WebSocketEnvClientAgent:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, script: Script[T]) -> T:
        self._transport.check()
        try:
            step = next(script)
            while True:
                try:
                    result = step(self._transport)
                except BaseException as error:  # whatever it is, the script knows what it means for the connection
                    step = script.throw(error)
                else:
                    step = script.send(result)
        except StopIteration as done:
            value: T = done.value
            return value
