"""The array codec: bytes as others write them, arrays of every shape and layout, and frames made to do harm."""

from __future__ import annotations

import struct
import subprocess
import sys
import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from openenv.core.wire.arrays import MAX_CONTAINERS, MalformedValue, decode, encode, encode_parts
from openenv.core.wire.json_codec import MalformedFrame, UnencodableValue


def plain(value: Any) -> Any:
    """How openpi's codec gives arrays and scalars to msgpack."""
    if isinstance(value, np.ndarray):
        return {
            b"__ndarray__": True,
            b"data": value.tobytes(),
            b"dtype": value.dtype.str,
            b"shape": value.shape,
        }
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    raise TypeError(type(value))


def same(one: np.ndarray, other: Any) -> bool:
    return (
        isinstance(other, np.ndarray)
        and (one.dtype.str, one.shape) == (other.dtype.str, other.shape)
        and one.tobytes() == other.tobytes()
    )


# ------------------------------------------------------------------ frozen bytes

INT64 = "84 c40b 5f5f6e6461727261795f5f c3 c404 64617461 c410 0000000000000000 0200000000000000"
INT64 += "c405 6474797065 a3 3c6938 c405 7368617065 91 02"
TEXT = "84 c40b 5f5f6e6461727261795f5f c3 c404 64617461 c410 61000000 62000000 63000000 00000000"
TEXT += "c405 6474797065 a3 3c5532 c405 7368617065 91 02"
EMPTY = "84 c40b 5f5f6e6461727261795f5f c3 c404 64617461 c400 c405 6474797065 a3 3c6638 c405 7368617065 92 00 03"
ZERO_D = "84 c40b 5f5f6e6461727261795f5f c3 c404 64617461 c401 07 c405 6474797065 a3 7c7531 c405 7368617065 90"
FLAG = "84 c40b 5f5f6e6461727261795f5f c3 c404 64617461 c402 0100 c405 6474797065 a3 7c6231 c405 7368617065 91 02"
BIG = "84 c40b 5f5f6e6461727261795f5f c3 c404 64617461 c404 3fc00000 c405 6474797065 a3 3e6634 c405 7368617065 91 01"
SCALAR = "83 c40d 5f5f6e7067656e657269635f5f c3 c404 64617461 cb 3ff8000000000000 c405 6474797065 a3 3c6634"

VECTORS = [
    pytest.param(np.array([0, 2], dtype="<i8"), INT64, id="int64"),
    pytest.param(np.array(["ab", "c"]), TEXT, id="text"),
    pytest.param(np.zeros((0, 3)), EMPTY, id="zero-length"),
    pytest.param(np.array(7, dtype=np.uint8), ZERO_D, id="0-d"),
    pytest.param(np.array([True, False]), FLAG, id="bool"),
    pytest.param(np.array([1.5], dtype=">f4"), BIG, id="big-endian"),
]


@pytest.mark.parametrize(("array", "frame"), VECTORS)
def test_an_array_has_the_bytes_that_the_protocol_shows(array: np.ndarray, frame: str) -> None:
    assert encode(array).hex(" ") == bytes.fromhex(frame).hex(" ")
    assert same(array, decode(bytes.fromhex(frame)))


def test_a_scalar_has_the_bytes_that_the_protocol_shows() -> None:
    assert encode(np.float32(1.5)) == bytes.fromhex(SCALAR)
    found = decode(bytes.fromhex(SCALAR))
    assert (found, type(found)) == (np.float32(1.5), np.float32)


def test_f_order_is_laid_out_anew() -> None:
    array = np.asfortranarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    assert bytes(range(6)) in encode(array)
    assert same(np.arange(6, dtype=np.uint8).reshape(2, 3), decode(encode(array)))


def test_keys_may_stand_in_any_order_and_the_dtype_may_be_binary() -> None:
    frame = msgpack.packb({b"shape": [2], b"dtype": b"<i2", b"data": b"\1\0\2\0", b"__ndarray__": True})
    assert same(np.array([1, 2], dtype="<i2"), decode(frame))


# ------------------------------------------------------------------ round trips

DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(endianness="="),
    hnp.integer_dtypes(endianness=">"),
    hnp.unsigned_integer_dtypes(endianness=">"),
    hnp.floating_dtypes(endianness="<", sizes=(16, 32, 64)),
    hnp.floating_dtypes(endianness=">", sizes=(16, 32, 64)),
    hnp.unicode_string_dtypes(endianness="<", max_len=5),
    hnp.unicode_string_dtypes(endianness=">", max_len=5),
)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6)


