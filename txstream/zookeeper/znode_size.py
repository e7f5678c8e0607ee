"""What one request to ZooKeeper can carry: large JSON is compressed; what is too large even so is refused."""

from __future__ import annotations

import zlib

from txstream.api.errors import CorruptStateError, MetaTooLargeError

COMPRESSED_PAST_BYTES = 64 * 1024
# ZooKeeper cuts the connection of a request past 1 MiB, which looks like an outage.
MAX_REQUEST_BYTES = 900 * 1024
# Besides one large value, a request has the epoch's check, `current`, a delete, and their paths.
MAX_DOCUMENT_BYTES = MAX_REQUEST_BYTES - 8 * 1024
_MAX_UNPACKED_BYTES = 256 * 1024 * 1024


def pack(data: bytes) -> bytes:
    """Return this JSON as it is stored: compressed if it is large."""
    return zlib.compress(data) if len(data) > COMPRESSED_PAST_BYTES else data


def require_fits(packed: bytes, partitions: int) -> None:
    """Raise MetaTooLargeError if one request cannot carry these metas of `partitions` partitions."""
    if len(packed) > MAX_DOCUMENT_BYTES:
        raise MetaTooLargeError(
            f"the metas of a batch over {partitions} partitions take {len(packed):,} "
            f"bytes, compressed, and one ZooKeeper request carries at most {MAX_DOCUMENT_BYTES:,}; "
            "read fewer partitions in one topology, for instance by splitting its topics over several"
        )


def unpack(data: bytes, path: str) -> bytes:
    """The inverse of `pack`. Raises CorruptStateError."""
    if data.startswith(b"{"):
        return data
    unpacker = zlib.decompressobj()
    try:
        unpacked = unpacker.decompress(data, _MAX_UNPACKED_BYTES)
    except zlib.error as error:
        raise CorruptStateError(
            f"{path}: expected JSON, plain or compressed by zlib, found {data[:100]!r}"
        ) from error
    if not unpacker.eof or unpacker.unused_data:
        raise CorruptStateError(f"{path}: the compressed JSON of {len(data)} bytes is cut off or has a tail")
    return unpacked
