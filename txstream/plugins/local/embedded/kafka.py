"""A real Kafka in KRaft mode on loopback ports: one or several brokers, without ZooKeeper.

Node 1 is broker and controller in one process; nodes 2, 3, ... are brokers. Node N keeps its data in
`kafka/node-N` below the data directory; the cluster's id is in `kafka/cluster-id`.

Invariant: once clients know the ports, these stay the same over an instance's life, so that a stopped broker
comes back where clients look for it. The invariants of the directories are in `kafka_storage.py`.

A broker is asked over a plain socket whether it is ready, with kafka-python's protocol: its clients would log
every connection that a starting server refuses to the user's standard error.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from txstream.cli.java import Java, find_java
from txstream.core.errors import ServiceUnavailableError, UsageError
from txstream.plugins.local.embedded.jars import kafka_classpath
from txstream.plugins.local.embedded.java import java_command
from txstream.plugins.local.embedded.kafka_storage import (
    cluster_id_of,
    format_storage,
    is_formatted,
    refuse_data_without_identity,
    write_properties,
)
from txstream.plugins.local.embedded.ports import HOST, free_port, require_free
from txstream.plugins.local.embedded.process import ProcessIdentity, ServerProcess, stop_all

if TYPE_CHECKING:
    from rich.console import Console

_VIEW_SECONDS = 2.0


@dataclass(frozen=True)
class ClusterView:
    """What a broker says about its cluster: its id, and the ids of the brokers that serve clients."""

    cluster_id: str
    brokers: frozenset[int]


def cluster_view(host: str, port: int) -> ClusterView | None:
    """Return the broker's answer to a metadata request, or None if it gives none (yet)."""
    from kafka.errors import KafkaError
    from kafka.protocol.metadata import MetadataRequest
    from kafka.protocol.parser import KafkaProtocol

    request = MetadataRequest[7](topics=[], allow_auto_topic_creation=False)
    protocol = KafkaProtocol(client_id="txstream-embedded")
    protocol.send_request(request)
    try:
        with socket.create_connection((host, port), timeout=_VIEW_SECONDS) as connection:
            connection.sendall(protocol.send_bytes())
            while data := connection.recv(1 << 16):
                for _, answer in protocol.receive_bytes(data):
                    brokers = frozenset(int(broker.node_id) for broker in answer.brokers)
                    return ClusterView(answer.cluster_id or "", brokers)
    except (OSError, KafkaError):
        return None
    return None


READY_SECONDS = 60.0

_HEAP_MB = 512
_PORT_TRIES = 3
_GRACE_SECONDS = 15.0  # a broker hands over its partitions and flushes its logs first

# For one machine and one user: nothing is replicated unless asked, nothing expires, a typing mistake creates
# no topic, and groups start at once. Sessions are short, so that a killed broker is noticed, and may register
# again, within seconds. The cleaner's default buffer alone would take a quarter of the heap.
_DEFAULTS: Mapping[str, str] = {
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": "-1",
    "log.retention.bytes": "-1",
    "log.segment.delete.delay.ms": "1000",
    "log.cleaner.dedupe.buffer.size": "8388608",
    "log.cleaner.backoff.ms": "1000",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}


@dataclass
class _Broker:
    node: int
    home: Path
    lock_path: Path
    process: ServerProcess
    port: int | None = None
    port_is_fixed: bool = field(default=False)

    @property
    def config(self) -> Path:
        return self.home.with_name(f"node-{self.node}.properties")


