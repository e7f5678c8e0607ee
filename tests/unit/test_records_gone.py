"""Records of a stored plan are gone when it is replayed: what is committed in part cannot differ."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from txstream import (
    BasicBolt,
    Count,
    DeadLetters,
    InputChangedError,
    MemorySpout,
    OpaqueSpout,
    OutputCollector,
    SqlState,
    SqlStateBolt,
    Topology,
    TransactionalSpout,
    TransactionalTopologyBuilder,
    Tuple,
)
from txstream.api.spouts import SpoutContext
from txstream.core.fault_points import Point
from txstream.core.readings import Reading, sum_of
from txstream.core.transaction import TransactionAttempt
from txstream.spouts.memory import MemoryEmitter, MemoryRange
from txstream.state import open_database
from txstream.testing import TopologyTest

WORDS = ["a", "b", "bad", "a", "c"]


def as_kept(word: str) -> bytes:
    """A row as a dead letter keeps it."""
    return json.dumps({"word": word}).encode()


class Emitter(MemoryEmitter):
    """Has lost what `Compacted.gone` says, and tells what it has read."""

    reading = Reading()

    def emit(
        self, attempt: TransactionAttempt, partition: str, meta: MemoryRange
    ) -> Iterator[pa.RecordBatch]:
        at = meta.start
        for rows in super().emit(attempt, partition, meta):
            there = [row for row in range(rows.num_rows) if at + row not in Compacted.gone]
            found = rows.take(pa.array(there, pa.int64()))
            values = [as_kept(word) for word in found.column("word").to_pylist()]
            digest = sum_of(np.array([at + row for row in there], np.int64), [None] * len(values), values)
            if self.tells_digests:
                self.reading += Reading({partition: (len(there), digest)})
            at += rows.num_rows
            yield found

    def take_reading(self) -> Reading:
        reading, self.reading = self.reading, Reading()
        return reading


class Compacted(MemorySpout):
    gone: ClassVar[set[int]] = set()

    def emitter(self, context: SpoutContext) -> MemoryEmitter:
        return Emitter(super().emitter(context)._log)


@pytest.fixture(autouse=True)
def _all_there() -> Iterator[None]:
    Compacted.gone = set()
    yield
    Compacted.gone = set()


class Parse(BasicBolt):
    output = "word string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup["word"] == "bad":
            raise ValueError("bad")
        collector.emit((tup["word"],))


def topology(
    source: MemorySpout, *urls: str | None, commit: Any = "driver", spout: Any = TransactionalSpout
) -> Topology:
    builder = TransactionalTopologyBuilder(
        "words", "words", spout(source), commit=commit, dead_letters=DeadLetters(max_share=1.0)
    )
    builder.set_bolt("parse", Parse()).shuffle_grouping("words")
    for number, url in enumerate(urls):
        state = SqlState(f"words_{number}", key="word string", value="n bigint", url=url)
        store = builder.set_committer_bolt(f"store{number}", SqlStateBolt(state, n=Count()))
        store.fields_grouping("parse", "word")
    return builder.build()


@pytest.fixture
def urls(tmp_path: Path) -> list[str]:
    return [f"sqlite:///{tmp_path / name}.db" for name in ("first", "second")]


def test_the_ledger_says_what_a_batch_was_made_from_without_what_it_leaves_out(urls: list[str]) -> None:
    with Compacted("word string", {"p": WORDS}) as source:
        with TopologyTest(topology(source, *urls), database=urls[0]) as test:
            test.run()
        documents = []
        for url in urls:
            database = open_database(url)
            row = database.batch("words", 1)
            assert row is not None
            documents.append(row.details["read"])
            database.close()
    kept = [at for at, word in enumerate(WORDS) if word != "bad"]
    digest = sum_of(np.array(kept), [None] * 4, [as_kept(WORDS[at]) for at in kept])
    assert documents == [{"partitions": {"p": [4, f"{digest:016x}"]}}] * 2


@pytest.mark.parametrize(
    ("databases", "commit", "at"),
    [(2, "driver", Point.BETWEEN_COMMITS), (1, "executors", Point.AFTER_BEGIN)],
)
def test_a_batch_that_a_database_may_have_is_not_committed_from_other_records(
    urls: list[str], databases: int, commit: str, at: Point
) -> None:
    with Compacted("word string", {"p": WORDS}) as source:
        asked = topology(source, *urls[:databases], commit=commit)
        with TopologyTest(asked, database=urls[0]) as test:
            test.crash(at=at, txid=1)
            Compacted.gone = {0}
            test.restart()
            with pytest.raises(InputChangedError, match=r"partition p had 4 records .* and has 3 now"):
                test.run()
            assert test.table(f"words_{databases - 1}") == {}
            Compacted.gone = set()
            test.restart()
            test.run()
            for number in range(databases):
                assert test.table(f"words_{number}") == {"a": 2, "b": 1, "c": 1}


def test_what_no_database_has_counts_as_it_is_now_and_a_warning_says_so(
    urls: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for spout, told in ((TransactionalSpout, True), (OpaqueSpout, False)):
        Compacted.gone = set()
        caplog.clear()
        with (
            Compacted("word string", {"p": ["a", "b", "a"]}) as source,
            TopologyTest(topology(source, None, spout=spout)) as test,
        ):
            test.crash(at=Point.BEFORE_COMMIT, txid=1)
            Compacted.gone = {0}
            test.restart()
            test.run()
            assert test.table("words_0") == {"a": 1, "b": 1}
        assert ("of its 3 offsets, 2 have a record" in caplog.text) is told
