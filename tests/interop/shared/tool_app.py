"""``uvicorn tool_app:app``, by either package: an MCP environment in production mode."""

import os

import tool_env

from openenv.core.env_server import Action, ConcurrencyConfig, Observation
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation

STEPPED = bool(os.environ.get("TOOL_STEPPED"))
"""Tool calls go through the environment's step, as those of most MCP packages."""

app = create_app(
    tool_env.ToolEnv,
    CallToolAction if STEPPED else Action,
    CallToolObservation if STEPPED else Observation,
    env_name="tools",
    concurrency_config=ConcurrencyConfig(
        max_concurrent_envs=int(os.environ.get("MAX_CONCURRENT_ENVS", "64")),
        session_timeout=float(os.environ["TOOL_SESSION_TIMEOUT"]) if "TOOL_SESSION_TIMEOUT" in os.environ else None,
    ),
    state_cls=tool_env.ToolState,
    mode=os.environ.get("TOOL_MODE", "production"),
    **({"allow_ws_simulation": False} if os.environ.get("TOOL_NO_SIMULATION") else {}),  # of ours alone
)
