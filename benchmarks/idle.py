"""What does a topology cost while no records arrive?

    python benchmarks/idle.py                 # everything embedded, SQLite
    python benchmarks/idle.py --seconds 120

Runs the word count as a user would, in a process of its own, until a first batch is committed. Then it
measures the CPU time of that process, its JVM and its Python workers, and counts the batches opened
meanwhile. The services are not counted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic

from txstream.plugins.local.embedded import Services, embedded

TOPIC = "lines"
START_DEADLINE_SECONDS = 120.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to measure (default 60)")
    parser.add_argument("--partitions", type=int, default=4)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txstream-idle-")))
        services = stack.enter_context(embedded(directory / "services"))
        fill(services, options.partitions)
        process = stack.enter_context(running(services, directory))
        batches_before, before = committed(services, directory), cpu_seconds(process)
        time.sleep(options.seconds)
        after, batches = cpu_seconds(process), committed(services, directory) - batches_before
    total = 0.0
    for (pid, name), seconds in sorted(after.items()):
        share = (seconds - before.get((pid, name), 0.0)) / options.seconds
        total += share
        print(f"{name:<10} {share:7.2%} of a core")
    print(f"{'in all':<10} {total:7.2%} of a core; {batches} batches opened in {options.seconds:g} s")
    return 0


def fill(services: Services, partitions: int) -> None:
    admin = KafkaAdminClient(bootstrap_servers=services.kafka)
    admin.create_topics([NewTopic(TOPIC, partitions, 1)])
    admin.close()
    producer = KafkaProducer(bootstrap_servers=services.kafka)
    for number in range(1_000):
        producer.send(TOPIC, b"the cat sat on the mat", partition=number % partitions)
    producer.flush()
    producer.close()


@contextlib.contextmanager
def running(services: Services, directory: Path) -> Iterator[psutil.Process]:
    """Run the word count as a process. Yields once it has committed everything in the topic."""
    command = [sys.executable, "-m", "txstream", "run", "txstream.examples.word_count:topology"]
    run = subprocess.Popen(
        [*command, "-p", f"topic={TOPIC}"],
        cwd=directory,
        env=environment(services),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + START_DEADLINE_SECONDS
        while committed(services, directory) < 1:
            if run.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("the word count has not committed a batch; run it by hand to see why")
            time.sleep(1)
        yield psutil.Process(run.pid)
    finally:
        run.terminate()
        run.wait(60)


def committed(services: Services, directory: Path) -> int:
    """Return the last committed txid, as `txstream topologies` shows it; 0 before the topology exists."""
    command = [sys.executable, "-m", "txstream", "topologies", "--json"]
    done = subprocess.run(
        command, cwd=directory, env=environment(services), capture_output=True, text=True, check=True
    )
    listed = json.loads(done.stdout)
    return int(listed[0]["txid"] or 0) if listed else 0


def environment(services: Services) -> dict[str, str]:
    return {**os.environ, "TXSTREAM_ZOOKEEPER": services.zookeeper, "TXSTREAM_KAFKA": services.kafka}


def cpu_seconds(process: psutil.Process) -> dict[tuple[int, str], float]:
    """Return the CPU time so far of each process: the driver, its JVM, its Python workers."""
    found = {}
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            found[one.pid, one.name()] = times.user + times.system
    return found


if __name__ == "__main__":
    raise SystemExit(main())
