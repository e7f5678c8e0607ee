"""Change events of each kind as Debezium writes them, and the rows that they are about. They are recorded by
hand, after the documentation of its connectors for PostgreSQL and MySQL. fastavro encodes them."""

from __future__ import annotations

import base64
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro

Row = dict[str, Any]
COLUMNS = (
    "id bigint, name string, price decimal(10,2), any_price decimal(10,3), born date, made timestamp_ntz, "
    "seen timestamp, photo binary"
)
UNSENT = "__debezium_unavailable_value"

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
CONNECT_FIELDS: list[Row] = [
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
        event("d", {**OF_KEY, "name": UNSENT}), {**NOTHING, "id": 1, **told("d")},
    ),
    "snapshot": (
        event("r", after=IN_JSON, source={**POSTGRES, "snapshot": "last"}), {**READ, **told("r", sequence=0)},
    ),
    "snapshot of old versions": (
        event("c", after=IN_JSON, source={**POSTGRES, "snapshot": True}), {**READ, **told("c", sequence=0)},
    ),
    "incremental snapshot": (
        event("r", after=IN_JSON, source={**POSTGRES, "snapshot": "incremental", "lsn": None}),
        {**READ, **told("r", sequence=0)},
    ),
    "MySQL, created": (event("c", after=IN_JSON, source=MYSQL), {**READ, **told("c", MYSQL, IN_FILE)}),
    "MySQL, updated": (event("u", IN_JSON, IN_JSON, MYSQL), {**READ, **told("u", MYSQL, IN_FILE)}),
    "MySQL, deleted": (event("d", IN_JSON, source=MYSQL), {**READ, **told("d", MYSQL, IN_FILE)}),
    "MySQL, snapshot": (
        event("r", after=IN_JSON, source={**MYSQL, "snapshot": "true", "row": 0}),
        {**READ, **told("r", MYSQL, 0)},
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
    source = {**payload["source"], "snapshot": str(payload["source"].get("snapshot")).lower()}
    data = io.BytesIO()
    plain = json.loads(json.dumps(AVRO).replace('"logicalType": "decimal", ', ""))
    fastavro.schemaless_writer(data, fastavro.parse_schema(plain), {**payload, **sides, "source": source})
    return data.getvalue()
