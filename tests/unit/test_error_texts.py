"""What an error says may be anything: half characters, NUL, megabytes. It is stored and shown all the same.

The database here is SQLite; the tests of each server run the same class.
"""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.inmemory import attempt

from txstream.api.bolts import BasicBolt
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count
from txstream.api.spouts import OpaqueSpout
from txstream.api.state import SqlState
from txstream.bolts.sql import SqlStateBolt
from txstream.cli.context import Cli
from txstream.cli.logs import LibraryLog
from txstream.core.batch_metas import to_json
from txstream.core.errors import BatchFailedError, BoltError, TxstreamError
from txstream.core.failing_batch import FailingBatch
from txstream.core.transaction import AttemptId, Epoch, Txid
from txstream.core.waiting import Waiting
from txstream.core.wording import storable
from txstream.engine.batch.executor_failures import Failure, describe
from txstream.engine.letters.retry_policy import TxidFailures, reason_of
from txstream.spouts.memory import MemorySpout
from txstream.spouts.memory.failure_markers import Fail
from txstream.state import open_database
from txstream.testing import TopologyTest
from txstream.zookeeper import FAILING, WAITING

HALF = "a\udc80b\0c"
LONG = f"begins {'x' * 3_000_000} ends"
TEXTS = pytest.mark.parametrize("text", [HALF, LONG], ids=["half a character", "3 MB"])


def is_storable(text: str) -> bool:
    return bool(text.encode()) and len(text) < 11_000 and "\0" not in text


class Flaky(BasicBolt):
    """Raises `text` once, with the first tuple that it is given."""

    output = "word string"
    raised: ClassVar[set[str]] = set()

    def __init__(self, text: str) -> None:
        self.text = text

    def execute(self, tup: Any, collector: Any) -> None:
        if self.text not in self.raised:
            self.raised.add(self.text)
            raise ValueError(self.text)
        collector.emit([tup["word"]])


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    yield
    Flaky.raised.clear()


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


class TestErrorTexts:
    @TEXTS
    def test_a_batch_whose_attempts_failed_so_is_committed_with_the_reasons(
        self, url: str, text: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with MemorySpout("word string", {"p": [("a",), Fail(text), ("b",)]}) as source:
            builder = TransactionalTopologyBuilder("words", "rows", OpaqueSpout(source, max_batch_records=9))
            builder.set_bolt("flaky", Flaky(text)).shuffle_grouping("rows")
            table = SqlState("words", key="word string", value="n bigint")
            store = builder.set_committer_bolt("store", SqlStateBolt(table, n=Count()), 1)
            store.fields_grouping("flaky", "word")
            with TopologyTest(builder.build(), database=url) as test:
                test.run()
                assert test.table("words") == {"a": 1, "b": 1}
        with closing(open_database(url)) as database:
            (row,) = database.batches("words")
        told = [row.error or "", *(one["error"] for one in row.details["attempts"])]
        assert len(told) == 3
        assert all(map(is_storable, told))
        for error, cause in zip(told[1:], ("position", "ValueError"), strict=True):
            assert cause in error
            assert ("a\\udc80b\\x00c" if text is HALF else "characters left out]") in error
        assert all(len(record.getMessage()) < 30_000 for record in caplog.records)


@TEXTS
def test_errors_of_ours_and_their_notes_are_storable_and_say_both_ends(text: str) -> None:
    error = BatchFailedError(text)
    error.add_note(text)
    for one in (str(error), *error.__notes__, str(pickle.loads(pickle.dumps(error)))):
        assert is_storable(one)
        assert one.startswith(text[:1])
        assert one.endswith(text[-1:])
    assert str(TxstreamError("short", 7)) == "('short', 7)"


@TEXTS
def test_what_user_code_raises_travels_in_a_size_that_the_driver_can_take(text: str) -> None:
    class OwnError(TxstreamError):
        def __init__(self, said: str) -> None:
            self.said = said

        def __str__(self) -> str:
            return self.said

    for raised in (ValueError(text), OwnError(text)):
        failure = describe(raised, "words", 1)
        document = json.dumps(failure.to_document())
        assert len(document) < 30_000
        error = Failure(**json.loads(document)).to_error(attempt(5, 2))
        assert is_storable(str(error))
        assert str(error).startswith("txid 5 attempt 1.2, component 'words', task 1: ")
        assert str(error).count("left out") == (text is LONG)
        assert all(map(is_storable, error.__notes__ if type(error) is BoltError else []))


@TEXTS
def test_what_zookeeper_is_told_is_storable(text: str) -> None:
    failures = TxidFailures()
    failures.add(ValueError(text))
    failures.add(BatchFailedError(text))
    noted = FailingBatch(Txid(1), AttemptId(1), datetime.now(UTC), {**failures.reasons, text[:99]: 1})
    data = FAILING.encode(noted, Epoch(1)) or b""
    assert len(data) < 5_000
    assert FAILING.decode(data, "failing")[1].reasons == noted.reasons
    waiting = Waiting(lambda _: True)
    waiting.begin("source", "the source", ValueError(text))
    data = WAITING.encode(waiting.waits, Epoch(1)) or b""
    assert len(data) < 5_000
    assert WAITING.decode(data, "waiting") == (1, waiting.waits)
    assert len(reason_of(ValueError(text))) < 2_000


def test_json_reads_back_what_no_utf8_can_hold() -> None:
    for value in ("a\udc80b", "\udfff", "é\ud800", "\0", "plain", "größe", "\\\udc80"):
        assert json.loads(to_json([value]).encode()) == [value]


def test_what_is_storable_stays_as_it_is() -> None:
    for text in ("", "größe 日本 🎉", "two\nlines\t", "x" * 10_000):
        assert storable(text) == text
    assert storable("0123456789", 4) == "01 [6 characters left out] 89"


def test_the_log_of_libraries_takes_every_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = LibraryLog(tmp_path / "logs" / "library.log")
    log.emit(logging.LogRecord("kafka", logging.ERROR, "", 0, "said %s", (HALF,), None))
    log.close()
    assert "said a\\udc80b" in log.path.read_text(encoding="utf-8")
    Cli().say("nothing else")
    assert capsys.readouterr().err == "nothing else\n"
