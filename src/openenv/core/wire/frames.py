"""A frame of the env link as bytes, in either form: JSON text, or binary msgpack where both ends use that (E29).

Which form it is shows in its first byte: a JSON object begins with ``{``, and no msgpack map does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from openenv.core.wire import arrays, json_codec
from openenv.core.wire.json_codec import MalformedFrame, NotText, UnencodableValue

__all__ = ["Request", "decode", "encode", "is_text", "numbered"]

_FIXMAP, _FIXMAP_END, _UINT64 = 0x80, 0x8F, b"\xcf"


@dataclass(frozen=True, slots=True)
class Request:
    """A request frame in its forms.

    Attributes:
        text: as JSON.
        packed: the form for a peer that takes binary frames; empty if text changes nothing in it.
    """

    text: bytes = b""
    packed: bytes = b""

    def __len__(self) -> int:
        return max(len(self.text), len(self.packed))

    def sent(self, *, binary: bool) -> bytes:
        """The form to send."""
        return (self.packed if binary else b"") or self.text


def is_text(frame: bytes) -> bool:
    """Whether a frame that is to be sent is JSON text."""
    return frame[:1] == b"{"


def encode(frame: Mapping[str, Any], *, binary: bool) -> bytes:
    """Encode a frame: as text, unless there is something in it that text would change and the peer takes binary frames.

    Args:
        frame: the object.
        binary: whether the peer takes binary frames.

    Raises:
        UnencodableValue: a value inside has no form there; names its path and type.
    """
    if not binary:
        return json_codec.encode(frame)
    try:
        return json_codec.encode(frame, strict=True)
    except NotText:
        pass
    try:
        return arrays.encode(frame)
    except UnencodableValue:  # an enum beside an array, an array of objects: text has a form for some of these
        return json_codec.encode(frame)


def decode(frame: str | bytes, *, binary: bool) -> dict[str, Any]:
    """Decode a frame, in whichever form it came.

    Args:
        frame: text, or bytes of either form.
        binary: whether binary frames are agreed on.

    Returns:
        The object. Arrays in it are read-only views of the frame.

    Raises:
        MalformedFrame: it is neither, or not an object.
    """
    if isinstance(frame, str) or not binary or is_text(frame):
        return json_codec.decode(frame)
    value = arrays.decode(frame)
    if not isinstance(value, dict):
        raise MalformedFrame("a frame must be a map")
    return value


def numbered(frame: bytes, seq: int) -> bytes:
    """The same request with its number; the same bytes whenever it is sent (E9)."""
    if is_text(frame):
        return b'{"seq":%d,%b' % (seq, frame[1:])
    assert _FIXMAP < frame[0] < _FIXMAP_END, "a request has few members"
    return b"%c\xa3seq%b%b%b" % (frame[0] + 1, _UINT64, seq.to_bytes(8, "big"), frame[1:])
