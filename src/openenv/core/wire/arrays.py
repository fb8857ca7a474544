"""The array codec: msgpack frames whose values may be numpy arrays, encoded and decoded without copying them.

On the wire an array is a map of four binary keys, and a numpy scalar a map of three, as openpi writes them:

* ``__ndarray__``: true, ``data``: the elements in C order, ``dtype``: a typestr as ``<f4``, ``shape``;
* ``__npgeneric__``: true, ``data``: a plain number, ``dtype``.

What is written is byte for byte what ``msgpack.packb`` makes of those maps, but as a list of buffers in which large
arrays stand for themselves. What is read is checked before anything is allocated for it: a declared length that the
frame does not hold, a shape that its data does not fit, and nesting without end are refused with the path of the value.

**Who owns what.** Buffers from `encode_parts` refer to the caller's arrays: send them before the arrays change. Arrays
from `decode` are read-only views of the frame, not necessarily aligned, and one of them keeps the whole frame alive:
copy (``np.array(x)``) what you change or keep.

Not in this room: what a message means, sockets. numpy and msgpack are imported when they are first needed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from openenv.core.wire.json_codec import MalformedFrame, UnencodableValue

if TYPE_CHECKING:
    import numpy as np

__all__ = ["MAX_CONTAINERS", "MAX_DEPTH", "Buffer", "MalformedValue", "decode", "encode", "encode_parts"]

Buffer: TypeAlias = bytes | memoryview

MAX_DEPTH = 100
"""Deepest nesting of maps and arrays, sent or received."""

MAX_CONTAINERS = 2**18
"""Most maps and lists in one received frame: an empty one is a single byte there and some sixty in memory."""

OWN_PART_BYTES = 4096
"""Arrays from this size on are parts of their own; smaller ones are copied between their neighbours."""

_NDARRAY = b"__ndarray__"
_NPGENERIC = b"__npgeneric__"
_MARKERS = frozenset({_NDARRAY, _NPGENERIC})
_MOST_DIMENSIONS = 32
_LARGEST_CODE_POINT = 0x10FFFF
_TYPESTR = re.compile(r"[<>|=]?(?P<kind>[biufUSmM])(?P<size>\d{1,9})(?P<unit>\[[0-9a-zA-Z]{1,12}\])?")
_SIZES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "m": (8,), "M": (8,)}


class MalformedValue(MalformedFrame):
    """A received frame holds something that is not a value of this codec.

    Attributes:
        path: where it stands, as ``data.states.t``; empty for the frame as a whole.
        why: what is wrong with it.
    """

    def __init__(self, path: str, why: str) -> None:
        self.path = path
        self.why = why
        super().__init__(f"{path or 'the frame'}: {why}")


class _Refused(Exception):
    """A value was refused; the path to it is collected on the way up."""

    def __init__(self, why: str, type_name: str = "") -> None:
        self.why = why
        self.type_name = type_name
        self.keys: list[object] = []
        super().__init__(why)

    @property
    def path(self) -> str:
        text = ""
        for key in reversed(self.keys):
            text += f"[{key}]" if isinstance(key, int) else f"{'.' if text else ''}{_shown(key)}"
        return text


def _shown(key: object) -> str:
    text = key if isinstance(key, str) else repr(key)
    return text if len(text) <= 80 else f"{text[:77]}..."


@cache
def _numpy() -> ModuleType:
    try:
        import numpy
    except ImportError as error:
        raise ImportError("Arrays on the wire need numpy: pip install 'openenv[policy]'") from error
    return numpy


@cache
def _packer() -> Any:
    try:
        from msgpack import Packer
    except ImportError as error:
        raise ImportError("Binary frames need msgpack: pip install 'openenv[policy]'") from error
    return Packer


# ------------------------------------------------------------------ encoding


def encode(value: Any) -> bytes:
    """Encode a value as one msgpack frame.

    Args:
        value: anything made of None, bool, int, float, str, bytes, mappings, lists, tuples, numpy arrays and scalars.

    Raises:
        UnencodableValue: a value inside has no form on the wire (object, structured, complex ...); names its path.
        ImportError: the ``policy`` extra is not installed.
    """
    return b"".join(encode_parts(value))


def encode_parts(value: Any) -> list[Buffer]:
    """Encode a value as the buffers that make up one msgpack frame, for a vectored write.

    Args:
        value: as for `encode`.

    Returns:
        Buffers whose concatenation is the frame. Large arrays are not copied: do not change them before the frame has
        been sent.

    Raises:
        UnencodableValue: as for `encode`.
        ImportError: the ``policy`` extra is not installed.
    """
    writer = _Writer()
    try:
        writer.write(value, 0)
    except _Refused as refused:
        raise UnencodableValue(refused.path, refused.type_name, refused.why) from None
    return writer.finish()


class _Writer:
    """Collects the parts of one frame."""

    def __init__(self) -> None:
        self._np = _numpy()
        self._packer = _packer()(autoreset=False, buf_size=OWN_PART_BYTES)
        self._parts: list[Buffer] = []

    def finish(self) -> list[Buffer]:
        self._flush()
        return self._parts

    def _flush(self) -> None:
        head = self._packer.bytes()
        if head:
            self._parts.append(head)
            self._packer.reset()

    def write(self, value: Any, depth: int) -> None:
        if value is None or isinstance(value, str | bytes | bool | int | float):
            self._plain(value)
        elif isinstance(value, self._np.ndarray):
            self._array(value)
        elif isinstance(value, self._np.generic):
            self._scalar(value)
        elif depth >= MAX_DEPTH:
            raise _Refused(f"it is nested more than {MAX_DEPTH} levels deep", type(value).__name__)
        elif isinstance(value, Mapping):
            self._map(value, depth)
        elif isinstance(value, list | tuple):
            self._packer.pack_array_header(len(value))
            for index, item in enumerate(value):
                try:
                    self.write(item, depth + 1)
                except _Refused as refused:
                    refused.keys.append(index)
                    raise
        else:
            raise _Refused(f"{type(value).__name__} has no msgpack form", type(value).__name__)

    def _plain(self, value: Any) -> None:
        try:
            self._packer.pack(value)
        except (OverflowError, ValueError) as error:  # an int beyond 64 bits, a str with lone surrogates
            raise _Refused(str(error), type(value).__name__) from None

    def _map(self, value: Mapping[Any, Any], depth: int) -> None:
        self._packer.pack_map_header(len(value))
        for key, item in value.items():
            try:
                if not isinstance(key, str | bytes | int | float) or key in _MARKERS:
                    raise _Refused(f"{_shown(key)} cannot be a key here", type(key).__name__)
                self._plain(key)
                self.write(item, depth + 1)
            except _Refused as refused:
                refused.keys.append(key)
                raise

    def _array(self, value: np.ndarray[Any, Any]) -> None:
        dtype = value.dtype
        self._check(dtype, type(value).__name__)
        if isinstance(value, self._np.ma.MaskedArray):
            raise _Refused("the mask of a masked array would be lost; use .filled()", "MaskedArray")
        packer = self._packer
        packer.pack_map_header(4)
        packer.pack(_NDARRAY)
        packer.pack(True)
        packer.pack(b"data")
        if value.nbytes < OWN_PART_BYTES:
            packer.pack(value.tobytes())
        else:
            self._own_part(value)
        packer.pack(b"dtype")
        packer.pack(dtype.str)
        packer.pack(b"shape")
        packer.pack(list(value.shape))

    def _own_part(self, value: np.ndarray[Any, Any]) -> None:
        size = value.nbytes
        if size >= 2**32:
            raise _Refused(f"its {size} bytes are more than a msgpack value can hold (4 GiB)", "ndarray")
        self._flush()
        self._parts.append(struct.pack(">BH", 0xC5, size) if size < 2**16 else struct.pack(">BI", 0xC6, size))
        whole = value if value.flags.c_contiguous else value.copy(order="C")
        self._parts.append(self._np.asarray(whole).reshape(-1).view("u1").data)

    def _scalar(self, value: np.generic) -> None:
        dtype = value.dtype
        self._check(dtype, type(value).__name__)
        if dtype.kind not in "biuf":
            raise _Refused(f"a scalar of dtype {dtype} has no form on the wire", type(value).__name__)
        self._packer.pack({_NPGENERIC: True, b"data": value.item(), b"dtype": dtype.str})

    def _check(self, dtype: np.dtype[Any], type_name: str) -> None:
        why = _dtype_fault(dtype.kind, dtype.itemsize)
        if why or dtype.fields is not None:
            raise _Refused(why or f"dtype {dtype} is structured", f"{type_name} of {dtype}")


def _dtype_fault(kind: str, itemsize: int) -> str:
    """Why elements of this kind do not travel; empty if they do."""
    if kind in "VOc" or kind not in "biufUSmM":
        name = {"V": "structured or void", "O": "object", "c": "complex"}.get(kind, f"'{kind}'")
        return f"arrays of {name} elements have no form on the wire"
    if kind in _SIZES and itemsize not in _SIZES[kind]:
        return f"'{kind}' elements of {itemsize} bytes differ from machine to machine"
    return ""


# ------------------------------------------------------------------ decoding


def decode(frame: bytes | bytearray | memoryview) -> Any:
    """Decode one msgpack frame.

    Args:
        frame: the whole frame. It must not change while a decoded array lives.

    Returns:
        The value. Arrays are read-only views of ``frame``; tuples have become lists, extension values
        ``msgpack.ExtType`` or ``msgpack.Timestamp``.

    Raises:
        MalformedValue: not one msgpack value, or a part that does not hold what it declares; names the path.
        ImportError: the ``policy`` extra is not installed.
    """
    view = memoryview(frame).cast("B").toreadonly() if len(frame) else memoryview(b"")
    reader = _Reader(view)
    try:
        value = reader.read(0)
        if reader.pos != len(view):
            raise _Refused(f"{len(view) - reader.pos} bytes stand after the end of the message")
    except _Refused as refused:
        raise MalformedValue(refused.path, refused.why) from None
    return value


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


class _Reader:
    """Walks one frame once, and makes no container larger than what it has read."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self.pos = 0
        self._containers = 0

    def _take(self, size: int) -> memoryview:
        start, left = self.pos, len(self._view) - self.pos
        if size > left:
            raise _Refused(f"{size} bytes are declared and {left} are left")
        self.pos = start + size
        return self._view[start : start + size]

    def _length(self, width: int) -> int:
        return int.from_bytes(self._take(width), "big")

    def read(self, depth: int) -> Any:
        value = self._read(depth)
        return bytes(value) if type(value) is memoryview else value

    def _read(self, depth: int) -> Any:
        """Read a value; a binary one is still a view of the frame."""
        tag = self._take(1)[0]
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
        try:
            return str(self._take(size), "utf-8")
        except UnicodeDecodeError as error:
            raise _Refused(f"a text is not UTF-8 ({error.reason})") from None

    def _ext(self, tag: int) -> Any:
        size = _FIXED_EXTS.get(tag) or (self._length(_EXTS[tag]) if tag in _EXTS else None)
        if size is None:
            raise _Refused(f"0x{tag:02x} begins no msgpack value")
        code = int.from_bytes(self._take(1), "big", signed=True)
        data = bytes(self._take(size))
        _packer()  # says what to install
        from msgpack import ExtType, Timestamp

        try:
            return Timestamp.from_bytes(data) if code == _TIMESTAMP else ExtType(code, data)
        except ValueError as error:  # a reserved code, or a timestamp of another size
            raise _Refused(f"an extension value of type {code} ({error})") from None

    def _enter(self, count: int, size: int, depth: int) -> None:
        self._containers += 1
        if depth >= MAX_DEPTH:
            raise _Refused(f"it is nested more than {MAX_DEPTH} levels deep")
        if self._containers > MAX_CONTAINERS:
            raise _Refused(f"the frame has more than {MAX_CONTAINERS} maps and lists")
        left = len(self._view) - self.pos
        if count * size > left:
            raise _Refused(f"{count} entries are declared and {left} bytes are left")

    def _list(self, count: int, depth: int) -> list[Any]:
        self._enter(count, 1, depth)
        items: list[Any] = []
        try:
            for _ in range(count):
                items.append(self.read(depth + 1))
        except _Refused as refused:
            refused.keys.append(len(items))
            raise
        return items

    def _map(self, count: int, depth: int) -> Any:
        self._enter(count, 2, depth)
        found: dict[Any, Any] = {}
        for _ in range(count):
            key = self.read(depth + 1)
            if isinstance(key, dict | list) or getattr(key, "ndim", None) is not None:
                raise _Refused("a map has a key that is a container")
            if key in found:
                raise _Refused(f"the key {_shown(key)} stands twice in one map")
            try:
                found[key] = self._read(depth + 1)
            except _Refused as refused:
                refused.keys.append(key)
                raise
        if _NDARRAY in found:
            return _array(found)
        if _NPGENERIC in found:
            return _scalar(found)
        for key, value in found.items():
            if type(value) is memoryview:
                found[key] = bytes(value)
        return found


