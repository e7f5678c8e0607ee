"""The truth of a comparison over a topic of the user's: kafka-python's consumer reads the records, and a
plain fold makes the tables.

Invariant: neither this project's Kafka reader nor its engine has a part in it. Only the places where all runs
end come from the source.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from txstream.api.bolts import DataFrameBolt
from txstream.api.rows import to_record_batch
from txstream.api.spouts import Unavailable
from txstream.api.topology import Topology
from txstream.core.errors import BoltError, ServiceUnavailableError, TupleError, UsageError
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.engine.start.run_services import source_context
from txstream.plugins.proof.simulation.determinism import check_determinism
from txstream.plugins.proof.simulation.plain_fold import Batch, Tables, plain_fold
from txstream.plugins.proof.simulation.truth import Truth
from txstream.plugins.proof.simulation.variant import Positions
from txstream.settings import Settings
from txstream.spouts.kafka import KafkaSource

BY_FOLD = "kafka-python's consumer and a plain fold of its records"
BY_A_RUN = "a run without faults, by the same reader"

_PLAIN = ("string", "binary")
_SAMPLE = 500  # records of a partition that tell whether tables depend on how batches are cut
_SILENCE_SECONDS = 60.0
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_MOMENT = re.compile(rf"{_DATE.pattern}T\d\d:\d\d:\d\d(\.\d{{1,6}})?(?P<zone>Z|[+-]\d\d:\d\d)?", re.ASCII)
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?", re.ASCII)


class Folded(NamedTuple):
    """What the tables must hold, and the places (partition, `@`, offset) of the records that must be dead
    letters."""

    tables: Tables
    dead: frozenset[str] = frozenset()


class _Read(NamedTuple):
    """The records by partition that can be decoded, the offsets of these, and the places of the others."""

    rows: Batch
    offsets: Mapping[str, Sequence[int]]
    dead: frozenset[str]


def folded_truth(topology: Topology, settings: Settings, end: Positions) -> Folded | None:
    """Return what must be there once all partitions are read to their `end`; None for a source that is
    not read here, whose bolts are checked all the same, and for bolts that only Spark computes.

    Raises NotDeterministicError for a bolt that emits something else for the same input, and UsageError for
    tables that depend on how batches are cut: three runs with other batches have no truth in common.
    """
    source = topology.spout.source
    if any(isinstance(one.instance, DataFrameBolt) for one in topology.bolts):
        return None
    read = _records(source, topology, settings, end) if isinstance(source, KafkaSource) else None
    addresses = settings.addresses()
    rows, dead = (_sample(topology, settings) if read is None else read.rows), frozenset[str]()
    if topology.dead_letters is not None:
        rows, dead = _set_aside(topology, rows, {} if read is None else read.offsets, addresses)
    check_determinism(topology, rows, addresses)
    if read is None:
        return None
    sample = Truth(topology, {name: batch.slice(0, _SAMPLE) for name, batch in rows.items()})
    if sample.depends is not None:
        raise UsageError(
            f"{sample.depends}, so that three runs, whose batches differ, have no truth in common; "
            f"`txstream simulate` compares each run with the batches that it committed"
        )
    return Folded(plain_fold(topology, [rows], addresses=addresses), dead | read.dead)


def _set_aside(
    topology: Topology, rows: Batch, offsets: Mapping[str, Sequence[int]], addresses: Mapping[str, str]
) -> tuple[Batch, frozenset[str]]:
    """Return the rows without those at which a bolt fails when it gets nothing else, and the places of these.

    Halves what fails. Rows that fail only together are left in: folding them all raises again."""
    good: dict[str, list[pa.RecordBatch]] = {name: [some.slice(0, 0)] for name, some in rows.items()}
    dead: list[str] = []
    pieces = [(name, 0, some.num_rows) for name, some in rows.items() if some.num_rows]
    while pieces:
        name, start, end = pieces.pop()
        piece = rows[name].slice(start, end - start)
        try:
            plain_fold(topology, [{name: piece}], addresses=addresses)
        except (BoltError, TupleError):
            if end - start == 1:
                dead += [f"{name}@{offset}" for offset in offsets.get(name, ())[start:end]]
            else:
                half = (start + end) // 2
                pieces += [(name, half, end), (name, start, half)]  # the first is looked at first
        else:
            good[name].append(piece)
    return {name: pa.concat_batches(some) for name, some in good.items()}, frozenset(dead)


def _sample(topology: Topology, settings: Settings) -> Batch:
    """Return some first rows by partition, as the source itself reads them."""
    source, context = topology.spout.source, source_context(topology, settings)
    with (
        contextlib.closing(source.coordinator(context)) as coordinator,
        contextlib.closing(source.emitter(context)) as emitter,
    ):
        attempt = TransactionAttempt(Txid(1), AttemptId(1))
        empty = to_record_batch([], source.output)
        return {
            name: pa.concat_batches([empty, *emitter.emit(attempt, name, meta)])
            for name, meta in coordinator.plan({}, _SAMPLE).items()
            if not isinstance(meta, Unavailable)
        }


def _records(source: KafkaSource, topology: Topology, settings: Settings, end: Positions) -> _Read | None:
    """Return the records by partition, as kafka-python's consumer reads them. None if a start or a value is
    one that only the source knows how to take. A value that cannot be decoded is a dead letter, if the
    topology asks for these."""
    from kafka import KafkaConsumer, TopicPartition

    context = source_context(topology, settings)
    consumer = KafkaConsumer(
        **source.client_options,
        bootstrap_servers=source.address(context).split(","),
        enable_auto_commit=False,
        isolation_level=source.isolation_level,
    )
    with contextlib.closing(consumer):
        places = {name: TopicPartition(*_split(name)) for name, meta in end.items() if meta.end}
        consumer.assign(list(places.values()))
        for name, place in places.items():
            start = source.starting_offsets.get(name, source.starting_offsets["*"])
            if start == "earliest":
                consumer.seek_to_beginning(place)
            elif isinstance(start, int):
                consumer.seek(place, start)
            else:
                return None
        found: dict[str, list[Any]] = {name: [] for name in places}
        heard = time.monotonic()
        while late := [name for name, place in places.items() if consumer.position(place) < end[name].end]:
            polled = consumer.poll(timeout_ms=500)
            for place, records in polled.items():
                name = f"{place.topic}/{place.partition}"
                found[name] += [record for record in records if record.offset < end[name].end]
            if polled:
                heard = time.monotonic()
            elif time.monotonic() - heard > _SILENCE_SECONDS:
                raise ServiceUnavailableError(
                    f"kafka-python's consumer got no record of {late[0]} for {_SILENCE_SECONDS:g} s"
                )
    try:
        return _decoded(source, found, sets_aside=topology.dead_letters is not None)
    except (AttributeError, ValueError, _OnlyTheSourceKnowsError):
        return None


def _decoded(source: KafkaSource, found: Mapping[str, Sequence[Any]], *, sets_aside: bool) -> _Read:
    """Decode records. Raises what comes of one that cannot be, unless such are set aside."""
    rows: dict[str, list[Sequence[Any]]] = {name: [] for name in found}
    offsets: dict[str, list[int]] = {name: [] for name in found}
    dead: list[str] = []
    for name, records in found.items():
        for record in records:
            if source.tombstones == "skip" and record.value is None:
                continue
            try:
                row = _row(source, record)
                to_record_batch([row], source.output)
            except (AttributeError, ValueError):
                if not sets_aside:
                    raise
                dead.append(f"{name}@{record.offset}")
            else:
                rows[name].append(row)
                offsets[name].append(record.offset)
    batch = {name: to_record_batch(some, source.output) for name, some in rows.items()}
    return _Read(batch, offsets, frozenset(dead))


class _OnlyTheSourceKnowsError(Exception):
    """A value of a type or a format that is not decoded here."""


def _split(partition: str) -> tuple[str, int]:
    topic, _, number = partition.rpartition("/")
    return topic, int(number)


def _row(source: KafkaSource, record: Any) -> Sequence[Any]:
    if source.value_format not in (*_PLAIN, "json") or source.key_format not in _PLAIN:
        raise _OnlyTheSourceKnowsError

    def text(raw: bytes | None, kind: pa.DataType) -> Any:
        return raw if raw is None or pa.types.is_binary(kind) else raw.decode(errors=source.errors)

    columns: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": _EPOCH + timedelta(milliseconds=record.timestamp),
        "timestampType": record.timestamp_type,
        "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
    }
    for name, raw in (("key", record.key), ("value", record.value)):
        if name in source.kafka_columns:
            columns[name] = text(raw, source.output.field(name).type)
    fields: Mapping[str, Any] = {}
    if source.schema is not None and record.value is None and source.tombstones == "refuse":
        raise ValueError("a record without a value")
    if source.schema is not None and record.value is not None:
        fields = json.loads(record.value.decode(errors=source.errors), parse_float=Decimal)
    return [
        *(_json_value(fields.get(field.name), field.type) for field in source.schema or ()),
        *(columns[name] for name in source.kafka_columns),
    ]


def _json_value(value: Any, kind: pa.DataType) -> Any:
    if value is None or pa.types.is_string(kind) or pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return value
    if pa.types.is_floating(kind) and isinstance(value, int | Decimal):
        return float(value)
    if pa.types.is_date(kind) and _DATE.fullmatch(str(value)):
        return date.fromisoformat(value)
    if pa.types.is_timestamp(kind):
        found = _MOMENT.fullmatch(str(value))
        if found is not None and (found["zone"] is None) is (kind.tz is None):
            return datetime.fromisoformat(value)
    if pa.types.is_decimal(kind) and (isinstance(value, int | Decimal) or _NUMBER.fullmatch(str(value))):
        return Decimal(value)
    raise _OnlyTheSourceKnowsError
