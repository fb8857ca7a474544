"""The environment without a network: what it hands on, what it refuses, what it closes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from gymnasium_env import GymnasiumAction, GymnasiumObservation
from gymnasium_env.models import models_for
from gymnasium_env.server.gymnasium_environment import GymnasiumEnvironment
from openenv.core.exceptions import InvalidActionError
from openenv.gymnasium import space_from_schema


class Arm(gymnasium.Env[Any, Any]):
    """Notes what it was given, and ends when the force is 3."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.observation_space = spaces.Box(-1, 1, (2,), np.float32)
        self.action_space = spaces.Dict({"force": spaces.Box(-2, 2, (1,), np.float32), "hand": spaces.Discrete(2)})
        self.render_mode = render_mode
        self.given: list[Any] = []
        self.closed = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.random(2, np.float32), {"options": options}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.given.append(action)
        force = float(action["force"][0])
        return np.array([0, force / 3], np.float32), np.float64(force), force == 3, force == -3, {"n": np.int64(2)}

    def render(self) -> Any:
        return np.full((2, 3, 3), len(self.given), np.uint8)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def arms() -> list[Arm]:
    return []


@pytest.fixture
def env(arms: list[Arm]) -> GymnasiumEnvironment:
    def make() -> Arm:
        arms.append(Arm("rgb_array"))
        return arms[-1]

    return GymnasiumEnvironment(make, others=True)


def act(force: Any, hand: Any = 0, **kwargs: Any) -> GymnasiumAction:
    return GymnasiumAction(action={"force": force, "hand": hand}, **kwargs)


def test_it_hands_on_what_the_environment_returned(env: GymnasiumEnvironment, arms: list[Arm]) -> None:
    wanted = Arm()
    seen = env.reset(seed=4, episode_id="E", options={"level": 2})
    np.testing.assert_array_equal(seen.obs, wanted.reset(seed=4)[0])
    assert (seen.reward, seen.done, seen.info) == (None, False, {"options": {"level": 2}})
    for force, ends in ((1, (False, False)), (3, (True, False)), (-3, (False, True))):
        seen = env.step(act([force], 1))
        assert (seen.reward, seen.terminated, seen.truncated, seen.done) == (force, *ends, any(ends))
        assert seen.info == {"n": 2}
    given = arms[0].given[0]
    assert (given["force"].dtype, given["force"].tolist(), given["hand"]) == (np.float32, [1], 1)
    assert (env.state.episode_id, env.state.step_count, env.state.seed) == ("E", 3, 4)


@pytest.mark.parametrize(
    ("action", "why"),
    [
        ({"force": [1]}, "keys"),
        ({"force": [1, 2], "hand": 0}, "shape"),
        ({"force": ["x"], "hand": 0}, "numbers"),
        ({"force": [1], "hand": 2}, "no action of Dict"),
        ({"force": np.array([1], np.complex64), "hand": 0}, "no numbers"),
        ([1, 2], "keys"),
    ],
)
def test_an_action_that_does_not_fit_changes_nothing(
    env: GymnasiumEnvironment, arms: list[Arm], action: Any, why: str
) -> None:
    env.reset()
    with pytest.raises(InvalidActionError, match=why):
        env.step(GymnasiumAction(action=action))
    assert arms[0].given == []
    assert env.state.step_count == 0


def test_the_bounds_of_a_box_are_the_environments_affair(env: GymnasiumEnvironment, arms: list[Arm]) -> None:
    env.reset()
    env.step(act([7.5]))
    assert arms[0].given[0]["force"].tolist() == [7.5]


def test_a_look_applies_nothing_and_a_drawing_is_of_the_moment_after(
    env: GymnasiumEnvironment, arms: list[Arm]
) -> None:
    assert env.reset(render=True).frame.max() == 0
    stepped = env.step(act([1], render=True))
    assert (stepped.frame.max(), stepped.reward) == (1, 1.0)
    looked = env.step(GymnasiumAction(render=True))
    np.testing.assert_array_equal(looked.obs, stepped.obs)
    assert (looked.frame.max(), looked.reward) == (1, None)
    assert env.step(GymnasiumAction()).frame is None
    assert (len(arms[0].given), env.state.step_count) == (1, 1)


