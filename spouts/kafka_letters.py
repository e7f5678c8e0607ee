"""The records of dead letters, decoded as those that come from Kafka."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from txstream.api.errors import DecodeError
from txstream.dead_letters import DeadLetter
from txstream.spouts.kafka import KafkaSource
from txstream.spouts.kafka_columns import joined_batch, json_reader
from txstream.spouts.kafka_protocol import Partition
from txstream.spouts.kafka_record_blocks import Headers, RecordColumns, Records


def decoded(source: KafkaSource, letters: Sequence[DeadLetter]) -> pa.RecordBatch:
    """Return the records as the source emits them. Raises DecodeError. The type of a timestamp is not
    kept: it counts as the producer's."""
    if not letters:
        return pa.RecordBatch.from_pylist([], schema=source.output)
    return joined_batch(source, json_reader(source), [_part(letter) for letter in letters])


def _part(letter: DeadLetter) -> tuple[Partition, RecordColumns]:
    if letter.topic is None or letter.partition is None or letter.offset is None:
        raise DecodeError(f"{letter.source} is no record of Kafka")
    headers = _headers(letter)
    records = Records(
        np.array([letter.offset], np.int64),
        np.array([-1 if letter.timestamp_ms is None else letter.timestamp_ms], np.int64),
        np.zeros(1, np.bool_),
        [letter.key],
        [letter.value],
        {0: headers} if headers else {},
    )
    return Partition(letter.topic, letter.partition), RecordColumns([records.block])


def _headers(letter: DeadLetter) -> Headers:
    pairs = json.loads(letter.headers or b"[]")
    return [(name.encode(), None if value is None else base64.b64decode(value)) for name, value in pairs]
