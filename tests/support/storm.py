"""Storm's transactional topology in tests: records, and what each component must emit for them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from txstream.api.spouts import SourceSpout
from txstream.api.topology import CommitChoice, Phase, Topology
from txstream.examples.storm_counts import FIELDS, graph
from txstream.plugins.testing.recorded_calls import Call
from txstream.spouts.memory import MemorySpout
from txstream.testing import Attempt, AttemptState, TopologyTest

Row = tuple[Any, ...]
Records = Mapping[str, list[Row]]

# Two records of each partition make a batch: txid 1 has six, txid 2 three.
FIRST: Records = {
    "p0": [("oak", 5), ("elm", 2), ("ash", 7), ("oak", 1)],
    "p1": [("elm", 3), ("may", 4)],
    "p2": [("yew", 9), ("fir", 6), ("ivy", 8)],
}
# With these, txid 3 has seven and txid 4 two.
MORE: Records = {
    "p0": [("box", 1), ("gum", 2), ("sal", 3)],
    "p1": [("tea", 4), ("sal", 1)],
    "p2": [("box", 2), ("nut", 7), ("sal", 11)],
    "p3": [("box", 2)],
}
IN_PROCESSING = ("id1", "id2", "global", "sum")
IN_COMMIT = ("gcommit", "count", "count2")


def storm_source(records: Records = FIRST) -> MemorySpout:
    return MemorySpout(FIELDS, records, max_records_per_partition=2)


def storm_topology(
    spout: type[SourceSpout[Any]],
    source: MemorySpout,
    *,
    commit: CommitChoice = "auto",
    driver_commit_rows: int | None = None,
    **options: Any,
) -> Topology:
    topology = graph(spout(source), **options)
    return replace(topology, commit=commit, driver_commit_rows=driver_commit_rows)


def append(source: MemorySpout, records: Records) -> None:
    for partition, rows in records.items():
        source.append(partition, *rows)


# --- what must come out: the oracle knows only the records ------------------------------------------------


def joined(*records: Records) -> dict[str, list[Row]]:
    """Return the partitions after all of these were appended."""
    partitions: dict[str, list[Row]] = defaultdict(list)
    for some in records:
        for partition, rows in some.items():
            partitions[partition] += rows
    return dict(partitions)


def held(attempt: Attempt, records: Records) -> list[Row]:
    """Return the records of an attempt, by the ranges that it holds."""
    return [
        row
        for partition, span in attempt.partitions.items()
        for row in records[partition][span.start : span.end]
    ]


def expected(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Return what each component must emit for a batch of these records, sorted."""
    rows = sorted(rows)
    sums: Counter[str] = Counter()
    for word, amount in rows:
        sums[word] += amount
    counts = Counter(word for word, _ in rows)
    return {
        "id1": rows,
        "id2": rows,
        "global": [("global", len(rows))],
        "sum": sorted(sums.items()),
        "gcommit": [("gcommit", len(rows))],
        "count": sorted(counts.items()),
        "count2": [(word, 2) for word in sorted(counts)],  # a row of `sum` and one of `count`
    }


def emitted(attempt: Attempt, components: Iterable[str] = (*IN_PROCESSING, *IN_COMMIT)) -> dict[str, Any]:
    """Return what each component has emitted, sorted; None for one that has not finished its phase."""
    return {
        component: sorted(attempt.emitted(component)) if attempt.has_been_through(component) else None
        for component in components
    }


def states(test: TopologyTest, txid: int) -> list[AttemptState]:
    """Return how far each attempt of a txid has come."""
    return [attempt.state for attempt in test.attempts(txid)]


def commit_calls(test: TopologyTest, txid: int) -> list[Call]:
    """Return the calls of a txid's commit phase."""
    return [call for call in test.calls(txid) if call.phase is Phase.COMMIT]


def check_tables(test: TopologyTest, rows: Iterable[Row], prefix: str = "storm") -> None:
    """Assert that each of these records is in the state exactly once, and that nothing else is."""
    wanted = expected(rows)
    n = wanted["global"][0][1]
    assert test.table(f"{prefix}_sums") == dict(wanted["sum"])
    assert test.table(f"{prefix}_counts") == dict(wanted["count"])
    assert test.table(f"{prefix}_totals") == {"global": n, "gcommit": n}


def all_rows(records: Records) -> list[Row]:
    return [row for rows in records.values() for row in rows]
