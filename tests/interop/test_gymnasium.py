"""Gymnasium environments between the packages: upstream's client gets lists of our arrays, and its environments are as
they were for our client."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

from gymnasium_env.server.app import create_gymnasium_app
from interop.sides import OURS, UPSTREAM, Driver, Mirror, Servers, Side
from openenv import GenericEnvClient, InvalidActionError, SessionLostError
from openenv.gymnasium import GymnasiumEnv, VectorEnv, space_from_schema
from openenv.testing import FaultProxy
from support.gym_envs import FRAME
from support.live import LiveServer, serve


@pytest.fixture(scope="module")
def pictures() -> Iterator[LiveServer]:
    with serve(create_gymnasium_app("test/Picture-v0", render_mode="rgb_array")) as url:
        yield url


@pytest.fixture(params=["async", "sync"])
def theirs(request: pytest.FixtureRequest, drivers: Callable[[Side, str], Driver]) -> Iterator[Driver]:
    """Clients of upstream's."""
    one = drivers(UPSTREAM, request.param)
    yield one
    one.forget()


def test_upstreams_client_gets_lists_with_the_numbers_of_the_arrays(theirs: Driver, pictures: LiveServer) -> None:
    local = gymnasium.make("test/Picture-v0")
    theirs.new(pictures)
    told = theirs.state().value
    assert space_from_schema(told["observation_space"]) == local.observation_space
    seen, (wanted, info) = theirs.reset(seed=3).seen, local.reset(seed=3)
    for action in (None, 1, -1, 0, 1):
        if action is not None:
            answer = theirs.call("step", {"action": action}).value
            wanted, reward, terminated, truncated, info = local.step(action)
            seen = answer["observation"]
            assert (answer["reward"], answer["done"]) == (reward, terminated or truncated)
            assert (seen["terminated"], seen["truncated"]) == (terminated, truncated)
        assert isinstance(seen["obs"], list)
        assert seen["obs"] == wanted.tolist()
        assert np.shape(seen["obs"]) == FRAME
        assert seen["info"]["mean"] == info["mean"].tolist()


def test_upstreams_client_gets_a_drawing_as_base64(theirs: Driver, pictures: LiveServer) -> None:
    theirs.new(pictures)
    seen = theirs.reset(seed=3, render=True).seen
    drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(seen["frame"]))))
    assert drawn.tolist() == [[pixel[:3] for pixel in row] for row in seen["obs"]]


def test_upstreams_client_chooses_an_environment_and_is_told_what_is_wrong(
    theirs: Driver, pictures: LiveServer
) -> None:
    local = gymnasium.make("MountainCarContinuous-v0")
    theirs.new(pictures)
    assert np.array_equal(np.float32(theirs.reset(seed=5, env_id=local.spec.id).seen["obs"]), local.reset(seed=5)[0])
    force = np.array([0.25], np.float32)
    stepped = theirs.call("step", {"action": force.tolist()})
    assert np.array_equal(np.float32(stepped.seen["obs"]), local.step(force)[0])
    wrong = theirs.call("step", {"action": "left"})
    assert wrong.error is not None
    assert "This is no action of Box" in wrong.error["message"]
    assert theirs.state().value["step_count"] == 1


LISTS = {"pixels": [[0, 1, 255], [2, 3, 4]], "ragged": [[1], [], [2, 3]], "floats": [0.5, -0.0, 1e300], "empty": []}


@pytest.mark.parametrize("make", [GenericEnvClient, lambda base_url: GenericEnvClient(base_url=base_url).sync()])
async def test_for_our_client_an_upstream_environment_is_as_it_was(servers: Servers, make: Any) -> None:
    """Lists stay lists, whatever this side could do with arrays; of what it sends, an array is a list too."""
    server: Mirror = servers(UPSTREAM)
    client = make(base_url=server.url)
    waited = isinstance(client, GenericEnvClient)

    async def call(name: str, *args: Any) -> Any:
        result = getattr(client, name)(*args)
        return await result if waited else result

    await call("reset")
    seen = (await call("step", {"op": "echo", "arg": LISTS})).observation["echo"]
    assert json.dumps(seen) == json.dumps(LISTS)
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    seen = (await call("step", {"op": "echo", "arg": {"deep": array}})).observation["echo"]
    assert json.dumps(seen) == json.dumps({"deep": array.tolist()})
    await call("close")


def counting(url: str, many: int = 0, **kwargs: Any) -> Any:
    """An environment of upstream's as Gymnasium's: what it counts is the observation."""
    given: dict[str, Any] = {
        "observation_space": spaces.Box(0, 1000, (2,), np.int64),
        "action_space": spaces.Discrete(2),
        "to_action": lambda action: {"op": "inc", "metadata": {"mark": f"gym-{action}"}},
        "to_observation": lambda seen: np.array([seen.observation["env_no"], seen.observation["count"]], np.int64),
        **kwargs,
    }
    return VectorEnv(url, many, **given) if many else GymnasiumEnv(url, **given)


def test_an_upstream_environment_is_a_gymnasium_environment(servers: Servers) -> None:
    server = servers(UPSTREAM)
    envs = counting(server.url, 3)
    numbers = envs.reset(seed=4)[0][:, 0].tolist()
    assert len(set(numbers)) == 3
    for count in (1, 2):
        seen, _, terminations, truncations, _ = envs.step(np.array([0, 1, 1]))
        assert seen.tolist() == [[number, count] for number in numbers]
        assert not (terminations | truncations).any()
    assert [server.events("reset", env_no=number)[0]["seed"] for number in numbers] == [4, 5, 6]
    envs.close()


@pytest.mark.parametrize("side", [UPSTREAM, OURS], ids=str)
def test_a_socket_that_is_cut_ends_an_episode_only_where_it_must(servers: Servers, side: Side) -> None:
    server = servers(side)
    with FaultProxy("127.0.0.1", server.port) as proxy:
        env = counting(proxy.url)
        first = env.reset()[0].tolist()
        env.step(0)
        proxy.cut()
        seen, _, _, truncated, info = env.step(1)
        if side.is_ours:  # resumed: nobody notices
            assert (seen.tolist(), truncated, info) == ([first[0], 2], False, {})
            assert server.ran_on("gym-1")[-1] == first[0]
        else:
            assert (seen.tolist(), truncated, info["session_lost"]) == ([first[0], 1], True, True)
            assert env.reset()[0].tolist()[0] != first[0]
        env.close()


def test_on_an_upstream_server_the_loss_is_an_error_for_who_wants_it(servers: Servers) -> None:
    with FaultProxy("127.0.0.1", servers(UPSTREAM).port) as proxy:
        env = counting(proxy.url, on_session_lost="raise")
        env.reset()
        proxy.cut()
        with pytest.raises(SessionLostError):
            env.step(0)
        env.close()


def test_an_upstream_server_that_tells_no_spaces(servers: Servers) -> None:
    with pytest.raises(ValueError, match="does not tell its spaces"):
        GymnasiumEnv(servers(UPSTREAM).url)
    with pytest.raises((ValueError, InvalidActionError)):
        GymnasiumEnv(servers(UPSTREAM).url, "CartPole-v1")
