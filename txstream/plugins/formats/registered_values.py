"""Formats whose schemas a registry may have: what Avro and Protobuf share.

Values either carry the ids of their writers' schemas, which a registry has, or were all written by the
topology's own schema.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar, Protocol

import pyarrow as pa

from txstream.api.spouts import SpoutContext
from txstream.core.readings import NOTHING_READ, Reading, refuse_changes
from txstream.plugins.formats.schema_registry import (
    HEADER_BYTES,
    RegisteredSchema,
    SchemaRegistry,
    UnknownSchemaError,
    UnresolvableError,
    registry_of,
)
from txstream.spouts.formats.unfit_values import BadValueError, refuse_first
from txstream.spouts.formats.value_formats import FormatArguments, ValueFormat, ValueReader

_FEW = 10
"""So many values of one read may say the id of a schema that is not there, and be at fault themselves."""


class Decoder(Protocol):
    """Reads the values of one writer's schema."""

    def read_fit(self, values: Sequence[bytes], skip: int = 0) -> tuple[pa.Array, Mapping[int, str]]: ...


class RegisteredFormat(ValueFormat):
    """A reader's schema. `kind` is its format in the registry's word; `serialized` asks the registry for what
    this format's decoder reads."""

    takes_registry = True
    kind: ClassVar[str]
    serialized: ClassVar[bool] = False

    def __init__(self, given: FormatArguments) -> None:
        self.errors = given.errors
        self._registry = (given.schema_registry, given.source) if given.wire_format == "confluent" else None

    @abstractmethod
    def decoder(self, writer: RegisteredSchema | None) -> Decoder:
        """Return what reads the values of a writer's schema; None is the topology's own. Raises
        UnresolvableError."""

    def reader(self, context: SpoutContext) -> ValueReader:
        if self._registry is None:
            return PlainReader(self)
        address, source = self._registry
        return RegisteredReader(self, partial(registry_of, address, context, source))

    def service(self, context: SpoutContext) -> SchemaRegistry | None:
        if self._registry is None:
            return None
        address, source = self._registry
        return registry_of(address, context, source)


class _NoSchemaError(Exception):
    """A value does not say by which schema it was written."""


class FittingReader(ABC):
    def read(self, values: Sequence[bytes | None]) -> pa.Array:
        """Return the values as a column; None is null. Raises BadValueError for the first that is bad, and
        what `read_fit` raises."""
        array, unfit = self.read_fit(values)
        refuse_first(unfit)
        return array

    @abstractmethod
    def read_fit(self, values: Sequence[bytes | None]) -> tuple[pa.Array, Mapping[int, str]]:
        """Return the values as a column; None is null, and so is a value that cannot be read: why it cannot
        comes with it, by row."""


class PlainReader(FittingReader):
    """Values that were all written by the topology's schema, without ids."""

    def __init__(self, read_as: RegisteredFormat) -> None:
        self._decoder = read_as.decoder(None)

    def read_fit(self, values: Sequence[bytes | None]) -> tuple[pa.Array, Mapping[int, str]]:
        """See `FittingReader`."""
        rows = [row for row, value in enumerate(values) if value is not None]
        found, unfit = self._decoder.read_fit([value for value in values if value is not None])
        return in_order([(rows, found)], len(values)), {rows[at]: why for at, why in unfit.items()}


