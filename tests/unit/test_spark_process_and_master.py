"""What is wrong with Spark's Java process or its master, as far as it can be tested without Spark."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from support.lists import each
from support.on_spark import diamond

from txstream.core.errors import BoltError, ServiceUnavailableError, SparkLostError, UsageError
from txstream.engine.spark import master as masters
from txstream.engine.spark.java_process import SparkProcess
from txstream.engine.spark.log import reason_in
from txstream.engine.spark.master import Master, await_executor
from txstream.engine.start.run_services import RunServices
from txstream.plugins.residents.residents import refusal
from txstream.settings import Settings


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until its input ends."""
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as running:
        yield running
        running.kill()


def test_a_process_that_lives_is_not_blamed(process: subprocess.Popen[bytes]) -> None:
    spark = SparkProcess(process)
    spark.check()
    with pytest.raises(BoltError), spark.blamed():
        raise BoltError("a bug")
    with pytest.raises(BoltError), SparkProcess(None).blamed():
        raise BoltError("a bug")


def test_an_error_that_is_its_own_cause_is_raised(process: subprocess.Popen[bytes]) -> None:
    """As when an error is put into words and raised again while the first one is being handled."""
    bug, told = ValueError("a bug"), BoltError("component 'odd': a bug")
    bug.__context__ = told
    with pytest.raises(BoltError, match="component 'odd'"), SparkProcess(process).blamed():
        raise told from bug


def test_what_fails_because_it_was_killed_is_told_with_the_signal_memory_and_the_log(
    process: subprocess.Popen[bytes],
) -> None:
    process.kill()
    spark = SparkProcess(process, Path("spark.log"))
    told = r"by signal 9 \(SIGKILL\).*memory.*spark\.log"
    with pytest.raises(SparkLostError, match=told) as raised, spark.blamed():
        # A job fails like this: the connection breaks before the process can be waited for.
        raise BoltError("its Spark job failed") from ConnectionRefusedError()
    assert isinstance(raised.value.__cause__, BoltError)


def test_an_exit_is_told_with_its_status(process: subprocess.Popen[bytes]) -> None:
    process.communicate(b"\n")
    with pytest.raises(SparkLostError, match="ended with status 0"):
        SparkProcess(process).check()


def test_what_takes_too_long_ends_with_the_process(process: subprocess.Popen[bytes]) -> None:
    def ask() -> NoReturn:
        process.wait()
        raise ConnectionRefusedError

    late = SparkProcess(process).killed_after(0.01, "no answer")
    with pytest.raises(ServiceUnavailableError, match="no answer"), late:
        ask()
    assert process.returncode < 0


# --- the master --------------------------------------------------------------------------------------------


@each(
    ("url", "local", "in_process", "standalone", "loopback"),
    [
        ("local", True, True, False, True),
        ("local[*]", True, True, False, True),
        ("local-cluster[2,1,512]", True, False, False, True),
        ("spark://127.0.0.1:7077", False, False, True, True),
        ("spark://localhost:7077,[::1]:7078", False, False, True, True),
        ("spark://localhost:7077,other:7077", False, False, True, False),
        ("spark://localhost", False, False, False, False),
        ("yarn", False, False, False, False),
        ("k8s://https://127.0.0.1:6443", False, False, False, False),
    ],
)
def test_what_a_url_says(url: str, local: bool, in_process: bool, standalone: bool, loopback: bool) -> None:
    master = Master(url)
    assert (master.is_local, master.is_in_process) == (local, in_process)
    assert (master.is_standalone, master.is_on_loopback) == (standalone, loopback)


def test_a_master_where_nobody_listens_is_told_with_its_address() -> None:
    with socket.socket() as listening, socket.socket() as silent:
        listening.bind(("127.0.0.1", 0))
        silent.bind(("127.0.0.1", 0))
        listening.listen()
        closed, opened = (f"127.0.0.1:{one.getsockname()[1]}" for one in (silent, listening))
        with pytest.raises(
            ServiceUnavailableError, match=f"no Spark master at spark://{closed} .*refused.*--master"
        ):
            Master(f"spark://{closed}").reach(5)
        Master(f"spark://{closed},{opened}").reach(5)  # the first one is away, the standby is not
    Master("local[2]").reach(5)
    Master("yarn").reach(5)


def cluster(executors: list[int], master: str = "spark://h:1", **conf: str) -> Any:
    """Return a context with this many executors, driver included; one figure for each time it is asked."""
    settings = {name.replace("_", "."): value for name, value in conf.items()}
    tracker = SimpleNamespace(getExecutorInfos=lambda: range(executors.pop(0)))
    scala = SimpleNamespace(statusTracker=lambda: tracker)
    return SimpleNamespace(
        master=master,
        _conf=SimpleNamespace(get=lambda name, default=None: settings.get(name, default)),
        _jsc=SimpleNamespace(sc=lambda: scala),
    )


