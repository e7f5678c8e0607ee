"""`txstream demo`: killed in the middle, exact at the end, and nothing left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
from support.runs import RunningCommand
from support.tables import table_exists

WORDS = 6_000


def start_demo(directory: Path, *arguments: str) -> RunningCommand:
    """The demo in a directory and a session of its own, as a terminal has it, without our settings."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("TXSTREAM_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "txstream", "demo", "--words", str(WORDS), *arguments],
        cwd=directory,
        env={**ours, "TXSTREAM_MASTER": "local[2]"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return RunningCommand(process)


def left_running(directory: Path) -> list[str]:
    """Processes that were started in the directory or name it."""
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


def wait_until_gone(directory: Path, seconds: float = 20) -> list[str]:
    """Spark's processes end by themselves, some moments after their driver."""
    tick = threading.Event()
    for _ in range(int(seconds / 0.1)):
        if not left_running(directory):
            return []
        tick.wait(0.1)
    return left_running(directory)


def test_the_demo_is_exact_and_so_is_a_second_one(tmp_path: Path) -> None:
    first = start_demo(tmp_path).wait(120)
    assert first.status == 0, first.stderr
    lines = first.stdout.splitlines()
    assert lines[-1] == "exact: yes"
    assert f"{WORDS:,} times in the text, {WORDS:,} in table" in lines[-2]
    assert any(line.startswith("replayed attempts: 1 (txid 2") for line in lines)
    batches = next(line for line in lines if line.startswith("batches: "))
    assert int(batches.split()[1]) >= 10
    assert "SIGKILL) after advance of txid 1, while txid 2 (" in first.stderr
    assert not [line for line in first.stderr.splitlines() if "WARN" in line or "INFO" in line]
    assert wait_until_gone(tmp_path) == []

    second = start_demo(tmp_path, "--semantics", "transactional", "--json").wait(120)
    assert second.status == 0, second.stderr
    result = json.loads(second.stdout)
    assert (result["exact"], result["differences"], result["words"]) == (True, [], WORDS)
    assert result["killed_at"]["open"]
    assert "removed 1 older demo" in second.stderr
    database = f"sqlite:///{tmp_path}/.txstream/state.db"
    assert table_exists(database, result["table"])
    assert not table_exists(database, lines[-2].split()[-1]), "the older demo's table is gone"


def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    command = start_demo(tmp_path)
    try:
        command.wait_for_line("produced")
        wait_for_spark(command.process.pid)
        os.killpg(command.process.pid, signal.SIGINT)  # as a terminal does
        ended = command.wait(60)
    finally:
        command.kill()
    assert ended.status == 130, ended.stderr
    assert ended.stderr.splitlines()[-1] == "txstream: interrupted"
    assert wait_until_gone(tmp_path) == []


def wait_for_spark(pid: int) -> None:
    """Until the demo's driver has started Spark's JVM."""
    tick = threading.Event()
    for _ in range(600):
        family = psutil.Process(pid).children(recursive=True)
        if any("org.apache.spark.deploy.SparkSubmit" in " ".join(cmdline(child)) for child in family):
            return
        tick.wait(0.05)
    raise AssertionError("Spark was not started within 30 s")


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
