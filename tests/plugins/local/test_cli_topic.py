"""What `txstream topic produce` makes of lines."""

from __future__ import annotations

import io

import pytest
from support.lists import each

from txstream.core.errors import DecodeError
from txstream.plugins.local.topic_command import read_records


def read(
    text: bytes, *, is_json: bool = False, key: str | None = None, as_is: bool = False
) -> list[tuple[bytes | None, bytes]]:
    return list(read_records(io.BytesIO(text), "lines.txt", is_json=is_json, key=key, as_is=as_is))


def test_every_line_of_text_is_a_record() -> None:
    assert read("the caf\u00e9\r\n\n last".encode()) == [
        (None, "the café".encode()),
        (None, b""),
        (None, b" last"),
    ]


def test_json_is_left_as_it_is_and_blank_lines_are_none() -> None:
    assert read(b'{"a": 1}\n\n {"a":2} \n', is_json=True) == [(None, b'{"a": 1}'), (None, b' {"a":2} ')]


def test_a_field_is_the_key() -> None:
    lines = '{"user": "ann\u00e9", "n": 1}\n{"user": 7}\n'.encode()
    assert [key for key, _ in read(lines, is_json=True, key="user")] == ["anné".encode(), b"7"]


def test_a_key_may_be_inside_of_an_object_unless_a_field_has_the_whole_name() -> None:
    lines = b'{"user": {"id": "ann"}}\n{"user.id": "bob", "user": {"id": "ann"}}\n{"user": {"id": [1]}}\n'
    assert [key for key, _ in read(lines, is_json=True, key="user.id")] == [b"ann", b"bob", b"[1]"]
    for line in (b'{"user": "ann"}', b'{"user": {}}', b'{"user": null}'):
        with pytest.raises(DecodeError, match=r"has no 'user\.id' for the key"):
            read(line, is_json=True, key="user.id")


def test_bad_lines_are_records_without_a_key_if_they_are_to_be_sent_as_they_are() -> None:
    bad = [b"a\xff", b'{"user"', b"[1]", b'{"name": "ann"}']
    lines = b"\n".join([b'{"user": 1}', *bad, b'{"user": 2}'])
    found = read(lines, is_json=True, key="user", as_is=True)
    assert found == [(b"1", b'{"user": 1}'), *((None, line) for line in bad), (b"2", b'{"user": 2}')]
    assert read(b"a\xff", as_is=True) == [(None, b"a\xff")]


@each(
    ("line", "wrong"),
    [
        (b"a\xff", "is not UTF-8 (byte 0xff at column 2)"),
        (b'{"user"', "is not JSON (expecting ':' delimiter at column 8)"),
        (b"[1]", "is not a JSON object"),
        (b'{"name": "ann"}', "has no 'user' for the key"),
        (b'{"user": null}', "has no 'user' for the key"),
    ],
)
def test_a_bad_line_is_named_with_what_came_before_it(line: bytes, wrong: str) -> None:
    with pytest.raises(DecodeError) as raised:
        read(b'{"user": 1}\n\n' + line, is_json=True, key="user")
    assert str(raised.value) == f"line 3 of lines.txt {wrong}; the topic has 1 record of the lines before it"
