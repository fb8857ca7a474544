"""One connection of a policy server: what its client may say, and what it is told.

The order of messages and what they must hold is in `openenv.policy.protocol`; this module moves frames, and turns
whatever goes wrong into the end of this one connection.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from websockets.exceptions import ConnectionClosed

from openenv.core.exceptions import PolicyProtocolError
from openenv.policy.env_states import EnvStates
from openenv.policy.large_frames import PolicySocket
from openenv.policy.messages import (
    FEEDBACK_TIMEOUT,
    INTERNAL_ERROR,
    REUSE_FEEDBACK_OBS,
    SERVER_RESYNC,
    Action,
    Feedback,
    Infer,
    Message,
    Metadata,
    encode_message,
    parse_map,
    read_map,
)
from openenv.policy.metrics import ServerMetrics
from openenv.policy.protocol import Conversation, Event, IllegalEvent
from openenv.policy.service import ConnectionGone, PolicyFailed, PolicyService

__all__ = ["Connection", "ConnectionSettings"]

logger = logging.getLogger("openenv.policy")

GOING_AWAY, SERVER_FAULT = 1001, 1011


class _FeedbackLate(Exception):
    """A feedback did not come in time."""


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """What all connections of a server have in common.

    Attributes:
        metadata: what they are told first; it can be encoded.
        feedback_timeout_s: seconds from an action to its feedback; None for no limit.
    """

    metadata: Metadata
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
        socket: PolicySocket,
        service: PolicyService,
        settings: ConnectionSettings,
        metrics: ServerMetrics,
    ) -> None:
        self._number = number
        self._socket = socket
        self._service = service
        self._settings = settings
        self._metrics = metrics
        self._conversation = Conversation()
        self._envs = EnvStates(number, reuses=REUSE_FEEDBACK_OBS in settings.metadata.features)

    async def serve(self) -> None:
        """Serve the connection to its end. Whatever happens ends this connection only."""
        logger.info("connection %d opened by %s", self._number, self._socket.remote_address)
        self._service.opened(self._number)
        watch = asyncio.create_task(self._watch())
        try:
            await self._converse()
        except (ConnectionClosed, ConnectionGone):
            pass
        except (PolicyProtocolError, IllegalEvent) as error:
            self._metrics.resyncs += 1
            logger.warning("connection %d broke the protocol and must start again: %s", self._number, error)
            await self._close(GOING_AWAY, SERVER_RESYNC)
        except _FeedbackLate:
            self._metrics.feedback_timeouts += 1
            late = self._settings.feedback_timeout_s
            logger.warning("connection %d sent no feedback within %g s", self._number, late)
            await self._close(GOING_AWAY, FEEDBACK_TIMEOUT)
        except PolicyFailed:
            self._metrics.internal_errors += 1
            await self._close(SERVER_FAULT, INTERNAL_ERROR)
        except Exception:  # a bug of ours must not cost anybody else's connection
            self._metrics.internal_errors += 1
            logger.exception("connection %d failed", self._number)
            await self._close(SERVER_FAULT, INTERNAL_ERROR)
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
        self._conversation.metadata()
        await self._send(self._settings.metadata)
        while True:
            infer = self._read(await self._socket.next_message())
            assert isinstance(infer, Infer)
            await self._infer(infer)
            feedback = self._read(await self._next_feedback())
            assert isinstance(feedback, Feedback)
            await self._feedback(feedback)

    async def _send(self, message: Message) -> None:
        await self._socket.send(b"".join(encode_message(message)))  # in one frame

    def _read(self, frame: str | bytes | bytearray) -> Message:
        """Read a message, if it is one that is due."""
        if isinstance(frame, str):
            raise PolicyProtocolError("a text frame came, where messages are binary")  # its text is not for our log
        kind, message = read_map(frame)
        self._conversation.check(Event(kind.value))
        return parse_map(kind, message)

    async def _infer(self, infer: Infer) -> None:
        envs: list[int] = infer.env_indices.tolist()
        self._conversation.infer(envs)
        if infer.reuse is not None and REUSE_FEEDBACK_OBS not in self._settings.metadata.features:
            raise PolicyProtocolError(f"{REUSE_FEEDBACK_OBS} is not offered here", field="reuse")
        obs = self._envs.cache.complete(envs, infer.observation.to_map(), infer.reuse)
        if infer.reuse is not None:
            self._metrics.reused_observations += int(infer.reuse.sum())
        actions = await self._service.infer(self._number, self._envs.keys(envs), infer.step_ids, obs)
        self._envs.answered(infer, obs, actions)
        self._conversation.action(envs)
        self._metrics.infers += 1
        await self._send(Action(actions.swapaxes(0, 1), infer.env_indices))

    async def _next_feedback(self) -> str | bytes | bytearray:
        """The next frame, in time. A learn step extends the time, for the client may wait for it."""
        while True:
            try:
                async with asyncio.timeout(self._settings.feedback_timeout_s):
                    return await self._socket.next_message()
            except TimeoutError:
                if not self._service.is_learning:
                    raise _FeedbackLate from None

    async def _feedback(self, feedback: Feedback) -> None:
        envs: list[int] = feedback.env_indices.tolist()
        strays = self._conversation.strays(envs)
        self._conversation.feedback(set(envs) - strays)
        chunks = self._envs.fed(feedback, strays)
        self._metrics.feedbacks += 1
        if strays:
            self._metrics.discarded_feedback += len(strays)
            logger.warning(
                "connection %d sent feedback for env(s) %s, which hold no action of this connection; it is discarded. "
                "Has the client connected again, and kept its chunks?",
                self._number,
                sorted(strays),
            )
        if chunks is not None:
            self._metrics.transitions += len(chunks)
            await self._service.feedback(chunks.transitions)
