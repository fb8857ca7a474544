"""Playing a rollout: the model asks for tools, the session carries them out, until one of them says that it is over.

The values and the sessions that this works with live beside it, and are exported here too.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from openenv.core.env_server.mcp_types import RESERVED_TOOL_NAMES, Tool
from openenv.core.harness.results import (
    HarnessRolloutResult,
    HarnessRunLimits,
    Message,
    ModelStepResult,
    RolloutEvent,
    ToolResult,
    ToolTraceEntry,
    TraceEntry,
    VerifyResult,
)
from openenv.core.harness.session_bridge import SessionMCPBridge
from openenv.core.harness.sessions import (
    LoopOwningSession,
    ResourceSession,
    ResourceSessionFactory,
    StepEnvSessionAdapter,
    TrainableSession,
)
from openenv.core.llm_messages import ToolCall

__all__ = [
    "RESERVED_TOOL_NAMES",
    "CLIHarnessAdapter",
    "HarnessAdapter",
    "HarnessRolloutResult",
    "HarnessRunLimits",
    "LoopOwningSession",
    "MCPHarnessAdapter",
    "Message",
    "ModelStep",
    "ModelStepResult",
    "ResourceSession",
    "ResourceSessionFactory",
    "RolloutEvent",
    "SessionMCPBridge",
    "StepEnvSessionAdapter",
    "ToolResult",
    "ToolTraceEntry",
    "TraceEntry",
    "TrainableSession",
    "VerifyResult",
    "build_harness_rollout_func",
]


class ModelStep(Protocol):
    """Samples one turn of the model."""

    def __call__(self, messages: list[Message], tools: list[Tool], sampling: dict[str, Any]) -> ModelStepResult:
        """Sample a turn for a conversation, with these tools and sampling settings."""
        ...


class HarnessAdapter(ABC):
    """Plays a whole rollout in a session. It neither verifies nor closes the session; its caller does."""

    @abstractmethod
    def run_white_box(
        self, model_step: ModelStep, session: ResourceSession, limits: HarnessRunLimits | None = None
    ) -> HarnessRolloutResult:
        """Play a rollout whose model calls go through ``model_step``, so that they can be trained on."""

    @abstractmethod
    def run_black_box(self, session: ResourceSession, limits: HarnessRunLimits | None = None) -> HarnessRolloutResult:
        """Play a rollout with an agent that has a model of its own, to evaluate it."""


class MCPHarnessAdapter(HarnessAdapter):
    """The plain loop of tool calling: sample a turn, call its tools, tell the model, until there is nothing to call.

    It ends when the model calls no tool, when a tool says that the episode is done, or at a limit. What a tool raises
    ends the rollout and reaches the caller; so does a lost session.
    """

    def run_white_box(
        self, model_step: ModelStep, session: ResourceSession, limits: HarnessRunLimits | None = None
    ) -> HarnessRolloutResult:
        """See `HarnessAdapter.run_white_box`."""
        limits = limits or HarnessRunLimits()
        result = HarnessRolloutResult(messages=list(session.initial_messages()))
        tools = session.list_tools()
        turns = 0
        while turns < limits.max_turns and not result.done:
            turn = model_step(result.messages.copy(), tools, dict(limits.sampling))
            _note_turn(result, turns, turn)
            turns += 1
            calls = turn.response.tool_calls
            result.done = not calls
            if not self._call_tools(calls[: limits.max_tool_calls_per_turn], session, limits, result):
                result.metrics["truncated"] = True
                break
        result.metrics |= {"turns": turns, "tool_calls": len(result.tool_trace)}
        return result

    def run_black_box(self, session: ResourceSession, limits: HarnessRunLimits | None = None) -> HarnessRolloutResult:
        """Not what this harness is for.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("MCPHarnessAdapter plays white-box rollouts; for an opaque agent: CLIHarnessAdapter")

    def _call_tools(
        self, calls: list[ToolCall], session: ResourceSession, limits: HarnessRunLimits, result: HarnessRolloutResult
    ) -> bool:
        """Carry out the calls of one turn. False if the limit of the rollout stopped it."""
        for call in calls:
            if limits.max_total_tool_calls is not None and len(result.tool_trace) >= limits.max_total_tool_calls:
                return False
            outcome = session.call_tool(call.name, dict(call.args))
            result.tool_trace.append(ToolTraceEntry(call.name, dict(call.args), outcome))
            told = {"tool_name": call.name, "arguments": dict(call.args), "done": outcome.done}
            result.events.append(RolloutEvent("tool_call", told))
            text = _as_text(outcome.data if outcome.error is None or outcome.data is not None else outcome.error)
            result.messages.append({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text})
            if outcome.done:
                result.done = True
                break
        return True


