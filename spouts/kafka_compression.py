"""Unpacks compressed record batches."""

from __future__ import annotations

import gzip
import struct
import zlib

import pyarrow as pa

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_MOST_SNAPPY_EXPANDS = 64  # snappy's longest copy makes 64 bytes from 3


def unpack(packed: bytes, codec: int) -> bytes:
    """Return the bytes, unpacked. Raises ValueError, with the reason, when that fails."""
    if codec not in (1, 2, 3, 4):
        raise ValueError(f"its compression {codec} is unknown")
    try:
        if codec == 1:
            return gzip.decompress(packed)
        if codec == 2:
            return _snappy(packed)
        with pa.CompressedInputStream(pa.BufferReader(packed), {3: "lz4", 4: "zstd"}[codec]) as stream:
            unpacked: bytes = stream.read()
            return unpacked
    except (OSError, EOFError, ValueError, IndexError, struct.error, zlib.error) as error:
        raise ValueError(f"it cannot be decompressed: {error}") from error


def _snappy(packed: bytes) -> bytes:
    """Raw snappy, or the framing that Java's snappy stream writes: a header of 16 bytes, then blocks."""
    if not packed.startswith(_XERIAL_MAGIC):
        return _snappy_block(packed)
    blocks: list[bytes] = []
    at = 16
    while at < len(packed):
        (length,) = struct.unpack_from(">i", packed, at)
        at += 4
        blocks.append(_snappy_block(packed[at : at + length]))
        at += length
    return b"".join(blocks)


def _snappy_block(block: bytes) -> bytes:
    size = shift = 0
    for byte in block:  # a block begins with its uncompressed size, in groups of seven bits
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if size > _MOST_SNAPPY_EXPANDS * len(block):
        raise ValueError(f"a block of {len(block)} bytes claims to have {size}")
    unpacked: bytes = pa.Codec("snappy").decompress(block, decompressed_size=size, asbytes=True)
    return unpacked
