"""What may be reused, what may not, and that nothing a feedback holds makes the cache raise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from openenv.core.exceptions import ReuseError
from openenv.policy.observation_cache import ObservationCache


def obs(*values: float, text: Any = "arrays") -> dict[str, Any]:
    """An observation of a row for each value; every part of a row tells its value."""
    count = len(values)
    return {
        "images": {"cam": np.array(values, np.uint8).reshape(count, 1, 1, 1) * np.ones((1, 2, 2, 3), np.uint8)},
        "states": {"t": np.array(values, np.float64).reshape(count, 1)},
        "text": np.array([f"row {value:g}" for value in values], dtype=None if count else "U1")
        if isinstance(text, str) and text == "arrays"
        else text,
    }


def flags(*values: bool) -> np.ndarray:
    return np.array(values, bool)


def cache(*values: float, done: tuple[bool, ...] | None = None) -> ObservationCache:
    """A cache whose env i has the given value."""
    cache = ObservationCache()
    ended = flags(*(done or (False,) * len(values)))
    cache.on_feedback(np.arange(len(values)), obs(*values), ended, flags(*(False,) * len(values)))
    return cache


def rows(observation: dict[str, Any]) -> list[float]:
    """The value of each row; all its parts must agree."""
    values = observation["states"]["t"][:, 0].tolist()
    assert observation["images"]["cam"][:, 0, 0, 0].tolist() == values
    assert [str(one) for one in observation["text"]] == [f"row {value:g}" for value in values]
    return values


def test_all_rows_sent_is_the_same_object() -> None:
    sent = obs(1, 2)
    assert ObservationCache().complete(np.arange(2), sent, None) is sent
    assert ObservationCache().complete(np.arange(2), sent, flags(False, False)) is sent


@pytest.mark.parametrize(
    ("reuse", "sent", "expected"),
    [
        ((True, True, True), (), [12, 10, 11]),
        ((True, False, False), (7, 8), [12, 7, 8]),
        ((False, True, False), (7, 8), [7, 10, 8]),
        ((False, False, True), (7, 8), [7, 8, 11]),
    ],
)
def test_rows_come_in_the_order_of_the_envs(reuse: tuple[bool, ...], sent: tuple[float, ...], expected: Any) -> None:
    full = cache(10, 11, 12).complete(np.array([2, 0, 1]), obs(*sent), flags(*reuse))
    assert rows(full) == expected


@given(st.permutations(range(5)), st.lists(st.booleans(), min_size=5, max_size=5))
def test_any_order_and_choice(order: list[int], reuse: list[bool]) -> None:
    sent = [50 + env for env, out in zip(order, reuse, strict=True) if not out]
    full = cache(10, 11, 12, 13, 14).complete(np.array(order), obs(*sent), flags(*reuse))
    assert rows(full) == [10 + env if out else 50 + env for env, out in zip(order, reuse, strict=True)]


@pytest.mark.parametrize("empty", [np.array([]), np.array([], "<U5"), [], (), None, ""])
def test_no_text_is_sent_when_every_row_is_reused(empty: Any) -> None:
    full = cache(10, 11).complete(np.array([1, 0]), obs(text=empty), flags(True, True))
    assert rows(full) == [11, 10]


def test_rows_are_copies() -> None:
    fed = obs(10, 11)
    held = ObservationCache()
    held.on_feedback(np.arange(2), fed, flags(False, False), flags(False, False))
    fed["states"]["t"][:] = -1
    fed["images"]["cam"][:] = 0
    full = held.complete(np.array([1]), obs(), flags(True))
    assert rows(full) == [11]
    array = full["images"]["cam"]
    while array.base is not None:
        array = array.base
    assert array.nbytes == 12  # one row, not the frame


def test_reusing_twice_gives_the_same() -> None:
    held = cache(10)
    for _ in range(2):
        assert rows(held.complete(np.array([0]), obs(), flags(True))) == [10]


@pytest.mark.parametrize(
    ("indices", "sent", "reuse", "words"),
    [
        ([5], obs(), flags(True), "no feedback here"),
        ([1], obs(), flags(True), "ended its episode"),
        ([2], obs(), flags(True), "could not be split"),
        ([0], obs(), np.array([1]), "bool array"),
        ([0], obs(), [True], "bool array"),
        ([0], obs(), flags(True, True), "bool array"),
        ([0], obs(), flags(True).reshape(1, 1), "bool array"),
        ([0], obs(1), flags(True), "leading dimension"),
        ([0, 3], obs(), flags(True, False), "leading dimension"),
        ([0, 3], obs(1, 2), flags(True, False), "leading dimension"),
        ([0, 3], obs(1, text=["a", "b"]), flags(True, False), "leading dimension"),
        ([0, 0], obs(), flags(True, True), "twice"),
        ([], obs(), flags(), "one or more"),
        (np.array([0.0]), obs(), flags(True), "whole numbers"),
        ([0, 3], {"images": {}, "states": {}}, flags(True, False), "exactly the keys"),
        ([0, 3], {**obs(1), "images": [1]}, flags(True, False), "images must be a map"),
        ([0, 3], {**obs(1), "states": {"t": [1.0]}}, flags(True, False), "must be an array"),
        ([0, 3], {**obs(1), "states": {"u": np.zeros((1, 1))}}, flags(True, False), "cannot be merged"),
        ([0, 3], {**obs(1), "states": {1: np.zeros((1, 1))}}, flags(True, False), "cannot be merged"),
        ([0, 3], {**obs(1), "states": {"t": np.zeros((1, 2))}}, flags(True, False), "cannot be merged"),
        ([0, 3], {**obs(1), "states": {"t": np.zeros((1, 1), "f4")}}, flags(True, False), "cannot be merged"),
        ([0, 3], obs(1, text=np.zeros(1)), flags(True, False), "text"),
        ([0, 3], obs(1, text=[1]), flags(True, False), "strings"),
    ],
)
def test_what_is_refused(indices: Any, sent: Any, reuse: Any, words: str) -> None:
    held = cache(10, 11, 12, 13, done=(False, True, False, False))
    held.on_feedback(np.array([2]), {"images": {}}, flags(False), flags(False))
    with pytest.raises(ReuseError, match=words):
        held.complete(np.array(indices, int) if isinstance(indices, list) else indices, sent, reuse)
    assert rows(held.complete(np.array([0]), obs(), flags(True))) == [10]


def test_names_are_sets() -> None:
    held = ObservationCache()
    two = {"images": {}, "states": {"a": np.zeros((1, 1)), "t": np.ones((1, 2))}, "text": ["x"]}
    turned = {**two, "states": dict(reversed(two["states"].items()))}
    held.on_feedback(np.array([0]), two, flags(False), flags(False))
    full = held.complete(np.array([0, 1]), turned, flags(True, False))
    assert full["states"]["t"].tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize("which", ["terminated", "truncated"])
def test_an_ended_episode_cannot_be_reused_until_a_later_feedback(which: str) -> None:
    held = ObservationCache()
    ended = {"terminated": flags(False), "truncated": flags(False), which: flags(True)}
    held.on_feedback(np.array([0]), obs(10), **ended)
    with pytest.raises(ReuseError, match=r"env 0 .* ended its episode"):
        held.complete(np.array([0]), obs(), flags(True))
    held.on_feedback(np.array([0]), obs(11), flags(False), flags(False))
    assert rows(held.complete(np.array([0]), obs(), flags(True))) == [11]


@pytest.mark.parametrize(
    ("fed", "terminated"),
    [
        ({"images": {}, "states": {}}, flags(False)),
        ({**obs(10), "more": 1}, flags(False)),
        ({**obs(10), "states": None}, flags(False)),
        ({**obs(10), "states": {"t": np.float64(1)}}, flags(False)),
        (obs(10, 11), flags(False)),
        (obs(10, text=["a", "b"]), flags(False)),
        (None, flags(False)),
        (b"obs", flags(False)),
        (obs(10), flags(False, False)),
        (obs(10), np.array([0.0])),
        (obs(10), None),
        (obs(10), [[], [1]]),
    ],
)
def test_a_bad_feedback_makes_the_row_unusable(fed: Any, terminated: Any) -> None:
    held = cache(1, 2)
    held.on_feedback(np.array([0]), fed, terminated, flags(False))
    with pytest.raises(ReuseError, match="could not be split"):
        held.complete(np.array([0]), obs(), flags(True))
    assert rows(held.complete(np.array([1]), obs(), flags(True))) == [2]  # it was not named


def test_an_env_that_is_named_twice_has_no_row() -> None:
    held = ObservationCache()
    held.on_feedback(np.array([0, 0]), obs(1, 2), flags(False, False), flags(False, False))
    with pytest.raises(ReuseError, match="could not be split"):
        held.complete(np.array([0]), obs(), flags(True))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.just(np.zeros((2, 2))),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(anything, anything, anything, anything)
def test_a_feedback_never_raises(indices: Any, fed: Any, terminated: Any, truncated: Any) -> None:
    held = ObservationCache()
    held.on_feedback(indices, fed, terminated, truncated)
    held.on_feedback(np.array([0, 1]), fed, terminated, truncated)
    held.on_feedback(np.array([0, 1]), {"images": fed, "states": terminated, "text": indices}, truncated, truncated)


@given(anything, anything, anything)
def test_an_infer_raises_nothing_but_its_error(indices: Any, sent: Any, reuse: Any) -> None:
    held = cache(1, 2)
    for names, out in ((indices, reuse), (np.array([0, 1]), flags(True, False)), (np.array([0, 1]), reuse)):
        try:
            held.complete(names, {"images": sent, "states": {}, "text": reuse}, out)
            held.complete(names, sent, out)
        except ReuseError:
            pass


@pytest.mark.parametrize(
    ("fed", "sent", "expected"),
    [
        (np.array(["ab"]), np.array(["longer"]), ["ab", "longer"]),
        (["ab"], ["c"], ["ab", "c"]),
        (None, None, None),
        ("pick", "pick", "pick"),
        ("pick", "place", ["pick", "place"]),
        (None, ["c"], ["", "c"]),
        (np.array(["ab"]), ["c"], ["ab", "c"]),
        ("pick", None, ["pick", ""]),
    ],
)
def test_texts(fed: Any, sent: Any, expected: Any) -> None:
    held = ObservationCache()
    held.on_feedback(np.array([0]), obs(1, text=fed), flags(False), flags(False))
    text = held.complete(np.array([0, 1]), obs(2, text=sent), flags(True, False))["text"]
    assert (text.tolist() if isinstance(text, np.ndarray) else text) == expected
    assert isinstance(text, np.ndarray) == (isinstance(fed, np.ndarray) and isinstance(sent, np.ndarray))
