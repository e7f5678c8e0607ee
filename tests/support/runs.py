"""Runs as a user starts them: `txstream ...` in a process of its own.

The nursery forks them. A run on Spark needs 5 s before its first batch, one without Spark less than 1 s
(`Launcher.without_spark`). Tests of the driver's own protocol, its external writes and its election need no
Spark.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from support.kafka_topics import wait_until
from support.nursery import Forked, nursery
from txstream.plugins.local.embedded import Services
from txstream.plugins.local.embedded.files import locked

WORD_COUNT = "txstream.examples.word_count:topology"

# Spark's classes as Java keeps them in memory: the file spares each start of Spark a third of its work. Java
# ignores it when it is missing, belongs to another Java or lists other jars.
SPARK_CLASSES = Path(sys.prefix) / f"txstream-tests-spark-{version('pyspark')}.jsa"
# In a short-lived JVM, the compiler's second stage, a parallel collector and verifying classes that everybody
# has loaded before cost more than they gain.
# Without the second stage, Java would also reserve 48 MB for compiled code, which the queries of many
# generated tests fill.
_QUICK = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
QUICK_JVM = f'{_QUICK} -Xlog:disable "-XX:SharedArchiveFile={SPARK_CLASSES}"'
# Every `java` reads this variable: Spark's drivers, executors and daemons, ZooKeeper and Kafka. It says so on
# its standard error, which always goes to a log file.
SPARK_STARTS_SOONER = {"JDK_JAVA_OPTIONS": QUICK_JVM}

_SOME_SPARK = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.parallelize([1], 1).map(str).collect()
spark.stop()
"""


def keep_sparks_classes() -> None:
    """Make the file of the classes that a small run loads, once per environment."""
    if SPARK_CLASSES.exists() or not os.access(SPARK_CLASSES.parent, os.W_OK):
        return
    unfinished, lock = SPARK_CLASSES.with_suffix(".unfinished"), SPARK_CLASSES.with_suffix(".lock")
    with locked(lock, waiting_for="keeping Spark's classes", timeout_seconds=240):
        if SPARK_CLASSES.exists():
            return
        options = f'{_QUICK} -Xlog:disable "-XX:ArchiveClassesAtExit={unfinished}"'
        environment = {**os.environ, "JDK_JAVA_OPTIONS": options}
        subprocess.run([sys.executable, "-c", _SOME_SPARK], env=environment, capture_output=True, check=False)
        if unfinished.exists():
            unfinished.rename(SPARK_CLASSES)


SUBMIT = "org.apache.spark.deploy.SparkSubmit"
_WITHOUT_SPARK = Path(__file__).with_name("sparkless.py")


@dataclass
class Outcome:
    """How a run ended. The status of a killed run is negative: the signal's number."""

    status: int
    stdout: str
    stderr: str

    def json(self) -> Any:
        return json.loads(self.stdout)


