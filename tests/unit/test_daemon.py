"""What a worker process has from the start, and how it ends: unless it is killed, it closes what bolts have
opened in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from txstream.engine.spark import daemon

# A worker process of Spark's daemon, without Spark. `Opened` stands for what a bolt has opened. Each argument
# is the next event.
#
# It prints with os.write, because a signal handler that interrupts `print` cannot call it. It waits for what
# the C signal handler writes into a pipe, because a signal right before a plain wait would take effect only
# after that wait.
WORKER = """
import os, select, signal, sys
import pyspark.daemon
from pyspark.taskcontext import TaskContext
from txstream.engine.spark import daemon
from txstream.engine.batch import worker_process as process

woken, wake = os.pipe()
os.set_blocking(wake, False)
signal.set_wakeup_fd(wake)

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

class Opened:
    def close(self):
        if "hangs" in sys.argv:
            signal.pause()
        say("closed")

def spark_worker(sock, authenticated):
    pyspark.daemon.signal.signal(signal.SIGHUP, signal.SIG_DFL)
    event = events.pop(0)
    if event == "broken":
        raise BrokenPipeError
    if event == "error":
        raise OSError("the socket is gone")
    if event in ("idle", "busy"):
        TaskContext._setTaskContext(TaskContext() if event == "busy" else None)
        say(event)
        select.select([woken], [], [], 60)
    return {"task": 0, "closed-socket": -1}[event]

daemon._spark_worker = spark_worker
if "nothing-open" not in sys.argv:
    process._processes["t"] = Opened()
if "hangs" in sys.argv:
    daemon.CLOSE_SECONDS = 1
events = [event for event in sys.argv[1:] if event not in ("hangs", "nothing-open")]
while events:
    say("code", pyspark.daemon.worker(None, True))
"""


@contextmanager
def worker(tmp_path: Path, *events: str, reuse: bool = True) -> Iterator[subprocess.Popen[str]]:
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    environment = {**os.environ, "SPARK_REUSE_WORKER": "1" if reuse else ""}
    with subprocess.Popen(
        [sys.executable, script, *events],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("events", "reuse", "lines"),
    [
        (["task", "task", "closed-socket"], True, ["code 0", "code 0", "closed", "code -1"]),
        (["task", "broken"], True, ["code 0", "closed", "code 1"]),
        (["task"], False, ["closed", "code 0"]),
        (["task", "closed-socket", "nothing-open"], True, ["code 0", "code -1"]),
    ],
)
def test_a_worker_that_ends_closes_what_is_open(
    tmp_path: Path, events: Sequence[str], reuse: bool, lines: Sequence[str]
) -> None:
    with worker(tmp_path, *events, reuse=reuse) as process:
        out, err = process.communicate(timeout=60)
    assert out.splitlines() == lines
    assert err == ""
    assert process.returncode == 0


def test_an_error_of_spark_closes_too_and_is_raised(tmp_path: Path) -> None:
    with worker(tmp_path, "error") as process:
        out, err = process.communicate(timeout=60)
    assert out.splitlines() == ["closed"]
    assert "OSError: the socket is gone" in err


def hung_up(tmp_path: Path, *events: str) -> tuple[list[str], int]:
    """Hang up a waiting or working worker, as the daemon's end does; return what it prints and its status."""
    with worker(tmp_path, *events) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() in ("idle", "busy")
        process.send_signal(signal.SIGHUP)
        out, _ = process.communicate(timeout=60)
    return out.splitlines(), process.returncode


def test_an_idle_worker_closes_when_the_daemon_ends(tmp_path: Path) -> None:
    assert hung_up(tmp_path, "idle") == (["closed"], 0)


def test_a_busy_worker_dies_as_it_always_did(tmp_path: Path) -> None:
    assert hung_up(tmp_path, "busy") == ([], -signal.SIGHUP)


def test_what_hangs_while_it_is_closed_ends_all_the_same(tmp_path: Path) -> None:
    assert hung_up(tmp_path, "hangs", "idle") == ([], -signal.SIGALRM)


def test_the_installed_pyspark_comes_before_the_zip_that_it_brings_along() -> None:
    """Python would compile the zip's modules again in every process."""
    installed = Path(pyspark.__file__).parent
    zips = sorted(map(str, (installed / "python" / "lib").glob("*.zip")))
    program = "import txstream.engine.spark.daemon, pyspark.worker; print(pyspark.worker.__file__)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(zips)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()) == installed / "worker.py"


def test_the_zip_of_a_spark_of_its_own_keeps_its_place(tmp_path: Path) -> None:
    """On a cluster, the installed PySpark and the driver's may have different versions."""
    zips = [f"{tmp_path}/spark/python/lib/pyspark.zip", f"{tmp_path}/other/pyspark/python/lib/pyspark.zip"]
    path = ["", *zips, str(Path(pyspark.__file__).parents[1])]
    assert daemon.installed_first(path) == path


# The daemon as Spark runs it, up to where it would fork workers.
DAEMON = """
import runpy, sys
import pyspark.daemon
pyspark.daemon.manager = lambda: print("forks", "txstream.engine.batch.worker" in sys.modules)
{before}
runpy.run_module("txstream.engine.spark.daemon", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("before", "told"), [("", "forks True"), ("sys.modules['pyarrow'] = None", "forks False")]
)
def test_what_every_task_needs_is_imported_before_workers_are_forked(before: str, told: str) -> None:
    """If something is missing, a task must report it. Spark cannot explain why a daemon ended."""
    program = DAEMON.format(before=before)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == told
