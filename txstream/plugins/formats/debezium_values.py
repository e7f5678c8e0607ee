"""Debezium's change events as rows: the reader behind `KafkaSource(..., decode=Decode("debezium"))`.

Invariants:

- Each value says itself what it is: one that begins with a zero byte and an id is Avro by that schema of a
  registry, any other is JSON. So a topic whose converter was changed is read from its beginning.
- What an event says is read by `debezium_rows` alone, whatever it was written in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from txstream.api.spouts import SpoutContext
from txstream.core.errors import SchemaError
from txstream.plugins.formats.avro_schema import AvroSchema, parsed
from txstream.plugins.formats.avro_values import AvroValues
from txstream.plugins.formats.debezium_rows import Event, Meanings, Rows, avro_meanings, connect_meanings
from txstream.plugins.formats.registered_values import Decoder, FittingReader, RegisteredFormat, in_order
from txstream.plugins.formats.schema_registry import (
    REGISTRY,
    RegisteredSchema,
    SchemaRegistry,
    UnresolvableError,
)
from txstream.spouts.formats.json_columns import MisfitError, kind_of
from txstream.spouts.formats.json_values import JsonReader
from txstream.spouts.formats.value_formats import FormatArguments, ValueReader, know, take_fetched

_FRAMED = b"\0"
_NO_REGISTRY = "it begins as one whose schema a registry has, and none was named (--schema-registry URL)"


class DebeziumFormat(RegisteredFormat):
    """The columns of a source's table, as for JSON, and three more: `op`, `sequence`, `changed_at`."""

    kind = "AVRO"
    tombstones = "skip"  # the event before it has removed the row

    def __init__(self, given: FormatArguments) -> None:
        super().__init__(given)
        if given.schema is None:
            raise SchemaError("the columns of the source's table, such as 'id bigint, name string'")
        self._address = given.schema_registry
        self.rows = Rows(given.schema)

    @property
    def type(self) -> pa.DataType:
        return pa.struct(list(self.rows.schema))

    def decoder(self, writer: RegisteredSchema | None) -> Decoder:
        if writer is None:
            raise UnresolvableError("an event in Avro can only be read by the schema that it was written by")
        try:
            written = parsed(writer.text, [text for _, text in writer.references])
        except SchemaError as error:
            raise UnresolvableError(str(error)) from error
        return _AvroEvents(written, self.rows, self.errors)

    def reader(self, context: SpoutContext) -> ValueReader:
        return _EventReader(self, super().reader(context) if self._has_registry(context) else None)

    def service(self, context: SpoutContext) -> SchemaRegistry | None:
        """JSON needs no registry, so there may be none."""
        return super().service(context) if self._has_registry(context) else None

    def _has_registry(self, context: SpoutContext) -> bool:
        return self._registry is not None and bool(self._address or context.addresses.get(REGISTRY))


class _EventReader(FittingReader):
    """Reads each value by what it is. Without `framed`, all are JSON."""

    def __init__(self, read_as: DebeziumFormat, framed: Any) -> None:
        self._fields = list(read_as.rows.schema)
        self._json = _JsonEvents(read_as.rows, replace_invalid_utf8=read_as.errors == "replace")
        self._framed = framed

    def know(self, known: Mapping[str, str]) -> None:
        if self._framed is not None:
            know(self._framed, known)

    def take_fetched(self) -> Mapping[str, str]:
        return {} if self._framed is None else take_fetched(self._framed)

    def read_fit(self, values: Sequence[bytes | None]) -> tuple[pa.Array, Mapping[int, str]]:
        """See `FittingReader`."""
        framed: list[int] = []
        plain: list[int] = []
        for row, value in enumerate(values):
            if value is not None:
                is_framed = self._framed is not None and value[:1] == _FRAMED
                (framed if is_framed else plain).append(row)
        unfit: dict[int, str] = {}
        arrays, bad = self._json.read_fit([values[row] for row in plain])
        parts = [(plain, pa.StructArray.from_arrays(arrays, fields=self._fields))]
        for at, why in bad.items():
            looks = (values[plain[at]] or b"")[:1] == _FRAMED
            unfit[plain[at]] = f"{_NO_REGISTRY}; {why}" if looks else why
        if framed:
            alone: list[bytes | None] = [None] * len(values)
            for row in framed:
                alone[row] = values[row]
            array, bad = self._framed.read_fit(alone)
            parts.append((framed, array.take(pa.array(framed, pa.int64()))))
            unfit.update(bad)
        return in_order(parts, len(values)), unfit


class _JsonEvents(JsonReader):
    """Events in JSON: bare, or as the `payload` beside a `schema`, as Connect's converter writes them."""

    def __init__(self, rows: Rows, *, replace_invalid_utf8: bool) -> None:
        super().__init__(rows.schema, replace_invalid_utf8=replace_invalid_utf8)
        self._rows = rows
        self._last: tuple[Any, Meanings] = (None, {})

    def columns(self, rows: Sequence[dict[str, Any]]) -> list[pa.Array]:
        return self._rows.read([self._event(row, at) for at, row in enumerate(rows)])

    def _event(self, value: dict[str, Any], at: int) -> Event:
        if "payload" not in value or "op" in value:
            return Event(value, {})
        payload, schema = value["payload"], value.get("schema")
        if type(payload) is not dict:
            raise MisfitError(f"expected a change event, found {kind_of(payload)}", ".payload", [at])
        if schema != self._last[0]:  # most are the same, and are compared faster than read
            self._last = schema, connect_meanings(schema)
        return Event(payload, self._last[1])


class _AvroEvents(AvroValues):
    def __init__(self, writer: AvroSchema, rows: Rows, errors: str) -> None:
        super().__init__(writer, errors)
        self._rows, self._meanings = rows, avro_meanings(writer)
        self._type = pa.struct(list(rows.schema))

    def column(self, found: Sequence[Any]) -> pa.Array:
        for at, value in enumerate(found):
            if type(value) is not dict:
                raise MisfitError(f"expected a change event, found {kind_of(value)}", "", [at])
        arrays = self._rows.read([Event(value, self._meanings) for value in found])
        return pa.StructArray.from_arrays(arrays, fields=list(self._type))
