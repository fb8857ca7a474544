"""What the blocking and the asynchronous agent share: their arguments and what can be asked of them without waiting."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from openenv.core.session.backoff import Backoff
from openenv.core.transport.address import Address
from openenv.core.transport.aio import WebSocketConnector
from openenv.policy.exchange import AgentOptions, Exchange
from openenv.policy.messages import Metadata
from openenv.policy.transport import connector_for

__all__ = ["AgentBase"]


class _Aborts(Protocol):
    def abort(self) -> None: ...


C = TypeVar("C", bound=_Aborts)


class AgentBase(ABC, Generic[C]):
    """The arguments of both agents. Durations are in seconds; None is no limit.

    Args:
        url: the policy server, as ``ws://host:8000``.
        api_key: sent as ``Authorization: Api-Key ...``.
        headers: further headers of the handshake.
        reconnect_on_server_stop: wait for the next run when the server's run is over, instead of `ServerStopped`.
        reuse_feedback_obs: where the server lists ``reuse-feedback-obs``, do not send again what was fed back.
        replan_steps: steps of each chunk that you execute; only for a warning if the server's chunks are shorter.
        connect_timeout_s: for opening a connection, all attempts together.
        next_run_timeout_s: the same after a server stop, with ``reconnect_on_server_stop``.
        open_timeout_s: for one attempt, up to the server's metadata.
        infer_timeout_s: for an `infer` on one connection, up to its action. A policy that is compiled at its first call
            may take minutes.
        feedback_timeout_s: for sending a feedback.
        backoff: waits between attempts.
        direct_socket: let the blocking agent own its socket, which is faster. False: it goes through the process's I/O
            thread. None: as the environment variable ``OPENENV_POLICY_DIRECT`` says, where 0 is False. Behind TLS or a
            proxy, and elsewhere than on Linux, it is False. The asynchronous agent uses the event loop that it is on.

    Raises:
        ValueError: not a usable address.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        reconnect_on_server_stop: bool = False,
        reuse_feedback_obs: bool = True,
        replan_steps: int | None = None,
        connect_timeout_s: float | None = 60.0,
        next_run_timeout_s: float | None = None,
        open_timeout_s: float | None = 30.0,
        infer_timeout_s: float | None = 900.0,
        feedback_timeout_s: float | None = 60.0,
        backoff: Backoff | None = None,
        direct_socket: bool | None = None,
    ) -> None:
        self._direct_socket = direct_socket
        self._transport = self._make_transport(connector_for(url, api_key, headers))
        options = AgentOptions(
            url=Address.parse(url, route="/").shown,
            reconnect_on_server_stop=reconnect_on_server_stop,
            reuse_feedback_obs=reuse_feedback_obs,
            replan_steps=replan_steps,
            connect_timeout_s=connect_timeout_s,
            next_run_timeout_s=next_run_timeout_s,
            open_timeout_s=open_timeout_s,
            infer_timeout_s=infer_timeout_s,
            feedback_timeout_s=feedback_timeout_s,
            backoff=backoff or Backoff(),
        )
        self._exchange = Exchange(options, self._transport.abort)

    @abstractmethod
    def _make_transport(self, connector: WebSocketConnector) -> C: ...

    @property
    def metadata(self) -> Metadata | None:
        """What the server said of itself on the newest connection; None before the first."""
        return self._exchange.metadata

    @property
    def connection_id(self) -> int:
        """Number of the newest connection, counted from 1; 0 before the first."""
        return self._exchange.machine.connection

    @property
    def actions_from(self) -> int | None:
        """Number of the connection that brought the current action chunks; None if there are none."""
        return self._exchange.machine.actions_from

    @property
    def reused_observations(self) -> int:
        """Rows that were not sent because the server held them, so far."""
        return self._exchange.reused

    def retire(self, env_ids: Iterable[int]) -> None:
        """Say that these environments are finished for good, so that no later ``infer()`` has to name them."""
        self._exchange.machine.retire(env_ids)

    def _patience(self, timeout_s: float | None) -> float | None:
        return self._exchange.options.connect_timeout_s if timeout_s is None else timeout_s
