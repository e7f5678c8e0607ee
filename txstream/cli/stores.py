"""ZooKeeper and the database as commands read them: opened with deadlines, never created by looking."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from txstream.api.errors import TxstreamError

if TYPE_CHECKING:
    from txstream.settings import Settings
    from txstream.state import StateDatabase
    from txstream.zookeeper import ZooKeeper


class UnknownTopologyError(TxstreamError):
    """No topology of this id is known where the command looked."""

    exit_status: ClassVar[int] = 1

    def __init__(self, topology_id: str, sentence: str | None = None) -> None:
        super().__init__(
            sentence
            or f"there is no topology {topology_id!r} in this ZooKeeper and database; "
            "`txstream topologies` lists those that are"
        )


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
    """The name of a SQLite file that is not there."""
    return f"{settings.database_url().partition(':///')[2]} (no such file)"


def is_dead(driver: str) -> bool:
    """Is this driver (host:pid) a process of this machine that is no more? Its session may outlive it for
    some seconds."""
    import psutil

    host, _, pid = driver.rpartition(":")
    if host != socket.gethostname() or not pid.isdecimal():
        return False
    try:
        return psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


def plain_partitions(metas: Mapping[str, Any]) -> dict[str, Any]:
    """A ledger row's ranges as scripts read them: start and end alone where a meta has them."""
    return {partition: plain_range(meta) for partition, meta in metas.get("partitions", {}).items()}


def plain_range(meta: Any) -> Any:
    if isinstance(meta, Mapping) and {"start", "end"} <= meta.keys():
        return {"start": meta["start"], "end": meta["end"]}
    return meta