@st.composite
def strided(draw: st.DrawFn) -> np.ndarray:
    """An array of any dtype, shape and strides: transposed, stepped through, reversed, in F order, repeated."""
    array = draw(hnp.arrays(draw(DTYPES), draw(SHAPES)))
    if draw(st.booleans()):
        array = np.asfortranarray(array)
    if array.ndim and draw(st.booleans()):
        array = array.transpose(draw(st.permutations(range(array.ndim))))
    if array.ndim and draw(st.booleans()):
        array = array[tuple(slice(None, None, draw(st.sampled_from([1, 2, -1, -2]))) for _ in array.shape)]
    if array.ndim and draw(st.booleans()):
        array = np.broadcast_to(array, (draw(st.integers(0, 3)), *array.shape))
    return array


@given(strided())
def test_an_array_of_any_dtype_shape_and_strides_survives(array: np.ndarray) -> None:
    assert same(array, decode(encode({"a": [array]}))["a"][0])
    assert encode({"a": [array]}) == msgpack.packb({"a": [array]}, default=plain)


@given(st.integers(0, 3), st.sampled_from(["|u1", "<f8", ">i4", "<U7", "|b1"]), st.integers(4000, 70000))
def test_a_large_array_is_not_copied_into_its_frame(before: int, dtype: str, size: int) -> None:
    array = np.zeros(size, dtype=dtype)
    value = {"x" * before: before, "a": array, "z": 1}
    parts = encode_parts(value)
    assert b"".join(parts) == msgpack.packb(value, default=plain)
    shared = [part for part in parts if isinstance(part, memoryview) and np.shares_memory(np.asarray(part), array)]
    assert len(shared) == (array.nbytes >= 4096)
    assert same(array, decode(b"".join(parts))["a"])


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(np.asfortranarray(np.arange(6000.0).reshape(60, 100)), id="F order"),
        pytest.param(np.arange(6000.0).reshape(60, 100).T, id="transposed"),
        pytest.param(np.arange(24000, dtype=">i4")[::-2], id="reversed and big-endian"),
        pytest.param(np.broadcast_to(np.arange(100.0), (60, 100)), id="repeated"),
        pytest.param(np.array([["ab"] * 40] * 40).T, id="text"),
        pytest.param(np.lib.stride_tricks.as_strided(np.arange(9000, dtype="u1"), (8000, 2), (1, 1)), id="overlapping"),
        pytest.param(np.full((1, 1, 5000), True)[:, :, ::1], id="bool"),
    ],
)
def test_a_large_array_of_any_layout_is_sent_in_c_order(array: np.ndarray) -> None:
    assert array.nbytes >= 4096
    assert encode(array) == msgpack.packb(array, default=plain)
    assert same(array, decode(encode(array)))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=40)
    | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=4) | st.integers(0, 9), inner),
    max_leaves=30,
)


@given(VALUES)
@example(["x" * 70000, b"y" * 70000, list(range(70000)), dict.fromkeys(range(70000), 1)])
def test_plain_values_are_those_of_msgpack(value: Any) -> None:
    assert encode(value) == msgpack.packb(value)
    assert decode(msgpack.packb(value)) == value


@pytest.mark.parametrize(
    "value", [np.int8(-3), np.uint64(2**64 - 1), np.float16(0.5), np.bool_(True), np.int64(-(2**63)), np.float32("nan")]
)
def test_a_scalar_keeps_its_type(value: np.generic) -> None:
    found = decode(encode([value]))[0]
    assert type(found) is type(value)
    assert found.tobytes() == value.tobytes()


def test_scalars_that_are_python_values_too_are_sent_as_those() -> None:
    assert encode([np.float64(1.5), np.str_("a"), np.bytes_(b"b")]) == msgpack.packb([1.5, "a", b"b"])


def test_extension_values_of_unknown_keys_do_no_harm() -> None:
    value = {"when": msgpack.Timestamp(5, 7), "what": msgpack.ExtType(9, b"xyz")}
    assert decode(msgpack.packb(value)) == value
    assert encode(value) == msgpack.packb(value)


# ------------------------------------------------------------------ who owns what


