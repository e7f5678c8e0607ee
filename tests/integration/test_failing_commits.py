"""The error that ends a run names its record, whatever refuses it: on a real broker and a real PostgreSQL.

Where the record is follows from how the records were produced, and what remains is read by psycopg.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.kafka_topics import wait_until
from support.texts import create_topic, produce

import txstream
from txstream import (
    BasicBolt,
    BatchBolt,
    Committer,
    KafkaSource,
    NonTransactionalSpout,
    OpaqueSpout,
    OutputCollector,
    SqlState,
    SqlStateBolt,
    Sum,
    TopologyContext,
    TransactionalSpout,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
    custom,
)
from txstream.plugins.local.embedded import Services
from txstream.testing import InProcessRunner

PARTITIONS = 4
BAD = 42
"""The bad record's number in its batch: records go round robin over the partitions."""

Bolt = Callable[[str], Any]


class Words(BasicBolt):
    """`word n` as a tuple that says no longer where its record is; an exchange follows."""

    output = "word string, n bigint, part double"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        word, _, n = tup["value"].partition(" ")
        collector.emit([word, int(n or 1), float("nan") if n == "0" else 1.0])


def refusing(before: int, more: int) -> int:
    if more == 7:
        raise ValueError("seven is refused")
    return before + more


def store(**reducers: Any) -> Bolt:
    columns = {"n": "n bigint", "part": "part double", "small": "small tinyint"}
    value = ", ".join(columns[name] for name in reducers)
    return lambda table: SqlStateBolt(SqlState(table, key="word string", value=value), **reducers)


CASES: Mapping[str, tuple[Bolt, str, str, str]] = {
    # By case: the bolt, a statement between the two runs, the bad record, words of the error
    "check": (
        store(n=Sum("n")),
        'ALTER TABLE "{}" ADD CONSTRAINT few CHECK (n < 1000)',
        "w3 5000",
        'violates check constraint "few"',
    ),
    "the stored sum": (store(n=Sum("n")), "", f"w3 {2**63 - 2}", "cannot hold"),
    "a sum of two types": (store(small=Sum("n")), "", "w3 127", "'small' (tinyint) cannot hold"),
    "nan": (store(part=Sum("part")), "", "w3 0", "got nan"),
    "a function": (
        store(n=custom(refusing, 0, field="n")),
        "",
        "w3 7",
        "seven is refused",
    ),
}


class World:
    """One topic with one topology, which runs as often as it is asked to."""

    def __init__(self, services: Services, url: str, folder: Path, name: str) -> None:
        self.services, self.url, self.name = services, url, name
        self.settings = txstream.Settings(
            zookeeper=services.zookeeper, kafka=services.kafka, database=url, data_dir=folder
        )
        create_topic(services.kafka, name, PARTITIONS)

    def produce(self, bad: str | None = None, at: int = BAD) -> None:
        """Append 64 records, of words w0 to w7; `bad` is in the place of one."""
        words = [f"w{number % 8} 1" for number in range(64)]
        if bad is not None:
            words[at] = bad
        produce(self.services.kafka, self.name, words, PARTITIONS)

    def run(self, bolt: Any, spout: Any = OpaqueSpout, **options: Any) -> None:
        self.start(bolt, spout, until="caught-up", **options).wait(120)

    def start(self, bolt: Any, spout: Any = OpaqueSpout, until: str | None = None, **options: Any) -> Any:
        builder = TransactionalTopologyBuilder(
            self.name, "lines", spout(KafkaSource(self.name)), max_attempts=2, **options
        )
        builder.set_bolt("words", Words()).shuffle_grouping("lines")
        builder.set_committer_bolt("store", bolt, 2).fields_grouping("words", "word")
        return txstream.start(
            builder.build(), settings=self.settings, until=until, runner_factory=InProcessRunner
        )

    def execute(self, statement: str) -> list[Any]:
        with psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True) as connection:
            found = connection.execute(statement.format(self.name))
            return sorted(found.fetchall()) if found.description else []

    @property
    def rows(self) -> list[Any]:
        return self.execute('SELECT * FROM "{}"')

    def place(self, number: int = BAD, batch: int = 1) -> str:
        """Where a record of a batch of 64 is."""
        offset = batch * 64 // PARTITIONS + number // PARTITIONS
        return f"at offset {offset} of partition {self.name}/{number % PARTITIONS}"


@pytest.fixture
def world(services: Services, postgres_url: str, tmp_path: Path, unique: str) -> World:
    return World(services, postgres_url, tmp_path, unique)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("spout", "commit"),
    [
        (OpaqueSpout, "driver"),
        pytest.param(OpaqueSpout, "executors", marks=pytest.mark.soak),
        (TransactionalSpout, "executors"),
        pytest.param(NonTransactionalSpout, "driver", marks=pytest.mark.soak),
    ],
)
def test_what_the_commit_refuses_names_the_record(
    world: World, case: str, spout: type[Any], commit: str
) -> None:
    bolt, statement, bad, words = CASES[case]
    world.produce()
    world.run(bolt(world.name), spout, commit=commit)
    before = world.rows
    assert len(before) == 8
    if statement:
        world.execute(statement)
    world.produce(bad)
    with pytest.raises(txstream.StateValueError) as raised:
        world.run(bolt(world.name), spout, commit=commit)
    assert words in str(raised.value)
    assert str(raised.value).endswith(f"; the record is {world.place()}")
    if commit == "driver":
        assert world.rows == before


