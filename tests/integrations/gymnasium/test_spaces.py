"""Spaces as JSON Schema and back, and their elements on the wire, with and without binary frames."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence

from openenv.core.wire import frames
from openenv.gymnasium import space_from_schema, space_to_schema, value_from_wire, value_to_wire
from support.gym_envs import Mixed, plain

INF = np.inf
SPACES: list[gymnasium.Space[Any]] = [
    spaces.Box(-1, 1, (3,), np.float32),
    spaces.Box(-INF, INF, (2, 2), np.float64),
    spaces.Box(np.array([-1.5, -INF, 0], np.float32), np.array([0.1, 2.5, INF], np.float32)),
    spaces.Box(0, 255, (4, 5, 3), np.uint8),
    spaces.Box(np.array([-(2**31), 0]), np.array([7, 2**31 - 1]), dtype=np.int32),
    spaces.Box(-INF, 0, (), np.float16),
    spaces.Box(0, 1, (0, 3), np.float32),
    spaces.Box(0, 1, (2,), np.bool_),
    spaces.Discrete(4),
    spaces.Discrete(3, start=-1),
    spaces.Discrete(3, start=2**40, dtype=np.int64),
    spaces.Discrete(7, dtype=np.uint8),
    spaces.MultiBinary(4),
    spaces.MultiBinary((2, 3)),
    spaces.MultiDiscrete([2, 5, 9]),
    spaces.MultiDiscrete([[2, 3], [4, 5]], dtype=np.int32, start=[[0, 1], [-2, 3]]),
    spaces.Text(12, min_length=2, charset='ab "ü\n'),
    spaces.Tuple((spaces.Discrete(2), spaces.Tuple(()))),
    spaces.Dict({"z": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Box(0, 1, (1,))})}),
    spaces.Sequence(spaces.Box(0, 1, (2,))),
    spaces.Sequence(spaces.Discrete(5)),
    spaces.Sequence(spaces.Box(0, 1, (2,)), stack=True),
    spaces.Sequence(spaces.Dict({"a": spaces.Box(0, 1, (2,)), "b": spaces.Discrete(3)}), stack=True),
    spaces.Sequence(spaces.Tuple((spaces.MultiBinary(2), spaces.Box(0, 1, ())))),
    spaces.Graph(spaces.Box(-1, 1, (3,)), spaces.Discrete(5)),
    spaces.Graph(spaces.Discrete(4), None),
    spaces.OneOf((spaces.Discrete(3), spaces.Box(0, 1, (2,)), spaces.Text(3))),
    Mixed().observation_space,
]


@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_a_space_comes_back_through_json(space: gymnasium.Space[Any]) -> None:
    text = json.dumps(space_to_schema(space), allow_nan=False)
    back = space_from_schema(json.loads(text))
    assert back == space
    assert (back.dtype, back.shape) == (space.dtype, space.shape)
    if isinstance(space, spaces.Dict):
        assert list(back) == list(space)  # type: ignore[call-overload]
    assert json.dumps(space_to_schema(back)) == text


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_an_element_comes_back_in_either_kind_of_frame(space: gymnasium.Space[Any], binary: bool) -> None:
    space.seed(5)
    for _ in range(20):
        value = space.sample()
        frame = frames.encode({"value": value_to_wire(space, value)}, binary=binary)
        back = value_from_wire(space, frames.decode(frame, binary=binary)["value"])
        assert back in space
        assert data_equivalence(plain(space, back), plain(space, value), exact=True)


def test_the_standard_keywords_say_what_json_looks_like() -> None:
    schema = space_to_schema(spaces.Dict({"frame": spaces.Box(0, 255, (2, 3), np.uint8), "key": spaces.Discrete(3)}))
    assert schema["required"] == ["frame", "key"]
    frame = schema["properties"]["frame"]
    assert (frame["type"], frame["minItems"], frame["items"]["minItems"]) == ("array", 2, 3)
    assert frame["items"]["items"] == {"type": "integer", "minimum": 0, "maximum": 255}
    assert frame["gymnasium"] == {"space": "Box", "low": 0, "high": 255, "shape": [2, 3], "dtype": "uint8"}
    key = schema["properties"]["key"]
    assert (key["type"], key["minimum"], key["maximum"]) == ("integer", 0, 2)


class Odd(spaces.Space[Any]):
    def __init__(self) -> None:
        super().__init__((), np.int8)

    def __repr__(self) -> str:
        return "Odd()"  # part of a test's name, which all processes of a run must agree on


def test_another_space_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"Odd.*made of Box, Discrete"):
        space_to_schema(spaces.Dict({"x": spaces.Tuple((Odd(),))}))
    with pytest.raises(TypeError, match="key 3"):
        space_to_schema(spaces.Dict({3: spaces.Discrete(2)}))  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "element",
    [spaces.Text(3), spaces.Sequence(spaces.Discrete(2)), spaces.Graph(spaces.Discrete(2), None)],
    ids=str,
)
def test_a_stack_that_no_value_could_cross_as_is_refused_before_any_does(element: gymnasium.Space[Any]) -> None:
    inside = spaces.Dict({"a": spaces.Tuple((spaces.Discrete(2), element))})
    for stacked in (spaces.Sequence(element, stack=True), spaces.Sequence(inside, stack=True)):
        with pytest.raises(TypeError, match=f"stacked Sequence of {type(element).__name__}"):
            space_to_schema(stacked)
    assert space_from_schema(space_to_schema(spaces.Sequence(inside))) == spaces.Sequence(inside)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "integer"},
        {"gymnasium": 3},
        {"gymnasium": {"space": "Odd"}},
        {"gymnasium": {"space": "Discrete"}},
        {"gymnasium": {"space": "Discrete", "n": -2, "start": 0, "dtype": "int64"}},
        {"gymnasium": {"space": "Discrete", "n": 2, "start": 0, "dtype": "no such"}},
        {"gymnasium": {"space": "Box", "low": 0, "high": 1, "shape": [10**6, 10**6], "dtype": "uint8"}},
        {"gymnasium": {"space": "Box", "low": 0, "high": 1, "shape": [-1], "dtype": "uint8"}},
        {"gymnasium": {"space": "Box", "low": 0, "high": 1, "shape": [1], "dtype": "U500000000"}},
        {
            "gymnasium": {
                "space": "Sequence",
                "stack": True,
                "element": {"gymnasium": {"space": "Text", "max_length": 1, "min_length": 0, "charset": "a"}},
            }
        },
        {"gymnasium": {"space": "Box", "low": [1, 2, 3], "high": 9, "shape": [2], "dtype": "int8"}},
        {"gymnasium": {"space": "MultiBinary", "n": [10**6, 10**6], "shape": [1]}},
        {"gymnasium": {"space": "Dict", "keys": ["a"]}, "properties": {"a": {}}},
        {"gymnasium": {"space": "Tuple"}},
        [],
    ],
    ids=str,
)
def test_a_schema_that_describes_no_space_is_an_error_and_costs_no_memory(schema: Any) -> None:
    with pytest.raises(ValueError, match=r"schema|array|space|shape|broadcast"):
        space_from_schema(schema)


BOX = spaces.Box(0, 255, (2, 2), np.uint8)


@pytest.mark.parametrize(
    ("space", "value", "text"),
    [
        (BOX, [[1, 2], [3, 256]], "does not fit into uint8"),
        (BOX, [[1, 2], [3, 0.5]], "does not fit into uint8"),
        (BOX, [[1, 2], [3, float("nan")]], "does not fit into uint8"),
        (BOX, [[1, 2], [3]], "does not fit Box"),
        (spaces.Box(-1, 1, (2,), np.float32), [1e39, 0.0], "does not fit into float32"),
        (BOX, [1, 2, 3, 4], "shape"),
        (BOX, np.zeros((2, 3), np.uint8), "shape"),
        (BOX, [["1", "2"], ["3", "4"]], "more than numbers"),
        (BOX, None, "Box"),
        (spaces.Discrete(3), 1.0, "Discrete"),
        (spaces.Discrete(3), True, "truth value"),
        (spaces.Discrete(3), np.array([1]), "Discrete"),
        (spaces.Text(3), 3, "text is wanted"),
        (spaces.Tuple((spaces.Discrete(2), BOX)), [1], "Tuple"),
        (spaces.Tuple((spaces.Discrete(2), BOX)), [1, [[0, 0], [0, -1]]], r"^\[1\] does not fit Box"),
        (spaces.Dict({"a": spaces.Dict({"b": BOX})}), {"a": {"b": 3}}, r"^\['a'\]\['b'\] does not fit Box"),
        (spaces.Dict({"a": BOX}), {"a": [[0, 0], [0, 0]], "b": 1}, "keys"),
        (spaces.Dict({"a": BOX}), [], "keys"),
        (spaces.OneOf((BOX, spaces.Discrete(2))), [2, 0], "no space 2"),
        (spaces.OneOf((BOX, spaces.Discrete(2))), [-1, 0], "no space -1"),
        (spaces.Graph(BOX, None), {"nodes": None, "edges": None, "edge_links": None}, "Graph"),
        (spaces.Graph(BOX, None), {"nodes": [], "edges": [1], "edge_links": None}, "no space of edges"),
        (spaces.Sequence(spaces.Discrete(2)), "01", "a list is wanted"),
        (Odd(), 1, "no wire form"),
    ],
    ids=str,
)
def test_a_value_that_is_built_otherwise_is_refused_with_its_place(space: Any, value: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        value_from_wire(space, value)


def test_arrays_from_a_frame_are_the_readers_own() -> None:
    space = spaces.Dict({"a": BOX})
    frame = frames.encode({"value": {"a": np.ones((2, 2), np.uint8)}}, binary=True)
    got = value_from_wire(space, frames.decode(frame, binary=True)["value"])
    got["a"][0, 0] = 9
    assert frames.decode(frame, binary=True)["value"]["a"][0, 0] == 1


def test_an_array_keeps_the_dtype_that_its_owner_gave_it() -> None:
    wide = np.array([0.1, 0.2], np.float64)
    space = spaces.Box(0, 1, (2,), np.float32)
    assert value_to_wire(space, wide) is wide
    assert value_from_wire(space, wide).dtype == np.float64
    assert value_from_wire(space, wide.tolist()).dtype == np.float32
    whole = [2**63 + 1, 1]  # which numpy makes floats of
    assert value_from_wire(spaces.Box(0, 2**64 - 1, (2,), np.uint64), whole).tolist() == whole
