"""`txstream compare` of windows, over a real topic and through all faults: the same counts, and the same
windows closed. The oracle is what the test produced, and plain SQL over the tables of the runs."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from kafka import KafkaProducer
from support.runs import Launcher
from support.texts import create_topic

from txstream.plugins.local.embedded import Services

PARTITIONS = 3
CLICKS = 3_000
START = datetime(2026, 1, 31, tzinfo=UTC)
Windows = dict[tuple[str, str], tuple[int, bool]]


def fill(bootstrap: str, topic: str) -> Counter[tuple[str, str]]:
    """Produce clicks, a minute after the other; return how many there are of each page and hour."""
    create_topic(bootstrap, topic, PARTITIONS)
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=20)
    found: Counter[tuple[str, str]] = Counter()
    for number in range(CLICKS):
        at, page = START + timedelta(minutes=number), "abc"[number % 7 % 3]
        found[page, f"{at:%Y-%m-%d %H}"] += 1
        producer.send(
            topic, json.dumps({"page": page, "at": at.isoformat()}).encode(), partition=number % PARTITIONS
        )
    producer.flush()
    producer.close()
    return found


def stored(launcher: Launcher, semantics: str) -> Windows:
    """Return how many clicks each page and hour has in a run, and whether that is closed."""
    with contextlib.closing(sqlite3.connect(launcher.database.removeprefix("sqlite:///"))) as database:
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        (table,) = [
            name for (name,) in names if re.fullmatch(f"compare_[0-9a-f]+_{semantics}_clicks_by_hour", name)
        ]
        rows = database.execute(f'SELECT page, window_start, n, closed FROM "{table}"').fetchall()
    return {(page, start[:13]): (n, bool(closed)) for page, start, n, closed in rows}


@pytest.mark.soak
def test_the_same_windows_close_under_all_faults(launcher: Launcher, services: Services, unique: str) -> None:
    truth = fill(services.kafka, unique)
    words = ["compare", "txstream.examples.windows:topology", "--topic", unique, "--records", str(CLICKS)]
    done = launcher.run(*words, "-p", "late=amend", "--keep", "--json")
    assert done.status == 0, done.stderr
    runs = done.json()["semantics"]
    found = {semantics: stored(launcher, semantics) for semantics in ("opaque", "transactional")}
    for semantics, windows in found.items():
        assert runs[semantics]["exact"], done.stderr
        assert runs[semantics]["faults_that_never_came"] == []
        assert {key: n for key, (n, _) in windows.items()} == truth
    assert not runs["non-transactional"]["exact"]
    # How far a run has come at its end depends on its batches; of the windows before, all are closed in each.
    least = min(max(hour for (_, hour), (_, is_closed) in one.items() if is_closed) for one in found.values())
    assert len({hour for _, hour in truth if hour <= least}) > 24
    for windows in found.values():
        assert {key: is_closed for key, (_, is_closed) in windows.items() if key[1] <= least} == {
            key: True for key in truth if key[1] <= least
        }
