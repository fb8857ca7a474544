"""Short name of `openenv.integrations.trl`: training with TRL."""

from __future__ import annotations

from openenv.integrations.trl import EnvFactories, EnvFactory, LossPolicy, Report, ToolEnv, protect, tool_env

__all__ = ["EnvFactories", "EnvFactory", "LossPolicy", "Report", "ToolEnv", "protect", "tool_env"]
