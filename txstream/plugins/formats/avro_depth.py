"""How deep Avro values are nested, before fastavro reads them: it calls itself in C for each level, and a
value of 10 kB that is nested 5,000 deep would end the process.

Only types that contain themselves can nest without end. Of such, each value is walked through first; what is
not Avro at all is left for fastavro to say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from txstream.plugins.formats.avro_schema import AvroSchema, Schema, kind_of

MOST: Final = 200
"""Records, arrays and maps within each other."""

_FIXED: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def depth_check(schema: AvroSchema) -> Callable[[bytes, int], None] | None:
    """Return what raises ValueError for a deeper value, given its beginning; None if none can be deep."""
    return _Walk(schema).check if _contains_itself(schema, schema.root, ()) else None


def _contains_itself(schema: AvroSchema, at: Schema, above: tuple[int, ...]) -> bool:
    at = schema.resolved(at)
    if isinstance(at, list):
        return any(_contains_itself(schema, branch, above) for branch in at)
    kind = kind_of(at)
    if kind in ("array", "map"):
        return _contains_itself(schema, at["items" if kind == "array" else "values"], above)
    if kind not in ("record", "error"):
        return False
    if id(at) in above:
        return True
    return any(_contains_itself(schema, field["type"], (*above, id(at))) for field in at["fields"])


class _Walk:
    def __init__(self, schema: AvroSchema) -> None:
        self._schema = schema

    def check(self, data: bytes, at: int) -> None:
        try:
            self._skip(self._schema.root, data, at, 0)
        except (IndexError, KeyError, TypeError):
            return  # it is no Avro value

    def _skip(self, schema: Schema, data: bytes, at: int, depth: int) -> int:
        """Return where a value ends."""
        if depth > MOST:
            raise ValueError(f"it is nested more than {MOST} deep")
        schema = self._schema.resolved(schema)
        while isinstance(schema, list):
            branch, at = _number(data, at)
            schema = self._schema.resolved(schema[branch])
        kind = kind_of(schema)
        if kind in _FIXED:
            return at + _FIXED[kind]
        if kind in ("int", "long", "enum"):
            return _number(data, at)[1]
        if kind in ("bytes", "string"):
            length, at = _number(data, at)
            return _further(data, at, length)
        if kind == "fixed":
            return _further(data, at, schema["size"])
        if kind in ("array", "map"):
            return self._skip_blocks(schema, data, at, depth, is_map=kind == "map")
        for field in schema["fields"]:
            at = self._skip(field["type"], data, at, depth + 1)
        return at

    def _skip_blocks(self, schema: Schema, data: bytes, at: int, depth: int, *, is_map: bool) -> int:
        inner = schema["values" if is_map else "items"]
        while True:
            count, at = _number(data, at)
            if count < 0:
                count, (_, at) = -count, _number(data, at)
            if not count:
                return at
            for _ in range(count):
                if is_map:
                    length, at = _number(data, at)
                    at = _further(data, at, length)
                before, at = at, self._skip(inner, data, at, depth + 1)
                if at == before:
                    break  # items without a byte have nothing in them


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Read a zigzag number. Returns it and where it ends; raises IndexError at the end of the data."""
    found, shift = 0, 0
    while True:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1), at
        shift += 7
        if shift > 63:
            raise IndexError(at)


def _further(data: bytes, at: int, length: Any) -> int:
    if not 0 <= length <= len(data) - at:
        raise IndexError(at)
    return at + int(length)
