from openenv.core.env_server.mcp_types import ListToolsAction

print(ListToolsAction().model_dump())
