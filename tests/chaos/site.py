"""The processes of one installation, kept running as by a service manager.

Invariants: what a fault has killed is left alone until its time is over. Whatever else has ended is started
again. Everything ends with this process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Self

import psutil
from postgres import PostgresServer
from support.runs import WORD_COUNT, Launcher
from support.spark_standalone import SparkStandalone

from chaos.faults import FREEZE, SERVERS, SESSION_SECONDS, Fault
from txstream.cli.run import OWNER_VARIABLE
from txstream.plugins.local.embedded import EmbeddedKafka, EmbeddedZooKeeper, Services
from txstream.plugins.local.embedded.process import ProcessIdentity

_STOP_SECONDS = 60.0
_CONF = (  # two cores of the four, because a frozen driver keeps its own two
    *("spark.cores.max=2", "spark.executor.cores=1"),
    *("spark.executor.memory=512m", "spark.driver.memory=512m"),
)


@dataclass
class Server:
    """How to find a server's process, and how to start it; `start` may wait until it answers."""

    name: str
    process: Callable[[], psutil.Process | None]
    start: Callable[[], object]
    struck: bool = False
    killed: bool = False
    starting: Future[object] | None = None

    def is_whole(self) -> bool:
        return self.process() is not None and (self.starting is None or self.starting.done())


