"""reuse-feedback-obs: what the agent leaves out of an infer, seen from a server that keeps what was fed back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from openenv.core.exceptions import ConnectionReplaced
from openenv.policy import AsyncWebSocketEnvClientAgent, WebSocketEnvClientAgent
from openenv.policy.messages import REUSE_FEEDBACK_OBS, SERVER_RESYNC, Feedback, Infer
from openenv.policy.requests import make_feedback
from openenv.policy.reuse import FedBackRows
from support.policy_peer import Peer, serving


def obs(*values: float, dtype: str = "<f8", text: str = "look") -> dict[str, Any]:
    return {
        "images": {"c": np.full((len(values), 2, 2, 3), 7, np.uint8)},
        "states": {"t": np.array(values, dtype=dtype)[:, None]},
        "text": [text] * len(values),
    }


def feed(
    agent: Any, observation: dict[str, Any], *envs: int, done: tuple[int, ...] = (), truncated: bool = False
) -> Any:
    ended = [env in done for env in envs]
    flags = ([False] * len(envs), ended) if truncated else (ended, [False] * len(envs))
    return agent.feedback(observation, list(envs), [0] * len(envs), [0.0] * len(envs), *flags)


def offering(*features: str, rounds: int) -> Callable[[Peer], None]:
    def script(peer: Peer) -> None:
        peer.hello(features=list(features))
        for _ in range(rounds):
            peer.exchange()
        peer.act()
        peer.gone()

    return script


def infers(peer: Any) -> list[Infer]:
    return [message for _, name, message in peer.log if name == "Infer"]


def after(first: dict[str, Any], second: dict[str, Any], *, features: tuple[str, ...] = (REUSE_FEEDBACK_OBS,),
          done: tuple[int, ...] = (), truncated: bool = False, **options: Any) -> tuple[Infer, int]:  # fmt: skip
    """Feed ``first`` back for two environments, ask with ``second``; what the server got, and the agent's count."""
    with serving(offering(*features, rounds=1)) as peer, WebSocketEnvClientAgent(peer.url, **options) as agent:
        agent.infer(obs(0, 0), [0, 1], [0, 0])
        feed(agent, first, 0, 1, done=done, truncated=truncated)
        agent.infer(second, [0, 1], [1, 1])
        reused = agent.reused_observations
        agent.close()
        peer.ended(1)
    return infers(peer)[1], reused


def test_rows_that_were_fed_back_are_not_sent_again() -> None:
    message, reused = after(obs(1, 2), obs(1, 3))
    assert message.reuse is not None
    assert message.reuse.tolist() == [True, False]
    assert message.env_indices.tolist() == [0, 1]
    assert message.step_ids.tolist() == [1, 1]
    assert message.observation.states["t"].tolist() == [[3.0]]
    assert message.observation.images["c"].shape == (1, 2, 2, 3)
    assert message.observation.text.tolist() == ["look"]
    assert reused == 1


def test_if_all_are_reused_arrays_without_rows_keep_their_names_and_dimensions() -> None:
    message, reused = after(obs(1, 2), obs(1, 2))
    assert message.reuse is not None
    assert message.reuse.tolist() == [True, True]
    assert message.observation.images["c"].shape == (0, 2, 2, 3)
    assert message.observation.states["t"].shape == (0, 1)
    assert message.observation.text.shape == (0,)
    assert reused == 2


OTHER_IMAGE = {**obs(1, 2), "images": {"c": np.zeros((2, 2, 2, 3), np.uint8)}}
WIDER = {**obs(1, 2), "states": {"t": np.array([[1.0, 0.0], [2.0, 0.0]])}}
RENAMED = {**obs(1, 2), "states": {"u": obs(1, 2)["states"]["t"]}}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(obs(1, 2), obs(3, 4), id="values"),
        pytest.param(obs(0.0, 0.0), obs(-0.0, -0.0), id="negative zero"),
        pytest.param(obs(1, 2), obs(1, 2, dtype="<f4"), id="dtype"),
        pytest.param(obs(1, 2), obs(1, 2, dtype=">f8"), id="byte order"),
        pytest.param(obs(0, 0), obs(0, 0, dtype=">f8"), id="byte order of the same bytes"),
        pytest.param(obs(1, 2), obs(1, 2, text="other"), id="text"),
        pytest.param(obs(1, 2), OTHER_IMAGE, id="image"),
        pytest.param(obs(1, 2), WIDER, id="shape"),
        pytest.param(obs(1, 2), RENAMED, id="name"),
    ],
)
def test_rows_that_differ_in_anything_are_sent_and_the_key_is_left_out(first: Any, second: Any) -> None:
    message, reused = after(first, second)
    assert message.reuse is None
    assert len(message.observation) == 2
    assert reused == 0


