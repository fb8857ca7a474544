"""The JSON codec: what goes in comes out, what cannot is named, and bad bytes raise one error only."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import enum
import json
import math
from typing import Annotated, Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    Base64Bytes,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    RootModel,
    field_serializer,
)

from openenv.core.wire.json_codec import (
    MAX_DEPTH,
    MalformedFrame,
    UnencodableValue,
    decode,
    dump_model,
    encode,
    parse_json,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
ATOMS = st.none() | st.booleans() | st.integers() | st.integers(-(10**300), 10**300) | st.floats() | TEXT
VALUES = st.recursive(ATOMS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4))


def same(one: Any, other: Any) -> bool:
    """Equal, of the same type all the way down, and NaN is itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float):
        return (math.isnan(one) and math.isnan(other)) or (
            one == other and math.copysign(1, one) == math.copysign(1, other)
        )
    return bool(one == other)


@given(st.dictionaries(TEXT, VALUES, max_size=5))
def test_values_come_back_as_they_were(value: dict[str, Any]) -> None:
    data = encode(value)
    assert same(decode(data), value)
    assert same(decode(data.decode()), value)


@given(st.dictionaries(TEXT, VALUES, max_size=3))
def test_values_inside_a_model_come_back_as_they_were(value: dict[str, Any]) -> None:
    class Holder(BaseModel):
        anything: Any

    assert same(decode(encode(Holder(anything=value)))["anything"], value)


def test_the_text_is_compact_and_keeps_non_ascii() -> None:
    assert encode({"a": [1, "é"], "b": None}) == '{"a":[1,"é"],"b":null}'.encode()


def test_non_finite_numbers_are_the_tokens_that_python_reads() -> None:
    data = encode({"r": [math.nan, math.inf, -math.inf]})
    assert data == b'{"r":[NaN,Infinity,-Infinity]}'
    assert json.loads(data)["r"][1:] == [math.inf, -math.inf]


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (numpy.int64(7), 7),
        (numpy.float32(0.25), 0.25),
        (numpy.bool_(True), True),
        (numpy.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        (numpy.array(3.5), 3.5),
        (Colour.RED, "red"),
        ((1, (2,)), [1, [2]]),
    ],
)
def test_foreign_values_become_json(value: Any, expected: Any) -> None:
    assert same(decode(encode({"v": value}))["v"], expected)


def test_numpy_nan_stays_nan() -> None:
    assert math.isnan(decode(encode({"v": numpy.float64("nan")}))["v"])
    assert math.isnan(decode(encode({"v": numpy.array([numpy.nan])}))["v"][0])


# ------------------------------------------------------------------ refusals


class Cell(BaseModel):
    value: Any = 0


class Board(BaseModel):
    cells: list[Cell] = []
    more: dict[str, Any] = {}
    raw: Base64Bytes = b""


def circular() -> list[Any]:
    ring: list[Any] = []
    ring.append(ring)
    return ring


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "path", "type_name"),
    [
        (object(), "", "object"),
        ({"a": object()}, "a", "object"),
        ({"a": {"b": [1, {"c": object()}]}}, "a.b[1].c", "object"),
        ([{"x": {1, 2}}], "[0].x", "set"),
        ({"data": {"board": [0, 1, {"cell": b"x"}]}}, "data.board[2].cell", "bytes"),
        ({"a": bytearray(b"x")}, "a", "bytearray"),
        ({"a": memoryview(b"x")}, "a", "memoryview"),
        ({"a": [1 + 2j]}, "a[0]", "complex"),
        ({"a": {"b": "\ud800"}}, "a.b", "str"),
        ({"a": Cell(value=object())}, "a.value", "object"),
        ({"a": Board(cells=[Cell(), Cell(value=b"x")])}, "a.cells[1].value", "bytes"),
        ({"a": numpy.array([object()], dtype=object)}, "a", "object"),
        ({(1, 2): 3}, "", "dict"),
        ({"in": {(1, 2): 3}}, "in", "dict"),
    ],
)
def test_a_refusal_names_the_path_and_the_type(value: Any, path: str, type_name: str) -> None:
    with pytest.raises(UnencodableValue) as caught:
        encode(value)
    assert (caught.value.path, caught.value.type_name) == (path, type_name)
    assert (f"field '{path}'" if path else "the value") in str(caught.value)


@pytest.mark.parametrize(("make", "why"), [(circular, "contains itself"), (deep, "nested too deeply")])
def test_endless_values_are_refused_by_name(make: Any, why: str) -> None:
    with pytest.raises(UnencodableValue, match=why) as caught:
        encode({"a": {"loop": make()}})
    assert caught.value.path.startswith("a.loop")


class Tensor:
    """As other libraries have them: its dtype is not numpy's."""

    dtype = object()

    def __init__(self, value: Any) -> None:
        self.value = value

    def tolist(self) -> Any:
        return self.value