def test_a_type_that_the_table_has_got_meanwhile_names_the_record(world: World) -> None:
    world.produce()
    running = world.start(store(n=Sum("n"))(world.name))
    wait_until(lambda: running.progress.records == 64, "the first records are committed")
    world.execute('ALTER TABLE "{}" ALTER COLUMN word TYPE varchar(10)')
    before = world.rows
    world.produce("muchtoolong 1")
    with pytest.raises(txstream.StateValueError, match="value too long for type") as raised:
        running.wait(120)
    assert str(raised.value).endswith(f"; the record is {world.place()}")
    assert {word for word, *_ in world.rows} == {word for word, *_ in before}


def test_what_several_records_do_together_names_their_range(world: World) -> None:
    """Each of 60 and 60 fits beside what is stored, both do not."""
    bolt = store(small=Sum("n"))
    world.produce()
    world.run(bolt(world.name))
    before = world.rows
    words = [f"v{number} 1" for number in range(64)]
    words[BAD] = words[BAD + PARTITIONS] = "w3 60"
    produce(world.services.kafka, world.name, words, PARTITIONS)
    with pytest.raises(txstream.StateValueError) as raised:
        world.run(bolt(world.name))
    assert str(raised.value).endswith(f"; the records were at offset 26 to 27 of partition {world.name}/2")
    assert world.rows == before


def test_the_record_of_the_second_database_is_named_after_the_first_has_committed(
    world: World, postgres: Any
) -> None:
    """A transactional batch, which the first database keeps as it is."""
    name = f"{world.name}_2"
    other = World.__new__(World)
    other.name, other.url = name, postgres.create_database(name)
    first = store(n=Sum("n"))(world.name)
    second = SqlStateBolt(SqlState(name, key="word string", value="n bigint", url=other.url), n=Sum("n"))

    def run() -> None:
        builder = TransactionalTopologyBuilder(
            world.name, "lines", TransactionalSpout(KafkaSource(world.name)), max_attempts=2
        )
        builder.set_bolt("words", Words()).shuffle_grouping("lines")
        builder.set_committer_bolt("first", first).fields_grouping("words", "word")
        builder.set_committer_bolt("second", second).fields_grouping("words", "word")
        txstream.start(
            builder.build(), settings=world.settings, until="caught-up", runner_factory=InProcessRunner
        ).wait(120)

    world.produce()
    run()
    other.execute('ALTER TABLE "{}" ADD CONSTRAINT few CHECK (n < 1000)')
    before = other.rows
    world.produce("w3 5000")
    with pytest.raises(txstream.StateValueError) as raised:
        run()
    assert str(raised.value).endswith(f"; the record is {world.place()}")
    assert other.rows == before


def test_a_search_that_breaks_leaves_the_error_as_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("the search itself")

    monkeypatch.setattr("txstream.plugins.audit.failing_record.name_record", broken)
    world.produce("w3 0")
    with pytest.raises(txstream.StateValueError, match=r"got nan.*filter such tuples out before the state$"):
        world.run(store(part=Sum("part"))(world.name))
    assert "could not be explained" in caplog.text


class Best(BatchBolt, Committer):
    """Raises in `execute` or `finish_batch`, or has its state refuse a value. Notes what ran to its end."""

    def __init__(self, table: str, wrong: str, ended: Path) -> None:
        self.states = {"best": SqlState(table, key="word string", value="n tinyint")}
        self.wrong, self.ended = wrong, ended

    def prepare(
        self, context: TopologyContext, collector: OutputCollector, batch_id: TransactionAttempt
    ) -> None:
        super().prepare(context, collector, batch_id)
        self.best: dict[str, int] = {}

    def execute(self, tup: Tuple) -> None:
        if self.wrong == "execute" and tup["n"] > 127:
            raise ValueError("too great")
        self.best[tup["word"]] = max(tup["n"], self.best.get(tup["word"], 0))

    def finish_batch(self) -> None:
        if self.wrong == "finish" and max(self.best.values(), default=0) > 127:
            raise ValueError("too great")
        self.context.state("best").multi_put(list(self.best), list(self.best.values()))
        with self.ended.open("a") as notes:
            notes.write(f"{sorted(self.best)}\n")


@pytest.mark.parametrize(
    ("wrong", "kind", "told"),
    [
        ("execute", txstream.BoltError, "; a record with this tuple is {}"),
        ("state", txstream.StateValueError, "; a record with this key is {}"),
        ("finish", txstream.BoltError, "; bolts of the commit phase are not tried with some of them"),
    ],
)
def test_a_bolt_of_the_commit_phase_names_the_record_and_is_not_tried_with_others(
    world: World, tmp_path: Path, wrong: str, kind: type[Exception], told: str
) -> None:
    ended = tmp_path / "ended"
    world.produce("alone 5000")
    with pytest.raises(kind) as raised:
        world.run(Best(world.name, wrong, ended))
    assert str(raised.value).endswith(told.format(world.place(batch=0)))
    assert f"of partition {world.name}/" in str(raised.value)
    # One of two tasks may have ended, in each attempt: always with all of its words.
    notes = set(ended.read_text().splitlines()) if ended.exists() else set()
    assert len(notes) <= 1
    assert world.rows == []