def test_the_same_bytes_are_reused_even_if_they_do_not_equal_themselves() -> None:
    message, _ = after(obs(float("nan"), 2), obs(float("nan"), 3))
    assert message.reuse is not None
    assert message.reuse.tolist() == [True, False]


@pytest.mark.parametrize("truncated", [False, True])
def test_an_observation_that_ended_an_episode_is_never_reused(truncated: bool) -> None:
    message, _ = after(obs(1, 2), obs(1, 2), done=(0,), truncated=truncated)
    assert message.reuse is not None
    assert message.reuse.tolist() == [False, True]


@pytest.mark.parametrize("features", [(), ("another-feature",)])
def test_it_is_not_used_where_the_server_does_not_list_it(features: tuple[str, ...]) -> None:
    assert after(obs(1, 2), obs(1, 2), features=features)[0].reuse is None


def test_one_switch_turns_it_off() -> None:
    assert after(obs(1, 2), obs(1, 2), reuse_feedback_obs=False)[0].reuse is None


def test_arrays_that_the_caller_uses_again_are_no_longer_what_was_fed_back() -> None:
    with serving(offering(REUSE_FEEDBACK_OBS, rounds=1)) as peer, WebSocketEnvClientAgent(peer.url) as agent:
        buffer = obs(1, 2)
        agent.infer(buffer, [0, 1], [0, 0])
        feed(agent, buffer, 0, 1)
        buffer["states"]["t"][0] = 9.0
        agent.infer(buffer, [0, 1], [1, 1])
        agent.close()
        peer.ended(1)
    message = infers(peer)[1]
    assert message.reuse is not None
    assert message.reuse.tolist() == [False, True]
    assert message.observation.states["t"].tolist() == [[9.0]]


def test_a_later_feedback_takes_the_place_of_an_earlier_one() -> None:
    rows = FedBackRows()
    flags = ([False], [False])
    rows.remember(make_feedback(obs(1), [3], [0], [0.0], *flags, None))
    rows.remember(make_feedback(obs(2), [3], [0], [0.0], *flags, None))
    now = make_feedback(obs(1, 2, 2), [3, 4, 5], [0] * 3, [0.0] * 3, [False] * 3, [False] * 3, None).observation
    assert rows.reusable(np.array([3, 4, 5]), now).tolist() == [False, False, False]
    assert rows.reusable(np.array([4, 3, 5]), now).tolist() == [False, True, False]
    rows.forget()
    assert not rows.reusable(np.array([4, 3, 5]), now).any()


def test_a_fresh_connection_holds_nothing_until_it_was_fed_back() -> None:
    def first(peer: Peer) -> None:
        peer.hello(features=[REUSE_FEEDBACK_OBS])
        peer.exchange()
        peer.expect(Infer)
        peer.end(SERVER_RESYNC)

    with serving(first, offering(REUSE_FEEDBACK_OBS, rounds=1)) as peer, WebSocketEnvClientAgent(peer.url) as agent:
        agent.infer(obs(0), [0], [0])
        feed(agent, obs(1), 0)
        with pytest.raises(ConnectionReplaced):
            agent.infer(obs(1), [0], [1])
        agent.infer(obs(1), [0], [1])
        feed(agent, obs(2), 0)
        agent.infer(obs(2), [0], [2])
        agent.close()
        peer.ended(2)
    reuse = [None if message.reuse is None else message.reuse.tolist() for message in infers(peer)]
    assert reuse == [None, [True], None, [True]]


def test_a_feature_that_the_next_connection_does_not_list_is_not_used_there() -> None:
    def first(peer: Peer) -> None:
        peer.hello(features=[REUSE_FEEDBACK_OBS])
        peer.act()
        peer.end("", 1000)

    with serving(first, offering(rounds=1)) as peer, WebSocketEnvClientAgent(peer.url) as agent:
        agent.infer(obs(0), [0], [0])
        peer.ended(1)
        with pytest.raises(ConnectionReplaced):
            feed(agent, obs(1), 0)
        agent.infer(obs(1), [0], [0])
        feed(agent, obs(1), 0)
        agent.infer(obs(1), [0], [0])
        agent.close()
        peer.ended(2)
    assert [message.reuse for message in infers(peer)] == [None, None, None]


async def test_the_asynchronous_agent_reuses_as_well() -> None:
    with serving(offering(REUSE_FEEDBACK_OBS, rounds=1)) as peer:
        async with AsyncWebSocketEnvClientAgent(peer.url) as agent:
            await agent.infer(obs(0), [0], [0])
            await feed(agent, obs(1), 0)
            await agent.infer(obs(1), [0], [1])
            assert agent.reused_observations == 1
        await asyncio.to_thread(peer.ended, 1)
    assert [name for _, name in peer.told()] == ["Infer", "Feedback", "Infer", "closed by the client"]
    assert peer.told(Feedback.__name__) == [(1, "Feedback")]
