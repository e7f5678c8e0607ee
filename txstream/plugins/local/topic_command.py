"""`txstream topic create | produce`: makes a Kafka topic, and puts lines of text or JSON into it."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import typer

from txstream.cli.context import Cli
from txstream.cli.options import command
from txstream.core.errors import DecodeError, UsageError
from txstream.core.wording import counted

if TYPE_CHECKING:
    from txstream.plugins.local.kafka_topics import KafkaTopics, Record

topic = typer.Typer(help="Kafka topics: make one, and put lines into it.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The topic's name.")]


def register(app: typer.Typer) -> None:
    app.add_typer(topic, name="topic")
    command(topic, "create")(create)
    command(topic, "produce")(produce)


def create(
    cli: Cli,
    name: Name,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", metavar="N", help="By default what the cluster is set to.", min=1),
    ] = None,
) -> None:
    """Make an empty topic."""
    made = _topics(cli, name).create(name, partitions)
    if cli.as_json:
        cli.print_json({"topic": name, "partitions": made})
    else:
        cli.print(f"created topic {name} with {counted(made, 'partition')}")


def produce(
    cli: Cli,
    name: Name,
    file: Annotated[str, typer.Argument(metavar="FILE", help="One record a line, in UTF-8; `-` is a pipe.")],
    line_format: Annotated[
        Literal["text", "json"], typer.Option("--format", help="json: every line must be a JSON object.")
    ] = "text",
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="FIELD", help="The field that is the record's key, also within another: user.id."
        ),
    ] = None,
    as_is: Annotated[
        bool, typer.Option("--as-is", help="Produce bad lines, too, as they are and without a key.")
    ] = False,
) -> None:
    """Append the lines of a file, or of a pipe, to a topic."""
    if key is not None and line_format != "json":
        raise UsageError("--key names a field of JSON objects: give --format json with it")
    topics = _topics(cli, name)
    with _opened(file) as (lines, shown):
        partitions = topics.partitions(name)
        if lines.isatty():
            cli.say("type lines; Ctrl-D ends")
        records = read_records(lines, shown, is_json=line_format == "json", key=key, as_is=as_is)
        number = topics.fill(name, records, partitions, lambda _: None)
    if cli.as_json:
        cli.print_json({"topic": name, "records": number})
    else:
        cli.print(f"produced {counted(number, 'record')} into topic {name}")


def _topics(cli: Cli, name: str) -> KafkaTopics:
    from txstream.spouts.kafka.topic_selection import bad_topic_name, is_topic_name

    if not is_topic_name(name):
        raise UsageError(bad_topic_name(name))
    kafka = cli.resolve().require_kafka()
    from txstream.plugins.local.kafka_topics import KafkaTopics  # loads kafka-python

    return KafkaTopics(kafka, cli.settings.connect_timeout_seconds)


@contextlib.contextmanager
def _opened(file: str) -> Iterator[tuple[BinaryIO, str]]:
    """Yield the file and its name for messages. Raises UsageError for a file that cannot be opened."""
    if file == "-":
        yield sys.stdin.buffer, "standard input"
        return
    with contextlib.ExitStack() as stack:
        try:
            opened = stack.enter_context(Path(file).open("rb"))
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {(error.strerror or str(error)).lower()}") from error
        yield opened, file


def read_records(
    lines: Iterable[bytes], name: str, *, is_json: bool, key: str | None, as_is: bool = False
) -> Iterator[Record]:
    """Yield a record for each line; with `is_json`, skip blank lines. Raises DecodeError, naming the line,
    for a bad one, unless such lines are produced as they are."""
    produced = 0
    for number, line in enumerate(lines, 1):
        value = line.removesuffix(b"\n").removesuffix(b"\r")
        if is_json and not value.strip():
            continue
        made = None
        try:
            text = value.decode("utf-8")
            made = _key(_json_object(text), key) if is_json else None
        except ValueError as error:
            if not as_is:
                raise DecodeError(
                    f"line {number:,} of {name} {_wrong_with(error)}; the topic has "
                    f"{counted(produced, 'record')} of the lines before it"
                ) from error
        yield made, value
        produced += 1


def _json_object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("is not a JSON object")
    return found


def _key(values: dict[str, Any], field: str | None) -> bytes | None:
    if field is None:
        return None
    value: Any = values
    for name in [field] if field in values else field.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if value is None:
        raise ValueError(f"has no {field!r} for the key")
    return (value if isinstance(value, str) else json.dumps(value)).encode()


def _wrong_with(error: ValueError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"is not UTF-8 (byte {error.object[error.start]:#04x} at column {error.start + 1})"
    if isinstance(error, json.JSONDecodeError):
        return f"is not JSON ({error.msg.lower()} at column {error.colno})"
    return str(error)