class EmbeddedKafka:
    """Kafka as child processes; a context manager that starts and stops them.

    `brokers` is the number of brokers. `port` is the first one's port or a list of ports; None takes a free
    one. `overrides` are broker properties that replace or add to ours. `console` shows the progress of
    fetching Kafka's jars the first time. Detached brokers outlive this process; others end with it.
    `identities` (by node) adopts running brokers instead of starting them.
    """

    def __init__(
        self,
        data_dir: Path,
        brokers: int = 1,
        port: int | Sequence[int | None] | None = None,
        *,
        detached: bool = False,
        controller_port: int | None = None,
        overrides: Mapping[str, str] | None = None,
        console: Console | None = None,
        java: Java | None = None,
        identities: Mapping[int, ProcessIdentity] | None = None,
    ) -> None:
        if brokers < 1:
            raise UsageError(f"brokers must be 1 or more, not {brokers}")
        ports = [port] if isinstance(port, int) else list(port or ())
        if len(ports) > brokers:
            raise UsageError(f"{len(ports)} Kafka ports were given for {brokers} broker(s)")
        self.data_dir = Path(data_dir).absolute()
        if "," in str(self.data_dir):
            raise UsageError(
                f"Kafka cannot keep data in {self.data_dir}: it takes a comma for the end of a path; "
                "give a data directory without one"
            )
        self.controller_port = controller_port
        self._controller_port_is_fixed = controller_port is not None
        self._home = self.data_dir / "kafka"
        self._overrides = dict(overrides or {})
        self._console = console
        self._java = java
        self._java_command: list[str] = []
        self._cluster_id: str | None = None
        self._brokers: dict[int, _Broker] = {}
        for node in range(1, brokers + 1):
            given = ports[node - 1] if node <= len(ports) else None
            lock_path = self._home / f"node-{node}.in-use.lock"
            process = ServerProcess(
                f"Kafka broker {node}",
                self.data_dir / "logs" / f"kafka-{node}.log",
                lock_path=lock_path,
                detached=detached,
                grace_seconds=_GRACE_SECONDS,
                identity=(identities or {}).get(node),
            )
            home = self._home / f"node-{node}"
            self._brokers[node] = _Broker(node, home, lock_path, process, given, given is not None)

    @property
    def address(self) -> str:
        """The bootstrap servers, `127.0.0.1:port` joined by commas, including stopped brokers.

        Raises ServiceUnavailableError before the first start if no ports were given.
        """
        return ",".join(f"{HOST}:{self.port_of(node)}" for node in self._brokers)

    @property
    def log_path(self) -> Path:
        """Node 1's log; see `log_paths`."""
        return self._brokers[1].process.log_path

    @property
    def log_paths(self) -> list[Path]:
        return [broker.process.log_path for broker in self._brokers.values()]

    @property
    def identities(self) -> dict[int, ProcessIdentity]:
        """The processes last started, by node, whether or not they still live."""
        return {
            node: broker.process.identity for node, broker in self._brokers.items() if broker.process.identity
        }

    @property
    def ports(self) -> dict[int, int]:
        """The ports chosen so far, by node."""
        return {node: broker.port for node, broker in self._brokers.items() if broker.port is not None}

    @property
    def nodes(self) -> list[int]:
        return list(self._brokers)

    def port_of(self, node: int) -> int:
        port = self._broker(node).port
        if port is None:
            raise ServiceUnavailableError("Kafka has no address before it is started; call start() first")
        return port

    def alive(self, node: int | None = None) -> bool:
        """Whether this node's process lives; without a node, whether all processes do."""
        if node is not None:
            return self._broker(node).process.alive()
        return all(broker.process.alive() for broker in self._brokers.values())

    def start(self, timeout_seconds: float = READY_SECONDS) -> Self:
        """Start the brokers that do not run. Return once each has answered a client and knows all others.

        Raises ServiceUnavailableError when there is no Java, there are no jars, a port or the data are in
        use, or no answer comes in time (the message then names the log file and its last words). Raises
        CorruptStateError when the data directory is not that of one cluster. On an error, whatever was
        started is stopped again.
        """
        self.launch()
        self.wait_ready(timeout_seconds)
        return self

    def launch(self, on_started: Callable[[], None] = lambda: None) -> None:
        """Do the first half of `start`: format if needed and start the processes, without waiting for them.

        `on_started` is called after each start.
        """
        missing = [broker for broker in self._brokers.values() if not broker.process.alive()]
        for broker in missing:
            broker.process.wait_for_data()
        self._choose_ports(missing)
        self._format([broker for broker in missing if not is_formatted(broker.home)])
        started: list[ServerProcess] = []
        try:
            for broker in missing:
                write_properties(broker.config, self._properties(broker, broker.home))
                self._launch(broker)
                started.append(broker.process)
                on_started()
        except BaseException:
            stop_all(started)
            raise

    def wait_ready(self, timeout_seconds: float = READY_SECONDS) -> None:
        """Do the second half of `start`: wait until all brokers answer. Stops all of them if they do not."""
        deadline = time.monotonic() + timeout_seconds
        for attempt in range(1, _PORT_TRIES + 1):
            try:
                self._wait_registered(list(self._brokers.values()), deadline)
            except BaseException as problem:
                lost_race = [b for b in self._brokers.values() if self._lost_its_port(b)]
                self.stop()
                if (
                    not isinstance(problem, ServiceUnavailableError)
                    or not lost_race
                    or attempt == _PORT_TRIES
                ):
                    raise
                for broker in lost_race:
                    broker.port = None
                if not self._controller_port_is_fixed:
                    self.controller_port = None
                self.launch()
            else:
                # From now on clients know the brokers by their ports: later starts keep them.
                self._controller_port_is_fixed = True
                for broker in self._brokers.values():
                    broker.port_is_fixed = True
                return

    def stop(self) -> None:
        """Stop all brokers cleanly. Node 1 is last: the others need a controller to hand over to."""
        stop_all([broker.process for node, broker in self._brokers.items() if node != 1])
        self._brokers[1].process.stop()

    def stop_broker(self, node: int, *, kill: bool = False) -> None:
        """Stop broker `node` (1, 2, ...), cleanly or by SIGKILL. Node 1 takes the controller with it."""
        process = self._broker(node).process
        if kill:
            process.kill()
        else:
            process.stop()

    def start_broker(self, node: int) -> None:
        """Start broker `node` again, on its port and with its data. Return once it serves clients.

        That takes some seconds: the controller waits for the session of the broker's last run to end.
        """
        broker = self._broker(node)
        self._choose_ports([broker])
        self._launch(broker)
        try:
            self._wait_registered(
                [b for b in self._brokers.values() if b.process.alive()] or [broker],
                time.monotonic() + READY_SECONDS,
            )
        except BaseException:
            broker.process.stop()
            raise

    def _broker(self, node: int) -> _Broker:
        try:
            return self._brokers[node]
        except KeyError:
            known = ", ".join(map(str, self._brokers))
            raise UsageError(f"there is no Kafka broker {node}; the brokers are {known}") from None

    def _choose_ports(self, brokers: list[_Broker]) -> None:
        taken = {b.port for b in self._brokers.values() if b.port} | {self.controller_port or 0}
        for broker in brokers:
            if broker.port is None:
                broker.port = free_port(frozenset(taken))
                taken.add(broker.port)
            require_free(broker.port, broker.process.name)
            if broker.node == 1:
                if self.controller_port is None:
                    self.controller_port = free_port(frozenset(taken))
                    taken.add(self.controller_port)
                require_free(self.controller_port, "Kafka's controller")

    def prepare(self) -> None:
        """Find Java and Kafka's jars, and fetch the jars if needed: this part of `start` may take long."""
        if not self._java_command:
            java = self._java or find_java()
            classpath = kafka_classpath(console=self._console)
            self._java_command = java_command(java, heap_mb=_HEAP_MB, classpath=classpath)

    def _command(self, main: str, *arguments: str) -> list[str]:
        self.prepare()
        return [*self._java_command, main, *arguments]

    def _launch(self, broker: _Broker) -> None:
        broker.process.start(self._command("kafka.Kafka", str(broker.config)), cwd=self._home)

    def _format(self, brokers: list[_Broker]) -> None:
        """Format these brokers' directories, all at the same time: each formatting is a JVM of its own."""
        cluster_id = self.cluster_id
        for broker in brokers:
            refuse_data_without_identity(broker.home)
        self.prepare()
        problems: list[Exception] = []

        def one(broker: _Broker) -> None:
            try:
                format_storage(
                    broker.home,
                    cluster_id,
                    lambda home: self._properties(broker, home),
                    self._command,
                    broker.lock_path,
                )
            except Exception as problem:  # noqa: BLE001 - raised again on the calling thread
                problems.append(problem)

        threads = [threading.Thread(target=one, args=(broker,)) for broker in brokers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if problems:
            raise problems[0]

    def _properties(self, broker: _Broker, home: Path) -> dict[str, str]:
        client = f"PLAINTEXT://{HOST}:{broker.port}"
        controller = f"{HOST}:{self.controller_port}"
        return {
            **_DEFAULTS,
            "process.roles": "broker,controller" if broker.node == 1 else "broker",
            "node.id": str(broker.node),
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"{client},CONTROLLER://{controller}" if broker.node == 1 else client,
            "advertised.listeners": client,
            "log.dirs": str(home),
            **self._overrides,
        }

    @property
    def cluster_id(self) -> str:
        """The id of this data directory's cluster, made on first use.

        Raises CorruptStateError when the nodes' own records of it differ.
        """
        if self._cluster_id is None:
            self._cluster_id = cluster_id_of(self._home)
        return self._cluster_id

    def _wait_registered(self, brokers: list[_Broker], deadline: float) -> None:
        expected = {broker.node for broker in brokers}
        cluster_id = self.cluster_id

        for broker in brokers:

            def registered(port: int = self.port_of(broker.node)) -> bool:
                view = cluster_view(HOST, port)
                return view is not None and view.cluster_id == cluster_id and view.brokers >= expected

            broker.process.wait_ready(registered, deadline)

    def _lost_its_port(self, broker: _Broker) -> bool:
        return not broker.port_is_fixed and "in use" in broker.process.log_since_start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
