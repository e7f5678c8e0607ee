"""Where partitions begin: the rules, and what is looked up and when, over logs that the test makes up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from txstream.api.spouts import Unavailable
from txstream.spouts.kafka import UNKNOWN, KafkaRange
from txstream.spouts.kafka.arguments import StartingOffset
from txstream.spouts.kafka.cluster_watch import ClusterView
from txstream.spouts.kafka.protocol import OffsetQuery, PartitionLog
from txstream.spouts.kafka.starting_places import StartingPlaces
from txstream.spouts.kafka.topic_selection import is_topic_name

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
NOON_MS = 1_795_262_400_000
VIEW = ClusterView()
PLACES = {"t/0": KafkaRange(0, 5)}
NO_PLACE_YET = KafkaRange(0, 0, first_place=UNKNOWN)


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
    begin: StartingPlaces, last: Mapping[str, KafkaRange], **logs: tuple[int, int]
) -> dict[str, int | Unavailable]:
    """The start of each partition of "t", whose logs are given as `p0=(first, end)`."""
    found = {f"t/{name[1:]}": PartitionLog(first, end, "") for name, (first, end) in logs.items()}
    missing = begin.look_up(found, VIEW, 0.0, last)
    return {
        name: missing[name] if name in missing else begin.start_of(name, log, last)
        for name, log in found.items()
    }


def test_earliest_and_explicit_offsets_ask_nothing() -> None:
    logs = FakeLogs({})
    begin = places({"*": "earliest", "t/1": 7}, logs)
    assert starts(begin, {}, p0=(3, 9), p1=(3, 9)) == {"t/0": 3, "t/1": 7}
    assert starts(begin, {}, p0=(4, 9), p1=(3, 9)) == {"t/0": 4, "t/1": 7}
    assert logs.asked == []


def test_a_place_is_decided_unless_it_is_known_or_follows_from_the_log() -> None:
    begin = places({"*": "latest", "t/1": "earliest"}, opening=["t/0", "t/1"])
    assert [begin.decide(f"t/{number}", {}) for number in range(3)] == [True, False, False]
    assert not begin.decide("t/0", PLACES), "it has a place"
    assert begin.decide("t/0", {"t/0": NO_PLACE_YET})
    assert not begin.decide("t/2", PLACES), "it is new: it begins at its beginning"
    named = places({"*": "earliest", "t/1": 7})
    assert named.decide("t/1", {})
    assert named.decide("t/1", PLACES), "it was named"


def test_a_topology_with_any_other_rule_than_earliest_begins_with_its_places() -> None:
    assert not places({"*": "earliest", "t/1": "earliest"}).must_begin_first({})
    others: list[dict[str, StartingOffset]] = [
        {"*": "latest", "t/0": "earliest"},
        {"*": "earliest", "t/1": 7},
        {"*": NOON},
    ]
    for rules in others:
        assert places(rules).must_begin_first({})
        assert not places(rules).must_begin_first(PLACES)


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


def test_a_partition_that_cannot_be_asked_is_known_to_have_been_there() -> None:
    """Else the next driver would take it for a new one, and read what was there before."""
    away = Unavailable("away")
    for rule in ("latest", NOON):
        rules: dict[str, StartingOffset] = {"*": rule}
        begin = places(rules)
        assert begin.left_out("t/1", away, {}) == Unavailable("away", place=NO_PLACE_YET)
        assert begin.left_out("t/2", away, {}) is away, "it was not there: it begins at its beginning"
        last = {**PLACES, "t/1": NO_PLACE_YET}
        assert begin.left_out("t/1", away, last) is away, "that is known"
        logs = FakeLogs({("t/1", NOON_MS): 6})
        after_a_restart = places(rules, logs)
        assert starts(after_a_restart, last, p1=(2, 6)) == {"t/1": 6}
        assert starts(after_a_restart, last, p1=(2, 9)) == {"t/1": 6}, "kept until it is committed"
    assert places({"*": "earliest"}).left_out("t/1", away, {}) is away


def test_a_lookup_that_fails_is_made_again() -> None:
    logs = FakeLogs({("t/0", NOON_MS): 4})
    begin = places({"*": NOON}, logs)
    assert starts(begin, {}, p0=(0, 9), p1=(0, 9)) == {"t/0": 4, "t/1": Unavailable("away")}
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
    assert begin.look_up(logs, VIEW, 0.0, {}) == {}
    assert starts(begin, PLACES, p1=(0, 9)) == {"t/1": 0}


def test_a_topology_that_begins_over_nothing_has_begun() -> None:
    begin = places({"*": "latest"}, opening=[])
    stored = begin.over_nothing({})
    ((name, place),) = stored.items()
    assert not is_topic_name(name.rpartition("/")[0])
    assert place.is_empty
    assert place.is_first_place, "it opens a batch"
    assert begin.over_nothing(stored) == {}
    after_a_restart = places({"*": "latest"})
    assert starts(after_a_restart, stored, p0=(0, 9)) == {"t/0": 0}, "it came after the topology had begun"
    assert places({"*": "earliest"}, opening=[]).over_nothing({}) == {}
