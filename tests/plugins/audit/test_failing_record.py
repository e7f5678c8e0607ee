"""Where the record is at which a batch fails: found by halves, and said when it cannot be found."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from support.lists import each

from txstream.api.tuples import Chunk
from txstream.core.batch_metas import BatchMetas, halves
from txstream.core.errors import (
    BatchFailedError,
    BoltError,
    ServiceUnavailableError,
    StateValueError,
    TxstreamError,
)
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.engine.batch.executor_failures import Failure, describe
from txstream.engine.batch.record_search import FailingRecord
from txstream.plugins.audit.failing_record import SECONDS, Trials, name_record
from txstream.plugins.files import FileRange
from txstream.spouts.memory import MemoryRange

Find = Callable[[float], Sequence[FailingRecord]]

METAS: BatchMetas[Any] = BatchMetas({f"t/{number}": MemoryRange(100, 200) for number in range(12)})


class Source:
    """Fails for parts that have all of some records, and counts the parts and their records."""

    def __init__(self, error: TxstreamError, *bad: tuple[str, int]) -> None:
        self.error, self.bad = error, bad
        self.parts = self.records = 0

    def process(self, part: BatchMetas[Any]) -> None:
        self.parts += 1
        self.records += sum(meta.records for meta in part.partitions.values())
        held = [part.partitions.get(name) for name, _ in self.bad]
        pairs = zip(held, self.bad, strict=True)
        if all(meta is not None and meta.start <= at < meta.end for meta, (_, at) in pairs):
            raise self.error


class Either:
    """Fails for parts that have what one of several sources fails for, as the first of these does."""

    def __init__(self, *sources: Source) -> None:
        self.sources = sources

    def process(self, part: BatchMetas[Any]) -> None:
        for one in self.sources:
            one.process(part)


@pytest.mark.parametrize("kind", [BoltError, StateValueError])
def test_one_record_is_found_with_few_runs(kind: type[TxstreamError]) -> None:
    source = Source(kind("it fails"), ("t/10", 137))
    error = kind("it fails")
    name_record(error, METAS, Trials(source.process))
    assert str(error) == "it fails; the record is at offset 137 of partition t/10"
    assert source.parts < 25
    assert source.records < 2 * 1200


def test_the_first_of_several_records_is_named() -> None:
    error = BoltError("it fails")
    bad = [Source(BoltError("it fails"), ("t/3", offset)) for offset in (150, 160)]
    name_record(error, METAS, Trials(Either(*bad).process))
    assert error.record == "the record is at offset 150 of partition t/3"


def test_the_record_of_the_tuple_that_is_told_is_named_and_not_another_one_that_fails_alike() -> None:
    told = "txid 5 attempt 1.2, component 'b', task {}: ValueError: no, while processing Tuple(n={})"
    error = BoltError(told.format(0, 7))
    bad = [
        Source(BoltError(told.format(3, n)), (partition, 150)) for partition, n in (("t/3", 5), ("t/8", 7))
    ]
    for one in (error, *(source.error for source in bad)):
        one.without_data = "component 'b': ValueError"
    name_record(error, METAS, Trials(Either(*bad).process))
    assert error.record == "the record is at offset 150 of partition t/8"


def test_the_record_of_the_row_that_is_told_is_named() -> None:
    """Both fail alike in all words; the first record's row is another one."""
    error = StateValueError("too wide").of_row("t", "word='b'")
    bad = [
        Source(StateValueError("too wide").of_row("t", key), (partition, 150))
        for partition, key in (("t/3", "word='a'"), ("t/8", "word='b'"))
    ]
    name_record(error, METAS, Trials(Either(*bad).process))
    assert error.record == "the record is at offset 150 of partition t/8"


@each(
    ("last", "told"),
    [
        (("t/3", 123), "at offset 100 to 124 of partition t/3"),
        (("t/4", 100), "at offset 100 to 199 of partition t/3, at offset 100 to 199 of partition t/4"),
    ],
)
def test_records_that_fail_only_together_are_narrowed_down_to_the_last_half_that_fails(
    last: tuple[str, int], told: str
) -> None:
    source, error = Source(BoltError("it fails"), ("t/3", 110), last), BoltError("it fails")
    name_record(error, METAS, Trials(source.process))
    assert str(error).startswith(f"it fails; the records were {told}")
    assert source.parts <= 25


def test_what_does_not_fail_alike_again_says_what_the_batch_held() -> None:
    for other in (StateValueError("another"), RuntimeError("lost"), BoltError("another")):
        error = BoltError("it fails")
        name_record(error, METAS, Trials(Source(other, ("t/3", 110)).process))  # type: ignore[arg-type]
        assert error.record is not None
        assert error.record.startswith("the records were at offset 100 to 199 of partition t/0, at offset")
        assert error.record.endswith("t/3, 8 more partitions")


def test_errors_are_alike_whatever_value_they_name_but_not_of_other_columns() -> None:
    told = "txid 5 attempt 1.2, component 'store', task 1: column {!r} of table 't' got '{}', which is wrong"
    for column, found in (("n", True), ("m", False)):
        error = StateValueError(told.format("n", "a12"))
        source = Source(StateValueError(told.format(column, "b")), ("t/3", 150))
        name_record(error, METAS, Trials(source.process))
        assert (error.record == "the record is at offset 150 of partition t/3") is found


def test_what_an_executor_wrote_fails_alike_when_the_driver_rehearses_it() -> None:
    words = "database postgresql://h:5432/d refuses a value in txid 5 attempt 1.{}: value too long"
    attempt = TransactionAttempt(Txid(5), AttemptId((1 << 32) + 2))
    error = Failure("StateValueError", words.format(2), "store", None, "").to_error(attempt)
    name_record(error, METAS, Trials(Source(StateValueError(words.format(9)), ("t/3", 150)).process))
    assert error.record == "the record is at offset 150 of partition t/3"


