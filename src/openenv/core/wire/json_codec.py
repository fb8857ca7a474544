"""The JSON codec: Python values to UTF-8 text frames and back, losing nothing on the way.

What JSON cannot hold either has one documented form or is refused with the path of the value:

* NaN and the infinities are the bare tokens that Python's ``json`` writes and reads;
* numpy scalars become numbers and arrays become nested lists (numpy itself is never imported here);
* pydantic models follow their own JSON rules; enums become their value;
* bytes are refused unless a pydantic field declares how it writes them, because text in their place
  would come back as something else.

A dump of a model can keep its arrays and declared bytes as they are (`dump_model` with ``keep``), for a frame whose
form is chosen later; `Held` is how a field's serializer hands such a value through pydantic.
"""

from __future__ import annotations

import base64
import json
import math
import secrets
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

import pydantic  # whose names load when they are first used; importing a client must stay cheap

__all__ = [
    "MAX_DEPTH",
    "Base64",
    "Held",
    "MalformedFrame",
    "NotText",
    "UnencodableValue",
    "decode",
    "dump_model",
    "encode",
    "holds_arrays",
    "is_dumping",
    "non_finite_path",
    "parse_json",
    "without_arrays",
]

MAX_DEPTH = 200
"""Deepest nesting of arrays and objects accepted in a received frame."""

_NON_NULL_ATOMS = frozenset({str, int, float, bool})
_ATOMS = _NON_NULL_ATOMS | {type(None)}
_NO_FLOATS = _ATOMS - {float}
_BYTES = (bytes, bytearray, memoryview)
_ITEMS = (list, tuple, set, frozenset)


class UnencodableValue(TypeError):
    """A value has no JSON form.

    Attributes:
        path: where it stands, as ``board[2].cell``; empty for the value as a whole.
        type_name: its type.
    """

    def __init__(self, path: str, type_name: str, why: str = "") -> None:
        self.path = path
        self.type_name = type_name
        self.why = why
        where = f"field '{path}'" if path else "the value"
        super().__init__(f"{where} cannot be encoded: {why or f'{type_name} has no JSON form'}")


class MalformedFrame(ValueError):
    """Received bytes are not a JSON document that this codec accepts."""


class NotText(TypeError):
    """An array or bytes stand where only what text leaves unchanged was asked for."""


class Base64(bytes):
    """Bytes of a field that declares them so: base64 in text, themselves in a binary frame."""


class Utf8(bytes):
    """Bytes of a plain ``bytes`` field, which pydantic writes as text: themselves in a binary frame."""


class Held:
    """Carries a value from a field's serializer to the dump it is for.

    Args:
        value: an array, or `Base64`.
    """

    def __init__(self, value: Any) -> None:
        self.value = value


# ------------------------------------------------------------------ encoding


def encode(value: Any, *, strict: bool = False) -> bytes:
    """Encode a value as compact UTF-8 JSON.

    Args:
        value: anything made of JSON values, numpy values, enums and pydantic models.
        strict: take no array and no bytes, which text changes.

    Returns:
        The text frame, as UTF-8 bytes.

    Raises:
        UnencodableValue: a value inside has no JSON form; names its path and type.
        NotText: with ``strict``, there is an array or bytes.
    """
    try:
        return (_STRICT_JSON if strict else _JSON).encode(value).encode("utf-8")
    except NotText:
        raise
    except UnencodableValue as error:
        if error.path:  # a pydantic model below named its own field
            raise _locate(value, error) from None
        raise _locate(value, error) from error
    except (TypeError, ValueError, RecursionError) as error:  # UnicodeEncodeError is a ValueError
        raise _locate(value, error) from error


def _plain(value: Any) -> Any:
    """One step from a foreign type towards JSON, for ``json`` and for pydantic alike."""
    if isinstance(value, pydantic.BaseModel):
        return dump_model(value)
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "dtype") and callable(getattr(value, "tolist", None)):
        if hasattr(value, "mask"):
            raise UnencodableValue("", type(value).__name__, "the mask of a masked array would be lost; use .filled()")
        if "complex" in str(value.dtype):
            raise UnencodableValue("", f"{type(value).__name__} of {value.dtype}", "")
        return value.tolist()
    if isinstance(value, Held):
        return value.value.tolist() if not isinstance(value.value, bytes) else _plain(value.value)
    if isinstance(value, Base64):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Utf8):
        return _utf8(value)
    raise UnencodableValue("", type(value).__name__, _advice(value))


def _plain_strict(value: Any) -> Any:
    if isinstance(value, bytes) or _is_array(value):
        raise NotText(type(value).__name__)
    return _plain(value)


def _writer(default: Callable[[Any], Any]) -> json.JSONEncoder:
    return json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=default)