def _array(found: Mapping[Any, Any]) -> np.ndarray[Any, Any]:
    data, shape = found.get(b"data"), found.get(b"shape")
    if type(data) is not memoryview:
        raise _Refused("an array without binary data")
    if not isinstance(shape, list) or len(shape) > _MOST_DIMENSIONS:
        raise _Refused(f"an array without a shape, or with more than {_MOST_DIMENSIONS} dimensions")
    dtype = _dtype(found.get(b"dtype"))
    elements, nonzero = 1, 1
    for size in shape:
        if type(size) is not int or size < 0:
            raise _Refused(f"an array with the impossible dimension {_shown(size)}")
        elements *= size
        nonzero *= size or 1
    if elements * dtype.itemsize != len(data) or (elements and not dtype.itemsize):
        size = elements * dtype.itemsize
        raise _Refused(f"an array of {size} bytes (shape {_shown(shape)}, {dtype.str}) has {len(data)} bytes of data")
    if nonzero * max(dtype.itemsize, 1) >= 2**62:
        raise _Refused(f"an array of the impossible shape {_shown(shape)}")
    np = _numpy()
    if not elements:
        empty: np.ndarray[Any, Any] = np.empty(shape, dtype)
        empty.flags.writeable = False
        return empty
    array: np.ndarray[Any, Any] = np.ndarray(tuple(shape), dtype, buffer=data)
    _check_elements(array, data)
    return array


