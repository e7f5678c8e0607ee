"""Spark's Python daemon. It imports once what all its workers need, does not collect garbage after every
task, and closes what bolts have opened.

Spark puts its own zip of PySpark first on the path. Python compiles what it imports from a zip again in every
process. That costs half a second, although the same PySpark is installed, and compiled, beside it.

PySpark's daemon makes each worker run `gc.collect()` when a task ends: 10 to 40 ms, more than the rest of a
small batch costs. This one collects once per worker and freezes what is alive then. Later garbage is left to
Python's own generations.

A worker process that ends in good order closes what bolts have opened in it: when Spark closes its socket
(it was idle for a minute, a task failed, the executor ends), and when the daemon ends before it.

It is imported by name on executors (`spark.python.daemon.module`), before shipped files are on the path. It
imports nothing that starts threads, because it forks. (Arrow's allocator starts one, and can handle forks.)
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def installed_first(path: Sequence[str]) -> list[str]:
    """Return an import path on which the zips that an installed PySpark brings along come last."""

    def is_brought_along(entry: str) -> bool:
        folder, inside, _ = entry.partition("/pyspark/python/lib/")
        return bool(inside) and folder in path and Path(folder, "pyspark", "__init__.py").exists()

    return sorted(path, key=is_brought_along)


sys.path[:] = installed_first(sys.path)

import pyspark.daemon  # noqa: E402 - not from the zip

# A resource that hangs in its close must not keep a forgotten process alive forever.
CLOSE_SECONDS = 10

_spark_worker = pyspark.daemon.worker


class CollectOnce:
    """Stands in for the module `gc` inside pyspark.daemon."""

    def __init__(self) -> None:
        self._collected = False

    def collect(self, *args: int) -> int:
        if self._collected:
            return 0
        self._collected = True
        found = gc.collect(*args)
        gc.freeze()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(gc, name)


class HangUpGently:
    """Stands in for the module `signal` inside pyspark.daemon: its workers do not die of SIGHUP at once."""

    def signal(self, number: int, handler: Any) -> Any:
        if number == signal.SIGHUP and handler is signal.SIG_DFL:
            handler = hang_up
        return signal.signal(number, handler)

    def __getattr__(self, name: str) -> Any:
        return getattr(signal, name)


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Run one task with PySpark's own `worker`, which is called again for the next task. If it will not be,
    close what is open."""
    code = 1
    try:
        code = _spark_worker(sock, authenticated)
    except BrokenPipeError:
        return code  # Spark has closed the socket. That is how a worker ends, no reason for a traceback
    finally:
        if code or not os.environ.get("SPARK_REUSE_WORKER"):
            close_worker_process()
    return code


def hang_up(number: int, _: Any) -> None:
    """Handle SIGHUP from a daemon that is ending. In the middle of a task the worker dies of it, as
    PySpark's does, because what is open is in use. Between two tasks it closes that first."""
    context = sys.modules.get("pyspark.taskcontext")
    if context is not None and context.TaskContext.get() is not None:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    close_worker_process()
    os._exit(0)


def close_worker_process() -> None:
    """Close what bolts have opened in this process, if any of them ran here."""
    process = sys.modules.get("txstream.engine.batch.worker_process")
    if process is None:
        return
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # closing is under way
    signal.alarm(CLOSE_SECONDS)
    process.close_worker_process()
    signal.alarm(0)


def get_ready() -> None:
    """Import what every task needs, so that workers have it when they are forked. That saves half a second of
    CPU each, and they share the memory. If an import fails here, a worker's first task reports it."""
    with contextlib.suppress(ImportError):
        import pyarrow.acero  # noqa: F401 - groups rows; imports pandas, if installed, as any array does
        import pyspark.worker  # noqa: F401

        import txstream.engine.spark.spark_runner  # noqa: F401
    gc.collect()
    gc.freeze()


# The daemon uses these by the names that it imported. There are no settings for them.
vars(pyspark.daemon).update(gc=CollectOnce(), signal=HangUpGently(), worker=worker)

if __name__ == "__main__":
    get_ready()
    pyspark.daemon.manager()
