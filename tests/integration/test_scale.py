"""`txstream scale` and `txstream status ID --tasks`, as an operator uses them on a topology on Spark."""

from __future__ import annotations

import signal
import socket
from typing import Any

import pytest
from support.runs import WORD_COUNT, Launcher, RunningCommand
from support.tables import read_counts
from support.texts import fill_topic, make_lines, produce

from txstream.core.waits import wait_until
from txstream.plugins.local.embedded import Services
from txstream.zookeeper import Paths, ZooKeeper

# Enough for a batch that is worth two Spark tasks.
LINES = 12_000
DEADLINE_SECONDS = 120


def until_counted(launcher: Launcher, run: RunningCommand, table: str, truth: dict[str, int]) -> None:
    def is_counted() -> bool:
        assert run.process.poll() is None, run.wait().stderr
        return read_counts(launcher.database, table) == truth

    assert wait_until(is_counted, DEADLINE_SECONDS), "the totals do not come to what was produced"


def shown_tasks(launcher: Launcher, topology_id: str, after_txid: int = 0) -> dict[str, Any]:
    """Return the first assignment of a later txid; assignments are stored every ten seconds."""
    found: list[dict[str, Any]] = []

    def is_shown() -> bool:
        outcome = launcher.run("status", topology_id, "--tasks", "--json")
        assert outcome.status == 0, outcome.stderr
        assignment = outcome.json()["assignment"]
        if assignment is not None and assignment["txid"] > after_txid:
            found.append(assignment)
        return bool(found)

    assert wait_until(is_shown, DEADLINE_SECONDS), "no assignment is stored"
    return found[0]


def slots_of(assignment: dict[str, Any], component: str) -> set[int]:
    return {task["slot"] for task in assignment["tasks"] if task["component"] == component}


@pytest.mark.soak
def test_a_running_topology_is_scaled_and_shown_and_counts_stay_exact(
    launcher: Launcher, services: Services, unique: str
) -> None:
    lines = make_lines(LINES)
    truth = fill_topic(services.kafka, unique, lines, partitions=2)
    conf = [argument for setting in launcher.spark_conf for argument in ("--spark-conf", setting)]
    run = launcher.start(
        *("run", WORD_COUNT, "--id", unique, "-p", f"topic={unique}", "-p", f"table={unique}"),
        *("-p", f"max_records_per_partition={LINES // 2}", "--json", *conf),
    )
    try:
        run.wait_for_line("is running")  # by then the table exists
        until_counted(launcher, run, unique, truth)
        first = shown_tasks(launcher, unique)
        assert {task["component"] for task in first["tasks"]} == {"lines", "split", "count", "store"}
        assert slots_of(first, "count") == {0, 1}
        assert {task["host"] for task in first["tasks"]} == {socket.gethostname()}
        assert sum(task["tuples"] for task in first["tasks"] if task["component"] == "lines") == LINES

        unknown, many, granted = launcher.run_together(
            [
                ["scale", unique, "cuont=1"],
                ["scale", unique, "lines=3"],
                ["scale", unique, "count=1", "--json"],
            ]
        )
        assert unknown.status == 2
        assert "no component 'cuont'" in unknown.stderr
        assert many.status == 2
        assert "at most its parallelism of 2" in many.stderr
        assert granted.status == 0, granted.stderr
        assert granted.json()["applied"] is True
        assert granted.json()["slots"] == {"count": {"before": 2, "asked": 1}}

        produce(services.kafka, unique, lines, partitions=2)
        truth = {word: 2 * count for word, count in truth.items()}
        until_counted(launcher, run, unique, truth)
        scaled = shown_tasks(launcher, unique, after_txid=first["txid"])
        assert slots_of(scaled, "count") == {0}
        assert {task["task"] for task in scaled["tasks"] if task["component"] == "count"} == {0, 1}
        run.process.send_signal(signal.SIGTERM)
        outcome = run.wait()
    finally:
        run.kill()
    assert outcome.status == 0, outcome.stderr
    report = outcome.json()
    assert (report["records"], report["failed_attempts"]) == (2 * LINES, 0)
    assert read_counts(launcher.database, unique) == truth


def test_unreadable_slots_end_a_start(launcher: Launcher, services: Services, unique: str) -> None:
    fill_topic(services.kafka, unique, make_lines(10))
    assert launcher.without_spark.word_count(unique, unique, unique).status == 0
    with ZooKeeper(services.zookeeper) as zookeeper:
        zookeeper.client.create(Paths(zookeeper.root, unique).answered, b"three")
    outcome = launcher.without_spark.word_count(unique, unique, unique)
    assert outcome.status == 1
    assert f"/{unique}/requests/answered" in outcome.stderr
