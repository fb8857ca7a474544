"""Observations as text: boards as they are, tables, JSON, and what is too much to see."""

from __future__ import annotations

import numpy
import pytest

from openenv.cli._show import shown, shown_result

BOARD = "X . .\n. O .\n. . X\n"


def test_a_board_alone_is_shown_as_it_is() -> None:
    assert shown({"text": BOARD}) == "X . .\n. O .\n. . X"
    assert shown({"text": BOARD, "turn": "O"}) == "text:\nX . .\n. O .\n. . X\nturn: O"


def test_rows_are_columns_and_records_a_table() -> None:
    assert shown({"board": [[1, 10], [200, 3]], "n": 1}) == "board:\n  1    10\n  200  3\nn: 1"
    records = [{"name": "a", "score": 1.5}, {"name": "long one", "score": None}]
    assert shown(records) == "name      score\na         1.5\nlong one  null"
    assert shown([[1, 2], [3]]) == "[[1, 2], [3]]"
    assert shown([{"a": 1}, {"b": 2}]) == '[{"a": 1}, {"b": 2}]'


def test_other_values_are_json() -> None:
    assert shown({"deep": {"list": [1, {"x": None}]}, "ok": True}) == 'deep: {"list": [1, {"x": null}]}\nok: true'
    long = {"deep": [{"key": "v" * 60}, {"other": "w" * 60}]}
    assert shown(long).startswith('deep:\n  [\n    {\n      "key"')


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("data:image/png;base64," + "A" * 500, "<image/png, 522 characters>"),
        ("QUJD" * 1000, "<4,000 characters of base64>"),
        (b"\x00" * 9, "<9 bytes>"),
        (numpy.zeros((3, 64, 64), dtype="uint8"), "<array of uint8, shape (3, 64, 64)>"),
        (numpy.array([1, 2]), "[1, 2]"),
    ],
)
def test_what_is_too_much_is_named(value: object, text: str) -> None:
    assert shown(value) == text


def test_a_result_says_reward_and_end() -> None:
    observation = {"text": BOARD, "done": True, "reward": 1, "metadata": {}}
    assert shown_result(observation, 1, "terminated") == "X . .\n. O .\n. . X\nreward: 1, done (terminated)"
    assert shown_result({}, None, "") == "(nothing to see)"
    assert shown_result({"metadata": {"a": 1}}, 0.0, "") == 'metadata: {"a": 1}\nreward: 0.0'
