"""What a policy server counts. Plain numbers, written by its event loop, read from anywhere at any time."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["ServerMetrics"]


@dataclass(slots=True)
class ServerMetrics:
    """Counts since the server was made. Times are seconds.

    Attributes:
        open_connections: connections at this moment.
        connections: connections that were ever opened.
        infers: infer messages that were answered.
        batches: calls of ``act``.
        rows: envs in these calls, in total.
        largest_batch: envs in the largest of them.
        reused_observations: rows that clients left out and the server had.
        infer_wait_s: time that infers waited for their batch to begin, in total.
        longest_infer_wait_s: the longest of these.
        act_s: time in ``act``, in total, with the joining of its batch.
        feedbacks: feedback messages.
        transitions: envs in feedbacks that were handed to the policy.
        discarded_feedback: envs in feedbacks that had no action on their connection.
        feedback_s: time in ``feedback``, in total.
        resyncs: connections closed over a protocol error.
        feedback_timeouts: connections closed because a feedback did not come.
        internal_errors: connections closed over an error of the policy or of the server.
        refused: handshakes that were refused.
    """

    open_connections: int = 0
    connections: int = 0
    infers: int = 0
    batches: int = 0
    rows: int = 0
    largest_batch: int = 0
    reused_observations: int = 0
    infer_wait_s: float = 0.0
    longest_infer_wait_s: float = 0.0
    act_s: float = 0.0
    feedbacks: int = 0
    transitions: int = 0
    discarded_feedback: int = 0
    feedback_s: float = 0.0
    resyncs: int = 0
    feedback_timeouts: int = 0
    internal_errors: int = 0
    refused: int = 0

    @property
    def mean_batch(self) -> float:
        """Envs in a call of ``act``, on average; 0 before the first."""
        return self.rows / self.batches if self.batches else 0.0

    def as_dict(self) -> dict[str, Any]:
        """All counts by name."""
        return asdict(self)
