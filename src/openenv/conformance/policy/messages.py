"""The messages as a checker reads them: every rule on keys, dtypes and shapes, and nothing about their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from openenv.conformance.policy.codec import unpack
from openenv.conformance.policy.judge import Fault, Judge

__all__ = ["Array", "Feedback", "Infer", "Observation", "read_feedback", "read_infer", "read_message"]

Array = np.ndarray[Any, Any]
_TYPES = ("metadata", "infer", "action", "feedback")
_PARTS = ("images", "states", "text")
_DATA = ("obs", "rewards", "terminated", "truncated", "info")
_REWARD_BYTES = 4


@dataclass(frozen=True, slots=True)
class Observation:
    """A batch of observations.

    Attributes:
        images: name to ``[n, h, w, c]``.
        states: name to ``[n, d]``.
        text: n strings.
    """

    images: Mapping[str, Array]
    states: Mapping[str, Array]
    text: list[str]


@dataclass(frozen=True, slots=True)
class Infer:
    """A request for actions; ``obs`` holds the rows that were sent, which are those that `reuse` does not name."""

    envs: list[int]
    step_ids: list[int]
    obs: Observation
    reuse: list[bool] | None = None

    @property
    def sent(self) -> list[int]:
        """The envs whose rows are in ``obs``, in order."""
        flags = self.reuse or [False] * len(self.envs)
        return [env for env, flag in zip(self.envs, flags, strict=True) if not flag]


@dataclass(frozen=True, slots=True)
class Feedback:
    """The ends of chunks."""

    envs: list[int]
    obs: Observation
    rewards: list[float]
    terminated: list[bool]
    truncated: list[bool]
    info: Mapping[str, Any] = field(default_factory=dict)


def read_message(frame: str | bytes) -> dict[str, Any]:
    """A frame as a map with a known message_type.

    Raises:
        Fault: it is none.
    """
    if isinstance(frame, str):
        raise Fault("1a", "text-frame", f"a text frame came: {frame[:80]!r}")
    tree = unpack(frame)
    if not isinstance(tree, dict):
        raise Fault("2a", "no-map", f"a message is a {type(tree).__name__}, not a map")
    if "message_type" not in tree:
        raise Fault("2a", "no-type", f"a message has no str key message_type; its keys are {list(tree)[:6]}")
    if tree["message_type"] not in _TYPES:
        raise Fault("2a", "unknown-type", f"message_type is {tree['message_type']!r}; there are {', '.join(_TYPES)}")
    return tree


def _indices(message: Mapping[str, Any], name: str, judge: Judge, clause: str) -> list[int]:
    array = message.get(name)
    judge.need(isinstance(array, np.ndarray), clause, "bad-key", f"{name} is missing, or no array")
    assert isinstance(array, np.ndarray)
    fits = array.ndim == 1 and array.dtype.kind == "i"
    judge.need(fits, clause, "bad-indices", f"{name} is {array.dtype.str} {array.shape}; it must be integers [n]")
    return [int(one) for one in array]


def _envs(message: Mapping[str, Any], judge: Judge, clause: str) -> tuple[list[int], list[int]]:
    envs = _indices(message, "env_indices", judge, clause)
    step_ids = _indices(message, "step_ids", judge, clause)
    same = len(envs) == len(step_ids)
    judge.need(same, clause, "lengths", f"{len(envs)} env_indices and {len(step_ids)} step_ids")
    judge.need(bool(envs), clause, "no-env", "env_indices is empty")
    proper = len(set(envs)) == len(envs) and min(envs) >= 0
    judge.need(proper, "4.4a", "bad-index", f"env_indices {envs}: an index is negative, or there twice")
    return envs, step_ids


def _observation(data: Any, rows: int, judge: Judge, clause: str, batch: str) -> Observation:
    """Read an observation of so many rows; ``batch`` is the clause of a wrong number of them."""
    fits = isinstance(data, dict) and set(data) == set(_PARTS)
    judge.need(fits, clause, "bad-observation", f"an observation has exactly the keys {', '.join(_PARTS)}")
    groups: list[dict[str, Array]] = []
    for part, kinds, ndim in (("images", "u", 4), ("states", "f", 2)):
        group = data[part]
        judge.need(isinstance(group, dict), clause, "bad-observation", f"{part} is no map")
        for name, array in group.items():
            proper = isinstance(array, np.ndarray) and array.dtype.kind in kinds and array.ndim == ndim
            seen = f"{array.dtype.str} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
            judge.need(proper, clause, "bad-observation", f"{part}.{name} is {seen}")
            judge.need(len(array) == rows, batch, "rows", f"{part}.{name} has {len(array)} rows; {rows} are due")
        groups.append(group)
    text = data["text"]
    count = len(text) if isinstance(text, list) or (isinstance(text, np.ndarray) and text.ndim == 1) else -1
    judge.need(count == rows, batch, "rows", f"text has {count} entries; {rows} are due")
    if rows:
        judge.need(
            (isinstance(text, np.ndarray) and text.dtype.kind == "U") or all(isinstance(one, str) for one in text),
            "3.4a",
            "bad-text",
            "text is neither a U array nor a list of strings",
        )
        if isinstance(text, list):
            judge.note("3.4a", "text-list", "text comes as a list; a U array is what other clients send")
    return Observation(groups[0], groups[1], [str(one) for one in text])


def read_infer(message: Mapping[str, Any], judge: Judge) -> Infer:
    """An infer, graded by its shape.

    Raises:
        Fault: it cannot be read.
    """
    envs, step_ids = _envs(message, judge, "5.2a")
    reuse = message.get("reuse")
    if reuse is None:
        return Infer(envs, step_ids, _observation(message.get("data"), len(envs), judge, "5.2a", "5.2a"))
    fits = isinstance(reuse, np.ndarray) and reuse.dtype.kind == "b" and reuse.shape == (len(envs),)
    judge.need(fits, "10.1d", "bad-reuse", "reuse is no bool array of one entry an env")
    flags = [bool(one) for one in reuse]
    rows = flags.count(False)
    return Infer(envs, step_ids, _observation(message.get("data"), rows, judge, "5.2a", "10.1d"), flags)


def _column(data: Mapping[str, Any], name: str, rows: int, kinds: str, judge: Judge) -> list[Any]:
    array = data[name]
    fits = isinstance(array, np.ndarray) and array.dtype.kind in kinds and array.shape == (rows,)
    seen = f"{array.dtype.str} {array.shape}" if isinstance(array, np.ndarray) else type(array).__name__
    judge.need(fits, "5.4c", "bad-feedback", f"{name} is {seen}; {'bool' if kinds == 'b' else 'float'} [{rows}] is due")
    column: list[Any] = array.tolist()
    if array.dtype.kind == "f" and array.dtype.itemsize != _REWARD_BYTES:
        judge.note("5.4c", "wide-rewards", f"rewards are {array.dtype.str}; <f4 is enough")
    return column


def _split(info: Any, rows: int, judge: Judge) -> None:
    """The rule by which servers split info: the first array found tells the count; without one it is one entry."""
    judge.need(isinstance(info, dict), "5.4c", "bad-info", "info is no map")
    nested = [value for value in info.values() if isinstance(value, dict)]
    arrays = [value for value in info.values() if isinstance(value, np.ndarray)]
    arrays += [inner for value in nested for inner in value.values() if isinstance(inner, np.ndarray)]
    counts = {len(one) for one in arrays if one.ndim}
    fits = not info or rows in counts or (not counts and rows == 1)
    judge.need(fits, "5.4c", "bad-info", f"info cannot be split into {rows}: its arrays have {sorted(counts)} rows")


def read_feedback(message: Mapping[str, Any], judge: Judge) -> Feedback:
    """A feedback, graded by its shape.

    Raises:
        Fault: it cannot be read.
    """
    envs, _ = _envs(message, judge, "5.4c")
    rows, data = len(envs), message.get("data")
    fits = isinstance(data, dict) and set(data) == set(_DATA)
    judge.need(fits, "5.4c", "bad-feedback", f"the data of feedback has exactly the keys {', '.join(_DATA)}")
    assert isinstance(data, dict)
    _split(data["info"], rows, judge)
    return Feedback(
        envs,
        _observation(data["obs"], rows, judge, "5.4c", "5.4c"),
        _column(data, "rewards", rows, "f", judge),
        _column(data, "terminated", rows, "b", judge),
        _column(data, "truncated", rows, "b", judge),
        data["info"],
    )
