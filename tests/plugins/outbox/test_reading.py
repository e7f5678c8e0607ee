"""A reader of a topic that is filled at least once drops what it has seen."""

from __future__ import annotations

import json
import random
from typing import NamedTuple

import txstream.reading
from txstream.reading import once
from txstream.spouts.kafka.many_records import REWIND


class Record(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    topic: str = "per-user"


def record(txid: int, key: str, value: str = "", partition: int = 0, topology: str = "t") -> Record:
    headers = [("txstream-topology", topology.encode()), ("txstream-txid", str(txid).encode())]
    return Record(partition, key.encode(), value.encode(), headers)


def numbers(records: object) -> list[tuple[int, str]]:
    assert hasattr(records, "__iter__")
    return [(int(dict(one.headers)["txstream-txid"]), one.key.decode()) for one in records]


def test_what_comes_again_is_dropped_and_what_was_cut_off_is_not() -> None:
    whole = [record(1, "a"), record(1, "b"), record(2, "a"), record(2, "b"), record(3, "a")]
    chance = random.Random(3)
    for _ in range(200):
        sent, noted = [], 0
        while noted < len(whole):  # killed after a note, at any record of those that follow
            upto = chance.randrange(noted, len(whole)) + 1
            sent += whole[noted:upto]
            done = int(dict(whole[upto - 1].headers)["txstream-txid"]) - 1
            noted = len(whole) if upto == len(whole) else sum(n <= done for n, _ in numbers(whole))
            noted = min(noted, len(whole))
        assert numbers(once(sent)) == numbers(whole)


def test_partitions_and_topologies_are_remembered_apart() -> None:
    sent = [record(5, "a"), record(3, "b", partition=1), record(3, "c", topology="u"), record(4, "a")]
    assert numbers(once(sent)) == [(5, "a"), (3, "b"), (3, "c")]


def test_what_was_seen_is_stored_and_given_back() -> None:
    before = once([record(1, "a"), record(2, "a")])
    assert len(list(before)) == 2
    stored = json.loads(json.dumps([(*rest, [key.decode() for key in keys]) for *rest, keys in before.seen]))
    seen = [(topic, part, of, txid, [key.encode() for key in keys]) for topic, part, of, txid, keys in stored]
    again = once([record(1, "a"), record(2, "a"), record(2, "b")], seen=seen)
    assert numbers(again) == [(2, "b")]


def test_what_tells_of_a_rewind_is_dropped_and_told_once() -> None:
    told = [("txstream-rewind", b"1")]
    mark = Record(0, b"txstream-rewind", None, [*record(3, "").headers, *told])
    removed = Record(0, b"a", None, [*record(3, "").headers, *told])  # of a table's changes: it is news
    sent = [record(1, "a"), record(2, "b"), mark, removed, mark, record(4, "b"), mark]
    found: list[Record] = []
    assert numbers(once(sent, on_rewind=found.append)) == [(1, "a"), (2, "b"), (3, "a"), (4, "b")]
    assert found == [mark]
    assert mark.key == REWIND


def test_a_reader_that_polls_and_records_of_others() -> None:
    class Consumer:
        def poll(self, timeout_ms: int) -> dict[str, list[Record]]:
            assert timeout_ms == 7
            foreign = Record(0, b"x", None, [])
            return {"p": [foreign, foreign, record(1, "a"), record(1, "a")], "q": [record(1, "a")]}

    found = once(Consumer(), by=lambda one: one.value).poll(timeout_ms=7)
    assert {place: len(records) for place, records in found.items()} == {"p": 3}
    assert txstream.reading.__all__ == ["Once", "once"]
