"""`BatchMetas`: what one batch holds, partition by partition, and where every other partition stands.

Invariants. `positions()` of a batch has every partition that any earlier batch had. So the next plan can
start from this batch alone, however many batches are in flight and whatever a batch left out. A batch in
which a partition gets its first place holds no records: the place is committed before anything behind it is
read.

Metas are stored as JSON, in ZooKeeper and in the ledger: people can read them, and reading them runs no code.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from txstream.core.dead_letters import DeadLetter, Excluded, LetterKey
from txstream.core.errors import CorruptStateError, TopologyError
from txstream.core.transaction import Txid
from txstream.core.wording import a, in_order

Meta = TypeVar("Meta")

_EMPTY: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A partition that cannot be read at planning time. The batch leaves it out, and its place is kept.

    `place` is a meta to keep for a partition that has no place yet, if later plans must know that it was
    there. It opens no batch.
    """

    reason: str
    place: Any = None


@dataclass(frozen=True, slots=True)
class BatchMetas(Generic[Meta]):
    """The metas of one batch. `partitions` are read in it, `carried` only keep their place, and `unavailable`
    says why a partition was left out. `excluded` are records of its ranges that it leaves out, because each
    fails by itself. `retried` are the dead letters of earlier batches that it processes instead of ranges,
    and `letters` these themselves, once they were read. `horizons` say for each table with `keep` which rows
    are too old (`txstream.api.retention`).

    Only a plan knows `begun`, those of `carried` that get their first place in it; `lag_records`, how many
    records were there and not taken; and `ahead`, what was read already of its ranges. None of these is
    stored, nor are the `letters`."""

    partitions: Mapping[str, Meta] = field(default_factory=lambda: _EMPTY)
    carried: Mapping[str, Meta] = field(default_factory=lambda: _EMPTY)
    unavailable: Mapping[str, str] = field(default_factory=lambda: _EMPTY)
    excluded: tuple[Excluded, ...] = ()
    retried: tuple[LetterKey, ...] = ()
    letters: tuple[DeadLetter, ...] = field(default=(), repr=False, compare=False)
    begun: Collection[str] = field(default=(), compare=False)
    lag_records: int | None = field(default=None, compare=False)
    ahead: Mapping[str, bytes] = field(default_factory=lambda: _EMPTY, repr=False, compare=False)
    horizons: Mapping[str, Any] = field(default_factory=lambda: _EMPTY)
    # The result of `MetaCodec.encode`, kept because the plan's check, the ledger and ZooKeeper all need it.
    _encoded: list[Encoded] = field(default_factory=list, init=False, repr=False, compare=False)

    @classmethod
    def from_plan(
        cls,
        last: Mapping[str, Meta],
        plan: Mapping[str, Meta | Unavailable],
        untaken: int | None = None,
        ahead: Mapping[str, bytes] = _EMPTY,
    ) -> BatchMetas[Meta]:
        """Return the metas of a batch, from the places before it and the coordinator's answer."""
        partitions: dict[str, Meta] = {}
        carried = dict(last)
        unavailable: dict[str, str] = {}
        begun = [partition for partition, meta in plan.items() if is_first_place(meta)]
        for partition, meta in plan.items():
            if isinstance(meta, Unavailable):
                unavailable[partition] = meta.reason
                if meta.place is not None:
                    carried.setdefault(partition, meta.place)
            elif is_empty(meta):
                carried[partition] = meta
            elif not begun:
                partitions[partition] = meta
                carried.pop(partition, None)
        lag = None if unavailable else untaken  # of those that are away, nobody knows
        return cls(partitions, carried, unavailable, begun=begun, lag_records=lag, ahead=ahead)

    def positions(self) -> Mapping[str, Meta]:
        """Return the meta that marks the place of each partition known so far."""
        return {**self.carried, **self.partitions}

    @property
    def has_work(self) -> bool:
        """Whether the batch is worth opening: it has something to read, or first places to store."""
        return bool(self.partitions or self.begun or self.retried)

    def retrying(self, keys: Collection[LetterKey], letters: tuple[DeadLetter, ...] = ()) -> BatchMetas[Meta]:
        """Return a batch that retries these dead letters and keeps the places of this one."""
        return BatchMetas(
            carried=self.carried,
            retried=tuple(sorted(keys)),
            letters=letters,
            horizons=self.horizons,
        )

    def with_horizons(self, horizons: Mapping[str, Any]) -> BatchMetas[Meta]:
        """Return the same batch with these horizons."""
        return dataclasses.replace(self, horizons=horizons)

    def leaving_out(self, records: Iterable[Excluded]) -> BatchMetas[Meta]:
        """Return the same batch without these records too."""
        excluded = {(one.partition, one.offset): one for one in (*records, *self.excluded)}
        return BatchMetas(
            self.partitions,
            self.carried,
            self.unavailable,
            tuple(sorted(excluded.values())),
            begun=self.begun,
            lag_records=self.lag_records,
            horizons=self.horizons,
        )

    def part(self, partitions: Mapping[str, Meta]) -> BatchMetas[Meta]:
        """Return a batch of these parts of the ranges, without the records that this one leaves out."""
        inside = (one for one in self.excluded if one.partition in partitions)
        return BatchMetas(
            partitions,
            excluded=tuple(one for one in inside if _holds(partitions[one.partition], one.offset)),
            horizons=self.horizons,
        )

    def excluded_offsets(self) -> dict[str, list[int]]:
        """Return the offsets of the records that are left out, by partition."""
        found: dict[str, list[int]] = {}
        for one in self.excluded:
            found.setdefault(one.partition, []).append(one.offset)
        return found


