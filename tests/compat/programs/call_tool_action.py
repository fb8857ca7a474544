from openenv.core.env_server.mcp_types import CallToolAction

print(CallToolAction(tool_name="add", arguments={"a": 1}).model_dump(), CallToolAction(tool_name="x").model_dump())
