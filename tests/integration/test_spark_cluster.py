"""A Spark standalone cluster whose workers do not have txstream: the framework is shipped with the run.

While a topology runs on it, these are killed: an executor, a worker daemon with its executor, the master
alone, and at last everything. That is why this file comes after others that use the cluster.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from support.bare_python import make_bare_python
from support.kafka_topics import wait_until
from support.runs import Launcher, RunningCommand
from support.spark_standalone import SparkStandalone
from support.tables import read_counts, table_exists
from support.texts import count_words, create_topic, make_lines, produce

from txstream.plugins.local.embedded import Services

USER_MODULE = """
import os

from txstream import BasicBolt, CountBolt, KafkaSource, OpaqueSpout, SqlState, SqlStateBolt
from txstream import TransactionalSpout, TransactionalTopologyBuilder


class Words(BasicBolt):
    output = "word string"

    def execute(self, tup, collector):
        if os.environ["FOR_WORKERS"] != "yes":
            raise ValueError("the workers' environment is not the executors'")
        for word in tup["value"].split():
            collector.emit([word])


def topology(
    topic: str,
    table: str,
    semantics: str = "opaque",
    driver_commit_rows: int | None = None,
    commit: str = "auto",
):
    spout = {"opaque": OpaqueSpout, "transactional": TransactionalSpout}[semantics]
    source = KafkaSource(topic, max_records_per_partition=1000)
    builder = TransactionalTopologyBuilder(
        "mine", "lines", spout(source), parallelism=2, driver_commit_rows=driver_commit_rows, commit=commit
    )
    builder.set_bolt("words", Words(), parallelism=2).shuffle_grouping("lines")
    builder.set_bolt("count", CountBolt("word"), parallelism=2).fields_grouping("words", "word")
    state = SqlState(table, key="word string", value="n bigint")
    builder.set_committer_bolt("store", SqlStateBolt(state), 2).fields_grouping("count", "word")
    return builder.build()