def test_a_master_that_gives_no_executor_is_told_once_and_waited_for() -> None:
    told: list[str] = []
    context = cluster([1] * 9 + [2], spark_executor_cores="4", spark_executor_memory="2g")
    await_executor(context, patience_seconds=0.3, wait=lambda _: False, warn=told.append)
    (message,) = told
    for word in ("spark://h:1", "4 free core(s)", "2g of memory", "spark.executor.memory"):
        assert word in message


def test_waiting_for_an_executor_ends_when_the_run_is_stopped() -> None:
    told: list[str] = []
    await_executor(cluster([1]), patience_seconds=1, wait=lambda _: True, warn=told.append)
    assert not told


@pytest.mark.parametrize(
    "context", [cluster([], "local[2]"), cluster([], spark_dynamicAllocation_enabled="true")]
)
def test_nobody_waits_where_executors_come_with_jobs(context: Any) -> None:
    await_executor(context, patience_seconds=0, wait=lambda _: False, warn=lambda _: None)


@pytest.mark.parametrize(
    ("url", "words"), [("sc://h:15002", "Spark Connect"), ("banana", "no master of Spark")]
)
def test_what_is_no_master_is_refused_without_spark(url: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Master(url).refuse()
    with pytest.raises(UsageError, match=words):
        RunServices(diamond(), Settings(master=url))


@each(
    ("url", "with_one_more"),
    [
        ("local", "local[2]"),
        ("local[1]", "local[2]"),
        ("local[ 3 ]", "local[4]"),
        ("local[2,4]", "local[3,4]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://host:7077", "spark://host:7077"),
    ],
)
def test_a_local_master_gets_a_slot_more_for_a_task_that_stays(url: str, with_one_more: str) -> None:
    assert Master(url).with_slots(1).url == with_one_more
    assert Master(url).with_slots(0).url == url


@pytest.mark.parametrize(("limit", "slots"), [("150000 100000", 3), ("max 100000", 9), ("", 9)])
def test_all_cores_are_those_that_a_container_may_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str, slots: int
) -> None:
    (tmp_path / "cpu.max").write_text(limit)
    monkeypatch.setattr(masters, "_CPU_LIMIT", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    assert Master("local[*]").with_slots(1).url == f"local[{slots}]"


@each(
    "setting",
    [
        "spark.network.crypto.enabled=true",
        "spark.ssl.enabled=true",
        "spark.speculation=true",
        "spark.task.cpus=2",
    ],
)
def test_a_session_that_cannot_have_tasks_that_stay_is_named_with_the_setting(setting: str) -> None:
    name, _, value = setting.partition("=")
    why = refusal(SimpleNamespace(_conf={name: value}))  # type: ignore[arg-type]
    assert why is not None
    assert why.startswith(f"{name} is set, ")
    assert refusal(SimpleNamespace(_conf={name: "false" if value == "true" else "1"})) is None  # type: ignore[arg-type]


def test_every_kind_of_master_is_accepted() -> None:
    for url in (
        "local",
        "local[2]",
        "local-cluster[2,1,1024]",
        "spark://h:7077",
        "yarn",
        "k8s://https://h:1",
    ):
        Master(url).refuse()


@each(
    ("printed", "reason"),
    [
        (
            "WARNING: Using incubator modules: jdk.incubator.vector\n"
            "Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties\n"
            "Exception in thread \"main\" org.apache.spark.SparkException: When running with master 'yarn' "
            "either HADOOP_CONF_DIR or YARN_CONF_DIR must be set in the environment.\n"
            "\tat org.apache.spark.deploy.SparkSubmitArguments.error(SparkSubmitArguments.scala:670)\n",
            "SparkException: When running with master 'yarn' either HADOOP_CONF_DIR or YARN_CONF_DIR must be "
            "set in the environment.",
        ),
        (
            "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
            ": io.fabric8.kubernetes.client.KubernetesClientException: An error has occurred.\n"
            "\tat io.fabric8.kubernetes.client.KubernetesClientException.launder(K.java:109)\n"
            "Caused by: java.io.IOException: Connection refused: /127.0.0.1:1\n\t... 2 more\n"
            "Caused by: io.netty.channel.Refused: again\n",
            "KubernetesClientException: An error has occurred., caused by Refused: again",
        ),
        ("NOTE: Picked up JDK_JAVA_OPTIONS\n\nError: no space left\n", "Error: no space left"),
        ('Using Spark\'s default log4j profile: x\nSetting default log level to "WARN".\n', None),
    ],
)
def test_the_reason_is_what_java_threw_and_not_its_preamble(printed: str, reason: str | None) -> None:
    assert reason_in(printed) == reason
