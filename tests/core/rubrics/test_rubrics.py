"""Rubrics: scores, hooks, the tree, containers of synchronous and asynchronous parts, whole episodes."""

from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.rubrics import (
    ExponentialDiscountingTrajectoryRubric,
    Gate,
    Rubric,
    RubricDict,
    RubricList,
    Sequential,
    TrajectoryRubric,
    WeightedSum,
)


class Fixed(Rubric):
    def __init__(self, score: float = 1.0) -> None:
        self.score = score
        self.calls: list[tuple[Any, Any]] = []
        self.resets = 0

    def forward(self, action: Any, observation: Any) -> float:
        self.calls.append((action, observation))
        return self.score

    def reset(self) -> None:
        self.resets += 1


class Slow(Fixed):
    """The same, asynchronous."""

    async def forward(self, action: Any, observation: Any) -> float:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().forward(action, observation)


class Broken(Rubric):
    def forward(self, action: Any, observation: Any) -> float:
        raise ArithmeticError("broken")


def plain(call: Callable[[], Any]) -> Any:
    return call()


def under_a_loop(call: Callable[[], Any]) -> Any:
    async def run() -> Any:
        return call()

    return asyncio.run(run())


async def score(rubric: Rubric) -> Any:
    pending = rubric("a", "o")
    assert inspect.iscoroutine(pending)
    return await pending


# ----------------------------------------------------------- synchronous stays synchronous

SYNC: list[tuple[Callable[[], Rubric], float]] = [
    (lambda: Fixed(0.3), 0.3),
    (lambda: Sequential(), 1.0),
    (lambda: Sequential(Fixed(1.0), Fixed(0.4)), 0.4),
    (lambda: Sequential(Fixed(0.0), Fixed(0.4)), 0.0),
    (lambda: Sequential(Fixed(0.5), Sequential(Fixed(0.6))), 0.6),
    (lambda: Gate(Fixed(0.6), threshold=0.6), 0.6),
    (lambda: Gate(Fixed(0.6)), 0.0),
    (lambda: WeightedSum([Fixed(1.0), Sequential(Fixed(0.5))], [0.25, 0.75]), 0.625),
]


@pytest.mark.parametrize("run", [plain, under_a_loop])
@pytest.mark.parametrize(("make", "expected"), SYNC)
def test_a_synchronous_rubric_gives_a_number_whatever_runs(
    run: Callable[..., Any], make: Callable[[], Rubric], expected: float
) -> None:
    rubric = make()
    score = run(lambda: rubric("a", "o"))
    assert isinstance(score, float)
    assert not inspect.iscoroutine(score)
    assert score == expected
    assert type(rubric.last_score) is float
    assert rubric.last_score == expected


async def test_what_awaits_a_sequential_of_synchronous_parts_goes_on_working() -> None:
    """Elsewhere it is a coroutine where a loop runs, so there are programs that await it."""
    rubric = Sequential(Fixed(1.0), Fixed(0.4))
    awaited = await rubric("a", "o")
    assert type(awaited) is float
    assert awaited == 0.4
    assert type(rubric("a", "o") * 1.0) is float


# ------------------------------------------------------------------- asynchronous parts

ASYNC: list[tuple[Callable[[], Rubric], float]] = [
    (lambda: Slow(0.3), 0.3),
    (lambda: Sequential(Slow(1.0), Fixed(0.4)), 0.4),
    (lambda: Sequential(Fixed(1.0), Fixed(0.9), Slow(0.4), Fixed(0.7), Slow(0.2)), 0.2),
    (lambda: Sequential(Fixed(1.0), Slow(0.0), Broken()), 0.0),
    (lambda: Sequential(Slow(1.0), Fixed(0.0), Broken()), 0.0),
    (lambda: Gate(Slow(0.6), threshold=0.5), 0.6),
    (lambda: Gate(Slow(0.4), threshold=0.5), 0.0),
    (lambda: WeightedSum([Slow(1.0), Fixed(0.5), Slow(0.0)], [0.25, 0.5, 0.25]), 0.5),
    (lambda: WeightedSum([Sequential(Fixed(1.0)), Gate(Slow(1.0))], [0.5, 0.5]), 1.0),
]


