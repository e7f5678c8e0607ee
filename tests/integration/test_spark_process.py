"""Spark's own Java process: killed, signalled together with its driver, and new for each run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.kafka_topics import wait_until
from support.runs import Launcher, RunningCommand, has_ended, java_of
from support.tables import read_counts
from support.texts import create_topic, produce

from txstream.plugins.local.embedded import Services

# The bolt notes that it is there and waits; with `kill` it ends Java instead, the first time it is called.
# With `exhaust`, more memory is demanded of Java than it may have, while the bolt waits. With FREEZE=handed
# out, Java is frozen as soon as PySpark has handed it out.
USER_MODULE = """
import os
import pathlib
import signal
import threading
import time

import psutil
from pyspark import SparkContext, java_gateway
from txstream import *


if os.environ.get("FREEZE") == "handed out":
    launch = java_gateway.launch_gateway

    def launch_and_freeze(*args, **kwargs):
        gateway = launch(*args, **kwargs)
        os.kill(gateway.proc.pid, signal.SIGSTOP)
        return gateway

    java_gateway.launch_gateway = launch_and_freeze


def exhaust(folder):
    while not ((folder / "exhaust").exists() and (folder / "entered").exists()):
        time.sleep(0.05)
    gateway = SparkContext._gateway
    gateway.new_array(gateway.jvm.long, 2**31 - 10)


class Hold(BasicBolt):
    output = "word string"

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def execute(self, tup, collector):
        if (self.folder / "kill").exists():
            (self.folder / "kill").unlink()
            next(one for one in psutil.Process().parents() if one.name() == "java").kill()
        (self.folder / "entered").touch()
        while (self.folder / "hold").exists():
            time.sleep(0.01)
        collector.emit([tup["value"]])


def topology(topic: str, folder: str):
    threading.Thread(target=exhaust, args=(pathlib.Path(folder),), daemon=True).start()
    builder = TransactionalTopologyBuilder("held", "lines", OpaqueSpout(KafkaSource(topic)))
    builder.set_bolt("hold", Hold(folder)).shuffle_grouping("lines")
    state = SqlState(topic, key="word string", value="n bigint")
    builder.set_committer_bolt("store", SqlStateBolt(state, n=Count())).fields_grouping("hold", "word")
    return builder.build()
"""


@pytest.fixture
def start(
    launcher: Launcher, services: Services, unique: str, tmp_path: Path
) -> Iterator[Callable[..., RunningCommand]]:
    """Starts the topology, in a process group of its own, over a topic with two words."""
    create_topic(services.kafka, unique)
    produce(services.kafka, unique, ["one", "two"])
    (tmp_path / "held.py").write_text(USER_MODULE)
    started: list[RunningCommand] = []

    def start(*more: str, **variables: str) -> RunningCommand:
        arguments = ["-p", f"topic={unique}", "-p", f"folder={tmp_path}", "--session-timeout", "2", *more]
        process = subprocess.Popen(
            launcher.command("run", "held:topology", "--id", unique, *arguments),
            cwd=tmp_path,
            env=launcher.variables() | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        started.append(RunningCommand(process))
        return started[-1]

    yield start
    for command in started:
        command.kill()


def assert_told(command: RunningCommand) -> None:
    outcome = command.wait(120)
    assert outcome.status == 1
    (line,) = [line for line in outcome.stderr.splitlines() if line.startswith("txstream: ")]
    for word in ("Spark's Java process ended", "memory", "spark.driver.memory"):
        assert word in line
    pointer = "(guide: errors.md, SparkLostError)"
    assert pointer in line
    told = outcome.stderr.replace(pointer, "")
    for word in ("Traceback", "Exception", "Error", "failed"):
        assert word not in told


@pytest.mark.soak
def test_java_is_killed_at_its_start_in_a_batch_and_between_two(
    start: Callable[..., RunningCommand], launcher: Launcher, tmp_path: Path, unique: str
) -> None:
    command = start()
    java_of(command).kill()
    assert_told(command)
    assert unique not in [one["id"] for one in launcher.run("topologies", "--json").json()]

    (tmp_path / "kill").touch()
    command = start()
    assert_told(command)
    outcome = command.wait()
    assert "by signal 9 (SIGKILL)" in outcome.stderr
    assert f"spark-{unique}-{command.process.pid}.log" in outcome.stderr

    command = start()
    wait_until(lambda: read_counts(launcher.database, unique), "a batch is committed", 120)
    java_of(command).kill()
    assert_told(command)
    assert read_counts(launcher.database, unique) == {"one": 1, "two": 1}


@pytest.mark.soak
def test_java_that_is_out_of_memory_ends_and_that_is_told(
    start: Callable[..., RunningCommand], launcher: Launcher, tmp_path: Path, unique: str
) -> None:
    """Otherwise it would linger with threads missing, and every batch would time out."""
    for name in ("hold", "exhaust"):
        (tmp_path / name).touch()
    command = start()
    outcome = command.wait(180)
    assert outcome.status == 1
    assert "Spark's Java process ended with status 3: most often memory is short" in outcome.stderr
    assert read_counts(launcher.database, unique) == {}


@pytest.mark.soak
def test_a_signal_to_the_process_group_ends_the_run_between_two_batches(
    start: Callable[..., RunningCommand], launcher: Launcher, tmp_path: Path, unique: str
) -> None:
    (tmp_path / "hold").touch()
    command = start()
    java = java_of(command)
    wait_until((tmp_path / "entered").exists, "a batch is open", 120)
    os.killpg(command.process.pid, signal.SIGTERM)
    java.send_signal(signal.SIGTERM)  # systemd does not signal process groups
    command.wait_for_line("stopping when the open batches are committed")
    (tmp_path / "hold").unlink()
    outcome = command.wait(120)
    assert outcome.status == 0, outcome.stderr
    assert "Traceback" not in outcome.stderr
    assert "txid 1, 2 records" in outcome.stdout
    assert read_counts(launcher.database, unique) == {"one": 1, "two": 1}
    wait_until(lambda: has_ended(java), "Java has ended", 60)


@pytest.mark.soak
@pytest.mark.parametrize("moment", ["begun", "listens", "handed out"])
def test_a_run_that_is_stopped_while_java_starts_ends_at_once(
    start: Callable[..., RunningCommand], moment: str
) -> None:
    """The frozen Java stands for one on a busy machine, which is not ready for a long time."""
    command = start(FREEZE=moment)
    java = java_of(command)
    if moment == "listens":
        wait_until(java.net_connections, "Java listens", 120)
    if moment == "handed out":
        wait_until(lambda: java.status() == psutil.STATUS_STOPPED, "Java is frozen", 120)
    else:
        java.suspend()
    command.process.send_signal(signal.SIGTERM)
    outcome = command.wait(60)
    assert outcome.status == 0, outcome.stderr
    assert "stopped before its first batch" in outcome.stderr
    assert "Spark's Java process" not in outcome.stderr
    assert has_ended(java)


def test_java_ends_with_a_driver_that_is_killed(start: Callable[..., RunningCommand]) -> None:
    command = start()
    command.wait_for_line("is running")
    java = java_of(command)
    command.kill()
    wait_until(lambda: has_ended(java), "Java has ended", 60)


# A module that is only in the script's own folder: workers must find it all the same.
BESIDE = """
from txstream import BasicBolt