def test_decoded_arrays_are_read_only_views_of_the_frame() -> None:
    frame = encode({"a": np.arange(5000), "b": np.zeros((2, 0))})
    found = decode(frame)
    assert np.shares_memory(found["a"], np.frombuffer(frame, "u1"))
    for array in found.values():
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 1
    copy = np.array(found["a"])
    copy[0] = 9
    assert found["a"][0] == 0


def test_a_frame_in_a_buffer_that_can_be_written_gives_read_only_arrays_too() -> None:
    array = decode(bytearray(encode(np.arange(3))))
    assert not array.flags.writeable
    assert array.tolist() == [0, 1, 2]


# ------------------------------------------------------------------ what is not sent


@pytest.mark.parametrize(
    ("value", "path", "why"),
    [
        ({"data": {"states": {"t": np.array([object()])}}}, "data.states.t", "object"),
        ({"a": [0, np.zeros(2, [("x", "i4")])]}, "a[1]", "structured"),
        ({"a": np.zeros(2, "V3")}, "a", "void"),
        ({"a": np.zeros(2, complex)}, "a", "complex"),
        ({"a": np.complex64(1)}, "a", "complex"),
        ({"a": 1j}, "a", "complex"),
        ({"a": np.zeros(2, np.longdouble)}, "a", "machine"),
        ({"a": np.datetime64("2020-01-01")}, "a", "scalar"),
        ({"a": np.ma.masked_array([1, 2], [True, False])}, "a", "mask"),
        ({"a": {"b": {1, 2}}}, "a.b", "set"),
        ({"a": 2**64}, "a", "range"),
        ({"a": "\ud800"}, "a", "surrogates"),
        ({"a": {(1, 2): 3}}, "a.(1, 2)", "key"),
        ({"a": {b"__ndarray__": True}}, "a.b'__ndarray__'", "key"),
    ],
)
def test_what_has_no_form_is_refused_with_its_path(value: Any, path: str, why: str) -> None:
    with pytest.raises(UnencodableValue, match=why) as caught:
        encode(value)
    assert caught.value.path == path


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(UnencodableValue, match="nested"):
        encode(value)


# ------------------------------------------------------------------ hostile frames


def forged(**changes: Any) -> bytes:
    keys = {b"__ndarray__": True, b"data": b"\0" * 8, b"dtype": "<i4", b"shape": [2]}
    keys.update({name.encode(): value for name, value in changes.items()})
    return msgpack.packb({"x": [keys]})


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(forged(shape=[3]), id="too little data"),
        pytest.param(forged(shape=[1]), id="too much data"),
        pytest.param(forged(shape=[-1, -2]), id="negative, product fits"),
        pytest.param(forged(shape=[2**33, 2**33]), id="overflow"),
        pytest.param(forged(shape=[2**32, 2**31, 2], data=b""), id="overflow to zero"),
        pytest.param(forged(shape=[0, 2**62, 2**62], data=b""), id="huge beside zero"),
        pytest.param(forged(shape=[2.0]), id="float dimension"),
        pytest.param(forged(shape=[True, True], data=b"\0" * 4), id="bool dimension"),
        pytest.param(forged(shape=[1] * 64, data=b"\0" * 4), id="too many dimensions"),
        pytest.param(forged(shape=2), id="shape is no list"),
        pytest.param(forged(data="\0" * 8), id="data is text"),
        pytest.param(forged(data=None), id="no data"),
        pytest.param(forged(dtype="|O", shape=[1]), id="object"),
        pytest.param(forged(dtype="|V8", shape=[1]), id="void"),
        pytest.param(forged(dtype="<c8", shape=[1]), id="complex"),
        pytest.param(forged(dtype="<i4,<i4", shape=[1]), id="structured"),
        pytest.param(forged(dtype="(1000000,1000000)f8"), id="sub-array"),
        pytest.param(forged(dtype="float32"), id="a name"),
        pytest.param(forged(dtype="<f3"), id="odd size"),
        pytest.param(forged(dtype="<i4 "), id="space"),
        pytest.param(forged(dtype="<M8[nonsense]", shape=[1]), id="unit"),
        pytest.param(forged(dtype="<m8[0s]", shape=[1]), id="unit of no length"),
        pytest.param(forged(dtype="<U0", shape=[2**40], data=b""), id="elements without bytes"),
        pytest.param(forged(dtype="<U999999999", shape=[1]), id="huge elements"),
        pytest.param(forged(dtype="<U1", shape=[1], data=b"\xff\xff\xff\xff"), id="no code point"),
        pytest.param(forged(dtype="|b1", shape=[2], data=b"\1\2"), id="no bool"),
        pytest.param(forged(dtype=None), id="no dtype"),
    ],
)
def test_a_forged_array_is_refused_before_anything_is_allocated(frame: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedValue) as caught:
            decode(frame)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert caught.value.path == "x[0]"
    assert isinstance(caught.value, MalformedFrame)


