"""`txstream compare` over real services: what each semantics is certain to show for each kind of fault."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from kafka import KafkaAdminClient
from support.runs import Launcher
from support.texts import produce

from txstream.plugins.local.embedded import Services
from txstream.zookeeper import ZooKeeper

EXACT = {"exact": True, "wrong_rows": 0}
COUNT = "word_count.n"


def compare(launcher: Launcher, *arguments: str, status: int = 0) -> dict[str, Any]:
    done = launcher.run("compare", "--records", "2000", "--json", *arguments)
    assert done.status == status, done.stderr
    found: dict[str, Any] = done.json()
    return found


def is_exact(found: dict[str, Any]) -> bool:
    return {name: found[name] for name in EXACT} == EXACT


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("batch", marks=pytest.mark.soak),
        "partition",
        pytest.param("crash", marks=pytest.mark.soak),
    ],
)
def test_each_semantics_shows_what_it_does(launcher: Launcher, kind: str) -> None:
    found = compare(launcher, "--faults", kind)
    opaque, transactional, neither = (
        found["semantics"][name] for name in ("opaque", "transactional", "non-transactional")
    )
    every = (opaque, transactional, neither)
    assert all(one["faults_that_never_came"] == [] for one in every)
    assert {one["records"] for one in every} == {2_000}
    assert is_exact(opaque)
    assert is_exact(transactional)
    assert opaque["columns"][COUNT]["total"] == found["true_totals"][COUNT]

    dies = kind == "crash"
    assert [one["drivers"] for one in every] == [1 + dies] * 3
    assert is_exact(neither) is not dies
    count = neither["columns"][COUNT]
    assert (count["doubled"] > 0, count["lost"]) == (dies, 0)

    assert [one["failed_attempts"] for one in every] == [0 if dies else 1] * 3

    is_away = kind == "partition"
    # One partition's records in one batch, or in two where the batch behind was planned as well.
    share = 2_000 // 64
    moved = {share, 2 * share} if is_away else {0}
    assert opaque["moved_tuples"] in moved
    assert neither["moved_tuples"] in moved
    assert transactional["moved_tuples"] == 0
    assert opaque["batches"] == neither["batches"]
    assert (transactional["stalled_seconds"] >= 3.0) is is_away
    waited = transactional["outage_seconds"]
    assert (waited >= 2.9) is is_away
    worked = transactional["seconds"] - waited
    assert transactional["records_per_second"] == pytest.approx(2_000 / worked, rel=0.05)


@pytest.mark.soak
def test_nothing_is_left_unless_it_is_kept(launcher: Launcher, services: Services) -> None:
    def left() -> tuple[set[str], set[str], set[str]]:
        engine = sa.create_engine(launcher.database)
        tables = {name for name in sa.inspect(engine).get_table_names() if name.startswith("compare_")}
        engine.dispose()
        admin = KafkaAdminClient(bootstrap_servers=services.kafka)
        topics = {name for name in admin.list_topics() if name.startswith("txstream-compare-")}
        admin.close()
        with ZooKeeper(services.zookeeper) as zookeeper:
            return tables, topics, {name for name in zookeeper.topologies() if name.startswith("compare-")}

    before = left()
    found = compare(launcher, "--faults", "none", status=1)
    assert all(map(is_exact, found["semantics"].values()))
    assert found["nothing_shown"] == "no fault struck the opaque run"
    assert left() == before
    compare(launcher, "--faults", "batch", "--keep", "--html", "page.html")
    page = (launcher.directory / "page.html").read_text(encoding="utf-8")
    assert "opaque: " in page
    assert "txstream compare --records 2000 --faults batch --html page.html<" in page
    assert [len(now - then) for now, then in zip(left(), before, strict=True)] == [3, 1, 3]


_OWN = """
import time

from txstream import BasicBolt, Count, Decode, KafkaSource
from txstream import SqlState, SqlStateBolt, TransactionalTopologyBuilder
from txstream.examples.word_count import SPOUTS


class Minute(BasicBolt):
    output = "user string, minute bigint"

    def __init__(self, wrong):
        self.wrong = wrong

    def execute(self, tup, collector):
        if tup["user"] is not None:
            at = time.time() if self.wrong else tup["timestamp"].timestamp()
            collector.emit((tup["user"], int(at // 60)))


def topology(topic, semantics="opaque", wrong=False):
    source = KafkaSource(
        topic,
        decode=Decode("json", "user string, price decimal(9,2)"),
        kafka_columns=["timestamp"],
        max_records_per_partition=10,
    )
    builder = TransactionalTopologyBuilder("own", "rows", SPOUTS[semantics](source))
    builder.set_bolt("minute", Minute(wrong), 2).shuffle_grouping("rows")
    state = SqlState("minutes", key="user string, minute bigint", value="n bigint")
    builder.set_bolt("store", SqlStateBolt(state, n=Count())).fields_grouping("minute", "user")
    return builder.build()
"""


@pytest.mark.soak
def test_the_truth_of_a_topic_of_ones_own_is_read_by_another_reader(
    launcher: Launcher, services: Services, unique: str
) -> None:
    (launcher.directory / "own.py").write_text(_OWN, encoding="utf-8")
    topic = f"own-{unique}"
    assert launcher.run("topic", "create", topic, "--partitions", "4").status == 0
    rows = [f'{{"user": "u{n % 7}", "price": {n}.25}}' for n in range(1000)]
    produce(services.kafka, topic, rows)
    found = compare(launcher, "own:topology", "--topic", topic, "--faults", "crash")
    assert found["truth"] == "kafka-python's consumer and a plain fold of its records"
    assert found["true_totals"] == {"minutes.n": 1000}
    assert is_exact(found["semantics"]["opaque"])
    done = launcher.run("compare", "own:topology", "--topic", topic, "-p", "wrong=true", "--faults", "crash")
    assert done.status == 1
    assert "component 'minute' emitted other tuples for the same input: (u" in done.stderr
    assert "it reads a clock, chance, a global or the order of a set" in done.stderr
