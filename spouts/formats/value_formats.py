"""The port of formats: what a source's values, or its keys, are read by.

JSON is here. Every other format comes in by an entry point of an installed package, Avro and Protobuf, which
this wheel has, as well as a stranger's: in the group `txstream.value_formats`, with the name that
`KafkaSource(decode=Decode(NAME))` says. Its object is called with `FormatArguments`, on the driver, when a
source is made, and returns a `ValueFormat`; usually it is the class itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import pyarrow as pa

from txstream.api.spouts import SpoutContext
from txstream.core.entry_points import VALUE_FORMATS, load, names
from txstream.core.errors import SchemaError, UsageError
from txstream.spouts.formats.json_paths import Pick
from txstream.spouts.formats.json_values import JsonReader, json_picks
from txstream.spouts.formats.unfit_values import BadValueError as BadValueError, refuse_first


@dataclass(frozen=True, slots=True)
class FormatArguments:
    """The arguments of a source that a format may look at.

    `schema` is what the user gave as `schema`, or for keys as `key_schema`: what it may be is the format's
    own matter; None if nothing was given. `errors` is "strict" or "replace". `wire_format` is "confluent" or
    "plain". `schema_registry` is a URL, which may have a password. `source` is the source's name in messages.
    """

    schema: Any = field(default=None, repr=False)
    errors: str = "strict"
    wire_format: str = "confluent"
    schema_registry: str | None = field(default=None, repr=False)
    source: str = "the source"


class ValueReader(Protocol):
    """Reads values in one worker process, for as long as that reads the source; one thread at a time."""

    def read(self, values: Sequence[bytes | None]) -> pa.Array:
        """Return one array of the format's type, with a row for each value in their order. None, a record
        without value or key, is null. The same values must always give the same array, since a batch may be
        read again.

        Raises BadValueError for the first value that cannot be read, with its place in `values` and the
        reason: the record then fails with a DecodeError that names it, or becomes a dead letter. Raises
        ServiceUnavailableError while a service of the format is away: the batch waits, see
        `ValueFormat.service`.
        """


def read_fit(reader: ValueReader, values: Sequence[bytes | None]) -> tuple[pa.Array, Mapping[int, str]]:
    """Return the values as one column; None is null, and so is a value that cannot be read: why it cannot
    comes with it, by row. A reader may have a method `read_fit(values)` that does this faster."""
    own = getattr(reader, "read_fit", None)
    if own is not None:
        found: tuple[pa.Array, Mapping[int, str]] = own(values)
        return found
    left, unfit = list(values), dict[int, str]()
    while True:
        try:
            return reader.read(left), unfit
        except BadValueError as bad:
            if bad.row in unfit:
                raise
            unfit[bad.row] = bad.reason
            left[bad.row] = None


def take_fetched(reader: ValueReader) -> Mapping[str, str]:
    """Return fingerprints of what a reader has fetched and read by since the last call, by name ("schema 7").
    A name stands for the same for ever; another fingerprint ends the run. A reader that fetches something has
    a method `take_fetched` for this."""
    own = getattr(reader, "take_fetched", None)
    found: Mapping[str, str] = {} if own is None else own()
    return found


def know(reader: ValueReader, known: Mapping[str, str]) -> None:
    """Tell a reader that has `take_fetched` what was fetched before, perhaps by other runs. Its method
    `know` is to have it raise InputChangedError from then on if a name stands for something else."""
    own = getattr(reader, "know", None)
    if own is not None:
        own(known)


class ValueService(Protocol):
    """A service that readers ask. `shown` is its name in messages, without passwords."""

    shown: str

    def check(self, seconds: float) -> None:
        """Raise ServiceUnavailableError unless it answers within so many seconds."""


class ValueFormat(ABC):
    """How the values of a source, or its keys, become columns: a format with the schema that a topology reads
    by.

    It is made with `FormatArguments` when the source is made; it checks them then, and raises SchemaError for
    a schema that it cannot read by. With the source, it is pickled and shipped to executors, where its
    package must be installed, too. So it keeps texts and numbers, not what it was given: a user's own class
    would have to be on the executors, and a connection cannot be pickled.
    """

    takes_registry: ClassVar[bool] = False
    """Do values begin with ids of schemas that a registry has, unless `wire_format="plain"`? A source of
    formats that take none refuses `schema_registry`."""

    libraries: ClassVar[tuple[str, ...]] = ()
    """What readers import, beside the module of the format: `txstream doctor` asks executors for it."""

    is_text: ClassVar[bool] = False
    """Are values text? Then the remedy for a bad one is `value_format="string"`, else "binary"."""

    tombstones: ClassVar[Literal["refuse", "null", "skip"]] = "refuse"
    """What becomes of a record without a value, unless the user says it (`Decode.tombstones`): "skip" where
    the format's own records say what such a record says."""

    @property
    @abstractmethod
    def type(self) -> pa.DataType:
        """The Arrow type of a value. The source emits the fields of a struct as columns of their own; only
        keys may be of another type. Raises SchemaError for what cannot be a column."""

    @abstractmethod
    def reader(self, context: SpoutContext) -> ValueReader:
        """Return what reads values. Called once in each worker process, and on the driver for dead letters.
        Raises UsageError if something is missing that the user must give or install there."""

    def service(self, context: SpoutContext) -> ValueService | None:
        """Return the service that readers ask, None without one. Called once, on the driver, when a run
        starts. While readers raise ServiceUnavailableError, the driver asks it whether it is back."""
        return None