def is_empty(meta: Any) -> bool:
    """Return whether a meta takes nothing and only holds a place, which it says by a property `is_empty`."""
    return bool(getattr(meta, "is_empty", False))


def is_first_place(meta: Any) -> bool:
    """Return whether a meta gives a partition its first place, which it says by a property of that name."""
    return is_empty(meta) and bool(getattr(meta, "is_first_place", False))


class MetaCodec(Generic[Meta]):
    """Turns metas into JSON and back, for one meta type (a dataclass of JSON values).

    A missing field takes its default. An unknown field, a wrong type or anything else unexpected raises
    CorruptStateError, which names `where`.
    """

    _carried: Mapping[str, _Carried[Meta]] = _EMPTY

    def __init__(self, meta_type: type[Meta]) -> None:
        if not isinstance(meta_type, type) or not _is_frozen_dataclass(meta_type):
            raise TopologyError(f"meta_type {meta_type!r} must be a frozen dataclass of JSON values")
        self.meta_type = meta_type
        kind: Any = meta_type
        self._fields: Mapping[str, frozenset[type]] = _fields_of(kind)

    def encode(self, metas: BatchMetas[Meta]) -> Encoded:
        """Return the metas as JSON values, made once; empty parts are left out."""
        if metas._encoded:
            return metas._encoded[0]
        document = Encoded(partitions={p: self.encode_meta(m) for p, m in metas.partitions.items()})
        if metas.carried:
            document["carried"], document.texts["carried"] = self._encode_carried(metas.carried)
        if metas.unavailable:
            document["unavailable"] = dict(metas.unavailable)
        if metas.excluded:
            document["excluded"] = [list(dataclasses.astuple(one)) for one in metas.excluded]
        if metas.retried:
            document["retried"] = [[one.txid, one.place] for one in metas.retried]
        if metas.horizons:
            document["horizons"] = dict(metas.horizons)
        metas._encoded.append(document)
        return document

    def _encode_carried(self, carried: Mapping[str, Meta]) -> tuple[dict[str, dict[str, Any]], str]:
        """Return the places as JSON values, and as JSON."""
        # From batch to batch most of many partitions keep their place, and with it the meta.
        before = self._carried
        now: dict[str, _Carried[Meta]] = {}
        for partition in sorted(carried):
            known, meta = before.get(partition), carried[partition]
            if known is None or known.meta is not meta:
                document = self.encode_meta(meta)
                known = _Carried(meta, document, f"{_JSON.encode(partition)}:{_JSON.encode(document)}")
            now[partition] = known
        self._carried = now  # several threads encode; whose metas are kept does not matter
        text = ",".join([known.text for known in now.values()])
        return {partition: known.document for partition, known in now.items()}, f"{{{text}}}"

    def encode_meta(self, meta: Meta) -> dict[str, Any]:
        # Not dataclasses.asdict: its deep copies are most of the cost of a batch over many partitions.
        return {name: getattr(meta, name) for name in self._fields}

    def decode(self, document: Any, where: str) -> BatchMetas[Meta]:
        """Return what `encode` encoded. Raises CorruptStateError, naming `where`."""
        if not isinstance(document, dict):
            raise CorruptStateError(
                f"{where}: expected a JSON object with a batch's metas, found {document!r:.200}"
            )
        unknown = set(document) - {"partitions", "carried", "unavailable", "excluded", "retried", "horizons"}
        if unknown or "partitions" not in document:
            raise CorruptStateError(
                f"{where}: a batch's metas have 'partitions' and may have 'carried', 'unavailable', "
                f"'excluded', 'retried' and 'horizons', found {sorted(document)}"
            )
        parts = {name: document.get(name, {}) for name in ("partitions", "carried", "unavailable")}
        for name, part in parts.items():
            if not isinstance(part, dict):
                raise CorruptStateError(f"{where}: {name!r} must be a JSON object, found {part!r:.200}")
        partitions = {
            p: self.decode_meta(m, f"{where}, partition {p!r}") for p, m in parts["partitions"].items()
        }
        return BatchMetas(
            partitions,
            {p: self.decode_meta(m, f"{where}, partition {p!r}") for p, m in parts["carried"].items()},
            {str(p): str(reason) for p, reason in parts["unavailable"].items()},
            _decode_excluded(document.get("excluded", []), partitions, where),
            _decode_retried(document.get("retried", []), where),
            horizons=_decode_horizons(document.get("horizons", {}), where),
        )

    def decode_meta(self, document: Any, where: str) -> Meta:
        if not isinstance(document, dict):
            raise CorruptStateError(f"{where}: expected a JSON object, found {document!r:.200}")
        if not document.keys() <= self._fields.keys():
            unknown = ", ".join(sorted(document.keys() - self._fields.keys()))
            raise CorruptStateError(
                f"{where}: unknown field {unknown} in {a(self.meta_type.__name__)}; "
                f"it was written by a newer version or by another spout"
            )
        for name, value in document.items():
            allowed = self._fields[name]
            # Not isinstance: JSON's true and false would pass as ints.
            if allowed and type(value) not in allowed:
                raise CorruptStateError(
                    f"{where}: {name!r} of {a(self.meta_type.__name__)} must be "
                    f"{' or '.join(sorted(kind.__name__ for kind in allowed))}, found {value!r:.200}"
                )
        try:
            return self.meta_type(**document)
        except (TypeError, ValueError) as error:
            raise CorruptStateError(
                f"{where}: {document!r:.200} is not {a(self.meta_type.__name__)}: {error}"
            ) from error


