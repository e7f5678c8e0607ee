"""`inspect.replay` runs a committed batch again, dry, and compares the result with what the batch added."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from support.replays import Changed, Summary, Words, run, topology

from txstream import inspect
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count, Max, Sum
from txstream.api.spouts import OpaqueSpout, TransactionalSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.bolts.aggregate import CountBolt
from txstream.bolts.sql import SqlStateBolt
from txstream.core.errors import DataLostError, UsageError
from txstream.core.transaction import Txid
from txstream.examples.accounts import graph
from txstream.plugins.audit.dry_runs import DryRuns, ReplayedTable, dry_runs
from txstream.plugins.audit.key_differences import KeyDifferences
from txstream.plugins.audit.replaying import combined
from txstream.settings import Settings
from txstream.spouts.memory import MemoryCoordinator, MemorySpout
from txstream.testing import TopologyTest

LINES = {"p0": ["the cat", "the dog"], "p1": ["a cat", "the end"]}


@pytest.fixture
def source() -> Iterator[MemorySpout]:
    with MemorySpout("line string", LINES) as made:
        yield made


@pytest.fixture
def database(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'state.db'}"


def everything(database: str) -> dict[str, list[Any]]:
    engine = sa.create_engine(database)
    with engine.connect() as connection:
        names = sa.inspect(connection).get_table_names()
        found = {name: list(connection.execute(sa.text(f'SELECT * FROM "{name}"'))) for name in names}
    engine.dispose()
    return found


@pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])
@pytest.mark.parametrize("commit", ["driver", "executors"])
def test_the_same_code_is_the_same_and_touches_nothing(
    source: MemorySpout, database: str, spout: Any, commit: Any
) -> None:
    made = topology(source, spout=spout, commit=commit)
    settings = run(made, database)
    before = everything(database)
    found = inspect.replay(made, 1, settings, last=2)
    assert found.same
    assert [(one.txid, one.table, one.same) for one in found.tables] == [
        (1, "words", True),
        (2, "words", True),
    ]
    assert all(one.rows == one.rows_written for one in found.tables)
    assert [(one.records, one.records_read) for one in found.batches] == [(2, 2), (2, 2)]
    assert everything(database) == before


def test_the_digest_does_not_depend_on_the_path_or_the_number_of_tasks(
    source: MemorySpout, tmp_path: Path
) -> None:
    found = []
    for number, (commit, width) in enumerate(
        [("driver", 1), ("driver", 2), ("executors", 1), ("executors", 2)]
    ):
        url = f"sqlite:///{tmp_path / f'{number}.db'}"
        with TopologyTest(topology(source, commit=commit), database=url, width=width) as test:
            test.run()
        rows = inspect.batches("words", Settings(database=url))
        found.append([one.first.details["digests"]["words"] for one in rows])
        assert rows[0].first.details["path"] == commit
    assert found[0] == found[1] == found[2] == found[3]
    assert found[0][0]["rows"] == 3


def test_a_map_states_writes_have_a_digest_and_its_table_is_not_replayed(tmp_path: Path) -> None:
    found = []
    for width in (1, 2):
        url = f"sqlite:///{tmp_path / f'{width}.db'}"
        movements = [("anna", 10), ("ben", 5), ("anna", -3), ("cleo", 1)]
        with MemorySpout("account string, amount bigint", {"p0": movements}) as rows:
            made = graph(OpaqueSpout(rows, max_batch_records=4), prefix="my_")  # not the states' names
            with TopologyTest(made, database=url, width=width) as test:
                test.run()
            (batch,) = inspect.batches(made.id, Settings(database=url))
            found.append(batch.first.details["digests"]["my_accounts"])
            replayed = inspect.replay(made, 1, Settings(database=url))
            assert {one.table: one.same for one in replayed.tables} == {
                "my_accounts": None,
                "my_refused": None,
            }
            assert "commit phase" in str(replayed.tables[0].note)
            assert not replayed.same, "nothing could be compared"
    assert found[0] == found[1]
    assert found[0]["rows"] == 3


def test_tables_below_a_committer_are_left_out_and_their_bolts_not_run(
    source: MemorySpout, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = topology(source, below=True)
    settings = run(made, database)
    monkeypatch.setattr(Summary, "dry", True)
    found = inspect.replay(made, 1, settings)
    assert {one.table: one.same for one in found.tables} == {"words": True, "later": None}
    assert found.same
    with pytest.raises(UsageError, match="'summary' runs in the commit phase"):
        inspect.replay(made, 1, settings, component="summary")


def test_changed_code_is_told_by_key(source: MemorySpout, database: str) -> None:
    settings = run(topology(source), database)
    found = inspect.replay(topology(source, Changed), 2, settings)
    assert not found.same
    (table,) = found.tables
    assert (table.same, table.differs, table.untold) == (False, ("keys", "n", "longest"), 0)
    changes = {one.key["word"]: (one.before, one.written, one.replayed) for one in table.changes}
    assert changes == {
        "end": (None, {"n": 1, "longest": 3}, None),
        "new": (None, None, {"n": 2, "longest": 3}),
        "the": ({"n": 1, "longest": 3}, {"n": 3, "longest": 3}, {"n": 5, "longest": 3}),
    }
    assert len(inspect.replay(topology(source, Changed), 2, settings, changes=1).tables[0].changes) == 1


def test_productions_code_tells_by_how_much_each_key_of_every_batch_would_differ(
    source: MemorySpout, database: str
) -> None:
    settings = run(topology(source), database)
    last = len(inspect.batches("words", settings))
    lines = [line for part in LINES.values() for line in part]
    truth = {"the": 3, "new": 3, "end": -sum(line.split().count("end") for line in lines)}
    assert truth["the"] == sum("the" in line for line in lines)

    def replayed(production: Topology | None) -> inspect.Replay:
        other = topology(source, Changed)
        return inspect.replay(other, 1, settings, last=last, production=production)

    found = replayed(topology(source))
    assert {one.key["word"]: one.by["n"] for one in found.differences} == truth
    only = {one.key["word"]: one.only for one in found.differences}
    assert only == {"the": None, "new": "replayed", "end": "written"}
    assert [one.size for one in found.differences] == [3.0, 3.0, 3.0]
    assert (found.differing, {table.untold for table in found.tables}) == (3, {0})
    alone = replayed(None)
    assert sum(table.untold for table in alone.tables) > 0, "later batches have changed rows since"
    assert replayed(topology(source, Changed)) == alone, "what did not run then is not taken for production's"
    fewer = inspect.replay(topology(source, Changed), 1, settings, last=last, changes=1)
    assert (len(fewer.differences), fewer.differing) == (1, alone.differing)


def test_the_largest_differences_come_first_and_are_put_together_by_reducer() -> None:
    state = SqlState("t", key="k string", value="n bigint, most bigint, word string")
    bolt = SqlStateBolt(state, n=Count(), most=Max("most"), word=Max("word"))
    table = ReplayedTable("t", "store", bolt, None)
    gathered = KeyDifferences()
    for txid, (n, most) in enumerate([(2, 5), (3, 9)], 1):
        rows: list[tuple[Any, ...]] = [
            (("small",), None, {"n": 1, "most": 1, "word": "a"}, {"n": 2, "most": 1, "word": "a"}),
            (("large",), None, None, {"n": -n, "most": most, "word": None}),
            (("text",), None, {"n": 1, "most": 1, "word": "a"}, {"n": 1, "most": 1, "word": "b"}),
        ]
        gathered.add(table, Txid(txid), rows)
    assert [(one.key["k"], one.by, one.only, one.txids) for one in gathered.largest(9)] == [
        ("large", {"n": -5, "most": 9}, "replayed", (1, 2)),
        ("small", {"n": 2}, None, (1, 2)),
        ("text", {"word": None}, None, (1, 2)),
    ]


def test_what_later_batches_have_changed_is_counted(source: MemorySpout, database: str) -> None:
    """Of the rows of txid 1, `the` and `cat` have changed since, and `a` has not."""
    settings = run(topology(source), database)
    (table,) = inspect.replay(topology(source, Changed), 1, settings).tables
    assert table.same is False
    assert [one.key["word"] for one in table.changes] == ["new"]
    assert table.untold == 1, "of `the` nobody knows any more what txid 1 has added"


def test_a_transactional_table_keeps_no_earlier_values(source: MemorySpout, database: str) -> None:
    settings = run(topology(source, spout=TransactionalSpout), database)
    (table,) = inspect.replay(topology(source, Changed, TransactionalSpout), 2, settings).tables
    assert {one.key["word"] for one in table.changes} == {"end", "new"}
    assert table.untold == 2


def test_the_tuples_of_a_component(source: MemorySpout, database: str) -> None:
    made = topology(source)
    settings = run(made, database)
    tuples = inspect.replay(made, 1, settings, last=2, component="split").tuples
    assert tuples is not None
    assert tuples.schema.names == ["txid", "task", "word", "length"]
    assert sorted(zip(*tuples.select(["txid", "word"]).to_pydict().values(), strict=True)) == [
        *((1, "a"), (1, "cat"), (1, "cat"), (1, "the")),
        *((2, "dog"), (2, "end"), (2, "the"), (2, "the")),
    ]
    lines = inspect.replay(made, 1, settings, component="lines").tuples
    assert lines is not None
    assert sorted(lines["line"].to_pylist()) == ["a cat", "the cat"]
    deltas = inspect.replay(made, 1, settings, component="store").tuples
    assert deltas is not None
    assert {row["word"]: row["n"] for row in deltas.to_pylist()} == {"a": 1, "cat": 2, "the": 1}
    with pytest.raises(UsageError, match="no stream 'more'; it has 'default'"):
        inspect.replay(made, 1, settings, component="split", stream="more")


def test_deltas_go_into_a_new_table(source: MemorySpout, database: str) -> None:
    made = topology(source)
    settings = run(made, database)
    inspect.replay(made, 1, settings, last=2, into="old")
    inspect.replay(topology(source, Changed), 1, settings, last=2, into="new")
    tables = everything(database)
    assert sorted(tables["old"])[:2] == [(1, "a", 1, 1), (1, "cat", 2, 3)]
    assert (2, "new", 2, 3) in tables["new"]
    for name, told in (("old", "exists in"), ("words", "is a state table of topology 'words'")):
        with pytest.raises(UsageError, match=told):
            inspect.replay(made, 1, settings, into=name)
    with pytest.raises(UsageError, match="say by table"):
        inspect.replay(made, 1, settings, into="more", table="nothing")


def test_what_cannot_be_replayed(source: MemorySpout, database: str) -> None:
    made = topology(source)
    settings = run(made, database)
    with pytest.raises(inspect.UnknownTxidError, match="has no txid 3; it has txid 1 to 2"):
        inspect.replay(made, 3, settings)
    with pytest.raises(UsageError, match="no range"):
        inspect.replay(made, 2, settings, last=1)
    with pytest.raises(inspect.UnknownTopologyError):
        inspect.replay(made.with_id("others"), 1, settings)
    shorter = MemorySpout("line string", {"p0": ["the cat"], "p1": []})
    with shorter, pytest.raises(DataLostError):
        inspect.replay(topology(shorter), 2, settings)


@pytest.mark.parametrize("jobs_at_once", [1, 3])
def test_a_batch_whose_range_is_gone_is_not_run(
    source: MemorySpout, database: str, jobs_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source that goes on behind lost data would read less, and tell nobody."""
    made = topology(source)
    settings = run(made, database)
    ran: list[int] = []

    def unreadable(self: Any, metas: Any) -> Any:
        if any(meta.start for meta in metas.values()):
            raise DataLostError("the log begins elsewhere")
        return {}

    monkeypatch.setattr(MemoryCoordinator, "unreadable", unreadable)
    usual = DryRuns.run

    def run_one(self: DryRuns, batch: Any) -> Any:
        ran.append(batch.attempt.txid)
        return usual(self, batch)

    monkeypatch.setattr(DryRuns, "run", run_one)
    with dry_runs(made, settings) as opened:
        replayed = replace(opened, jobs_at_once=jobs_at_once).replayed([1, 2])
        assert next(replayed)[0].attempt.txid == 1
        with pytest.raises(DataLostError, match="txid 2 cannot be replayed: the log begins elsewhere"):
            next(replayed)
    assert ran == [1]