@dataclass(frozen=True, slots=True)
class JsonFormat(ValueFormat):
    """Objects in JSON as the fields of a declared schema; `json_values` has the rules."""

    is_text = True

    schema: pa.Schema
    replaces_invalid_utf8: bool
    picks: tuple[Pick, ...] = ()

    @classmethod
    def made(cls, given: FormatArguments) -> JsonFormat:
        if given.schema is None:
            raise SchemaError(
                "the fields of its objects, such as 'user string, amount decimal(10,2)', or an Arrow schema"
            )
        picks = json_picks(given.schema)
        return cls(pa.schema([pick.field for pick in picks]), given.errors == "replace", picks)

    @property
    def type(self) -> pa.DataType:
        return pa.struct(list(self.schema))

    def reader(self, context: SpoutContext) -> ValueReader:
        return _JsonObjects(self)


class _JsonObjects:
    def __init__(self, read_as: JsonFormat) -> None:
        self._fields = list(read_as.schema)
        self._reader = JsonReader(
            read_as.schema, replace_invalid_utf8=read_as.replaces_invalid_utf8, picks=read_as.picks
        )

    def read(self, values: Sequence[bytes | None]) -> pa.Array:
        array, unfit = self.read_fit(values)
        refuse_first(unfit)
        return array

    def read_fit(self, values: Sequence[bytes | None]) -> tuple[pa.Array, Mapping[int, str]]:
        arrays, unfit = self._reader.read_fit(values)
        mask = pa.array([value is None for value in values], pa.bool_()) if None in values else None
        return pa.StructArray.from_arrays(arrays, fields=self._fields, mask=mask), unfit


_OWN: dict[str, Callable[[FormatArguments], ValueFormat]] = {"json": JsonFormat.made}


def known_formats() -> list[str]:
    """Return the names of all formats, JSON first."""
    return list(dict.fromkeys([*_OWN, *names(VALUE_FORMATS)]))


def format_of(name: str, given: FormatArguments) -> ValueFormat | None:
    """Return the format of this name, made with a source's arguments; None if no package has one.

    Raises what the format says of its arguments, SchemaError if they cannot be columns, and
    ServiceUnavailableError if a package lacks what the format needs, with what to install.
    """
    make = _OWN.get(name) or load(VALUE_FORMATS, name, f"value format {name!r}")
    if make is None:
        return None
    made = make(given)
    if not isinstance(made, ValueFormat):
        raise UsageError(
            f"the value format {name!r} answered with {type(made).__name__}, which is no ValueFormat"
        )
    made.type  # noqa: B018 - refuses what cannot be a column
    return made
