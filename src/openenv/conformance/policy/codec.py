"""The checkers' own codec: messages to bytes, in any form that is legal, and back, naming what is not.

What decodes is a tree of dicts, lists, numbers, strings and arrays. It does not know which messages there are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np

from openenv.conformance.policy.judge import Fault

__all__ = ["Form", "pack", "unpack"]

_MARK, _SCALAR = b"__ndarray__", b"__npgeneric__"
_KINDS = "buifU"


@dataclass(frozen=True, slots=True)
class Form:
    """How arrays are written. All forms are legal.

    Attributes:
        order: byte order of numbers: ``<`` or ``>``.
        reverse: write the four keys in reverse order.
    """

    order: str = "<"
    reverse: bool = False


def _array(array: np.ndarray[Any, Any], form: Form) -> dict[bytes, Any]:
    flat = np.ascontiguousarray(array.astype(array.dtype.newbyteorder(form.order))).reshape(array.shape)
    written = {_MARK: True, b"data": flat.tobytes(), b"dtype": flat.dtype.str, b"shape": list(flat.shape)}
    return dict(reversed(written.items())) if form.reverse else written


def _plain(value: Any, form: Form) -> Any:
    if isinstance(value, np.ndarray):
        return _array(value, form)
    if isinstance(value, dict):
        return {key: _plain(inner, form) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, form) for inner in value]
    return value


def pack(message: Any, form: Form | None = None) -> bytes:
    """A message as one frame."""
    packed: bytes = msgpack.packb(_plain(message, form or Form()), use_bin_type=True)
    return packed


def unpack(frame: bytes) -> Any:
    """One frame as a tree.

    Raises:
        Fault: it is no msgpack, or an array in it is forged.
    """
    try:
        tree = msgpack.unpackb(frame, raw=False, strict_map_key=False)
    except Exception as error:  # msgpack raises what it likes; whatever it is, the frame is no message
        raise Fault("2a", "no-msgpack", f"a frame of {len(frame)} bytes is no msgpack: {error}") from None
    return _grown(tree, "")


def _grown(value: Any, path: str) -> Any:
    if isinstance(value, list):
        return [_grown(inner, f"{path}[{at}]") for at, inner in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if "__ndarray__" in value or "__npgeneric__" in value:
        raise Fault("3.1a", "str-keys", f"the keys of the array at {path or 'the top'} are str, not bin")
    if _MARK in value:
        return _read_array(value, path)
    if _SCALAR in value:
        return _read_scalar(value, path)
    return {key: _grown(inner, f"{path}.{key}" if path else str(key)) for key, inner in value.items()}


def _read_dtype(value: dict[Any, Any], path: str) -> np.dtype[Any]:
    text = value.get(b"dtype")
    text = text.decode(errors="replace") if isinstance(text, bytes) else text
    try:
        dtype = np.dtype(text if isinstance(text, str) else "?!")
    except (TypeError, ValueError):
        raise Fault("3.1a", "bad-dtype", f"the dtype at {path} is {text!r}, which is no typestr") from None
    if dtype.kind not in _KINDS or dtype.str != text:
        raise Fault("3.1a", "bad-dtype", f"the dtype at {path} is {text!r}; there are b, u, i, f and U, with an order")
    return dtype


def _read_array(value: dict[Any, Any], path: str) -> np.ndarray[Any, Any]:
    dtype, shape, data = _read_dtype(value, path), value.get(b"shape"), value.get(b"data")
    if not isinstance(shape, list) or not all(type(one) is int and one >= 0 for one in shape):
        raise Fault("3.1a", "bad-shape", f"the shape at {path} is {shape!r}, no list of sizes")
    if not isinstance(data, bytes):
        raise Fault("3.1a", "bad-data", f"the data at {path} is {type(data).__name__}, not bin")
    due = math.prod(shape) * dtype.itemsize
    if len(data) != due:
        text = f"the array at {path} has {len(data)} bytes; {dtype.str} {shape} has {due}"
        raise Fault("3.1a", "wrong-length", text)
    if due == 0:
        return np.zeros(shape, dtype)
    return np.frombuffer(data, dtype).reshape(shape)


def _read_scalar(value: dict[Any, Any], path: str) -> Any:
    data = value.get(b"data")
    if not isinstance(data, int | float):
        raise Fault("3.1a", "bad-data", f"the scalar at {path} is {data!r}, no number")
    return _read_dtype(value, path).type(data).item()
