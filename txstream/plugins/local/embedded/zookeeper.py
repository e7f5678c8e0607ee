"""A real ZooKeeper server on a loopback port, from the jars that PySpark ships.

Invariants: what ZooKeeper acknowledged survives `stop`, `kill` and a restart over the same directory. Once
the server was ready, its address stays the same over an instance's life. A data directory has at most one
server at a time.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from txstream.cli.java import Java, find_java, spark_jars
from txstream.core.errors import ServiceUnavailableError
from txstream.plugins.local.embedded.files import java_properties, write_atomically
from txstream.plugins.local.embedded.java import LOGGING_JARS, java_command
from txstream.plugins.local.embedded.ports import HOST, free_port, require_free
from txstream.plugins.local.embedded.process import ProcessIdentity, ServerProcess

READY_SECONDS = 30.0

_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JARS = (
    "zookeeper-[0-9]*.jar",
    "zookeeper-jute-*.jar",
    *LOGGING_JARS,
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "netty-*.jar",
    "commons-io-*.jar",
    "commons-cli-*.jar",
)
_HEAP_MB = 256
_ANSWER_SECONDS = 1.0
_PORT_TRIES = 3

# ZooKeeper measures sessions in ticks: its default of 2 s would make 4 s the shortest session. Tests of a
# lost session need short ones, drivers that may be paused need up to a minute.
_DEFAULTS: Mapping[str, str] = {
    "tickTime": "500",
    "minSessionTimeout": "1000",
    "maxSessionTimeout": "60000",
    "clientPortAddress": HOST,
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
    "4lw.commands.whitelist": "srvr,ruok,mntr",
    "autopurge.snapRetainCount": "3",
    "autopurge.purgeInterval": "1",
}


class EmbeddedZooKeeper:
    """ZooKeeper as a child process; a context manager that starts and stops it.

    `data_dir` is the directory shared with the other embedded services. ZooKeeper's data are in `zookeeper`
    below it, its log is `logs/zookeeper.log`. `port` None takes a free one. A `detached` server outlives this
    process; any other ends with it. `identity` adopts a running server instead of starting one. `overrides`
    are added to its configuration, `java_options` to its command.
    """

    def __init__(
        self,
        data_dir: Path,
        port: int | None = None,
        *,
        detached: bool = False,
        java: Java | None = None,
        identity: ProcessIdentity | None = None,
        overrides: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        self._overrides = dict(overrides or {})
        self._java_options = tuple(java_options)
        self.data_dir = Path(data_dir).absolute()
        self.port = port
        self._port_is_fixed = port is not None
        self._java = java
        self._home = self.data_dir / "zookeeper"
        self._process = ServerProcess(
            "ZooKeeper",
            self.data_dir / "logs" / "zookeeper.log",
            lock_path=self._home / "in-use.lock",
            detached=detached,
            identity=identity,
        )

    @property
    def address(self) -> str:
        """`127.0.0.1:port`. Raises ServiceUnavailableError before the first start if no port was given."""
        if self.port is None:
            raise ServiceUnavailableError("ZooKeeper has no address before it is started; call start() first")
        return f"{HOST}:{self.port}"

    @property
    def log_path(self) -> Path:
        return self._process.log_path

    @property
    def identity(self) -> ProcessIdentity | None:
        return self._process.identity

    def alive(self) -> bool:
        return self._process.alive()

    def start(self, timeout_seconds: float = READY_SECONDS) -> Self:
        """Start the server and return once it has answered a request.

        Raises ServiceUnavailableError when there is no Java, the port or the data are in use, or no answer
        comes in time (the message then names the log file and its last words). On an error, the server is
        stopped again.
        """
        self.launch()
        self.wait_ready(timeout_seconds)
        return self

    def launch(self) -> None:
        """Do the first half of `start`: start the process, without waiting for it."""
        java = self._java or find_java()
        if self.port is None:
            self.port = free_port()
        self._process.wait_for_data()
        require_free(self.port, "ZooKeeper")
        data = self._home / "data"
        data.mkdir(parents=True, exist_ok=True)
        config = self._home / "zoo.cfg"
        settings = {**_DEFAULTS, "dataDir": str(data), "clientPort": str(self.port), **self._overrides}
        write_atomically(config, java_properties(settings))
        command = java_command(java, heap_mb=_HEAP_MB, classpath=[str(jar) for jar in spark_jars(_JARS)])
        # The default preallocates 64 MiB of log at every start; a batch's progress is a few hundred bytes.
        options = ["-Dzookeeper.preAllocSize=4096", *self._java_options]
        self._process.start([*command[:1], *options, *command[1:], _MAIN, str(config)], cwd=self._home)

    def wait_ready(self, timeout_seconds: float = READY_SECONDS) -> None:
        """Do the second half of `start`: wait until a request is answered. Stops the server if none is."""
        deadline = time.monotonic() + timeout_seconds
        for attempt in range(1, _PORT_TRIES + 1):
            try:
                self._process.wait_ready(self._answers, deadline)
            except ServiceUnavailableError:
                lost_race = "BindException" in self._process.log_since_start()
                self._process.stop()
                if not lost_race or self._port_is_fixed or attempt == _PORT_TRIES:
                    raise
                self.port = None
                self.launch()
            except BaseException:
                self._process.stop()
                raise
            else:
                # From now on clients know this server by its port: later starts keep it.
                self._port_is_fixed = True
                return

    def stop(self) -> None:
        """Stop the server cleanly; a no-op when it does not run."""
        self._process.stop()

    def kill(self) -> None:
        """SIGKILL the server, as in a crash. `start()` brings it back with its port and data."""
        self._process.kill()

    def _answers(self) -> bool:
        return "Mode: standalone" in four_letter_word(self.address, "srvr")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def four_letter_word(address: str, word: str) -> str:
    """Return what the ZooKeeper at `host:port` answers to a four-letter word; empty if it does not answer."""
    host, _, port = address.rpartition(":")
    answer = b""
    try:
        with socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS) as connection:
            connection.sendall(word.encode())
            while piece := connection.recv(4096):
                answer += piece
    except OSError:
        return ""
    return answer.decode(errors="replace")