@pytest.mark.parametrize(
    ("data", "dtype"),
    [(300, "|i1"), (-1, "|u1"), (1.5, "<i4"), (True, "<i4"), ("x", "<f4"), (None, "<f4"), (1e10, "<f2"), (1, "|O")],
)
def test_a_forged_scalar_is_refused(data: Any, dtype: str) -> None:
    with pytest.raises(MalformedValue):
        decode(msgpack.packb({b"__npgeneric__": True, b"data": data, b"dtype": dtype}))


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xc1", id="no value"),
        pytest.param(b"\x01\x02", id="trailing bytes"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="list"),
        pytest.param(b"\xdf\xff\xff\xff\xff", id="map"),
        pytest.param(b"\xc6\xff\xff\xff\xff", id="bin"),
        pytest.param(b"\xdb\xff\xff\xff\xff", id="str"),
        pytest.param(b"\xc9\xff\xff\xff\xff\x01", id="ext"),
        pytest.param(b"\x91" * 100_000, id="nested lists"),
        pytest.param(b"\x81\xa1a" * 100_000, id="nested maps"),
        pytest.param((b"\xdd" + struct.pack(">I", 90_000)) * 99 + b"\xc0" * 90_000, id="each list as large"),
        pytest.param(b"\xdd" + struct.pack(">I", 2_000_000) + b"\x80" * 2_000_000, id="empty maps without end"),
        pytest.param(b"\x81\x90\x01", id="list as key"),
        pytest.param(b"\x82\xa1a\x01\xa1a\x02", id="key twice"),
        pytest.param(b"\xa2\xff\xfe", id="no UTF-8"),
        pytest.param(b"\xc7\x05\xff12345", id="odd timestamp"),
        pytest.param(b"\xd4\x80\x00", id="reserved extension"),
    ],
)
def test_a_hostile_frame_is_refused_cheaply(frame: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedValue):
            decode(frame)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000 + 100 * MAX_CONTAINERS
    finally:
        tracemalloc.stop()


SAMPLE = encode(
    {
        "message_type": "infer",
        "data": {"images": {"c": np.zeros((1, 2, 2, 3), np.uint8)}, "states": {"t": np.zeros((1, 2))}, "text": ["go"]},
        "env_indices": np.arange(1),
        "more": [np.float32(1), None, -5, 2**40, 1.5, b"x", {"y": np.array(["ab"])}],
    }
)


@pytest.mark.parametrize("size", range(len(SAMPLE)))
def test_a_frame_that_ends_early_is_refused(size: int) -> None:
    with pytest.raises(MalformedValue):
        decode(SAMPLE[:size])


@given(st.lists(st.tuples(st.integers(0, len(SAMPLE) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_frame_with_changed_bytes_is_read_or_refused(changes: list[tuple[int, int]]) -> None:
    frame = bytearray(SAMPLE)
    for place, byte in changes:
        frame[place] = byte
    try:
        encode(decode(frame))
    except (MalformedValue, UnencodableValue):
        pass


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(frame: bytes) -> None:
    try:
        decode(frame)
    except MalformedValue:
        pass


# ------------------------------------------------------------------ the extra


@pytest.mark.parametrize("missing", ["numpy", "msgpack"])
def test_without_the_extra_the_error_says_what_to_install(missing: str) -> None:
    script = f"""
import sys
sys.modules[{missing!r}] = None
from openenv.core.wire import arrays
try:
    arrays.encode({{}})
except ImportError as error:
    assert {missing!r} in str(error) and "pip install 'openenv[policy]'" in str(error), error
else:
    raise SystemExit("no error")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_importing_the_codec_loads_neither() -> None:
    script = "import sys; from openenv.core.wire import arrays; assert not {'numpy', 'msgpack'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
