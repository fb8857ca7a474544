"""`Environment`: what it gives to classes that inherit from it, with and without ``super().__init__()``."""

from __future__ import annotations

from typing import Any

import pytest

from openenv.core.env_server import types
from openenv.core.env_server.interfaces import Action, Environment, Observation, State, TaskProvider, Transform


class Bare(Environment[Action, Observation, State]):
    """Never calls ``super().__init__()``."""

    def __init__(self) -> None:
        self.steps = 0

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        return Observation(metadata={"seed": seed, "episode_id": episode_id, **kwargs})

    def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        return Observation(metadata={"timeout_s": timeout_s, **kwargs})

    @property
    def state(self) -> State:
        return State()


class Full(Bare):
    """Does."""

    def __init__(self, rubric: Any = None, transform: Any = None) -> None:
        Environment.__init__(self, transform=transform, rubric=rubric)


class Bonus(Transform[Observation]):
    def __call__(self, observation: Observation) -> Observation:
        observation.reward = 5
        return observation


class Rubric:
    def __init__(self) -> None:
        self.resets = 0

    def __call__(self, action: Action, observation: Observation) -> float:
        return 0.75

    def reset(self) -> None:
        self.resets += 1


class AsyncRubric:
    def __init__(self) -> None:
        self.resets = 0

    async def __call__(self, action: Action, observation: Observation) -> float:
        return 0.25

    async def reset(self) -> None:
        self.resets += 1


def test_the_base_state_does_not_depend_on_init() -> None:
    env = Bare()
    observation = Observation()
    assert env._apply_transform(observation) is observation
    assert env._apply_rubric(Action(), observation) == 0.0
    env._reset_rubric()
    env.close()
    assert env.get_metadata().name == "Bare"
    assert (env.SUPPORTS_CONCURRENT_SESSIONS, env.REQUIRES_SINGLE_THREAD_EXECUTOR) == (False, False)


def test_abstract_members_must_be_there() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Environment()  # type: ignore[abstract]


def test_transform_and_rubric() -> None:
    rubric = Rubric()
    env = Full(rubric=rubric, transform=Bonus())
    assert env._apply_transform(Observation()).reward == 5
    assert env._apply_rubric(Action(), Observation()) == 0.75
    env._reset_rubric()
    assert rubric.resets == 1


async def test_async_helpers_take_both_kinds_of_rubric() -> None:
    for rubric, score in ((None, 0.0), (Rubric(), 0.75), (AsyncRubric(), 0.25)):
        env = Full(rubric=rubric)
        assert await env._apply_rubric_async(Action(), Observation()) == score
        await env._reset_rubric_async()
        assert rubric is None or rubric.resets == 1


async def test_a_rubric_with_both_resets_is_reset_by_the_one_for_the_occasion() -> None:
    class Both(Rubric):
        def reset(self) -> None:
            told.append("sync")

        async def reset_async(self) -> None:
            told.append("async")

    told: list[str] = []
    env = Full(rubric=Both())
    await env._reset_rubric_async()
    assert told == ["async"]
    env._reset_rubric()
    assert told == ["async", "sync"]


def test_an_async_rubric_in_sync_code_is_named() -> None:
    env = Full(rubric=AsyncRubric())
    with pytest.raises(TypeError, match="_apply_rubric_async"):
        env._apply_rubric(Action(), Observation())
    with pytest.raises(TypeError, match="_reset_rubric_async"):
        env._reset_rubric()


async def test_async_methods_fall_back_to_the_sync_ones() -> None:
    env = Bare()
    assert (await env.reset_async(seed=1, episode_id="e", task="t")).metadata == {
        "seed": 1,
        "episode_id": "e",
        "task": "t",
    }
    assert (await env.step_async(Action(), timeout_s=2.0, more=3)).metadata == {"timeout_s": 2.0, "more": 3}


def test_the_models_are_exported_here_too() -> None:
    assert Action is types.Action
    assert Observation is types.Observation
    assert State is types.State


def test_task_providers_are_structural() -> None:
    class Tasks(Bare):
        def list_splits(self) -> Any: ...
        def list_tasks(self, split: str) -> Any: ...
        def num_tasks(self, split: str) -> Any: ...
        def get_task(self, split: str, index: int) -> Any: ...
        def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> Any: ...

    assert isinstance(Tasks(), TaskProvider)
    assert not isinstance(Bare(), TaskProvider)


def test_the_web_hooks_default_to_nothing() -> None:
    assert Bare().render_web({}) is None
    assert list(Bare().web_actions({})) == []
