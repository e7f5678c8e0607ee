"""Sources other than Kafka's under the event loop: exactly once through failures, crashes and restarts."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.source_runs import SourceRun, Store, counting

from txstream.api.spouts import NonTransactionalSpout, OpaqueSpout, TransactionalSpout
from txstream.core.errors import DataLostError
from txstream.examples import batch_spout
from txstream.spouts.files import FileSpout
from txstream.spouts.memory import MemorySpout
from txstream.spouts.memory.failure_markers import Crash, CrashError, Fail
from txstream.spouts.rate import RateSpout

EXACT = pytest.mark.parametrize("semantics", [OpaqueSpout, TransactionalSpout])
ALL = pytest.mark.parametrize("semantics", [OpaqueSpout, TransactionalSpout, NonTransactionalSpout])

WORDS = ["the", "cat", "the", "dog", "a", "the"]


@pytest.fixture
def memory() -> Iterator[MemorySpout]:
    with MemorySpout(partitions={"a": WORDS, "b": ["end"] * 5}) as spout:
        yield spout


def truth(*lists: list[str]) -> dict[str, int]:
    return dict(Counter(word for words in lists for word in words))


@ALL
def test_memory_grows_from_run_to_run(memory: MemorySpout, semantics: Any) -> None:
    store = Store()
    topology = counting(semantics(memory, max_batch_records=2))
    first = SourceRun(topology, store).complete()
    assert store.totals("value", "times") == truth(WORDS, ["end"] * 5)
    assert first.loop.statistics.batches == 6
    memory.append("a", "late", "later")
    memory.append("new", "the")
    second = SourceRun(topology, store).complete()
    assert store.totals("value", "times") == truth(WORDS, ["end"] * 5, ["late", "later", "the"])
    assert second.loop.statistics.first_txid == 7


@EXACT
@pytest.mark.parametrize("pending", [1, 3])
def test_failures_among_the_rows_are_replayed_and_counted_once(semantics: Any, pending: int) -> None:
    rows = ["a", Fail("flaky"), "b", "c", Fail("flakier", times=2), "d"]
    with MemorySpout(partitions={"p": rows}) as spout:
        topology = counting(semantics(spout, max_batch_records=2), max_spout_pending=pending)
        run = SourceRun(topology).complete()
    assert run.store_of_states.totals("value", "times") == truth(["a", "b", "c", "d"])
    assert run.loop.statistics.failed_attempts >= 2


@EXACT
def test_a_crash_ends_the_run_and_the_next_one_goes_on(semantics: Any) -> None:
    store = Store()
    with MemorySpout(partitions={"p": ["a", "b", "c", Crash(), "d", "e"]}) as spout:
        topology = counting(semantics(spout, max_batch_records=2), max_spout_pending=1)
        with pytest.raises(CrashError, match=r"txid 2 .*position 3"):
            SourceRun(topology, store).complete()
        assert list(store.batches) == [1]
        run = SourceRun(topology, store).complete()
    assert store.totals("value", "times") == truth(["a", "b", "c", "d", "e"])
    assert run.loop.statistics.recovered_batches == (semantics is TransactionalSpout)


def test_without_a_partition_that_is_hidden(memory: MemorySpout) -> None:
    store = Store()
    topology = counting(OpaqueSpout(memory))
    memory.hide("b")
    SourceRun(topology, store, until=1).complete()
    assert store.totals("value", "times") == truth(WORDS)
    memory.show("b")
    SourceRun(topology, store).complete()
    assert store.totals("value", "times") == truth(WORDS, ["end"] * 5)


@ALL
def test_files_grow_from_run_to_run(tmp_path: Path, semantics: Any) -> None:
    store = Store()
    (tmp_path / "a.log").write_text("one\ntwo\nthr")
    (tmp_path / "b.log").write_text("one\n" * 5)
    topology = counting(semantics(FileSpout(tmp_path), max_batch_records=3))
    SourceRun(topology, store).complete()
    assert store.totals("value", "times") == {"one": 6, "two": 1}
    with (tmp_path / "a.log").open("a") as file:
        file.write("ee\none\n")
    (tmp_path / "c.log").write_text("two\n")
    SourceRun(topology, store).complete()
    assert store.totals("value", "times") == {"one": 7, "two": 2, "three": 1}


@EXACT
def test_a_file_replaced_between_two_runs_is_lost(tmp_path: Path, semantics: Any) -> None:
    store = Store()
    (tmp_path / "a.log").write_text("one\ntwo\n")
    topology = counting(semantics(FileSpout(tmp_path)))
    SourceRun(topology, store).complete()
    (tmp_path / "a.log").write_text("other\nlines\nare\nhere\n")
    with pytest.raises(DataLostError, match=r"a\.log was planned up to 8, but"):
        SourceRun(topology, store).complete()
    assert store.totals("value", "times") == {"one": 1, "two": 1}


@ALL
def test_a_rate_with_an_end(semantics: Any) -> None:
    spout = RateSpout(1e9, 3, limit_rows=500)
    run = SourceRun(counting(semantics(spout, max_batch_records=100), "n")).complete()
    assert run.store_of_states.totals("n", "times") == dict.fromkeys(range(500), 1)
    assert run.loop.statistics.batches == 5


@ALL
def test_the_example_of_a_batch_spout(tmp_path: Path, semantics: Any) -> None:
    """It sums orders, goes on with later ones, and deletes the committed ones."""
    orders = tmp_path / "orders.db"
    batch_spout.add_orders(orders, 1000)
    store = Store()
    word: Any = str(semantics.semantics)
    topology = batch_spout.topology(str(orders), word, orders_per_batch=64, delete=True)
    first = SourceRun(topology, store).complete()
    assert (first.loop.statistics.batches, first.loop.statistics.records) == (16, 1000)
    assert store.totals("city", "n") == dict.fromkeys(batch_spout.CITIES, 250)
    assert sum(store.totals("city", "amount").values()) == sum(n % 100 for n in range(1000))
    batch_spout.add_orders(orders, 10)
    with closing(sqlite3.connect(orders)) as connection:
        ((left, least),) = connection.execute("SELECT count(*), min(id) FROM orders")
    assert (left, least % 64) == (1011 - least, 1), "whole batches from the first one on"
    assert least > 1
    second = SourceRun(topology, store).complete()
    assert second.loop.statistics.first_txid == 17
    assert sum(store.totals("city", "n").values()) == 1010
