"""Tracked tuples on Spark: trees over stages, a worker process that dies, and a killed executor."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.kafka_topics import wait_until
from support.runs import Launcher
from support.spark_standalone import SparkStandalone
from support.tracked import Dies, Lines, RichSplit, Split, words
from support.tracked_files import MODULE

from txstream.testing import TopologyTest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("split", [Split(), RichSplit()])
def test_trees_over_two_stages_are_acked_as_without_spark(
    spark: SparkSession, split: Split | RichSplit
) -> None:
    lines = [f"a{number} b{number % 3} c" for number in range(40)]
    with TopologyTest(words(lines, split, ackers=2), width=2, spark=spark) as test:
        for _ in range(20):
            test.loop.spouts[0].next_tuple()
        test.run()
        spout: Lines = test.spout("lines")
        assert sorted(spout.acked) == list(range(40))
        assert spout.failed == []
        expected = sorted(word.upper() for line in lines for word in line.split())
        assert sorted(word for (word,) in test.emitted("upper")) == expected


def test_a_task_whose_process_dies_fails_its_trees_and_they_come_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    file = tmp_path / "die"
    file.touch()
    made = words(["a b", "c"], last=Dies(file))
    with TopologyTest(made, width=2, spark=spark) as test:
        test.run()
        spout: Lines = test.spout("lines")
        assert not file.exists()
        assert spout.failed == [0]
        assert sorted(spout.acked) == [0, 1]
        assert sorted(test.emitted("upper")) == [("A",), ("B",), ("C",)]


@pytest.mark.soak
def test_an_executor_is_killed_and_every_message_is_acked(
    launcher: Launcher, cluster: SparkStandalone, tmp_path: Path, unique: str
) -> None:
    (tmp_path / "queue").mkdir()
    (tmp_path / "tracked_files.py").write_text(MODULE, encoding="utf-8")
    for flag in ("die", "executor"):
        (tmp_path / flag).touch()
    for word in ("a", "b", "c"):
        (tmp_path / "queue" / word).touch()
    running = launcher.start(
        *("run", "tracked_files:topology", "-p", f"folder={tmp_path}", "--id", unique),
        *("--master", cluster.url, "--spark-conf", "spark.executor.memory=512m"),
        *("--spark-conf", "spark.executor.cores=1", "--session-timeout", "2"),
        PYSPARK_PYTHON=sys.executable,
    )
    try:
        wait_until(lambda: not list((tmp_path / "queue").iterdir()), "every message to be acked", 200)
        running.process.send_signal(signal.SIGTERM)
        ended = running.wait()
    finally:
        running.kill()
    assert ended.status == 0, ended.stderr
    assert not (tmp_path / "die").exists()
    assert {"a", "b", "c"} <= set((tmp_path / "words").read_text(encoding="utf-8").split())
    assert (tmp_path / "closed").read_text(encoding="utf-8").split() == ["0"]
