"""Rollouts played by a harness: a loop of model and tools around a session of an environment.

Here is the layer for trainers: sessions, the plain loop of tool calling, TRL's ``rollout_func``, and the form in which
a session hands over the model calls of an agent of its own. The layer that runs such an agent inside an environment's
container, and records its calls, is not part of this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from openenv._lazy import lazy_exports

if TYPE_CHECKING:
    from openenv.core.env_server.mcp_types import RESERVED_TOOL_NAMES
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
    from openenv.core.harness.rollout import (
        CLIHarnessAdapter,
        HarnessAdapter,
        MCPHarnessAdapter,
        ModelStep,
        build_harness_rollout_func,
    )
    from openenv.core.harness.session_bridge import SessionMCPBridge
    from openenv.core.harness.sessions import (
        LoopOwningSession,
        ResourceSession,
        ResourceSessionFactory,
        StepEnvSessionAdapter,
        TrainableSession,
    )
    from openenv.core.harness.training import TrainingTrace, TrainingTurn

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
    "TrainingTrace",
    "TrainingTurn",
    "VerifyResult",
    "build_harness_rollout_func",
]

_AGENT_LAYER = "it runs no agent inside an environment's container; play rollouts with MCPHarnessAdapter instead"
_ELSEWHERE = {
    "AgenticHarnessAdapter": _AGENT_LAYER,
    "HarnessAction": _AGENT_LAYER,
    "HarnessClientMessage": _AGENT_LAYER,
    "HarnessConfig": _AGENT_LAYER,
    "HarnessEnvironment": _AGENT_LAYER,
    "HarnessError": _AGENT_LAYER,
    "HarnessEvent": _AGENT_LAYER,
    "HarnessEventType": _AGENT_LAYER,
    "HarnessMCPBridge": _AGENT_LAYER,
    "HarnessNotRunningError": _AGENT_LAYER,
    "HarnessProcess": _AGENT_LAYER,
    "HarnessResponse": _AGENT_LAYER,
    "HarnessStartupError": _AGENT_LAYER,
    "HarnessTransport": _AGENT_LAYER,
    "HarnessTurnTimeoutError": _AGENT_LAYER,
    "build_bridge_server": _AGENT_LAYER,
    "events_to_metadata": _AGENT_LAYER,
    "resolve_tool_conflicts": _AGENT_LAYER,
}

if not TYPE_CHECKING:  # a type checker would take any name for granted
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            **dict.fromkeys((*__all__, "_resolve_env_reward"), "openenv.core.harness.rollout"),
            **dict.fromkeys(("TrainingTrace", "TrainingTurn"), "openenv.core.harness.training"),
        },
        submodules=("capture", "results", "rollout", "session_bridge", "sessions", "training"),
        out_of_scope=_ELSEWHERE,
    )
