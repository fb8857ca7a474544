"""The asynchronous agent: `WebSocketEnvClientAgent` for code that awaits.

All rules are in `openenv.policy.link` and `openenv.policy.exchange`; here a script's steps are awaited one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from openenv.core.transport.aio import WebSocketConnector
from openenv.policy.agent_base import AgentBase
from openenv.policy.checks import Array
from openenv.policy.exchange import Script
from openenv.policy.messages import Action, Metadata
from openenv.policy.observation import Observation
from openenv.policy.requests import make_feedback, make_infer
from openenv.policy.transport import AsyncTransport

__all__ = ["AsyncWebSocketEnvClientAgent"]

T = TypeVar("T")


class AsyncWebSocketEnvClientAgent(AgentBase[AsyncTransport]):
    """As `WebSocketEnvClientAgent`, with coroutines: same arguments, same results, same errors.

    The connection lives on the event loop that opened it. A loop that is blocked for minutes answers no pings and loses
    it; use the blocking agent there, which has a thread for that. A call that is cancelled drops its connection, and
    the next one raises `ConnectionReplaced` if chunks were under way.
    """

    def _make_transport(self, connector: WebSocketConnector) -> AsyncTransport:
        return AsyncTransport(connector)

    async def connect(self, timeout_s: float | None = None) -> Metadata:
        """See `WebSocketEnvClientAgent.connect`."""
        return await self._run(self._exchange.connect(self._patience(timeout_s)))

    async def infer(
        self,
        observation: Observation | Mapping[str, Any],
        env_indices: Sequence[int] | Array,
        step_ids: Sequence[int] | Array,
    ) -> Action:
        """See `WebSocketEnvClientAgent.infer`. Do not change the arrays while it runs."""
        return await self._run(self._exchange.infer(make_infer(observation, env_indices, step_ids)))

    async def feedback(
        self,
        observation: Observation | Mapping[str, Any],
        env_indices: Sequence[int] | Array,
        step_ids: Sequence[int] | Array,
        rewards: Sequence[float] | Array,
        terminated: Sequence[bool] | Array,
        truncated: Sequence[bool] | Array,
        info: Mapping[str, Any] | None = None,
    ) -> None:
        """See `WebSocketEnvClientAgent.feedback`. Do not change the arrays while it runs."""
        message = make_feedback(observation, env_indices, step_ids, rewards, terminated, truncated, info)
        await self._run(self._exchange.feedback(message))

    async def close(self) -> None:
        """See `WebSocketEnvClientAgent.close`."""
        await self._run(self._exchange.close())

    async def __aenter__(self) -> AsyncWebSocketEnvClientAgent:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, script: Script[T]) -> T:
        self._transport.check()
        try:
            step = next(script)
            while True:
                try:
                    result = await step(self._transport)
                except BaseException as error:  # whatever it is, the script knows what it means for the connection
                    step = script.throw(error)
                else:
                    step = script.send(result)
        except StopIteration as done:
            value: T = done.value
            return value
