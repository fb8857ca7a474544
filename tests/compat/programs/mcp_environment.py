from fastmcp import FastMCP
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, ListToolsAction
from openenv.core.env_server.types import Observation, State


class Tools(MCPEnvironment):
    def reset(self, seed=None, episode_id=None, **kwargs):
        return Observation()

    def _step_impl(self, action, timeout_s=None, **kwargs):
        return Observation(metadata={"other": True})

    @property
    def state(self):
        return State()


mcp = FastMCP("t")


@mcp.tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


env = Tools(mcp)
env.reset()
print([tool.name for tool in env.step(ListToolsAction()).tools])
seen = env.step(CallToolAction(tool_name="add", arguments={"a": 1, "b": 2}))
print(seen.tool_name, seen.error, seen.result.data)
print(env.step(CallToolAction(tool_name="none")).error is not None)
env.close()

bad = FastMCP("b")


@bad.tool
def reset() -> int:
    """Taken."""
    return 1


try:
    Tools(bad)
except ValueError:
    print("reserved")