@pytest.mark.parametrize(("make", "expected"), ASYNC)
async def test_an_asynchronous_part_makes_the_whole_so(make: Callable[[], Rubric], expected: float) -> None:
    rubric = make()
    assert await score(rubric) == expected
    assert rubric.last_score == expected


async def test_each_part_is_asked_once() -> None:
    parts = [Fixed(1.0), Fixed(0.9), Slow(0.8), Fixed(0.7)]
    assert await score(Sequential(*parts)) == 0.7
    assert [len(part.calls) for part in parts] == [1, 1, 1, 1]
    first, second = Slow(1.0), Slow(1.0)
    assert await score(WeightedSum([first, second], [0.5, 0.5])) == 1.0
    assert (len(first.calls), len(second.calls)) == (1, 1)


async def test_parts_of_a_sum_run_at_the_same_time() -> None:
    both = asyncio.Barrier(2)

    class Meet(Rubric):
        async def forward(self, action: Any, observation: Any) -> float:
            await both.wait()  # one after another would wait for ever
            return 1.0

    assert await asyncio.wait_for(score(WeightedSum([Meet(), Meet()], [0.5, 0.5])), 30) == 1.0


async def test_a_part_that_fails_leaves_no_other_running() -> None:
    ended = asyncio.Event()

    class Forever(Rubric):
        async def forward(self, action: Any, observation: Any) -> float:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            return 1.0

    class Fails(Rubric):
        async def forward(self, action: Any, observation: Any) -> float:
            await asyncio.sleep(0)
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        await score(WeightedSum([Forever(), Fails()], [0.5, 0.5]))
    assert ended.is_set()


def test_a_part_that_fails_leaves_no_coroutine_unawaited() -> None:
    with pytest.raises(ArithmeticError):
        WeightedSum([Slow(), Broken()], [0.5, 0.5])("a", "o")
    gc.collect()  # a forgotten coroutine would warn, which is an error here


# -------------------------------------------------------------------------------- hooks


def test_hooks_are_called_around_the_score_in_order() -> None:
    rubric, told = Fixed(0.5), []
    rubric.register_forward_pre_hook(lambda *args: told.append((*args, len(rubric.calls))))
    rubric.register_forward_hook(lambda *args: told.append(args))
    assert rubric("a", "o") == 0.5
    assert told == [(rubric, "a", "o", 0), (rubric, "a", "o", 0.5)]


@pytest.mark.parametrize(
    "make", [lambda: Slow(0.5), lambda: Sequential(Slow(1.0), Fixed(0.5)), lambda: Gate(Slow(0.5), 0.1)]
)
async def test_asynchronous_hooks_are_awaited(make: Callable[[], Rubric]) -> None:
    rubric, told = make(), []

    async def before(_: Rubric, *args: Any) -> None:
        await asyncio.sleep(0)
        told.append(args)

    async def after(_: Rubric, *args: Any) -> None:
        await asyncio.sleep(0)
        told.append(args)

    rubric.register_forward_pre_hook(before)
    rubric.register_forward_hook(after)
    rubric.register_forward_hook(lambda *_: told.append("sync"))
    assert await score(rubric) == 0.5
    assert told == [("a", "o"), ("a", "o", 0.5), "sync"]


async def test_an_asynchronous_hook_makes_a_rubric_asynchronous() -> None:
    rubric, told = Fixed(0.5), []

    class Hook:
        async def __call__(self, *args: Any) -> None:
            told.append(args[-1])

    rubric.register_forward_hook(Hook())
    assert await score(rubric) == 0.5
    assert told == [0.5]


def test_hooks_of_containers_come_before_their_parts() -> None:
    part = Fixed(0.5)
    for rubric in (Sequential(part), Gate(part, 0.1), WeightedSum([part], [1.0])):
        seen: list[int] = []
        part.calls.clear()
        rubric.register_forward_pre_hook(lambda *_, seen=seen: seen.append(len(part.calls)))
        assert rubric("a", "o") == 0.5
        assert seen == [0]


# ----------------------------------------------------------------------------- the tree


class Code(Rubric):
    """Does not call ``super().__init__()``."""

    def __init__(self) -> None:
        self.syntax = Fixed(0.2)
        self.style = Sequential(Fixed(0.3), Fixed(0.4))

    def forward(self, action: Any, observation: Any) -> Any:
        return self.syntax(action, observation)


