"""From Gymnasium's spaces to what crosses the policy link: observations to images, states, text; chunks to actions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["ActionMap", "ObservationMap"]

Array: TypeAlias = "npt.NDArray[Any]"
MAX_ONE_HOT = 1024


class ObservationMap:
    """Maps batched observations of a space to ``images``, ``states`` and ``text``.

    A uint8 Box ``[h, w]`` or ``[h, w, 1 to 4]`` is an image; any other Box is a state, flattened, float32 or float64.
    Discrete is one-hot; MultiBinary and MultiDiscrete are states; Text is text. The parts of a Dict or Tuple are named
    by their path, as ``camera.left``; a space alone is called ``obs``.

    Args:
        space: of one env, not batched.

    Raises:
        TypeError: there is no such mapping for a part of the space; give ``obs=`` yourself.
    """

    def __init__(self, space: Any) -> None:
        self._parts = list(_parts(space, ()))
        texts = [part for part in self._parts if part[1] == "text"]
        if len(texts) > 1:
            raise TypeError("the space has more than one text; give obs= to choose")

    def __call__(self, observations: Any) -> dict[str, Any]:
        """Map a batch, as a vector env gives it."""
        mapped: dict[str, Any] = {"images": {}, "states": {}}
        for path, kind, convert in self._parts:
            value = observations
            for key in path:
                value = value[key]
            rows = convert(value)
            if kind == "text":
                mapped["text"] = rows
            else:
                mapped[kind][".".join(map(str, path)) or "obs"] = rows
        return mapped


Part = tuple[tuple[Any, ...], str, Callable[[Any], Any]]


def _parts(space: Any, path: tuple[Any, ...]) -> Iterator[Part]:
    name = type(space).__name__
    if name == "Dict":
        for key in space.spaces:
            yield from _parts(space[key], (*path, key))
    elif name == "Tuple":
        for index, inner in enumerate(space.spaces):
            yield from _parts(inner, (*path, index))
    elif name == "Box":
        shape = space.shape
        if space.dtype == np.uint8 and (len(shape) == 2 or (len(shape) == 3 and shape[2] <= 4)):
            yield path, "images", lambda rows: np.asarray(rows).reshape(len(rows), *shape[:2], *(shape[2:] or (1,)))
        else:
            dtype = np.float32 if np.dtype(space.dtype) in (np.float32, np.float16) else np.float64
            yield path, "states", lambda rows: np.asarray(rows, dtype).reshape(len(rows), -1)
    elif name == "Discrete":
        yield path, "states", _one_hot(int(space.n), int(space.start))
    elif name in ("MultiBinary", "MultiDiscrete"):
        yield path, "states", lambda rows: np.asarray(rows, np.float64).reshape(len(rows), -1)
    elif name == "Text":
        yield path, "text", lambda rows: np.array([str(row) for row in rows])
    else:
        raise TypeError(f"a {name} space has no form on the policy link by default; give obs= to say which")


def _one_hot(count: int, start: int) -> Callable[[Any], Array]:
    def convert(rows: Any) -> Array:
        values = np.asarray(rows).reshape(-1) - start
        if count > MAX_ONE_HOT:
            return values[:, None].astype(np.float32)
        hot: Array = np.eye(count, dtype=np.float32)[values]
        return hot

    return convert


class ActionMap:
    """Maps one step of chunks ``[n, *da]`` to actions of a space.

    A Box takes its own shape, or any of the same size; Discrete takes an index, or a value for each choice, of which
    the largest is taken; MultiBinary and MultiDiscrete take their own size.

    Args:
        space: of one env, not batched.

    Raises:
        TypeError: there is no such mapping; give ``act=`` yourself.
    """

    def __init__(self, space: Any) -> None:
        self._space = space
        self._name = type(space).__name__
        if self._name not in ("Box", "Discrete", "MultiBinary", "MultiDiscrete"):
            raise TypeError(f"actions of a {self._name} space cannot be read by default; give act= to say how")

    def __call__(self, rows: Array) -> Array:
        """Map the rows.

        Raises:
            ValueError: the server's actions do not fit the space.
        """
        flat = rows.reshape(len(rows), -1)
        if self._name == "Discrete":
            return self._discrete(flat)
        size = int(np.prod(self._space.shape))
        if flat.shape[1] != size:
            text = f"the server's actions have {flat.shape[1]} values, and the env's action space {self._space} {size}"
            raise ValueError(text)
        if self._name != "Box" and rows.dtype.kind == "f":
            flat = np.rint(flat)
        return flat.reshape(len(rows), *self._space.shape).astype(self._space.dtype)

    def _discrete(self, flat: Array) -> Array:
        count, start = int(self._space.n), int(self._space.start)
        if flat.shape[1] == 1:
            chosen = np.rint(flat[:, 0]).astype(np.int64)
            if ((chosen < start) | (chosen >= start + count)).any():
                raise ValueError(f"the server chose {chosen.tolist()}, and the env's action space is {self._space}")
            return chosen
        if flat.shape[1] == count:
            best: Array = np.argmax(flat, axis=1) + start
            return best
        raise ValueError(f"the server's actions have {flat.shape[1]} values, and the space is {self._space}")
