"""An echo with MCP tools: the smallest environment whose actions are tool calls."""

from echo_env.client import EchoEnv
from openenv.core.env_server.mcp_types import CallToolAction, ListToolsAction

__all__ = ["CallToolAction", "EchoEnv", "ListToolsAction"]
