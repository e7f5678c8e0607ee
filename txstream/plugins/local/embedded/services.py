"""The embedded ZooKeeper and Kafka together: detached (`up`, `down`, `running`) or owned (`embedded`).

Invariants:
- A process is recorded before it is waited for, so that a killed `up` leaves no unknown process. One that it
  leaves unrecorded, between the start and the record, still holds the lock on its data: the next `up` gets an
  error and does not start it a second time.
- Only a process whose pid and start time both match the record is taken to be running, or is signalled.
- One `up` or `down` at a time works on a data directory (`services.lock`).
- The record, `services.json` in the data directory, is written whole or not at all. One that we cannot have
  written is an error, and is never treated as missing.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from txstream.core.errors import CorruptStateError, UsageError
from txstream.plugins.local.embedded.files import locked, write_atomically
from txstream.plugins.local.embedded.kafka import EmbeddedKafka
from txstream.plugins.local.embedded.kafka_storage import formatted_nodes
from txstream.plugins.local.embedded.ports import HOST, is_free
from txstream.plugins.local.embedded.process import ProcessIdentity, ServerProcess, stop_all
from txstream.plugins.local.embedded.zookeeper import EmbeddedZooKeeper
from txstream.settings import using_data_dir

if TYPE_CHECKING:
    from rich.console import Console

STATE_FILE = "services.json"

_FORMAT = 1


@dataclass(frozen=True)
class ServerRecord:
    """One server in the state file."""

    name: str
    port: int
    pid: int
    start_time: float
    log: str

    @property
    def identity(self) -> ProcessIdentity:
        return ProcessIdentity(self.pid, self.start_time)

    @property
    def alive(self) -> bool:
        return self.identity.alive()


@dataclass(frozen=True)
class ServicesState:
    """The state file's contents: `kafka` by node; `ready` once all have answered a client."""

    zookeeper: ServerRecord | None
    kafka: Mapping[int, ServerRecord]
    brokers: int
    controller_port: int | None
    ready: bool

    @property
    def records(self) -> list[ServerRecord]:
        return [*self.kafka.values(), *([self.zookeeper] if self.zookeeper else [])]

    @property
    def complete(self) -> bool:
        """Whether every server is recorded and all were once ready."""
        return self.ready and self.zookeeper is not None and len(self.kafka) == self.brokers > 0

    def alive(self) -> ServicesState:
        """The same state without the servers that no longer run."""
        zookeeper = self.zookeeper if self.zookeeper and self.zookeeper.alive else None
        kafka = {node: record for node, record in self.kafka.items() if record.alive}
        return ServicesState(zookeeper, kafka, self.brokers, self.controller_port, self.ready)


def write_state(data_dir: Path, state: ServicesState) -> None:
    document = {"format": _FORMAT, **asdict(state)}
    write_atomically(data_dir / STATE_FILE, json.dumps(document, indent=2) + "\n")


def read_state(data_dir: Path) -> ServicesState | None:
    path = data_dir / STATE_FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        document = json.loads(text)
        if document["format"] != _FORMAT:
            raise ValueError(f"format {document['format']!r} instead of {_FORMAT}")
        zookeeper = document["zookeeper"]
        return ServicesState(
            None if zookeeper is None else ServerRecord(**zookeeper),
            {int(node): ServerRecord(**entry) for node, entry in document["kafka"].items()},
            document["brokers"],
            document["controller_port"],
            document["ready"],
        )
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise CorruptStateError(
            f"{path} is not a list of running services ({problem!r}): end what it named, then remove it "
            "(the *in-use.lock files below the data directory hold the pids)"
        ) from problem


log = logging.getLogger(__name__)

_LOCK_FILE = "services.lock"
_LOCK_WAIT_SECONDS = 180.0


@dataclass(frozen=True)
class Services:
    """Running embedded services: addresses, processes, logs.

    `zookeeper` is `127.0.0.1:port`, `kafka` the bootstrap servers. `already_running` means that the call that
    returned this started nothing.
    """

    zookeeper: str
    kafka: str
    data_dir: Path
    zookeeper_pid: int
    kafka_pids: tuple[int, ...]
    logs: tuple[Path, ...]
    already_running: bool = False


