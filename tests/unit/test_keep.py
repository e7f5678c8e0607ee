"""Tables with `keep`: what has expired is removed, what comes too late is a dead letter, and neither a replay
nor a retry nor a longer `keep` brings anything back to life."""

from __future__ import annotations

import sqlite3
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.lists import each

from txstream import (
    BasicBolt,
    BatchBolt,
    Count,
    DataFrameBolt,
    DeadLetters,
    MemorySpout,
    OpaqueSpout,
    OutputCollector,
    SqlAppendBolt,
    SqlState,
    SqlStateBolt,
    SqlTable,
    TransactionalSpout,
    TransactionalTopologyBuilder,
    Tuple,
)
from txstream.api.retention import next_horizons
from txstream.core.batch_metas import BatchMetas, MetaCodec
from txstream.core.errors import LateRecordError, StateTableError, TopologyError
from txstream.core.fault_points import Point
from txstream.engine.commit.state_targets import state_targets
from txstream.plugins.proof.stores.memory import MemoryBackend
from txstream.spouts.memory import MemoryRange
from txstream.state import open_database
from txstream.state.sql import writer
from txstream.testing import ManualClock, TopologyTest
from txstream.zookeeper import Kind

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SPOUTS = {"opaque": OpaqueSpout, "transactional": TransactionalSpout}
FIELDS = "topic string, partition int, offset bigint, at timestamp, day date, word string"
DAYS = [1, 95, 89, 200, 3, 89, 91, 1]
EVERY_SPOUT = pytest.mark.parametrize("name", SPOUTS)


def row(offset: int, days: float, word: str = "a") -> tuple[Any, ...]:
    at = NOW - timedelta(days=days)
    return ("rows", 0, offset, at, at.date(), word)


def kept(source: MemorySpout, spout: Any = OpaqueSpout, keep: str = "90d", **options: Any) -> Any:
    options = {"dead_letters": DeadLetters(max_per_batch=1), **options}
    builder = TransactionalTopologyBuilder("t", "rows", spout(source), **options)
    rows = SqlTable("orders", "at timestamp, word string", keep=keep)
    builder.set_bolt("append", SqlAppendBolt(rows), 2).local_or_shuffle_grouping("rows")
    days = SqlState("days", key="day date, word string", value="n bigint", keep=keep)
    builder.set_bolt("count", SqlStateBolt(days, n=Count()), 2).fields_grouping("rows", "word")
    return builder.build()