def test_parts_are_found_by_their_paths() -> None:
    rubric = Code()
    assert list(rubric.children()) == [rubric.syntax, rubric.style]
    assert [name for name, _ in rubric.named_children()] == ["syntax", "style"]
    names = ["syntax", "style", "style.rubric_0", "style.rubric_1"]
    assert [name for name, _ in rubric.named_rubrics()] == names
    assert [name for name, _ in rubric.named_rubrics("code")] == [f"code.{name}" for name in names]
    assert list(rubric.rubrics()) == [rubric.get_rubric(name) for name in names]
    assert rubric.get_rubric("style.rubric_1") is rubric.style[1]
    for path in ("nope", "style.rubric_9", ""):
        with pytest.raises(KeyError, match="not found"):
            rubric.get_rubric(path)


def test_a_part_that_was_replaced_or_deleted_is_no_part_any_more() -> None:
    rubric = Code()
    rubric.syntax = None  # type: ignore[assignment]
    assert [name for name, _ in rubric.named_children()] == ["style"]
    del rubric.style
    assert list(rubric.children()) == []


def test_a_reset_reaches_every_part() -> None:
    rubric = Code()
    assert rubric.reset() is None
    assert [part.resets for part in (rubric.syntax, rubric.style[0], rubric.style[1])] == [1, 1, 1]  # type: ignore[attr-defined]


async def test_a_reset_of_asynchronous_parts_is_awaited() -> None:
    class Later(Fixed):
        async def reset(self) -> None:  # type: ignore[override]
            self.resets += 1

    part, plain_part = Later(), Fixed()
    await Sequential(part, Gate(plain_part)).reset()
    assert (part.resets, plain_part.resets) == (1, 1)


def test_copies_have_parts_of_their_own() -> None:
    rubric = Code()
    for twin in (copy.deepcopy(rubric), pickle.loads(pickle.dumps(rubric))):
        assert twin.syntax is not rubric.syntax
        assert list(twin.children()) == [twin.syntax, twin.style]
        assert twin("a", "o") == 0.2


def test_settings_of_a_rubric_without_any() -> None:
    rubric = Fixed()
    assert rubric.state_dict() == {}
    rubric.load_state_dict({"x": 1})


# --------------------------------------------------------------------------- containers


@pytest.mark.parametrize("weights", [[0.5], [0.5, 0.6], [float("nan"), 1.0], []])
def test_weights_that_do_not_fit_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match=r"number of rubrics|sum to 1\.0"):
        WeightedSum([Fixed(), Fixed()], weights)


def test_weights_are_a_copy() -> None:
    rubric = WeightedSum([Fixed(0.0), Fixed(1.0)], [0.3, 0.7])
    rubric.weights.append(1.0)
    assert rubric.weights == [0.3, 0.7]
    assert rubric("a", "o") == pytest.approx(0.7)


def test_a_sequential_is_a_sequence_of_its_parts() -> None:
    first, second = Fixed(), Fixed()
    rubric = Sequential(first, second)
    assert (len(rubric), rubric[0], rubric[1]) == (2, first, second)


def test_a_list_of_rubrics() -> None:
    first, second, third = Fixed(0.1), Fixed(0.2), Fixed(0.3)
    rubrics = RubricList([first])
    rubrics.append(second)
    rubrics.extend([third])
    assert (len(rubrics), list(rubrics), rubrics[-1]) == (3, [first, second, third], third)
    assert list(rubrics.children()) == [first, second, third]
    assert list(RubricList()) == []
    with pytest.raises(NotImplementedError):
        rubrics("a", "o")


def test_a_dict_of_rubrics() -> None:
    pong, items = Fixed(0.1), Fixed(0.2)
    rubrics = RubricDict({"pong": pong})
    rubrics.update({"items": items})
    assert (len(rubrics), list(rubrics), list(rubrics.keys())) == (2, ["pong", "items"], ["pong", "items"])
    assert (list(rubrics.values()), dict(rubrics.items())) == ([pong, items], {"pong": pong, "items": items})
    assert "pong" in rubrics
    assert "nope" not in rubrics
    assert rubrics["items"] is rubrics.get_rubric("items") is items
    assert rubrics.pong is pong  # type: ignore[attr-defined]
    with pytest.raises(KeyError):
        rubrics["nope"]
    with pytest.raises(NotImplementedError):
        rubrics("a", "o")