@dataclass(frozen=True)
class Stopped:
    """A service that `down` stopped."""

    name: str
    address: str
    pid: int

    def __str__(self) -> str:
        return f"{self.name} at {self.address} (process {self.pid})"


def running(data_dir: Path) -> Services | None:
    """Return the detached services of this data directory if all of them run, else None.

    Raises CorruptStateError when the state file cannot be what `up` wrote.
    """
    state = read_state(Path(data_dir).absolute())
    if state is None or not state.complete or not all(record.alive for record in state.records):
        return None
    return _services(Path(data_dir).absolute(), state, already_running=True)


def living(data_dir: Path) -> dict[str, str]:
    """Return the addresses, `zookeeper` and `kafka`, of this data directory's detached services that run, and
    warn of those that have ended. Brokers that have all ended are named beside a ZooKeeper that runs, so that
    who asks them says where nobody answers. Returns nothing until `up` has finished.

    Raises CorruptStateError when the state file cannot be what `up` wrote.
    """
    state = read_state(Path(data_dir).absolute())
    if state is None or not state.complete:
        return {}
    alive = state.alive()
    ended = [f"{record.name} at {HOST}:{record.port}" for record in state.records if not record.alive]
    if ended:
        log.warning(
            "embedded services that have ended: %s; `txstream up` starts them again", ", ".join(ended)
        )
    if alive.zookeeper is None:
        return {"kafka": _bootstrap(alive)} if alive.kafka else {}
    kafka = _bootstrap(alive if alive.kafka else state)
    return {"kafka": kafka, "zookeeper": f"{HOST}:{alive.zookeeper.port}"}


def up(
    data_dir: Path,
    *,
    brokers: int = 1,
    zookeeper_port: int | None = None,
    kafka_port: int | None = None,
    console: Console | None = None,
) -> Services:
    """Start ZooKeeper and Kafka so that they outlive this process, or return those that run already.

    Running servers are left as they are, whatever ports and brokers are asked for. Dead ones are started
    again, on their old port if that is free. Says on `console` which of these happened. If this call fails,
    it stops whatever it started. Raises ServiceUnavailableError, in one sentence: no Java, no jars, a port
    taken, no answer in time, another `up` still at work.
    """
    data_dir = Path(data_dir).absolute()
    if brokers < 1:
        raise UsageError(f"brokers must be 1 or more, not {brokers}")
    say = _speaker(console)
    with (
        using_data_dir(data_dir),
        locked(
            data_dir / _LOCK_FILE,
            waiting_for="starting or stopping these services",
            timeout_seconds=_LOCK_WAIT_SECONDS,
        ),
    ):
        before = read_state(data_dir)
        alive = before.alive() if before else None
        if before and alive and before == alive and alive.complete:
            services = _services(data_dir, alive, already_running=True)
            say(f"already running: ZooKeeper at {services.zookeeper}, Kafka at {services.kafka}")
            _warn_of_brokers(alive, brokers)
            return services
        if before is not None and alive is not None and alive.records:
            services = _complete(data_dir, before, alive, console, say)
            _warn_of_brokers(before, brokers)
            return services
        brokers = _enough(data_dir, brokers, say)
        zookeeper = EmbeddedZooKeeper(data_dir, zookeeper_port, detached=True)
        kafka = EmbeddedKafka(data_dir, brokers, kafka_port, detached=True, console=console)
        services = _start(data_dir, zookeeper, kafka)
        say(f"started: ZooKeeper at {services.zookeeper}, Kafka at {services.kafka}")
        return services


def down(data_dir: Path, *, console: Console | None = None) -> list[Stopped]:
    """Stop the detached services of this data directory, and only those. Return the list of those stopped.

    A process is signalled only if its pid and its start time match the record. Says on `console` what was
    stopped, or that nothing was running. Raises CorruptStateError for an unreadable state file.
    """
    data_dir = Path(data_dir).absolute()
    say = _speaker(console)
    if not (data_dir / STATE_FILE).exists():
        say(f"nothing is running: {data_dir} has no {STATE_FILE}")
        return []
    with locked(
        data_dir / _LOCK_FILE,
        waiting_for="starting or stopping these services",
        timeout_seconds=_LOCK_WAIT_SECONDS,
    ):
        state = read_state(data_dir)
        records = state.alive().records if state else []
        # The controller is last: the other brokers hand their partitions over to it.
        others = [record for record in records if state is None or record is not state.kafka.get(1)]
        controllers = [record for record in records if record not in others]
        for group in (others, controllers):
            stop_all([_adopted(record) for record in group])
        (data_dir / STATE_FILE).unlink(missing_ok=True)
    stopped = [Stopped(record.name, f"{HOST}:{record.port}", record.pid) for record in records]
    for service in stopped:
        say(f"stopped {service}")
    if not stopped:
        say(f"nothing was running any more; removed the stale {data_dir / STATE_FILE}")
    return stopped


