"""The values of the znodes: JSON, checked field by field when read.

Reading is strict on purpose. A value that txstream cannot have written is a CorruptStateError with the
znode's path, and is never taken for "nothing there yet". Large JSON is compressed, and what one
request cannot carry even so is refused.
"""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from txstream.core.batch_metas import BatchMetas, MetaCodec, to_json
from txstream.core.errors import CorruptStateError, MetaTooLargeError
from txstream.core.transaction import FIRST_TXID, AttemptId, Epoch, Txid

COMPRESSED_PAST_BYTES = 64 * 1024
# ZooKeeper cuts the connection of a request past 1 MiB, which looks like an outage.
MAX_REQUEST_BYTES = 900 * 1024
# Besides one large value, a request has the epoch's check, `current`, a delete, and their paths.
MAX_DOCUMENT_BYTES = MAX_REQUEST_BYTES - 8 * 1024
_FITS_BYTES = MAX_DOCUMENT_BYTES // 2  # compressed or not
_MAX_UNPACKED_BYTES = 256 * 1024 * 1024

T = TypeVar("T")

MAX_ATTEMPT = (1 << 63) - 1
MAX_EPOCH = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class StoredEpoch:
    """The value of `epoch`. `owner` is unique to one claim, so that a claim whose answer was lost is
    recognised; `driver` is for display. Both are None before the first claim."""

    epoch: Epoch
    owner: str | None
    driver: str | None

    def encode(self) -> bytes:
        return to_json({"epoch": self.epoch, "owner": self.owner, "driver": self.driver}).encode()

    @classmethod
    @functools.lru_cache(maxsize=256)
    def decode(cls, data: bytes, path: str) -> StoredEpoch:
        document = parse_object(data, path, {"epoch", "owner", "driver"})
        epoch = take(document, "epoch", int, path)
        owner, driver = (take_optional(document, name, str, path) for name in ("owner", "driver"))
        if not 0 <= epoch <= MAX_EPOCH or (owner is None) != (epoch == 0):
            raise CorruptStateError(f"{path}: epoch {epoch} of owner {owner!r:.100} cannot be")
        return cls(Epoch(epoch), owner, driver)


@dataclass(frozen=True, slots=True)
class StoredCurrent:
    """`txid` commits next; `attempt` is the one that committed the txid before it (None before the first)."""

    txid: Txid
    attempt: AttemptId | None

    def encode(self) -> bytes:
        return to_json({"txid": self.txid, "attempt": self.attempt}).encode()

    @classmethod
    @functools.lru_cache(maxsize=256)
    def decode(cls, data: bytes, path: str) -> StoredCurrent:
        document = parse_object(data, path, {"txid", "attempt"})
        txid = take(document, "txid", int, path)
        attempt = _take_optional_attempt(document, path)
        if txid < FIRST_TXID or (attempt is None) != (txid == FIRST_TXID):
            raise CorruptStateError(f"{path}: txid {txid} after attempt {attempt} cannot be")
        return cls(Txid(txid), attempt)


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch's metas. `attempt` is the one that committed it; None for a plan that was stored before its
    batch was emitted (transactional)."""

    metas: BatchMetas[Any]
    attempt: AttemptId | None

    def encode(self, codec: MetaCodec[Any]) -> bytes:
        """Raises MetaTooLargeError past what one request to ZooKeeper can carry."""
        data = pack(self._document(codec))
        require_fits(data, len(self.metas.positions()))
        return data

    def check_size(self, codec: MetaCodec[Any]) -> None:
        """Raises MetaTooLargeError as `encode` does."""
        if len(self._document(codec)) > _FITS_BYTES:
            self.encode(codec)

    def _document(self, codec: MetaCodec[Any]) -> bytes:
        return f'{{"attempt":{to_json(self.attempt)},"metas":{to_json(codec.encode(self.metas))}}}'.encode()

    @classmethod
    @functools.lru_cache(maxsize=16)  # few, because they may be large
    def decode(cls, data: bytes, path: str, codec: MetaCodec[Any]) -> StoredBatch:
        document = parse_object(unpack(data, path), path, {"attempt", "metas"})
        attempt = _take_optional_attempt(document, path)
        return cls(codec.decode(take(document, "metas", dict, path), path), attempt)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a topology stands. `current` commits next; `committed_by` committed the txid before it (None
    before the first). `batches` begins at current - 1 (at 1 before the first commit) and has no gap."""

    current: Txid
    committed_by: AttemptId | None
    batches: Mapping[Txid, StoredBatch]


def parse_object(data: bytes, path: str, fields: set[str] | None = None) -> dict[str, Any]:
    """Return a JSON object, with exactly these fields if given. Raises CorruptStateError."""
    try:
        document = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise CorruptStateError(f"{path}: expected JSON, found {data[:100]!r} ({error})") from error
    if not isinstance(document, dict):
        raise CorruptStateError(f"{path}: expected a JSON object, found {document!r:.100}")
    if fields is not None and set(document) != fields:
        raise CorruptStateError(
            f"{path}: expected the fields {', '.join(sorted(fields))}, "
            f"found {', '.join(sorted(document)) or 'none'}"
        )
    return document


def take(document: Mapping[str, Any], name: str, kind: type[T], path: str) -> T:
    """Return the field `name`, of exactly this type. Raises CorruptStateError."""
    if name not in document:
        raise CorruptStateError(f"{path}: the field {name!r} is missing, found {', '.join(sorted(document))}")
    value = document[name]
    # Exactly, because JSON's true and false are ints to isinstance.
    if type(value) is not kind:
        raise CorruptStateError(f"{path}: {name!r} must be of type {kind.__name__}, found {value!r:.100}")
    return value


def take_strings(document: Mapping[str, Any], name: str, path: str) -> tuple[str, ...]:
    """Return the field `name`, a list of strings. Raises CorruptStateError."""
    values = take(document, name, list, path)
    if not all(isinstance(value, str) for value in values):
        raise CorruptStateError(f"{path}: {name!r} must be a list of strings, found {values!r:.100}")
    return tuple(values)


def take_optional(document: Mapping[str, Any], name: str, kind: type[T], path: str) -> T | None:
    """Return the field `name`, of exactly this type or null. Raises CorruptStateError."""
    return None if document[name] is None else take(document, name, kind, path)


def take_time(document: Mapping[str, Any], name: str, path: str) -> datetime:
    """Return the field `name`, ISO 8601 with an offset. Raises CorruptStateError."""
    text = take(document, name, str, path)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise CorruptStateError(f"{path}: {name!r} is not a time: {text!r:.100}") from error
    if moment.tzinfo is None:
        raise CorruptStateError(f"{path}: {name!r} is a time without an offset: {text!r:.100}")
    return moment


def take_attempt(document: Mapping[str, Any], path: str) -> AttemptId:
    """Return the field `attempt`. Raises CorruptStateError."""
    attempt = take(document, "attempt", int, path)
    if not 0 < attempt <= MAX_ATTEMPT:
        raise CorruptStateError(f"{path}: {attempt} is not an attempt id, which has 63 bits")
    return AttemptId(attempt)


def _take_optional_attempt(document: Mapping[str, Any], path: str) -> AttemptId | None:
    return None if document["attempt"] is None else take_attempt(document, path)


def pack(data: bytes) -> bytes:
    """Return this JSON as it is stored: compressed if it is large, and well if it fits only then."""
    if len(data) <= COMPRESSED_PAST_BYTES:
        return data
    packed = zlib.compress(data, zlib.Z_BEST_SPEED)
    return packed if len(packed) <= MAX_DOCUMENT_BYTES else zlib.compress(data)


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
