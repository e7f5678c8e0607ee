"""The port of encoders: what the values of records that are sent are written as.

JSON needs none. Every other one comes in by an entry point of an installed package, Avro and Protobuf, which
this wheel has, as well as a stranger's: in the group `txstream.value_encoders`, with the name that
`Encode(NAME)` says. Its object is called with `EncoderArguments`, on the driver, and returns a
`ValueEncoder`; usually it is the class itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from txstream.api.spouts import SpoutContext
from txstream.core.entry_points import VALUE_ENCODERS, load, names
from txstream.core.errors import TopologyError, UsageError

JSON = "json"


@dataclass(frozen=True, slots=True)
class Encode:
    """How the values of records that a topology sends are written.

    value_format: "json", "avro", "protobuf" or what another package has (`ValueEncoder`).
    schema: for Avro, the path of a .avsc file, JSON text or a dict; without one, it is derived from the
        columns. For Protobuf, a generated message class, or the pair of a path (.proto or descriptor set) and
        a message's full name. Every column needs a field of its name.
    wire_format: for Avro and Protobuf, "confluent": values begin with the id of the schema, which is
        registered in a schema registry as the subject TOPIC-value; or "plain": they have no id.
    schema_registry: the registry's URL; by default the run's.
    """

    value_format: str = JSON
    schema: Any = field(default=None, repr=False)
    wire_format: Literal["confluent", "plain"] = "confluent"
    schema_registry: str | None = field(default=None, repr=False)  # may have a password

    def __post_init__(self) -> None:
        if self.wire_format not in ("confluent", "plain"):
            raise TopologyError(f"wire_format is {self.wire_format!r}; it must be 'confluent' or 'plain'")


AS_JSON = Encode()


@dataclass(frozen=True, slots=True)
class EncoderArguments:
    """What an encoder is made with: the columns of the rows, of which those that cannot be null say so, the
    topic that they go to, and what `Encode` says."""

    columns: pa.Schema
    topic: str
    given: Encode


Rows: TypeAlias = Sequence[Mapping[str, Any]]


class UnfitRowError(Exception):
    """A row that cannot be written: its place among those given, and why."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row


class ValueEncoder(ABC):
    """Writes rows as the values of records. It raises SchemaError when it is made if the schema cannot hold
    the columns. Shipped to executors by pickle, where its package must be installed, too: so it keeps texts
    and numbers, not what it was given."""

    @abstractmethod
    def writer(self, context: SpoutContext) -> Callable[[Rows], list[bytes]]:
        """Return what writes rows, which have a value for each column, perhaps None, as Python has it. Called
        once for each connection on the driver, or in each worker process.

        The same rows must always give the same bytes, since they may be sent again. What is returned raises
        UnfitRowError for a row that cannot be written, and, as this does, ServiceUnavailableError while a
        service is away, and UsageError for what the user must give or install."""


def encoder_of(given: Encode, columns: pa.Schema, topic: str) -> ValueEncoder | None:
    """Return what writes values of these columns; None for JSON. Raises TopologyError for a format that no
    package has, SchemaError for a schema that cannot hold the columns, and what `load` does."""
    if given.value_format == JSON:
        if given.schema is not None:
            raise TopologyError("Encode('json') takes no schema: a value is an object of all columns")
        return None
    make = load(VALUE_ENCODERS, given.value_format, f"value encoder {given.value_format!r}")
    if make is None:
        known = ", ".join(map(repr, [JSON, *names(VALUE_ENCODERS)]))
        raise TopologyError(f"value_format is {given.value_format!r}; values can be sent as {known}")
    made = make(EncoderArguments(columns, topic, given))
    if not isinstance(made, ValueEncoder):
        raise UsageError(
            f"the value encoder {given.value_format!r} answered with {type(made).__name__}, which is no "
            f"ValueEncoder"
        )
    return made
