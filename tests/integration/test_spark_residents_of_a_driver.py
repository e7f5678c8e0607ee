"""Spark tasks that stay, each with a driver of their own: on a cluster, when the driver dies or its session
is stopped, and when a worker process freezes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.spark_standalone import SparkStandalone

from txstream.core.waits import wait_until

DEADLINE_SECONDS = 90.0
TESTS = str(Path(__file__).parents[1])

# Does what each line of its input says, and answers with a line.
DRIVER = """
import json, sys, threading, time

from pathlib import Path

from support.inmemory import attempt
from support.on_spark import Same, captured, notes, ranges, row_of

from txstream.engine.spark.session import create_context
from txstream.engine.spark.spark_runner import SparkRunner

folder, master, residents, settings = sys.argv[1:]
context = create_context(master=master, log_file=Path(folder) / "spark.log", conf=json.loads(settings))
read = Path(folder) / "read"
runner = SparkRunner(context, captured(row_of([Same()], file=read), "of-a-driver"), residents=int(residents))
txid = 0


def run(width):
    global txid
    txid += 1
    runner._width = width
    result = runner.run(attempt(txid), ranges(a=17, b=6))
    pids = {int(pid) for of_txid, *_, pid in notes(read) if int(of_txid) == txid}
    return {"records": result.records, "by_residents": result.by_residents, "pids": list(pids)}


def run_and_cancel(width):
    # Cancels the attempt while a resident has it, and returns what it raised.
    ended = []

    def process():
        try:
            run(width)
        except Exception as error:
            ended.append(str(error))

    thread = threading.Thread(target=process)
    thread.start()
    while all(one.order is None for one in list(runner._small_batches._connected.values())):
        time.sleep(0.01)
    runner.cancel(attempt(txid))
    thread.join(60)
    return ended


def count():
    return len(runner._small_batches._connected)


def close():
    began = time.monotonic()
    runner.close()
    return time.monotonic() - began


for line in sys.stdin:
    name, *given = json.loads(line)
    try:
        calls = {"run": run, "run_and_cancel": run_and_cancel, "count": count, "close": close}
        answer = {**calls, "stop": context.stop}[name](*given)
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)
"""

Ask = Callable[..., Any]


class Driver:
    def __init__(self, folder: Path, master: str, residents: int, **settings: str) -> None:
        script = folder / "driver.py"
        script.write_text(DRIVER)
        conf = {"spark.executorEnv.PYTHONPATH": TESTS, "spark.executor.memory": "512m", **settings}
        self.process = subprocess.Popen(
            [sys.executable, script, folder, master, str(residents), json.dumps(conf)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": TESTS},
        )

    def ask(self, *words: Any) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def await_residents(self, number: int) -> None:
        assert wait_until(lambda: self.ask("count") == number, DEADLINE_SECONDS), self.ask("count")


@contextmanager
def driver(folder: Path, master: str, residents: int, **settings: str) -> Iterator[Driver]:
    started = Driver(folder, master, residents, **settings)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.communicate()


def pid_of(answer: dict[str, Any]) -> int:
    """The process in which a resident has run a batch."""
    assert answer["by_residents"], answer
    (pid,) = answer["pids"]
    return int(pid)


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.soak
def test_the_process_of_a_resident_ends_with_a_driver_that_is_killed(
    tmp_path: Path, cluster: SparkStandalone
) -> None:
    """On a cluster; without one, the resident of the next test does."""
    with driver(tmp_path, cluster.url, residents=1) as ours:
        ours.await_residents(1)
        pid = pid_of(ours.ask("run", 1))
        assert not is_gone(pid)
        ours.process.kill()
        assert wait_until(lambda: is_gone(pid), DEADLINE_SECONDS), "an orphan"


@pytest.mark.soak
def test_a_resident_that_freezes_keeps_no_run_and_ends_when_it_thaws(tmp_path: Path) -> None:
    with driver(tmp_path, "local[2]", residents=1) as ours:
        ours.await_residents(1)
        pid = pid_of(ours.ask("run", 1))
        os.kill(pid, signal.SIGSTOP)
        assert ours.ask("run_and_cancel", 1) == ["txid 2 attempt 1.1 was cancelled"]
        answers: list[dict[str, Any]] = []

        def another_is_there() -> bool:
            answers.append(ours.ask("run", 1))
            return bool(answers[-1]["by_residents"])

        assert wait_until(another_is_there, DEADLINE_SECONDS)
        assert {answer["records"] for answer in answers} == {23}
        assert pid_of(answers[-1]) != pid
        with contextlib.suppress(ProcessLookupError):  # Spark may have killed it
            os.kill(pid, signal.SIGCONT)
        assert wait_until(lambda: is_gone(pid), DEADLINE_SECONDS), "it finds its connection closed, and ends"
        other = pid_of(ours.ask("run", 1))
        assert other == pid_of(answers[-1])
        ours.process.kill()
        assert wait_until(lambda: is_gone(other), DEADLINE_SECONDS), "an orphan"


@pytest.mark.soak
def test_a_session_that_is_stopped_by_its_owner_is_named_and_nothing_hangs(tmp_path: Path) -> None:
    with driver(tmp_path, "local[2]", residents=1) as ours:
        ours.await_residents(1)
        pid = pid_of(ours.ask("run", 1))
        ours.ask("stop")
        assert wait_until(lambda: is_gone(pid), DEADLINE_SECONDS)
        assert "error" in ours.ask("run", 1)
        assert ours.ask("close") < DEADLINE_SECONDS


@pytest.mark.soak
def test_residents_leave_a_core_of_the_cluster_to_jobs(tmp_path: Path, cluster: SparkStandalone) -> None:
    """It has two cores."""
    with driver(tmp_path, cluster.url, residents=5) as ours:
        ours.await_residents(1)
        assert ours.ask("run", 1)["by_residents"]
        wide = ours.ask("run", 2)
        assert (wide["records"], wide["by_residents"]) == (23, False)


@pytest.mark.soak
@pytest.mark.parametrize("parallelism", [{}, {"spark.default.parallelism": "200"}])
def test_a_cluster_of_one_core_has_no_residents(
    tmp_path: Path, cluster: SparkStandalone, parallelism: dict[str, str]
) -> None:
    with driver(tmp_path, cluster.url, 1, **{"spark.cores.max": "1"}, **parallelism) as ours:
        for width in (1, 2, 1):
            answer = ours.ask("run", width)
            assert (answer["records"], answer["by_residents"]) == (23, False)
        assert ours.ask("count") == 0
