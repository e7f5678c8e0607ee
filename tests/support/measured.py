"""Runs without a server whose metrics are scraped over HTTP, and what a scrape says."""

from __future__ import annotations

import contextlib
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from support.bolts import Split, words_state
from support.kafka_topics import wait_until
from txstream import CountBolt, OpaqueSpout, SqlStateBolt, Sum, TransactionalTopologyBuilder
from txstream.api.bolts import BasicBolt
from txstream.api.topology import Topology
from txstream.engine.loop.open_batches import Watcher, Watchers
from txstream.engine.loop.workers import ThreadWorkers
from txstream.engine.start.batch_tier import BatchTier
from txstream.engine.start.driver import Driver, Tier
from txstream.plugins.monitoring.of_run import RunMetrics
from txstream.plugins.monitoring.server import served
from txstream.plugins.proof.zookeeper_tree import MemoryTree
from txstream.plugins.testing.services import MemoryServices
from txstream.plugins.tracked.builder import TrackedTopology
from txstream.plugins.tracked.tier import TrackedTier
from txstream.spouts.memory import MemorySpout
from txstream.testing import InProcessRunner

Samples = dict[tuple[str, ...], float]

LINES = {"lines/0": ["the cat", "the dog", "a cat"], "lines/1": ["the end", "of the cat"]}


def counting(source: MemorySpout, split: BasicBolt | None = None, **options: Any) -> Topology:
    """Lines to words to counts, two records in a batch."""
    spout = OpaqueSpout(source, max_batch_records=2)
    builder = TransactionalTopologyBuilder("word-count", "lines", spout, **options)
    builder.set_bolt("split", split or Split()).shuffle_grouping("lines")
    builder.set_bolt("count", CountBolt("word")).fields_grouping("split", "word")
    store = SqlStateBolt(words_state(), n=Sum("n"))
    builder.set_committer_bolt("store", store).fields_grouping("count", "word")
    return builder.build()


class MeasuredRun:
    """A run in a thread, with its metrics. `stop` ends it and raises what ended it."""

    def __init__(
        self,
        topology: Topology,
        database: Path,
        tree: MemoryTree | None = None,
        watchers: Sequence[Watcher] = (),
        **options: Any,
    ) -> None:
        self.metrics = RunMetrics(topology, **options)
        services = MemoryServices(
            topology, tree or MemoryTree(), f"sqlite:///{database}", InProcessRunner, ThreadWorkers(jobs=4)
        )
        tier: Tier[Any]
        if isinstance(topology, TrackedTopology):
            tier = TrackedTier(topology)
        else:
            tier = BatchTier(topology, watcher=Watchers([self.metrics, *watchers]))
        self.driver = Driver[Any](services, tier)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, daemon=True)

    def _main(self) -> None:
        try:
            self.driver.run()
        except BaseException as error:  # noqa: BLE001 - raised in stop
            self.error = error

    def start(self) -> None:
        self._thread.start()
        self.metrics.attached(self.driver)

    def wait_for(self, txid: int) -> None:
        """Wait until a txid is committed and its progress stored."""
        wait_until(
            lambda: self.driver.loop is not None and self.driver.loop.coordinator.current > txid,
            f"txid {txid} is committed",
        )

    def stop(self) -> None:
        self.driver.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


@contextlib.contextmanager
def scraped(run: MeasuredRun) -> Iterator[str]:
    """Run and serve; yield the URL of the metrics."""
    with served(run.metrics, "0") as url:
        run.start()
        yield url
        run.stop()


def scrape(url: str) -> Samples:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return samples(answer.read().decode())


def samples(text: str, topology: str | None = None) -> Samples:
    """Return the samples by name and labels' values, in the order of the labels' names, without topology:
    those of one topology if several are served."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if topology is not None and sample.labels.get("topology") != topology:
                continue
            labels = [value for name, value in sorted(sample.labels.items()) if name != "topology"]
            found[(sample.name, *labels)] = sample.value
    return found