def test_what_is_not_there_is_refused(env: GymnasiumEnvironment) -> None:
    with pytest.raises(InvalidActionError, match=r"call reset\(\) first"):
        env.step(act([1]))
    blind = GymnasiumEnvironment(Arm)
    with pytest.raises(InvalidActionError, match="render_mode=None"):
        blind.reset(render=True)
    blind.reset()
    with pytest.raises(InvalidActionError, match="render_mode=None"):
        blind.step(act([1], render=True))
    assert blind.state.step_count == 0


def test_another_environment_is_chosen_by_each_reset(env: GymnasiumEnvironment, arms: list[Arm]) -> None:
    choice = {"env_id": "FrozenLake-v1", "env_kwargs": {"render_mode": "ansi"}}
    assert env.reset(seed=1, **choice).obs == 0
    assert (env.state.env_id, env.state.render_mode) == ("FrozenLake-v1", "ansi")
    assert arms[0].closed == 1
    seen = env.step(GymnasiumAction(action=2, render=True))
    assert "FF" in (seen.text or "")
    first = env._env
    env.reset(**choice)
    assert env._env is first  # the same choice is the same environment, with its random numbers
    assert env.reset().obs.shape == (2,)  # no choice: the server's own
    assert env.state.env_id is None
    assert len(arms) == 2
    env.close()
    assert [arm.closed for arm in arms] == [1, 1]


@pytest.mark.parametrize(
    ("choice", "why"),
    [
        ({"env_id": "NoSuch-v0"}, "cannot be made"),
        ({"env_id": "os:CartPole-v1"}, "names a module"),
        ({"env_id": "CartPole-v1", "env_kwargs": {"nonsense": 1}}, "nonsense"),
        ({"env_kwargs": {"render_mode": "ansi"}}, "say its env_id too"),
    ],
)
def test_a_choice_that_cannot_be_leaves_the_episode_as_it_was(
    env: GymnasiumEnvironment, arms: list[Arm], choice: dict[str, Any], why: str
) -> None:
    env.reset()
    env.step(act([1]))
    with pytest.raises(InvalidActionError, match=why):
        env.reset(**choice)
    assert arms[0].closed == 0
    env.step(act([1]))
    assert env.state.step_count == 2


@pytest.mark.filterwarnings("ignore")  # Gymnasium's own checker has its doubts as well
def test_a_space_without_a_schema_is_refused_and_its_environment_closed(
    env: GymnasiumEnvironment, arms: list[Arm], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd(spaces.Space[int]):
        pass

    class Strange(Arm):
        def __init__(self, render_mode: str | None = None) -> None:
            super().__init__()
            self.action_space = Odd()
            arms.append(self)

    monkeypatch.setitem(gymnasium.registry, "Strange-v0", gymnasium.envs.registration.EnvSpec("Strange-v0", Strange))
    env.reset()
    with pytest.raises(InvalidActionError, match="Odd"):
        env.reset(env_id="Strange-v0")
    assert [arm.closed for arm in arms] == [0, 1]
    with pytest.raises(TypeError, match="Odd"):
        GymnasiumEnvironment(Strange)


def test_a_server_of_one_plays_no_other() -> None:
    env = GymnasiumEnvironment(Arm)
    with pytest.raises(InvalidActionError, match="and no other"):
        env.reset(env_id="CartPole-v1")


def test_models_show_the_spaces(env: GymnasiumEnvironment) -> None:
    action_cls, observation_cls = models_for(Arm().observation_space, Arm().action_space)
    shown = action_cls.model_json_schema()["properties"]["action"]
    assert space_from_schema(shown) == Arm().action_space
    assert space_from_schema(observation_cls.model_json_schema()["properties"]["obs"]) == Arm().observation_space
    assert space_from_schema(env.state.action_space) == Arm().action_space
    assert isinstance(env.reset(), GymnasiumObservation)
    assert (env.state.render_fps, env.get_metadata().description) == (4.0, "The Gymnasium environment Arm.")
