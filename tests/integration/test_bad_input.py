"""A user's mistake ends in one clear sentence and the right status, with nothing half-written.

Mistakes that need no service are in tests/unit/test_cli_bad_input.py.
"""

from __future__ import annotations

import contextlib
import json
import re
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from kazoo.client import KazooClient
from support.runs import Launcher, Outcome
from support.tables import read_counts, read_rows, table_exists
from support.texts import create_topic, fill_topic, make_lines, produce

import txstream
from txstream.plugins.local.embedded import Services
from txstream.testing import InProcessRunner
from txstream.zookeeper import ROOT

PATIENCE = ["--connect-timeout", "3"]  # enough for a service that is there, however busy the machine


def assert_told(outcome: Outcome, status: int, *words: str) -> None:
    """Assert that the run says one sentence for people, without a traceback, with all of these words."""
    assert outcome.status == status, outcome.stderr
    assert "Traceback" not in outcome.stderr
    for word in words:
        assert word in outcome.stderr, f"{word!r} is missing in: {outcome.stderr}"


@pytest.mark.soak
def test_unreachable_services_and_a_missing_topic(
    launcher: Launcher, services: Services, tmp_path: Path, closed_port: int, unique: str
) -> None:
    address = f"127.0.0.1:{closed_port}"
    url = f"postgresql+psycopg://someone:hunter2@{address}/results"
    (tmp_path / "url").write_text(url)
    asked = {
        "zookeeper": ["--zookeeper", address],
        "kafka": ["--kafka", address, "--database", f"sqlite:///{tmp_path / 'kafka.db'}"],
        "database": ["--database-file", str(tmp_path / "url")],
        "topic": ["--database", f"sqlite:///{tmp_path / 'topic.db'}"],
        "master": ["--database", f"sqlite:///{tmp_path / 'master.db'}", "--master", f"spark://{address}"],
    }
    create_topic(services.kafka, f"{unique}-there")
    topics = {"master": f"{unique}-there"}
    *others, master = (
        launcher.word_count_arguments(f"{unique}-{name}", topics.get(name, unique), unique, *more, *PATIENCE)
        for name, more in asked.items()
    )
    ended = [*launcher.without_spark.run_together(others), launcher.run(*master)]
    told = dict(zip(asked, ended, strict=True))
    assert_told(told["zookeeper"], 1, "ZooKeeper", address, "--zookeeper")
    assert not Path(launcher.database.removeprefix("sqlite:///")).exists()
    assert_told(told["kafka"], 1, "Kafka", address, "--kafka")
    assert_told(told["database"], 1, address, "--database")
    assert "hunter2" not in told["database"].stderr + told["database"].stdout
    assert_told(told["topic"], 1, unique, "does not exist")
    assert_told(told["master"], 1, "no Spark master", f"spark://{address}", "--master")
    listed = launcher.run("topologies", "--json").json()
    assert not [one for one in listed if one["id"].startswith(unique)], "nothing is left behind"
    assert not table_exists(asked["master"][1], unique)


@pytest.mark.soak
def test_a_master_with_which_spark_does_not_start_is_told_with_sparks_reason(
    launcher: Launcher, services: Services, unique: str, closed_port: int
) -> None:
    create_topic(services.kafka, unique)
    masters: dict[str, tuple[int, Sequence[str]]] = {
        "yarn": (1, ["master 'yarn' either HADOOP_CONF_DIR or YARN_CONF_DIR must be set"]),
        f"k8s://https://127.0.0.1:{closed_port}": (1, ["KubernetesClientException", "Connection refused"]),
        "sc://127.0.0.1:15002": (2, ["Spark Connect", "no driver run Python functions"]),
        "banana": (2, ["'banana' is no master of Spark's", "spark://HOST:PORT"]),
    }
    runs = [launcher.word_count_arguments(unique, unique, unique, "--master", url) for url in masters]
    for outcome, (status, words) in zip(launcher.run_together(runs), masters.values(), strict=True):
        assert_told(outcome, status, *words)
        assert "log4j" not in outcome.stderr.splitlines()[-1]
    assert not table_exists(launcher.database, unique)


def test_a_name_that_cannot_be_resolved_is_told_at_once(launcher: Launcher, unique: str) -> None:
    endless = ["--connect-timeout", "600"]
    told = dict.fromkeys(("zookeeper", "kafka", "database"), "no-such-host.invalid:1")
    told["database"] = "postgresql+psycopg://no-such-host.invalid/results"
    runs = [
        launcher.word_count_arguments(unique, unique, unique, f"--{name}", address, *endless)
        for name, address in told.items()
    ]
    others = [
        ["topic", "create", unique, "--kafka", "no-such-host.invalid:1", *endless],
        ["topologies", "--zookeeper", "no-such-host.invalid:1", *endless],
    ]
    for outcome in launcher.without_spark.run_together([*runs, *others]):
        assert_told(outcome, 1, "no-such-host.invalid", "resolve")


