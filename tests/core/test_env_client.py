"""`EnvClient` against a real server: episodes, errors that keep the session, time, ends, children."""

from __future__ import annotations

import asyncio
import gc
import inspect
import math
import pydoc
import time
from typing import Any

import numpy
import pytest

from openenv.core.exceptions import (
    ActionValidationError,
    CallTimeoutError,
    EnvExecutionError,
    ForkedClientError,
    InvalidActionError,
    MessageTooLargeError,
    NotResetError,
    Outcome,
    SessionClosedError,
    SessionLostError,
)
from openenv.core.generic_client import GenericEnvClient
from openenv.testing import FaultProxy
from support.clients import CountClient, CountServer, act, count_server
from support.envs import CountObservation, CountState

# ------------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "EnvClient requires either base_url or provider."),
        ({"base_url": "ftp://h"}, "http, https, ws or wss"),
        ({"base_url": "h", "mode": "mock"}, "Invalid mode: 'mock'. Must be 'simulation' or 'production'."),
        ({"base_url": "h", "io": "fork"}, 'io must be "auto" or "thread", not \'fork\''),
        ({"base_url": "h", "connect_timeout_s": 0}, "connect_timeout_s must be a positive number"),
        ({"base_url": "h", "message_timeout_s": -1.0}, "message_timeout_s must be a positive number"),
        ({"base_url": "h", "step_timeout_s": math.nan}, "step_timeout_s must be a positive number"),
        ({"base_url": "h", "reset_timeout_s": True}, "reset_timeout_s must be a positive number"),
        ({"base_url": "h", "state_timeout_s": "3"}, "state_timeout_s must be a positive number"),
        ({"base_url": "h", "max_message_size_mb": 0}, "max_message_size_mb must be a positive number"),
        ({"base_url": "h", "max_message_size_mb": -1}, "max_message_size_mb must be a positive number"),
        ({"base_url": "h", "websocket_ping_interval_s": 0}, "websocket_ping_interval_s must be a positive number"),
        ({"base_url": "h", "websocket_ping_timeout_s": -2}, "websocket_ping_timeout_s must be a positive number"),
    ],
)
def test_a_bad_argument_is_told(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text.replace("(", r"\(").replace(".", r"\.")):
        CountClient(**options)


def test_the_mode_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENENV_CLIENT_MODE", "production")
    assert CountClient(base_url="h").mode == "production"
    client = CountClient(base_url="h", mode="SIMULATION")
    assert client.mode == "simulation"
    with pytest.raises(AttributeError):
        client.mode = "production"  # type: ignore[misc]


@pytest.mark.parametrize("name", ["connect", "reset", "step", "state", "settle", "disconnect", "close", "new_session"])
def test_help_shows_what_a_call_takes_and_does(name: str) -> None:
    shown = pydoc.plain(pydoc.render_doc(getattr(GenericEnvClient, name)))
    assert f"{name}(self" in shown
    assert "*args" not in shown
    assert inspect.getdoc(getattr(GenericEnvClient, name))


def test_upstreams_argument_order_holds() -> None:
    client = CountClient("http://h:1", 1.0, 2.0, 3.0, 4.0, 5.0, None, "production", {"a": "b"})
    assert client.base_url == "http://h:1"
    assert client.mode == "production"
    assert client._ws_url == "ws://h:1/ws"


# ------------------------------------------------------------------ an episode


async def test_an_episode(server: CountServer) -> None:
    async with server.client() as client:
        first = await client.reset(seed=3, episode_id="ep")
        assert isinstance(first.observation, CountObservation)
        assert (first.observation.count, first.done) == (0, False)
        result = await client.step(act(mark=1))
        assert (result.observation.count, result.reward, result.done) == (1, 0.5, False)
        assert result.observation.env_no == first.observation.env_no
        state = await client.state()
        assert isinstance(state, CountState)
        assert (state.episode_id, state.step_count) == ("ep", 1)
        assert (await client.step(act("done"))).done
        assert (await client.reset()).observation.count == 0
    server.env.log.wait_for("close")
    assert [one["seed"] for one in server.env.log.of("reset")] == [3, None]
    assert len(server.env.log.of("init")) == 1


async def test_the_first_call_opens_the_session(server: CountServer) -> None:
    client = server.client()
    assert (await client.reset()).observation.count == 0
    await client.close()
    server.env.log.wait_for("close")


