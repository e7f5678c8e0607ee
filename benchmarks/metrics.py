"""What do metrics cost a batch?

    python benchmarks/metrics.py                              # counting alone: 10 pairs of 200 batches
    python benchmarks/metrics.py --scrape-every 15 --batches 5000

Runs the word count to the end of a topic, with and without metrics in turns, each time under a new id, with
everything embedded and SQLite. Counting happens at every batch; `--scrape-every` adds scrapes, which ask the
source for its end in the same process. Runs should be much longer than the time between two scrapes. Batches
are processed on the driver's threads: beside a Spark job the same work would be a smaller part.

The time of a run is that from its first to its last commit, by batch, so that its start is left out. Printed
is what metrics add to it, pair by pair: the median and the quartiles. On a busy machine that spread is wider
than what is looked for. Then look at the last line: the CPU time of the metrics' own code at each batch.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from time import thread_time
from typing import Any
from urllib.request import urlopen

from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic

from txstream.engine.loop.report import BatchTiming
from txstream.engine.run import start
from txstream.examples.word_count import topology
from txstream.plugins.local.embedded import embedded
from txstream.plugins.monitoring.of_run import RunMetrics
from txstream.plugins.monitoring.server import served
from txstream.settings import Settings
from txstream.testing import InProcessRunner

TOPIC = "lines"
BATCH_RECORDS = 100


class Counting(RunMetrics):
    """Metrics that know the CPU time of what they do at each batch."""

    cpu_seconds = 0.0
    batches = 0

    def wrote(self, *told: Any) -> None:
        self._count(super().wrote, *told)

    def advanced(self, timing: BatchTiming) -> None:
        self._count(super().advanced, timing)
        Counting.batches += 1

    def _count(self, do: Callable[..., None], *told: Any) -> None:
        before = thread_time()
        do(*told)
        Counting.cpu_seconds += thread_time() - before


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--batches", type=int, default=200, help="of each run (default 200)")
    parser.add_argument("--scrape-every", type=float, metavar="SECONDS", help="by default, never")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="txstream-metrics-") as name:
        directory = Path(name)
        with embedded(directory / "services") as services:
            fill(services.kafka, options.batches)
            settings = Settings(zookeeper=services.zookeeper, kafka=services.kafka, data_dir=directory)
            seconds_per_batch(settings, "warm-up", True, options.scrape_every)
            added = [one_pair(settings, number, options.scrape_every) for number in range(options.pairs)]
    low, _, high = quantiles(added, n=4)
    print(
        f"metrics add {median(added):+.2%} to a batch; half of the pairs are from {low:+.2%} to {high:+.2%}"
    )
    print(f"counting takes {Counting.cpu_seconds / Counting.batches * 1e6:.1f} us of CPU time a batch")
    return 0


def one_pair(settings: Settings, number: int, scrape_every: float | None) -> float:
    """Return what metrics add. Every other pair begins with them."""
    order = (False, True) if number % 2 else (True, False)
    took = {on: seconds_per_batch(settings, f"pair-{number}-{on}", on, scrape_every) for on in order}
    added = took[True] / took[False] - 1
    print(f"{number}: {took[False] * 1e3:.3f} ms without, {took[True] * 1e3:.3f} ms with: {added:+.2%}")
    return added


def seconds_per_batch(settings: Settings, name: str, with_metrics: bool, scrape_every: float | None) -> float:
    """Run the word count to the end of the topic."""
    table = name.replace("-", "_").lower()
    code = topology(TOPIC, table=table, max_records_per_partition=BATCH_RECORDS, parallelism=1).with_id(name)
    database = f"sqlite:///{settings.data_dir}/{table}.db"
    settings = replace(settings, database=database)
    with contextlib.ExitStack() as stack:
        watchers: list[Counting] = []
        if with_metrics:
            watchers.append(Counting(code))
            url = stack.enter_context(served(watchers[0], "127.0.0.1:0"))
            if scrape_every is not None:
                stack.enter_context(scraped(url, scrape_every))
        running = start(
            code, settings=settings, until="caught-up", runner_factory=InProcessRunner, watchers=watchers
        )
        for watcher in watchers:
            watcher.attached(running.driver)
        timings = running.wait().timings
    return (timings[-1].committed_at - timings[0].committed_at) / (len(timings) - 1)


@contextlib.contextmanager
def scraped(url: str, every_seconds: float) -> Iterator[None]:
    """Ask for the metrics again and again inside the block."""
    is_over = threading.Event()

    def scrape() -> None:
        while not is_over.wait(every_seconds):
            with urlopen(url, timeout=10) as answer:
                answer.read()

    scraper = threading.Thread(target=scrape)
    scraper.start()
    try:
        yield
    finally:
        is_over.set()
        scraper.join()


def fill(kafka: str, batches: int) -> None:
    admin = KafkaAdminClient(bootstrap_servers=kafka)
    admin.create_topics([NewTopic(TOPIC, 1, 1)])
    admin.close()
    producer = KafkaProducer(bootstrap_servers=kafka)
    for _ in range(batches * BATCH_RECORDS):
        producer.send(TOPIC, b"the cat sat on the mat")
    producer.flush()
    producer.close()


if __name__ == "__main__":
    raise SystemExit(main())