def test_value_that_is_not_utf8(launcher: Launcher, services: Services, unique: str) -> None:
    create_topic(services.kafka, unique)
    produce(services.kafka, unique, ["fine words", "more words", b"caf\xe9 au lait", "last words"])
    outcome = launcher.without_spark.word_count(unique, unique, unique)
    assert_told(outcome, 1, unique, "partition 2", "offset 0", "UTF-8")
    assert read_counts(launcher.database, unique) == {}, "the batch with the bad value was not committed"


def test_state_table_of_another_topology_changed_code_and_foreign_table(
    launcher: Launcher, services: Services, unique: str
) -> None:
    """One run prepares every mismatch; none of them changes what is stored."""
    launcher = launcher.without_spark
    truth = fill_topic(services.kafka, unique, make_lines(200))
    create_topic(services.kafka, f"{unique}-2")
    assert launcher.word_count(unique, unique, unique).status == 0
    before = read_counts(launcher.database, unique)
    assert before == truth
    engine = sa.create_engine(launcher.database)
    with engine.begin() as connection:
        connection.execute(sa.text(f"CREATE TABLE {unique}_mine (word TEXT PRIMARY KEY, note TEXT)"))
    engine.dispose()

    changed = {
        (unique, unique, "transactional"): ["semantics", "opaque", "transactional"],
        (unique, f"{unique}_2", "opaque"): ["table", f"{unique}_2"],
        (f"{unique}-2", unique, "opaque"): ["topic", f"{unique}-2"],
    }
    elsewhere = ["--zookeeper", f"{services.zookeeper}/{unique}"]
    other, foreign, lost, *others = launcher.run_together(
        [
            launcher.word_count_arguments(f"{unique}-other", unique, unique),
            launcher.word_count_arguments(f"{unique}-foreign", unique, f"{unique}_mine"),
            launcher.word_count_arguments(unique, unique, unique, *elsewhere),
            *(
                launcher.word_count_arguments(unique, topic, table, "-p", f"semantics={semantics}")
                for topic, table, semantics in changed
            ),
        ]
    )
    assert_told(other, 1, unique, "belongs to", "txstream delete")
    assert_told(foreign, 1, f"{unique}_mine")
    assert_told(lost, 1, "not in ZooKeeper", "txid", "txstream delete")
    for outcome, words in zip(others, changed.values(), strict=True):
        assert_told(outcome, 1, "txstream delete", "--id", *words)

    path = f"{ROOT}/{unique}/coordinator/current"
    with contextlib.closing(KazooClient(services.zookeeper)) as client:
        client.start()
        client.set(path, b"7")
        client.stop()
    corrupt = launcher.word_count(unique, unique, unique)
    assert_told(corrupt, 1, path, f"rebuild it by `txstream recover {unique} --from-ledger`")
    listed = json.loads(launcher.run("topologies", "--json").stdout)
    (damaged,) = [one for one in listed if one["id"] == unique]
    assert path in damaged["note"]
    assert f"txstream fsck {unique}" in damaged["note"]

    assert read_counts(launcher.database, unique) == before
    assert not table_exists(launcher.database, f"{unique}_2")


USER_MODULE = """
from txstream import *


class Length(BasicBolt):
    output = "word string, n bigint"

    def __init__(self, wrong):
        self.wrong = wrong

    def execute(self, tup, collector):
        word = tup["value"]
        if self.wrong == "key":
            collector.emit([None, 1])
        elif self.wrong == "type":
            collector.emit([word, word])
        elif self.wrong == "arity":
            collector.emit([word])
        else:
            raise ValueError("cannot count " + word)


def topology(topic: str, wrong: str):
    spout = OpaqueSpout(KafkaSource(topic))
    builder = TransactionalTopologyBuilder("typed", "lines", spout, max_attempts=2)
    builder.set_bolt("length", Length(wrong)).shuffle_grouping("lines")
    state = SqlState(topic, key="word string", value="n bigint")
    builder.set_committer_bolt("store", SqlStateBolt(state)).fields_grouping("length", "word")
    return builder.build()
"""


