"""Training with TRL: environments for ``environment_factory`` that never let a model learn from a lost game.

Importing it loads neither trl nor torch.
"""

from __future__ import annotations

from openenv.integrations.trl.episode import LossPolicy
from openenv.integrations.trl.factory import EnvFactories, EnvFactory, protect
from openenv.integrations.trl.report import Report
from openenv.integrations.trl.tool_env import ToolEnv, tool_env

__all__ = ["EnvFactories", "EnvFactory", "LossPolicy", "Report", "ToolEnv", "protect", "tool_env"]
