"""Giving up a call, with both ends ours: how it ends, and what its caller is told (E13 to E15)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from openenv.core import GenericEnvClient
from openenv.core.env_server.http_server import create_app
from openenv.core.exceptions import CallTimeoutError, LateResultError, Outcome, OutcomeUnknownError
from support.envs import CountAction, CountEnv, CountObservation, fresh_env
from support.live import LiveServer, serve

LONG_S = 10.0


class HookedEnv(CountEnv):
    def cancel(self) -> None:
        self.release.set()

    def step(self, action: CountAction, timeout_s: float | None = None, **kwargs: Any) -> CountObservation:
        self.release.clear()
        seen = super().step(action, timeout_s)
        if action.arg == LONG_S and action.metadata.get("raise"):
            raise RuntimeError("cut short")
        return seen


class AwaitingEnv(CountEnv):
    async def step_async(self, action: CountAction, timeout_s: float | None = None, **kwargs: Any) -> CountObservation:
        self.log.add("step", self.env_no, op=action.op)
        if action.op == "sleep":
            await asyncio.sleep(action.arg)
        self.count += 1
        return CountObservation(env_no=self.env_no, count=self.count)


@pytest.fixture
def env() -> Iterator[type[CountEnv]]:
    made = fresh_env()
    yield made
    made.release.set()


def served(env: type[CountEnv], base: type[CountEnv]) -> Any:
    kind = type(base.__name__, (base,), {"log": env.log, "release": env.release})
    return serve(create_app(kind, CountAction, CountObservation, max_concurrent_envs=2))


async def give_up(live: LiveServer, **metadata: Any) -> tuple[GenericEnvClient, float]:
    """A client that gave up a step of ten seconds after a moment, and when the step began."""
    client = GenericEnvClient(live)
    await client.reset()
    began = time.monotonic()
    with pytest.raises(CallTimeoutError) as caught:
        await client.step({"op": "sleep", "arg": LONG_S, "metadata": metadata}, timeout_s=0.2)
    assert caught.value.outcome is Outcome.UNKNOWN
    assert "settle()" in str(caught.value)
    return client, began


async def test_the_hook_of_a_sync_env_ends_the_call_and_its_result_is_handed_over(env: type[CountEnv]) -> None:
    with served(env, HookedEnv) as live:
        client, began = await give_up(live)
        late = await client.settle()
        assert time.monotonic() - began < LONG_S / 2
        assert late is not None
        assert late.observation["count"] == 1
        assert (await client.step({"op": "inc"})).observation["count"] == 2
        await client.close()


async def test_a_call_that_its_hook_cut_short_is_told_once(env: type[CountEnv]) -> None:
    with served(env, HookedEnv) as live:
        client, began = await give_up(live, **{"raise": True})
        with pytest.raises(OutcomeUnknownError):
            await client.step({"op": "inc"})
        assert time.monotonic() - began < LONG_S / 2
        assert (await client.step({"op": "inc"})).observation["count"] == 2
        assert len(env.log.of("step")) == 2
        await client.close()


async def test_an_env_that_awaits_is_cancelled(env: type[CountEnv]) -> None:
    with served(env, AwaitingEnv) as live:
        client, began = await give_up(live)
        with pytest.raises(OutcomeUnknownError):
            await client.settle()
        assert time.monotonic() - began < LONG_S / 2
        assert (await client.step({"op": "inc"})).observation["count"] == 1
        await client.close()


async def test_without_a_hook_the_call_goes_on_and_its_result_comes_by_settle(env: type[CountEnv]) -> None:
    with served(env, CountEnv) as live:
        client, _ = await give_up(live)
        with pytest.raises(CallTimeoutError) as caught:
            await client.step({"op": "inc"}, timeout_s=0.1)
        assert caught.value.outcome is Outcome.NOT_APPLIED
        env.release.set()
        late = await client.settle()
        assert late is not None
        assert late.observation["count"] == 1
        assert (await client.step({"op": "inc"})).observation["count"] == 2
        await client.close()


async def test_without_settle_the_next_step_hands_the_late_result_over_and_is_not_sent(env: type[CountEnv]) -> None:
    with served(env, CountEnv) as live:
        client, _ = await give_up(live)
        env.release.set()
        with pytest.raises(LateResultError) as caught:
            await client.step({"op": "inc"})
        assert caught.value.result.observation["count"] == 1
        assert len(env.log.of("step")) == 1
        await client.close()
