"""The states' databases that a worker process has open. Each is opened by its URL when a task first needs it.

Invariant: there is one open `StateBackend` per place and topology, kept from batch to batch until the process
ends its run. A process that neither reads nor writes states opens none and imports nothing of SQL.
"""

from __future__ import annotations

import logging
import socket
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from txstream.core.errors import ServiceUnavailableError, TopologyError, UsageError

if TYPE_CHECKING:
    from txstream.state import StateBackend

log = logging.getLogger(__name__)

_WITHOUT_EXECUTORS = "commit='driver', unless bolts write states themselves"


@dataclass(frozen=True)
class StorePlace:
    """Where a store is and how long to wait for it. The URL may hold a password, so it is never shown."""

    url: str = field(repr=False)
    connect_timeout_seconds: float
    message_timeout_seconds: float


class OpenStores:
    """The stores that this process has open. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[tuple[StorePlace, str], StateBackend] = {}

    def get(self, place: StorePlace, topology: str) -> StateBackend:
        """Return the store of a topology, which is opened when first asked for.

        Raises TopologyError when this process cannot write there at all, because a library is missing or
        the topology has nothing there; ServiceUnavailableError when the store does not answer.
        """
        with self._lock:
            found = self._open.get((place, topology))
            if found is None:
                found = self._open[place, topology] = _open(place, topology)
            return found

    def close(self) -> None:
        """Close all stores. A failure to close is logged, so that the rest is closed all the same."""
        with self._lock:
            opened, self._open = self._open, {}
        for store in opened.values():
            try:
                store.close()
            except Exception:
                log.warning("store %s failed to close", store.display_url, exc_info=True)


def _open(place: StorePlace, topology: str) -> StateBackend:
    try:
        from txstream.state import open_database

        store = open_database(
            place.url,
            connect_timeout_seconds=place.connect_timeout_seconds,
            message_timeout_seconds=place.message_timeout_seconds,
        )
    except ImportError as error:
        raise _missing(error) from error
    except ServiceUnavailableError as error:
        if isinstance(error.__cause__, ImportError):
            raise _missing(error.__cause__) from error
        raise
    except UsageError as error:  # the driver can open it, so the user's URL is right
        raise TopologyError(
            f"host {socket.gethostname()} cannot open the database: {error}; install the package of that "
            f"backend there, or build with {_WITHOUT_EXECUTORS}"
        ) from error
    try:
        store.check()
        if store.read_fence(topology) is None:
            raise TopologyError(
                f"host {socket.gethostname()} finds nothing of topology {topology!r} in database "
                f"{store.display_url}, where the driver has it; a file or a loopback address means "
                f"another place there: use a database that all hosts reach under one URL, or build with "
                f"{_WITHOUT_EXECUTORS}"
            )
    except BaseException:
        store.close()
        raise
    return store


def _missing(error: ImportError) -> TopologyError:
    return TopologyError(
        f"the Python of host {socket.gethostname()} cannot import what it needs to write states ({error}); "
        f"install SQLAlchemy and the database's driver there, as with pip install 'txstream[postgresql]', or "
        f"build with {_WITHOUT_EXECUTORS}"
    )
