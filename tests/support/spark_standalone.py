"""A Spark standalone cluster on this machine, from the pip package: a master and some worker daemons.

For tests of what a cluster does and `local[*]` does not: processes that lack our code, or that die.

Invariants: everything listens on loopback. All daemons, and the executors that they started, end with this
process, however it ends.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import psutil

from txstream.cli.java import find_java, spark_home
from txstream.core.errors import ServiceUnavailableError, UsageError
from txstream.plugins.local.embedded.ports import HOST, free_port, require_free
from txstream.plugins.local.embedded.process import ServerProcess, stop_all

READY_SECONDS = 60.0

_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
_DAEMON_MB = 256
_ANSWER_SECONDS = 2.0
_GRACE_SECONDS = 5.0
_RECOVERY_SECONDS = 5  # how long a restarted master waits for the workers and applications that it remembers


class SparkStandalone:
    """A master and `workers` worker daemons; a context manager that starts and stops them.

    `cores` and `memory` (Spark's notation, "1g") are what each worker offers. `worker_env` is added to the
    environment of the workers and thereby of the executors (PYSPARK_PYTHON, for example); a value of None
    removes a variable. A master that `remembers` can be restarted while its workers and applications go on.
    Logs are `logs/spark-*.log` and executors' files `spark` below `data_dir`.
    """

    def __init__(
        self,
        data_dir: Path,
        workers: int = 2,
        *,
        cores: int = 1,
        memory: str = "1g",
        port: int | None = None,
        worker_env: Mapping[str, str | None] | None = None,
        remembers: bool = False,
    ) -> None:
        if workers < 1:
            raise UsageError(f"workers must be 1 or more, not {workers}")
        self.data_dir = Path(data_dir).absolute()
        self.port = port
        self.web_port: int | None = None
        self._cores = cores
        self._memory = memory
        self._worker_env = dict(worker_env or {})
        self._remembers = remembers
        self.master = self._server("master")
        self.workers = [self._server(f"worker-{number}") for number in range(1, workers + 1)]

    @property
    def url(self) -> str:
        """`spark://127.0.0.1:port`, for `--master`. Raises ServiceUnavailableError before the first start."""
        return f"spark://{HOST}:{_started(self.port)}"

    @property
    def log_path(self) -> Path:
        """The master's log; see `log_paths`."""
        return self.master.log_path

    @property
    def log_paths(self) -> list[Path]:
        return [server.log_path for server in (self.master, *self.workers)]

    def start(self, timeout_seconds: float = READY_SECONDS) -> Self:
        """Start all daemons and return once the master has registered every worker.

        Raises ServiceUnavailableError, with the log's name and last words, when they are not ready in time.
        """
        find_java()  # Spark's own script would say less about a missing Java
        deadline = time.monotonic() + timeout_seconds
        if self.port is None:
            self.port = free_port()
        self.web_port = free_port(frozenset({self.port}))
        require_free(self.port, "the Spark master")
        try:
            self.launch_master()
            self.master.wait_ready(lambda: self.registered_workers() is not None, deadline)
            for number in range(1, len(self.workers) + 1):
                self.launch_worker(number)
            for worker in self.workers:
                worker.wait_ready(lambda: self.registered_workers() == len(self.workers), deadline)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the workers with their executors, and the master."""
        stop_all([*self.workers, self.master])

    def kill_master(self) -> None:
        """SIGKILL the master alone. Applications go on with the executors that they have and get no others,
        until `stop` and `start` make the cluster whole."""
        self.master.kill()

    def kill_worker(self, number: int) -> None:
        """SIGKILL worker daemon `number` (1, 2, ...) and its executors, as when a machine goes down."""
        self._worker(number).kill()

    def start_worker(self, number: int, timeout_seconds: float = READY_SECONDS) -> None:
        """Start a killed worker daemon again; return once the master has registered it."""
        worker = self._worker(number)
        known = {entry["id"] for entry in self._alive_workers() or []}
        self.launch_worker(number)
        worker.wait_ready(
            lambda: bool({entry["id"] for entry in self._alive_workers() or []} - known),
            time.monotonic() + timeout_seconds,
        )

    def executor_pids(self, worker: int | None = None) -> list[int]:
        """Return the pids of the executors (JVMs) that run now, of one worker daemon or of all."""
        chosen = self.workers if worker is None else [self._worker(worker)]
        pids = []
        for server in chosen:
            process = server.identity.process() if server.identity else None
            for child in process.children(recursive=True) if process else []:
                try:
                    if _EXECUTOR in child.cmdline():
                        pids.append(child.pid)
                except psutil.Error:
                    continue  # it ended meanwhile
        return pids

    def registered_workers(self) -> int | None:
        """Return how many live workers the master has, or None when it does not answer. Raises
        ServiceUnavailableError before the first start."""
        workers = self._alive_workers()
        return None if workers is None else len(workers)

    def _alive_workers(self) -> list[dict[str, str]] | None:
        url = f"http://{HOST}:{_started(self.web_port)}/json/"
        try:
            with urllib.request.urlopen(url, timeout=_ANSWER_SECONDS) as answer:
                document = json.load(answer)
        except (OSError, urllib.error.URLError, ValueError):
            return None
        return [worker for worker in document.get("workers", []) if worker.get("state") == "ALIVE"]

    def _worker(self, number: int) -> ServerProcess:
        if not 1 <= number <= len(self.workers):
            raise UsageError(f"there is no Spark worker {number}; they are 1 to {len(self.workers)}")
        return self.workers[number - 1]

    def launch_master(self) -> None:
        """Start the master's process without waiting for it."""
        place = ["--host", HOST, "--port", str(self.port), "--webui-port", str(self.web_port)]
        self._run(self.master, _MASTER, place, self._environment({}))

    def launch_worker(self, number: int) -> None:
        """Start a worker daemon's process without waiting for it."""
        work = self.data_dir / "spark" / f"worker-{number}"
        work.mkdir(parents=True, exist_ok=True)
        arguments = [
            "--host",
            HOST,
            "--webui-port",
            str(free_port()),
            "-c",
            str(self._cores),
            "-m",
            self._memory,
        ]
        arguments += ["-d", str(work), self.url]
        self._run(self._worker(number), _WORKER, arguments, self._environment(self._worker_env))

    def _run(self, server: ServerProcess, main: str, arguments: list[str], env: Mapping[str, str]) -> None:
        command = [str(spark_home() / "bin" / "spark-class"), main, *arguments]
        server.start(command, env=env, cwd=self.data_dir)

    def _environment(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        master = ["-Dspark.master.rest.enabled=false"]  # it would take work from anybody, at a fixed port
        if self._remembers:
            kept = self.data_dir / "spark" / "master"
            master += ["-Dspark.deploy.recoveryMode=FILESYSTEM", f"-Dspark.deploy.recoveryDirectory={kept}"]
            master += [f"-Dspark.deploy.recoveryTimeout={_RECOVERY_SECONDS}"]
        env = {
            **os.environ,
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": f"{_DAEMON_MB}m",
            # Daemons only: executors take their own flags from the application.
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "SPARK_MASTER_OPTS": " ".join(master),
        }
        for name, value in changes.items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value
        return env

    def _server(self, name: str) -> ServerProcess:
        return ServerProcess(
            f"Spark {name.replace('-', ' ')}",
            self.data_dir / "logs" / f"spark-{name}.log",
            grace_seconds=_GRACE_SECONDS,
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _started(port: int | None) -> int:
    if port is None:
        raise ServiceUnavailableError(
            "the Spark master has no address before it is started; call start() first"
        )
    return port
