"""Serves metrics over HTTP: `txstream run --metrics [HOST:]PORT`."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from txstream.core.errors import ServiceUnavailableError, UsageError
from txstream.plugins.monitoring import require_client

if TYPE_CHECKING:
    from txstream.api.topology import Topology
    from txstream.plugins.monitoring.of_run import RunMetrics

_LOOPBACK = "127.0.0.1"
_HIGHEST_PORT = 65_535


def parse_address(given: str) -> tuple[str, int]:
    """Return host and port of "[HOST:]PORT". Raises UsageError."""
    host, _, port = given.rpartition(":")
    if not (port.isascii() and port.isdecimal()) or int(port) > _HIGHEST_PORT:
        raise UsageError(f"--metrics is {given!r}; it takes PORT or HOST:PORT, such as 9464")
    return host.removeprefix("[").removesuffix("]") or _LOOPBACK, int(port)


@contextlib.contextmanager
def served(metrics: RunMetrics, address: str) -> Iterator[str]:
    """Serve metrics inside the block, and yield their URL. Raises UsageError for an unusable address,
    ServiceUnavailableError for a port that is taken."""
    require_client()
    from prometheus_client import CollectorRegistry, start_http_server

    host, port = parse_address(address)
    registry = CollectorRegistry()
    registry.register(_Late(metrics))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        # A port that is taken may be free at the next start: no mistake of whoever typed it.
        kind = ServiceUnavailableError if error.errno == errno.EADDRINUSE else UsageError
        raise kind(
            f"--metrics {address}: {host} port {port} cannot be listened on ({error.strerror or error}); "
            "give another port, or 0 for a free one"
        ) from error
    try:
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(1.0)
        metrics.close()


@contextlib.contextmanager
def exported(topology: Topology, address: str, most_partitions: int) -> Iterator[tuple[RunMetrics, str]]:
    """Serve a run's metrics inside the block; yield what counts them, and their URL. Raises UsageError for
    an unusable address, and without the extra `metrics`."""
    require_client()
    from txstream.plugins.monitoring.of_run import RunMetrics

    metrics = RunMetrics(topology, most_partitions=most_partitions)
    with served(metrics, address) as url:
        yield metrics, url


class _Late:
    """A collector that is not asked for names when it is registered: it would have to scrape for them."""

    def __init__(self, metrics: RunMetrics) -> None:
        self.collect = metrics.collect

    def describe(self) -> list[Any]:
        return []
