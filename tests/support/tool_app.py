"""``uvicorn support.tool_app:app``: `ToolsEnv` in a process of its own."""

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.types import Action, Observation
from support.tool_envs import fresh_tools

app = create_app(fresh_tools(), Action, Observation, max_concurrent_envs=4)
