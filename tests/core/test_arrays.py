"""Array, image and bytes fields: what they take, what they refuse, and both forms on the wire."""

from __future__ import annotations

import json
from typing import Annotated, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pydantic import Field, ValidationError
from pydantic_core import PydanticCustomError

from openenv.core.arrays import ArraySpec, Bytes, ImageSpec
from openenv.core.env_server.serialization import serialize_observation
from openenv.core.env_server.types import Action, Observation
from openenv.core.wire import frames
from openenv.core.wire.json_codec import UnencodableValue, encode

DTYPES = ["bool", "uint8", "int8", "int16", "uint32", "int64", "uint64", "float16", "float32", "float64", ">f4", ">i8"]


class Frame(Observation):
    any: Annotated[np.ndarray, ArraySpec()] = Field(default_factory=lambda: np.zeros(0))
    pixels: Annotated[np.ndarray, ArraySpec("uint8", (None, 3))] | None = None
    view: Annotated[np.ndarray, ImageSpec("png")] | None = None
    photo: Annotated[np.ndarray, ImageSpec("jpeg", (8, 8, 3))] | None = None
    grey: Annotated[np.ndarray, ImageSpec("png", (None, None, 1))] | None = None
    raw: Annotated[np.ndarray, ImageSpec()] | None = None
    blob: Bytes = b""
    plain: bytes = b""
    free: Any = None


def carried(model: Observation, *, binary: bool) -> Any:
    data = serialize_observation(model, keep=True)
    frame = frames.encode({"type": "observation", "data": data}, binary=binary)
    received = frames.decode(frame, binary=binary)["data"]
    return type(model).model_validate({**received["observation"], "reward": received["reward"]})


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    array = draw(hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)))
    layout = draw(st.sampled_from(["C", "F", "reversed", "strided"]))
    if layout == "F":
        return np.asfortranarray(array)
    if layout == "reversed" and array.ndim:
        return array[::-1]
    return array[..., ::2] if layout == "strided" and array.ndim else array


@given(arrays())
def test_an_array_comes_back_with_dtype_shape_and_every_value(array: np.ndarray) -> None:
    back = carried(Frame(any=array, free={"deep": [array]}), binary=True)
    for one in (back.any, back.free["deep"][0]):
        assert (one.dtype, one.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(one, array)
    assert back.any.flags.writeable


@given(arrays())
def test_in_text_the_values_are_the_same_and_nothing_turns_into_null(array: np.ndarray) -> None:
    frame = frames.encode(serialize_observation(Frame(any=array), keep=True), binary=False)
    assert b"null" not in frame.partition(b'"any":')[2].partition(b',"pixels"')[0]
    listed = json.loads(frame)["observation"]["any"]
    np.testing.assert_array_equal(np.asarray(listed, array.dtype).reshape(array.shape), array)


@given(hnp.arrays("uint8", st.tuples(st.integers(0, 4), st.just(3))), st.binary(max_size=50), st.booleans())
def test_declared_fields_are_the_same_in_both_forms(pixels: np.ndarray, blob: bytes, binary: bool) -> None:
    back = carried(Frame(pixels=pixels, blob=blob), binary=binary)
    assert back.blob == blob
    if len(pixels) or binary:  # an empty list does not tell its other lengths
        assert (back.pixels.dtype, back.pixels.shape) == (pixels.dtype, pixels.shape)
        np.testing.assert_array_equal(back.pixels, pixels)


def test_plain_bytes_are_text_in_text_and_themselves_in_binary() -> None:
    beside = np.ones(1)
    assert carried(Frame(plain=b"\xff\x00", free=beside), binary=True).plain == b"\xff\x00"
    assert carried(Frame(plain=b"text"), binary=False).plain == b"text"
    with pytest.raises(UnencodableValue, match=r"'observation\.plain'.*openenv\.core\.arrays\.Bytes"):
        frames.encode(serialize_observation(Frame(plain=b"\xff"), keep=True), binary=False)


@pytest.mark.parametrize("binary", [False, True])
def test_images(binary: bool) -> None:
    rng = np.random.default_rng(0)
    view = rng.integers(0, 256, (5, 7, 4), "uint8")
    smooth = np.full((8, 8, 3), 130, "uint8")
    grey = rng.integers(0, 256, (5, 7, 1), "uint8")
    back = carried(Frame(view=view, photo=smooth, grey=grey, raw=view[:, :, 0]), binary=binary)
    np.testing.assert_array_equal(back.view, view)
    np.testing.assert_array_equal(back.grey, grey)
    np.testing.assert_array_equal(back.raw, view[:, :, 0])
    assert back.photo.shape == (8, 8, 3)
    assert abs(back.photo.astype(int) - 130).max() <= 3


def test_an_encoded_image_is_what_any_program_reads() -> None:
    view = np.zeros((2, 2, 3), "uint8")
    data = serialize_observation(Frame(view=view))["observation"]
    assert data["view"].startswith("iVBORw0KGgo")  # a PNG file in base64
    assert json.loads(Frame(view=view).model_dump_json())["view"] == data["view"]
    assert serialize_observation(Frame(view=view), keep=True)["observation"]["view"].startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("pixels", np.zeros((2, 3)), "dtype float64, not uint8"),
        ("pixels", np.zeros((2, 4), "uint8"), r"shape \(2, 4\), not \(any, 3\)"),
        ("pixels", [[1, 2, 256]], "does not fit into uint8"),
        ("pixels", [[1, 2, 0.5]], "does not fit into uint8"),
        ("pixels", [[1, 2, 3], [4]], "no array|ragged"),
        ("pixels", "text", "nested lists are wanted, not str"),
        ("any", {"a": 1}, "nested lists are wanted, not dict"),
        ("any", None, "nested lists are wanted, not NoneType"),
        ("view", b"not an image", "no PNG or JPEG"),
        ("view", "not base64!", "not base64"),
        ("view", np.zeros((2, 2, 5), "uint8"), "an image is"),
        ("blob", 5, "bytes or base64 text are wanted, not int"),
        ("blob", "%%%", "not base64"),
    ],
)
def test_what_does_not_fit_is_told(field: str, value: Any, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        Frame.model_validate({field: value})


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("uint64", [2**64 - 1, 1]),  # numpy makes floats of large and small integers together
        ("uint64", [2**63 + 1, 0]),
        ("int64", [2**62 + 1, 1.0]),
        ("float16", [float("inf"), float("-inf"), 65504.0]),
        ("U3", ["abc", ""]),
        ("U", []),
    ],
)
def test_lists_become_arrays_value_for_value(dtype: str, value: list[Any]) -> None:
    array = ArraySpec(dtype).validate(value)
    assert (array.tolist(), array.dtype.kind) == (value, np.dtype(dtype).kind)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("uint64", [2**63, -1]),
        ("int64", [2**63, -1]),
        ("int8", [float("nan")]),
        ("int64", [1e19]),
        ("float32", [1e39, 1.0]),
        ("float16", [70_000]),
        ("U3", ["abcd"]),
        ("U", [1, 2]),
        ("int32", ["15"]),
    ],
)
def test_lists_whose_values_would_change_are_refused(dtype: str, value: list[Any]) -> None:
    with pytest.raises(PydanticCustomError, match=r"does not fit|is not|longer"):
        ArraySpec(dtype).validate(value)