def test_a_batch_of_an_older_txstream_has_no_digest(source: MemorySpout, database: str) -> None:
    made = topology(source)
    settings = run(made, database)
    engine = sa.create_engine(database)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE txstream_batch SET details = NULL WHERE txid = 1"))
    engine.dispose()
    found = inspect.replay(made, 1, settings, last=2)
    assert [(one.same, one.rows) for one in found.tables] == [(None, 3), (True, 3)]
    assert "no digest" in str(found.tables[0].note)
    assert found.same


def test_two_databases_with_a_table_of_one_name(source: MemorySpout, database: str, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path / 'other.db'}"
    builder = TransactionalTopologyBuilder("twice", "lines", OpaqueSpout(source, max_batch_records=2))
    builder.set_bolt("split", Words()).shuffle_grouping("lines")
    for name, url in (("here", None), ("there", other)):
        state = SqlState("words", key="word string", value="n bigint", url=url)
        total = Count() if url is None else Sum("length")
        builder.set_committer_bolt(name, SqlStateBolt(state, n=total)).fields_grouping("split", "word")
    made = builder.build()
    found = inspect.replay(made, 1, run(made, database), last=2)
    assert [(one.same, one.database) for one in found.tables] == [(True, database), (True, other)] * 2


def test_sums_of_floats_are_the_same_however_they_are_added_up(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    rows = [("a", 0.1), ("a", 0.2), ("a", 0.3), ("a", 1e9)]
    with MemorySpout("k string, x double", {"p0": rows[:2], "p1": rows[2:]}) as source:

        def made() -> Topology:
            builder = TransactionalTopologyBuilder("sums", "rows", OpaqueSpout(source), 2)
            state = SqlState("sums", key="k string", value="x double")
            builder.set_committer_bolt("store", SqlStateBolt(state, x=Sum("x")), 2).fields_grouping(
                "rows", "k"
            )
            return builder.build()

        with TopologyTest(made(), database=url, width=2) as test:
            test.run()
        assert inspect.replay(made(), 1, Settings(database=url)).same


def test_counting_before_the_state_is_the_same(source: MemorySpout, database: str) -> None:
    """The bolt folds in every Spark task, whatever their number."""
    builder = TransactionalTopologyBuilder("folded", "lines", OpaqueSpout(source, max_batch_records=2), 2)
    builder.set_bolt("split", Words(), 2).shuffle_grouping("lines")
    builder.set_bolt("count", CountBolt("word"), 2).fields_grouping("split", "word")
    store = SqlStateBolt(SqlState("folded", key="word string", value="n bigint"), n=Sum("n"))
    builder.set_committer_bolt("store", store, 2).fields_grouping("count", "word")
    made = builder.build()
    with TopologyTest(made, database=database, width=2) as test:
        test.run()
    found = inspect.replay(made, 1, Settings(database=database), last=2, component="count")
    assert found.same
    assert isinstance(found.tuples, pa.Table)


def test_a_null_delta_changes_nothing_and_a_first_one_is_the_value() -> None:
    reducers = {"n": Sum("n"), "most": Max("most")}
    assert combined(reducers, {"n": 1, "most": 7}, {"n": 2, "most": None}) == {"n": 3, "most": 7}
    assert combined(reducers, {"n": 1, "most": None}, {"n": None, "most": 5}) == {"n": 1, "most": 5}
    assert combined(reducers, None, {"n": 2, "most": 5}) == {"n": 2, "most": 5}


def test_batches_that_give_no_table_a_row_show_nothing(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/state.db"
    with MemorySpout("line string", {"p0": ["", "  "]}) as empty:
        made = topology(empty)
        settings = run(made, database)
        found = inspect.replay(made, 1, settings)
    assert [table.same for table in found.tables] == [True]
    assert not found.shown
    assert not found.same
