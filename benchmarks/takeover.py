"""How long does a topology stop when its leader is killed?

    python benchmarks/takeover.py                          # a cold and a warm standby, five times each
    python benchmarks/takeover.py --rounds 20 --session-timeout 4 --json

Runs the word count as a user would, everything embedded and on this machine, while a line arrives every
20 ms. In each round a standby gets ready, the leader is killed, and the standby leads the next round. The
output is the time from the kill to the new leader's first commit, in two parts: until ZooKeeper has ended the
killed leader's session, and after that.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic

from txstream.core.transaction import Epoch, epoch_of
from txstream.plugins.local.embedded import Services, embedded
from txstream.zookeeper import ZooKeeper

TOPIC, TOPOLOGY = "lines", "word-count"
DEADLINE_SECONDS = 180.0
TICK_SECONDS = 0.02
READY = {"cold": "standing by to take over", "warm": "ready to take over"}


@dataclass(frozen=True)
class Takeover:
    """One takeover. Times are in seconds since the kill."""

    session_ended: float
    first_commit: float

    @property
    def start(self) -> float:
        return self.first_commit - self.session_ended


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--session-timeout", type=float, default=10.0, help="seconds (default 10)")
    parser.add_argument("--standby", choices=sorted(READY), action="append", help="one of them only")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {
        standby: measure(standby, options.rounds, options.session_timeout)
        for standby in options.standby or sorted(READY)
    }
    if options.json:
        seconds = {name: [asdict(one) for one in rounds] for name, rounds in found.items()}
        print(json.dumps({"session_timeout": options.session_timeout, "standby": seconds}, indent=2))
        return 0
    print(
        f"session timeout {options.session_timeout:g} s; median (least, most) of {options.rounds} in seconds"
    )
    print(f"{'standby':<8} {'session ended':<22} {'then first commit':<22} {'beyond the timeout':<22} in all")
    for name, rounds in found.items():
        cells = [
            shown([one.session_ended for one in rounds]),
            shown([one.start for one in rounds]),
            shown([one.first_commit - options.session_timeout for one in rounds]),
        ]
        in_all = shown([one.first_commit for one in rounds])
        print(f"{name:<8} {''.join(f'{cell:<23}' for cell in cells)}{in_all}")
    return 0


def shown(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.1f} ({min(seconds):.1f}, {max(seconds):.1f})"


def measure(standby: str, rounds: int, session_timeout: float) -> list[Takeover]:
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txstream-takeover-")))
        services = stack.enter_context(embedded(directory / "services"))
        stack.enter_context(lines_arrive(services))
        zookeeper = stack.enter_context(ZooKeeper(services.zookeeper))
        database = directory / "state.db"

        def start() -> subprocess.Popen[str]:
            return stack.enter_context(driver(directory, services, standby, session_timeout))

        leader = start()
        epoch = wait_for_commit(database, Epoch(0))
        found = []
        for _ in range(rounds):
            follower = start()
            wait_for_line(follower, READY[standby])
            led_by, killed = zookeeper.leader(TOPOLOGY), time.monotonic()
            leader.kill()
            while zookeeper.leader(TOPOLOGY) == led_by:
                time.sleep(TICK_SECONDS)
            session_ended = time.monotonic() - killed
            epoch = wait_for_commit(database, epoch)
            found.append(Takeover(session_ended, time.monotonic() - killed))
            leader = follower
        return found


@contextlib.contextmanager
def driver(
    directory: Path, services: Services, standby: str, session_timeout: float
) -> Iterator[subprocess.Popen[str]]:
    """Start a run that never ends by itself. It is killed at the end of the block."""
    command = [sys.executable, "-m", "txstream", "run", "txstream.examples.word_count:topology"]
    options = ["-p", f"topic={TOPIC}", "--standby", standby, "--session-timeout", str(session_timeout)]
    addresses = {"TXSTREAM_ZOOKEEPER": services.zookeeper, "TXSTREAM_KAFKA": services.kafka}
    addresses["TXSTREAM_DATABASE"] = f"sqlite:///{directory / 'state.db'}"
    run = subprocess.Popen(
        [*command, *options],
        cwd=directory,
        env={**os.environ, **addresses},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield run
    finally:
        run.kill()
        run.wait()


def wait_for_line(run: subprocess.Popen[str], text: str) -> None:
    """Wait until the run writes this text to standard error, which is read on to its end, so it never
    blocks."""
    said, seen = threading.Event(), [""]

    def read() -> None:
        for line in run.stderr or ():
            seen.append(line)
            if text in line:
                said.set()

    threading.Thread(target=read, daemon=True).start()
    if not said.wait(DEADLINE_SECONDS):
        raise SystemExit(f"no {text!r} within {DEADLINE_SECONDS:g} s in: {''.join(seen)}")


def wait_for_commit(database: Path, above: Epoch) -> Epoch:
    """Wait until the epoch of the newest committed batch is greater than `above`, and return it."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    query = "SELECT max(attempt) FROM txstream_batch WHERE status = 'committed'"
    while time.monotonic() < deadline:
        # OperationalError: the first driver has not created the table yet.
        with contextlib.suppress(sqlite3.OperationalError), sqlite3.connect(database) as connection:
            ((attempt,),) = connection.execute(query).fetchall()
            if attempt is not None and epoch_of(attempt) > above:
                return epoch_of(attempt)
        time.sleep(TICK_SECONDS)
    raise SystemExit(
        f"no batch was committed within {DEADLINE_SECONDS:g} s; run the word count by hand to see why"
    )


@contextlib.contextmanager
def lines_arrive(services: Services) -> Iterator[None]:
    admin = KafkaAdminClient(bootstrap_servers=services.kafka)
    admin.create_topics([NewTopic(TOPIC, 4, 1)])
    admin.close()
    over = threading.Event()

    def produce() -> None:
        producer = KafkaProducer(bootstrap_servers=services.kafka)
        while not over.wait(TICK_SECONDS):
            producer.send(TOPIC, b"the cat sat on the mat")
        producer.close()

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


if __name__ == "__main__":
    raise SystemExit(main())
