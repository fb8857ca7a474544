"""A client of standard MCP, by version 2 of the official Python SDK.

Arguments: the URL, and the file that `wait` waits for. Prints one JSON line for each thing that it has done.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from mcp import Client


def say(**told: Any) -> None:
    print(json.dumps(told), flush=True)


async def main(url: str, gate: str) -> None:
    async with Client(url) as client:
        listed = await client.list_tools()
        say(tools=sorted(tool.name for tool in listed.tools))
        for tool in ("inc", "inc_async"):
            result = await client.call_tool(tool, {})
            say(tool=tool, failed=result.is_error, result=result.structured_content)
        result = await client.call_tool("boom", {})
        say(tool="boom", failed=result.is_error)
        result = await client.call_tool("wait", {"path": gate})
        say(tool="wait", failed=result.is_error, result=result.structured_content)
        result = await client.call_tool("inc", {})
        say(tool="inc", failed=result.is_error, result=result.structured_content)
    say(closed=True)


asyncio.run(main(sys.argv[1], sys.argv[2]))
