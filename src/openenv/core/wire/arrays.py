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

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from openenv.core.wire.array_reader import Reader
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
from openenv.core.wire.json_codec import MalformedFrame, UnencodableValue

if TYPE_CHECKING:
    import numpy as np

__all__ = ["MAX_CONTAINERS", "MAX_DEPTH", "Buffer", "MalformedValue", "decode", "encode", "encode_parts"]

Buffer: TypeAlias = bytes | memoryview

OWN_PART_BYTES = 4096
"""Arrays from this size on are parts of their own; smaller ones are copied between their neighbours."""

_PLAIN_TYPES = (str, bytes, bool, int, float)
_KEY_TYPES = (str, bytes, int, float)
_MARKERS = frozenset({NDARRAY, NPGENERIC})


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


# ------------------------------------------------------------------ encoding


def encode(value: Any) -> bytes:
    """Encode a value as one msgpack frame.

    Args:
        value: anything made of None, bool, int, float, str, bytes, mappings, lists, tuples, numpy arrays and scalars,
            and msgpack's extension values.

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
    except Refused as refused:
        raise UnencodableValue(refused.path, refused.type_name, refused.why) from None
    return writer.finish()


class _Writer:
    """Collects the parts of one frame."""

    def __init__(self) -> None:
        self._np = load_numpy()
        msgpack = load_msgpack()
        self._packer = msgpack.Packer(autoreset=False, buf_size=OWN_PART_BYTES)
        self._plain_types = (*_PLAIN_TYPES, msgpack.ExtType, msgpack.Timestamp)
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
        if isinstance(value, self._np.ndarray):
            self._array(value)
        elif value is None or isinstance(value, self._plain_types):  # numpy's float64 and str_ too
            self._plain(value)
        elif isinstance(value, self._np.generic):
            self._scalar(value)
        elif depth >= MAX_DEPTH:
            raise Refused(f"it is nested more than {MAX_DEPTH} levels deep", type(value).__name__)
        elif isinstance(value, Mapping):
            self._map(value, depth)
        elif isinstance(value, (list, tuple)):
            self._packer.pack_array_header(len(value))
            for index, item in enumerate(value):
                try:
                    self.write(item, depth + 1)
                except Refused as refused:
                    refused.keys.append(index)
                    raise
        else:
            raise Refused(f"{type(value).__name__} has no msgpack form", type(value).__name__)

    def _plain(self, value: Any) -> None:
        try:
            self._packer.pack(value)
        except (OverflowError, ValueError) as error:  # an int beyond 64 bits, a str with lone surrogates
            raise Refused(str(error), type(value).__name__) from None

    def _map(self, value: Mapping[Any, Any], depth: int) -> None:
        self._packer.pack_map_header(len(value))
        for key, item in value.items():
            try:
                if type(key) is not str and (not isinstance(key, _KEY_TYPES) or key in _MARKERS):
                    raise Refused(f"{shown(key)} cannot be a key here", type(key).__name__)
                self._plain(key)
                self.write(item, depth + 1)
            except Refused as refused:
                refused.keys.append(key)
                raise

    def _array(self, value: np.ndarray[Any, Any]) -> None:
        dtype = value.dtype
        self._check(dtype, type(value).__name__)
        if isinstance(value, self._np.ma.MaskedArray):
            raise Refused("the mask of a masked array would be lost; use .filled()", "MaskedArray")
        packer = self._packer
        packer.pack_map_header(4)
        packer.pack(NDARRAY)
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
            raise Refused(f"its {size} bytes are more than a msgpack value can hold (4 GiB)", "ndarray")
        self._flush()
        self._parts.append(struct.pack(">BH", 0xC5, size) if size < 2**16 else struct.pack(">BI", 0xC6, size))
        whole = value if value.flags.c_contiguous else value.copy(order="C")
        self._parts.append(self._np.asarray(whole).reshape(-1).view("u1").data)

    def _scalar(self, value: np.generic) -> None:
        dtype = value.dtype
        self._check(dtype, type(value).__name__)
        if dtype.kind not in "biuf":
            raise Refused(f"a scalar of dtype {dtype} has no form on the wire", type(value).__name__)
        self._packer.pack({NPGENERIC: True, b"data": value.item(), b"dtype": dtype.str})

    def _check(self, dtype: np.dtype[Any], type_name: str) -> None:
        why = _dtype_fault(dtype.kind, dtype.itemsize)
        if why or dtype.fields is not None:
            raise Refused(why or f"dtype {dtype} is structured", f"{type_name} of {dtype}")


def _dtype_fault(kind: str, itemsize: int) -> str:
    """Why elements of this kind do not travel; empty if they do."""
    if kind in "VOc" or kind not in "biufUSmM":
        name = {"V": "structured or void", "O": "object", "c": "complex"}.get(kind, f"'{kind}'")
        return f"arrays of {name} elements have no form on the wire"
    if kind in SIZES and itemsize not in SIZES[kind]:
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
    reader = Reader(view)
    try:
        value = reader.read(0)
        if reader.pos != len(view):
            raise Refused(f"{len(view) - reader.pos} bytes stand after the end of the message")
    except Refused as refused:
        raise MalformedValue(refused.path, refused.why) from None
    return value
