"""Elements of a space to wire values and back.

======================================  ==============================================================
Box, MultiBinary, MultiDiscrete         an array: itself in a binary frame, nested lists in JSON
Discrete                                an integer
Text                                    text
Dict                                    an object
Tuple, Sequence                         a list; a stacked `Sequence` is what its batched elements are
Graph                                   ``{"nodes": array, "edges": array or null, "edge_links": array or null}``
OneOf                                   ``[index, value]``
======================================  ==============================================================

Only the structure is looked at: whether a value is within the bounds of its space is for `Space.contains` to say.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from openenv.core.wire.array_values import cast_numbers

__all__ = ["value_from_wire", "value_to_wire"]

_ARRAYS = (spaces.Box, spaces.MultiBinary, spaces.MultiDiscrete)
Space = spaces.Space[Any]


def value_to_wire(space: Space, value: Any) -> Any:
    """Turn an element of a space into what a frame carries.

    Args:
        space: the space.
        value: its element; an array is passed on as it is, whatever its dtype.

    Raises:
        ValueError: the value is not built as the space says; names the place.
    """
    return _turn(space, value, "", incoming=False)


def value_from_wire(space: Space, value: Any) -> Any:
    """Turn what came in a frame into an element of a space.

    Args:
        space: the space.
        value: as `value_to_wire` made it. An array keeps its dtype; lists get that of the space.

    Returns:
        The element, which shares no memory with the frame.

    Raises:
        ValueError: the value is not built as the space says; names the place.
    """
    return _turn(space, value, "", incoming=True)


class _Wrong(ValueError):
    """A value whose place is known."""


def _turn(space: Space, value: Any, path: str, *, incoming: bool) -> Any:
    try:
        if isinstance(space, _ARRAYS):
            return _array(space, value, copy=incoming)
        if isinstance(space, spaces.Discrete):
            return _integer(value)
        if isinstance(space, spaces.Text):
            return _text(value)
        return _turn_parts(space, value, path, incoming=incoming)
    except _Wrong:
        raise
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        why = error.args[0] if isinstance(error, KeyError) else error
        raise _Wrong(f"{path or 'the value'} does not fit {type(space).__name__}: {why}") from error


def _turn_parts(space: Space, value: Any, path: str, *, incoming: bool) -> Any:
    def part(child: Space, item: Any, key: object) -> Any:
        return _turn(child, item, f"{path}[{key!r}]", incoming=incoming)

    if isinstance(space, spaces.Dict):
        _same_keys(space, value)
        return {key: part(child, value[key], key) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        parts = [part(child, item, i) for i, (child, item) in enumerate(_pairs(space, value))]
        return tuple(parts) if incoming else parts
    if isinstance(space, spaces.Sequence):
        if space.stack:
            return _stacked(space.stacked_feature_space, value, incoming=incoming)
        parts = [part(space.feature_space, item, i) for i, item in enumerate(_list(value))]
        return tuple(parts) if incoming else parts
    if isinstance(space, spaces.Graph):
        if incoming:
            return spaces.GraphInstance(*(_part(space, name, value[name], copy=True) for name in _GRAPH))
        return {name: _part(space, name, getattr(value, name), copy=False) for name in _GRAPH}
    if isinstance(space, spaces.OneOf):
        told, item = _list(value)
        index = _integer(told)
        if not 0 <= index < len(space.spaces):
            raise IndexError(f"there is no space {index}")
        chosen = part(space.spaces[index], item, 1)
        return (np.int64(index), chosen) if incoming else [index, chosen]
    raise TypeError("there is no wire form for this space")


_GRAPH = ("nodes", "edges", "edge_links")


def _array(space: Space, value: Any, *, copy: bool) -> Any:
    shape = space.shape or ()
    array = _numbers(value, np.dtype(space.dtype), copy=copy)
    if array.size == 0 and 0 in shape:
        array = array.reshape(shape)  # empty lists do not tell the lengths below them
    if array.shape != shape:
        raise ValueError(f"the shape is {array.shape}, not {shape}")
    return array


def _rows(dtype: Any, shape: tuple[int, ...], value: Any, *, copy: bool) -> Any:
    """Any number of arrays of a shape, in one."""
    array = _numbers(value, np.dtype(dtype), copy=copy)
    if array.size == 0:
        array = array.reshape((0, *shape))
    if array.ndim != len(shape) + 1 or array.shape[1:] != shape:
        raise ValueError(f"the shape is {array.shape}, not (any, {', '.join(map(str, shape))})")
    return array


def _numbers(value: Any, wanted: np.dtype[Any], *, copy: bool) -> Any:
    array = np.array(value) if copy else np.asarray(value)
    if not isinstance(value, np.ndarray | np.generic):
        if array.size and array.dtype.kind not in "biuf":
            raise TypeError("it is ragged, or holds more than numbers")
        array = cast_numbers(value, array, wanted)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"an array of {array.dtype} holds no numbers")
    return array


def _stacked(space: Space, value: Any, *, incoming: bool) -> Any:
    """A stacked sequence: ``space`` is that of a batch of one element, and there may be any number."""
    if isinstance(space, spaces.Dict):
        _same_keys(space, value)
        return {key: _stacked(child, value[key], incoming=incoming) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        parts = [_stacked(child, item, incoming=incoming) for child, item in _pairs(space, value)]
        return tuple(parts) if incoming else parts
    if not isinstance(space, _ARRAYS):
        raise TypeError("there is no wire form for a stack of these")
    return _rows(space.dtype, (space.shape or (1,))[1:], value, copy=incoming)


def _part(space: spaces.Graph, name: str, value: Any, *, copy: bool) -> Any:
    if value is None and name != "nodes":
        return None
    if name == "edge_links":
        return _rows(np.int32, (2,), value, copy=copy)
    child = space.node_space if name == "nodes" else space.edge_space
    if child is None:
        raise TypeError("this graph has no space of edges")
    return _rows(child.dtype, child.shape or (), value, copy=copy)


def _integer(value: Any) -> int:
    if isinstance(value, bool | np.bool_):
        raise TypeError("a truth value is no integer")
    return operator.index(value.item() if isinstance(value, np.ndarray) and value.shape == () else value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text is wanted, not {type(value).__name__}")
    return value


def _list(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise TypeError(f"a list is wanted, not {type(value).__name__}")
    return value


def _pairs(space: spaces.Tuple[Any], value: Any) -> Any:
    return zip(space.spaces, _list(value), strict=True)


def _same_keys(space: spaces.Dict, value: Any) -> None:
    if not isinstance(value, Mapping) or value.keys() != space.spaces.keys():
        told = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
        raise KeyError(f"the keys are {told}, not {sorted(space.spaces)}")