def test_a_picture_file_is_decoded_to_what_is_seen() -> None:
    import io

    from PIL import Image

    def decoded(picture: Image.Image, kind: str = "png", **options: Any) -> Any:
        out = io.BytesIO()
        picture.save(out, kind, **options)
        return ImageSpec("png").validate(out.getvalue())

    indexed = Image.new("P", (2, 1))
    indexed.putpalette([10, 20, 30, 40, 50, 60])
    indexed.putpixel((1, 0), 1)
    assert decoded(indexed).tolist() == [[[10, 20, 30], [40, 50, 60]]]
    assert decoded(indexed, transparency=1).tolist() == [[[10, 20, 30, 255], [40, 50, 60, 0]]]
    bits = Image.new("1", (2, 1))
    bits.putpixel((1, 0), 1)
    assert decoded(bits).tolist() == [[0, 255]]
    assert decoded(Image.new("CMYK", (2, 1)), "jpeg").shape == (1, 2, 3)


def test_a_picture_that_claims_to_be_huge_is_not_decoded() -> None:
    import io

    from PIL import Image

    out = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(out, "png")
    with pytest.raises(ValidationError, match=r"too large|no PNG"):
        Frame.model_validate({"view": out.getvalue()})


@pytest.mark.parametrize("dtype", ["complex64", "object", "V8", "M8[s]"])
def test_a_dtype_that_cannot_travel_is_refused_where_it_is_declared(dtype: str) -> None:
    with pytest.raises(ValueError, match="do not cross the wire"):
        ArraySpec(dtype)


def test_masked_and_complex_arrays_are_refused_and_named() -> None:
    for array in (np.ma.masked_array([1.0, 2.0], [True, False]), np.ones(2, "complex64")):
        for binary in (False, True):
            with pytest.raises(UnencodableValue, match="free"):
                carried(Frame(free=array), binary=binary)


def test_the_json_schema_tells_dtype_and_shape() -> None:
    fields = Frame.model_json_schema()["properties"]
    pixels = fields["pixels"]["anyOf"][0]
    assert (pixels["dtype"], pixels["shape"]) == ("uint8", [None, 3])
    row = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 255}, "minItems": 3, "maxItems": 3}
    assert pixels["items"] == row
    assert fields["view"]["anyOf"][0]["contentMediaType"] == "image/png"
    assert fields["blob"]["contentEncoding"] == "base64"


def test_a_field_of_lists_takes_an_array_of_the_other_end() -> None:
    from openenv.core.env_server.serialization import deserialize_action
    from openenv.core.hooks import parse_model

    class Push(Action):
        force: list[float]

    class Seen(Observation):
        row: list[int]

    assert deserialize_action({"force": np.array([1.5, 2.0])}, Push).force == [1.5, 2.0]
    assert parse_model(Seen, {"row": np.arange(3)}).row == [0, 1, 2]
    with pytest.raises(ValidationError):
        deserialize_action({"force": np.array(["a"])}, Push)


def test_a_frame_stays_text_if_text_changes_nothing() -> None:
    plain = {"type": "step", "data": {"x": [1, 2.5, None, "é"]}}
    assert frames.encode(plain, binary=True) == encode(plain)
    packed = frames.encode({"type": "step", "data": {"x": np.arange(3)}}, binary=True)
    assert not frames.is_text(packed)
    assert frames.decode(frames.numbered(packed, 7), binary=True)["seq"] == 7
    assert frames.decode(frames.numbered(encode(plain), 7), binary=True) == {"seq": 7, **plain}


def test_an_array_that_only_text_can_carry_is_text() -> None:
    frame = frames.encode({"x": np.array([1, "a", None], dtype=object), "y": np.arange(2)}, binary=True)
    assert json.loads(frame) == {"x": [1, "a", None], "y": [0, 1]}
