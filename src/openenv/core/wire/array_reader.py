"""Reading of the array codec: one walk over a frame, in which nothing is allocated that the frame does not fill.

The public names are in `openenv.core.wire.arrays`; so is what an array looks like on the wire.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from openenv.core.wire.array_values import (
    MAX_CONTAINERS,
    MAX_DEPTH,
    NDARRAY,
    NPGENERIC,
    SIZES,
    Refused,
    load_msgpack,
    load_numpy,
    shown,
)

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Reader"]

_MOST_DIMENSIONS = 32
_LARGEST_CODE_POINT = 0x10FFFF
_TYPESTR = re.compile(r"[<>|=]?(?P<kind>[biufUSmM])(?P<size>\d{1,9})(?P<unit>\[[0-9a-zA-Z]{1,12}\])?")

_NUMBERS = {
    0xCA: struct.Struct(">f"),
    0xCB: struct.Struct(">d"),
    0xCC: struct.Struct(">B"),
    0xCD: struct.Struct(">H"),
    0xCE: struct.Struct(">I"),
    0xCF: struct.Struct(">Q"),
    0xD0: struct.Struct(">b"),
    0xD1: struct.Struct(">h"),
    0xD2: struct.Struct(">i"),
    0xD3: struct.Struct(">q"),
}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_BINS = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_STRINGS = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_LISTS = {0xDC: 2, 0xDD: 4}
_MAPS = {0xDE: 2, 0xDF: 4}
_FIXED_EXTS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_EXTS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_TIMESTAMP = -1


class Reader:
    """Walks one frame once, and makes no container larger than what it has read."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._size = len(view)
        self.pos = 0
        self._containers = 0

    def _take(self, size: int) -> memoryview:
        start, left = self.pos, self._size - self.pos
        if size > left:
            raise Refused(f"{size} bytes are declared and {left} are left")
        self.pos = start + size
        return self._view[start : start + size]

    def _length(self, width: int) -> int:
        return self._take(1)[0] if width == 1 else int.from_bytes(self._take(width), "big")

    def read(self, depth: int) -> Any:
        value = self._read(depth)
        return bytes(value) if type(value) is memoryview else value

    def _read(self, depth: int) -> Any:
        """Read a value; a binary one is still a view of the frame."""
        pos = self.pos
        if pos == self._size:
            raise Refused("1 bytes are declared and 0 are left")
        tag = self._view[pos]
        self.pos = pos + 1
        if tag < 0x80:
            return tag
        if tag >= 0xE0:
            return tag - 0x100
        if tag < 0x90:
            return self._map(tag & 0x0F, depth)
        if tag < 0xA0:
            return self._list(tag & 0x0F, depth)
        if tag < 0xC0:
            return self._str(tag & 0x1F)
        if tag in _NUMBERS:
            number = _NUMBERS[tag]
            return number.unpack(self._take(number.size))[0]
        if tag in _BINS:
            return self._take(self._length(_BINS[tag]))
        if tag in _STRINGS:
            return self._str(self._length(_STRINGS[tag]))
        if tag in _MAPS:
            return self._map(self._length(_MAPS[tag]), depth)
        if tag in _LISTS:
            return self._list(self._length(_LISTS[tag]), depth)
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        return self._ext(tag)

    def _str(self, size: int) -> str:
        start, end = self.pos, self.pos + size
        if end > self._size:
            self._take(size)  # which says so
        self.pos = end
        try:
            return str(self._view[start:end], "utf-8")
        except UnicodeDecodeError as error:
            raise Refused(f"a text is not UTF-8 ({error.reason})") from None

    def _ext(self, tag: int) -> Any:
        size = _FIXED_EXTS.get(tag) or (self._length(_EXTS[tag]) if tag in _EXTS else None)
        if size is None:
            raise Refused(f"0x{tag:02x} begins no msgpack value")
        code = int.from_bytes(self._take(1), "big", signed=True)
        data = bytes(self._take(size))
        msgpack = load_msgpack()
        try:
            return msgpack.Timestamp.from_bytes(data) if code == _TIMESTAMP else msgpack.ExtType(code, data)
        except ValueError as error:  # a reserved code, or a timestamp of another size
            raise Refused(f"an extension value of type {code} ({error})") from None

    def _enter(self, count: int, size: int, depth: int) -> None:
        self._containers += 1
        if depth >= MAX_DEPTH:
            raise Refused(f"it is nested more than {MAX_DEPTH} levels deep")
        if self._containers > MAX_CONTAINERS:
            raise Refused(f"the frame has more than {MAX_CONTAINERS} maps and lists")
        left = self._size - self.pos
        if count * size > left:
            raise Refused(f"{count} entries are declared and {left} bytes are left")

    def _list(self, count: int, depth: int) -> list[Any]:
        self._enter(count, 1, depth)
        items: list[Any] = []
        try:
            for _ in range(count):
                items.append(self.read(depth + 1))
        except Refused as refused:
            refused.keys.append(len(items))
            raise
        return items

    def _key(self, depth: int) -> Any:
        pos = self.pos
        if pos < self._size and 0xA0 <= (tag := self._view[pos]) < 0xC0:  # a short text, as nearly all are
            self.pos = pos + 1
            return self._str(tag & 0x1F)
        key = self.read(depth)
        if isinstance(key, (dict, list)) or getattr(key, "ndim", None) is not None:
            raise Refused("a map has a key that is a container")
        return key

    def _map(self, count: int, depth: int) -> Any:
        self._enter(count, 2, depth)
        found: dict[Any, Any] = {}
        for _ in range(count):
            key = self._key(depth + 1)
            if key in found:
                raise Refused(f"the key {shown(key)} stands twice in one map")
            try:
                found[key] = self._read(depth + 1)
            except Refused as refused:
                refused.keys.append(key)
                raise
        if NDARRAY in found:
            return _array(found)
        if NPGENERIC in found:
            return _scalar(found)
        for key, value in found.items():
            if type(value) is memoryview:
                found[key] = bytes(value)
        return found


