"""One MCP environment for both sides, as an env package would write it; it writes down what happens to it."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from fastmcp import FastMCP
from fastmcp.exceptions import ToolError
from mirror_env import _numbers, log

from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Action, Observation, State


class ToolState(State):
    """A state with one more field."""

    env_no: int = 0


class ToolEnv(MCPEnvironment):
    """Counts its tool calls."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self.env_no = next(_numbers)
        self.count = 0
        self.running = 0
        self.episode_id: str | None = None
        super().__init__(self._tools())
        log("init", self.env_no)

    def _tools(self) -> FastMCP:
        mcp = FastMCP("tools")

        @mcp.tool(title="Add", annotations={"idempotentHint": False})
        def inc(by: int = 1, mark: str | None = None) -> dict[str, Any]:
            """Add to the counter."""
            return self._count("inc", by, mark)

        @mcp.tool
        async def inc_async(by: int = 1, mark: str | None = None) -> dict[str, Any]:
            """Add to the counter, on an event loop."""
            await asyncio.sleep(0)
            return self._count("inc_async", by, mark)

        @mcp.tool
        def greet(name: str) -> str:
            """Has an argument of the name that callers use for the tool."""
            return f"Hello, {name}!"

        @mcp.tool
        def wait(path: str, mark: str | None = None) -> dict[str, Any]:
            """Until the file is there."""
            self.running += 1
            log("waiting", self.env_no, mark=mark, running=self.running)
            while not os.path.exists(path):
                time.sleep(0.005)
            self.running -= 1
            return self._count("wait", 1, mark)

        @mcp.tool
        def boom(text: str = "tool boom", mark: str | None = None) -> str:
            """Fails."""
            log("tool", self.env_no, tool="boom", mark=mark)
            raise ValueError(text)

        @mcp.tool
        def refuse(why: str) -> str:
            """Fails, and says so to the agent."""
            raise ToolError(why)

        @mcp.tool
        def big(size: int) -> str:
            """A long answer."""
            return "x" * size

        return mcp

    def _count(self, tool: str, by: int, mark: str | None) -> dict[str, Any]:
        self.count += by
        log("tool", self.env_no, tool=tool, mark=mark, count=self.count)
        return {"env_no": self.env_no, "count": self.count}

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        log("reset", self.env_no, seed=seed)
        self.count = 0
        self.episode_id = episode_id
        return Observation(metadata={"env_no": self.env_no})

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        log("step", self.env_no)
        return Observation(metadata={"env_no": self.env_no})

    @property
    def state(self) -> ToolState:
        return ToolState(episode_id=self.episode_id, step_count=self.count, env_no=self.env_no)

    def close(self) -> None:
        log("close", self.env_no)
        super().close()
