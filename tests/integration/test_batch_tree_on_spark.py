"""`txstream show ID TXID --tree`: the tasks of an open batch, finished and missing. And its story."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from support.kafka_topics import wait_until
from support.runs import Launcher
from support.texts import create_topic, make_lines, produce

from txstream.plugins.local.embedded import Services

MODULE = """
import pathlib
import time

from txstream import *


class Hold(BatchBolt):
    output = "word string"

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def execute(self, tup):
        self.collector.emit([tup["value"]])

    def finish_batch(self):
        if self.context.task_index == 1:
            (self.folder / "entered").touch()
            while (self.folder / "hold").exists():
                time.sleep(0.01)


def topology(topic: str, folder: str):
    source = KafkaSource(topic, max_records_per_partition=5000)
    builder = TransactionalTopologyBuilder("held", "lines", OpaqueSpout(source), 2, max_spout_pending=1)
    builder.set_bolt("hold", Hold(folder), 2).shuffle_grouping("lines")
    builder.set_bolt("count", CountBolt("word"), 2).fields_grouping("hold", "word")
    state = SqlState(topic, key="word string", value="n bigint")
    builder.set_committer_bolt("store", SqlStateBolt(state, n=Sum("n")), 2).fields_grouping("count", "word")
    return builder.build()
"""


@pytest.mark.soak
@pytest.mark.parametrize("on_spark", [False, True])
def test_an_open_batch_tells_which_task_is_missing(
    launcher: Launcher, services: Services, tmp_path: Path, unique: str, on_spark: bool
) -> None:
    create_topic(services.kafka, unique)
    produce(services.kafka, unique, make_lines(12_000))
    (tmp_path / "held.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "hold").touch()
    runs = launcher if on_spark else launcher.without_spark
    running = runs.start(
        *("run", "held:topology", "--id", unique, "-p", f"topic={unique}", "-p", f"folder={tmp_path}"),
        *("--spark-conf", "spark.driver.memory=512m"),
    )

    def hold() -> dict[str, object]:
        told = launcher.run("show", unique, "1", "--tree", "--json").json()
        assert told["state"] == "processing"
        found: dict[str, object] = told["components"]["hold"]
        return found

    try:
        wait_until((tmp_path / "entered").exists, "the bolt to be called", 120)
        wait_until(lambda: hold()["missing"] == [1], "task 1 alone to be missing", 60)
        assert hold() == {"phase": "process", "finished": 1, "tasks": 2, "missing": [1]}
        shown = launcher.run("show", unique, "1", "--tree").stdout
        assert "lines" in shown
        assert "2 of 2" in shown
        missing = launcher.run("show", unique, "7", "--tree")
        assert missing.status == 2
        assert "txid 7 is not open" in missing.stderr
        story = launcher.run("show", unique, "1", "--story").stdout
        assert "EmitBatch txid 1 attempt 1.1" in story
        assert "EmitCommit" not in story
        (tmp_path / "hold").unlink()
        wait_until(lambda: "committed" in launcher.run("show", unique, "1").stdout, "the commit", 60)
        after = launcher.run("show", unique, "1", "--tree")
        assert after.status == 0, after.stderr
        assert "committed\nall of its tasks have finished: " in after.stdout
        running.process.send_signal(signal.SIGTERM)
        assert running.wait().status == 0
        told = launcher.run("show", unique, "1", "--tree", "--json").json()
        assert told["state"] == "committed"
        assert f"finished: {told['tuples']:,} tuples, {told['keys']:,} keys written" in after.stdout
    finally:
        running.kill()
