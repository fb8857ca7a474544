"""A client that is closed right after a cut that it could not see leaves no session behind for a whole lease."""

from __future__ import annotations

import asyncio

from openenv.core.env_server.http_server import create_app
from openenv.testing import FaultProxy
from support.clients import CountClient
from support.envs import CountAction, CountObservation, CountState, fresh_env
from support.live import serve


async def test_its_session_is_released_on_another_socket() -> None:
    env = fresh_env()
    app = create_app(env, CountAction, CountObservation, max_concurrent_envs=4, state_cls=CountState)
    with serve(app) as server, FaultProxy("127.0.0.1", server.port) as proxy:
        client = CountClient(proxy.url)
        await client.reset()
        assert "resume" in client.features
        proxy.black_hole(1)  # the first connection is dead, and nobody can tell; new ones work
        await client.close()
        await asyncio.to_thread(env.log.wait_for, "close")