class RegisteredReader(FittingReader):
    """Values that begin with the ids of their writers' schemas. Lives as long as its emitter, so a schema is
    resolved once for each worker process."""

    def __init__(self, read_as: RegisteredFormat, registry: Callable[[], SchemaRegistry]) -> None:
        self._format = read_as
        self._registry = registry
        self._decoders: dict[int, Decoder | UnresolvableError] = {}
        self._fingerprints: dict[int, str] = {}
        self._used: set[int] = set()
        self._known = NOTHING_READ

    def know(self, known: Mapping[str, str]) -> None:
        """From now on, refuse another schema under an id than this fingerprint's, before anything is read."""
        self._known = Reading({}, known)

    def take_fetched(self) -> Mapping[str, str]:
        """Return the fingerprints of the schemas that were read by since the last call, by their ids."""
        used, self._used = self._used, set()
        return {f"schema {one}": self._fingerprints[one] for one in sorted(used)}

    def read_fit(self, values: Sequence[bytes | None]) -> tuple[pa.Array, Mapping[int, str]]:
        """See `FittingReader`. Raises BadValueError for the first bad value if one of a schema that cannot
        be read as the topology's is among them: whether they are to blame is not known yet. Raises
        ServiceUnavailableError while the registry does not answer, and UsageError if it refuses to.

        A schema that the registry does not have for ten seconds is the fault of the values that say its id,
        if they are few and others could be read: they only look as if they had one. Otherwise this may be
        another registry, or it has lost schemas, and good records must not become dead letters:
        UnknownSchemaError."""
        found: list[tuple[Sequence[int], pa.Array]] = []
        unfit: dict[int, str] = {}
        refused: dict[int, str] = {}
        unknown: dict[UnknownSchemaError, Sequence[int]] = {}
        for header, rows in _by_header(values).items():
            some = [value for value in values if value is not None]
            if len(some) != len(rows):
                some = [values[row] for row in rows]  # type: ignore[misc]
            try:
                decoder = self._decoder(header, patient=not unknown)  # they are as old as those waited for
                array, bad = decoder.read_fit(some, HEADER_BYTES)
                found.append((rows, array))
                unfit.update((rows[at], reason) for at, reason in bad.items())
            except _NoSchemaError as error:
                unfit.update((row, str(error)) for row in rows)
            except UnknownSchemaError as error:
                unknown[error] = rows
            except BadValueError as bad_value:
                refused[rows[bad_value.row]] = bad_value.reason
            except UnresolvableError as error:
                refused[rows[error.row]] = f"{self._name_of(header)}: {error}"
        has_read = any(not isinstance(one, UnresolvableError) for one in self._decoders.values())
        for missing, some_rows in unknown.items():
            if not has_read or len(some_rows) > _FEW:
                raise missing
            unfit.update((row, f"{missing}; or it only looks as if it began with an id") for row in some_rows)
        if refused:
            refuse_first({**unfit, **refused})
        return in_order(found, len(values)) if found else pa.nulls(len(values), self._format.type), unfit

    def _decoder(self, header: bytes, *, patient: bool) -> Decoder:
        if len(header) < HEADER_BYTES or header[0] != 0:
            raise _NoSchemaError(
                "it has no schema id: it does not begin with a zero byte and four bytes of an id; "
                "wire_format='plain' reads records without"
            )
        schema_id = int.from_bytes(header[1:], "big")
        known = self._decoders.get(schema_id)
        if known is None:
            wanted = self._format
            schema = self._registry().schema(schema_id, serialized=wanted.serialized, patient=patient)
            self._fingerprints[schema_id] = schema.fingerprint
            try:
                if schema.kind != wanted.kind:
                    raise UnresolvableError(f"it is of type {schema.kind}, the topology reads {wanted.kind}")
                known = wanted.decoder(schema)
            except UnresolvableError as error:
                known = error
            self._decoders[schema_id] = known
        self._used.add(schema_id)
        found = Reading({}, {f"schema {schema_id}": self._fingerprints[schema_id]})
        refuse_changes(self._known.changed(found), "a batch would be read by another schema")
        if isinstance(known, UnresolvableError):
            raise known
        return known

    def _name_of(self, header: bytes) -> str:
        return self._registry().name_of(int.from_bytes(header[1:], "big"))


def _by_header(values: Sequence[bytes | None]) -> dict[bytes, list[int]]:
    rows: dict[bytes, list[int]] = {}
    headers = [value if value is None else value[:HEADER_BYTES] for value in values]
    distinct = set(headers)
    if len(distinct) == 1 and None not in distinct:
        return {header: list(range(len(values))) for header in distinct if header is not None}
    for row, header in enumerate(headers):
        if header is not None:
            rows.setdefault(header, []).append(row)
    return rows


def in_order(parts: Sequence[tuple[Sequence[int], pa.Array]], length: int) -> pa.Array:
    """Return one column: each part's values in its rows, and null in the rows of none."""
    (rows, array), *others = parts
    if not others and len(rows) == length:
        return array
    places: list[int | None] = [None] * length
    for place, row in enumerate(row for rows, _ in parts for row in rows):
        places[row] = place
    return pa.concat_arrays([array for _, array in parts]).take(pa.array(places, pa.int64()))
