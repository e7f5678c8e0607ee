"""Storm's transactional topology on Spark, and as a user runs it over Kafka."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from support.kafka_topics import Topics
from support.row_files import RowFiles
from support.runs import Launcher
from support.storm import (
    IN_COMMIT,
    IN_PROCESSING,
    Row,
    all_rows,
    check_tables,
    emitted,
    expected,
    joined,
)
from support.tables import read_counts, read_rows

from txstream.api.spouts import OpaqueSpout
from txstream.api.topology import Phase
from txstream.core.fault_points import Point
from txstream.examples.storm_counts import FIELDS, graph
from txstream.plugins.local.embedded import Services
from txstream.testing import Attempt, AttemptState, TopologyTest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Half of a partition's records make a batch, which is worth two Spark tasks.
HALF = 1340
RECORDS = {f"p{p}": [(f"w{i * (p + 1) % 11}-{p}", i % 7) for i in range(2 * HALF)] for p in range(3)}


def test_phases_replays_crashes_and_a_partition_that_is_away(spark: SparkSession, tmp_path: Path) -> None:
    source = RowFiles(tmp_path / "records", FIELDS, RECORDS, max_records_per_partition=HALF)

    def held(attempt: Attempt) -> list[Row]:
        """Return the records of an attempt, by the ranges that it holds."""
        return [row for name, span in attempt.partitions.items() for row in source.rows(name, span)]

    with TopologyTest(graph(OpaqueSpout(source)), spark=spark) as test:
        test.process(2)
        first = test.attempts(1)[0]
        wanted = expected(held(first))
        assert emitted(first) == {
            **{name: wanted[name] for name in IN_PROCESSING},
            **dict.fromkeys(IN_COMMIT),
        }
        assert {call.phase for call in test.calls()} == {Phase.PROCESS}
        assert {call.task for call in test.calls(1, component="sum")} == {0, 1}

        test.commit(1)
        failed = test.fail(2, at=Point.INSIDE_COMMIT)
        assert emitted(failed) == expected(held(failed)), "its committers ran before it failed"
        check_tables(test, held(first))
        source.hide("p2")
        replayed = test.commit(2)
        assert (failed.state, replayed.state) == (AttemptState.FAILED, AttemptState.COMMITTED)
        assert (set(failed.partitions), set(replayed.partitions)) == ({"p0", "p1", "p2"}, {"p0", "p1"})
        check_tables(test, [row for attempt in (first, replayed) for row in held(attempt)])

        more = {"p3": [("late", 1), ("late", 2)]}
        source.append("p3", *more["p3"])
        source.show("p2")
        test.process(3)
        test.crash()  # this also drops what was kept for the commit of txid 3
        test.restart()
        test.run()
        for txid in range(1, test.current):
            attempt = test.attempts(txid)[-1]
            assert emitted(attempt) == expected(held(attempt))
        check_tables(test, all_rows(joined(RECORDS, more)))
        committed = [
            call.attempt.txid
            for call in test.calls()
            if call.phase is Phase.COMMIT and call.attempt == test.attempts(call.attempt.txid)[-1].id
        ]
        assert committed == sorted(committed)


def test_over_kafka_as_a_user_runs_it(
    services: Services, launcher: Launcher, unique: str, sqlite_url: str
) -> None:
    rows = [(f"w{i % 9}", i % 5) for i in range(120)]
    topics = Topics(services.kafka)
    topics.create(unique, 3)
    for number in range(3):
        values = [json.dumps({"word": word, "amount": n}).encode() for word, n in rows[number::3]]
        topics.send(unique, values, number)
    outcome = launcher.without_spark.run(
        *("run", "txstream.examples.storm_counts:topology", "--id", unique, "-p", f"topic={unique}"),
        *("-p", f"prefix={unique}", "-p", "max_records_per_partition=10", "--until", "caught-up", "--json"),
    )
    assert outcome.status == 0, outcome.stderr
    wanted = expected(rows)
    assert read_counts(sqlite_url, f"{unique}_counts") == dict(wanted["count"])
    sums = {row["word"]: row["amount"] for row in read_rows(sqlite_url, f"{unique}_sums")}
    assert sums == dict(wanted["sum"])
    totals = {row["counter"]: row["n"] for row in read_rows(sqlite_url, f"{unique}_totals")}
    assert totals == {"global": 120, "gcommit": 120}
