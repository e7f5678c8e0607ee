"""What does it cost that a table's changes go to a topic?

    python benchmarks/results.py                                   # a PostgreSQL of its own, which syncs
    python benchmarks/results.py --database postgresql://...       # on a database of yours

Runs the word count of throughput.py in three ways, by turns: alone, with its changes to a topic at least
once, and exactly once. A row is the median of the runs: records/s, its part of those alone, and the median
commit of a batch, which is all that changes add to the way from a record to its row. A run ends
once the topic has everything: "start and end" has that, beside the start. The exit status is 1 when a table
differs from a count without txstream.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
import uuid
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from beside_peers import own_server
from kafka import KafkaAdminClient
from throughput import Lines, check, console, make_topic

import txstream
from txstream import ChangeTopic
from txstream.engine.spark.session import create_session
from txstream.examples import word_count
from txstream.plugins.local.embedded import embedded

WAYS = ("alone", "at least once", "exactly once")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--sizes", default="1000,10000,100000", help="records per batch, a list with commas")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--max-batches", type=int, default=200, help="end a run after so many batches")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--database")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txstream-benchmark-")))
        services = stack.enter_context(embedded(directory, console=console))
        topic = f"txstream-benchmark-{uuid.uuid4().hex[:8]}"
        lines = make_topic(services.kafka, topic, options.records)
        settings = txstream.Settings(
            zookeeper=services.zookeeper,
            kafka=services.kafka,
            database=options.database or database_of_its_own(stack, directory),
            data_dir=directory,
        )
        session = create_session(master=options.master, log_file=directory / "spark.log")
        stack.callback(session.stop)
        measure(session, settings, topic, lines, 1000, "alone", options)  # the first run of a process is cold
        exact = True
        for size in map(int, options.sizes.split(",")):
            runs = [
                measure(session, settings, topic, lines, size, way, options)
                for _ in range(options.runs)
                for way in WAYS
            ]
            exact = show(size, runs) and exact
    return 0 if exact else 1


def database_of_its_own(stack: contextlib.ExitStack, directory: Path) -> str:
    server, url = own_server(directory)
    stack.callback(server.stop, "fast")
    return url


def measure(
    session: Any,
    settings: txstream.Settings,
    topic: str,
    lines: Lines,
    size: int,
    way: str,
    options: argparse.Namespace,
) -> dict[str, Any]:
    name = f"bench_{uuid.uuid4().hex[:10]}"
    topology = word_count.topology(
        topic, "opaque", name, max_records_per_partition=max(1, size // len(lines)), parallelism=2
    ).with_id(name)
    if way != "alone":
        admin = KafkaAdminClient(bootstrap_servers=settings.kafka)
        admin.create_topics({f"{name}-changes": {"num_partitions": 4}}, wait_for_metadata=True)
        admin.close()
        goal = ChangeTopic(f"{name}-changes", exactly_once=way == "exactly once")
        topology = topology.with_states(partial(replace, changes_to=goal))
    is_cut = sum(map(len, lines)) // size > options.max_batches
    until = {"until_txid": options.max_batches} if is_cut else {"until": "caught-up"}
    started = time.perf_counter()
    running = txstream.start(topology, session, settings, **until)
    report = running.wait()
    behind = time.perf_counter() - started - report.seconds
    return {
        "way": way,
        "records_per_second": report.records_per_second,
        "commit_ms": 1000 * statistics.median(timing.commit_seconds for timing in running.timings),
        "start_and_end_seconds": behind,
        "exact": check(settings, name, report.last_txid, lines),
    }


def show(size: int, runs: list[dict[str, Any]]) -> bool:
    """Print the medians of each way; return whether every table was right."""
    alone = statistics.median(run["records_per_second"] for run in runs if run["way"] == "alone")
    for way in WAYS:
        mine = [run for run in runs if run["way"] == way]
        rate, commit, ends = (
            statistics.median(run[what] for run in mine)
            for what in ("records_per_second", "commit_ms", "start_and_end_seconds")
        )
        exact = all(run["exact"] for run in mine)
        console.print(
            f"{size:>7,} records a batch, {way:13}: {rate:>9,.0f} records/s, {rate / alone:.2f} of alone, "
            f"commit {commit:.1f} ms, start and end {ends:.2f} s, exact: {'yes' if exact else 'NO'}"
        )
    print(json.dumps(runs))
    return all(run["exact"] for run in runs)


if __name__ == "__main__":
    sys.exit(main())
