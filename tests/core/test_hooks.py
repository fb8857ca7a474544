"""The default hooks: from type parameters to payloads and back, and how they live with overridden ones."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Generic, TypeVar

import pytest
from pydantic import BaseModel, ConfigDict

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from openenv.core.exceptions import ActionValidationError, ReplyValidationError
from openenv.core.hooks import action_payload, parse_model, parse_result, reconcile, type_arguments
from support.clients import CountServer, act
from support.envs import CountAction, CountObservation, CountState

A = TypeVar("A")
O = TypeVar("O")  # noqa: E741
S = TypeVar("S")
X = TypeVar("X")


class Plain(EnvClient[CountAction, CountObservation, CountState]):
    pass


class Below(Plain):
    pass


class Swapped(EnvClient[S, O, A], Generic[O, A, S]):
    pass


class Filled(Swapped[CountObservation, CountState, CountAction]):
    pass


class Partly(EnvClient[CountAction, X, CountState], Generic[X]):
    pass


class Whole(Partly[CountObservation]):
    pass


class Mixin:
    pass


class Mixed(Mixin, Whole):
    pass


class Untyped(EnvClient):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize("cls", [Plain, Below, Filled, Whole, Mixed])
def test_type_parameters_are_found_through_the_classes_between(cls: type) -> None:
    assert type_arguments(cls, EnvClient) == (CountAction, CountObservation, CountState)


def test_what_nobody_filled_stays_open() -> None:
    found = type_arguments(Partly, EnvClient)
    assert (found[0], found[2]) == (CountAction, CountState)
    assert isinstance(found[1], TypeVar)
    for cls in (Untyped, EnvClient):
        assert all(isinstance(one, TypeVar) for one in type_arguments(cls, EnvClient))


@pytest.mark.parametrize("cls", [Plain, Below, Filled, Whole, Mixed])
async def test_the_hooks_follow_them(server: CountServer, cls: Any) -> None:
    async with cls(base_url=server.url) as client:
        assert isinstance((await client.reset()).observation, CountObservation)
        assert isinstance((await client.step(act())).observation, CountObservation)
        assert isinstance(await client.state(), CountState)


async def test_without_type_parameters_there_are_dicts(server: CountServer) -> None:
    async with Untyped(base_url=server.url) as client:
        assert (await client.reset()).observation["count"] == 0
        assert (await client.step({"op": "inc"})).observation["count"] == 1
        assert (await client.state())["step_count"] == 1


async def test_overridden_hooks_of_upstreams_style_win(server: CountServer) -> None:
    class Upstream(EnvClient[CountAction, CountObservation, CountState]):
        def _step_payload(self, action: CountAction) -> dict[str, Any]:
            return {"op": "echo", "arg": action.op}

        def _parse_result(self, payload: dict[str, Any]) -> StepResult[CountObservation]:
            observation = CountObservation(
                **payload.get("observation", {}), reward=payload.get("reward"), done=payload.get("done", False)
            )
            return StepResult(observation=observation, reward=payload.get("reward"), done=payload.get("done", False))

        def _parse_state(self, payload: dict[str, Any]) -> CountState:
            return CountState(episode_id=payload.get("episode_id"), step_count=payload.get("step_count", 0) + 100)

    async with Upstream(base_url=server.url) as client:
        await client.reset()
        assert (await client.step(act("hello"))).observation.echo == "hello"
        assert (await client.state()).step_count == 101


# ------------------------------------------------------------------ actions


@dataclasses.dataclass
class Dataclass:
    row: int
    col: int = 2


class Loose:
    def __init__(self) -> None:
        self.row = 1


@pytest.mark.parametrize(
    ("action", "payload"),
    [
        ({"row": 1}, {"row": 1}),
        (Dataclass(1), {"row": 1, "col": 2}),
        (Loose(), {"row": 1}),
        (act("inc", 5), {"op": "inc", "arg": 5, "metadata": {}}),
    ],
)
def test_an_action_becomes_its_fields(action: Any, payload: dict[str, Any]) -> None:
    assert action_payload(action) == payload


@pytest.mark.parametrize("action", [None, 3, "up", [1], b"x", object(), Dataclass, (1, 2)])
def test_what_has_no_fields_is_refused(action: Any) -> None:
    with pytest.raises(ActionValidationError, match="must be a pydantic model, a dict or an object"):
        action_payload(action)


# ------------------------------------------------------------------ replies


class Strict(BaseModel):
    value: int


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)
    reward: Any = None
    done: bool = False


@pytest.mark.parametrize("data", [{}, {"value": "x"}, {"value": None}, [], "text", None])
def test_a_reply_that_does_not_fit_keeps_its_data(data: Any) -> None:
    with pytest.raises(ReplyValidationError, match="Strict") as caught:
        parse_model(Strict, data)
    assert caught.value.payload == (data if isinstance(data, dict) else {"data": data})
    assert caught.value.errors


async def test_a_session_goes_on_after_a_reply_that_does_not_fit(server: CountServer) -> None:
    class Wrong(EnvClient[CountAction, Strict, Strict]):
        pass

    async with Wrong(base_url=server.url) as client:
        for call in (client.reset, lambda: client.step(act()), client.state):
            with pytest.raises(ReplyValidationError) as caught:
                await call()
        assert caught.value.payload["step_count"] == 1
    assert len(server.env.log.of("init")) == 1


def test_reward_and_done_go_into_the_observation() -> None:
    result = parse_result(Open, {"observation": {"a": 1}, "reward": 2, "done": True, "metadata": {"m": 1}})
    assert result.observation.model_dump() == {"a": 1, "reward": 2, "done": True}
    assert (result.reward, result.done, result.metadata) == (2, True, {"m": 1})
    strict = parse_result(Strict, {"observation": {"value": 1}, "reward": 2, "done": True})
    assert strict.observation == Strict(value=1)
    assert parse_result(dict, {}) == StepResult({}, None, False, None)


REWARDS = [0, None, True, False, 1, 1.0, 0.0, -1.5, 10**30, math.nan, math.inf]


def alike(one: Any, other: Any) -> bool:
    return type(one) is type(other) and repr(one) == repr(other)


@pytest.mark.parametrize("inner", REWARDS)
@pytest.mark.parametrize("outer", REWARDS)
def test_reward_agrees_whichever_a_hook_filled(outer: Any, inner: Any) -> None:
    for observation in (Open(reward=inner), Frozen(reward=inner)):
        result = reconcile(StepResult(observation, reward=outer))
        expected = inner if outer is None else outer
        assert alike(result.reward, expected)
        assert alike(result.observation.reward, expected)


@pytest.mark.parametrize(("outer", "inner"), [(False, False), (False, True), (True, False), (True, True)])
def test_done_agrees_whichever_a_hook_filled(outer: bool, inner: bool) -> None:
    for observation in (Open(done=inner), Frozen(done=inner)):
        result = reconcile(StepResult(observation, done=outer))
        assert result.done is (outer or inner)
        assert result.observation.done is (outer or inner)


def test_an_observation_without_reward_is_left_alone() -> None:
    observation = {"reward": 1}
    assert reconcile(StepResult(observation, reward=2)).observation == {"reward": 1}
