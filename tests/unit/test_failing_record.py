"""Where the record is at which a batch fails: found by halves, and said when it cannot be found."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from txstream.api.errors import BatchFailedError, BoltError, StateValueError, TxstreamError
from txstream.api.tuples import Chunk
from txstream.batch_metas import BatchMetas, halves
from txstream.engine.batch.executor_failures import describe
from txstream.engine.loop.failing_record import SECONDS, Written, name_record
from txstream.spouts.files import FileRange
from txstream.spouts.memory import MemoryRange
from txstream.transaction import AttemptId, TransactionAttempt, Txid

METAS: BatchMetas[Any] = BatchMetas({f"t/{number}": MemoryRange(100, 200) for number in range(12)})


class Source:
    """Fails for parts that have all of some records, and counts the parts and their records."""

    def __init__(self, error: TxstreamError, *bad: tuple[str, int]) -> None:
        self.error, self.bad = error, bad
        self.parts = self.records = 0

    def process(self, part: BatchMetas[Any]) -> Written:
        self.parts += 1
        self.records += sum(meta.records for meta in part.partitions.values())
        held = [part.partitions.get(name) for name, _ in self.bad]
        pairs = zip(held, self.bad, strict=True)
        if all(meta is not None and meta.start <= at < meta.end for meta, (_, at) in pairs):
            raise self.error
        return ()


@pytest.mark.parametrize("kind", [BoltError, StateValueError])
def test_one_record_is_found_with_few_runs(kind: type[TxstreamError]) -> None:
    source = Source(kind("it fails"), ("t/10", 137))
    error = kind("it fails")
    name_record(error, METAS, source.process)
    assert str(error) == "it fails; the record is at offset 137 of partition t/10"
    assert source.parts < 25
    assert source.records < 2 * 1200


def test_the_first_of_several_records_is_named() -> None:
    class Either(Source):
        def process(self, part: BatchMetas[Any]) -> Written:
            for one in (Source(self.error, bad) for bad in self.bad):
                one.process(part)
            return ()

    error = BoltError("it fails")
    name_record(error, METAS, Either(BoltError("it fails"), ("t/3", 150), ("t/3", 160)).process)
    assert error.record == "the record is at offset 150 of partition t/3"


def test_records_that_fail_together_are_named_as_a_range() -> None:
    error = BoltError("it fails")
    name_record(error, METAS, Source(BoltError("it fails"), ("t/3", 110), ("t/3", 160)).process)
    assert str(error) == "it fails; the records were at offset 100 to 199 of partition t/3"


def test_what_does_not_fail_alike_again_says_what_the_batch_held() -> None:
    """A commit's error, for example: a part of a batch is only processed."""
    for other in (StateValueError("another"), RuntimeError("lost"), BoltError("another")):
        error = BoltError("it fails")
        name_record(error, METAS, Source(other, ("t/3", 110)).process)  # type: ignore[arg-type]
        assert error.record is not None
        assert error.record.startswith("the records were at offset 100 to 199 of partition t/0, at offset")
        assert error.record.endswith("t/3, 8 more partitions")


def test_errors_are_alike_whatever_value_they_name_but_not_of_other_columns() -> None:
    told = "txid 5 attempt 1.2, component 'store', task 1: column {!r} of table 't' got '{}', which is wrong"
    for column, found in (("n", True), ("m", False)):
        error = StateValueError(told.format("n", "a12"))
        name_record(error, METAS, Source(StateValueError(told.format(column, "b")), ("t/3", 150)).process)
        assert (error.record == "the record is at offset 150 of partition t/3") is found


def test_what_only_the_store_refuses_is_found_by_the_key_of_its_row() -> None:
    """Offset 150 of t/3 and all of t/1 have the key; another table has it everywhere."""

    def process(part: BatchMetas[Any]) -> Written:
        keys = ["other"]
        meta = part.partitions.get("t/3")
        if "t/1" in part.partitions or (meta is not None and meta.start <= 150 < meta.end):
            keys.append("wide")
        return [("sums", pa.table({"word": keys})), ("t", pa.table({"word": ["wide"]}))]

    error = StateValueError("it does not fit").of_row("sums", "word='wide'")
    name_record(error, METAS, process, lambda: 0.0)
    assert str(error) == "it does not fit; a record with this key is at offset 150 of partition t/3"
    unknown = StateValueError("it does not fit").of_row("sums", "word='who'")
    name_record(unknown, METAS, process, lambda: 0.0)
    assert unknown.record is not None
    assert unknown.record.startswith("the records were at offset 100 to 199 of partition t/0, at offset")


def test_nobody_waits_for_long() -> None:
    source, now = Source(BoltError("it fails"), ("t/10", 137)), [0.0]

    def process(part: BatchMetas[Any]) -> Written:
        now[0] += SECONDS / 2
        return source.process(part)

    error = BoltError("it fails")
    name_record(error, METAS, process, lambda: now[0])
    assert source.parts <= 3
    assert str(error).count("of partition t/") == 3


def test_outages_and_known_records_are_left_as_they_are() -> None:
    known = BoltError("it fails")
    known.record = "it is known"
    for error in (BatchFailedError("a broker"), known):
        source = Source(BoltError("it fails"), ("t/1", 1))
        name_record(error, METAS, source.process)
        assert (source.parts, " of partition" in str(error)) == (0, False)


def test_a_tuple_with_kafkas_columns_says_where_its_record_is() -> None:
    values = {"value": ["x" * 1000], "topic": ["t"], "partition": [3], "offset": [17]}
    (tup,) = Chunk(pa.RecordBatch.from_pydict(values), "lines", "default", 0).tuples()
    attempt = TransactionAttempt(Txid(5), AttemptId(1))
    error = describe(ValueError("no"), "bolt", 0, tup, spout="lines").to_error(attempt)
    assert str(error).endswith("...; the record is at offset 17 of partition t/3")
    assert error.record == "the record is at offset 17 of partition t/3"
    (other,) = Chunk(pa.RecordBatch.from_pydict({"offset": [1]}), "lines", "default", 0).tuples()
    assert describe(ValueError("no"), "bolt", 0, other, spout="lines").to_error(attempt).record is None
    for component, stream in (("parse", "default"), ("lines", "late")):
        (other,) = Chunk(pa.RecordBatch.from_pydict(values), component, stream, 0).tuples()
        assert describe(ValueError("no"), "bolt", 0, other, spout="lines").to_error(attempt).record is None


def test_halves_divide_records_and_no_bytes() -> None:
    assert [*halves({"a": MemoryRange(0, 5)}, exact=True)] == [
        {"a": MemoryRange(2, 5)},
        {"a": MemoryRange(0, 2)},
    ]
    assert [*halves({"a": MemoryRange(0, 1)}, exact=True)] == []
    assert [*halves({"a": MemoryRange(0, 5)}, exact=False)] == []
    assert [*halves({"a": {"start": 0, "end": 5}}, exact=True)] == []
    assert [*halves({"a": FileRange(0, 5, 5)}, exact=True)] == []
