"""The rollout of the probe environment on the asynchronous agent: each call runs its event loop to completion."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from openenv.policy import AsyncWebSocketEnvClientAgent, ServerStopped
from probe_env import ProbeVectorEnv, Rollout


class Blocking:
    """An asynchronous agent, called from code that blocks."""

    def __init__(self, agent: AsyncWebSocketEnvClientAgent, runner: asyncio.Runner) -> None:
        self._agent = agent
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            return self._runner.run(getattr(self._agent, name)(*args))

        return call


async def made(url: str) -> AsyncWebSocketEnvClientAgent:
    return AsyncWebSocketEnvClientAgent(url)


with asyncio.Runner() as runner:
    agent: Any = Blocking(runner.run(made(sys.argv[1])), runner)
    try:
        width = agent.connect().action_dim or 1
        Rollout(agent, ProbeVectorEnv(3, width)).run()
    except ServerStopped:
        pass
    finally:
        agent.close()
