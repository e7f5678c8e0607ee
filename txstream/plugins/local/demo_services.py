"""What the demo runs: services, given or embedded until it ends, and `txstream run` as a child process.

Invariant: when `run_driver` returns or raises, the driver and every process that it started are gone,
including Spark's JVM and its Python workers.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

import psutil

from txstream.cli.context import Cli
from txstream.cli.run import OWNER_VARIABLE

if TYPE_CHECKING:
    from txstream.settings import Settings


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the command as Ctrl-C does: cleanly, with everything that it started."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def services_for(cli: Cli, given: Settings) -> Iterator[Settings]:
    """Yield the settings with the addresses of running services: those given, else embedded ones, started."""
    from txstream.plugins.local.embedded import EmbeddedKafka, EmbeddedZooKeeper, embedded

    console = cli.error_console()
    with contextlib.ExitStack() as stack:
        if given.zookeeper and given.kafka:
            zookeeper, kafka = given.zookeeper, given.kafka
            cli.say(f"using ZooKeeper at {zookeeper} and Kafka at {kafka}")
        elif given.zookeeper:
            zookeeper = given.zookeeper
            kafka = stack.enter_context(EmbeddedKafka(given.data_dir, console=console)).address
            cli.say(f"using ZooKeeper at {zookeeper}; started Kafka at {kafka}")
        elif given.kafka:
            kafka = given.kafka
            zookeeper = stack.enter_context(EmbeddedZooKeeper(given.data_dir)).address
            cli.say(f"using Kafka at {kafka}; started ZooKeeper at {zookeeper}")
        else:
            cli.say("starting ZooKeeper and Kafka")
            services = stack.enter_context(embedded(given.data_dir, console=console))
            zookeeper, kafka = services.zookeeper, services.kafka
            verb = "found" if services.already_running else "started"
            cli.say(f"{verb} ZooKeeper at {zookeeper} and Kafka at {kafka}")
        yield replace(given, zookeeper=zookeeper, kafka=kafka)


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