def _decode_excluded(document: Any, partitions: Mapping[str, Any], where: str) -> tuple[Excluded, ...]:
    if not isinstance(document, list):
        raise CorruptStateError(f"{where}: 'excluded' must be a JSON array, found {document!r:.200}")
    found = []
    for one in document:
        if not isinstance(one, list) or [type(value) for value in one] != [str, int, str, str]:
            raise CorruptStateError(
                f"{where}: an excluded record is [partition, offset, component, exception], "
                f"found {one!r:.200}"
            )
        record = Excluded(*one)
        if record.partition not in partitions or not _holds(partitions[record.partition], record.offset):
            raise CorruptStateError(f"{where}: {record} is excluded, but not in the batch's ranges")
        found.append(record)
    if found != sorted({(one.partition, one.offset): one for one in found}.values()):
        raise CorruptStateError(
            f"{where}: excluded records are in order, and each once, found {document!r:.200}"
        )
    return tuple(found)


def _decode_retried(document: Any, where: str) -> tuple[LetterKey, ...]:
    pairs: list[Any] = document if isinstance(document, list) else [document]
    if any(not isinstance(one, list) or [type(value) for value in one] != [int, str] for one in pairs):
        raise CorruptStateError(
            f"{where}: 'retried' is a JSON array of [txid, place], found {document!r:.200}"
        )
    return tuple(LetterKey(Txid(txid), place) for txid, place in pairs)


