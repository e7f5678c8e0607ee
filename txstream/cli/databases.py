"""ZooKeeper and the database as commands read them: opened with deadlines, never created by looking."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from txstream.cli.context import print_error
from txstream.inspect.databases import UnknownTopologyError, is_missing_file, open_zookeeper

if TYPE_CHECKING:
    from txstream.inspect.records import MissingDatabase
    from txstream.settings import Settings
    from txstream.state import StateBackend

__all__ = ["UnknownTopologyError", "existing_database", "open_zookeeper", "warn_of_missing"]


@contextlib.contextmanager
def existing_database(settings: Settings) -> Iterator[StateBackend | None]:
    """Yield the database, or None for a SQLite file that is not there: looking must not create it.

    Raises ServiceUnavailableError when it does not answer in time.
    """
    from txstream.state import open_database

    if is_missing_file(settings.database_url()):
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


def warn_of_missing(missing: Sequence[MissingDatabase]) -> None:
    """Name the databases that could not be looked at, on standard error, even with --quiet."""
    for one in missing:
        print_error(f"txstream: {one}")
