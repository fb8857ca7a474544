from openenv.core.env_server.mcp_types import CallToolObservation, ToolError, ToolErrorType

error = ToolError(error_type=ToolErrorType.TIMEOUT, message="late")
print(CallToolObservation(tool_name="add", result=3).model_dump(mode="json"))
print(CallToolObservation(tool_name="add", error=error).model_dump(mode="json"))
