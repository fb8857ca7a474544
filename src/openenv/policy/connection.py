"""One connection of a policy server: what its client may say, and what it is told.

The order of messages and what they must hold is in `openenv.policy.protocol`; this module moves frames, and turns
whatever goes wrong into the end of this one connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from openenv.core.exceptions import PolicyProtocolError
from openenv.core.wire.arrays import encode
from openenv.policy.env_states import EnvStates, Fed
from openenv.policy._tmp_messages import read
from openenv.policy.metrics import ServerMetrics
from openenv.policy.rows import RowsError, check_rows
from openenv.policy.service import ConnectionGone, PolicyFailed, PolicyService
from openenv.policy.splitting import InfoError, split_info

__all__ = ["Connection", "ConnectionSettings"]

logger = logging.getLogger("openenv.policy")

GOING_AWAY, INTERNAL_ERROR = 1001, 1011
RESYNC_REASON = "plugrl-server-resync"
TIMEOUT_REASON = "Feedback timeout"
INTERNAL_REASON = "Internal server error."


class _FeedbackLate(Exception):
    """A feedback did not come in time."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """What all connections of a server have in common.

    Attributes:
        metadata: what they are told first.
        feedback_timeout_s: seconds from an action to its feedback; None for no limit.
    """

    metadata: Mapping[str, Any]
    feedback_timeout_s: float | None


class Connection:
    """Serves one connection.

    Args:
        number: its number, which no other connection of this server has.
        socket: open.
        service: calls the policy.
        settings: see there.
        metrics: where its messages are counted.
    """

    def __init__(
        self,
        number: int,
        socket: ServerConnection,
        service: PolicyService,
        settings: ConnectionSettings,
        metrics: ServerMetrics,
    ) -> None:
        self._number = number
        self._socket = socket
        self._service = service
        self._settings = settings
        self._metrics = metrics
        self._envs = EnvStates(number)

    async def serve(self) -> None:
        """Serve the connection to its end. Whatever happens ends this connection only."""
        logger.info("connection %d opened by %s", self._number, self._socket.remote_address)
        self._service.opened(self._number)
        watch = asyncio.create_task(self._watch())
        try:
            await self._converse()
        except (ConnectionClosed, ConnectionGone):
            pass
        except (PolicyProtocolError, RowsError, InfoError) as error:
            self._metrics.resyncs += 1
            logger.warning("connection %d broke the protocol and must start again: %s", self._number, error)
            await self._close(GOING_AWAY, RESYNC_REASON)
        except _FeedbackLate:
            self._metrics.feedback_timeouts += 1
            late = self._settings.feedback_timeout_s
            logger.warning("connection %d sent no feedback within %g s", self._number, late)
            await self._close(GOING_AWAY, TIMEOUT_REASON)
        except PolicyFailed:
            self._metrics.internal_errors += 1
            await self._close(INTERNAL_ERROR, INTERNAL_REASON)
        except Exception:  # a bug of ours must not cost anybody else's connection
            self._metrics.internal_errors += 1
            logger.exception("connection %d failed", self._number)
            await self._close(INTERNAL_ERROR, INTERNAL_REASON)
        finally:
            self._service.closed(self._number)
            watch.cancel()
            code, reason = self._socket.close_code, self._socket.close_reason
            logger.info("connection %d closed (%s %s)", self._number, code, reason or "without a reason")

    async def _close(self, code: int, reason: str) -> None:
        self._service.closed(self._number)  # nobody waits for it while it says goodbye
        await self._socket.close(code, reason)

    async def _watch(self) -> None:
        """Notice that the client is gone, also while nobody reads from it."""
        await self._socket.wait_closed()
        self._service.closed(self._number)

    # ------------------------------------------------------------ the conversation

    async def _converse(self) -> None:
        await self._socket.send(encode({"message_type": "metadata", "data": dict(self._settings.metadata)}))
        while True:
            await self._infer(read(await self._socket.recv(), "infer"))
            await self._feedback(read(await self._next_feedback(), "feedback"))

    async def _infer(self, message: Any) -> None:
        envs = message["env_indices"].tolist()
        obs = self._envs.cache.complete(envs, message["data"], message.get("reuse"))
        check_rows(obs, len(envs))
        if message.get("reuse") is not None:
            self._metrics.reused_observations += int(message["reuse"].sum())
        actions = await self._service.infer(self._number, self._envs.keys(envs), message["step_ids"], obs)
        replaced = self._envs.answered(envs, message["step_ids"], obs, actions)
        if replaced:
            self._metrics.replaced_chunks += len(replaced)
            logger.warning("connection %d asks again for env(s) %s, without feedback", self._number, replaced)
        self._metrics.infers += 1
        data = {"env_ids": np.array(envs, np.int64), "action": actions.swapaxes(0, 1)}
        await self._socket.send(encode({"message_type": "action", "data": data}))

    async def _next_feedback(self) -> Any:
        """The next frame, in time. A learn step extends the time, for the client may wait for it."""
        while True:
            try:
                async with asyncio.timeout(self._settings.feedback_timeout_s):
                    return await self._socket.recv()
            except TimeoutError:
                if not self._service.is_learning:
                    raise _FeedbackLate from None

    async def _feedback(self, message: Any) -> None:
        data = message["data"]
        envs = message["env_indices"].tolist()
        info = split_info(data["info"], len(envs))
        fed = Fed(envs, data["obs"], data["rewards"], data["terminated"], data["truncated"], info)
        chunks, strangers = self._envs.fed(fed)
        self._metrics.feedbacks += 1
        if strangers:
            self._metrics.discarded_feedback += len(strangers)
            logger.warning(
                "connection %d sent feedback for env(s) %s, which hold no action of this connection; it is discarded. "
                "Has the client connected again, and kept its chunks?",
                self._number,
                strangers,
            )
        if chunks is not None:
            self._metrics.transitions += len(chunks)
            await self._service.feedback(chunks.transitions)
