"""Encoders whose schemas a registry may have: what Avro and Protobuf share.

Invariant. A value begins with the id that the registry has given to the very schema that it was written by:
whoever writes has registered that first. To register what is registered changes nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from txstream.api.spouts import SpoutContext
from txstream.core.errors import SchemaError
from txstream.plugins.formats.schema_registry import registry_of
from txstream.spouts.formats.value_encoders import EncoderArguments, Rows, UnfitRowError, ValueEncoder


class RegisteredEncoder(ValueEncoder):
    """`kind` is the format in the registry's word, `text` what is registered."""

    kind: ClassVar[str]
    text: str
    message: bytes = b""
    """What stands between the schema's id and the value."""

    def __init__(self, given: EncoderArguments) -> None:
        self.topic = given.topic
        self._is_registered = given.given.wire_format == "confluent"
        self._registry = given.given.schema_registry

    @abstractmethod
    def written(self) -> Callable[[Mapping[str, Any]], bytes]:
        """Return what writes one row. It raises ValueError, TypeError and what is derived from them."""

    def writer(self, context: SpoutContext) -> Callable[[Rows], list[bytes]]:
        header = b""
        if self._is_registered:
            registry = registry_of(self._registry, context, f"topic {self.topic!r}", "Encode")
            schema_id = registry.register(f"{self.topic}-value", self.text, self.kind)
            header = b"\0" + schema_id.to_bytes(4, "big") + self.message
        write = self.written()

        def values(rows: Rows) -> list[bytes]:
            found: list[bytes] = []
            try:
                for row in rows:
                    found.append(header + write(row))
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                words = " ".join(str(error).split()) or type(error).__name__
                raise UnfitRowError(len(found), f"{words:.300}") from error
            return found

        return values


def require_fields(given: EncoderArguments, fields: set[str], schema: str) -> None:
    """Raise SchemaError unless each column has a field."""
    for name in given.columns.names:
        if name not in fields:
            raise SchemaError(
                f"topic {given.topic!r} gets column {name!r}, for which {schema} has no field; it has "
                f"{', '.join(sorted(fields))}"
            )