"""
BEFORE, AFTER = make_lines(20_000, seed=1), make_lines(8_000, seed=2)  # batches of up to 4,000 lines
MORE, LAST = make_lines(8_000, seed=3), make_lines(2_000, seed=4)


@dataclass
class Application:
    """A word count on the cluster that runs until it is stopped. `feed` gives it lines to count."""

    command: RunningCommand
    feed: Callable[[list[str]], None]
    counts: Callable[[], Mapping[str, int]]

    def wait_for(self, lines: list[str]) -> None:
        """Wait until exactly these lines are counted; at no time may there be more."""
        truth = count_words(lines)
        wait_until(lambda: self.runs() and self.counts() == truth, f"{len(lines)} lines are counted", 180)

    def wait_for_first_batch(self) -> None:
        wait_until(lambda: self.runs() and bool(self.counts()), "a batch is committed", 180)

    def runs(self) -> bool:
        assert self.command.process.poll() is None, self.command.wait().stderr
        return True


@pytest.fixture
def start(
    launcher: Launcher,
    services: Services,
    cluster: SparkStandalone,
    bare_python: Path,
    unique: str,
    tmp_path: Path,
) -> Iterator[Callable[..., Application]]:
    """Starts the application with the given semantics and further arguments."""
    started: list[RunningCommand] = []

    def counts() -> Mapping[str, int]:
        url = launcher.database
        return read_counts(url, unique) if table_exists(url, unique) else {}

    def start(
        semantics: str,
        *more: str,
        words: str = USER_MODULE,
        memory: str = "512m",
        python: Path = bare_python,
    ) -> Application:
        if not started:
            create_topic(services.kafka, unique)
        (tmp_path / "mine.py").write_text(words)
        framework = tmp_path / "framework.zip"
        assert launcher.run("package", "--out", str(framework)).status == 0
        command = launcher.start(
            *("run", "mine:topology", "--id", unique, "-p", f"topic={unique}", "-p", f"table={unique}"),
            *("-p", f"semantics={semantics}", "--master", cluster.url, "--py-files", str(framework)),
            *(
                "--spark-conf",
                f"spark.executor.memory={memory}",
                "--spark-conf",
                "spark.executor.cores=1",
                *more,
            ),
            PYSPARK_PYTHON=str(python),
        )
        started.append(command)
        return Application(command, lambda lines: produce(services.kafka, unique, lines), counts)

    yield start
    for command in started:
        command.kill()


@pytest.mark.soak
def test_a_run_without_executors_says_so_and_one_without_a_module_ends_at_once(
    cluster: SparkStandalone,
    launcher: Launcher,
    start: Callable[..., Application],
    tmp_path: Path,
    unique: str,
) -> None:
    starved = start("opaque", "--connect-timeout", "3", memory="100g").command
    line = starved.wait_for_line("gives it no executor")
    assert cluster.url in line
    assert "100g of memory" in line
    stored = [one["id"] for one in launcher.run("topologies", "--json").json()]
    assert unique not in stored, "nothing is stored before Spark can work"
    starved.process.send_signal(signal.SIGINT)
    assert starved.wait(60).status == 0

    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "words.py").write_text(USER_MODULE)
    lacking = start("opaque", words="import sys\nsys.path.append('elsewhere')\nfrom words import topology\n")
    lacking.feed(BEFORE[:10])
    ended = lacking.command.wait(120)
    assert ended.status == 2, ended.stderr
    for word in ("component 'words'", "No module named 'words'", "--py-files"):
        assert word in ended.stderr
    assert "failed and will be replayed" not in ended.stderr


@pytest.mark.soak
def test_two_workers_with_what_the_readme_lists_write_states(
    cluster: SparkStandalone,
    start: Callable[..., Application],
    launcher: Launcher,
    tmp_path: Path,
    unique: str,
) -> None:
    python = make_bare_python(tmp_path / "python", to_write_states=True)
    (tmp_path / "beside.py").write_text(USER_MODULE)  # is shipped with the module that imports it
    words = "from beside import topology\n"
    application = start("opaque", "-p", "commit=executors", words=words, python=python)
    application.feed(BEFORE)
    application.wait_for(BEFORE)
    assert len(cluster.executor_pids()) == 2
    assert launcher.run("show", unique, "1", "--json").json()["path"] == "executors"
    application.command.process.send_signal(signal.SIGINT)
    ended = application.command.wait(120)
    assert ended.status == 0, ended.stderr
    assert "cannot import" not in ended.stderr


def test_exact_with_its_only_executor_killed(
    cluster: SparkStandalone, start: Callable[..., Application]
) -> None:
    """Executors are asked to write, but have no SQLAlchemy: after the first try the driver writes."""
    application = start("transactional", "--spark-conf", "spark.cores.max=1", "-p", "driver_commit_rows=1")
    application.feed(BEFORE)
    application.wait_for_first_batch()
    (only,) = cluster.executor_pids()
    os.kill(only, signal.SIGKILL)
    application.feed(AFTER)
    application.wait_for(BEFORE + AFTER)
    application.command.process.send_signal(signal.SIGINT)
    ended = application.command.wait(120)
    assert ended.status == 0, ended.stderr
    assert ended.stderr.count("from now on the driver commits large batches too") == 1
    assert "install SQLAlchemy and the database's driver there" in ended.stderr


@pytest.mark.soak
def test_exact_with_a_worker_daemon_and_then_the_master_killed_and_everything_ends_with_the_cluster(
    cluster: SparkStandalone, start: Callable[..., Application]
) -> None:
    assert cluster.registered_workers() == 2
    application = start("opaque")
    application.feed(BEFORE)
    application.wait_for_first_batch()
    wait_until(lambda: len(cluster.executor_pids()) == 2, "an executor on each worker", 60)
    lost, kept = cluster.executor_pids(1), cluster.executor_pids(2)
    assert len(lost) == len(kept) == 1
    cluster.kill_worker(1)
    wait_until(lambda: not psutil.pid_exists(lost[0]), "the executor dies with its daemon")
    assert cluster.executor_pids() == kept
    application.feed(AFTER)
    application.wait_for(BEFORE + AFTER)
    assert cluster.executor_pids() == kept

    cluster.start_worker(1)
    wait_until(lambda: len(cluster.executor_pids()) == 2, "an executor on each worker", 60)
    both = cluster.executor_pids()
    application.feed(MORE)
    cluster.kill_master()
    assert cluster.registered_workers() is None
    application.feed(LAST)
    application.wait_for(BEFORE + AFTER + MORE + LAST)
    assert cluster.executor_pids() == both
    executors = [psutil.Process(pid) for pid in cluster.executor_pids()]
    cluster.stop()
    wait_until(lambda: not any(process.is_running() for process in executors), "all executors have ended")
    assert cluster.registered_workers() is None
    assert all(log.is_file() for log in cluster.log_paths)


def test_interpreter_of_the_tests_has_txstream() -> None:
    found = subprocess.run([sys.executable, "-I", "-c", "import txstream"], check=False)
    assert found.returncode == 0
