"""A call that waits for the fate of one that was given up is sent when that is known (E14), and never left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from openenv.core import GenericEnvClient
from openenv.core.env_server.http_server import create_app
from openenv.core.exceptions import CallTimeoutError
from support.envs import CountAction, CountEnv, CountObservation, fresh_env
from support.live import LiveServer, serve


@pytest.fixture
def env() -> Iterator[type[CountEnv]]:
    made = fresh_env()
    yield made
    made.release.set()


@pytest.fixture
def live(env: type[CountEnv]) -> Iterator[LiveServer]:
    with serve(create_app(env, CountAction, CountObservation, max_concurrent_envs=2)) as url:
        yield url
        env.release.set()


async def test_reset_is_sent_when_the_given_up_step_has_ended(live: LiveServer, env: type[CountEnv]) -> None:
    async with GenericEnvClient(live) as client:
        await client.reset()
        with pytest.raises(CallTimeoutError):
            await client.step({"op": "sleep", "arg": 60}, timeout_s=0.1)
        reset = asyncio.create_task(client.reset(timeout_s=30))
        await asyncio.to_thread(env.log.wait_for, "step")
        await asyncio.sleep(0)
        env.release.set()
        assert (await reset).observation["count"] == 0
        assert (await client.step({"op": "inc"})).observation["count"] == 1
        assert len(env.log.of("reset")) == 2
        assert len(env.log.of("init")) == 1


def test_reset_of_the_blocking_client_is_sent_as_well(live: LiveServer, env: type[CountEnv]) -> None:
    with GenericEnvClient(live).sync() as client:
        client.reset()
        with pytest.raises(CallTimeoutError):
            client.step({"op": "sleep", "arg": 60}, timeout_s=0.1)
        threading.Timer(0.2, env.release.set).start()
        assert client.reset(timeout_s=30).observation["count"] == 0
        assert len(env.log.of("init")) == 1


async def test_a_call_that_was_never_sent_leaves_nothing_for_the_next(live: LiveServer, env: type[CountEnv]) -> None:
    async with GenericEnvClient(live) as client:
        await client.reset()
        for patience_s in (1e-6, 0.0005, 0.001, 0.002) * 20:
            try:
                await client.step({"op": "inc"}, timeout_s=patience_s)
            except CallTimeoutError:
                assert (await client.reset(timeout_s=30)).observation["count"] == 0
        assert len(env.log.of("init")) == 1