@dataclass
class Launcher:
    """Starts `txstream` commands against given services, in a directory of their own."""

    services: Services
    directory: Path
    database: str
    environment: Mapping[str, str] = field(default_factory=dict)
    spark_conf: Sequence[str] = ("spark.driver.memory=512m",)
    on_spark: bool = True

    @property
    def without_spark(self) -> Launcher:
        """Return a launcher of the same commands that processes the batches of `run` in the driver itself."""
        return replace(self, on_spark=False)

    def command(self, *arguments: str) -> list[str]:
        # -P keeps the script's folder, with our modules, off the path.
        program = ["-m", "txstream"] if self.on_spark else ["-P", str(_WITHOUT_SPARK)]
        return [sys.executable, *program, *arguments]

    def variables(self, **more: str) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("TXSTREAM_")},
            "TXSTREAM_ZOOKEEPER": self.services.zookeeper,
            "TXSTREAM_KAFKA": self.services.kafka,
            "TXSTREAM_DATABASE": self.database,
            "TXSTREAM_MASTER": "local[2]",
            **self.environment,
            **more,
        }

    def start(self, *arguments: str, **variables: str) -> RunningCommand:
        """Start a command in the background."""
        _, *command = self.command(*arguments)
        return RunningCommand(nursery().start(command, self.directory, self.variables(**variables)))

    def run(self, *arguments: str, timeout_seconds: float = 120, **variables: str) -> Outcome:
        """Run a command to its end."""
        return self.start(*arguments, **variables).wait(timeout_seconds)

    def run_together(self, commands: Iterable[Sequence[str]]) -> list[Outcome]:
        """Run commands that do not disturb each other at the same time; return the outcomes in order."""
        running = [self.start(*arguments) for arguments in commands]
        try:
            return [command.wait() for command in running]
        finally:
            for command in running:
                command.kill()

    def word_count(self, topology_id: str, topic: str, table: str, *more: str, **variables: str) -> Outcome:
        """Run `txstream run` of the word count until it has caught up."""
        return self.start(*self.word_count_arguments(topology_id, topic, table, *more), **variables).wait()

    def word_count_arguments(self, topology_id: str, topic: str, table: str, *more: str) -> list[str]:
        # A successor waits for its predecessor's session; ZooKeeper grants no shorter one than 1 s.
        session_seconds = "2" if self.on_spark else "1"
        conf = [argument for setting in self.spark_conf for argument in ("--spark-conf", setting)]
        return [
            *("run", WORD_COUNT, "--id", topology_id, "-p", f"topic={topic}", "-p", f"table={table}"),
            *("--until", "caught-up", "--json", "--session-timeout", session_seconds, *conf, *more),
        ]


class RunningCommand:
    """A command in the background. Its output is read all the time, so that it never blocks on a pipe."""

    def __init__(self, process: subprocess.Popen[str] | Forked) -> None:
        self.process = process
        self._output: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._changed = threading.Condition()
        self._readers = [
            threading.Thread(target=self._read, args=(name,), daemon=True) for name in self._output
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str) -> None:
        stream = getattr(self.process, name)
        for line in stream:
            with self._changed:
                self._output[name].append(line)
                self._changed.notify_all()

    def wait_for_line(self, text: str, timeout_seconds: float = 120) -> str:
        """Return the first line on standard error that contains this text. Raises TimeoutError."""

        def found() -> str | None:
            return next((line for line in self._output["stderr"] if text in line), None)

        with self._changed:
            self._changed.wait_for(lambda: found() is not None, timeout_seconds)
            line = found()
        if line is None:
            raise TimeoutError(
                f"no {text!r} within {timeout_seconds} s in: {''.join(self._output['stderr'])}"
            )
        return line

    def first_output(self, timeout_seconds: float = 120) -> str:
        """Return the first line on standard output. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._output["stdout"], timeout_seconds):
                said = "".join(self._output["stderr"])
                raise TimeoutError(f"no output within {timeout_seconds} s; it said: {said}")
            return self._output["stdout"][0]

    def wait(self, timeout_seconds: float = 120) -> Outcome:
        try:
            status = self.process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise TimeoutError(
                f"{self.process.args!r} ran on after {timeout_seconds} s: {''.join(self._output['stderr'])}"
            ) from None
        for reader in self._readers:
            reader.join(10)
        return Outcome(status, "".join(self._output["stdout"]), "".join(self._output["stderr"]))

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def java_of(command: RunningCommand) -> psutil.Process:
    """Return the Java process of a run, once Java itself runs in it."""

    def is_java(child: psutil.Process) -> bool:
        try:
            return child.name() == "java" and SUBMIT in child.cmdline()
        except psutil.NoSuchProcess:  # `java -version`, for example, which has ended meanwhile
            return False

    def found() -> list[psutil.Process]:
        return [child for child in psutil.Process(command.process.pid).children() if is_java(child)]

    wait_until(found, "Spark is started", 120)
    (java,) = found()
    return java


def has_ended(java: psutil.Process) -> bool:
    try:
        return not java.is_running() or java.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
