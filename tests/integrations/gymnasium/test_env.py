"""`GymnasiumEnv`: Gymnasium's own checker, and the same trajectories as the local environment for equal seeds."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.wrappers import TimeLimit

from gymnasium_env import GymnasiumEnvClient
from openenv import ConnectError, EnvExecutionError, GenericEnvClient, InvalidActionError
from openenv.gymnasium import GymnasiumEnv
from sudoku_env import SudokuAction, SudokuEnv
from support.gym_envs import Log, Serving, plain
from support.live import LiveServer, serve

IDS = [
    *("CartPole-v1", "MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1"),
    *("FrozenLake-v1", "Taxi-v4", "Blackjack-v1", "CliffWalking-v1"),
    *("test/Picture-v0", "test/Mixed-v0"),
]
FORMS = [None, "seq,cancel,resume,queue", "none"]  # binary frames, our text, upstream's dialect


@pytest.mark.parametrize("name", IDS)
def test_gymnasiums_own_checker_finds_nothing(served: Serving, name: str) -> None:
    env = GymnasiumEnv(served(name))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*(observation|action) space (min|max)imum value is -?infinity.*")
        warnings.filterwarnings("ignore", ".*action space.*symmetric.*")
        check_env(env)
    assert isinstance(env.spec, gymnasium.envs.registration.EnvSpec)
    assert env.spec.id == name


@pytest.mark.parametrize("features", FORMS)
@pytest.mark.parametrize("name", IDS)
def test_a_trajectory_is_that_of_the_local_environment(
    served: Serving, name: str, features: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if features is not None:
        monkeypatch.setenv("OPENENV_FEATURES", features)
    local, remote = gymnasium.make(name), GymnasiumEnv(served(name))
    assert remote.observation_space == local.observation_space
    assert remote.action_space == local.action_space
    local.action_space.seed(3)
    exactly = partial(data_equivalence, exact=True)
    seen, info = remote.reset(seed=11)
    expected, expected_info = local.reset(seed=11)
    space = local.observation_space
    assert exactly(seen, plain(space, expected))
    assert _same_info(info, expected_info, features)
    ends = 0
    for _ in range(120):
        action = local.action_space.sample()
        *got, info = remote.step(action)
        *wanted, expected_info = local.step(action)
        assert exactly(got[0], plain(space, wanted[0]))
        assert got[1:] == wanted[1:]
        assert _same_info(info, expected_info, features)
        if wanted[2] or wanted[3]:
            ends += 1
            assert exactly(remote.reset()[0], plain(space, local.reset()[0]))  # it goes on with its own random numbers
    assert ends or name in ("MountainCarContinuous-v0", "Pendulum-v1", "Acrobot-v1", "CliffWalking-v1", "Taxi-v4")
    remote.close()


def _same_info(got: dict[str, Any], wanted: dict[str, Any], features: str | None) -> bool:
    """An info has no space to be read by: as text, its arrays are lists."""
    if features is not None:
        got, wanted = _listed(got), _listed(wanted)
    return data_equivalence(got, wanted, exact=True)


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def test_a_seed_is_an_episode_and_options_arrive(served: Serving) -> None:
    env = GymnasiumEnv(served("test/Picture-v0"), reset_options={"level": 1, "size": 2})
    first, info = env.reset(seed=5, options={"size": 3})
    assert info["options"] == {"level": 1, "size": 3}
    assert first.flags.writeable
    assert info["mean"].flags.writeable
    assert not data_equivalence(first, env.reset()[0])
    assert data_equivalence(first, env.reset(seed=5)[0], exact=True)
    env.close()


def test_what_the_environment_draws_is_a_picture_of_its_own_moment(served: Serving) -> None:
    env = GymnasiumEnv(served("test/Picture-v0", render_mode="rgb_array"), render_mode="rgb_array")
    assert env.metadata == {"render_modes": ["rgb_array"], "render_fps": 12}
    with pytest.raises(ResetNeeded):
        env.render()
    seen, _ = env.reset(seed=1)
    np.testing.assert_array_equal(env.render(), seen[:, :, :3])
    seen = env.step(1)[0]
    for _ in range(2):  # looking changes nothing
        frame = env.render()
        np.testing.assert_array_equal(frame, seen[:, :, :3])
    assert (frame.dtype, frame.shape) == (np.uint8, (84, 84, 3))
    check_env(env, skip_close_check=True)
    env.close()


def test_letters_are_a_drawing_too(served: Serving) -> None:
    env = GymnasiumEnv(served("FrozenLake-v1", render_mode="ansi"))
    local = gymnasium.make("FrozenLake-v1", render_mode="ansi")
    env.reset(seed=1)
    local.reset(seed=1)
    env.step(2)
    local.step(2)
    assert env.render() == local.render()
    env.close()


def test_an_environment_that_draws_nothing_says_so(served: Serving) -> None:
    url = served("CartPole-v1")
    env = GymnasiumEnv(url)
    env.reset()
    assert env.render_mode is None
    with pytest.raises(NotImplementedError, match="no render mode"):
        env.render()
    env.close()
    with pytest.raises(ValueError, match="render_mode=None, not 'rgb_array'"):
        GymnasiumEnv(url, render_mode="rgb_array")


def test_another_environment_of_the_server_may_be_chosen(served: Serving) -> None:
    url = served("CartPole-v1")
    env = GymnasiumEnv(url, "FrozenLake-v1", env_kwargs={"is_slippery": False}, render_mode="ansi")
    local = gymnasium.make("FrozenLake-v1", is_slippery=False, render_mode="ansi")
    assert env.observation_space == local.observation_space
    assert (env.spec and env.spec.id, env.render_mode) == ("FrozenLake-v1", "ansi")
    check_env(env, skip_close_check=True)
    local.action_space.seed(2)
    assert data_equivalence(env.reset(seed=2), local.reset(seed=2), exact=True)
    for _ in range(30):
        action = local.action_space.sample()
        got, wanted = env.step(action), local.step(action)
        assert data_equivalence(got, (int(wanted[0]), *wanted[1:]), exact=True)
        assert env.render() == local.render()
        if got[2]:
            assert data_equivalence(env.reset(), local.reset(), exact=True)
    env.close()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"env_id": "NoSuchThing-v0"}, "NoSuchThing"),
        ({"env_id": "antigravity:CartPole-v1"}, "names a module"),
        ({"env_id": "FrozenLake-v1", "env_kwargs": {"depth": 3}}, "depth"),
    ],
)
def test_what_the_server_cannot_make(served: Serving, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidActionError, match=text):
        GymnasiumEnv(served("CartPole-v1"), **arguments)


def test_a_server_of_one_environment_plays_no_other(logged: LiveServer) -> None:
    with pytest.raises(InvalidActionError, match="no other"):
        GymnasiumEnv(logged, "CartPole-v1")


def test_any_client_class_will_do(served: Serving) -> None:
    url = served("CartPole-v1")
    client = GymnasiumEnvClient(base_url=url)
    seen = []
    for source in (url, client, GenericEnvClient(base_url=url).sync(), lambda: GymnasiumEnvClient(base_url=url)):
        env = GymnasiumEnv(source)
        assert isinstance(env.action_space, spaces.Discrete)
        env.reset(seed=4)
        seen.append(env.step(1))
        env.close()
    assert all(data_equivalence(one, seen[0], exact=True) for one in seen)
    with pytest.raises(TypeError, match="base URL"):
        GymnasiumEnv(3)  # type: ignore[arg-type]


def test_the_spaces_are_asked_for_without_a_warning(served: Serving, caplog: pytest.LogCaptureFixture) -> None:
    env = GymnasiumEnv(served("CartPole-v1"))
    env.reset()
    env.close()
    assert not caplog.records


def test_gymnasium_make_makes_another_one_of_its_spec(served: Serving) -> None:
    env = GymnasiumEnv(served("CartPole-v1"))
    assert env.spec is not None
    other = gymnasium.make(env.spec)
    assert isinstance(other.unwrapped, GymnasiumEnv)
    assert data_equivalence(other.reset(seed=1), env.reset(seed=1), exact=True)
    assert TimeLimit(other, 3).reset(seed=1)
    other.close()
    env.close()


def test_a_step_needs_an_episode_and_a_closed_environment_has_none(logged: LiveServer, log: Log) -> None:
    env = GymnasiumEnv(logged)
    with pytest.raises(ResetNeeded):
        env.step(0)
    env.reset()
    env.step(0)
    env.close()
    env.close()
    with pytest.raises(ResetNeeded):
        env.step(0)
    log.wait_for(lambda: bool(log.of("close")))
    assert [event for _, event, _ in log.events] == ["init", "reset", "step", "close"]


def test_a_wrong_action_costs_its_step_only(logged: LiveServer, log: Log) -> None:
    env = GymnasiumEnv(logged)
    env.reset()
    with pytest.raises(ValueError, match="Discrete"):
        env.step([1, 2])
    with pytest.raises(InvalidActionError, match="no action of Discrete"):
        env.step(9)
    with pytest.raises(EnvExecutionError, match="told to raise"):
        env.step(3)
    seen, reward, terminated, truncated, info = env.step(0)
    assert (seen.tolist()[1], reward, terminated, truncated, info) == (1, 1.0, False, False, {"count": 1})
    env.close()
    assert log.of("step") == [(0 + log.of("reset")[0][0], 3), (log.of("reset")[0][0], 0)]


def test_a_dropped_environment_ends_its_session(logged: LiveServer, log: Log) -> None:
    env = GymnasiumEnv(logged)
    env.reset()
    env.step(0)
    del env
    gc.collect()
    log.wait_for(lambda: bool(log.of("close")))


@pytest.mark.parametrize("many", [False, True])
def test_the_end_of_the_process_ends_its_sessions(logged: LiveServer, log: Log, many: bool) -> None:
    make = "VectorEnv(sys.argv[1], 3)" if many else "GymnasiumEnv(sys.argv[1])"
    code = f"import sys; from openenv.gymnasium import *; env = {make}; env.reset(); print('ready')"
    done = subprocess.run([sys.executable, "-c", code, logged], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("ready\n", "", 0)
    log.wait_for(lambda: len(log.of("close")) == (3 if many else 1))


def test_an_environment_of_another_kind_needs_spaces_and_two_functions() -> None:
    from sudoku_env.server.app import app

    board = spaces.Box(0, 4, (4, 4), np.int8)
    move = spaces.MultiDiscrete([4, 4, 4])
    with serve(app) as url:
        make = partial(SudokuEnv, base_url=url)
        with pytest.raises(ValueError, match=r"does not tell its spaces.*to_observation"):
            GymnasiumEnv(make)
        env = GymnasiumEnv(
            make,
            observation_space=board,
            action_space=move,
            to_action=lambda one: SudokuAction(row=int(one[0]) + 1, col=int(one[1]) + 1, value=int(one[2]) + 1),
            to_observation=lambda result: np.array(result.observation.board, np.int8),
            reset_options={"size": 4},
        )
        seen, _ = env.reset(seed=7)
        assert seen.tolist() == [[1, 3, 0, 4], [0, 0, 1, 0], [3, 2, 0, 0], [4, 1, 3, 2]]
        seen, reward, terminated, truncated, _ = env.step(np.array([0, 2, 1]))
        assert (seen[0, 2], terminated, truncated) == (2, False, False)
        assert reward == pytest.approx(1 / 6)
        assert env.spec is None
        with pytest.raises(NotImplementedError):
            env.render()
        env.close()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"to_action": lambda action: action}, "go together"),
        ({"to_action": lambda action: action, "to_observation": lambda result: result}, "need observation_space"),
        ({"on_session_lost": "mask"}, "truncate"),
        ({"env_kwargs": {"is_slippery": False}}, "give env_id too"),
        (
            {
                "env_id": "CartPole-v1",
                "observation_space": spaces.Discrete(2),
                "action_space": spaces.Discrete(2),
                "to_action": lambda action: action,
                "to_observation": lambda result: result,
            },
            "no to_action",
        ),
    ],
)
def test_arguments_that_do_not_go_together(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        GymnasiumEnv("http://localhost:1", **arguments)


def test_a_server_that_is_not_there_is_an_error_where_it_is_asked() -> None:
    with pytest.raises(ConnectError):
        GymnasiumEnv(GenericEnvClient(base_url="http://127.0.0.1:9", connect_timeout_s=0.2))
    space = spaces.Discrete(2)
    env = GymnasiumEnv(
        GenericEnvClient(base_url="http://127.0.0.1:9", connect_timeout_s=0.2),
        observation_space=space,
        action_space=space,
    )
    with pytest.raises(ConnectError):
        env.reset()
