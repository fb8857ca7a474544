"""The rollout of the probe environment on the asynchronous agent: each call runs its event loop to completion."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from openenv.policy import AsyncWebSocketEnvClientAgent, ServerStopped
from openenv.policy.rollout import Rollout
from probe_env import ProbeSource, ProbeVectorEnv


class Blocking:
    """An asynchronous agent, called from code that blocks."""

    def __init__(self, agent: AsyncWebSocketEnvClientAgent, runner: asyncio.Runner) -> None:
        self._agent = agent
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._agent, name)
        if not asyncio.iscoroutinefunction(found):
            return found
        return lambda *args: self._runner.run(found(*args))


async def made(url: str) -> AsyncWebSocketEnvClientAgent:
    return AsyncWebSocketEnvClientAgent(url)


with asyncio.Runner() as runner:
    agent: Any = Blocking(runner.run(made(sys.argv[1])), runner)
    try:
        width = agent.connect().action_dim or 1
        Rollout(agent, ProbeSource(ProbeVectorEnv(3, width))).run()
    except ServerStopped:
        pass
    finally:
        agent.close()