def test_a_range_of_bytes_is_named_as_a_whole() -> None:
    files: BatchMetas[Any] = BatchMetas({"a": FileRange(0, 5, 2), "b": FileRange(0, 7, 3)})

    def process(part: BatchMetas[Any]) -> None:
        if "b" in part.partitions:
            raise BoltError("it fails")

    error = BoltError("it fails")
    name_record(error, files, Trials(process))
    assert error.record == "the records were at offset 0 to 6 of partition b"


def test_bolts_of_the_commit_phase_are_not_tried() -> None:
    source, error = Source(BoltError("it fails"), ("t/10", 137)), BoltError("it fails")
    name_record(error, METAS, Trials(source.process), in_commit=True)
    assert error.record is not None
    assert error.record.endswith(
        "8 more partitions; bolts of the commit phase are not tried with some of them"
    )
    assert source.parts == 0


def test_workers_are_asked_first_and_only_the_very_error_counts() -> None:
    def broken(_seconds: float) -> Sequence[FailingRecord]:
        raise ServiceUnavailableError("a broker is away")

    told = "txid 5 attempt 1.2, component 'b', task {}: ValueError: no, while processing Tuple(n={})"
    similar, same = (FailingRecord("t/3", 150, BoltError(told.format(3, n))) for n in (5, 7))
    cases: list[tuple[Find, bool]] = [
        (lambda _: [similar, same._replace(partition="t/8")], True),
        (lambda _: [similar], False),
        (lambda _: [], False),
        (broken, False),
    ]
    for find, is_found in cases:
        source = Source(BoltError(told.format(0, 7)), ("t/8", 150))
        error = BoltError(told.format(0, 7))
        name_record(error, METAS, Trials(source.process, find=find))
        assert error.record == "the record is at offset 150 of partition t/8"
        assert (source.parts == 0) is is_found


def test_workers_are_not_asked_for_what_a_state_refuses() -> None:
    asked: list[float] = []

    def find(seconds: float) -> Sequence[FailingRecord]:
        asked.append(seconds)
        return [FailingRecord("t/3", 1, StateValueError("it fails"))]

    for kind, times in ((StateValueError, 0), (BoltError, 1)):
        name_record(
            kind("it fails"), METAS, Trials(Source(kind("it fails"), ("t/10", 137)).process, find=find)
        )
        assert asked == [SECONDS / 2] * times


def test_what_the_commit_phase_failed_at_is_sought() -> None:
    found = [FailingRecord("t/3", 150, BoltError("it is made"))]
    asked: list[float] = []

    def seek(seconds: float) -> Sequence[FailingRecord]:
        asked.append(seconds)
        return found

    error = BoltError("it fails")
    error.given = ("word", "digest")
    trials = Trials(Source(BoltError("it fails"), ("t/1", 1)).process, seek)
    name_record(error, METAS, trials, in_commit=True)
    assert str(error) == "it fails; a record with this tuple is at offset 150 of partition t/3"
    by_key = StateValueError("it does not fit")
    name_record(by_key, METAS, trials, seconds=7.0)
    assert by_key.record == "a record with this key is at offset 150 of partition t/3"
    assert asked == [SECONDS, 7.0]
    in_halves = BoltError("it fails")
    name_record(in_halves, METAS, Trials(Source(BoltError("it fails"), ("t/10", 137)).process, seek))
    assert in_halves.record == "the record is at offset 137 of partition t/10"


def test_nobody_waits_for_long() -> None:
    """Half of the batch is known to fail when the next part hangs, and stays so however that ends."""
    source, gave_up = Source(BoltError("it fails"), ("t/10", 137)), threading.Event()

    def process(part: BatchMetas[Any]) -> None:
        if source.parts >= 2:
            gave_up.wait(60)
        source.process(part)

    error = BoltError("it fails")
    name_record(error, METAS, Trials(process, give_up=gave_up.set), seconds=0.2)
    assert gave_up.is_set()
    assert str(error).count("of partition t/") == 4
    assert "t/6, at offset 100 to 199 of partition t/7" in str(error)


def test_a_search_that_breaks_leaves_the_error_as_it_was() -> None:
    def broken(_seconds: float) -> Sequence[FailingRecord]:
        raise RuntimeError("the search itself")

    error = BoltError("it fails")
    name_record(error, METAS, Trials(lambda _: None, broken), in_commit=True)
    assert str(error).startswith("it fails; the records were at offset 100 to 199 of partition t/0")


def test_outages_and_known_records_are_left_as_they_are() -> None:
    known = BoltError("it fails")
    known.record = "it is known"
    for error in (BatchFailedError("a broker"), known):
        source = Source(BoltError("it fails"), ("t/1", 1))
        name_record(error, METAS, Trials(source.process))
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


def test_what_a_state_refuses_where_its_tuple_is_is_found_by_the_workers_without_a_database() -> None:
    words = "key column 'word' of table 't' got a null, in Tuple(word=None, n={})"
    error, other = (
        Failure("StateValueError", words.format(n), "store", 0, "").to_error(
            TransactionAttempt(Txid(5), AttemptId(2))
        )
        for n in (7, 8)
    )
    asked: list[object] = []
    found = [FailingRecord("t/3", 120, other), FailingRecord("t/3", 150, error)]
    name_record(error, METAS, Trials(asked.append, find=lambda _seconds: found))
    assert error.record == "the record is at offset 150 of partition t/3"
    assert not asked
