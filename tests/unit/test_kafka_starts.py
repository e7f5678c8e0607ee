"""Where partitions begin: the rules, and what is looked up and when, over logs that the test makes up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from txstream.api.spouts import Unavailable
from txstream.spouts.kafka import KafkaRange
from txstream.spouts.kafka_arguments import StartingOffset
from txstream.spouts.kafka_cluster_watch import ClusterView
from txstream.spouts.kafka_log_ends import PartitionLog
from txstream.spouts.kafka_protocol import OffsetQuery
from txstream.spouts.kafka_starting_places import StartingPlaces

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
NOON_MS = 1_795_262_400_000
VIEW = ClusterView()
PLACES = {"t/0": KafkaRange(0, 5)}


class FakeLogs:
    """Answers `find` from a table of offsets by partition and place, and records what it is asked."""

    def __init__(self, offsets: Mapping[tuple[str, int], int]) -> None:
        self.offsets = dict(offsets)
        self.asked: list[tuple[str, ...]] = []
        self.queries: set[OffsetQuery] = set()

    def find(
        self, names: Iterable[str], view: ClusterView, place: OffsetQuery, deadline: float
    ) -> tuple[dict[str, int], dict[str, Unavailable]]:
        self.asked.append(tuple(names))
        self.queries.add(place)
        known = {name: self.offsets.get((name, place.spec)) for name in self.asked[-1]}
        found = {name: offset for name, offset in known.items() if offset is not None}
        return found, {name: Unavailable("away") for name in known.keys() - found.keys()}


def places(
    rules: Mapping[str, StartingOffset],
    logs: FakeLogs | None = None,
    *,
    opening: Iterable[str] = ("t/0", "t/1"),
) -> StartingPlaces:
    reader: Any = logs or FakeLogs({})
    return StartingPlaces(rules, opening, reader, read_committed=True)


def starts(
    begin: StartingPlaces, last: Mapping[str, object], **logs: tuple[int, int]
) -> dict[str, int | Unavailable]:
    """The start of each partition of "t", whose logs are given as `p0=(first, end)`."""
    found = {f"t/{name[1:]}": PartitionLog(first, end, "") for name, (first, end) in logs.items()}
    first_start = begin.begin(last)
    missing = begin.look_up(found, VIEW, 0.0, first_start=first_start)
    return {
        name: missing[name] if name in missing else begin.start_of(name, log, first_start=first_start)
        for name, log in found.items()
    }


def test_earliest_and_explicit_offsets_ask_nothing() -> None:
    logs = FakeLogs({})
    begin = places({"*": "earliest", "t/1": 7}, logs)
    assert starts(begin, {}, p0=(3, 9), p1=(3, 9)) == {"t/0": 3, "t/1": 7}
    assert starts(begin, {}, p0=(4, 9), p1=(3, 9)) == {"t/0": 4, "t/1": 7}
    assert logs.asked == []
    assert not begin.must_wait_for(["t/0"])


def test_latest_stays_what_it_was_when_the_run_began() -> None:
    begin = places({"*": "latest"})
    assert starts(begin, {}, p0=(0, 9)) == {"t/0": 9}
    assert starts(begin, {}, p0=(0, 12)) == {"t/0": 9}


def test_a_timestamp_is_asked_for_once_and_after_the_last_record_it_is_the_end() -> None:
    logs = FakeLogs({("t/0", NOON_MS): 4, ("t/1", NOON_MS): -1})
    begin = places({"*": NOON}, logs)
    for end in (9, 12):  # what comes after the first plan will be read
        assert starts(begin, {}, p0=(0, end), p1=(0, end)) == {"t/0": 4, "t/1": 9}
    assert logs.asked == [("t/0", "t/1")]
    assert logs.queries == {OffsetQuery(NOON_MS, read_committed=True)}
    assert starts(begin, {}, p0=(6, 12)) == {"t/0": 6}, "retention took what lay before"


def test_each_moment_is_one_question() -> None:
    later = NOON + timedelta(milliseconds=5)
    logs = FakeLogs({("t/0", NOON_MS): 4, ("t/1", NOON_MS + 5): 6})
    begin = places({"*": NOON, "t/1": later}, logs)
    assert starts(begin, {}, p0=(0, 9), p1=(0, 9)) == {"t/0": 4, "t/1": 6}
    assert sorted(logs.asked) == [("t/0",), ("t/1",)]


def test_an_outage_while_asking_is_waited_for_before_the_first_batch() -> None:
    logs = FakeLogs({("t/0", NOON_MS): 4})
    begin = places({"*": NOON}, logs)
    found = starts(begin, {}, p0=(0, 9), p1=(0, 9))
    assert found == {"t/0": 4, "t/1": Unavailable("away")}
    assert begin.must_wait_for(["t/1"])
    assert not begin.must_wait_for(["t/0"]), "its start is known"
    assert not begin.must_wait_for(["t/2"]), "it was not there: it begins at its beginning anyway"
    logs.offsets["t/1", NOON_MS] = 5
    assert starts(begin, {}, p0=(0, 9), p1=(0, 9)) == {"t/0": 4, "t/1": 5}
    assert logs.asked == [("t/0", "t/1"), ("t/1",)]


def test_partitions_that_appear_later_begin_at_their_beginning() -> None:
    for rule in ("latest", NOON):
        rules: dict[str, StartingOffset] = {"*": rule}
        logs = FakeLogs({("t/0", NOON_MS): 9, ("t/1", NOON_MS): 9})
        begin = places(rules, logs, opening=["t/0"])
        assert starts(begin, {}, p0=(0, 9), p1=(2, 9)) == {"t/0": 9, "t/1": 2}
        assert starts(begin, PLACES, p1=(2, 9)) == {"t/1": 2}
        # A replay of the first batch begins where its first plan did.
        assert starts(begin, {}, p0=(0, 9), p1=(2, 9)) == {"t/0": 9, "t/1": 2}


def test_a_run_that_goes_on_reads_new_partitions_from_their_beginning() -> None:
    """Also those that were there when it opened the source, and whose ends were looked up for its targets."""
    begin = places({"*": "latest"})
    logs = {"t/0": PartitionLog(0, 9, ""), "t/1": PartitionLog(0, 9, "")}
    assert begin.look_up(logs, VIEW, 0.0, first_start=True) == {}
    assert starts(begin, PLACES, p1=(0, 9)) == {"t/1": 0}
    assert not begin.is_first_start(PLACES)
