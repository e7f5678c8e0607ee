"""The values of the znodes: JSON, checked field by field when read.

Reading is strict on purpose. A value that txstream cannot have written is a CorruptStateError with the
znode's path, and is never taken for "nothing there yet".
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from txstream.api.errors import CorruptStateError
from txstream.batch_metas import BatchMetas, MetaCodec, to_json
from txstream.transaction import FIRST_TXID, AttemptId, Epoch, Txid
from txstream.zookeeper.znode_size import pack, require_fits, unpack

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
        metas = to_json(codec.encode(self.metas))
        data = pack(f'{{"attempt":{to_json(self.attempt)},"metas":{metas}}}'.encode())
        require_fits(data, len(self.metas.positions()))
        return data

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
