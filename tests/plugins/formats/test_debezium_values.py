"""Change events of Debezium become rows: those of each kind, after the documentation of its connectors for
PostgreSQL and MySQL (they are recorded by hand), in JSON with and without a schema, and in Avro."""

from __future__ import annotations

import base64
import io
import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pytest
from support.lists import each
from support.schema_registry import FakeRegistry

from txstream.api.spouts import SpoutContext
from txstream.core.errors import DecodeError, SchemaError
from txstream.spouts.formats.value_formats import read_fit
from txstream.spouts.kafka import Decode, KafkaSource
from txstream.spouts.kafka.columns import joined_batch, readers
from txstream.spouts.kafka.protocol import Partition
from txstream.spouts.kafka.record_blocks import RecordColumns, Records

Row = dict[str, Any]
COLUMNS = (
    "id bigint, name string, price decimal(10,2), any_price decimal(10,3), born date, made timestamp_ntz, "
    "seen timestamp, photo binary"
)
_UNSENT = "__debezium_unavailable_value"

# --- recorded by hand -------------------------------------------------------------------------------------

POSTGRES = {
    "version": "2.7.3.Final", "connector": "postgresql", "name": "shop", "ts_ms": 1769860800123,
    "snapshot": "false", "db": "shop", "sequence": '["24023112","24023128"]', "ts_us": 1769860800123456,
    "ts_ns": 1769860800123456000, "schema": "public", "table": "goods", "txId": 555, "lsn": 24023128,
    "xmin": None,
}  # fmt: skip
MYSQL = {
    "version": "2.7.3.Final", "connector": "mysql", "name": "shop", "ts_ms": 1769860800000,
    "snapshot": "false", "db": "shop", "sequence": None, "table": "goods", "server_id": 223344,
    "gtid": None, "file": "mysql-bin.000003", "pos": 484, "row": 1, "thread": 7, "query": None,
}  # fmt: skip
MICROS = 1769860800123456  # 2026-01-31 12:00:00.123456
IN_JSON: Row = {
    "id": 1, "name": "tea", "price": "MDk=", "any_price": {"scale": 3, "value": "MDk="}, "born": 20484,
    "made": MICROS, "seen": "2026-01-31T12:00:00.123456Z", "photo": "AAEC",
}  # fmt: skip
READ: Row = {
    "id": 1, "name": "tea", "price": Decimal("123.45"), "any_price": Decimal("12.345"),
    "born": date(2026, 1, 31), "made": datetime(2026, 1, 31, 12, 0, 0, 123456),
    "seen": datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC), "photo": b"\0\1\2",
}  # fmt: skip
NOTHING = dict.fromkeys(READ)
CONNECT_FIELDS = [
    {"type": "int32", "optional": False, "field": "id"},
    {"type": "string", "optional": True, "field": "name"},
    {"type": "bytes", "optional": True, "field": "price", "name": "org.apache.kafka.connect.data.Decimal",
     "version": 1, "parameters": {"scale": "2", "connect.decimal.precision": "10"}},
    {"type": "struct", "field": "any_price", "name": "io.debezium.data.VariableScaleDecimal",
     "fields": [{"type": "int32", "field": "scale"}, {"type": "bytes", "field": "value"}]},
    {"type": "int32", "optional": True, "field": "born", "name": "io.debezium.time.Date", "version": 1},
    {"type": "int64", "optional": True, "field": "made", "name": "io.debezium.time.MicroTimestamp"},
    {"type": "string", "optional": True, "field": "seen", "name": "io.debezium.time.ZonedTimestamp"},
    {"type": "bytes", "optional": True, "field": "photo"},
]  # fmt: skip


def event(op: str, before: Any = None, after: Any = None, source: Row = POSTGRES, **more: Any) -> Row:
    about = {"source": source, "op": op, "ts_ms": 1769860800999, "transaction": None}
    return {"before": before, "after": after, **about, **more}


def wrapped(payload: Any, fields: list[Row] = CONNECT_FIELDS) -> Row:
    """As Connect's JsonConverter writes it with schemas.enable=true."""
    row = {"type": "struct", "fields": fields, "optional": True, "name": "shop.public.goods.Value"}
    sides = [{**row, "field": "before"}, {**row, "field": "after"}]
    about = [{"type": "string", "optional": False, "field": "op"}]
    schema = {"type": "struct", "fields": [*sides, *about], "name": "shop.public.goods.Envelope"}
    return {"schema": schema, "payload": payload}


def told(op: str, source: Row = POSTGRES, sequence: int | None = 24023128) -> Row:
    moment = datetime.fromtimestamp(source["ts_ms"] / 1000, UTC)
    return {"op": op, "sequence": sequence, "changed_at": moment}


