"""Values made from schemas fit them, and values that do not fit are named by their field."""

from __future__ import annotations

import random
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from openenv.validation.schemas import misfits, sample


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: float = Field(gt=0, lt=1)
    y: int = Field(ge=-3, le=-1)


class Everything(BaseModel):
    kind: Literal["everything"]
    even: int = Field(multiple_of=2, ge=3, le=9)
    colour: Colour
    point: Point
    points: list[Point] = Field(min_length=2, max_length=3)
    pair: tuple[int, str]
    either: int | Point
    perhaps: Annotated[str, Field(min_length=2, max_length=4)] | None = None
    flag: bool
    free: dict[str, Any]
    anything: Any
    low: int = Field(le=-100)
    high: float = Field(ge=1e6)


def test_what_is_made_is_what_the_model_takes() -> None:
    schema, draw = Everything.model_json_schema(), random.Random(1)
    made = [sample(schema, draw) for _ in range(200)]
    for value in made:
        Everything.model_validate(value)
        assert misfits(schema, value) == []
    assert len({str(value) for value in made}) > 100
    assert {"perhaps" in value for value in made} == {True, False}
    assert made == [sample(schema, again) for again in [random.Random(1)] for _ in range(200)]


class Tree(BaseModel):
    value: int
    children: list[Tree] = Field(default_factory=list)


def test_a_schema_of_itself_comes_to_an_end() -> None:
    for number in range(50):
        Tree.model_validate(sample(Tree.model_json_schema(), random.Random(number)))


GOOD = {
    "kind": "everything",
    "even": 4,
    "colour": "red",
    "point": {"x": 0.5, "y": -1},
    "points": [{"x": 0.5, "y": -1}] * 2,
    "pair": [1, "a"],
    "either": {"x": 0.5, "y": -2},
    "flag": True,
    "free": {"a": 1},
    "anything": None,
    "low": -101,
    "high": 2e6,
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "nothing"}, "kind is 'nothing', not one of ['everything']"),
        ({"colour": "green"}, "colour is 'green'"),
        ({"even": "4"}, "even is str '4', not integer"),
        ({"even": True}, "even is bool True, not integer"),
        ({"flag": 1}, "flag is int 1, not boolean"),
        ({"point": {"x": 0.5}}, "point.y is missing"),
        ({"points": [{"x": "a", "y": -1}]}, "points[].x is str 'a', not number"),
        ({"either": "neither"}, "either is str 'neither'"),
        ({"point": None}, "point is NoneType None, not object"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], words: str) -> None:
    schema = Everything.model_json_schema()
    assert misfits(schema, GOOD) == []
    (found,) = misfits(schema, {**GOOD, **change})
    assert words in found


def test_what_the_envelope_carries_is_ignored_where_that_is_wanted() -> None:
    schema = {**Point.model_json_schema(), "additionalProperties": False}
    assert misfits(schema, {"x": 0.5, "y": -1, "more": 1}) == ["more is not in the schema"]
    assert misfits(schema, {"y": -1, "more": 1}, ignore=frozenset({"more", "x"})) == []
    assert misfits(schema, {"x": 2.0, "y": -1.0}) == []  # a whole number may come as a float
    assert misfits(schema, b"bytes") == []  # as a binary frame carries it
    assert misfits(schema, [1]) == ["the whole is list [1], not object"]
