"""`inspect.why`: which batches, partitions and offsets made a value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.replays import Words, run, topology

from txstream import inspect
from txstream.api.bolts import BatchBolt
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count, Last, Max, Min, Sum
from txstream.api.spouts import NonTransactionalSpout, OpaqueSpout, TransactionalSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.bolts.sql import SqlStateBolt
from txstream.cli.context import Cli
from txstream.core.batch_metas import halves
from txstream.core.errors import StateTableError, UsageError
from txstream.examples.accounts import graph
from txstream.plugins.audit.why_command import print_why
from txstream.spouts.kafka import KafkaRange
from txstream.spouts.memory import MemorySpout

LINES = {
    "p0": ["the cat", "the dog", "a fish", "the the end"],
    "p1": ["a cat", "the end", "nothing", "so", "a bird", "the bird", "more"],
}


@pytest.fixture
def source() -> Iterator[MemorySpout]:
    with MemorySpout("line string", LINES) as made:
        yield made


def test_half_a_range_does_not_end_in_the_leader_epoch_of_the_whole() -> None:
    """The reader would take it for a log that was cut back."""
    found = halves({"t/0": KafkaRange(0, 4, "id", leader_epoch=3)}, exact=True)
    later, earlier = KafkaRange(2, 4, "id", leader_epoch=3), KafkaRange(0, 2, "id")
    assert list(found) == [{"t/0": later}, {"t/0": earlier}]


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'state.db'}"


def truth(word: str) -> Counter[tuple[str, int]]:
    """Return how often each record has the word, by partition and offset."""
    return Counter(
        {
            (partition, offset): line.split().count(word)
            for partition, lines in LINES.items()
            for offset, line in enumerate(lines)
            if word in line.split()
        }
    )


@pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout, NonTransactionalSpout])
@pytest.mark.parametrize("word", ["the", "cat", "nothing"])
def test_every_record_that_made_a_value_is_found(
    source: MemorySpout, database: str, spout: Any, word: str
) -> None:
    made = topology(source, spout=spout)
    settings = run(made, database)
    found = inspect.why(made, "words", [word], settings)
    expected = truth(word)
    assert Counter({(p.partition, p.offset): p.delta["n"] for p in found.parts}) == expected
    assert found.is_complete
    assert found.notes == ()
    assert found.value == {"n": expected.total(), "longest": len(word)}
    assert [part.txid for part in found.parts] == sorted((part.txid for part in found.parts), reverse=True)
    running = [part.value["n"] for part in found.parts]
    assert running == [
        expected.total() - sum(p.delta["n"] for p in found.parts[:at]) for at in range(len(running))
    ]


def test_the_search_ends_when_the_parts_make_the_value(source: MemorySpout, database: str) -> None:
    made = topology(source)
    settings = run(made, database)
    found = inspect.why(made, "words", {"word": "bird"}, settings)
    last = max(one.txid for one in inspect.batches("words", settings))
    assert found.txids is not None
    assert 1 < found.txids[0] <= found.txids[1] <= last, "the first batches are not run again"


def test_a_limit_ends_it_and_is_told(source: MemorySpout, database: str) -> None:
    made = topology(source)
    settings = run(made, database)
    found = inspect.why(made, "words", ["the"], settings, limit=2)
    assert len(found.parts) == 2
    assert not found.is_complete
    assert "a greater limit finds them" in found.notes[0]
    near = inspect.why(made, "words", ["the"], settings, within=1)
    assert not near.is_complete
    assert "were not looked at" in near.notes[0]
    assert inspect.why(made, "words", ["the"], settings, limit=len(truth("the"))).is_complete


def test_a_value_whose_last_batch_was_cut_off_by_the_limit_is_not_complete(
    source: MemorySpout, database: str
) -> None:
    """Both cats are in txid 1: the batch makes the whole value, and the one part that is shown does not."""
    made = topology(source)
    settings = run(made, database)
    assert [part.txid for part in inspect.why(made, "words", ["cat"], settings).parts] == [1, 1]
    found = inspect.why(made, "words", ["cat"], settings, limit=1)
    assert len(found.parts) == 1
    assert not found.is_complete
    assert found.notes == ("there are more parts; a greater limit finds them",)


def test_ranges_alone(source: MemorySpout, database: str) -> None:
    made = topology(source)
    settings = run(made, database)
    found = inspect.why(made, "words", ["the"], settings, exact=False)
    assert found.is_complete
    assert sum(part.delta["n"] for part in found.parts) == truth("the").total()
    for part in found.parts:
        assert part.start is not None
        assert part.end is not None
        inside = [
            n for (p, at), n in truth("the").items() if p == part.partition and part.start <= at < part.end
        ]
        assert part.delta["n"] == sum(inside)


def test_what_is_pruned_or_gone_is_told(source: MemorySpout, database: str) -> None:
    made = topology(source)
    settings = run(made, database)
    engine = sa.create_engine(database)
    with engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM txstream_batch WHERE txid <= 2"))
    engine.dispose()
    found = inspect.why(made, "words", ["the"], settings)
    assert not found.is_complete
    assert "the ledger begins at txid 3" in found.notes[0]
    assert found.parts
    assert all(part.txid >= 3 for part in found.parts)
    gone = MemorySpout("line string", {"p0": [], "p1": []})
    with gone:
        lost = inspect.why(topology(gone), "words", ["the"], settings)
    assert lost.parts == ()
    assert "of earlier batches nothing is known: " in lost.notes[0]


def test_code_that_has_changed_is_told(source: MemorySpout, database: str) -> None:
    settings = run(topology(source), database)

    class Fewer(Words):
        def words(self, line: str) -> list[str]:
            return line.replace("the the", "the").split()

    found = inspect.why(topology(source, Fewer), "words", ["the"], settings)
    assert not found.is_complete
    assert any("does not add today what it added then" in note for note in found.notes)
    assert any("do not make the value" in note for note in found.notes)


class Distinct(BatchBolt):
    """Emits each word once in a batch, so that its records act together."""

    output = "word string, n bigint"

    def prepare(self, context: Any, collector: Any, batch_id: Any) -> None:
        super().prepare(context, collector, batch_id)
        self.seen: set[str] = set()

    def execute(self, tup: Any) -> None:
        self.seen.update(tup["line"].split())

    def finish_batch(self) -> None:
        for word in sorted(self.seen):
            self.collector.emit((word, 1))


def test_records_that_act_together_are_told_as_a_batch(source: MemorySpout, database: str) -> None:
    builder = TransactionalTopologyBuilder("distinct", "lines", OpaqueSpout(source, max_batch_records=4))
    builder.set_bolt("distinct", Distinct()).global_grouping("lines")
    store = SqlStateBolt(SqlState("seen", key="word string", value="n bigint"), n=Sum("n"))
    builder.set_committer_bolt("store", store).fields_grouping("distinct", "word")
    made = builder.build()
    settings = run(made, database)
    found = inspect.why(made, "seen", ["the"], settings)
    assert found.is_complete
    whole = [part for part in found.parts if part.partition is None]
    assert whole
    assert any("act together" in note for note in found.notes)


def test_the_last_value_is_made_by_one_record(database: str) -> None:
    rows = {"p0": [("a", 1, 10), ("b", 2, 5), ("a", 3, 30)], "p1": [("a", 2, 20)]}
    with MemorySpout("k string, at bigint, price bigint", rows) as source:
        builder = TransactionalTopologyBuilder("prices", "rows", OpaqueSpout(source))
        store = SqlStateBolt(
            SqlState("prices", key="k string", value="price bigint"), price=Last("price", by="at")
        )
        builder.set_committer_bolt("store", store).fields_grouping("rows", "k")
        made = builder.build()
        found = inspect.why(made, "prices", ["a"], run(made, database))
    assert found.is_complete
    assert ("p0", 2, {"price": 30}) in [(part.partition, part.offset, part.delta) for part in found.parts]


PRICES = {
    "p0": [("a", 7), ("b", 99), ("a", 90), *[("a", 10)] * 30, ("a", 40)],
    "p1": [("a", 3), *[("a", 20)] * 30, ("a", 8)],
}


def prices(source: MemorySpout, **reducers: Any) -> Topology:
    builder = TransactionalTopologyBuilder("prices", "rows", OpaqueSpout(source))
    value = ", ".join(f"{name} bigint" for name in reducers)
    store = SqlStateBolt(SqlState("prices", key="k string", value=value), **reducers)
    builder.set_committer_bolt("store", store).fields_grouping("rows", "k")
    return builder.build()


@pytest.mark.parametrize("limit", [1, 20])
def test_the_record_that_made_a_maximum_is_found_however_far_back(database: str, limit: int) -> None:
    with MemorySpout("k string, price bigint", PRICES, max_records_per_partition=5) as source:
        made = prices(source, highest=Max("price"), lowest=Min("price"))
        found = inspect.why(made, "prices", ["a"], run(made, database), limit=limit)
    assert found.is_complete
    assert [(part.partition, part.offset, part.made) for part in found.parts] == [
        ("p1", 0, ("lowest",)),
        ("p0", 2, ("highest",)),
    ] or [(part.partition, part.offset, part.made) for part in found.parts] == [
        ("p0", 2, ("highest",)),
        ("p1", 0, ("lowest",)),
    ]


def test_beside_a_count_it_is_marked_or_added_to_the_newest_parts(
    database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with MemorySpout("k string, price bigint", PRICES, max_records_per_partition=5) as source:
        made = prices(source, n=Count(), highest=Max("price"))
        settings = run(made, database)
        found = inspect.why(made, "prices", ["a"], settings, limit=3)
        whole = inspect.why(made, "prices", ["a"], settings, limit=100)
    *newest, maker = found.parts
    assert not found.is_complete
    assert [part.made for part in newest] == [()] * 3
    assert (maker.partition, maker.offset, maker.delta["highest"], maker.made) == ("p0", 2, 90, ("highest",))
    assert whole.is_complete
    assert [(part.partition, part.offset) for part in whole.parts if part.made] == [("p0", 2)]
    assert len(whole.parts) == found.value["n"] if found.value else False
    print_why(Cli(), found)
    out = capsys.readouterr().out.splitlines()
    assert out[1].split()[-1] == "made"
    assert out[6].split()[-1] == "highest"


def test_what_cannot_be_asked(source: MemorySpout, database: str) -> None:
    made = topology(source)
    settings = run(made, database)
    missing = inspect.why(made, "words", ["zebra"], settings)
    assert (missing.value, missing.parts) == (None, ())
    with pytest.raises(StateTableError, match="has no state table 'word'; it has words"):
        inspect.why(made, "word", ["the"], settings)
    with pytest.raises(UsageError, match="limit is 0"):
        inspect.why(made, "words", ["the"], settings, limit=0)
    with MemorySpout("account string, amount bigint", {"p0": [("anna", 1)]}) as rows:
        books = graph(OpaqueSpout(rows))
        with pytest.raises(UsageError, match="filled in the commit phase"):
            inspect.why(books, "accounts", ["anna"], run(books, database))
