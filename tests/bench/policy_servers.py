"""Policy servers in processes of their own: ``python -m bench.policy_servers ours|plain|openpi``. Each prints its port.

``ours`` offers ``reuse-feedback-obs``, ``plain`` is the same without it, ``openpi`` is that of `bench.openpi_style`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import numpy as np

from bench import openpi_style
from bench.payloads import HORIZON, WIDTH
from openenv.policy.policy import Observations
from openenv.policy.server import PolicyServer


class Still:
    """A policy that costs nothing."""

    def act(self, observations: Observations) -> Any:
        return np.zeros((len(observations.keys), HORIZON, WIDTH), np.float32)


async def serve(reuse: bool) -> None:
    server = PolicyServer(Still(), "127.0.0.1", 0, reuse_feedback_obs=reuse)
    async with server:
        print(server.port, flush=True)
        await server.ended()


def main() -> None:
    name = sys.argv[1]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if name == "openpi":
        asyncio.run(openpi_style.serving(lambda port: print(port, flush=True)))
    else:
        asyncio.run(serve(reuse=name == "ours"))


if __name__ == "__main__":
    main()
