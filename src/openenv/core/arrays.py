"""Field types for arrays, images and bytes: what a model declares so that they come back as what they were.

    class Frame(Observation):
        pixels: Annotated[np.ndarray, ArraySpec("uint8", (84, 84, 4))]
        view: Annotated[np.ndarray, ImageSpec("png")]
        blob: Bytes

Where both ends use binary frames (the ``msgpack`` feature), an array keeps its dtype and shape and its elements cross
as they lie in memory. In JSON it is nested lists, and a declared dtype is given back on the other side. An image may be
encoded; it is then PNG or JPEG bytes, in JSON as base64. Bytes are base64 in JSON.

The types are for clients and servers alike. numpy is needed when a model with such a field is made, Pillow when an
image is encoded or decoded.
"""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from openenv.core.wire.array_values import cast_numbers, load_numpy
from openenv.core.wire.json_codec import Base64, Held, is_dumping

__all__ = ["ArraySpec", "Bytes", "BytesSpec", "ImageSpec"]

Dim: TypeAlias = int | None
MAX_PIXELS = 2**26
"""Largest image that is decoded: a compressed one may claim any size."""


@dataclass(frozen=True)
class ArraySpec:
    """Annotation of a numpy array field.

    Attributes:
        dtype: of its elements, as numpy names it (``"uint8"``, ``"<f4"``); None for any. An array of another dtype is
            refused; lists are made into this one, if no value changes by it.
        shape: its lengths; None for any shape, and None in it for any length. ``(None, 3)``: n rows of three.
    """

    dtype: str | None = None
    shape: tuple[Dim, ...] | None = None

    def __post_init__(self) -> None:
        if self.dtype is not None:
            kind = load_numpy().dtype(self.dtype).kind
            if kind not in "biufU":
                raise ValueError(f"arrays of {self.dtype} do not cross the wire; booleans, numbers and text do")
        if self.shape is not None:
            object.__setattr__(self, "shape", tuple(self.shape))

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.validate,
            serialization=core_schema.plain_serializer_function_ser_schema(
                _array_to_json, when_used="json-unless-none"
            ),
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return self.json_schema()

    def json_schema(self) -> dict[str, Any]:
        """The JSON form, nested lists, with ``dtype`` and ``shape`` beside it."""
        items: dict[str, Any] = _items(self.dtype)
        if self.shape is None:
            items = {"type": "array", "items": {}}
        else:
            for length in reversed(self.shape):
                bounds = {} if length is None else {"minItems": length, "maxItems": length}
                items = {"type": "array", "items": items, **bounds}
        about: dict[str, Any] = {}
        if self.dtype is not None:
            about["dtype"] = load_numpy().dtype(self.dtype).name
        if self.shape is not None:
            about["shape"] = list(self.shape)
        return {**items, **about}

    def validate(self, value: Any) -> Any:
        """Check an array, or make one of nested lists.

        Raises:
            PydanticCustomError: it is none, or of another dtype or shape.
        """
        array = value if isinstance(value, load_numpy().ndarray) else self._from_lists(value)
        if self.dtype is not None and array.dtype != load_numpy().dtype(self.dtype) and not self._is_text(array):
            raise _error("array_dtype", f"the array has dtype {array.dtype}, not {self.dtype}")
        if self.shape is not None and not _fits(array.shape, self.shape):
            raise _error("array_shape", f"the array has shape {array.shape}, not {_shown(self.shape)}")
        return array if array.flags.writeable else array.copy()  # one from the wire is a view of its frame

    def _is_text(self, array: Any) -> bool:
        """Text arrays are as wide as their longest element: ``U`` takes any."""
        wanted = load_numpy().dtype(self.dtype)
        return bool(array.dtype.kind == wanted.kind == "U" and wanted.itemsize in (0, array.dtype.itemsize))

    def _from_lists(self, value: Any) -> Any:
        np = load_numpy()
        if hasattr(value, "__array__"):
            return np.asarray(value)
        if isinstance(value, str | bytes | dict) or value is None:
            raise _error("array_type", f"an array or nested lists are wanted, not {type(value).__name__}")
        try:
            plain = np.asarray(value)
            array = (
                plain if self.dtype is None or plain.dtype.kind not in "biufU" else self._converted(np, value, plain)
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise _error("array_type", f"it is no array: {error}") from None
        if array.dtype.kind not in "biufU":
            raise _error("array_type", "its lists are ragged, or hold more than booleans, numbers and text")
        return array

    def _converted(self, np: Any, value: Any, plain: Any) -> Any:
        """The declared dtype, unless a value would change by it; a float may lose digits, as floats do."""
        wanted = np.dtype(self.dtype)
        if not plain.size and self.shape is not None:  # empty lists do not tell the lengths below them
            return np.empty((*plain.shape, *(length or 0 for length in self.shape[plain.ndim :])), wanted)
        if not plain.size:
            return np.empty(plain.shape, wanted)
        if (wanted.kind == "U") != (plain.dtype.kind == "U"):
            told = "text" if plain.dtype.kind == "U" else plain.dtype
            raise _error("array_dtype", f"{told} is not {wanted}")
        array = cast_numbers(value, plain, wanted)
        if wanted.kind == "U" and not (array == plain).all():
            raise _error("array_dtype", f"a text is longer than {wanted}")
        return array


def _items(dtype: str | None) -> dict[str, Any]:
    if dtype is None:
        return {}
    np = load_numpy()
    kept = np.dtype(dtype)
    if kept.kind in "iu":
        bounds = np.iinfo(kept)
        return {"type": "integer", "minimum": int(bounds.min), "maximum": int(bounds.max)}
    return {"type": {"b": "boolean", "f": "number", "U": "string"}[kept.kind]}


def _fits(shape: tuple[int, ...], wanted: Sequence[Dim]) -> bool:
    pairs = zip(shape, wanted, strict=False)
    return len(shape) == len(wanted) and all(length is None or size == length for size, length in pairs)


def _shown(shape: Sequence[Dim]) -> str:
    return "(" + ", ".join("any" if length is None else str(length) for length in shape) + ")"


def _array_to_json(value: Any) -> Any:
    if is_dumping():
        return Held(value)
    return value.tolist() if hasattr(value, "tolist") else value


@dataclass(frozen=True)
class ImageSpec:
    """Annotation of an image field: a ``uint8`` array ``[height, width]`` (grey) or ``[height, width, channels]``.

    Attributes:
        encoding: ``"png"`` keeps every pixel, ``"jpeg"`` is smaller and does not; None sends the array as it is.
        shape: as for `ArraySpec`; None for any. Encoded, an image of one channel comes back as ``[height, width]``,
            unless the shape has three lengths.
        quality: of JPEG, 1 to 95.
    """

    encoding: Literal["png", "jpeg"] | None = None
    shape: tuple[Dim, ...] | None = None
    quality: int = 90

    def __post_init__(self) -> None:
        if self.encoding not in (None, "png", "jpeg"):
            raise ValueError(f'encoding must be "png", "jpeg" or None, not {self.encoding!r}')
        if not 1 <= self.quality <= 95:
            raise ValueError(f"quality must be from 1 to 95, not {self.quality}")

    @property
    def _array(self) -> ArraySpec:
        return ArraySpec("uint8", self.shape)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        serializer = _array_to_json if self.encoding is None else self._to_wire
        return core_schema.no_info_plain_validator_function(
            self.validate,
            serialization=core_schema.plain_serializer_function_ser_schema(serializer, when_used="json-unless-none"),
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        if self.encoding is None:
            return self._array.json_schema()
        about = {} if self.shape is None else {"shape": list(self.shape)}
        media = {"contentEncoding": "base64", "contentMediaType": f"image/{self.encoding}"}
        return {"type": "string", **media, "dtype": "uint8", **about}

    def validate(self, value: Any) -> Any:
        """Check an image, or decode one.

        Raises:
            PydanticCustomError: it is none.
        """
        if isinstance(value, str | bytes | bytearray | memoryview):
            value = self._decoded(_from_base64(value) if isinstance(value, str) else bytes(value))
        array = self._array.validate(value)
        if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 2, 3, 4)):
            raise _error("image_shape", f"an image is [height, width] or [height, width, 1 to 4], not {array.shape}")
        return array

    def _decoded(self, data: bytes) -> Any:
        pillow = _load_pillow()
        try:
            with pillow.open(io.BytesIO(data), formats=["PNG", "JPEG"]) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise _error("image_size", f"an image of {image.width} x {image.height} is too large to decode")
                array = load_numpy().asarray(_plain_picture(image))
        except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
            raise _error("image_data", f"it is no PNG or JPEG image: {error}") from None
        lengths = self.shape
        if array.ndim == 2 and lengths is not None and len(lengths) == 3:
            return array[:, :, None]  # files do not tell one channel from none
        return array

    def _to_wire(self, value: Any) -> Any:
        array = self.validate(value)
        picture = array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array
        if self.encoding == "jpeg" and picture.ndim == 3 and picture.shape[2] != 3:
            raise ValueError("JPEG has grey or three channels; use PNG")
        out = io.BytesIO()
        options: dict[str, Any] = {"quality": self.quality} if self.encoding == "jpeg" else {"compress_level": 1}
        _load_pillow().fromarray(picture).save(out, self.encoding, **options)
        data = Base64(out.getvalue())
        return Held(data) if is_dumping() else base64.b64encode(data).decode("ascii")


