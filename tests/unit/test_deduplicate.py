"""`DeduplicateBolt`: in a window, and in a table of SQLite."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from support.deduplicating import TableOfFirst, Worker, order, state
from support.lists import each

from txstream.api.bolts import OutputFieldsDeclarer
from txstream.api.schema import parse_schema
from txstream.bolts.deduplicate import DeduplicateBolt
from txstream.core.errors import TopologyError, UsageError


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


class TestTableOfFirst(TableOfFirst):
    pass


def test_of_several_messages_with_a_key_the_first_passes() -> None:
    worker = Worker(DeduplicateBolt("order_id", message="entry"))
    told = worker.run([order(1, "a"), order(1, "b"), order(2, "c")])
    assert (told.emitted, told.acked) == ([order(1, "a"), order(2, "c")], 3)
    assert worker.run([order(1, "d")]).emitted == []


def test_the_first_passes_again_when_it_is_replayed() -> None:
    """A later bolt may have failed it."""
    worker = Worker(DeduplicateBolt("order_id", message="entry"))
    worker.run([order(1, "a")])
    assert worker.run([order(1, "b"), order(1, "a")]).emitted == [order(1, "a")]


def test_the_window_forgets_the_oldest_key() -> None:
    worker = Worker(DeduplicateBolt("order_id", message="entry", window=2))
    worker.run([order(1, "a"), order(2, "b"), order(3, "c")])
    assert worker.run([order(3, "x"), order(2, "x"), order(1, "x")]).emitted == [order(1, "x")]


def test_another_process_knows_nothing_of_the_window() -> None:
    bolt = DeduplicateBolt("order_id", message="entry")
    Worker(bolt).run([order(1, "a")])
    assert Worker(bolt).run([order(1, "b")]).emitted == [order(1, "b")]


def test_while_the_database_is_away_tuples_fail(sqlite_url: str, tmp_path: Path, unique: str) -> None:
    worker = Worker(DeduplicateBolt(message="entry", state=state(unique)), sqlite_url)
    worker.close()
    (tmp_path / "state.db").rename(tmp_path / "away")
    (tmp_path / "state.db").mkdir()
    told = worker.run([order(1, "a"), order(2, "b")])
    assert (told.emitted, told.acked, len(told.failed)) == ([], 0, 2)
    assert "state.db" in str(told.failed[0])
    (tmp_path / "state.db").rmdir()
    (tmp_path / "away").rename(tmp_path / "state.db")
    assert len(worker.run([order(1, "a"), order(2, "b")]).emitted) == 2
    worker.close()


def declare(
    bolt: DeduplicateBolt, schema: str = "order_id string, entry string, amount decimal(10,2)"
) -> Any:
    declarer = OutputFieldsDeclarer("once", [parse_schema(schema)])
    bolt.declare_output_fields(declarer)
    return declarer.streams["default"]


def test_it_emits_what_it_gets() -> None:
    assert declare(DeduplicateBolt("order_id", message="entry")).names == ["order_id", "entry", "amount"]


@each(
    ("make", "message"),
    [
        (lambda: DeduplicateBolt(message="entry"), "needs a key and what identifies a message"),
        (lambda: DeduplicateBolt("order_id", message=()), "needs a key and what identifies a message"),
        (lambda: DeduplicateBolt("order_id", message="entry", window=0), "window is 0"),
        (lambda: DeduplicateBolt("n", message="entry", keep=timedelta(1)), "keep is for the rows of a state"),
        (lambda: DeduplicateBolt(message="entry", window=5, state=state("t")), "in a window or in a state"),
        (lambda: DeduplicateBolt("n", message="entry", state=state("t")), "'t' has the key order_id and"),
        (
            lambda: DeduplicateBolt(message="n", state=state("t")),
            "needs the key order_id, and n among",
        ),
        (
            lambda: DeduplicateBolt(message="entry", state=state("t"), keep=timedelta(1)),
            "keep needs a value column 'seen_at' of type timestamp in state table 't'",
        ),
        (lambda: declare(DeduplicateBolt("n", message="entry")), "'n'"),
        (
            lambda: declare(DeduplicateBolt(message="entry", state=state("t", "entry string, amount int"))),
            r"component 'once': column 'amount' of the table is int, the field is decimal\(10,2\)",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(make: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        make()


def test_a_state_needs_a_database() -> None:
    with pytest.raises(UsageError, match="component 'once': no database for table 't'"):
        Worker(DeduplicateBolt(message="entry", state=state("t")))