def _check_elements(array: np.ndarray[Any, Any], data: memoryview) -> None:
    """Refuse elements that numpy takes from a buffer unseen and stumbles over later."""
    np = _numpy()
    if array.dtype.kind == "b" and (np.frombuffer(data, "u1") > 1).any():
        raise _Refused("an array of bool has bytes other than 0 and 1")
    if array.dtype.kind == "U":
        points = np.frombuffer(data, np.dtype("u4").newbyteorder(array.dtype.byteorder))
        if (points > _LARGEST_CODE_POINT).any():
            raise _Refused("an array of text has a code point that does not exist")


def _dtype(typestr: Any) -> np.dtype[Any]:
    if type(typestr) is memoryview:
        typestr = str(typestr, "ascii", "replace")
    match = _TYPESTR.fullmatch(typestr) if isinstance(typestr, str) else None
    if match is None:
        raise _Refused(f"an array with the dtype {_shown(typestr)}")
    kind, size = match["kind"], int(match["size"])
    if kind in _SIZES and size not in _SIZES[kind]:
        raise _Refused(f"an array with the dtype {_shown(typestr)}")
    try:
        dtype: np.dtype[Any] = _numpy().dtype(typestr)
    except (TypeError, ValueError) as error:
        raise _Refused(f"an array with the dtype {_shown(typestr)} ({error})") from None
    return dtype


def _scalar(found: Mapping[Any, Any]) -> Any:
    np = _numpy()
    dtype, data = _dtype(found.get(b"dtype")), found.get(b"data")
    kind = dtype.kind
    if kind == "b" and isinstance(data, bool):
        return np.bool_(data)
    if kind == "U" and isinstance(data, str):
        return np.str_(data)
    if kind == "S" and type(data) is memoryview:
        return np.bytes_(bytes(data))
    if kind == "f" and isinstance(data, float):
        with np.errstate(over="ignore"):
            value = dtype.type(data)
        if np.isfinite(value) or not np.isfinite(data):
            return value
    if kind in "iu" and isinstance(data, int) and not isinstance(data, bool):
        limits = np.iinfo(dtype)
        if limits.min <= data <= limits.max:
            return dtype.type(data)
    raise _Refused(f"{_shown(data)} is no scalar of dtype {dtype.str}")
