"""A Spark standalone cluster whose workers do not have txstream: the framework is shipped with the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.runs import Launcher
from support.tables import read_counts, table_exists
from support.texts import fill_topic, make_lines

from txstream.embedded import Services, SparkStandalone

USER_MODULE = """
from txstream import BasicBolt, CountBolt, KafkaSource, OpaqueSpout, SqlState, SqlStateBolt
from txstream import TransactionalSpout, TransactionalTopologyBuilder


class Words(BasicBolt):
    output = "word string"

    def execute(self, tup, collector):
        for word in tup["value"].split():
            collector.emit([word])


def topology(topic: str, table: str, semantics: str = "opaque"):
    spout = {"opaque": OpaqueSpout, "transactional": TransactionalSpout}[semantics]
    source = KafkaSource(topic, max_records_per_partition=1000)
    builder = TransactionalTopologyBuilder("mine", "lines", spout(source), parallelism=2)
    builder.set_bolt("words", Words(), parallelism=2).shuffle_grouping("lines")
    builder.set_bolt("count", CountBolt("word"), parallelism=2).fields_grouping("words", "word")
    state = SqlState(table, key="word string", value="n bigint")
    builder.set_committer_bolt("store", SqlStateBolt(state), 2).fields_grouping("count", "word")
    return builder.build()
"""


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with what executors need (pyarrow, kafka-python, a CRC) and without txstream."""
    directory = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(directory, symlinks=True, with_pip=True)
    python = directory / "bin" / "python"
    subprocess.run(
        [
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "pyarrow",
            "kafka-python",
            "crc32c",
        ],
        check=True,
    )
    missing = subprocess.run([python, "-I", "-c", "import txstream"], capture_output=True, check=False)
    assert missing.returncode != 0, "the workers' interpreter must not have txstream"
    return python


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, bare_python: Path) -> Iterator[SparkStandalone]:
    with SparkStandalone(tmp_path_factory.mktemp("cluster"), workers=2) as running:
        yield running


@pytest.mark.parametrize(
    ("semantics", "victim"), [("transactional", "executor"), ("opaque", "worker daemon")]
)
@pytest.mark.timeout(300)
def test_exact_with_a_process_of_the_cluster_killed(
    launcher: Launcher,
    services: Services,
    cluster: SparkStandalone,
    bare_python: Path,
    unique: str,
    tmp_path: Path,
    semantics: str,
    victim: str,
) -> None:
    truth = fill_topic(services.kafka, unique, make_lines(160_000))
    (tmp_path / "mine.py").write_text(USER_MODULE)
    framework = tmp_path / "framework.zip"
    assert launcher.run("package", "--out", str(framework)).status == 0
    command = launcher.start(
        *("run", "mine:topology", "--id", unique, "-p", f"topic={unique}", "-p", f"table={unique}"),
        *("-p", f"semantics={semantics}", "--until", "caught-up", "--json"),
        *("--master", cluster.url, "--py-files", str(framework)),
        *("--spark-conf", "spark.executor.memory=512m", "--spark-conf", "spark.executor.cores=1"),
        PYSPARK_PYTHON=str(bare_python),
    )
    try:
        wait_for_first_batch(launcher.database, unique)
        assert sum(read_counts(launcher.database, unique).values()) < sum(truth.values())
        if victim == "executor":
            os.kill(cluster.executor_pids()[0], signal.SIGKILL)
        else:
            cluster.kill_worker(1)
        assert command.process.poll() is None, "it was killed too late"
        finished = command.wait(180)
    finally:
        command.kill()
    assert finished.status == 0, finished.stderr
    assert read_counts(launcher.database, unique) == truth


def wait_for_first_batch(url: str, table: str) -> None:
    tick = threading.Event()
    for _ in range(1800):
        if table_exists(url, table) and read_counts(url, table):
            return
        tick.wait(0.05)
    raise AssertionError("no batch was committed within 90 s")


def test_interpreter_of_the_tests_has_txstream() -> None:
    found = subprocess.run([sys.executable, "-I", "-c", "import txstream"], check=False)
    assert found.returncode == 0
