"""Large WebSocket frames without copies: masking in blocks, and receiving into the message's own memory (RFC 6455, 5).

A stream of frames is split in two. Whole binary messages of 64 KiB and more are received straight into one buffer of
their size; everything else (small messages, fragments, control frames, whatever breaks the rules) is handed on as it
came, for `websockets` to read: one implementation of those rules is enough.

Not in this room: sockets, threads, what happens to a message.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from openenv.core.wire.arrays import Buffer

__all__ = ["LARGE_BYTES", "FrameMasker", "FrameSplitter", "frame_header", "mask_in_place"]

LARGE_BYTES = 64 * 1024
"""Binary messages from this size on are received into a buffer of their own."""
LARGEST_BYTES = 1 << 30
"""Past this size a header is not taken at its word: the memory grows with what comes."""
BLOCK_BYTES = 256 * 1024
"""Masked at a time: it stays in the cache, and is allocated once. A multiple of 8."""
OWN_PIECE_BYTES = 16 * 1024
"""Smaller parts of a message are copied together."""

_BINARY, _MASKED, _LENGTH_16, _LENGTH_64 = 0x82, 0x80, 126, 127
_HEADER_BYTES = 2 + 8 + 4


def frame_header(length: int, key: bytes = b"") -> bytes:
    """The header of a whole binary message.

    Args:
        length: bytes of its payload.
        key: mask, of 4 bytes; none for a frame of a server.
    """
    masked = _MASKED if key else 0
    if length < _LENGTH_16:
        return struct.pack("!BB", _BINARY, masked | length) + key
    if length < 1 << 16:
        return struct.pack("!BBH", _BINARY, masked | _LENGTH_16, length) + key
    return struct.pack("!BBQ", _BINARY, masked | _LENGTH_64, length) + key


def mask_in_place(data: np.ndarray[Any, Any], key: bytes) -> None:
    """Mask bytes, or unmask them: ``data[i] ^= key[i % 4]``.

    Args:
        data: uint8 ``[n]``, writable, contiguous.
        key: of 4 bytes, for the first byte of ``data``.
    """
    _mask(data, key, data)


def _mask(source: np.ndarray[Any, Any], key: bytes, into: np.ndarray[Any, Any]) -> None:
    whole = len(source) & ~7
    word = np.frombuffer(key * 2, np.uint64)[0]
    np.bitwise_xor(source[:whole].view(np.uint64), word, out=into[:whole].view(np.uint64))
    if whole < len(source):
        rest = np.frombuffer(key * 2, np.uint8)[: len(source) - whole]
        np.bitwise_xor(source[whole:], rest, out=into[whole:])


class FrameMasker:
    """Makes masked frames, a block at a time. Holds one block; not for two threads at a time."""

    def __init__(self) -> None:
        self._block = np.empty(BLOCK_BYTES, np.uint8)
        self._view = self._block.data

    def frame(self, parts: Sequence[Buffer]) -> Iterator[memoryview]:
        """One binary message as a frame of a client.

        Args:
            parts: its payload, which is not changed.

        Yields:
            Pieces of the frame, in order. Each is valid until the next is asked for.
        """
        key = os.urandom(4)  # unpredictable to whoever chose the payload (RFC 6455, 10.3)
        header = frame_header(sum(len(part) for part in parts), key)
        small: list[Buffer] = []
        held = at = 0
        for part in parts:
            if len(part) < OWN_PIECE_BYTES and held + len(part) <= BLOCK_BYTES // 2:
                small.append(part)
                held += len(part)
                continue
            yield from self._pieces(header, small, memoryview(part).cast("B"), key[at % 4 :] + key[: at % 4])
            at += held + len(part)
            header, small, held = b"", [], 0
        if small or header:
            yield from self._pieces(header, small, memoryview(b""), key[at % 4 :] + key[: at % 4])

    def _pieces(self, header: bytes, small: list[Buffer], large: memoryview, key: bytes) -> Iterator[memoryview]:
        """Small parts are copied to where the large one, which is masked on its way into the block, is aligned."""
        size = sum(len(part) for part in small)
        start = -(len(header) + size) % 8
        end = start + len(header)
        self._view[start:end] = header
        for part in small:
            self._view[end : end + len(part)] = part
            end += len(part)
        mask_in_place(self._block[end - size : end], key)
        key = key[size % 4 :] + key[: size % 4]
        source = np.frombuffer(large, np.uint8) if large else self._block[:0]
        while True:
            piece = source[: BLOCK_BYTES - end]
            _mask(piece, key, self._block[end : end + len(piece)])
            yield self._view[start : end + len(piece)]
            source = source[len(piece) :]
            if not len(source):
                return
            start = end = 0


class FrameSplitter:
    """Takes large messages out of a stream of frames. To be begun where a frame begins.

    Args:
        masked: whether the peer's frames are masked, as a client's are.
        largest: bytes of the largest message that is taken out; larger ones are handed on. None for `LARGEST_BYTES`.
    """

    def __init__(self, *, masked: bool, largest: int | None = None) -> None:
        self._masked = masked
        self._largest = LARGEST_BYTES if largest is None else min(largest, LARGEST_BYTES)
        self._scratch = memoryview(bytearray(LARGE_BYTES))
        self._held = 0  # bytes at the start of the scratch: a header that is not whole yet
        self._passing = 0  # bytes of the frame under way that are handed on
        self._large: bytearray | None = None
        self._filled = 0
        self._unmasked = 0
        self._key = b""

    def buffer(self) -> memoryview:
        """Where the next bytes of the stream belong. Never empty."""
        if self._large is not None:
            return memoryview(self._large)[self._filled :]
        return self._scratch[self._held :]

    def received(self, count: int) -> list[bytes | bytearray]:
        """Take note that bytes have come.

        Args:
            count: bytes that were written to `buffer`.

        Returns:
            In the order of the stream: ``bytes`` are frames or parts of them as they came, a ``bytearray`` is the
            payload of a large message, unmasked.
        """
        if self._large is None:
            return self._split(self._held + count)
        self._fill(count)
        return self._taken()

    def feed(self, data: bytes) -> list[bytes | bytearray]:
        """The same for bytes that were read elsewhere."""
        found: list[bytes | bytearray] = []
        while data:
            room = self.buffer()
            count = min(len(room), len(data))
            room[:count] = data[:count]
            found += self.received(count)
            data = data[count:]
        return found

    def _split(self, end: int) -> list[bytes | bytearray]:
        found: list[bytes | bytearray] = []
        pos = 0
        while pos < end:
            if not self._passing:
                size, header = self._header(pos, end)
                if not header:  # not whole yet
                    break
                if self._is_large(pos, size):
                    if pos:
                        found.append(bytes(self._scratch[:pos]))
                    self._begin(pos + header, end, size)
                    return found + self._taken()
                self._passing = header + size
            step = min(self._passing, end - pos)
            self._passing -= step
            pos += step
        if pos:
            found.append(bytes(self._scratch[:pos]))
        self._held = end - pos
        self._scratch[: self._held] = bytes(self._scratch[pos:end])
        return found

    def _header(self, pos: int, end: int) -> tuple[int, int]:
        """Sizes of the payload and of the header that begins here; 0 for a header that is not whole."""
        left = end - pos
        if left < 2:
            return 0, 0
        size = self._scratch[pos + 1] & 0x7F
        width = {_LENGTH_16: 2, _LENGTH_64: 8}.get(size, 0)
        header = 2 + width + (4 if self._scratch[pos + 1] & _MASKED else 0)
        if left < header:
            return 0, 0
        return int.from_bytes(self._scratch[pos + 2 : pos + 2 + width], "big") if width else size, header

    def _is_large(self, pos: int, size: int) -> bool:
        masked = bool(self._scratch[pos + 1] & _MASKED)
        return self._scratch[pos] == _BINARY and masked == self._masked and LARGE_BYTES <= size <= self._largest

    def _begin(self, pos: int, end: int, size: int) -> None:
        self._key = bytes(self._scratch[pos - 4 : pos]) if self._masked else b""
        self._large = bytearray(size)
        self._filled = self._unmasked = self._held = 0
        count = end - pos  # less than the message, for the scratch is no larger than the smallest of them
        self._large[:count] = self._scratch[pos:end]
        self._fill(count)

    def _fill(self, count: int) -> None:
        assert self._large is not None
        self._filled += count
        if not self._masked:
            return
        upto = self._filled if self._filled == len(self._large) else self._filled & ~7
        if upto == len(self._large) or upto - self._unmasked >= BLOCK_BYTES:
            mask_in_place(np.frombuffer(self._large, np.uint8)[self._unmasked : upto], self._key)
            self._unmasked = upto

    def _taken(self) -> list[bytes | bytearray]:
        if self._large is None or self._filled < len(self._large):
            return []
        message, self._large = self._large, None
        return [message]
