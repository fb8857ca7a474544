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
        TypeError: there is no such mapping for a part of the space, or two parts have one name; give ``obs=`` yourself.
    """

    def __init__(self, space: Any) -> None:
        self._parts = list(_parts(space, ()))
        _refuse_shared_names(self._parts)
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
                mapped[kind][_name_of(path)] = rows
        return mapped


Part = tuple[tuple[Any, ...], str, Callable[[Any], Any]]


def _name_of(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path)) or "obs"


def _refuse_shared_names(parts: list[Part]) -> None:
    named: dict[tuple[str, str], tuple[Any, ...]] = {}
    for path, kind, _ in parts:
        other = named.setdefault((kind, _name_of(path)), path)
        if other is not path and kind != "text":
            text = f"the parts {list(other)} and {list(path)} of the space would both be called {_name_of(path)!r}"
            raise TypeError(f"{text}; give obs= to name them")


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

    A Box takes its own shape, or any of the same size; Discrete takes a value of its own, or a score for each choice,
    of which the largest is taken; MultiBinary and MultiDiscrete take their own size. Where the space has whole numbers,
    others are rounded to the nearest. What a Box of floats bounds is not checked, as Gymnasium's envs clip or scale it
    themselves; it only has to be finite.

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
        self._whole = np.dtype(space.dtype).kind != "f"
        self._bounds = _bounds(space)

    def __call__(self, rows: Array) -> Array:
        """Map the rows.

        Raises:
            ValueError: the server's actions do not fit the space; it names the env's row and the value.
        """
        flat = rows.reshape(len(rows), -1)
        if self._name == "Discrete":
            return self._discrete(flat)
        size = int(np.prod(self._space.shape))
        if flat.shape[1] != size:
            text = f"the server's actions have {flat.shape[1]} values, and the env's action space {self._space} {size}"
            raise ValueError(text)
        return self._checked(flat).reshape(len(rows), *self._space.shape)

    def _discrete(self, flat: Array) -> Array:
        count, start = int(self._space.n), int(self._space.start)
        if flat.shape[1] == 1:
            return self._checked(flat)[:, 0]
        if flat.shape[1] == count:
            self._refuse(np.isnan(flat), flat)
            best: Array = np.argmax(flat, axis=1) + start
            return best
        raise ValueError(f"the server's actions have {flat.shape[1]} values, and the space is {self._space}")

    def _checked(self, flat: Array) -> Array:
        """The values in the space's dtype, each of which it can hold."""
        with np.errstate(invalid="ignore", over="ignore"):  # what does not fit is found by what it becomes
            if not self._whole:
                found: Array = flat.astype(self._space.dtype)
                self._refuse(~np.isfinite(found), flat)
                return found
            nearest = np.rint(flat) if flat.dtype.kind == "f" else flat
            found = nearest.astype(self._space.dtype)
            low, high = self._bounds
            self._refuse((found != nearest) | (found < low) | (found > high), flat)
        return found

    def _refuse(self, bad: Array, flat: Array) -> None:
        if bad.any():
            row, place = np.argwhere(bad)[0].tolist()
            where = f"env {row}" if flat.shape[1] == 1 else f"env {row}, value {place}"
            text = f"the server's action for {where} is {flat[row, place]}"
            raise ValueError(f"{text}, which the env's action space {self._space} does not hold")


def _bounds(space: Any) -> tuple[Any, Any]:
    """The least and the largest whole numbers of a space, flat."""
    match type(space).__name__:
        case "Box":
            return space.low.reshape(-1), space.high.reshape(-1)
        case "MultiBinary":
            return 0, 1
        case "Discrete":
            return int(space.start), int(space.start) + int(space.n) - 1
    low = np.broadcast_to(getattr(space, "start", 0), space.shape).reshape(-1)  # older Gymnasiums have no start
    return low, low + np.asarray(space.nvec).reshape(-1) - 1
