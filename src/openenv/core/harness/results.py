"""What a rollout consists of: plain values, passed between session, harness and trainer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypedDict

from openenv.core.llm_messages import LLMResponse

__all__ = [
    "HarnessRolloutResult",
    "HarnessRunLimits",
    "Message",
    "ModelStepResult",
    "RolloutEvent",
    "ToolResult",
    "ToolTraceEntry",
    "TraceEntry",
    "VerifyResult",
]

Message = dict[str, Any]
"""One message of a conversation, in the form of OpenAI's chat completions."""


@dataclass
class ToolResult:
    """What a tool of a session returned.

    Attributes:
        data: the result, as the model will read it.
        done: whether the episode has ended with this call.
        metadata: what is not for the model; ``reward`` here, or in ``data``, is the environment's reward.
        error: why the tool failed, or None.
    """

    data: Any = None
    done: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass
class VerifyResult:
    """What a session says of a finished rollout.

    Attributes:
        env_reward: the reward that the environment gave; passed on, never made up here. None if it gave none.
        done: whether the environment saw the episode end.
        metrics: numbers to log.
        artifacts: anything worth keeping.
    """

    env_reward: float | None = None
    done: bool = False
    metrics: dict[str, Any] = field(default_factory=dict)
    artifacts: dict[str, Any] = field(default_factory=dict)


@dataclass
class RolloutEvent:
    """One thing that happened in a rollout: its type, as ``model_response`` or ``tool_call``, and its details."""

    type: str
    payload: dict[str, Any] = field(default_factory=dict)


@dataclass
class ToolTraceEntry:
    """One tool call of a rollout and what it returned."""

    tool_name: str
    arguments: dict[str, Any]
    result: ToolResult


@dataclass
class ModelStepResult:
    """One turn sampled from the model.

    Attributes:
        response: the turn.
        prompt_ids: tokens of the prompt, shape (P,).
        completion_ids: tokens that were sampled, shape (C,).
        logprobs: their log probabilities, shape (C,).
    """

    response: LLMResponse
    prompt_ids: list[int] = field(default_factory=list)
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass
class HarnessRolloutResult:
    """A whole rollout.

    Attributes:
        messages: the conversation, the first prompt included.
        tool_trace: the tool calls in order.
        events: everything that happened in order.
        done: whether it came to an end, rather than to a limit.
        metrics: numbers of the harness, as ``turns`` and ``tool_calls``.
        prompt_ids: tokens of the prompts of all turns, one after another.
        completion_ids: tokens sampled in all turns, one after another.
        logprobs: their log probabilities.
    """

    messages: list[Message] = field(default_factory=list)
    tool_trace: list[ToolTraceEntry] = field(default_factory=list)
    events: list[RolloutEvent] = field(default_factory=list)
    done: bool = False
    metrics: dict[str, Any] = field(default_factory=dict)
    prompt_ids: list[int] = field(default_factory=list)
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass
class HarnessRunLimits:
    """How long a rollout may become.

    Attributes:
        max_turns: turns of the model.
        max_tool_calls_per_turn: tool calls that are carried out of one turn; None for all.
        max_total_tool_calls: tool calls of the rollout; None for no limit.
        sampling: handed to the model step, as ``{"temperature": 0.7}``.
    """

    max_turns: int = 10
    max_tool_calls_per_turn: int | None = None
    max_total_tool_calls: int | None = None
    sampling: dict[str, Any] = field(default_factory=dict)


class TraceEntry(TypedDict, total=False):
    """One model call of an agent that runs its own loop; every key may be missing.

    Attributes:
        request: what the agent asked the model.
        response: what the model answered.
        prompt_token_ids: the engine's own tokens of the prompt, shape (P,).
        completion_token_ids: tokens that were sampled, shape (C,).
        completion_tokens: the same as text, from an engine that gives no ids.
        per_token_logps: log probabilities of the sampled tokens, shape (C,).
        loss_mask: 1 for each token to be trained on, over prompt and completion, shape (P + C,).
        reward: what ``verify()`` returned; None is *no score*, which is not zero.
        metadata: anything else.
    """

    request: dict[str, Any]
    response: dict[str, Any]
    prompt_token_ids: list[int]
    completion_token_ids: list[int]
    completion_tokens: list[str]
    per_token_logps: list[float]
    loss_mask: list[int]
    reward: float | None
    metadata: dict[str, Any]