def _decode_horizons(document: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(document, dict) or any(type(one) not in (int, dict) for one in document.values()):
        raise CorruptStateError(
            f"{where}: 'horizons' is a JSON object of seconds, or of objects, by table, found "
            f"{document!r:.200}"
        )
    return document or _EMPTY


def _is_frozen_dataclass(meta_type: type[Any]) -> bool:
    parameters = getattr(meta_type, "__dataclass_params__", None)
    return bool(parameters is not None and parameters.frozen)


@functools.cache
def _fields_of(meta_type: type[Any]) -> Mapping[str, frozenset[type]]:
    """Return the types that JSON may hold for each field. Cached: it takes longer than a batch's metas."""
    hints = typing.get_type_hints(meta_type)
    return {field.name: _json_types(hints[field.name]) for field in dataclasses.fields(meta_type)}


def _json_types(hint: Any) -> frozenset[type]:
    """Return the types that JSON may hold for a field of this type; empty if that is not known."""
    if isinstance(hint, typing.NewType):
        return _json_types(hint.__supertype__)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        members = [_json_types(member) for member in typing.get_args(hint)]
        return frozenset().union(*members) if all(members) else frozenset()
    if hint is float:
        return frozenset((float, int))
    hint = origin or hint
    return frozenset((hint,)) if hint in (bool, int, str, list, dict, type(None)) else frozenset()


class Encoded(dict[str, Any]):
    """A document that no longer changes, so its JSON is made once. `texts` has that of some of its values."""

    def __init__(self, **values: Any) -> None:
        super().__init__(values)
        self.texts: dict[str, str] = {}

    @functools.cached_property
    def json(self) -> str:
        texts = {name: self.texts.get(name) or _JSON.encode(value) for name, value in self.items()}
        return f"{{{','.join([f'{_JSON.encode(name)}:{texts[name]}' for name in sorted(texts)])}}}"


class _Carried(NamedTuple, Generic[Meta]):
    """A place that a partition keeps: its meta, as JSON values, and as JSON with the partition before it."""

    meta: Meta
    document: dict[str, Any]
    text: str


def to_json(document: Any) -> str:
    """Return a document as JSON, in one spelling for all that is stored: equal documents, equal strings.

    A lone surrogate, which UTF-8 does not have, is escaped: JSON's own spelling, read back as it was.
    """
    text = document.json if isinstance(document, Encoded) else _JSON.encode(document)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


# Kept, because `json.dumps` makes an encoder for each call.
_JSON = json.JSONEncoder(separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def halves(partitions: Mapping[str, Any], *, exact: bool) -> Iterator[dict[str, Any]]:
    """Yield two parts of ranges, the newer records first, or nothing if they cannot be divided. Without
    `exact`, a partition is not divided. Only positions that are records can be: a file's are bytes."""
    if len(partitions) > 1:
        names = sorted(partitions, key=in_order)
        for part in (names[: len(names) // 2], names[len(names) // 2 :]):
            yield {name: partitions[name] for name in part}
        return
    ((partition, meta),) = partitions.items()
    if exact and is_numbered(meta) and meta.records > 1:
        middle = (meta.start + meta.end) // 2
        yield {partition: dataclasses.replace(meta, start=middle)}
        yield {partition: until(meta, middle)}


def pieces(meta: Any, offsets: Sequence[int]) -> list[Any]:
    """Return what is left of a range without the records at these offsets, which are in it and in order."""
    found = []
    for offset in offsets:
        if offset > meta.start:
            found.append(until(meta, offset))
        meta = dataclasses.replace(meta, start=offset + 1)
    return [*found, meta] if meta.start < meta.end else found


def only_record(part: BatchMetas[Any]) -> tuple[str, int] | None:
    """Return the place of a part's only record; None if it has several or they are not numbered."""
    if len(part.partitions) != 1:
        return None
    ((partition, meta),) = part.partitions.items()
    return (partition, meta.start) if is_numbered(meta) and meta.records == 1 else None


def alone_in(metas: BatchMetas[Any], record: Excluded) -> BatchMetas[Any]:
    """Return the part of a batch that holds only this record."""
    whole = metas.partitions[record.partition]
    return BatchMetas(
        {record.partition: until(dataclasses.replace(whole, start=record.offset), record.offset + 1)},
        horizons=metas.horizons,
    )


def only(metas: BatchMetas[Any], records: Sequence[Excluded]) -> BatchMetas[Any]:
    """Return the part of a batch that holds only these records, of ranges whose positions are records."""
    wanted: dict[str, set[int]] = {}
    for one in records:
        wanted.setdefault(one.partition, set()).add(one.offset)
    ranges, others = {}, []
    for partition, offsets in wanted.items():
        first, end = min(offsets), max(offsets) + 1
        ranges[partition] = until(dataclasses.replace(metas.partitions[partition], start=first), end)
        others += [Excluded(partition, at, "", "") for at in range(first, end) if at not in offsets]
    return BatchMetas(ranges, excluded=tuple(others), horizons=metas.horizons)


def holds_record(part: BatchMetas[Any], record: Excluded) -> bool:
    """Whether a record is in the ranges of a part, whose positions are records."""
    meta = part.partitions.get(record.partition)
    return meta is not None and is_numbered(meta) and _holds(meta, record.offset)


def is_left(part: BatchMetas[Any]) -> bool:
    """Is there anything in a part that it does not leave out?"""
    excluded = part.excluded_offsets()
    return any(
        partition not in excluded or pieces(meta, excluded[partition])
        for partition, meta in part.partitions.items()
    )


def until(meta: Any, end: int) -> Any:
    """Return a range up to `end`."""
    # A meta's own method drops what is only known of the whole range, as a leader epoch at its end.
    own = getattr(meta, "until", None)
    return dataclasses.replace(meta, end=end) if own is None else own(end)


def _holds(meta: Any, offset: int) -> bool:
    return not is_numbered(meta) or bool(meta.start <= offset < meta.end)


def is_numbered(meta: Any) -> bool:
    """Whether the meta's positions are records, as those of a `RecordSpan` are."""
    names = {field.name for field in dataclasses.fields(meta)} if dataclasses.is_dataclass(meta) else set()
    if not {"start", "end"} <= names or "records" in names:
        return False
    return getattr(meta, "records", None) == getattr(meta, "end", 0) - getattr(meta, "start", 0)