IN_FILE = 3 << 32 | 484
OF_KEY = {**dict.fromkeys(IN_JSON), "id": 1}
KINDS: dict[str, tuple[Row, Row]] = {
    "created": (event("c", after=IN_JSON), {**READ, **told("c")}),
    "updated": (event("u", {**IN_JSON, "name": "milk"}, IN_JSON), {**READ, **told("u")}),
    "updated, REPLICA IDENTITY DEFAULT": (event("u", None, IN_JSON), {**READ, **told("u")}),
    "deleted": (event("d", IN_JSON), {**READ, **told("d")}),
    "deleted, REPLICA IDENTITY DEFAULT": (event("d", OF_KEY), {**NOTHING, "id": 1, **told("d")}),
    "deleted, a long value unsent": (
        event("d", {**OF_KEY, "name": _UNSENT}), {**NOTHING, "id": 1, **told("d")},
    ),
    "snapshot": (event("r", after=IN_JSON, source={**POSTGRES, "snapshot": "last"}), {**READ, **told("r")}),
    "snapshot of old versions": (
        event("c", after=IN_JSON, source={**POSTGRES, "snapshot": True}), {**READ, **told("c")},
    ),
    "incremental snapshot": (
        event("r", after=IN_JSON, source={**POSTGRES, "snapshot": "incremental", "lsn": None}),
        {**READ, **told("r", sequence=None)},
    ),
    "MySQL, created": (event("c", after=IN_JSON, source=MYSQL), {**READ, **told("c", MYSQL, IN_FILE)}),
    "MySQL, updated": (event("u", IN_JSON, IN_JSON, MYSQL), {**READ, **told("u", MYSQL, IN_FILE)}),
    "MySQL, deleted": (event("d", IN_JSON, source=MYSQL), {**READ, **told("d", MYSQL, IN_FILE)}),
    "MySQL, snapshot": (
        event("r", after=IN_JSON, source={**MYSQL, "snapshot": "true", "row": 0}),
        {**READ, **told("r", MYSQL, IN_FILE)},
    ),
    "another connector": (
        event("c", after=IN_JSON, source={"connector": "sqlserver", "change_lsn": "0:1:2", "ts_ms": 0}),
        {**READ, "op": "c", "sequence": None, "changed_at": datetime(1970, 1, 1, tzinfo=UTC)},
    ),
    "in a transaction": (
        event("c", after=IN_JSON, transaction={"id": "555:24023128", "total_order": 1}),
        {**READ, **told("c")},
    ),
}  # fmt: skip


# --- Avro, by fastavro -------------------------------------------------------------------------------------


def optional(schema: Any) -> Row:
    return {"type": ["null", schema], "default": None}


def named(base: str, name: str, **more: Any) -> Row:
    return {"type": base, "connect.version": 1, "connect.name": name, **more}


_DECIMAL = named(
    "bytes", "org.apache.kafka.connect.data.Decimal", scale=2, precision=10, logicalType="decimal",
    **{"connect.parameters": {"scale": "2", "connect.decimal.precision": "10"}},
)  # fmt: skip
_VARIABLE = {
    "type": "record", "name": "VariableScaleDecimal", "namespace": "io.debezium.data",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
}  # fmt: skip
AVRO_ROW = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "name", **optional("string")},
        {"name": "price", **optional(_DECIMAL)},
        {"name": "any_price", **optional(_VARIABLE)},
        {"name": "born", **optional(named("int", "io.debezium.time.Date"))},
        {"name": "made", **optional(named("long", "io.debezium.time.MicroTimestamp"))},
        {"name": "seen", **optional(named("string", "io.debezium.time.ZonedTimestamp"))},
        {"name": "photo", **optional("bytes")},
    ],
}
AVRO = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.public.goods",
    "connect.name": "shop.public.goods.Envelope",
    "fields": [
        {"name": "before", **optional(AVRO_ROW)},
        {"name": "after", **optional("Value")},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "namespace": "io.debezium.connector",
                "fields": [
                    {"name": "connector", "type": "string"},
                    {"name": "ts_ms", "type": "long"},
                    {"name": "snapshot", **optional("string")},
                    {"name": "lsn", **optional("long")},
                    {"name": "file", **optional("string")},
                    {"name": "pos", **optional("long")},
                ],
            },
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", **optional("long")},
    ],
}


def in_avro(payload: Row) -> bytes:
    def bare(row: Row | None) -> Row | None:
        if row is None:
            return None
        other = row["any_price"] and {"scale": 3, "value": base64.b64decode(row["any_price"]["value"])}
        raw = {name: row[name] and base64.b64decode(row[name]) for name in ("price", "photo")}
        return {**row, **raw, "any_price": other}

    sides = {side: bare(payload[side]) for side in ("before", "after")}
    source = {**payload["source"], "snapshot": str(payload["source"].get("snapshot"))}
    data = io.BytesIO()
    plain = json.loads(json.dumps(AVRO).replace('"logicalType": "decimal", ', ""))
    fastavro.schemaless_writer(data, fastavro.parse_schema(plain), {**payload, **sides, "source": source})
    return data.getvalue()


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
        (event("u", after={"name": _UNSENT}), "field 'name': its value was not sent"),
        (event("u", after={"photo": base64.b64encode(_UNSENT.encode()).decode()}), "field 'photo': its val"),
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
    for declared, told in (
        (None, "'debezium' needs schema: the columns of the source's table"),
        ("id bigint, op string", "column 'op' is what the format says of each row"),
        ("micros(at) as at string", r"column 'at' is string, and micros\(\) gives a timestamp"),
        ("unscaled(at) as at string", r"column 'at' is string, and unscaled\(\) gives a decimal"),
        ("id nonsense", "nonsense"),
    ):
        with pytest.raises(SchemaError, match=told):
            source(declared)
    assert source("id bigint, op as op_of_row string").output.names == [
        "id", "op_of_row", "op", "sequence", "changed_at",
    ]  # fmt: skip