def stored(path: Path, query: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def late(path: Path) -> list[tuple[Any, ...]]:
    return stored(path, "SELECT place, status FROM txstream_dead_letter ORDER BY place")


@pytest.mark.parametrize("commit", ["driver", "executors"])
@EVERY_SPOUT
def test_what_expires_is_removed_and_what_is_late_is_a_dead_letter(
    name: str, commit: str, tmp_path: Path
) -> None:
    path = tmp_path / "s.db"
    with MemorySpout(FIELDS, {"rows/0": []}, max_records_per_partition=3) as source:
        clock = ManualClock(NOW.timestamp())
        topology = kept(source, SPOUTS[name], commit=commit)
        with TopologyTest(topology, database=f"sqlite:///{path}", clock=clock) as test:
            source.append("rows/0", *(row(at, days) for at, days in enumerate(DAYS)))
            test.run()
            there = [0, 2, 4, 5, 7]
            assert sorted(key[2] for key in test.table("orders")) == there
            counted = {row(0, 1)[4]: 2, row(0, 3)[4]: 1, row(0, 89)[4]: 2}
            assert test.table("days") == {(day, "a"): n for day, n in counted.items()}
            assert late(path) == [("rows/0@1", "dead"), ("rows/0@3", "dead"), ("rows/0@6", "dead")]
            clock.advance(2 * 86_400)
            for offset in (8, 9):  # what one commit calls late, the next one removes
                source.append("rows/0", row(offset, 1))
                test.run()
                if offset == 8:
                    assert sorted(key[2] for key in test.table("orders")) == [*there, 8]
            assert sorted(key[2] for key in test.table("orders")) == [0, 4, 7, 8, 9]
            assert test.table("days") == {(row(0, 1)[4], "a"): 4, (row(0, 3)[4], "a"): 1}
            source.append("rows/0", row(10, 89))
            test.run()
            assert (row(0, 89)[4], "a") not in test.table("days")
            assert late(path)[-1:] == [("rows/0@6", "dead")]
            assert ("rows/0@10", "dead") in late(path)


@EVERY_SPOUT
def test_a_longer_time_brings_nothing_back(name: str, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    database, clock = f"sqlite:///{path}", ManualClock(NOW.timestamp())
    with (
        MemorySpout(FIELDS, {"rows/0": [row(0, 1), row(1, 50)]}, max_records_per_partition=1) as source,
        TopologyTest(kept(source, SPOUTS[name]), database=database, clock=clock) as test,
    ):
        test.run()
        clock.advance(45 * 86_400)
        source.append("rows/0", row(2, 1), row(3, 1))
        test.run()
        assert sorted(key[2] for key in test.table("orders")) == [0, 2, 3]
        test.restart(kept(source, SPOUTS[name], keep="120d"))
        source.append("rows/0", row(4, 50), row(5, 40))
        test.run()
        assert sorted(key[2] for key in test.table("orders")) == [0, 2, 3, 5]
        assert late(path) == [("rows/0@4", "dead")]


@pytest.mark.parametrize("at", [Point.BEFORE_COMMIT, Point.INSIDE_COMMIT, Point.AFTER_COMMIT])
@EVERY_SPOUT
def test_a_driver_dies_while_rows_expire(name: str, at: Point, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    rows = [row(0, 89), row(1, 1)]
    with MemorySpout(FIELDS, {"rows/0": rows}, max_records_per_partition=1) as source:
        clock = ManualClock(NOW.timestamp())
        with TopologyTest(kept(source, SPOUTS[name]), database=f"sqlite:///{path}", clock=clock) as test:
            test.run()
            clock.advance(2 * 86_400)
            source.append("rows/0", row(2, 89), row(3, 1), row(4, 89))
            test.crash(at=at, txid=4)
            test.restart()
            test.run()
            assert sorted(key[2] for key in test.table("orders")) == [1, 3]
            assert test.table("days") == {(row(0, 1)[4], "a"): 2}
            assert late(path) == [("rows/0@2", "dead"), ("rows/0@4", "dead")]


class Sour(BasicBolt):
    """Fails at a word."""

    output = FIELDS
    calls: ClassVar[int] = 0

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup["word"] == "sour":
            raise ValueError("sour")
        collector.emit(tup.values)


def test_late_records_are_not_counted_in_the_limits_of_dead_letters(tmp_path: Path) -> None:
    """Behind a bolt too, and where tuples do not say which records they come from."""
    path = tmp_path / "s.db"
    rows = [row(at, 200 if at % 3 else 1, "sour" if at == 6 else "a") for at in range(30)]
    with MemorySpout(FIELDS, {"p": rows}) as source:
        builder = TransactionalTopologyBuilder(
            "t", "rows", OpaqueSpout(source), dead_letters=DeadLetters(max_per_batch=1)
        )
        builder.set_bolt("sour", Sour()).shuffle_grouping("rows")
        days = SqlState("days", key="at timestamp", value="n bigint", keep="12h")
        builder.set_bolt("count", SqlStateBolt(days, n=Count())).shuffle_grouping("sour")
        clock = ManualClock((NOW - timedelta(days=1)).timestamp())
        with TopologyTest(builder.build(), database=f"sqlite:///{path}", clock=clock) as test:
            test.run()
            assert test.table("days") == {NOW - timedelta(days=1): 9}
    assert [place for place, _ in late(path)] == sorted(f"p@{at}" for at in range(30) if at % 3 or at == 6)
    found = stored(path, "SELECT exception, count(*) FROM txstream_dead_letter GROUP BY 1 ORDER BY 1")
    assert found == [("LateRecordError", 20), ("ValueError", 1)]


def test_a_batch_of_late_records_takes_one_further_attempt_and_no_trial_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from txstream.engine.batch import record_search

    trials: list[int] = []
    run = vars(record_search)["run_first_stage"]

    def counted(*arguments: Any) -> Any:
        trials.append(1)
        return run(*arguments)

    monkeypatch.setattr(record_search, "run_first_stage", counted)
    path = tmp_path / "s.db"
    rows = [row(at, 200 if at % 4 else 1) for at in range(2_000)]
    with (
        MemorySpout(FIELDS, {"rows/0": rows}) as source,
        TopologyTest(kept(source), database=f"sqlite:///{path}", clock=ManualClock(NOW.timestamp())) as test,
    ):
        test.run()
        assert len(test.table("orders")) == 500
    assert len(late(path)) == 1_500
    assert stored(path, "SELECT txid, json_array_length(details, '$.attempts') FROM txstream_batch") == [
        (1, 1)
    ]
    assert len(trials) < 30


@EVERY_SPOUT
def test_a_retried_late_record_stays_dead_in_its_one_row(name: str, tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    rows = [row(0, 1), row(1, 200), row(2, 200)]
    with (
        MemorySpout(FIELDS, {"rows/0": rows}) as source,
        TopologyTest(
            kept(source, SPOUTS[name]), database=f"sqlite:///{path}", clock=ManualClock(NOW.timestamp())
        ) as test,
    ):
        test.run()
        test._control.running.requests.ask(Kind.RETRY, {})
        source.append("rows/0", row(3, 1))
        test.run()
        assert sorted(key[2] for key in test.table("orders")) == [0, 3]
    assert late(path) == [("rows/0@1", "dead"), ("rows/0@2", "dead")]
    batches = stored(path, "SELECT metas FROM txstream_batch ORDER BY txid")
    assert len(batches) == 3  # one of them was the retry


def test_metas_of_other_topologies_are_what_they_were(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with MemorySpout(FIELDS, {"rows/0": [row(0, 1)]}) as source:
        builder = TransactionalTopologyBuilder("t", "rows", OpaqueSpout(source))
        rows = SqlTable("orders", "at timestamp, word string")
        builder.set_bolt("append", SqlAppendBolt(rows)).local_or_shuffle_grouping("rows")
        with TopologyTest(builder.build(), database=f"sqlite:///{path}") as test:
            test.run()
    assert stored(path, "SELECT metas FROM txstream_batch") == [
        ('{"partitions":{"rows/0":{"end":1,"start":0}}}',)
    ]
    codec = MetaCodec(MemoryRange)
    metas: BatchMetas[Any] = BatchMetas({"p": MemoryRange(0, 1)}, horizons={"orders": 7})
    document = codec.encode(metas)
    assert document["horizons"] == {"orders": 7}
    assert codec.decode(document, "here") == metas != codec.decode({**document, "horizons": {}}, "here")


def test_horizons_never_go_back() -> None:
    first = next_horizons({}, {"a": 10, "b": 100}, 1_000.9)
    assert first == {"a": 990, "b": 900}
    assert next_horizons(first, {"a": 10, "b": 100}, 500.0) == first
    assert next_horizons(first, {"a": 500}, 1_100.0) == {"a": 990}
    assert next_horizons(first, {"a": 5}, 1_100.0) == {"a": 1_095}


def test_a_commit_removes_portions_up_to_twice_what_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from txstream.state import commit_protocol

    monkeypatch.setattr(writer, "_REMOVED_AT_ONCE", 2)
    monkeypatch.setattr(commit_protocol, "_REMOVED_AT_LEAST", 4)
    rows = [row(at, 89) for at in range(11)]
    with MemorySpout(FIELDS, {"rows/0": rows}) as source:
        clock = ManualClock(NOW.timestamp())
        with TopologyTest(kept(source), database=f"sqlite:///{tmp_path / 's.db'}", clock=clock) as test:
            test.run()
            clock.advance(2 * 86_400)
            left = []
            for offset in range(11, 16):
                source.append("rows/0", row(offset, 1))
                test.run()
                left.append(sum(key[2] < 11 for key in test.table("orders")))
    assert left == [11, 7, 3, 0, 0]


def test_a_batch_that_writes_more_removes_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that expires faster than the least portion would grow without end."""
    from txstream.state import commit_protocol

    monkeypatch.setattr(writer, "_REMOVED_AT_ONCE", 2)
    monkeypatch.setattr(commit_protocol, "_REMOVED_AT_LEAST", 1)
    rows = [row(at, 89) for at in range(11)]
    with MemorySpout(FIELDS, {"rows/0": rows}) as source:
        clock = ManualClock(NOW.timestamp())
        with TopologyTest(kept(source), database=f"sqlite:///{tmp_path / 's.db'}", clock=clock) as test:
            test.run()
            clock.advance(2 * 86_400)
            left = []
            for first in range(11, 20, 3):
                source.append("rows/0", *[row(first + more, 1) for more in range(3)])
                test.run()
                left.append(sum(key[2] < 11 for key in test.table("orders")))
    assert left == [11, 3, 0], "the first batch learns of the horizon, each of the next writes three rows"


def test_a_table_that_is_there_already_needs_the_index(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 's.db'}"
    plain = SqlTable("orders", "at timestamp, word string")
    with MemorySpout(FIELDS, {"rows/0": [row(0, 1)]}) as source:
        builder = TransactionalTopologyBuilder("t", "rows", OpaqueSpout(source))
        builder.set_bolt("append", SqlAppendBolt(plain)).local_or_shuffle_grouping("rows")
        with TopologyTest(builder.build(), database=database) as test:
            test.run()
            builder = TransactionalTopologyBuilder(
                "t", "rows", OpaqueSpout(source), dead_letters=DeadLetters()
            )
            rows = SqlTable("orders", "at timestamp, word string", keep="90d")
            builder.set_bolt("append", SqlAppendBolt(rows)).local_or_shuffle_grouping("rows")
            with pytest.raises(
                StateTableError, match=r'run this in its database: CREATE INDEX "?ix_orders_at'
            ) as told:
                test.restart(builder.build())
            statement = str(told.value).rpartition("database: ")[2]
            connection = sqlite3.connect(tmp_path / "s.db")
            connection.execute(statement)
            connection.close()
            test.restart(builder.build())
            source.append("rows/0", row(1, 1))
            test.run()
            assert len(test.table("orders")) == 2


@each(
    ("declare", "words"),
    [
        (lambda: SqlTable("t", "at timestamp", keep="90x"), "write how long rows are kept, such as '90d'"),
        (lambda: SqlTable("t", "at timestamp", keep="0d"), "write how long rows are kept"),
        (lambda: SqlTable("t", "at timestamp", keep=90), "keep is 90; write how long"),  # type: ignore[arg-type]
        (lambda: SqlTable("t", "at timestamp", keep_on="at"), "nothing says how long rows are kept"),
        (lambda: SqlTable("t", "n bigint", keep="1d"), "needs a date or timestamp column.*there is none"),
        (lambda: SqlTable("t", "at timestamp, day date", keep="1d"), "it may be 'at' or 'day'"),
        (lambda: SqlTable("t", "at timestamp", keep="1d", keep_on="n"), "which is 'n'; it may be 'at'"),
        (lambda: SqlTable("t", "at timestamp", key="id bigint", keep="1d"), "must be a key column: oth"),
        (lambda: SqlState("t", "word string", "at timestamp", keep="1d"), "It must be a key column"),
        (lambda: SqlState("t", "hour bigint", "n bigint", keep="1d", keep_on="hour"), r"'hour' \(bigint\)"),
    ],
)  # fmt: skip
def test_an_impossible_declaration_is_refused(declare: Any, words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        declare()


def test_a_declared_column_is_found_or_chosen() -> None:
    assert SqlTable("t", "at timestamp", keep="90d").keep_on == "at"
    assert SqlTable("t", "at timestamp, day date", keep="90d", keep_on="day").keep_on == "day"
    assert SqlTable("t", "n bigint", key="id bigint, at timestamp", keep="36h").keep_seconds == 36 * 3600
    assert SqlState("t", "hour timestamp_ntz, word string", "n bigint", keep="90d").keep_on == "hour"


class Own(BatchBolt):
    def execute(self, tup: Tuple) -> None:
        self.context.state("s").put((tup["at"],), 1)


def _build(table: Any = None, bolt: Any = None, **options: Any) -> Any:
    with MemorySpout(FIELDS, {"rows/0": []}) as source:
        builder = TransactionalTopologyBuilder("t", "rows", OpaqueSpout(source), **options)
        if bolt is not None:
            builder.set_committer_bolt("own", bolt).shuffle_grouping("rows")
        if table is not None:
            builder.set_bolt("append", SqlAppendBolt(table)).shuffle_grouping("rows")
        return builder.build()


def test_a_topology_that_cannot_set_late_records_aside_is_refused() -> None:
    table = SqlTable("orders", "at timestamp", keep="90d")
    with pytest.raises(TopologyError, match=r"'orders' has keep='90d'.*add dead_letters=DeadLetters\(\)"):
        _build(table)
    own = Own()
    own.states = {"s": SqlState("s", "at timestamp", "n bigint", keep="1d")}
    with pytest.raises(TopologyError, match=r"state 's'.*where no late record can be set aside"):
        _build(bolt=own, dead_letters=DeadLetters())


class Times(BatchBolt):
    output = "at timestamp"

    def execute(self, tup: Tuple) -> None:
        pytest.fail("not run here")


class Frame(DataFrameBolt):
    output = "at timestamp"


@each("between", [False, True], ids=["directly", "with a bolt between"])
@each(
    ("bolt", "is_committer", "words"),
    [
        (Times, True, "is filled in the commit phase, where no late record can be set aside; fill it before"),
        (Frame, False, "is filled from a DataFrameBolt.*; fill it from a bolt in Python"),
    ],
    ids=["a committer", "a DataFrame bolt"],
)
def test_a_table_with_keep_is_refused_below(bolt: Any, is_committer: bool, words: str, between: bool) -> None:
    with MemorySpout(FIELDS, {"rows/0": []}) as source:
        builder = TransactionalTopologyBuilder("t", "rows", OpaqueSpout(source), dead_letters=DeadLetters())
        add = builder.set_committer_bolt if is_committer else builder.set_bolt
        add("above", bolt()).shuffle_grouping("rows")
        if between:
            builder.set_bolt("between", Times()).shuffle_grouping("above")
        days = SqlState("days", key="at timestamp", value="n bigint", keep="90d")
        store = builder.set_bolt("days", SqlStateBolt(days, n=Count()))
        store.shuffle_grouping("between" if between else "above")
        with pytest.raises(TopologyError, match=f"'days': table 'days' has keep='90d', but it {words}"):
            builder.build()


def test_tables_of_one_name_in_two_databases_are_refused() -> None:
    """Horizons go by the table's name."""
    with MemorySpout(FIELDS, {"rows/0": []}) as source:
        builder = TransactionalTopologyBuilder("t", "rows", OpaqueSpout(source), dead_letters=DeadLetters())
        for url in ("sqlite:///one.db", "sqlite:///two.db"):
            table = SqlTable("orders", "at timestamp", keep="90d", url=url)
            builder.set_bolt(url[-6:-3], SqlAppendBolt(table)).shuffle_grouping("rows")
        with pytest.raises(TopologyError, match="another database has a table with keep of the same name"):
            builder.build()


def test_a_store_that_removes_nothing_is_refused() -> None:
    class KeepsAll(MemoryBackend):
        removes_expired: ClassVar[bool] = False

    topology = _build(SqlTable("orders", "at timestamp", keep="90d"), dead_letters=DeadLetters())
    with pytest.raises(TopologyError, match=r"KeepsAll\) cannot remove rows by their age"):
        state_targets(topology, "memory://keeps-all", KeepsAll)
    state_targets(topology, "memory://removes", open_database)


def test_a_late_row_that_a_bolt_lets_pass_is_refused_before_the_commit(tmp_path: Path) -> None:
    class Careless(SqlAppendBolt):
        """Does not look at the time."""

        def execute_chunk(self, chunk: Any) -> None:
            self.fold.add(chunk.batch)

    with MemorySpout(FIELDS, {"rows/0": [row(0, 1), row(1, 200)]}) as source:
        builder = TransactionalTopologyBuilder("t", "rows", OpaqueSpout(source), dead_letters=DeadLetters())
        table = SqlTable("orders", "at timestamp", keep="90d")
        builder.set_bolt("append", Careless(table)).shuffle_grouping("rows")
        clock = ManualClock(NOW.timestamp())
        path = tmp_path / "s.db"
        with TopologyTest(builder.build(), database=f"sqlite:///{path}", clock=clock) as test:
            test.run()
            assert [key[2] for key in test.table("orders")] == [0]
    assert late(path) == [("rows/0@1", "dead")]
    found = stored(path, "SELECT component, exception FROM txstream_dead_letter")
    assert found == [("append", LateRecordError.__name__)]


def test_a_day_is_kept_until_it_is_over_for_as_long() -> None:
    from txstream.api.retention import limit_of
    from txstream.api.schema import parse_schema

    types = parse_schema("day date, at timestamp, local timestamp_ntz").types
    noon = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp())
    assert [limit_of(one, noon) for one in types] == [
        date(2026, 3, 1), datetime(2026, 3, 1, 12, tzinfo=UTC), datetime(2026, 3, 1, 12),
    ]  # fmt: skip


def test_fields_that_name_other_records_set_none_of_these_aside(tmp_path: Path) -> None:
    """Topic, partition and offset may be anything that a record says: only what fails by itself is dead."""
    path = tmp_path / "s.db"
    said = [(0, 1), (200, 2), (1, 3), (200, 0), (200, 4), (200, 4), (1, 1)]
    rows = [row(offset, days) for days, offset in said]
    with MemorySpout(FIELDS, {"rows/0": rows}) as source:
        builder = TransactionalTopologyBuilder("t", "rows", OpaqueSpout(source), dead_letters=DeadLetters())
        table = SqlTable("orders", "offset bigint", key="at timestamp", on_conflict="replace", keep="90d")
        builder.set_bolt("append", SqlAppendBolt(table)).shuffle_grouping("rows")
        clock = ManualClock(NOW.timestamp())
        with TopologyTest(builder.build(), database=f"sqlite:///{path}", clock=clock) as test:
            test.run()
            assert sorted(test.table("orders")) == [NOW - timedelta(days=1), NOW]
    assert [place for place, _ in late(path)] == [f"rows/0@{at}" for at in (1, 3, 4, 5)]
