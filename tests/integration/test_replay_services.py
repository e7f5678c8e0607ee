"""`replay` and `why` over Kafka: beside a running topology, on Spark, and over ranges that are gone."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from kafka import KafkaProducer
from support.guide import DOCS, load
from support.kafka_topics import Topics, wait_until
from support.runs import Launcher
from support.texts import fill_topic, make_lines

import txstream
from txstream import inspect
from txstream.engine.spark.spark_runner import SparkRunner
from txstream.examples import word_count
from txstream.plugins.audit import dry_runs as dry
from txstream.plugins.local.embedded import Services
from txstream.testing import InProcessRunner
from txstream.zookeeper import ZooKeeper


class WithoutTheFirstWord(word_count.SplitLine):
    """Changed code."""

    def execute(self, tup: Any, collector: Any) -> None:
        for word in tup["value"].split()[1:]:
            collector.emit((word,))


class Desk:
    """The word count over one topic of lines, committed in batches of 40 records a partition."""

    def __init__(self, services: Services, url: str, folder: Path, name: str) -> None:
        self.services, self.name = services, name
        self.settings = txstream.Settings(
            zookeeper=services.zookeeper, kafka=services.kafka, database=url, data_dir=folder
        )
        self.lines = make_lines(200)
        self.truth = Counter(fill_topic(services.kafka, name, self.lines, partitions=2))

    def topology(self, semantics: Any = "opaque") -> txstream.Topology:
        made = word_count.topology(self.name, semantics, self.name, max_records_per_partition=40)
        return made.with_id(self.name)

    def start(self, semantics: Any = "opaque", **until: Any) -> txstream.RunningTopology:
        return txstream.start(
            self.topology(semantics), settings=self.settings, runner_factory=InProcessRunner, **until
        )

    def znodes(self) -> dict[str, tuple[Any, int]]:
        """Return the topology's znodes, with their versions."""
        with ZooKeeper(self.services.zookeeper) as zookeeper:
            found: dict[str, tuple[Any, int]] = {}

            def walk(path: str) -> None:
                data, stat = zookeeper.client.get(path)
                found[path] = data, stat.version
                for child in zookeeper.client.get_children(path):
                    walk(f"{path}/{child}")

            walk(f"{zookeeper.root}/{self.name}")
            return found


@pytest.fixture
def desk(services: Services, tmp_path: Path, unique: str, sqlite_url: str) -> Desk:
    return Desk(services, sqlite_url, tmp_path, unique)