class CLIHarnessAdapter(HarnessAdapter):
    """Plays rollouts with an opaque agent, which reaches the session's tools through a `SessionMCPBridge`.

    Args:
        runner: runs the agent: called with the bridge, the session and the limits, returns the rollout.
    """

    def __init__(
        self, runner: Callable[[SessionMCPBridge, ResourceSession, HarnessRunLimits], HarnessRolloutResult]
    ) -> None:
        self._runner = runner

    def run_white_box(
        self, model_step: ModelStep, session: ResourceSession, limits: HarnessRunLimits | None = None
    ) -> HarnessRolloutResult:
        """Not what this harness is for.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("CLIHarnessAdapter plays black-box rollouts only; to train: MCPHarnessAdapter")

    def run_black_box(self, session: ResourceSession, limits: HarnessRunLimits | None = None) -> HarnessRolloutResult:
        """See `HarnessAdapter.run_black_box`."""
        return self._runner(SessionMCPBridge(session), session, limits or HarnessRunLimits())


def build_harness_rollout_func(
    *,
    session_factory: Any,
    harness_adapter: HarnessAdapter,
    model_step_builder: Callable[[Any, ResourceSession], ModelStep],
    limits: HarnessRunLimits | None = None,
    reward_key: str = "env_reward",
) -> Callable[[list[Any], Any], dict[str, list[Any]]]:
    """Make a ``rollout_func`` for TRL's trainers: one session and one rollout for each prompt.

    Args:
        session_factory: a `ResourceSessionFactory`; its ``create`` gets the prompt as the task.
        harness_adapter: plays the rollouts.
        model_step_builder: makes the model step from trainer and session.
        limits: of each rollout.
        reward_key: key of the rewards in what the function returns.

    Returns:
        A function of prompts and trainer that returns ``prompt_ids``, ``completion_ids``, ``logprobs``, the rewards
        and ``verify_metrics``, each a list with one entry for each prompt. It raises ValueError if a rollout had no
        reward, or if ``verify`` tells another one than the environment gave.
    """

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        out: dict[str, list[Any]] = {
            key: [] for key in ("prompt_ids", "completion_ids", "logprobs", reward_key, "verify_metrics")
        }
        for prompt in prompts:
            session = session_factory.create(task=prompt)
            try:
                rollout = harness_adapter.run_white_box(
                    model_step=model_step_builder(trainer, session), session=session, limits=limits
                )
                verdict = session.verify(transcript=rollout.messages, final_state=_final_state(rollout))
                reward = _resolve_env_reward(rollout, verdict)
            finally:
                session.close()
            out["prompt_ids"].append(list(rollout.prompt_ids))
            out["completion_ids"].append(list(rollout.completion_ids))
            out["logprobs"].append(list(rollout.logprobs))
            out[reward_key].append(reward)
            out["verify_metrics"].append(dict(verdict.metrics))
        return out

    return rollout_func


def _note_turn(result: HarnessRolloutResult, number: int, turn: ModelStepResult) -> None:
    result.messages.append(turn.response.to_message_dict())
    result.prompt_ids.extend(turn.prompt_ids)
    result.completion_ids.extend(turn.completion_ids)
    result.logprobs.extend(turn.logprobs)
    calls = [{"id": call.id, "name": call.name, "arguments": dict(call.args)} for call in turn.response.tool_calls]
    told = {"turn": number, "content": turn.response.content, "tool_calls": calls}
    result.events.append(RolloutEvent("model_response", told))


def _final_state(rollout: HarnessRolloutResult) -> dict[str, Any]:
    return {
        "done": rollout.done,
        "metrics": dict(rollout.metrics),
        "events": [{"type": event.type, "payload": dict(event.payload)} for event in rollout.events],
        "tool_trace": [
            {
                "tool_name": entry.tool_name,
                "arguments": dict(entry.arguments),
                "result": {name: getattr(entry.result, name) for name in ("data", "done", "metadata", "error")},
            }
            for entry in rollout.tool_trace
        ],
    }


def _resolve_env_reward(rollout: HarnessRolloutResult, verify: VerifyResult) -> float:
    """The reward of a rollout: the environment's last one, which ``verify`` may repeat but not change.

    Raises:
        ValueError: the two differ, or there is none.
    """
    rewards = (_reward(entry.result) for entry in reversed(rollout.tool_trace))
    given = next((reward for reward in rewards if reward is not None), None)
    told = None if verify.env_reward is None else float(verify.env_reward)
    if given is not None and told is not None and not math.isclose(told, given, rel_tol=1e-9, abs_tol=1e-6):
        raise ValueError(
            f"verify.env_reward must forward the environment reward: the environment gave {given}, verify says {told}"
        )
    reward = told if given is None else given
    if reward is None:
        raise ValueError(
            "the rollout did not produce an environment reward: "
            "no tool result carries one, and verify().env_reward is None"
        )
    return reward


def _reward(result: ToolResult) -> float | None:
    reward = result.metadata.get("reward")
    if reward is None and isinstance(result.data, dict):
        reward = result.data.get("reward")
    return None if reward is None else float(reward)


def _as_text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=_jsonable)


def _jsonable(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else str(value)
