"""Change events of Debezium become rows: those of each kind, after the documentation of its connectors for
PostgreSQL and MySQL (they are recorded by hand), in JSON with and without a schema, and in Avro."""

from __future__ import annotations

import base64
import json
import pickle
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from support.debezium_events import (
    AVRO,
    COLUMNS,
    IN_JSON,
    KINDS,
    MYSQL,
    POSTGRES,
    READ,
    UNSENT,
    event,
    in_avro,
    told,
    wrapped,
)
from support.lists import each
from support.schema_registry import FakeRegistry

from txstream.api.spouts import SpoutContext
from txstream.core.errors import DecodeError, SchemaError
from txstream.spouts.formats.value_formats import read_fit
from txstream.spouts.kafka import Decode, KafkaSource
from txstream.spouts.kafka.columns import joined_batch, readers
from txstream.spouts.kafka.protocol import Partition
from txstream.spouts.kafka.record_blocks import RecordColumns, Records

# --- reading ------------------------------------------------------------------------------------------------


def source(columns: Any = COLUMNS, **options: Any) -> KafkaSource:
    return KafkaSource("goods", decode=Decode("debezium", columns, **options))


def read(
    values: list[Any], columns: Any = COLUMNS, registry: str | None = None
) -> tuple[list[Any], dict[int, str]]:
    addresses = {} if registry is None else {"schema_registry": registry}
    shipped = pickle.loads(pickle.dumps(source(columns)))
    raw = [one if one is None or isinstance(one, bytes) else json.dumps(one).encode() for one in values]
    array, unfit = read_fit(shipped.value_schema.reader(SpoutContext("t", "goods", addresses)), raw)
    return array.to_pylist(), dict(unfit)


def refused(value: Any, columns: Any = COLUMNS) -> str:
    (row,), unfit = read([value], columns)
    assert row is None or set(row.values()) == {None}
    return unfit[0]


@each("kind", list(KINDS))
def test_each_kind_of_event(kind: str) -> None:
    payload, expected = KINDS[kind]
    with FakeRegistry() as registry:
        framed = b"\0" + registry.add("goods-value", json.dumps(AVRO)).to_bytes(4, "big") + in_avro(payload)
        rows, unfit = read([wrapped(payload), None, framed, wrapped(payload)], registry=registry.url)
    assert unfit == {}
    assert rows == [expected, None, expected, expected]


def test_a_change_that_was_open_during_a_snapshot_is_newer_than_it() -> None:
    """The places are those that PostgreSQL 16 gave: the slot's consistent point, and that of an update whose
    transaction began before it and was committed behind it. The snapshot did not see the update."""
    snapshot, update = 0x16F25A0, 0x16F24E8
    (read_row, changed), unfit = read(
        [
            event(
                "r", after={"id": 1, "name": "old"}, source={**POSTGRES, "snapshot": "last", "lsn": snapshot}
            ),
            event("u", after={"id": 1, "name": "new"}, source={**POSTGRES, "lsn": update}),
        ],
        "id bigint, name string",
    )
    assert unfit == {}
    assert (read_row["name"], changed["name"]) == ("old", "new")
    assert read_row["sequence"] < changed["sequence"]


def test_an_event_without_a_schema_needs_to_be_told_what_numbers_are() -> None:
    declared = "id bigint, unscaled(price) as price decimal(10,2), micros(made) as made timestamp_ntz"
    (row,), unfit = read([event("c", after=IN_JSON)], declared)
    assert unfit == {}
    assert row == {name: READ[name] for name in ("id", "price", "made")} | told("c")
    assert "field 'made': it is a number without a unit" in refused(event("c", after=IN_JSON))
    assert "the string 'MDk=' is not a number" in refused(event("c", after=IN_JSON), "price decimal(10,2)")
    for how, number in (("millis", 1769860800123), ("nanos", 1769860800123000000)):
        (row,), _ = read([event("c", after={"at": number})], f"{how}(at) as moment timestamp")
        assert row["moment"] == datetime(2026, 1, 31, 12, 0, 0, 123000, tzinfo=UTC)
    text = {"price": "123.45", "more": {"city": "Rome"}}
    (row,), _ = read([event("c", after=text)], "price decimal(10,2), more.city as city string")
    assert (row["price"], row["city"]) == (Decimal("123.45"), "Rome")
    schema = [{"field": "at", "type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"}]
    (row,), _ = read([wrapped(event("c", after={"at": 1000}), schema)], "micros(at) as at timestamp_ntz")
    assert row["at"] == datetime(1970, 1, 1, 0, 0, 1)  # the event's own schema knows better