@pytest.mark.parametrize(
    ("semantics", "database"),
    [("opaque", "sqlite_url"), ("opaque", "postgres_url"), ("transactional", "postgres_url")],
)
def test_a_committed_batch_is_the_same_and_changed_code_is_not(
    services: Services,
    tmp_path: Path,
    unique: str,
    semantics: Any,
    database: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk(services, request.getfixturevalue(database), tmp_path, unique)
    desk.start(semantics, until="caught-up").wait(60)
    before = desk.znodes(), inspect.batches(desk.name, desk.settings)
    found = inspect.replay(desk.topology(semantics), 1, desk.settings, last=3, into=f"{desk.name}_deltas")
    assert found.same
    assert [table.same for table in found.tables] == [True] * 3
    assert sum(batch.records for batch in found.batches) == len(desk.lines)
    assert (desk.znodes(), inspect.batches(desk.name, desk.settings)) == before
    monkeypatch.setattr(word_count, "SplitLine", WithoutTheFirstWord)
    changed = inspect.replay(desk.topology(semantics), 3, desk.settings)
    assert not changed.same
    assert "n" in changed.tables[0].differs
    if semantics == "opaque":
        assert changed.tables[0].untold == 0
        for change in changed.tables[0].changes:
            assert change.written is not None
            assert change.written["n"] == desk.truth[change.key["word"]]
            assert change.replayed is None or change.replayed["n"] < change.written["n"]


def test_beside_a_running_topology(desk: Desk) -> None:
    with desk.start() as running:
        wait_until(lambda: running.progress.committed_txid >= 3, "three batches are committed")
        assert inspect.replay(desk.topology(), 1, desk.settings, last=3).same
        producer = KafkaProducer(bootstrap_servers=desk.services.kafka)
        producer.send(desk.name, b"one more", partition=0)
        producer.flush()
        producer.close()
        wait_until(lambda: running.progress.committed_txid >= 4, "the leader goes on")
        assert running.progress.failed_attempts == 0
        found = inspect.why(desk.topology(), desk.name, ["more"], desk.settings)
        assert [(part.txid, part.partition, part.delta) for part in found.parts] == [
            (4, f"{desk.name}/0", {"n": 1})
        ]
        assert found.is_complete


def test_every_record_behind_a_count(desk: Desk) -> None:
    desk.start(until="caught-up").wait(60)
    word = desk.truth.most_common()[len(desk.truth) // 2][0]
    found = inspect.why(desk.topology(), desk.name, [word], desk.settings, limit=500)
    assert found.is_complete
    lines = inspect.replay(desk.topology(), 1, desk.settings, last=3, component="lines").tuples
    assert lines is not None
    expected = Counter(
        {
            (f"{row['topic']}/{row['partition']}", row["offset"]): row["value"].split().count(word)
            for row in lines.to_pylist()
            if word in row["value"].split()
        }
    )
    assert Counter({(p.partition, p.offset): p.delta["n"] for p in found.parts}) == expected
    assert expected.total() == desk.truth[word]


@pytest.mark.parametrize("on_data_loss", ["fail", "skip"])
def test_a_range_that_is_gone_is_data_lost_with_its_offsets(
    desk: Desk, on_data_loss: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the source would go on after a gap: with other records it would be no replay."""
    desk.start(until="caught-up").wait(60)
    with Topics(desk.services.kafka) as topics:
        topics.delete_before(desk.name, 1, 50)
    source = txstream.KafkaSource
    monkeypatch.setattr(word_count, "KafkaSource", lambda *a, **k: source(*a, **k, on_data_loss=on_data_loss))
    with pytest.raises(txstream.DataLostError) as told:
        inspect.replay(desk.topology(), 1, desk.settings, last=3)
    assert f"txid 1 cannot be replayed: partition {desk.name}/1" in str(told.value)
    assert "from offset 0 to 40" in str(told.value)
    with pytest.raises(txstream.DataLostError, match="from offset 40 to 80"):
        inspect.replay(desk.topology(), 2, desk.settings)
    assert inspect.replay(desk.topology(), 3, desk.settings).same
    word = desk.truth.most_common(1)[0][0]
    found = inspect.why(desk.topology(), desk.name, [word], desk.settings, limit=10_000, exact=False)
    assert not found.is_complete
    assert {part.txid for part in found.parts} == {3}
    assert "of earlier batches nothing is known: txid 2 cannot be replayed" in found.notes[-1]


def test_on_spark_it_is_the_same(desk: Desk, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batches were committed without Spark; several jobs run at once."""
    desk.start(until="caught-up").wait(60)

    def on_shared_spark(topology: Any, settings: Any, plan: Any, stack: Any) -> SparkRunner:
        runner = SparkRunner(spark.sparkContext, plan)
        stack.callback(runner.close)
        return runner

    monkeypatch.setattr(dry, "_on_spark", on_shared_spark)
    found = inspect.replay(desk.topology(), 1, desk.settings, last=3, component="count", on_spark=True)
    assert found.same
    word = desk.truth.most_common(1)[0][0]
    parts = inspect.why(desk.topology(), desk.name, [word], desk.settings, limit=5, on_spark=True).parts
    assert len(parts) == 5


@pytest.mark.soak
def test_the_flag_master_runs_it_on_spark(launcher: Launcher, unique: str) -> None:
    """It runs in a Spark of its own; what Java prints goes into a log. The code is what ran here before."""
    fill_topic(launcher.services.kafka, unique, make_lines(40), partitions=2)
    ran = launcher.without_spark.word_count(unique, unique, unique)
    assert ran.status == 0, ran.stderr
    done = launcher.run("replay", unique, "1", "--json", "--master", "local[2]")
    assert done.status == 0, done.stderr
    assert done.json()["same"]
    assert done.stderr.splitlines() == [
        "code: txstream.examples.word_count:topology, as it was last run here (--topology for other code)"
    ]
    assert list((launcher.directory / ".txstream" / "logs").glob("spark-replay-*.log"))


def test_the_guides_code_runs(
    services: Services,
    sqlite_url: str,
    tmp_path: Path,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    zookeeper = f"{services.zookeeper}/{unique}"
    for name, value in (("ZOOKEEPER", zookeeper), ("KAFKA", services.kafka), ("DATABASE", sqlite_url)):
        monkeypatch.setenv(f"TXSTREAM_{name}", value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(word_count.topology, "__defaults__", (unique, "opaque", "word_count", 40, 2, 2, None))
    monkeypatch.setattr(word_count, "SplitLine", word_count.SplitLine)
    fill_topic(services.kafka, unique, ["the cat", "the dog"] * 60, partitions=2)
    txstream.start(word_count.topology(), until="caught-up", runner_factory=InProcessRunner).wait(60)
    guide = load(DOCS / "replay.md", tmp_path)
    out = capsys.readouterr().out
    assert "1 word_count True" in out
    assert len(guide.found.parts) == 3


@pytest.mark.timeout(180)
def test_who_waits_for_a_record_sees_its_effect_as_soon_as_the_wait_ends(
    services: Services, tmp_path: Path, unique: str, postgres_url: str
) -> None:
    """The wait begins before the record is there, while nothing runs; the tables are read without us."""
    desk = Desk(services, postgres_url, tmp_path, unique)
    desk.start(until="caught-up").wait(60)
    (place,) = {
        one.end for one in inspect.batch(unique, 3, desk.settings).ranges if one.partition.endswith("0")
    }
    told: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        waited = pool.submit(
            inspect.wait_for, unique, unique, 0, place, desk.settings, timeout_seconds=90, told=told.append
        )
        wait_until(lambda: bool(told), "it waits")
        producer = KafkaProducer(bootstrap_servers=services.kafka)
        sent = producer.send(unique, b"waitedfor", partition=0).get(30)
        producer.close()
        assert not waited.done()
        with desk.start():
            found = waited.result(90)
            with psycopg.connect(postgres_url.replace("postgresql+psycopg", "postgresql")) as connection:
                rows = connection.execute(f"SELECT n, txid FROM {unique} WHERE word = 'waitedfor'").fetchall()
    assert (sent.offset, found.outcome) == (place, "committed")
    assert rows == [(1, found.txid)]
    assert len(told) == 1
    assert f"which is at offset {place} there as of txid 3" in told[0]