async def test_a_rubric_that_picks_an_asynchronous_part_is_asynchronous_then() -> None:
    class Games(Rubric):
        def __init__(self) -> None:
            self.games = RubricDict({"pong": Fixed(0.1), "go": Slow(0.9)})

        def forward(self, action: Any, observation: Any) -> Any:
            return self.games[observation](action, observation)

    rubric = Games()
    assert rubric("a", "pong") == 0.1
    assert await rubric("a", "go") == 0.9
    assert rubric.last_score == 0.9


# ------------------------------------------------------------------------ whole episodes


class Seen(Observation):
    won: bool = False


class Won(ExponentialDiscountingTrajectoryRubric):
    def score_trajectory(self, trajectory: list[tuple[Any, Any]]) -> float:
        return 1.0 if trajectory[-1][1].won else 0.5


def test_an_episode_is_scored_when_it_is_done() -> None:
    rubric = Won(gamma=0.5, intermediate_reward=0.1)
    steps = [Seen(), Seen(), Seen(done=True, won=True)]
    assert [rubric(number, seen) for number, seen in enumerate(steps)] == [0.1, 0.1, 1.0]
    assert rubric.compute_step_rewards() == [0.25, 0.5, 1.0]
    assert rubric.trajectory == list(enumerate(steps))
    rubric.trajectory.clear()
    assert len(rubric.trajectory) == 3
    rubric.reset()
    assert rubric.trajectory == []
    assert rubric.compute_step_rewards() == []


@pytest.mark.parametrize(("gamma", "rewards"), [(1.0, [1.0, 1.0]), (0.0, [0.0, 1.0])])
def test_the_ends_of_gamma(gamma: float, rewards: list[float]) -> None:
    rubric = Won(gamma)
    rubric("a", Seen())
    rubric("a", Seen(done=True, won=True))
    assert rubric.compute_step_rewards() == rewards


@pytest.mark.parametrize("gamma", [-0.1, 1.1, float("nan")])
def test_gamma_out_of_range_is_refused(gamma: float) -> None:
    with pytest.raises(ValueError, match="gamma"):
        Won(gamma)


def test_settings_of_an_episode_rubric_survive_without_its_steps() -> None:
    rubric, twin = Won(0.5, 0.2), Won()
    rubric("a", Seen())
    twin.load_state_dict(rubric.state_dict())
    assert (twin.gamma, twin.intermediate_reward, twin.trajectory) == (0.5, 0.2, [])
    twin.load_state_dict({})
    assert (twin.gamma, twin.intermediate_reward) == (0.5, 0.2)


def test_the_abstract_ones_cannot_be_made() -> None:
    for cls in (Rubric, TrajectoryRubric, ExponentialDiscountingTrajectoryRubric):
        with pytest.raises(TypeError, match="abstract"):
            cls()


# ------------------------------------------------------------------- in an environment


class Env(Environment[Action, Seen, State]):
    """Uses the helpers; does not call ``super().__init__()``."""

    def __init__(self, rubric: Rubric | None) -> None:
        self.rubric = rubric

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Seen:
        self._reset_rubric()
        return Seen()

    def step(self, action: Action, timeout_s: float | None = None, **_: Any) -> Seen:
        seen = Seen(done=True, won=True)
        seen.reward = self._apply_rubric(action, seen)
        return seen

    @property
    def state(self) -> State:
        return State()


@pytest.mark.parametrize("run", [plain, under_a_loop])
def test_an_environment_scores_with_its_rubric(run: Callable[..., Any]) -> None:
    trajectory = Won()
    env = Env(Sequential(Gate(Fixed(1.0)), trajectory))
    env.reset()
    seen = run(lambda: env.step(Action()))
    assert type(seen.reward) is float
    assert seen.reward == 1.0
    assert len(trajectory.trajectory) == 1
    env.reset()
    assert trajectory.trajectory == []  # a part of a part


async def test_an_environment_with_an_asynchronous_rubric() -> None:
    env = Env(Sequential(Slow(0.4)))
    assert await env._apply_rubric_async(Action(), Seen()) == 0.4
    with pytest.raises(TypeError, match="_apply_rubric_async"):
        env.step(Action())
    assert await Env(Sequential(Fixed(0.3)))._apply_rubric_async(Action(), Seen()) == 0.3
    assert await Env(None)._apply_rubric_async(Action(), Seen()) == 0.0
