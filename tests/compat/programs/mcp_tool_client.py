import asyncio

from counter import serving, tools_app
from openenv.core.mcp_client import MCPToolClient


class ToolsEnv(MCPToolClient):
    pass


with serving(tools_app()) as url:

    async def main():
        async with ToolsEnv(base_url=url) as env:
            await env.reset()
            print(
                [tool.name for tool in await env.list_tools()],
                await env.call_tool("add", a=1, b=2),
                await env.has_tool("no"),
            )

    asyncio.run(main())
    with ToolsEnv(base_url=url).sync() as env:
        env.reset()
        print(env.call_tool("add", a=2, b=2))