class Driver(Server):
    """A `txstream run`."""

    def __init__(self, name: str, launcher: Launcher, arguments: Sequence[str], log: Path) -> None:
        super().__init__(name, self._find, self._start)
        self._launcher, self._arguments, self._log, self._log_start = launcher, arguments, log, 0
        self.run: subprocess.Popen[bytes] | None = None

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self._log_start = log.tell()
            self.run = subprocess.Popen(
                self._launcher.command(*self._arguments),
                cwd=self._launcher.directory,
                env=self._launcher.variables(**{OWNER_VARIABLE: str(os.getpid())}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _find(self) -> psutil.Process | None:
        return None if self.run is None or self.run.poll() is not None else psutil.Process(self.run.pid)

    @property
    def leads(self) -> bool:
        """Whether it has said that it leads since it was last started."""
        if self.process() is None:
            return False
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            return b" is running" in log.read()

    def stop(self) -> None:
        """Stop it between two batches."""
        if self.run is not None:
            family = _family(self.process())
            self.run.terminate()
            try:
                self.run.wait(_STOP_SECONDS)
            finally:
                _send(family, signal.SIGKILL)


class Site:
    """Servers, and the drivers of one topology at a time. A context manager that starts and stops them.

    `ended` counts what ended by itself, drivers by their exit status.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ended: Counter[str] = Counter()
        self.drivers: list[Driver] = []

    def __enter__(self) -> Self:
        zookeeper, kafka = EmbeddedZooKeeper(self.folder), EmbeddedKafka(self.folder, brokers=2)
        self.spark = spark = SparkStandalone(self.folder, 2, cores=2, memory="2g", remembers=True)
        with contextlib.ExitStack() as started:
            postgres = PostgresServer(self.folder)
            started.callback(postgres.close)
            for service in (zookeeper, kafka, spark):
                started.enter_context(service)
            self._pool = started.enter_context(ThreadPoolExecutor(8, "restart"))
            started.callback(self.stop_drivers)
            services = Services(zookeeper.address, kafka.address, self.folder, 0, (), ())
            url = postgres.create_database("chaos")
            self.launcher = Launcher(services, self.folder, url, {"TXSTREAM_MASTER": spark.url}, _CONF)
            self._stack = started.pop_all()

        def found(identity: Callable[[], ProcessIdentity | None]) -> Callable[[], psutil.Process | None]:
            return lambda: one.process() if (one := identity()) else None

        servers = [
            Server("PostgreSQL", postgres.postmaster, postgres.start),
            Server("ZooKeeper", found(lambda: zookeeper.identity), zookeeper.start),
            Server("Spark master", found(lambda: spark.master.identity), spark.launch_master),
        ]
        for number in (1, 2):
            worker = found(lambda number=number: spark.workers[number - 1].identity)  # type: ignore[misc]
            broker = found(lambda number=number: kafka.identities[number])  # type: ignore[misc]
            servers.append(Server(f"Spark worker {number}", worker, partial(spark.launch_worker, number)))
            servers.append(Server(f"broker {number}", broker, partial(kafka.start_broker, number)))
        self.servers = {server.name: server for server in servers}
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def note(self, text: str) -> None:
        """Write a line into the log of what was done."""
        with (self.folder / "logs" / "chaos.log").open("a", encoding="utf-8") as log:
            log.write(f"{datetime.now():%H:%M:%S.%f} {text}\n")

    def start_drivers(self, name: str, semantics: str) -> None:
        """Start two drivers, one of which stands by. The second one has executors write all results."""
        conf = [argument for setting in _CONF for argument in ("--spark-conf", setting)]
        run = [
            *("run", WORD_COUNT, "--id", name, "-p", f"topic={name}", "-p", f"table={name}"),
            *("-p", f"semantics={semantics}", "-p", "max_records_per_partition=50"),
            *("--session-timeout", str(SESSION_SECONDS), "--message-timeout", "10", *conf),
        ]
        for letter, more in (("a", ()), ("b", ("-p", "driver_commit_rows=1"))):
            log = self.folder / "logs" / f"driver-{letter}.log"
            self.drivers.append(Driver(f"driver {letter}", self.launcher, [*run, *more], log))
            self.drivers[-1].start()

    def stop_drivers(self) -> None:
        """Stop the drivers, the one that stands by first."""
        drivers, self.drivers = self.drivers, []
        for driver in sorted(drivers, key=lambda one: one.leads):
            driver.stop()

    def tend(self) -> None:
        """Start again whatever has ended and is not struck, without waiting for it."""
        for one in (*self.servers.values(), *self.drivers):
            if one.struck or (one.starting is not None and not one.starting.done()):
                continue
            if one.process() is not None:  # perhaps it was killed a moment ago
                if one.starting is not None:
                    one.killed, one.starting = False, None
                continue
            status = f", status {one.run.returncode}" if isinstance(one, Driver) and one.run else ""
            self.note(f"start {one.name} again{status}")
            if not one.killed:
                self.ended[f"driver{status}" if status else one.name] += 1
            one.starting = self._pool.submit(one.start)

    def is_whole(self) -> bool:
        """Return whether every server is there."""
        return all(one.is_whole() for one in self.servers.values()) and self.spark.registered_workers() == 2

    def strike(self, fault: Fault) -> Callable[[], None]:
        """Kill or freeze what a fault names; return what ends the fault."""
        server, processes = self._aim(fault)
        self.note(f"{fault}: processes {[one.pid for one in processes]}")
        if fault.how == FREEZE:
            _send(processes, signal.SIGSTOP)
        else:
            if server is not None:
                server.struck = server.killed = True
            _send(processes, signal.SIGKILL)

        def end() -> None:
            self.note(f"the end of {fault}")
            if fault.how == FREEZE:
                _send(processes, signal.SIGCONT)
            elif server is not None:
                server.struck = False

        return end

    def _aim(self, fault: Fault) -> tuple[Server | None, list[psutil.Process]]:
        """Return what is started again, and the processes. A driver that is killed leaves Spark's behind."""
        if fault.target == "executor":
            pids = sorted(self.spark.executor_pids())
            return None, _family(psutil.Process(pids[fault.number % len(pids)])) if pids else []
        if fault.target not in SERVERS:
            leads = fault.target != "standby"
            chosen = [one for one in self.drivers if one.leads is leads] or self.drivers
            driver = chosen[fault.number % len(chosen)]
            family = _family(driver.process())
            if fault.target == "driver's JVM":
                return None, family[1:]
            return driver, family if fault.how == FREEZE else family[:1]
        several = fault.target in ("Spark worker", "broker")
        server = self.servers[f"{fault.target} {fault.number + 1}" if several else fault.target]
        return server, _family(server.process())


def _send(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    """Signal those that are still there; another process that has got the pid of one is left alone."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _family(process: psutil.Process | None) -> list[psutil.Process]:
    """Return a process and all below it, or nothing when it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return [] if process is None else [process, *process.children(recursive=True)]
    return []