async def test_a_step_before_any_reset_is_allowed_with_one_warning(
    server: CountServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with server.client() as client:
        assert (await client.step(act())).observation.count == 1
        await client.step(act())
        assert sum("before any reset" in record.message for record in caplog.records) == 1


async def test_a_session_without_reset_is_protected_as_well(server: CountServer) -> None:
    with FaultProxy("127.0.0.1", server.url.port) as proxy:
        async with CountClient(base_url=proxy.url) as client:
            await client.step(act(mark="before"))
            proxy.cut("rst")
            for _ in range(2):
                with pytest.raises(SessionLostError):
                    await client.step(act(mark="after"))
    assert server.marks() == ["before"]


async def test_require_reset_refuses_it(server: CountServer) -> None:
    async with server.client(require_reset=True) as client:
        for call in (lambda: client.step(act()), client.state):
            with pytest.raises(NotResetError):
                await call()
        await client.reset()
        await client.step(act())
    assert len(server.env.log.of("step")) == 1


async def test_step_arguments_that_go_nowhere_are_told_once(
    server: CountServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with server.client() as client:
        await client.reset()
        for _ in range(2):
            await client.step(act(), render=True)
    assert sum("render did not go to the server" in record.message for record in caplog.records) == 1


# ------------------------------------------------------------------ errors that keep the session


@pytest.fixture
async def playing(server: CountServer) -> Any:
    async with server.client(max_message_size_mb=1.0) as client:
        await client.reset()
        yield client


async def goes_on(server: CountServer, client: CountClient) -> None:
    """The session is the same as before."""
    await client.step(act(mark="last"))
    assert server.marks()[-1] == "last"
    assert len(server.env.log.of("init")) == 1


async def test_an_environment_that_raises(server: CountServer, playing: CountClient) -> None:
    with pytest.raises(EnvExecutionError, match="env boom") as caught:
        await playing.step(act("raise"))
    assert caught.value.error_type == "ValueError"
    await goes_on(server, playing)


async def test_a_move_that_is_not_allowed(server: CountServer, playing: CountClient) -> None:
    with pytest.raises(InvalidActionError, match="cell is taken") as caught:
        await playing.step(act("invalid", "cell is taken"))
    assert caught.value.outcome is Outcome.NOT_APPLIED
    await goes_on(server, playing)


async def test_an_action_that_does_not_fit(server: CountServer, playing: CountClient) -> None:
    async with GenericEnvClient(base_url=server.url) as client:
        await client.reset()
        with pytest.raises(ActionValidationError) as caught:
            await client.step({"op": ["not", "text"]})
        assert caught.value.field.endswith("op")
        assert caught.value.outcome is Outcome.NOT_APPLIED
        assert (await client.step({"op": "inc"})).observation["count"] == 1


@pytest.mark.parametrize(
    ("arg", "field"), [(b"\x00", "arg"), ({"deep": [1, object()]}, "arg.deep[1]"), ([{1, 2}, object()], "arg[1]")]
)
async def test_an_action_that_does_not_encode(server: CountServer, playing: CountClient, arg: Any, field: str) -> None:
    with pytest.raises(ActionValidationError) as caught:
        await playing.step(act("echo", arg))
    assert (caught.value.field, caught.value.outcome) == (field, Outcome.NOT_APPLIED)
    assert isinstance(caught.value, TypeError)
    await goes_on(server, playing)


async def test_a_reset_argument_that_does_not_encode(server: CountServer, playing: CountClient) -> None:
    with pytest.raises(ActionValidationError) as caught:
        await playing.reset(options={"x": object()})
    assert caught.value.field == "options.x"
    await goes_on(server, playing)


@pytest.mark.parametrize(
    "value", [math.inf, -math.inf, 10**300, -(2**63), 0, 1.5, True, None, "é\u0000", [[]], {"": {}}]
)
async def test_values_come_back_as_they_were(playing: CountClient, value: Any) -> None:
    echo = (await playing.step(act("echo", value))).observation.echo
    assert echo == value
    assert type(echo) is type(value)


async def test_nan_and_numpy_values_cross(playing: CountClient) -> None:
    assert math.isnan((await playing.step(act("echo", math.nan))).observation.echo)
    result = await playing.step(act("echo", {"a": numpy.arange(3), "b": numpy.float32(0.5), "c": numpy.float64("nan")}))
    assert result.observation.echo["a"] == [0, 1, 2]
    assert result.observation.echo["b"] == 0.5
    assert math.isnan(result.observation.echo["c"])
    rewarded = await playing.step(act("nan"))
    assert math.isnan(rewarded.reward)
    assert math.isnan(rewarded.observation.reward)


@pytest.mark.parametrize("reward", [0, None, True, False, 1.0, 1, -0.0])
async def test_rewards_stay_apart_and_agree(playing: CountClient, reward: Any) -> None:
    result = await playing.step(act("reward", reward))
    for one in (result.reward, result.observation.reward):
        assert one == reward
        assert type(one) is type(reward)


async def test_an_observation_over_the_clients_limit_costs_its_call_only(
    server: CountServer, playing: CountClient
) -> None:
    with pytest.raises(MessageTooLargeError) as caught:
        await playing.step(act("big", 1_500_000))
    error = caught.value
    assert (error.direction, error.outcome, error.limit, error.session_lost) == (
        "received",
        Outcome.APPLIED,
        1_000_000,
        False,
    )
    assert error.size > 1_500_000
    await goes_on(server, playing)


async def test_an_observation_far_over_the_limit_ends_the_session(server: CountServer, playing: CountClient) -> None:
    with pytest.raises(MessageTooLargeError) as caught:
        await playing.step(act("big", 5_000_000))
    assert (caught.value.direction, caught.value.outcome, caught.value.session_lost) == (
        "received",
        Outcome.APPLIED,
        True,
    )
    with pytest.raises(SessionLostError, match="too_large"):
        await playing.step(act())
    assert (await playing.reset()).observation.count == 0


async def test_an_action_over_the_servers_limit() -> None:
    with count_server(ws_max_size=100_000) as server:
        async with server.client() as client:
            await client.reset()
            with pytest.raises(MessageTooLargeError) as caught:
                await client.step(act("echo", "x" * 200_000))
            assert (caught.value.direction, caught.value.outcome) == ("sent", Outcome.NOT_APPLIED)
            assert caught.value.size > 200_000
            with pytest.raises(SessionLostError, match="too_large"):
                await client.step(act(mark="retry"))
            assert (await client.reset()).observation.count == 0
        assert server.marks() == []


# ------------------------------------------------------------------ time


async def test_a_step_that_takes_too_long_loses_the_session(server: CountServer, playing: CountClient) -> None:
    with pytest.raises(CallTimeoutError, match="timeout_s") as caught:
        await playing.step(act("sleep", None, mark="slow"), timeout_s=0.2)
    assert caught.value.outcome is Outcome.UNKNOWN
    assert isinstance(caught.value, TimeoutError)
    with pytest.raises(SessionLostError, match="timeout"):
        await playing.step(act(mark="retry"))
    server.env.release.set()
    assert (await playing.reset()).observation.env_no != server.env.log.of("step")[0]["env_no"]
    assert server.marks() == ["slow"]


async def test_each_call_has_its_own_setting(server: CountServer) -> None:
    async with server.client(step_timeout_s=0.2, state_timeout_s=None, message_timeout_s=30) as client:
        await client.reset()
        with pytest.raises(CallTimeoutError, match="step_timeout_s"):
            await client.step(act("sleep"))
        server.env.release.set()


async def test_none_means_no_limit(server: CountServer) -> None:
    async with server.client(message_timeout_s=0.2) as client:
        await client.reset()
        step = asyncio.ensure_future(client.step(act("sleep"), timeout_s=None))
        await asyncio.to_thread(server.env.log.wait_for, "step")
        with pytest.raises(CallTimeoutError, match="earlier call"):  # its own, shorter time passes meanwhile
            await client.state()
        server.env.release.set()
        assert (await step).observation.count == 1


@pytest.mark.parametrize("timeout_s", [0, -1, math.nan, "1", True])
async def test_a_bad_time_is_told_and_nothing_is_sent(
    server: CountServer, playing: CountClient, timeout_s: Any
) -> None:
    with pytest.raises(ValueError, match="timeout_s must be a positive number"):
        await playing.step(act(), timeout_s=timeout_s)
    assert server.marks() == []


async def test_wait_for_round_a_step_and_the_next_call(server: CountServer, playing: CountClient) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(playing.step(act("sleep", mark="slow")), 0.2)
    with pytest.raises(SessionLostError, match="cancelled"):
        await playing.step(act(mark="next"))
    server.env.release.set()
    assert server.marks() == ["slow"]


# ------------------------------------------------------------------ ends


async def test_after_close_and_after_disconnect_nothing_goes_on_by_itself(server: CountServer) -> None:
    client = server.client()
    for end in (client.close, client.disconnect):
        await client.reset()
        await end()
        await end()
        for call in (lambda: client.step(act(mark="closed")), client.state):
            with pytest.raises(SessionClosedError):
                await call()
    server.env.log.wait_for("close", 2)
    await client.connect()
    with pytest.raises(SessionLostError, match="reset_failed"):
        await client.step(act(mark="not reset"))
    assert (await client.reset()).observation.count == 0
    assert (await client.step(act(mark="fine"))).observation.count == 1
    await client.close()
    assert server.marks() == ["fine"]


async def test_close_with_a_step_in_flight_does_not_wait_for_it(server: CountServer, playing: CountClient) -> None:
    step = asyncio.ensure_future(playing.step(act("sleep")))
    await asyncio.to_thread(server.env.log.wait_for, "step")
    await playing.close()
    with pytest.raises(SessionClosedError) as caught:
        await step
    assert caught.value.outcome is Outcome.UNKNOWN
    assert server.env.log.of("slept") == []
    server.env.release.set()


async def test_closing_a_client_that_was_never_used(server: CountServer) -> None:
    client = server.client()
    await client.close()
    with pytest.raises(SessionClosedError):
        await client.step(act())
    assert server.env.log.events == []


async def test_a_dropped_client_gives_its_session_back(server: CountServer) -> None:
    client = server.client()
    await client.reset()
    del client
    gc.collect()
    await asyncio.to_thread(server.env.log.wait_for, "close")


async def test_also_after_an_error(server: CountServer) -> None:
    async def play() -> None:
        client = server.client()
        await client.reset()
        with pytest.raises(EnvExecutionError):
            await client.step(act("raise"))

    await asyncio.create_task(play())
    gc.collect()
    await asyncio.to_thread(server.env.log.wait_for, "close")


def test_a_dropped_blocking_client_gives_its_session_back_after_an_error(server: CountServer) -> None:
    client = server.client().sync()
    client.reset()
    with pytest.raises(EnvExecutionError):
        client.step(act("raise"))
    del client
    gc.collect()
    server.env.log.wait_for("close")


async def test_connect_never_clears_a_loss(server: CountServer) -> None:
    with FaultProxy("127.0.0.1", server.url.port) as proxy:
        async with CountClient(base_url=proxy.url) as client:
            await client.reset()
            proxy.cut("rst")
            with pytest.raises(SessionLostError):
                await client.step(act(mark="lost"))
            await client.connect()
            for _ in range(2):
                with pytest.raises(SessionLostError):
                    await client.step(act(mark="still lost"))
            await client.reset()
            await client.step(act(mark="fine"))
    assert (server.marks(), server.strays()) == (["fine"], [])


async def test_a_loss_after_done_is_still_a_loss(server: CountServer) -> None:
    with FaultProxy("127.0.0.1", server.url.port) as proxy:
        async with CountClient(base_url=proxy.url) as client:
            await client.reset(episode_id="ep")
            assert (await client.step(act("done"))).done
            proxy.cut("fin")
            with pytest.raises(SessionLostError) as caught:
                await client.step(act(mark="lost"))
            assert (caught.value.episode_id, caught.value.steps, caught.value.session) == ("ep", 1, 1)


# ------------------------------------------------------------------ children


async def test_a_child_has_a_session_of_its_own_and_ends_with_its_parent(server: CountServer) -> None:
    parent = server.client()
    await parent.reset()
    child = await parent.new_session()
    assert type(child) is CountClient
    mine, theirs = await parent.step(act()), await child.reset()
    assert mine.observation.env_no != theirs.observation.env_no
    await parent.close()
    with pytest.raises(SessionClosedError):
        await child.step(act())
    await asyncio.to_thread(server.env.log.wait_for, "close", 2)


async def test_a_close_takes_no_longer_for_many_children_of_a_dead_peer(server: CountServer) -> None:
    with FaultProxy("127.0.0.1", server.url.port) as proxy:

        async def close_with(children: int) -> float:
            parent = CountClient(base_url=proxy.url)
            await parent.reset()
            kept = [await parent.new_session() for _ in range(children)]
            proxy.black_hole()
            began = time.monotonic()
            await parent.close()
            proxy.heal()
            assert all("closed" in repr(child) for child in kept)
            return time.monotonic() - began

        assert await close_with(6) < 3 * await close_with(0)


async def test_a_child_that_cannot_be_closed_here_does_not_keep_the_others_open(server: CountServer) -> None:
    parent = server.client()
    await parent.reset()
    foreign, child = await parent.new_session(), await parent.new_session()
    foreign._holder.pid = 0
    with pytest.raises(ForkedClientError):
        await parent.close()
    assert "closed" in repr(parent)
    assert "closed" in repr(child)
    foreign._holder.pid = parent._holder.pid
    await foreign.close()


async def test_a_childs_close_leaves_the_parent_alone(server: CountServer) -> None:
    async with server.client() as parent:
        await parent.reset()
        child = await parent.new_session()
        await child.reset()
        await child.close()
        assert (await parent.step(act())).observation.count == 1


async def test_a_parents_loss_leaves_the_child_alone(server: CountServer) -> None:
    with FaultProxy("127.0.0.1", server.url.port) as proxy:
        async with CountClient(base_url=proxy.url) as parent:
            await parent.reset()
            proxy.cut("rst")
            child = await parent.new_session()
            await child.reset()
            with pytest.raises(SessionLostError):
                await parent.step(act(mark="lost"))
            assert (await child.step(act(mark="child"))).observation.count == 1
    assert server.marks() == ["child"]
