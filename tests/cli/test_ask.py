"""From what is typed to the fields of an action: types, choices, bounds, and reasons for what does not fit."""

from __future__ import annotations

from typing import Any, Literal

import pydantic
import pytest

from openenv.cli._ask import BadValue, Field, constants_of, fields_of, from_line, pairs_of


class Inner(pydantic.BaseModel):
    x: int


class Action(pydantic.BaseModel):
    kind: Literal["move"]
    direction: Literal["left", "right"]
    steps: int = pydantic.Field(default=1, ge=1, lt=10)
    speed: float | None = None
    loud: bool = False
    tags: list[str] = []
    inner: Inner | None = None
    metadata: dict[str, Any] = {}


FIELDS = {field.name: field for field in fields_of(Action.model_json_schema())}


def test_the_fields_of_a_model() -> None:
    assert list(FIELDS) == ["direction", "steps", "speed", "loud", "tags", "inner"]
    assert constants_of(Action.model_json_schema()) == {"kind": "move"}
    assert [field.described() for field in FIELDS.values()] == [
        "direction (left | right)",
        "steps (integer, >= 1, < 10, default 1)",
        "speed (number, may be left out)",
        "loud (boolean, default false)",
        "tags (array, JSON, default [])",
        "inner (object, JSON, may be left out)",
    ]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("direction", "left", "left"),
        ("direction", '"left"', "left"),
        ("steps", "9", 9),
        ("speed", "2.5", 2.5),
        ("speed", "2", 2),
        ("speed", "null", None),
        ("loud", "Yes", True),
        ("loud", "0", False),
        ("tags", '["a"]', ["a"]),
        ("inner", '{"x": 1}', {"x": 1}),
    ],
)
def test_values_that_fit(name: str, text: str, value: Any) -> None:
    read = FIELDS[name].read(text)
    assert (read, type(read)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("direction", "up", "direction is one of left, right, not 'up'"),
        ("steps", "0", "steps must be >= 1, and 0 is not"),
        ("steps", "10", "steps must be < 10, and 10 is not"),
        ("steps", "1.5", "steps is a whole number, not '1.5'"),
        ("steps", "", "steps is a whole number, not ''"),
        ("speed", "fast", "speed is a number, not 'fast'"),
        ("loud", "maybe", "loud is true or false, not 'maybe'"),
        ("tags", "{}", "tags is a JSON array"),
        ("inner", "{", "inner is JSON"),
    ],
)
def test_values_that_do_not_fit(name: str, text: str, reason: str) -> None:
    with pytest.raises(BadValue) as refused:
        FIELDS[name].read(text)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("schema", "good", "bad", "reason"),
    [
        ({"type": "string", "maxLength": 2}, "ab", "abc", "at most 2 characters, and has 3"),
        ({"type": "string", "minLength": 2}, "ab", "a", "at least 2 characters"),
        ({"type": "string", "pattern": "^[a-h][1-8]$"}, "e4", "z9", "must match"),
        ({"type": "array", "minItems": 1}, "[1]", "[]", "at least 1 items"),
        ({"type": "integer", "multipleOf": 5}, "10", "11", "multiple of 5"),
        ({"type": "number", "exclusiveMinimum": 0}, "0.1", "0", "must be > 0"),
        ({"enum": [1, 2]}, "2", "3", "one of 1, 2"),
    ],
)
def test_bounds(schema: dict[str, Any], good: str, bad: str, reason: str) -> None:
    field = Field("x", schema, True)
    field.read(good)
    with pytest.raises(BadValue, match=reason):
        field.read(bad)


def test_what_has_no_type_is_json_or_a_text() -> None:
    field = Field("x", {}, True)
    assert [field.read(text) for text in ("1", "[2]", "null", "left hand")] == [1, [2], None, "left hand"]


def moves(*names: str) -> list[Field]:
    return [Field(name, {"type": "integer"}, True) for name in names]


def test_a_line_is_an_action_in_several_ways() -> None:
    three = moves("row", "col", "value")
    wanted = {"row": 1, "col": 2, "value": 3}
    assert from_line(three, '{"row": 1, "col": 2, "value": 3}') == wanted
    assert from_line(three, "value=3 row=1 col=2") == wanted
    assert from_line(three, "1 2 3") == wanted
    only = [Field("message", {"type": "string"}, True), Field("loud", {"type": "boolean"}, False)]
    assert from_line(only, "it's all = one text") == {"message": "it's all = one text"}
    assert from_line(only, "message='a b' loud=yes") == {"message": "a b", "loud": True}
    free = [Field("op", {"type": "string"}, False), Field("arg", {}, False)]
    assert from_line(free[:1], "go on") == {"op": "go on"}
    assert from_line(free, "inc") == {"op": "inc"}
    assert from_line(free, "echo 'a b'") == {"op": "echo", "arg": "a b"}
    with pytest.raises(BadValue, match="is not understood"):
        from_line(free, "echo a b")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1 2", "'1 2' is not understood; type row=... col=... value=..."),
        ("row=1 col=2", "value must be given, too"),
        ("row=x col=2 value=3", "row is a whole number"),
        ("1 2 x", "value is a whole number"),
        ("{row: 1}", "this is no JSON"),
        ("size=4", "is not understood"),
    ],
)
def test_a_line_that_is_none(line: str, reason: str) -> None:
    with pytest.raises(BadValue) as refused:
        from_line(moves("row", "col", "value"), line)
    assert reason in str(refused.value)


def test_pairs() -> None:
    assert pairs_of("seed=3 task='a b' empty=") == {"seed": "3", "task": "a b", "empty": ""}
    assert pairs_of("seed=3 fast") is None
    assert pairs_of("") is None


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": None},
        {"properties": [1], "required": 5},
        {"properties": {"a": 5}, "required": [["a"], None]},
        {"properties": {"a": {"$ref": 7}}, "$defs": []},
        {"properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"$ref": "#/$defs/A"}}},
        {"properties": {"a": {"anyOf": [{"$ref": "#/$defs/A"}]}}, "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}]}}},
        {"properties": {"a": {"anyOf": 5}}},
        {"properties": {"a": {"type": "string", "pattern": 5, "minLength": None, "maxLength": "x"}}},
    ],
)
def test_a_schema_that_is_none_is_asked_for_as_text(schema: dict[str, Any]) -> None:
    for field in fields_of(schema):
        assert field.described()
        assert field.read("word") == "word"
    assert constants_of(schema) == {}


@pytest.mark.parametrize("bound", [{"minimum": "low"}, {"maximum": None}, {"multipleOf": "x"}, {"multipleOf": 0.1}])
def test_a_bound_that_is_none_bounds_nothing(bound: dict[str, Any]) -> None:
    (field,) = fields_of({"properties": {"a": {"type": "number", **bound}}})
    for text in ("3", "1e400", "-inf"):
        assert field.read(text) == float(text)
