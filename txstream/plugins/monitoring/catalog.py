"""The metrics: name, kind, labels and help of each. Every sample has the label `topology`, too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

_KINDS: Mapping[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class Described(NamedTuple):
    """One metric. `kind` is "counter", "gauge" or "histogram"."""

    kind: str
    labels: tuple[str, ...]
    help: str


CATALOG: Mapping[str, Described] = {
    "txstream_last_committed_txid": Described("gauge", (), "The txid that was committed last."),
    "txstream_last_commit_timestamp_seconds": Described(
        "gauge", (), "When the last batch was committed, in seconds since 1970."
    ),
    "txstream_batches_total": Described(
        "counter",
        ("outcome",),
        "Attempts of batches: committed, failed, or dropped because an earlier batch failed.",
    ),
    "txstream_attempts_failed_total": Described(
        "counter", ("component", "reason"), "Failed attempts, by the class of the error."
    ),
    "txstream_batch_phase_seconds": Described(
        "histogram", ("phase",), "How long the steps of committed batches took."
    ),
    "txstream_records_total": Described("counter", (), "Records of committed batches, or emitted tuples."),
    "txstream_source_lag_records": Described(
        "gauge",
        ("topic", "partition"),
        "Records behind the last committed place. The partition is 'all' where a topic has many.",
    ),
    "txstream_source_held_back_records": Described(
        "gauge",
        ("topic", "partition"),
        "Those of them that cannot be read yet: behind an open transaction. Left out where there are none.",
    ),
    "txstream_source_lag_seconds": Described(
        "gauge", (), "How long ago the log ended where the topology has now got to, as scrapes saw it."
    ),
    "txstream_source_unavailable_seconds": Described(
        "gauge", (), "For how long a partition or the source cannot be read; 0 if all can."
    ),
    "txstream_waiting_seconds": Described(
        "gauge", (), "How long the oldest wait for a service lasts; 0 without one."
    ),
    "txstream_health": Described(
        "gauge",
        ("state",),
        "1 for the state that the topology is in: healthy, paused, leaving out records, retrying a batch, "
        "waiting, failing; 0 for the others.",
    ),
    "txstream_search_seconds": Described(
        "gauge", (), "How long a search for a failing record lasts; 0 without one."
    ),
    "txstream_open_batches": Described("gauge", (), "Batches that are planned and not committed."),
    "txstream_state_rows_written_total": Described(
        "counter", ("table",), "Rows that committed batches wrote from their deltas."
    ),
    "txstream_leader": Described("gauge", (), "1 if the topology is led: here, by this driver."),
    "txstream_epoch": Described("gauge", (), "The leader's epoch. It grows with each leader."),
    "txstream_fenced_total": Described("counter", (), "Writes that a fence refused."),
    "txstream_dead_letters_total": Described(
        "counter", ("component",), "Records that committed batches left out."
    ),
    "txstream_late_records_total": Described(
        "counter", ("table",), "Those of them that were older than the table keeps rows."
    ),
    "txstream_watermark_timestamp_seconds": Described(
        "gauge", ("table",), "Up to which time the table's windows are closed, in seconds since 1970."
    ),
    "txstream_watermark_held_back": Described(
        "gauge", ("table", "partition"), "1 for each partition that holds the table's watermark back."
    ),
    "txstream_acker_pending": Described("gauge", ("component",), "Open trees of tracked tuples, by spout."),
    "txstream_acker_oldest_seconds": Described("gauge", (), "The age of the oldest open tree."),
    "txstream_acker_acked_total": Described("counter", ("component",), "Trees that were acked, by spout."),
    "txstream_acker_failed_total": Described("counter", ("component",), "Trees that failed, by spout."),
    "txstream_acker_timed_out_total": Described(
        "counter", ("component",), "Trees whose time was over, by spout."
    ),
}


class Families:
    """Collects samples of one or many topologies; `metrics` yields those that have any."""

    def __init__(self) -> None:
        self._families: dict[str, Any] = {}

    def add(self, topology: str, name: str, value: float, *labels: str) -> None:
        self._family(name).add_metric([topology, *labels], value)

    def add_histogram(
        self, topology: str, name: str, buckets: Iterable[tuple[str, float]], total: float, *labels: str
    ) -> None:
        self._family(name).add_metric([topology, *labels], list(buckets), total)

    def metrics(self) -> Iterable[Metric]:
        return list(self._families.values())

    def _family(self, name: str) -> Any:
        family = self._families.get(name)
        if family is None:
            kind, labels, told = CATALOG[name]
            family = self._families[name] = _KINDS[kind](
                name.removesuffix("_total") if kind == "counter" else name, told, labels=["topology", *labels]
            )
        return family
