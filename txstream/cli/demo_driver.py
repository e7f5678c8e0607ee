"""Runs `txstream run` as a child process of the demo: starts it, waits for it, and leaves nothing behind.

Invariant: when `run_driver` returns or raises, the driver and every process that it started are gone,
including Spark's JVM and its Python workers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from txstream.cli.run import OWNER_VARIABLE

_POLL_SECONDS = 0.2
_STOP_SECONDS = 20.0
_GONE_SECONDS = 10.0


@dataclass(frozen=True)
class DriverEnd:
    """How a driver ended. A negative status is the signal that killed it."""

    pid: int
    status: int
    output: str


def run_driver(
    arguments: Sequence[str], environment: Mapping[str, str], *, messages: Path | None = None
) -> DriverEnd:
    """Run `txstream` with these arguments to its end. Its standard error goes to the file `messages`, or
    without one to ours."""
    variables = {
        **os.environ,
        **environment,
        OWNER_VARIABLE: str(os.getpid()),
        # A folder `txstream` in the working directory must not hide the installed package.
        "PYTHONSAFEPATH": "1",
    }
    if messages is None:
        return _run(arguments, variables, None)
    messages.parent.mkdir(parents=True, exist_ok=True)
    with messages.open("wb") as sink:
        return _run(arguments, variables, sink)


def _run(arguments: Sequence[str], variables: Mapping[str, str], sink: IO[bytes] | None) -> DriverEnd:
    process = subprocess.Popen(
        [sys.executable, "-m", "txstream", *arguments],
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=sink,
        text=True,
    )
    family: dict[int, psutil.Process] = {}
    try:
        output = _wait(process, family)
    except BaseException:
        # Ctrl-C in the terminal reaches the driver too; SIGTERM to us does not.
        process.terminate()
        try:
            process.communicate(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()  # the exception that interrupted us is still raised
            process.wait()
        except BaseException:
            process.kill()
            process.wait()
            raise
        raise
    finally:
        _end(family)
    return DriverEnd(process.pid, process.returncode, output)


def _wait(process: subprocess.Popen[str], family: dict[int, psutil.Process]) -> str:
    """Return the driver's output. Notes its descendants meanwhile: after a SIGKILL nobody could find them."""
    while True:
        try:
            output, _ = process.communicate(timeout=_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            try:
                children = psutil.Process(process.pid).children(recursive=True)
            except psutil.NoSuchProcess:
                continue
            family.update({child.pid: child for child in children})
        else:
            return output


def _end(family: Mapping[int, psutil.Process]) -> None:
    """Wait for Spark's processes, which end by themselves when their driver does, and kill what is left."""
    _, alive = psutil.wait_procs(list(family.values()), timeout=_GONE_SECONDS)
    for process in alive:
        try:
            process.kill()  # psutil compares the start time first, so this is still the process that we saw
        except psutil.NoSuchProcess:
            continue