def _array(found: Mapping[Any, Any]) -> np.ndarray[Any, Any]:
    data, shape = found.get(b"data"), found.get(b"shape")
    if type(data) is not memoryview:
        raise Refused("an array without binary data")
    if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS:
        raise Refused(f"an array without a shape, or with more than {_MOST_DIMENSIONS} dimensions")
    dtype = _dtype(found.get(b"dtype"))
    elements, nonzero = 1, 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise Refused(f"an array with the impossible dimension {shown(size)}")
        elements *= size
        nonzero *= size or 1
    if elements * dtype.itemsize != len(data) or (elements and not dtype.itemsize):
        size = elements * dtype.itemsize
        raise Refused(f"an array of {size} bytes (shape {shown(shape)}, {dtype.str}) has {len(data)} bytes of data")
    if nonzero * max(dtype.itemsize, 1) >= 2**62:
        raise Refused(f"an array of the impossible shape {shown(shape)}")
    numpy = load_numpy()
    if not elements:
        empty: np.ndarray[Any, Any] = numpy.empty(shape, dtype)
        empty.flags.writeable = False
        return empty
    array: np.ndarray[Any, Any] = numpy.ndarray(tuple(shape), dtype, buffer=data)
    _check_elements(array, data)
    return array


def _check_elements(array: np.ndarray[Any, Any], data: memoryview) -> None:
    """Refuse elements that numpy takes from a buffer unseen and stumbles over later."""
    numpy = load_numpy()
    if array.dtype.kind == "b" and (numpy.frombuffer(data, "u1") > 1).any():
        raise Refused("an array of bool has bytes other than 0 and 1")
    if array.dtype.kind == "U":
        points = numpy.frombuffer(data, numpy.dtype("u4").newbyteorder(array.dtype.byteorder))
        if (points > _LARGEST_CODE_POINT).any():
            raise Refused("an array of text has a code point that does not exist")


def _dtype(typestr: Any) -> np.dtype[Any]:
    if type(typestr) is memoryview:
        typestr = str(typestr, "ascii", "replace")
    match = _TYPESTR.fullmatch(typestr) if isinstance(typestr, str) else None
    if match is None:
        raise Refused(f"an array with the dtype {shown(typestr)}")
    kind, size = match["kind"], int(match["size"])
    if kind in SIZES and size not in SIZES[kind]:
        raise Refused(f"an array with the dtype {shown(typestr)}")
    try:
        dtype: np.dtype[Any] = load_numpy().dtype(typestr)
    except (TypeError, ValueError) as error:
        raise Refused(f"an array with the dtype {shown(typestr)} ({error})") from None
    if kind in "mM" and load_numpy().datetime_data(dtype)[1] == 0:  # numpy can do nothing with it, nor show it
        raise Refused(f"an array with the dtype {shown(typestr)}")
    return dtype


def _scalar(found: Mapping[Any, Any]) -> Any:
    numpy = load_numpy()
    dtype, data = _dtype(found.get(b"dtype")), found.get(b"data")
    kind = dtype.kind
    if kind == "b" and isinstance(data, bool):
        return numpy.bool_(data)
    if kind == "U" and isinstance(data, str):
        return numpy.str_(data)
    if kind == "S" and type(data) is memoryview:
        return numpy.bytes_(bytes(data))
    if kind == "f" and isinstance(data, float):
        with numpy.errstate(over="ignore"):
            value = dtype.type(data)
        if numpy.isfinite(value) or not numpy.isfinite(data):
            return value
    if kind in "iu" and isinstance(data, int) and not isinstance(data, bool):
        limits = numpy.iinfo(dtype)
        if limits.min <= data <= limits.max:
            return dtype.type(data)
    raise Refused(f"{shown(data)} is no scalar of dtype {dtype.str}")
