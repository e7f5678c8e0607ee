"""What other systems are told. Metrics in Prometheus' format: of a run while it goes on, and of all
topologies as ledgers and ZooKeeper have them; spans; dead letters in a topic. Only this room imports
prometheus-client, which the extra `metrics` installs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txstream.core.errors import UsageError

if TYPE_CHECKING:
    from txstream.plugins.monitoring.of_ledgers import Totals
    from txstream.settings import Settings


def exposition_of_ledgers(settings: Settings | None = None, totals: Totals | None = None) -> bytes:
    """Return what is known of all topologies without their drivers, as text in Prometheus' format
    (`of_ledgers.CONTENT_TYPE`). Whoever serves it keeps one dict for `totals`, in which batches are counted
    from call to call; without it there are no totals. Raises UsageError without the extra `metrics` or an
    address of ZooKeeper, and ServiceUnavailableError if ZooKeeper does not answer."""
    require_client()
    from txstream.plugins.monitoring.of_ledgers import exposition

    return exposition(settings, totals)


def require_client() -> None:
    """Raise UsageError unless prometheus-client is installed."""
    try:
        import prometheus_client  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise UsageError(
            "metrics need prometheus-client, which is not installed: pip install 'txstream[metrics]'"
        ) from error
