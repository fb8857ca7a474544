"""Sockets that break under Gymnasium's loop: with resume nobody notices, without it one episode is truncated."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from gymnasium_env.server.app import create_gymnasium_app
from openenv import CallTimeoutError, ConnectError, GenericEnvClient, SessionLostError
from openenv.gymnasium import GymnasiumEnv, VectorEnv
from openenv.testing import FaultProxy
from support.gym_envs import Log
from support.live import LiveServer, serve

N = 3
GO = np.zeros(N, int)


@pytest.fixture
def proxy(logged: LiveServer) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", logged.port) as proxy:
        yield proxy


Make = Callable[..., VectorEnv]


@pytest.fixture
def make(logged: LiveServer, proxy: FaultProxy) -> Iterator[Make]:
    """A vector environment whose sub-environment 1 goes through the proxy, with a client of these arguments."""
    made: list[VectorEnv] = []

    def vector(resume: bool = False, client: dict[str, Any] | None = None, **kwargs: Any) -> VectorEnv:
        clients = [GenericEnvClient(base_url=logged, resume=resume) for _ in range(N)]
        clients[1] = GenericEnvClient(base_url=proxy.url, resume=resume, **(client or {}))
        made.append(VectorEnv(clients, N, **kwargs))
        return made[-1]

    yield vector
    proxy.heal()
    for envs in made:
        envs.close()


def steps(log: Log, number: int) -> list[int]:
    return [action for which, action in log.of("step") if which == number]


@pytest.mark.parametrize("when", ["idle", "request", "reply"])
def test_with_resume_nobody_notices_and_every_action_is_applied_once(
    make: Make, proxy: FaultProxy, log: Log, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    envs = make(resume=True)
    numbers = envs.reset(seed=1)[0][:, 0]
    for count in range(1, 7):
        if count % 2:
            break_it(proxy, when)
        seen, rewards, terminations, truncations, infos = envs.step(GO)
        assert seen.tolist() == [[number, count] for number in numbers]
        assert rewards.tolist() == [1, 1, 1]
        assert not terminations.any()
        assert not truncations.any()
        assert "session_lost" not in infos
    assert [one.number for one in envs.sessions] == [1, 1, 1]
    assert envs.sessions[1].resumes >= 3
    assert len(log.of("init")) == N
    for number in numbers:
        assert steps(log, number) == [0] * 6
    assert "truncated" not in caplog.text


def break_it(proxy: FaultProxy, when: str) -> None:
    if when == "idle":
        proxy.cut("rst")
    else:
        proxy.cut_after(0, "request" if when == "request" else "reply", "rst", proxy.accepted)


@pytest.mark.parametrize("when", ["idle", "request", "reply"])
def test_without_resume_its_episode_is_truncated_and_the_others_go_on(
    make: Make, proxy: FaultProxy, log: Log, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    envs = make()
    numbers = envs.reset(seed=1)[0][:, 0]
    envs.step(GO)
    break_it(proxy, when)
    with caplog.at_level(logging.WARNING, "openenv.client"):
        seen, rewards, terminations, truncations, infos = envs.step(GO)
    assert seen.tolist() == [[numbers[0], 2], [numbers[1], 1], [numbers[2], 2]]  # its last one, again
    assert rewards.tolist() == [1, 0, 1]
    assert not terminations.any()
    assert (
        truncations.tolist()
        == infos["session_lost"].tolist()
        == infos["_session_lost"].tolist()
        == [False, True, False]
    )
    assert infos["session_lost_reason"][1] == "connection"
    assert infos["session_lost_outcome"][1] in ({"idle": "not_applied"}.get(when, "unknown"), "unknown")
    assert "sub-environment 1: its episode is truncated [connection]" in caplog.text
    assert len(log.of("init")) == N

    seen, rewards, _, truncations, infos = envs.step(GO)  # the reset of the next step
    assert not truncations.any()
    assert rewards.tolist() == [1, 0, 1]
    assert seen[:, 1].tolist() == [3, 0, 3]
    assert infos["_reset"].tolist() == [False, True, False]
    anew = seen[1, 0]
    assert anew not in numbers
    assert envs.step(GO)[0].tolist() == [[numbers[0], 4], [anew, 1], [numbers[2], 4]]
    assert steps(log, numbers[1]) == [0] * (2 if when == "reply" else 1)
    assert steps(log, anew) == [0]
    log.wait_for(lambda: [number for number, _ in log.of("close")] == [numbers[1]])


def test_in_the_same_step_the_last_moment_is_in_final_obs(make: Make, proxy: FaultProxy, log: Log) -> None:
    envs = make(autoreset_mode="SameStep")
    numbers = envs.reset()[0][:, 0]
    envs.step(GO)
    proxy.cut()
    seen, _, _, truncations, infos = envs.step(GO)
    assert truncations.tolist() == [False, True, False]
    assert infos["final_obs"][1].tolist() == [numbers[1], 1]
    assert infos["final_info"]["session_lost"].tolist() == [False, True, False]
    assert seen[1, 1] == 0
    assert seen[1, 0] not in numbers
    assert log.of("reset")[-1] == (seen[1, 0], (None, None))


def test_without_autoreset_the_mask_opens_the_new_session(make: Make, proxy: FaultProxy) -> None:
    envs = make(autoreset_mode="Disabled")
    numbers = envs.reset()[0][:, 0]
    proxy.cut()
    truncations = envs.step(GO)[3]
    assert truncations.tolist() == [False, True, False]
    with pytest.raises(ResetNeeded, match=r"\[1\]"):
        envs.step(GO)
    seen, _ = envs.reset(options={"reset_mask": truncations})
    assert seen[:, 1].tolist() == [1, 0, 1]
    assert seen[1, 0] not in numbers


def test_an_answer_that_does_not_come_in_time_ends_the_episode_too(make: Make, proxy: FaultProxy, log: Log) -> None:
    envs = make(resume=True, client={"step_timeout_s": 0.3})
    numbers = envs.reset()[0][:, 0]
    proxy.hold("reply")
    _, _, _, truncations, infos = envs.step(GO)
    assert truncations.tolist() == [False, True, False]
    assert (infos["session_lost_reason"][1], infos["session_lost_outcome"][1]) == ("timeout", "unknown")
    proxy.release()
    seen = envs.step(GO)[0]
    assert seen.tolist() == [[numbers[0], 2], [numbers[1], 0], [numbers[2], 2]]  # the session is there: it resets in it
    assert steps(log, numbers[1]) == [0]


def test_a_loss_between_episodes_is_none(make: Make, proxy: FaultProxy, log: Log) -> None:
    envs = make()
    numbers = envs.reset()[0][:, 0]
    assert envs.step(np.array([0, 1, 0]))[2].tolist() == [False, True, False]
    proxy.cut()
    seen, _, _, truncations, infos = envs.step(GO)
    assert not truncations.any()
    assert "session_lost" not in infos
    assert (seen[1, 0] in numbers, seen[1, 1]) == (False, 0)


def test_a_server_that_is_gone_is_no_truncation(make: Make, proxy: FaultProxy) -> None:
    envs = make(client={"reset_timeout_s": 5})  # how long the reset below tries
    envs.reset()
    proxy.refuse()
    proxy.cut()
    assert envs.step(GO)[3].tolist() == [False, True, False]
    with pytest.raises(ConnectError) as caught:
        envs.step(GO)
    assert caught.value.__notes__ == ["This was sub-environment 1."]
    with pytest.raises(ResetNeeded):
        envs.step(GO)
    proxy.heal()
    assert envs.reset()[0][:, 1].tolist() == [0, 0, 0]


@pytest.mark.parametrize("vector", [False, True])
def test_who_wants_the_error_gets_it(make: Make, proxy: FaultProxy, vector: bool) -> None:
    if vector:
        envs = make(on_session_lost="raise")
        envs.reset()
        proxy.cut()
        with pytest.raises(SessionLostError, match="was lost"):
            envs.step(GO)
        return
    env = GymnasiumEnv(GenericEnvClient(base_url=proxy.url, resume=False), on_session_lost="raise")
    env.reset()
    proxy.cut()
    with pytest.raises(SessionLostError, match="was lost"):
        env.step(0)
    env.close()


def test_a_new_session_plays_the_chosen_environment_and_not_the_servers() -> None:
    with serve(create_gymnasium_app("CartPole-v1")) as url, FaultProxy("127.0.0.1", url.port) as proxy:
        env = GymnasiumEnv(GenericEnvClient(base_url=proxy.url, resume=False), "FrozenLake-v1")
        first = env.reset(seed=3)
        proxy.cut()
        assert env.step(0)[4]["session_lost"]
        assert env.reset(seed=3) == first
        assert env.step(1)[0] in env.observation_space
        assert env.session.number == 2
        env.close()


def test_one_environment_ends_its_episode_once_and_waits_for_a_reset(proxy: FaultProxy, log: Log) -> None:
    env = GymnasiumEnv(GenericEnvClient(base_url=proxy.url, resume=False))
    seen, _ = env.reset()
    seen = env.step(0)[0]
    proxy.cut()
    again, reward, terminated, truncated, info = env.step(0)
    np.testing.assert_array_equal(again, seen)
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert (info["session_lost"], info["session_lost_reason"]) == (True, "connection")
    with pytest.raises(ResetNeeded):
        env.step(0)
    assert env.reset()[0].tolist() == [seen[0] + 1, 0]
    assert (env.session.number, env.session.losses) == (2, 1)
    assert len(log.of("step")) == 1
    env.close()


def test_a_reset_that_is_not_answered_is_an_error(proxy: FaultProxy) -> None:
    env = GymnasiumEnv(GenericEnvClient(base_url=proxy.url, reset_timeout_s=5))
    env.reset()
    proxy.hold("reply")
    with pytest.raises(CallTimeoutError):
        env.reset()
    proxy.release()
    with pytest.raises(ResetNeeded):
        env.step(0)
    assert env.reset()[0].tolist()[1] == 0
    env.close()
