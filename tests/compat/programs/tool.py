from openenv.core.env_server.mcp_types import Tool

print(Tool(name="add", description="Add.", input_schema={"type": "object"}).model_dump())