class Upper(BasicBolt):
    output = "value string"

    def execute(self, tup, collector):
        collector.emit([tup["value"].upper()])
"""
# py4j logs with the root logger when a connection to a killed Java is reset before it is closed.
SCRIPT = """
import logging
import os
import sys

from beside import Upper
import txstream.engine.spark.session
from pyspark.sql import SparkSession
from txstream import *
from txstream.plugins.files import FileSpout


def topology(name):
    builder = TransactionalTopologyBuilder(name, "lines", OpaqueSpout(FileSpout("lines")))
    builder.set_bolt("upper", Upper()).shuffle_grouping("lines")
    store = SqlStateBolt(SqlState(name, key="value string", value="n bigint"), n=Count())
    builder.set_committer_bolt("store", store).fields_grouping("upper", "value")
    return builder.build()


def told(*arguments, **options):
    try:
        print(run(*arguments, **options).records)
    except TxstreamError as error:
        print(error)


logging.getLogger().addHandler(logging.NullHandler())
name, closed, no_master = sys.argv[1:]
told(topology(f"{name}1"), settings=Settings(master=f"spark://{closed}"))
txstream.engine.spark.session.MASTER_SECONDS = 1
told(topology(f"{name}1"), settings=Settings(master=f"spark://{no_master}"))
told(topology(f"{name}1"), settings=Settings(spark_conf={"spark.txstream.test": "1"}))
told(topology(f"{name}2"))
print("a session of the user's", file=sys.stderr, flush=True)
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(spark.conf.get("spark.txstream.test", "nothing"), os.environ.get("SPARK_LOCAL_IP", "nothing"))
told(topology(f"{name}3"))
told(topology(f"{name}3"), spark)
print(spark.range(4).count())
"""


@pytest.mark.soak
def test_each_run_of_a_process_has_a_java_process_of_its_own(
    launcher: Launcher, tmp_path: Path, unique: str, closed_port: int
) -> None:
    """Nothing is left of a failed run, or of another run's settings; what Java prints goes to a file."""
    for folder in ("app", "lines"):
        (tmp_path / folder).mkdir()
    (tmp_path / "lines" / "p").write_text("a\nb\na\n")
    (tmp_path / "app" / "main.py").write_text(SCRIPT)
    (tmp_path / "app" / "beside.py").write_text(BESIDE)
    ended = subprocess.run(
        [sys.executable, "app/main.py", unique, f"127.0.0.1:{closed_port}", launcher.services.zookeeper],
        cwd=tmp_path,
        env={name: value for name, value in launcher.variables().items() if name != "SPARK_LOCAL_IP"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    lines = ended.stdout.splitlines()
    assert ended.returncode == 0, ended.stderr
    assert f"no Spark master at spark://127.0.0.1:{closed_port}" in lines[0]
    assert (
        f"what listens at spark://{launcher.services.zookeeper} did not answer as a Spark master" in lines[1]
    )
    assert lines[2:5] == ["3", "3", "nothing nothing"]
    assert "give it to the run" in lines[5]
    assert lines[6:] == ["3", "4"]
    assert ended.stderr.startswith("a session of the user's")
    (log,) = (tmp_path / ".txstream" / "logs").glob(f"spark-{unique}2-*.log")
    assert "log4j" in log.read_text()
