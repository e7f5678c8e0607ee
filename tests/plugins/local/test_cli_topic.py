"""What `txstream topic produce` makes of lines."""

from __future__ import annotations

import io

import pytest
from support.lists import each

from txstream.core.errors import DecodeError
from txstream.plugins.local.topic_command import read_records


def read(text: bytes, *, is_json: bool = False, key: str | None = None) -> list[tuple[bytes | None, bytes]]:
    return list(read_records(io.BytesIO(text), "lines.txt", is_json=is_json, key=key))


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
