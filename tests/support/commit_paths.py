"""A topology whose commits take either path, into one database or two, and what its states must hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import txstream.plugins.testing.driver
from support.row_files import RowFiles
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count
from txstream.api.spouts import OpaqueSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.bolts.sql import SqlStateBolt
from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.batch.shares import Message
from txstream.spouts.memory import MemorySpout
from txstream.state import BatchRecord, open_database
from txstream.testing import Attempt, InProcessRunner, TopologyTest

# Each partition gives two words to a batch: batches of 4, 2, 3 and 1 keys.
WORDS: Mapping[str, list[str]] = {
    "p0": ["ash", "elm", "oak", "oak", "ash", "fir", "yew", "yew"],
    "p1": ["oak", "may", "oak", "ash", "fir", "box"],
}
KEYS = (4, 2, 3, 1)

PATHS: Mapping[str, Mapping[str, Any]] = {
    "driver": {"commit": "driver"},
    "executors": {"commit": "executors"},
    "mixed": {"driver_commit_rows": 2},
}
"""Options of `counting` by name. With the last, executors write batches of more than two keys."""

BY_EXECUTORS: Mapping[str, tuple[bool, ...]] = {
    "driver": (False, False, False, False),
    "executors": (True, True, True, True),
    "mixed": (True, False, True, False),
}


def word_source() -> MemorySpout:
    return MemorySpout("word string", WORDS, max_records_per_partition=2)


def word_files(folder: Path) -> RowFiles:
    """Return the same for Spark."""
    rows = {name: [(word,) for word in words] for name, words in WORDS.items()}
    return RowFiles(folder, "word string", rows, max_records_per_partition=2)


def counting(
    source: MemorySpout | RowFiles,
    spout: Any = OpaqueSpout,
    *,
    second: str | None = None,
    slots: int = 3,
    tables: Iterable[str] = ("counts", "again"),
    **options: Any,
) -> Topology:
    """Each table counts the words; with `second`, the last of them is in that database. `driver_commit_rows`
    is given for one table of the first."""
    tables = tuple(tables)
    if "driver_commit_rows" in options:
        options["driver_commit_rows"] *= len(tables) - (second is not None)
    builder = TransactionalTopologyBuilder(
        "paths", "words", spout(source), 2, **{"max_spout_pending": 2, **options}
    )
    for table in tables:
        url = second if table == tables[-1] else None
        state = SqlState(table, key="word string", value="n bigint", url=url)
        builder.set_committer_bolt(table, SqlStateBolt(state, n=Count()), slots).fields_grouping(
            "words", "word"
        )
    return builder.build()


def counted(words: Mapping[str, Iterable[str]] = WORDS) -> Counter[str]:
    return Counter(word for rows in words.values() for word in rows)


def counted_in(*attempts: Attempt) -> Counter[str]:
    """Return the words that these attempts held."""
    return Counter(
        word
        for attempt in attempts
        for partition, planned in attempt.partitions.items()
        for word in WORDS[partition][planned.start : planned.end]
    )


def ledger(url: str) -> list[BatchRecord]:
    with closing(open_database(url)) as database:
        return database.batches("paths")


def paths(url: str) -> list[str]:
    """Return the path of each batch, according to the ledger."""
    return [row.details["path"] for row in ledger(url)]


@dataclass
class Shares:
    """What a test does with shares instead of only writing them."""

    seen: list[Message] = field(default_factory=list)
    # Gets the runner's own way of writing a share, and the share; returns what that way returns.
    write: Callable[[Callable[[Message], bytes], Message], bytes] | None = None
    runners: list[InProcessRunner] = field(default_factory=list)


def watch_shares(monkeypatch: pytest.MonkeyPatch) -> Shares:
    """Have the runners of every `TopologyTest` write their shares through the returned object."""
    shares = Shares()

    class Watched(InProcessRunner):
        def __init__(self, plan: ExecutionPlan, *, width: int | None) -> None:
            super().__init__(plan, width=width)
            shares.runners.append(self)

        def write_share(self, message: Message) -> bytes:
            shares.seen.append(message)
            if shares.write is None:
                return super().write_share(message)
            return shares.write(super().write_share, message)

    monkeypatch.setattr(txstream.plugins.testing.driver, "InProcessRunner", Watched)
    return shares


def check(test: TopologyTest, words: Counter[str], tables: Iterable[str] = ("counts", "again")) -> None:
    """Assert that every table has exactly these words."""
    for table in tables:
        assert test.table(table) == words
