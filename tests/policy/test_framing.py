"""Frames with bytes alone: what we write, `websockets` reads, and the reverse, however the stream is cut."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from websockets.frames import Frame, Opcode
from websockets.protocol import SERVER, Protocol

from openenv.core.wire.arrays import encode, encode_parts
from openenv.policy import framing
from openenv.policy.framing import BLOCK_BYTES, LARGE_BYTES, FrameMasker, FrameSplitter, frame_header, mask_in_place

SIZES = [0, 1, 125, 126, 127, 65535, 65536, 65537, BLOCK_BYTES - 14, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 5]


def noise(size: int) -> bytes:
    return np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()


def read_by_websockets(stream: bytes) -> list[tuple[Opcode, bytes]]:
    """What a server of `websockets` finds in the stream of a client."""
    protocol = Protocol(SERVER, max_size=None)
    protocol.receive_data(stream)
    assert protocol.parser_exc is None
    return [(event.opcode, bytes(event.data)) for event in protocol.events_received() if isinstance(event, Frame)]


def written(parts: Iterable[bytes | memoryview]) -> bytes:
    return b"".join(bytes(piece) for piece in FrameMasker().frame(list(parts)))


@pytest.mark.parametrize("size", SIZES)
def test_what_is_masked_in_blocks_is_read_by_websockets(size: int) -> None:
    payload = noise(size)
    stream = written([payload])
    assert read_by_websockets(stream) == [(Opcode.BINARY, payload)]
    assert len(stream) == len(Frame(Opcode.BINARY, payload).serialize(mask=True))  # the shortest form of the length


@pytest.mark.parametrize("seed", range(20))
def test_parts_of_any_size_and_place_make_one_frame(seed: int) -> None:
    random = np.random.default_rng(seed)
    whole = memoryview(noise(1_500_000))
    parts: list[bytes | memoryview] = []
    for _ in range(random.integers(1, 12)):
        start, size = random.integers(0, 1000), random.choice([0, 1, 3, 7, 100, 5000, 16384, 20_001, 300_003, 700_000])
        parts.append(whole[start : start + size])
    assert read_by_websockets(written(parts)) == [(Opcode.BINARY, b"".join(parts))]


def test_more_small_parts_than_a_block_holds() -> None:
    parts = [noise(15_000 + one) for one in range(60)]
    assert read_by_websockets(written(parts)) == [(Opcode.BINARY, b"".join(parts))]


def test_a_frame_is_that_of_the_plain_codec_and_leaves_the_arrays_alone() -> None:
    image = np.random.default_rng(1).integers(0, 256, (3, 224, 224, 3), np.uint8)
    value = {"images": {"a": image, "b": image[::-1, ::2]}, "states": np.arange(7.0), "text": ["x" * 70_000]}
    before = image.copy()
    assert read_by_websockets(written(encode_parts(value))) == [(Opcode.BINARY, encode(value))]
    assert np.array_equal(image, before)


def test_each_frame_has_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def urandom(size: int) -> bytes:
        asked.append(size)
        return bytes([len(asked)] * size)

    monkeypatch.setattr(framing.os, "urandom", urandom)
    masker = FrameMasker()
    frames = [b"".join(bytes(piece) for piece in masker.frame([b"\0" * 8])) for _ in range(2)]
    assert asked == [4, 4]
    assert [frame[2:] for frame in frames] == [b"\1" * 12, b"\2" * 12]


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 4097])
def test_masking_is_that_of_the_rfc(size: int) -> None:
    data, key = np.frombuffer(noise(size), np.uint8).copy(), b"\x01\x80\xff\x10"
    expected = bytes(byte ^ key[place % 4] for place, byte in enumerate(data.tobytes()))
    mask_in_place(data, key)
    assert data.tobytes() == expected


# ------------------------------------------------------------------ splitting


def split(splitter: FrameSplitter, stream: bytes, step: int) -> tuple[bytes, list[bytes]]:
    """Feed a stream in steps. Returns what was handed on, joined, and the large messages."""
    passed, large = b"", []
    for start in range(0, len(stream), step):
        for item in splitter.feed(stream[start : start + step]):
            if isinstance(item, bytes):
                passed += item
            else:
                large.append(bytes(item))
    return passed, large


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_small_frames_are_handed_on_as_they_came(masked: bool, step: int) -> None:
    frames = [
        Frame(Opcode.BINARY, b""),
        Frame(Opcode.BINARY, noise(125)),
        Frame(Opcode.PING, b"are you there"),
        Frame(Opcode.TEXT, b"text", fin=False),
        Frame(Opcode.CONT, noise(126)),
        Frame(Opcode.BINARY, noise(300)),
        Frame(Opcode.CLOSE, b"\x03\xe8bye"),
    ]
    stream = b"".join(frame.serialize(mask=masked) for frame in frames)
    assert split(FrameSplitter(masked=masked), stream, step) == (stream, [])


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("cut", range(16))
def test_a_large_message_is_taken_out_wherever_its_header_is_cut(masked: bool, cut: int) -> None:
    ping = Frame(Opcode.PING, b"x").serialize(mask=masked)
    message = noise(LARGE_BYTES + 3)
    stream = ping + Frame(Opcode.BINARY, message).serialize(mask=masked) + ping
    splitter = FrameSplitter(masked=masked)
    first, none = split(splitter, stream[: len(ping) + cut], 1 << 20)
    then, large = split(splitter, stream[len(ping) + cut :], 50_001)
    assert none == []
    assert (first + then, large) == (ping + ping, [message])


@pytest.mark.parametrize("size", [LARGE_BYTES - 1, LARGE_BYTES, BLOCK_BYTES + 5, 3 * BLOCK_BYTES + 1])
@pytest.mark.parametrize("step", [4099, 65536, 1 << 22])
@pytest.mark.parametrize("masked", [True, False])
def test_only_messages_from_64_kib_on_are_large(size: int, step: int, masked: bool) -> None:
    message = noise(size)
    stream = Frame(Opcode.BINARY, message).serialize(mask=masked)
    passed, large = split(FrameSplitter(masked=masked), stream * 3, step)
    assert (passed, large) == ((stream * 3, []) if size < LARGE_BYTES else (b"", [message] * 3))


@pytest.mark.parametrize(
    "frame",
    [
        Frame(Opcode.TEXT, noise(LARGE_BYTES)),
        Frame(Opcode.BINARY, noise(LARGE_BYTES), fin=False),
        Frame(Opcode.CONT, noise(LARGE_BYTES)),
        Frame(Opcode.BINARY, noise(LARGE_BYTES + 101)),
    ],
    ids=["text", "first fragment", "last fragment", "too large"],
)
def test_what_is_no_whole_binary_message_is_left_to_websockets(frame: Frame) -> None:
    stream = frame.serialize(mask=True)
    assert split(FrameSplitter(masked=True, largest=LARGE_BYTES + 100), stream, 9000) == (stream, [])
    reserved = b"\xc2" + frame_header(LARGE_BYTES, b"keys")[1:] + noise(LARGE_BYTES)
    assert split(FrameSplitter(masked=True), reserved, 9000) == (reserved, [])
    unmasked = frame_header(LARGE_BYTES) + noise(LARGE_BYTES)
    assert split(FrameSplitter(masked=True), unmasked, 9000) == (unmasked, [])


def test_a_huge_length_is_not_taken_at_its_word() -> None:
    header = frame_header(1 << 62, b"keys")
    assert split(FrameSplitter(masked=True), header + b"x" * 100, 50) == (header + b"x" * 100, [])


def test_the_buffer_is_never_empty() -> None:
    splitter = FrameSplitter(masked=False)
    stream = Frame(Opcode.BINARY, noise(LARGE_BYTES)).serialize(mask=False)
    for byte in (stream * 2)[: LARGE_BYTES + 30]:
        room = splitter.buffer()
        assert len(room) > 0
        room[0] = byte
        splitter.received(1)