class BytesSpec:
    """Annotation of a bytes field; see `Bytes`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.validate,
            serialization=core_schema.plain_serializer_function_ser_schema(self._to_wire, when_used="json-unless-none"),
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "contentEncoding": "base64"}

    def validate(self, value: Any) -> bytes:
        """Take bytes, or base64 text.

        Raises:
            PydanticCustomError: it is neither.
        """
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value)
        if isinstance(value, str):
            return _from_base64(value)
        raise _error("bytes_type", f"bytes or base64 text are wanted, not {type(value).__name__}")

    def _to_wire(self, value: Any) -> Any:
        data = Base64(value)
        return Held(data) if is_dumping() else base64.b64encode(data).decode("ascii")


Bytes = Annotated[bytes, BytesSpec()]
"""A field of any bytes. Given as bytes or as base64 text; in JSON it is base64."""


def _plain_picture(image: Any) -> Any:
    """The picture that is seen, of a file whose numbers are not its pixels: a palette's entries, single bits, inks."""
    if image.mode in ("P", "PA"):
        return image.convert("RGBA" if image.mode == "PA" or "transparency" in image.info else "RGB")
    return image.convert({"1": "L", "CMYK": "RGB", "YCbCr": "RGB"}.get(image.mode, image.mode))


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _error("bytes_base64", f"it is not base64: {error}") from None


def _load_pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("Encoded images need Pillow: pip install 'openenv[gymnasium]'") from error
    return Image


def _error(kind: str, text: str) -> PydanticCustomError:
    return PydanticCustomError(kind, "{text}", {"text": text})
