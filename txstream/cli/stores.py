"""ZooKeeper and the database as commands read them: opened with deadlines, never created by looking."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from txstream.api.errors import TxstreamError
from txstream.metas import BatchMetas, MetaCodec

if TYPE_CHECKING:
    from txstream.settings import Settings
    from txstream.state import StateDatabase
    from txstream.zookeeper import Identity, Progress, ZooKeeper


class UnknownTopologyError(TxstreamError):
    """No topology of this id is known where the command looked."""

    exit_status: ClassVar[int] = 1

    def __init__(self, topology_id: str, sentence: str | None = None) -> None:
        super().__init__(
            sentence
            or f"there is no topology {topology_id!r} in this ZooKeeper and database; "
            "`txstream topologies` lists those that are"
        )


class PlainCodec(MetaCodec[Mapping[str, Any]]):
    """Metas as the JSON objects that they are stored as: commands do not have the spout's code."""

    def __init__(self) -> None:
        # Not the parent's: that one reads the fields of a dataclass.
        self.meta_type = dict

    def encode_meta(self, meta: Mapping[str, Any]) -> dict[str, Any]:
        return dict(meta)

    def decode_meta(self, document: Any, where: str) -> Mapping[str, Any]:
        return dict(document) if isinstance(document, dict) else {"value": document}


@contextlib.contextmanager
def open_zookeeper(settings: Settings) -> Iterator[ZooKeeper]:
    """Raises UsageError without an address, ServiceUnavailableError when it does not answer in time."""
    from txstream.zookeeper import ZooKeeper

    zookeeper = ZooKeeper(
        settings.require_zookeeper(),
        connect_timeout_seconds=settings.connect_timeout_seconds,
        session_timeout_seconds=settings.session_timeout_seconds,
    )
    zookeeper.start()
    try:
        yield zookeeper
    finally:
        zookeeper.close()


@contextlib.contextmanager
def existing_database(settings: Settings) -> Iterator[StateDatabase | None]:
    """The database, or None for a SQLite file that is not there: looking must not create it.

    Raises ServiceUnavailableError when it does not answer in time.
    """
    from txstream.state import open_database

    if _is_missing_file(settings.database_url()):
        yield None
        return
    database = open_database(
        settings.database_url(), connect_timeout_seconds=settings.connect_timeout_seconds
    )
    try:
        database.check()
        yield database
    finally:
        database.close()


def _is_missing_file(url: str) -> bool:
    scheme, separator, path = url.partition(":///")
    return bool(separator) and scheme.split("+")[0] == "sqlite" and not Path(path.partition("?")[0]).exists()


def missing_database(settings: Settings) -> str:
    """A sentence about a SQLite file that is not there."""
    return (
        f"there is no database at {settings.database_url().partition(':///')[2]}; give the one that the "
        "topology was run with by --database or TXSTREAM_DATABASE, or its data directory by --data-dir"
    )


def read_progress(zookeeper: ZooKeeper, topology_id: str) -> tuple[Identity | None, Progress | None]:
    """What ZooKeeper has of a topology; (None, None) when it has nothing. Raises CorruptStateError."""
    from txstream.zookeeper import ZooKeeperProgress

    store = ZooKeeperProgress(zookeeper, topology_id, PlainCodec())
    identity = store.read_identity()
    return identity, None if identity is None else store.load()


def is_dead(driver: str) -> bool:
    """Is this driver (host:pid) a process of this machine that is no more? Its session may outlive it for
    some seconds."""
    import psutil

    host, _, pid = driver.rpartition(":")
    return host == socket.gethostname() and pid.isdecimal() and not psutil.pid_exists(int(pid))


def plain_partitions(metas: Mapping[str, Any]) -> dict[str, Any]:
    """A ledger row's ranges as scripts read them: start and end alone where a meta has them."""
    return {partition: plain_range(meta) for partition, meta in metas.get("partitions", {}).items()}


def plain_range(meta: Any) -> Any:
    if isinstance(meta, Mapping) and {"start", "end"} <= meta.keys():
        return {"start": meta["start"], "end": meta["end"]}
    return meta


def positions(batch: BatchMetas[Any]) -> dict[str, Any]:
    """Where every partition stands after a batch: the next offset where the meta says it."""
    return {
        partition: meta["end"] if isinstance(meta, Mapping) and "end" in meta else meta
        for partition, meta in sorted(batch.positions().items())
    }
