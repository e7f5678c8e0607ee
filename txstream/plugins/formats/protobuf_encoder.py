"""Rows as Protobuf messages: `Encode("protobuf", schema=Message)`.

A value goes to the field of its column's name: a null leaves it unset, a decimal is text, a time is a
Timestamp or ISO 8601 in a string, a struct is a message. What does not fit is refused by protobuf itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from txstream.plugins.formats.protobuf_schema import (
    is_map,
    is_timestamp,
    is_wrapper,
    message_type,
    registered_text,
)
from txstream.plugins.formats.registered_encoders import RegisteredEncoder, require_fields
from txstream.spouts.formats.value_encoders import EncoderArguments


class ProtobufEncoder(RegisteredEncoder):
    kind = "PROTOBUF"

    def __init__(self, given: EncoderArguments) -> None:
        super().__init__(given)
        self._type = message_type(given.given.schema)
        descriptor = self._type.descriptor
        require_fields(given, set(descriptor.fields_by_name), f"message {descriptor.full_name}")
        if self._is_registered:
            self.text = registered_text(self._type)
            self.message = _indexes(descriptor)

    def written(self) -> Callable[[Mapping[str, Any]], bytes]:
        make = self._type.message_class

        def write(row: Mapping[str, Any]) -> bytes:
            message = make()
            _fill(message, row)
            return bytes(message.SerializeToString(deterministic=True))

        return write


def _fill(message: Any, row: Mapping[str, Any]) -> None:
    for field in message.DESCRIPTOR.fields:
        value = row.get(field.name)
        if value is None:
            continue
        target = getattr(message, field.name)
        if is_map(field):
            of = field.message_type.fields_by_name["value"]
            for key, one in dict(value).items():
                if of.message_type is not None:
                    _set(target[key], one)
                else:
                    target[key] = _plain(one, of)
        elif field.is_repeated:
            for one in value:
                if field.message_type is not None:
                    _set(target.add(), one)
                else:
                    target.append(_plain(one, field))
        elif field.message_type is not None:
            _set(target, value)
        else:
            setattr(message, field.name, _plain(value, field))


def _set(message: Any, value: Any) -> None:
    """Give a message its value: it is set, even if that is empty."""
    message.SetInParent()
    if is_timestamp(message.DESCRIPTOR):
        if not isinstance(value, datetime):
            raise TypeError(f"{value!r} is no time")
        message.FromDatetime(value if value.tzinfo is None else value.astimezone(UTC))
    elif is_wrapper(message.DESCRIPTOR):
        message.value = _plain(value, message.DESCRIPTOR.fields_by_name["value"])
    else:
        _fill(message, value)


def _plain(value: Any, field: Any) -> Any:
    if field.enum_type is not None and isinstance(value, str):
        return field.enum_type.values_by_name[value].number
    if isinstance(value, Decimal):
        is_whole = field.cpp_type != field.CPPTYPE_STRING and value == value.to_integral_value()
        return int(value) if is_whole else str(value)
    return value.isoformat() if isinstance(value, (date, datetime)) else value


def _indexes(descriptor: Any) -> bytes:
    """Return what says which message of its file this is: how many indexes there are, and each of them, from
    the outermost message inwards, as numbers of Protobuf's `sint32`. One zero byte is the first message."""
    found: list[int] = []
    while descriptor is not None:
        outer = descriptor.containing_type
        siblings = descriptor.file.message_types_by_name.values() if outer is None else outer.nested_types
        found.insert(0, [one.full_name for one in siblings].index(descriptor.full_name))
        descriptor = outer
    return b"\0" if found == [0] else b"".join(_varint(2 * number) for number in (len(found), *found))


def _varint(number: int) -> bytes:
    low = b""
    while number >= 0x80:
        low += bytes([number & 0x7F | 0x80])
        number >>= 7
    return low + bytes([number])
