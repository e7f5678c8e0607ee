"""The state file, `services.json` in the data directory: which detached servers are ours.

Invariants: the file is written whole or not at all. Only a process whose pid and start time both match the
record counts as alive. A file that we cannot have written is an error, and is never treated as missing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from txstream.api.errors import CorruptStateError
from txstream.embedded.files import write_atomically
from txstream.embedded.process import ProcessIdentity

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