@contextlib.contextmanager
def embedded(data_dir: Path, brokers: int = 1, console: Console | None = None) -> Iterator[Services]:
    """Run ZooKeeper and Kafka during a `with` block, for demo and tests.

    If detached services run on this data directory, they are used and left running. Otherwise servers are
    started that end with the block, and with this process however it ends. Raises what `up` raises.
    """
    data_dir = Path(data_dir).absolute()
    found = running(data_dir)
    if found is not None:
        yield found
        return
    brokers = _enough(data_dir, brokers, _speaker(console))
    zookeeper = EmbeddedZooKeeper(data_dir)
    kafka = EmbeddedKafka(data_dir, brokers, console=console)
    try:
        _launch_both(zookeeper, kafka, on_started=lambda: None)
        state = _state_of(zookeeper, kafka, ready=False)
        yield _services(data_dir, state, already_running=False)
    finally:
        _stop_both(zookeeper, kafka)


def _warn_of_brokers(running: ServicesState, wanted: int) -> None:
    """Warn if a number of brokers was asked for other than the number there is. 1 is also the default, so it
    draws no warning."""
    there = running.brokers
    if wanted in (1, there):
        return
    more = f"for {wanted}, type `txstream down`, then `txstream up --brokers {wanted}`; the data stay"
    log.warning(
        "there %s, not %d: %s",
        "is 1 Kafka broker" if there == 1 else f"are {there} Kafka brokers",
        wanted,
        more if wanted > there else "each has data",
    )


def _complete(
    data_dir: Path,
    before: ServicesState,
    alive: ServicesState,
    console: Console | None,
    say: Callable[[str], None],
) -> Services:
    """Start the recorded servers that died again, on their old ports. The others are left alone, unless the
    controller's port is taken: then all brokers are started again."""
    old_zookeeper = before.zookeeper
    zookeeper = EmbeddedZooKeeper(
        data_dir,
        _port_again(old_zookeeper, alive.zookeeper),
        detached=True,
        identity=alive.zookeeper.identity if alive.zookeeper else None,
    )
    lost = [node for node in range(1, before.brokers + 1) if node not in alive.kafka]
    controller_port = before.controller_port
    if 1 in lost and alive.kafka and (controller_port is None or not is_free(controller_port)):
        # The other brokers look for the controller at a port that another process has now.
        stop_all([_adopted(record) for record in alive.kafka.values()])
        alive, controller_port = ServicesState(alive.zookeeper, {}, before.brokers, None, False), None
    elif 1 in lost and controller_port is not None and not is_free(controller_port):
        controller_port = None
    kafka = EmbeddedKafka(
        data_dir,
        before.brokers,
        [_port_again(before.kafka.get(node), alive.kafka.get(node)) for node in range(1, before.brokers + 1)],
        detached=True,
        controller_port=controller_port,
        console=console,
        identities={node: record.identity for node, record in alive.kafka.items()},
    )
    restarted = [record.name for record in before.records if record not in alive.records]
    services = _start(data_dir, zookeeper, kafka)
    what = ", ".join(restarted) or "what was missing"
    say(f"started {what} again: ZooKeeper at {services.zookeeper}, Kafka at {services.kafka}")
    return services


def _port_again(old: ServerRecord | None, alive: ServerRecord | None) -> int | None:
    """The port of a running server, or the old port of a dead one if it is still free; else None."""
    if alive is not None:
        return alive.port
    return old.port if old is not None and is_free(old.port) else None


