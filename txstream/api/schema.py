"""Types of streams and tables: Spark's DDL ("word string, n bigint") read into Arrow, without a JVM.

Source of the grammar: the Spark SQL data type names. The same words are understood here, so a declaration can
be pasted from a Spark program.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

import pyarrow as pa

from txstream.core.errors import SchemaError

_SIMPLE: dict[str, pa.DataType] = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}

_INSTEAD = {
    "interval": "a length of time is a bigint of its smallest unit",
    "char": "text of any length is a string",
    "varchar": "text of any length is a string",
    "variant": "text in JSON is a string",
}

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|[A-Za-z_][A-Za-z0-9_]*|\d+|[<>(),:])")


def parse_schema(declaration: str | pa.Schema) -> pa.Schema:
    """Return the Arrow schema of a DDL string such as "word string, n bigint".

    Raises SchemaError for an unknown type, a duplicate or missing name, or anything left over.
    """
    if isinstance(declaration, pa.Schema):
        schema = declaration
    elif isinstance(declaration, str):
        schema = _parsed(declaration)
    else:
        raise SchemaError(
            f"a stream is declared by a string such as 'word string, n bigint' or by an Arrow schema, "
            f"not by {type(declaration).__name__}"
        )
    if not schema.names:
        # Arrow forgets how many rows a batch without columns had.
        raise SchemaError("a schema has no fields; declare at least one, for example 'word string'")
    seen: set[str] = set()
    for name in schema.names:
        if name in seen:
            raise SchemaError(f"field {name!r} is declared twice in {format_schema(schema)!r}")
        seen.add(name)
    return schema


@functools.lru_cache(maxsize=1024)
def _parsed(declaration: str) -> pa.Schema:
    """Cached, because each start of a topology parses the same few declarations again and again."""
    return _Parser(declaration).schema()


@functools.lru_cache(maxsize=1024)
def format_type(data_type: pa.DataType) -> str:
    """Return the DDL word for an Arrow type ("bigint"), or Arrow's own name if DDL has none."""
    if pa.types.is_decimal(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    if pa.types.is_list(data_type):
        return f"array<{format_type(data_type.value_type)}>"
    if pa.types.is_map(data_type):
        return f"map<{format_type(data_type.key_type)},{format_type(data_type.item_type)}>"
    if pa.types.is_struct(data_type):
        return f"struct<{','.join(f'{_format_name(f.name)}:{format_type(f.type)}' for f in data_type)}>"
    for word, simple in _SIMPLE.items():
        if simple.equals(data_type):
            return word
    return str(data_type)


def format_schema(schema: pa.Schema) -> str:
    """Return the DDL of an Arrow schema: the inverse of `parse_schema` for DDL types."""
    return ", ".join(f"{_format_name(field.name)} {format_type(field.type)}" for field in schema)


def _format_name(name: str) -> str:
    return name if _IDENTIFIER.fullmatch(name) else f"`{name.replace('`', '``')}`"


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: Iterator[tuple[str, int]] = self._tokenize(text)
        self.current, self.at = next(self.tokens)

    @staticmethod
    def _tokenize(text: str) -> Iterator[tuple[str, int]]:
        position = 0
        stripped = text.rstrip()
        while position < len(stripped):
            match = _TOKEN.match(stripped, position)
            if match is None:
                rest = stripped[position:].lstrip()
                raise SchemaError(f"cannot read {rest!r} in the type declaration {text!r}")
            yield match.group(1), match.start(1)
            position = match.end()
        yield "", len(stripped)

    def advance(self) -> str:
        token = self.current
        if token:
            self.current, self.at = next(self.tokens)
        return token

    def expect(self, token: str) -> None:
        if self.current != token:
            raise self.error(f"expected {token!r}")
        self.advance()

    def error(self, what: str) -> SchemaError:
        found = f"found {self.current!r} at character {self.at}" if self.current else "found its end"
        return SchemaError(f"{what} in the type declaration {self.text!r}, {found}")

    def schema(self) -> pa.Schema:
        if not self.current:
            raise SchemaError("a type declaration is empty; write for example 'word string, n bigint'")
        fields = [self.field(separator="")]
        while self.current == ",":
            self.advance()
            fields.append(self.field(separator=""))
        if self.current:
            raise self.error("expected ',' or the end")
        return pa.schema(fields)

    def field(self, separator: str) -> pa.Field:
        name = self.name()
        if self.current == ":" or separator:
            self.expect(":")
        return pa.field(name, self.type())

    def name(self) -> str:
        if not self.current or not (
            self.current[0] == "`" or self.current[0].isalpha() or self.current[0] == "_"
        ):
            raise self.error("expected a field name")
        token = self.advance()
        if any("\ud800" <= character <= "\udfff" for character in token):
            raise SchemaError(
                f"the field name {token!r} in {self.text!r} has half of a character (a surrogate)"
            )
        return token[1:-1].replace("``", "`") if token[0] == "`" else token

    def type(self) -> pa.DataType:
        if not self.current:
            raise self.error("expected a type")
        word = self.advance().lower()
        if word in ("decimal", "dec", "numeric"):
            return self.decimal()
        if word == "array":
            self.expect("<")
            element = self.type()
            self.expect(">")
            return pa.list_(element)
        if word == "map":
            self.expect("<")
            key = self.type()
            self.expect(",")
            item = self.type()
            self.expect(">")
            return pa.map_(key, item)
        if word == "struct":
            self.expect("<")
            fields = [self.field(separator=":")]
            while self.current == ",":
                self.advance()
                fields.append(self.field(separator=":"))
            self.expect(">")
            return pa.struct(fields)
        if word in _INSTEAD:
            raise SchemaError(
                f"there is no type {word!r}, found in the type declaration {self.text!r}: {_INSTEAD[word]}"
            )
        if word not in _SIMPLE:
            raise SchemaError(
                f"unknown type {word!r} in the type declaration {self.text!r}; known are "
                f"{', '.join(sorted(_SIMPLE))}, decimal(p,s), array<>, map<>, struct<>"
            )
        return _SIMPLE[word]

    def decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self.current == "(":
            self.advance()
            precision = self.number()
            if self.current == ",":
                self.advance()
                scale = self.number()
            self.expect(")")
        if not 1 <= precision <= 38 or not 0 <= scale <= precision:
            raise SchemaError(f"decimal({precision},{scale}) in {self.text!r}: 1 <= p <= 38 and 0 <= s <= p")
        return pa.decimal128(precision, scale)

    def number(self) -> int:
        if not self.current.isdigit():
            raise self.error("expected a number")
        return int(self.advance())
