"""What a value looks like that could not be read: framings that the declared format does not have.

Only asked once a value was refused, so a guess may be wrong: words say "looks like".
"""

from __future__ import annotations

from collections.abc import Sequence

_REGISTERED = 5  # a zero byte and the four bytes of an id
_BEGINNINGS = (
    (b"\xef\xbb\xbf", "it begins with a byte-order mark (UTF-8)", "the producer must not write one"),
    (b"\xff\xfe", "it begins with a byte-order mark (UTF-16)", "the producer must write UTF-8"),
    (b"\xfe\xff", "it begins with a byte-order mark (UTF-16)", "the producer must write UTF-8"),
    (
        b"\x1f\x8b",
        "it looks like gzip",
        "let the producer compress by compression_type, which readers undo, and not each value",
    ),
    (
        b"Obj\x01",
        "it looks like an Avro file with its schema in it",
        "the producer must write each record by itself",
    ),
)


def framing_of(
    value: bytes, other: bytes | None, headers: Sequence[tuple[bytes, bytes | None]], *, has_ids: bool
) -> str | None:
    """Return what a refused value looks like and what to do, None if nothing is recognised. `other` is the
    key of a value, or the value of a key; `has_ids`: values are read with ids of a registry's schemas."""
    for beginning, looks, remedy in _BEGINNINGS:
        if value.startswith(beginning):
            return f"{looks}; {remedy}"
    schema_id = registered_id(value)
    if not has_ids:
        if schema_id is None:
            return None
        then = ", then JSON" if value[_REGISTERED : _REGISTERED + 1] in (b"{", b"[") else ""
        return (
            f"it looks like a schema registry's framing (a zero byte, the id {schema_id} in 4 bytes{then}); "
            f"wire_format='confluent' reads Avro and Protobuf that are framed so, and 'binary' leaves the "
            f"five bytes to a bolt"
        )
    if schema_id is not None:
        return None
    for name, _ in headers:
        if _names_a_schema(name):
            return (
                f"it has no schema id, and its header {name.decode(errors='replace')!r} looks like one: "
                f"wire_format='plain' reads it by the topology's schema alone"
            )
    if other is not None and registered_id(other) is not None:
        return "it has no schema id, though the other of key and value begins with one: only one is framed"
    return None


def registered_id(value: bytes) -> int | None:
    """Return the id of a schema with which a value seems to begin."""
    if len(value) <= _REGISTERED or value[0] != 0:
        return None
    return int.from_bytes(value[1:_REGISTERED], "big")


def _names_a_schema(header: bytes) -> bool:
    name = header.lower().replace(b"_", b"").replace(b"-", b"").replace(b".", b"")
    return b"schemaid" in name or b"globalid" in name or b"contentid" in name