def _start(data_dir: Path, zookeeper: EmbeddedZooKeeper, kafka: EmbeddedKafka) -> Services:
    """Start those servers that do not run, and record them. On failure, stop what was started and record
    that."""
    adopted = {identity for identity in (zookeeper.identity, *kafka.identities.values()) if identity}

    def record() -> None:
        write_state(data_dir, _state_of(zookeeper, kafka, ready=False))

    try:
        _launch_both(zookeeper, kafka, on_started=record)
        state = _state_of(zookeeper, kafka, ready=True)
        write_state(data_dir, state)
    except BaseException:
        _stop_both(zookeeper, kafka, leave=adopted)
        left = _state_of(zookeeper, kafka, ready=False).alive()
        if left.records:
            write_state(data_dir, left)
        else:
            (data_dir / STATE_FILE).unlink(missing_ok=True)
        raise
    return _services(data_dir, state, already_running=False)


def _launch_both(
    zookeeper: EmbeddedZooKeeper, kafka: EmbeddedKafka, *, on_started: Callable[[], None]
) -> None:
    """Start both at the same time and wait for both. `on_started` is called after each process start."""
    kafka.prepare()  # downloads, if needed, before anything runs
    if not zookeeper.alive():
        zookeeper.launch()
        on_started()
    kafka.launch(on_started)
    zookeeper.wait_ready()
    kafka.wait_ready()


def _stop_both(
    zookeeper: EmbeddedZooKeeper, kafka: EmbeddedKafka, leave: set[ProcessIdentity] | None = None
) -> None:
    leave = leave or set()
    for node in reversed(kafka.nodes):
        if kafka.identities.get(node) not in leave:
            kafka.stop_broker(node)
    if zookeeper.identity not in leave:
        zookeeper.stop()


def _enough(data_dir: Path, brokers: int, say: Callable[[str], None]) -> int:
    """At least as many brokers as have data here: the partitions of the missing ones would be unreadable."""
    needed = formatted_nodes(data_dir / "kafka")
    if needed > brokers:
        say(f"starting {needed} Kafka brokers, because {data_dir} holds the data of {needed}")
    return max(needed, brokers)


def _adopted(record: ServerRecord) -> ServerProcess:
    return ServerProcess(record.name, Path(record.log), detached=True, identity=record.identity)


def _speaker(console: Console | None) -> Callable[[str], None]:
    def say(text: str) -> None:
        if console is not None:
            console.print(text, highlight=False, markup=False, soft_wrap=True)

    return say


def _bootstrap(state: ServicesState) -> str:
    return ",".join(f"{HOST}:{state.kafka[node].port}" for node in sorted(state.kafka))


def _services(data_dir: Path, state: ServicesState, *, already_running: bool) -> Services:
    zookeeper, kafka = state.zookeeper, state.kafka
    if zookeeper is None:
        raise CorruptStateError(
            f"{data_dir / STATE_FILE} has no ZooKeeper; run `txstream down`, then `txstream up`"
        )
    ordered = [kafka[node] for node in sorted(kafka)]
    return Services(
        zookeeper=f"{HOST}:{zookeeper.port}",
        kafka=_bootstrap(state),
        data_dir=data_dir,
        zookeeper_pid=zookeeper.pid,
        kafka_pids=tuple(record.pid for record in ordered),
        logs=(Path(zookeeper.log), *(Path(record.log) for record in ordered)),
        already_running=already_running,
    )


def _state_of(zookeeper: EmbeddedZooKeeper, kafka: EmbeddedKafka, *, ready: bool) -> ServicesState:
    """The record of what has been started so far."""

    def record(
        name: str, port: int | None, identity: ProcessIdentity | None, log: Path
    ) -> ServerRecord | None:
        if identity is None or port is None:
            return None
        return ServerRecord(name, port, identity.pid, identity.start_time, str(log))

    brokers = {
        node: record(f"Kafka broker {node}", kafka.ports.get(node), identity, kafka.log_paths[node - 1])
        for node, identity in kafka.identities.items()
    }
    return ServicesState(
        record("ZooKeeper", zookeeper.port, zookeeper.identity, zookeeper.log_path),
        {node: entry for node, entry in brokers.items() if entry is not None},
        len(kafka.nodes),
        kafka.controller_port,
        ready,
    )
