"""The timestamps of Kafka's records, which a producer may get wrong."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from txstream.api.spouts import SpoutContext
from txstream.core.errors import DecodeError
from txstream.spouts.kafka import Decode, KafkaSource
from txstream.spouts.kafka.columns import joined_batch, readers
from txstream.spouts.kafka.protocol import Partition
from txstream.spouts.kafka.record_blocks import RecordColumns, Records

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
MILLISECONDS = int(NOON.timestamp()) * 1000


def part(number: int, *times: int) -> tuple[Partition, RecordColumns]:
    some = len(times)
    records = Records(
        np.arange(10, 10 + some),
        np.array(times, np.int64),
        np.zeros(some, np.bool_),
        [None] * some,
        [b"v"] * some,
        {},
    )
    return Partition("lines", number), RecordColumns([records.block])


def times(source: KafkaSource, *parts: tuple[Partition, RecordColumns]) -> list[datetime | None]:
    read = readers(source, SpoutContext("t", "lines", {}))
    found: list[datetime | None] = joined_batch(source, read, parts).column("timestamp").to_pylist()
    return found


def test_a_record_without_a_timestamp_has_none() -> None:
    source = KafkaSource("lines")
    first, last = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
    given = part(0, MILLISECONDS, -1, 0, -2, -62_135_596_800_000, 253_402_300_799_999)
    assert times(source, given, part(1, -1)) == [
        NOON,
        None,
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 998_000, tzinfo=UTC),
        first,
        last,
        None,
    ]
    assert times(source, part(0)) == []


@pytest.mark.parametrize(
    "wrong", [MILLISECONDS * 1000, MILLISECONDS * 1_000_000, 2**63 - 1, -(2**63), 253_402_300_800_000]
)
@pytest.mark.parametrize("errors", ["strict", "replace"])
def test_one_that_is_no_date_is_told_with_its_place_and_fit_for_a_dead_letter(
    wrong: int, errors: str
) -> None:
    source = KafkaSource("lines", decode=Decode(errors=errors))  # type: ignore[arg-type]
    given = part(0, MILLISECONDS), part(3, MILLISECONDS, wrong, wrong)
    words = rf"^the timestamp of the record at offset 11 of topic 'lines', partition 3, is {wrong}: as mill"
    with pytest.raises(DecodeError, match=words):
        times(source, *given)
    assert times(source.undecoded(), *given) == [NOON, NOON, None, None]
    unread = KafkaSource("lines", kafka_columns=["value"])
    assert joined_batch(unread, readers(unread, SpoutContext("t", "lines", {})), given).num_rows == 4
