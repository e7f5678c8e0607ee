"""`txstream demo`: killed in the middle, exact at the end, and nothing left running."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa
from support.runs import RunningCommand

WORDS = 6_000
ON_SPARK = ("-m", "txstream")
WITHOUT_SPARK = ("-P", str(Path(__file__).parents[1] / "support" / "sparkless.py"))


def start_demo(directory: Path, *arguments: str, program: Sequence[str] = ON_SPARK) -> RunningCommand:
    """Start the demo in a directory and a session of its own, as a terminal does, without our settings."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("TXSTREAM_")}
    process = subprocess.Popen(
        [sys.executable, *program, "demo", "--words", str(WORDS), *arguments],
        cwd=directory,
        env={**ours, "TXSTREAM_MASTER": "local[2]"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return RunningCommand(process)


@pytest.mark.parametrize(
    ("how", "program"),
    [
        pytest.param("--injected", WITHOUT_SPARK, id="injected", marks=pytest.mark.soak),
        pytest.param(None, WITHOUT_SPARK, id="two-brokers"),
        pytest.param(None, ON_SPARK, id="two-brokers-on-spark", marks=pytest.mark.soak),
    ],
)
def test_an_outage_is_exact_under_both_semantics(
    tmp_path: Path, how: str | None, program: Sequence[str]
) -> None:
    ended = start_demo(tmp_path, "outage", *([how] if how else []), program=program).wait(400)
    assert ended.status == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert [line for line in lines if line.startswith("exact:")] == ["exact: yes"] * 2
    assert lines[-1] == "exact: yes"
    assert "transactional: the replay of txid 2 waited, and held the same ranges" in lines
    away = "1 partition" if how else "8 partitions"
    left_out = f"opaque: the replay of txid 2 left out {away}, whose records came from txid "
    assert any(line.startswith(left_out) for line in lines)
    since = "^waiting for partitions? txstream-demo-outage-.* since [0-9:]{8} (.*)"
    waited = re.search(since, ended.stderr, re.M)
    assert waited is not None
    assert waited[1].startswith("(txid 2 must hold the same tuples): ")
    assert ("killed Kafka broker 2" in ended.stderr) is (how is None)
    assert wait_until_gone(tmp_path) == []


def left_running(directory: Path) -> list[str]:
    """Return the processes that were started in the directory or name it."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            words = " ".join(process.cmdline())
            if process.cwd() == str(directory) or str(directory) in words:
                found.append(f"{process.pid}: {words[:200]}")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def wait_until_gone(directory: Path, seconds: float = 60) -> list[str]:
    """Return what is left in the end. Spark's processes end by themselves, shortly after their driver."""
    tick = threading.Event()
    for _ in range(int(seconds / 0.1)):
        if not left_running(directory):
            return []
        tick.wait(0.1)
    return left_running(directory)


@pytest.mark.soak
def test_ctrl_c_leaves_no_process_and_the_next_demo_is_exact(tmp_path: Path) -> None:
    interrupted = start_demo(tmp_path, "--semantics", "transactional")
    try:
        interrupted.wait_for_line("produced")
        wait_for_spark(interrupted.process.pid)
        os.killpg(interrupted.process.pid, signal.SIGINT)  # as a terminal does
        ended = interrupted.wait(120)
    finally:
        interrupted.kill()
    assert ended.status == 130, ended.stderr
    assert ended.stderr.splitlines()[-1] == "txstream: interrupted"
    assert wait_until_gone(tmp_path) == []

    second = start_demo(tmp_path).wait(120)
    assert second.status == 0, second.stderr
    lines = second.stdout.splitlines()
    assert lines[-1] == "exact: yes"
    assert f"{WORDS:,} times in the text, {WORDS:,} in table" in lines[-2]
    assert any(line.startswith("replayed attempts: ") and "open at the kill" in line for line in lines)
    batches = next(line for line in lines if line.startswith("batches: "))
    assert int(batches.split()[1]) >= 10
    told = second.stderr.splitlines()
    assert "removed 1 older demo" in told
    assert any("SIGKILL) after advance of txid " in line and ", while txid " in line for line in told)
    assert not [line for line in told if "WARN" in line or "INFO" in line]
    assert wait_until_gone(tmp_path) == []
    tables = [table for table in table_names(tmp_path) if table.startswith("demo_word_count_")]
    assert tables == [lines[-2].split()[-1]], "this demo's table stays, the older one's is gone"


@pytest.mark.soak
def test_a_non_transactional_demo_counts_the_committed_batch_twice(tmp_path: Path) -> None:
    ended = start_demo(tmp_path, "--semantics", "non-transactional").wait(300)
    assert ended.status == 1, ended.stderr
    last = ended.stdout.splitlines()[-1]
    more = re.fullmatch(r"exact: no, ([\d,]+) words too many: txid 1 was committed before the kill .*", last)
    assert more is not None, last
    assert f"{WORDS:,} times in the text, {WORDS + int(more[1].replace(',', '')):,} in table" in ended.stdout
    assert "SIGKILL) after commit of txid 1" in ended.stderr


def wait_for_spark(pid: int) -> None:
    """Wait until the demo's driver has started Spark's JVM."""
    tick = threading.Event()
    for _ in range(2400):
        family = psutil.Process(pid).children(recursive=True)
        if any("org.apache.spark.deploy.SparkSubmit" in " ".join(cmdline(child)) for child in family):
            return
        tick.wait(0.05)
    raise AssertionError("Spark was not started within two minutes")


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def table_names(directory: Path) -> list[str]:
    engine = sa.create_engine(f"sqlite:///{directory}/.txstream/state.db")
    try:
        return sa.inspect(engine).get_table_names()
    finally:
        engine.dispose()