@pytest.mark.soak
def test_a_bolt_that_raises_on_spark_is_told_with_its_tuple(
    launcher: Launcher, services: Services, tmp_path: Path, unique: str
) -> None:
    create_topic(services.kafka, unique)
    produce(services.kafka, unique, ["one", "two", "three", "four"])
    (tmp_path / "typed.py").write_text(USER_MODULE)
    outcome = launcher.run(
        *("run", "typed:topology", "--id", unique, "-p", f"topic={unique}", "-p", "wrong=raise"),
        *("--until", "caught-up"),
    )
    assert_told(outcome, 1, "length", "ValueError", "cannot count", "txid 1", "typed.py", "value=")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("raise", ["length", "ValueError", "cannot count", "txid 1", "value=", "at offset 0 of partition"]),
        ("key", ["word", "null"]),
        ("type", ["length", "'n'", "bigint"]),
        ("arity", ["length", "2 field"]),
    ],
)
def test_what_a_bolt_does_wrong_is_told(
    services: Services, sqlite_url: str, tmp_path: Path, unique: str, wrong: str, words: Sequence[str]
) -> None:
    create_topic(services.kafka, unique)
    produce(services.kafka, unique, ["one", "two", "three", "four"])
    module = types.ModuleType("typed")
    exec(USER_MODULE, module.__dict__)  # the module that the run above imports
    settings = txstream.Settings(
        zookeeper=services.zookeeper, kafka=services.kafka, database=sqlite_url, data_dir=tmp_path
    )
    running = txstream.start(
        module.topology(unique, wrong).with_id(unique),
        settings=settings,
        until="caught-up",
        runner_factory=InProcessRunner,
    )
    with pytest.raises(txstream.TxstreamError) as raised:
        running.wait(60)
    for word in words:
        assert word in str(raised.value)
    assert read_rows(sqlite_url, unique) == []


FAR_FROM_THE_SOURCE = """
from txstream import *


class Words(BasicBolt):
    output = "word string, n bigint"

    def execute(self, tup, collector):
        collector.emit([tup["value"], 1])


class Second(Words):
    def __init__(self, wrong):
        self.wrong = wrong

    def execute(self, tup, collector):
        if tup["word"] == "bad" and self.wrong == "raise":
            raise ValueError("cannot count it")
        word, n = tup["word"], tup["n"]
        if word == "bad":
            word = {"null": None, "nul": "b\\0d"}.get(self.wrong, word)
            n = {"no n": None, "too great": 2**62}.get(self.wrong, n)
        collector.emit([word, n])


def topology(topic: str, wrong: str):
    builder = TransactionalTopologyBuilder("far", "lines", OpaqueSpout(KafkaSource(topic)), max_attempts=2)
    builder.set_bolt("words", Words()).shuffle_grouping("lines")
    builder.set_bolt("second", Second(wrong), 2).fields_grouping("words", "word")
    state = SqlState(topic, key="word string", value="n bigint, most bigint")
    store = SqlStateBolt(state, n=Sum("n"), most=Max("n"))
    builder.set_committer_bolt("store", store).fields_grouping("second", "word")
    return builder.build()
"""


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [("raise", txstream.BoltError), ("null", txstream.StateValueError), ("nul", txstream.StateValueError)],
)
def test_an_error_far_from_the_source_names_the_record(
    services: Services, sqlite_url: str, tmp_path: Path, unique: str, wrong: str, kind: type[Exception]
) -> None:
    create_topic(services.kafka, unique)
    produce(services.kafka, unique, [*(f"w{number}" for number in range(62)), "bad", "after", "after"])
    module = types.ModuleType("far")
    exec(FAR_FROM_THE_SOURCE, module.__dict__)
    settings = txstream.Settings(
        zookeeper=services.zookeeper, kafka=services.kafka, database=sqlite_url, data_dir=tmp_path
    )
    running = txstream.start(
        module.topology(unique, wrong).with_id(unique),
        settings=settings,
        until="caught-up",
        runner_factory=InProcessRunner,
    )
    with pytest.raises(kind) as raised:
        running.wait(60)
    assert str(raised.value).endswith(f"; the record is at offset 15 of partition {unique}/2")
    assert read_rows(sqlite_url, unique) == []


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("no n", "column 'most' is NOT NULL and got only nulls"),
        ("too great", "cannot hold 4611686018427387904 + 4611686018427387904"),
    ],
)
def test_an_error_that_only_the_commit_finds_names_the_record(
    services: Services, sqlite_url: str, tmp_path: Path, unique: str, wrong: str, told: str
) -> None:
    create_topic(services.kafka, unique)
    words = [f"w{number}" for number in range(62)]
    produce(services.kafka, unique, [*words, "bad", "after", "after"])
    module = types.ModuleType("far")
    exec(FAR_FROM_THE_SOURCE, module.__dict__)
    settings = txstream.Settings(
        zookeeper=services.zookeeper, kafka=services.kafka, database=sqlite_url, data_dir=tmp_path
    )

    def run() -> None:
        txstream.start(
            module.topology(unique, wrong).with_id(unique),
            settings=settings,
            until="caught-up",
            runner_factory=InProcessRunner,
        ).wait(180)

    def bad() -> list[dict[str, Any]]:
        return [row for row in read_rows(sqlite_url, unique) if row["word"] == "bad"]

    offset, before = 15, []
    if wrong == "too great":  # what is there and what comes are each fine
        run()
        offset, before = 31, bad()
        assert before
        produce(services.kafka, unique, [*words, "bad", "after", "after"])
    with pytest.raises(txstream.StateValueError, match=re.escape(told)) as raised:
        run()
    assert str(raised.value).endswith(f"; the record is at offset {offset} of partition {unique}/2")
    assert bad() == before