@each(
    ("value", "told"),
    [
        (b"[1]", "it is not a JSON object"),
        (b'{"op": ', "it is not JSON"),
        (b"\0\0\0\0\7{}", "a registry has, and none was named (--schema-registry URL)"),
        ({}, "it is no change event of Debezium: it has no 'op'"),
        ({"id": 1, "name": "tea"}, "value_format='json' or 'avro'"),
        (wrapped(None), "field 'payload': expected a change event, found null"),
        (event("m", message={"prefix": "p"}), "its op is the string 'm', not one of c, r, u, d"),
        ({"source": POSTGRES, "op": "t", "ts_ms": 1}, "the source's table was truncated (op 't')"),
        (event("c"), "field 'after': an event of op 'c' has a row here, not null"),
        (event("c", after='{"_id": 1}'), "field 'after': an event of op 'c' has a row here, not the string"),
        (event("d"), "field 'before': an event of op 'd' has a row here, not null; give the source's table"),
        (event("c", after={"id": 1}, source=None), "field 'source': expected an object, found null"),  # type: ignore[arg-type]
        (event("c", after={"id": 1}, source={"lsn": "x"}), "field 'sequence': expected bigint"),
        (
            event("c", after={"id": 1}, source={**MYSQL, "pos": 1 << 32}),
            "field 'source.pos': mysql-bin.000003 4294967296 is beyond",
        ),
        (event("u", after={"name": UNSENT}), "field 'name': its value was not sent"),
        (event("u", after={"photo": base64.b64encode(UNSENT.encode()).decode()}), "field 'photo': its val"),
        (event("c", after={"id": "1"}), "field 'id': expected bigint, found the string '1'"),
        (event("c", after={"born": 9999999}), "field 'born': day 9999999 is not within the years"),
        (wrapped(event("c", after={"made": 1 << 62})), "field 'made': 4611686018427387904 micros is not"),
        (wrapped(event("c", after={"price": "???"})), "field 'price': the string '???' with scale"),
        (wrapped(event("c", after={"price": "f////////w=="})), "field 'price': "),
    ],
)  # fmt: skip
def test_what_is_no_such_event_is_refused(value: Any, told: str) -> None:
    good = wrapped(event("c", after=IN_JSON))
    assert told in refused(value)
    rows, unfit = read([good, value, good])
    assert list(unfit) == [1]
    assert (
        rows[0] == rows[2] == {**READ, "op": "c", "sequence": 24023128, "changed_at": rows[0]["changed_at"]}
    )


def test_types_that_mean_something_else_are_refused() -> None:
    for name, declared in (
        ("io.debezium.time.MicroTimestamp", "x date"),
        ("io.debezium.time.Time", "x date"),
        ("io.debezium.time.Date", "x timestamp_ntz"),
        ("io.debezium.time.MicroTime", "x timestamp"),
    ):
        fields = [{"field": "x", "type": "int64", "name": name}]
        assert " and no " in refused(wrapped(event("c", after={"x": 5}), fields), declared)
    fields = [{"field": "x", "type": "int64", "name": "io.debezium.time.NanoTimestamp"}]
    assert "has nanoseconds" in refused(wrapped(event("c", after={"x": 5}), fields), "x timestamp_ntz")


def test_a_bad_event_is_an_error_that_names_its_place() -> None:
    of = source()
    raw: list[bytes | None] = [json.dumps(event("c", after={"id": 1})).encode(), b"{}"]
    numbers = np.arange(100, 102)
    block = Records(numbers, numbers, np.zeros(2, np.bool_), [None, None], raw, {}).block
    with pytest.raises(DecodeError, match=r"offset 101 of topic 'goods', partition 3, .* no change event"):
        joined_batch(
            of, readers(of, SpoutContext("t", "goods", {})), [(Partition("goods", 3), RecordColumns([block]))]
        )


def test_declarations_that_cannot_be() -> None:
    for declared, words in (
        (None, "'debezium' needs schema: the columns of the source's table"),
        ("id bigint, op string", "column 'op' is what the format says of each row"),
        ("micros(at) as at string", r"column 'at' is string, and micros\(\) gives a timestamp"),
        ("unscaled(at) as at string", r"column 'at' is string, and unscaled\(\) gives a decimal"),
        ("id nonsense", "nonsense"),
    ):
        with pytest.raises(SchemaError, match=words):
            source(declared)
    assert source("id bigint, op as op_of_row string").output.names == [
        "id", "op_of_row", "op", "sequence", "changed_at",
    ]  # fmt: skip