class Tokens(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    ids: Tensor
    history: list[Tensor] = []


def test_tensors_of_other_libraries_become_lists() -> None:
    model = Tokens(ids=Tensor([[1, 2], [3, 4]]), history=[Tensor([0.5, math.inf]), Tensor([])])
    assert encode(dump_model(model)) == b'{"ids":[[1,2],[3,4]],"history":[[0.5,Infinity],[]]}'
    assert encode({"ids": Tensor([math.nan])}) == b'{"ids":[NaN]}'


def test_bytes_tell_what_to_declare() -> None:
    with pytest.raises(UnencodableValue, match=r"core\.arrays\.Bytes"):
        encode({"a": b"x"})


@pytest.mark.parametrize(
    ("model", "path"),
    [
        (Cell(value=object()), "value"),
        (Cell(value=b"\x00"), "value"),
        (Cell(value={"deep": [b"\x00"]}), "value.deep[0]"),
        (Board(cells=[Cell(value=1), Cell(value=[object()])]), "cells[1].value[0]"),
        (Board(more={"k": Cell(value=b"x")}), "more.k.value"),
        (Board(more={"k": {"l": object()}}), "more.k.l"),
        (Cell(value=[{1, 2}, datetime.date(2024, 1, 1), object()]), "value[2]"),
    ],
)
def test_a_model_with_an_unencodable_field_names_it(model: BaseModel, path: str) -> None:
    with pytest.raises(UnencodableValue) as caught:
        dump_model(model)
    assert caught.value.path == path


def test_bytes_whose_field_says_how_are_kept() -> None:
    board = Board(raw=b"AAEC")  # base64 of 00 01 02
    assert board.raw == b"\x00\x01\x02"
    assert Board.model_validate(decode(encode(board))) == board


def test_fields_may_be_left_out() -> None:
    assert dump_model(Board(more={"x": object()}), exclude={"more"}) == {"cells": [], "raw": ""}


def test_a_model_keeps_its_non_finite_numbers() -> None:
    dumped = dump_model(Cell(value=[math.inf, {"n": math.nan}]))
    assert dumped["value"][0] == math.inf
    assert math.isnan(dumped["value"][1]["n"])


@dataclasses.dataclass
class Point:
    x: float


class Row(BaseModel):
    model_config = ConfigDict(extra="allow", serialize_by_alias=True)
    loose: Any = None
    typed: float = 0.0
    listed: list = []
    named: Any = Field(default=None, alias="Name")
    keyed: dict[int, Any] = {}
    quiet: Annotated[Any, PlainSerializer(lambda value: None)] = 1
    asked: Any = 1

    @field_serializer("asked")
    def _write_asked(self, value: Any) -> None:
        return None


def test_non_finite_numbers_survive_in_every_place_of_a_model() -> None:
    inf, nan = math.inf, math.nan
    row = Row(
        loose=(inf, [{"deep": nan}], Cell(value=-inf), Point(inf), RootModel[Any](inf), {1.5, inf}),
        typed=nan,
        listed=[None, inf, "x"],
        Name=inf,
        keyed={1: nan, 2: [inf]},
        quiet=inf,
        asked=inf,
        extra=numpy.float32("inf"),
        array=numpy.array([[1.0, nan], [inf, 2.0]]),
        finite=numpy.array([1.5, 2.5]),
        whole=numpy.arange(2),
        nothing=numpy.array([], dtype=float),
    )
    dumped = decode(encode(row))
    numbers = dumped["loose"].pop()
    assert sorted(numbers) == [1.5, inf]
    assert same(dumped["loose"], [inf, [{"deep": nan}], {"value": -inf}, {"x": inf}, inf])
    assert same(dumped["typed"], nan)
    assert dumped["listed"] == [None, inf, "x"]
    assert dumped["Name"] == inf
    assert same(dumped["keyed"], {"1": nan, "2": [inf]})
    assert dumped["extra"] == inf
    assert same(dumped["array"], [[1.0, nan], [inf, 2.0]])
    assert (dumped["finite"], dumped["whole"], dumped["nothing"]) == ([1.5, 2.5], [0, 1], [])
    assert (dumped["quiet"], dumped["asked"]) == (None, None)  # as their serializers say


# ------------------------------------------------------------------ bad frames


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"   ", id="blank"),
        pytest.param(b"{", id="cut"),
        pytest.param(b'{"a": 1}}', id="trailing"),
        pytest.param(b'{"a": 1} {"b": 2}', id="two documents"),
        pytest.param(b"{'a': 1}", id="quotes"),
        pytest.param(b"[" * 100_000, id="open arrays"),
        pytest.param(b"[" * 100_000 + b"]" * 100_000, id="nested arrays"),
        pytest.param(b'{"a":' * 100_000 + b"1" + b"}" * 100_000, id="nested objects"),
        pytest.param(b'{"a": ' + b"9" * 5000 + b"}", id="long integer"),
        pytest.param(b'{"a": "\xff"}', id="not utf-8"),
        pytest.param(b"\xef\xbb\xbf{}", id="byte order mark"),
        pytest.param("\ufeff{}", id="byte order mark in text"),
        pytest.param(b'{"a": "\n"}', id="control character"),
        pytest.param(b"[]", id="array"),
        pytest.param(b"1", id="number"),
        pytest.param(b"true", id="boolean"),
        pytest.param(b"null", id="null"),
        pytest.param(b'"text"', id="string"),
        pytest.param(b"NaN", id="nan"),
    ],
)
def test_a_malformed_frame_raises_malformed_frame(data: str | bytes) -> None:
    with pytest.raises(MalformedFrame) as caught:
        decode(data)
    assert str(caught.value)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    with contextlib.suppress(MalformedFrame):
        assert isinstance(decode(data), dict)


def test_of_duplicate_keys_the_last_one_counts() -> None:
    assert decode(b'{"type": "step", "type": "state"}') == {"type": "state"}


def test_nesting_is_allowed_up_to_the_limit() -> None:
    allowed = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    value = parse_json(allowed)
    for _ in range(MAX_DEPTH - 1):
        (value,) = value
    assert value == []
    with pytest.raises(MalformedFrame, match="nested deeper"):
        parse_json(f"[{allowed}]")


def test_brackets_in_strings_are_not_nesting() -> None:
    text = '\\"[{' * 500
    assert decode(encode({"a": text, "b": [["[" * 300]]})) == {"a": text, "b": [["[" * 300]]}


def test_many_shallow_arrays_are_not_nesting() -> None:
    value = {"rows": [[1, 2]] * 1000}
    assert decode(encode(value)) == value