_JSON, _STRICT_JSON = _writer(_plain), _writer(_plain_strict)  # made once: `json.dumps` makes one for each call


def _utf8(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnencodableValue("", "bytes", f"{_advice(value)}; it is not UTF-8 at byte {error.start}") from None


def _is_array(value: Any) -> bool:
    """Whether a value is a numpy array whose elements have a binary form. numpy is not imported for it."""
    numpy = sys.modules.get("numpy")
    return (
        numpy is not None
        and isinstance(value, numpy.ndarray)
        and not isinstance(value, numpy.ma.MaskedArray)
        and value.dtype.kind in "biufU"
        and (value.dtype.kind == "U" or value.dtype.itemsize <= 8)
    )


def holds_arrays(value: Any) -> bool:
    """Whether there is an array in a decoded value."""
    if isinstance(value, dict):
        return any(map(holds_arrays, value.values()))
    if isinstance(value, list):
        return any(type(item) not in _ATOMS and holds_arrays(item) for item in value)
    return hasattr(value, "tolist")


def without_arrays(value: Any) -> Any:
    """A decoded value with its arrays as nested lists and its numpy scalars as numbers, as text would have had them."""
    if isinstance(value, dict):
        return {name: without_arrays(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_arrays(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _advice(value: Any) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return (
            f"{type(value).__name__} has no JSON form that comes back the same; declare the field as "
            "openenv.core.arrays.Bytes, or send text"
        )
    return ""


def dump_model(model: pydantic.BaseModel, *, exclude: set[str] | None = None, keep: bool = False) -> dict[str, Any]:
    """Dump a pydantic model to JSON-able values by the model's own rules.

    Args:
        model: the model.
        exclude: names of top-level fields to leave out.
        keep: leave arrays and declared bytes as they are; `encode` gives them their JSON form.

    Returns:
        A dict of JSON values; non-finite floats are kept as floats.

    Raises:
        UnencodableValue: a field has no JSON form; names the field.
    """
    token = _dumps_now.set(True)
    try:
        dumped = _dump_keeping(model, exclude) if keep else _dump(model, exclude, _plain)
    except (UnencodableValue, TypeError, ValueError, RecursionError) as error:
        raise _locate_in_model(model, error, exclude) from error
    finally:
        _dumps_now.reset(token)
    for name, value in _members(model):
        if type(value) not in _ATOMS and not _is_empty(value) and name not in (exclude or ()):
            _refuse_undeclared_bytes(value, name, declared=_declares_bytes(model, name))
    _keep_non_finite(dumped, model)
    return dumped


_dumps_now: ContextVar[bool] = ContextVar("openenv_dumps_now", default=False)


def is_dumping() -> bool:
    """Whether a serializer is called for a frame, so that it may give a `Held`; else it is the user's own dump."""
    return _dumps_now.get()


@contextmanager
def _dumping() -> Iterator[None]:
    token = _dumps_now.set(True)
    try:
        yield
    finally:
        _dumps_now.reset(token)


def _dump(model: pydantic.BaseModel, exclude: set[str] | None, fallback: Callable[[Any], Any]) -> dict[str, Any]:
    return model.model_dump(mode="json", exclude=exclude, fallback=fallback)


_HOLE = f"\ue000{secrets.token_hex(8)}:"
"""Begins a mark; no text of an environment can hold it by intent."""


def _dump_keeping(model: pydantic.BaseModel, exclude: set[str] | None) -> dict[str, Any]:
    """Dump with a mark in place of each array or declared bytes, then put those where their marks have come to be."""
    kept: list[Any] = []

    def fallback(value: Any) -> Any:
        value = value.value if isinstance(value, Held) else value
        if not isinstance(value, Base64 | Utf8) and not _is_array(value):
            return _plain(value)
        kept.append(value)
        return f"{_HOLE}{len(kept) - 1}"

    texts = {name for name, value in model.__dict__.items() if type(value) is bytes and _is_plain_bytes(model, name)}
    dumped = _dump(model, (exclude or set()) | texts, fallback)
    if kept:
        dumped = _filled(dumped, kept)
    if texts:
        fields = type(model).model_fields
        dumped |= {name: Utf8(getattr(model, name)) for name in texts if name not in (exclude or ())}
        dumped = {name: dumped[name] for name in [*fields, *dumped] if name in dumped}
    return dumped


def _filled(dumped: Any, kept: list[Any]) -> Any:
    if isinstance(dumped, str):
        return kept[int(dumped[len(_HOLE) :])] if dumped.startswith(_HOLE) else dumped
    if isinstance(dumped, dict):
        for name, value in dumped.items():
            if type(value) not in _NON_NULL_ATOMS or type(value) is str:
                dumped[name] = _filled(value, kept)
    elif isinstance(dumped, list):
        dumped[:] = [_filled(value, kept) for value in dumped]
    return dumped


def _is_plain_bytes(model: pydantic.BaseModel, name: str) -> bool:
    """Whether a field is bytes and nothing else is said of how it is written."""
    field = type(model).model_fields.get(name)
    return (
        field is not None
        and field.annotation in (bytes, bytes | None)
        and not (field.metadata or field.alias or field.serialization_alias)
        and not type(model).__pydantic_decorators__.field_serializers
        and not type(model).__pydantic_decorators__.model_serializers
        and model.model_config.get("ser_json_bytes", "utf8") == "utf8"
    )


def non_finite_path(value: Any) -> str | None:
    """Where a value of lists and dicts holds a float that is NaN or infinite; None if nowhere."""
    if isinstance(value, float):
        return None if math.isfinite(value) else ""
    for step, part in _parts(value):
        path = non_finite_path(part)
        if path is not None:
            return _join(step, path)
    return None


def _members(model: pydantic.BaseModel) -> Iterator[tuple[str, Any]]:
    yield from model.__dict__.items()
    yield from (model.__pydantic_extra__ or {}).items()


def _declares_bytes(model: pydantic.BaseModel, name: str) -> bool:
    field = type(model).model_fields.get(name)
    return field is not None and "bytes" in str(field.annotation)


def _refuse_undeclared_bytes(value: Any, path: str, declared: bool) -> None:
    """pydantic writes bytes of an undeclared place as text; a reader could never tell."""
    if isinstance(value, _BYTES):
        if not declared:
            raise UnencodableValue(path, type(value).__name__, _advice(value))
    elif isinstance(value, pydantic.BaseModel):
        for name, inner in _members(value):
            if type(inner) not in _ATOMS:
                _refuse_undeclared_bytes(inner, f"{path}.{name}", _declares_bytes(value, name))
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if type(inner) not in _ATOMS:
                _refuse_undeclared_bytes(inner, f"{path}.{key}", declared)
    elif isinstance(value, _ITEMS) and not set(map(type, value)) <= _ATOMS:
        for index, inner in enumerate(value):
            _refuse_undeclared_bytes(inner, f"{path}[{index}]", declared)


def _is_empty(value: Any) -> bool:
    return not value if type(value) in (dict, list) else False


def _keep_non_finite(dumped: Any, value: Any) -> Any:
    """Put NaN and the infinities back where pydantic wrote null for them: in every place without a declared type.

    What a serializer of the model's author wrote is left as it is.
    """
    if isinstance(dumped, bytes) or _is_array(dumped):
        return dumped
    if isinstance(value, pydantic.BaseModel):
        value = value.root if isinstance(value, pydantic.RootModel) else value
    elif hasattr(value, "dtype") and callable(getattr(value, "tolist", None)):  # which is slow to ask a model
        value = value.tolist() if _may_be_non_finite(value) else dumped
    if dumped is None:
        return value if isinstance(value, float) and not math.isfinite(value) else None
    if isinstance(dumped, dict):
        for name, part in _named_parts(dumped, value):
            if dumped[name] is None or type(dumped[name]) not in _ATOMS:
                dumped[name] = _keep_non_finite(dumped[name], part)
    elif isinstance(dumped, list) and not set(map(type, dumped)) <= _NON_NULL_ATOMS:
        parts = value if isinstance(value, Collection) and len(value) == len(dumped) else dumped
        dumped[:] = map(_keep_non_finite, dumped, parts)
    return dumped


def _may_be_non_finite(array: Any) -> bool:
    kind = getattr(array.dtype, "kind", "O")  # tensors of other libraries have none
    if kind != "f":
        return bool(kind == "O")
    return bool(array.size) and not (math.isfinite(array.min()) and math.isfinite(array.max()))


def _may_hold_non_finite(part: Any) -> bool:
    """False for what surely holds no such number; most fields of most models are seen at a glance."""
    if type(part) is float:
        return not math.isfinite(part)
    return type(part) not in _NO_FLOATS and not _is_empty(part)


def _named_parts(dumped: Mapping[str, Any], value: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a value beside the names they were dumped under."""
    if isinstance(value, pydantic.BaseModel):
        members = [(name, part) for name, part in _members(value) if _may_hold_non_finite(part)]
        if not members:
            return
        decorators = type(value).__pydantic_decorators__
        if decorators.model_serializers:
            return
        own = {name for one in decorators.field_serializers.values() for name in one.info.fields}
        fields = type(value).model_fields
        for name, part in members:
            field = fields.get(name)
            alias = (field.serialization_alias or field.alias or name) if field else name
            declared = field is not None and any(hasattr(note, "when_used") for note in field.metadata)
            if not declared and not own & {name, "*"}:
                yield from ((shown, part) for shown in {name, alias} if shown in dumped)
    elif isinstance(value, Mapping) and len(value) == len(dumped):
        yield from zip(dumped, value.values(), strict=True)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((name, part) for name, part in vars(value).items() if name in dumped)


def _locate_in_model(model: pydantic.BaseModel, error: Exception, exclude: set[str] | None) -> UnencodableValue:
    for name in [name for name, _ in _members(model) if name not in (exclude or ())]:
        try:
            with _dumping():
                model.model_dump(mode="json", include={name}, fallback=_plain)
        except (UnencodableValue, TypeError, ValueError, RecursionError) as inner:
            value = getattr(model, name)
            if isinstance(value, pydantic.BaseModel):
                deeper = _locate_in_model(value, inner, None)
                return UnencodableValue(f"{name}.{deeper.path}".rstrip("."), deeper.type_name, deeper.why)
            located = _locate(value, inner, _failure_in_model)
            return UnencodableValue(_join(name, located.path), located.type_name, located.why)
    return UnencodableValue("", type(model).__name__, str(error))


def _locate(
    value: Any, error: Exception, failure_of: Callable[[Any], Exception | None] | None = None
) -> UnencodableValue:
    """Find the first value that cannot be encoded, by trying the parts one after another."""
    path = ""
    seen: set[int] = set()
    while id(value) not in seen and len(seen) < MAX_DEPTH * 10:
        seen.add(id(value))
        for step, part in _parts(value):
            failure = (failure_of or _failure)(part)
            if failure is not None:
                path, value, error = _join(path, step), part, failure
                break
        else:
            break
    if isinstance(error, UnencodableValue):
        return UnencodableValue(_join(path, error.path), error.type_name, error.why)
    return UnencodableValue(path, type(value).__name__, _why(value, error))


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield str(key), part
    elif isinstance(value, list | tuple):
        for index, part in enumerate(value):
            yield f"[{index}]", part


def _failure(value: Any) -> Exception | None:
    try:
        _JSON.encode(value).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        return error
    return None


def _failure_in_model(value: Any) -> Exception | None:
    """The same by pydantic's rules, which take sets, dates and more."""
    from pydantic_core import to_jsonable_python  # only on the way to an error

    if isinstance(value, pydantic.BaseModel):
        return _failure(value)  # which names the field inside
    try:
        to_jsonable_python(value, fallback=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        return error
    return None


def _join(path: str, step: str) -> str:
    return path + step if not path or not step or step.startswith("[") else f"{path}.{step}"


def _why(value: Any, error: Exception) -> str:
    advice = _advice(value)
    if advice:
        return advice
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeEncodeError):
        return "its text holds a lone surrogate, which UTF-8 cannot carry"
    if isinstance(error, ValueError) and "Circular" in str(error):
        return "it contains itself"
    return str(error) if not isinstance(error, TypeError) else ""


# ------------------------------------------------------------------ decoding


def parse_json(data: str | bytes) -> Any:
    """Parse one JSON document.

    Args:
        data: text, or UTF-8 bytes.

    Raises:
        MalformedFrame: not JSON, not UTF-8, nested too deeply, or a number too long to read.
    """
    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        if _deeper_than(text, MAX_DEPTH):
            raise MalformedFrame(f"nested deeper than {MAX_DEPTH} levels")
        return json.loads(text)
    except UnicodeDecodeError as error:
        raise MalformedFrame(f"not UTF-8 at byte {error.start}") from error
    except RecursionError as error:
        raise MalformedFrame("nested too deeply") from error
    except MalformedFrame:
        raise
    except ValueError as error:  # JSONDecodeError, and integers past the interpreter's limit
        raise MalformedFrame(str(error)) from error


def _deeper_than(text: str, limit: int) -> bool:
    """Bound the nesting before the parser recurses. Brackets in strings may only count too many."""
    if text.count("[") + text.count("{") <= limit:
        return False
    depth = 0
    in_string = escaped = False
    for char in text:
        if in_string:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                in_string = False
        elif char == '"':
            in_string = True
        elif char in "[{":
            depth += 1
            if depth > limit:
                return True
        elif char in "]}":
            depth -= 1
    return False


def decode(data: str | bytes) -> dict[str, Any]:
    """Parse one frame, which must be a JSON object.

    Raises:
        MalformedFrame: see `parse_json`, or the document is not an object.
    """
    value = parse_json(data)
    if not isinstance(value, dict):
        raise MalformedFrame(f"a frame must be a JSON object, not {_json_name(value)}")
    return value


def _json_name(value: Any) -> str:
    names: list[tuple[type | tuple[type, ...], str]] = [
        (bool, "a boolean"),
        (str, "a string"),
        ((int, float), "a number"),
        (list, "an array"),
    ]
    return next((name for kind, name in names if isinstance(value, kind)), "null")
