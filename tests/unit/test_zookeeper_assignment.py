"""What operators see, where tasks ran and why a batch fails, over an in-memory tree whose writes can be late.

The tests of a real ZooKeeper run the same class.
"""

from __future__ import annotations

import json
import random
import zlib
from dataclasses import replace
from typing import Any

import pytest
from support.requests import LOST_BEFORE_OR_AFTER, NOON, assignment
from support.zookeeper_backends import Backend, Fault, InMemory, commit, leader_of

from txstream.core.errors import CorruptStateError, FencedError
from txstream.core.failing_batch import FailingBatch, Wait
from txstream.core.placement import Assignment, EdgeTuples
from txstream.core.transaction import Txid, attempt_id
from txstream.zookeeper import (
    ASSIGNMENT,
    AWAY,
    EDGES,
    ENDED,
    FAILING,
    FAILING_ATTEMPTS,
    WAITING,
    LostAnswerError,
)

PLACE = {"component": "c", "task": 0, "slot": 0, "worker": "1", "host": "h", "seconds": 0.5, "tuples": 3}
STORED = {"txid": 1, "attempt": 1, "at": "2026-01-02T12:00:00+00:00", "left_out": 0, "tasks": [PLACE]}

WAIT = Wait("partition lines/3", NOON, "txid 2 must hold the same tuples", "it has no leader")


@pytest.fixture
def backend(unique: str) -> InMemory:
    return InMemory(unique)


class TestShown:
    def test_what_passed_between_components_is_read_as_it_was_written(self, backend: Backend) -> None:
        store = leader_of(backend)
        assert store.notes.get(EDGES) is None
        edges = (
            EdgeTuples("lines", "default", "split", 7, 0.0, 0.0),
            EdgeTuples("split", "late", "count", 0, 0.5, None),
        )
        seen = Assignment(Txid(3), attempt_id(1, 7), NOON, (), edges=edges)
        store.notes.put(EDGES, seen)
        assert backend.store().notes.get(EDGES) == seen
        document = '{"txid": 1, "attempt": 1, "at": "2026-01-02T12:00:00+00:00", "edges": [[%s]]}'
        for damaged in ('"a"', '"a", "b", "c", -1', '"a", "b", "c", 7, 1.5', '"a", "b", "c", 7, 1.5, -0.5'):
            backend.put("edges", (document % damaged).encode())
            with pytest.raises(CorruptStateError, match="expected what passed on an edge"):
                store.notes.get(EDGES)
        backend.put("edges", (document % '"a", "b", "c", 7').encode())  # by a driver of before
        older = store.notes.get(EDGES)
        assert older is not None
        assert older.edges == (EdgeTuples("a", "b", "c", 7, None, None),)

    def test_why_a_batch_fails_is_read_as_it_was_written(self, backend: Backend) -> None:
        store = leader_of(backend)
        assert store.notes.get(FAILING) is None
        batch = FailingBatch(Txid(2), attempt_id(1, 7), NOON, {"database or disk is full": 3, "away": 1})
        store.notes.put(FAILING, batch)
        assert backend.store().notes.get(FAILING) == batch
        leader_of(backend)
        with pytest.raises(FencedError):
            store.notes.put(FAILING, replace(batch, txid=Txid(3)))
        backend.put("failing", b'{"txid": 0, "attempt": 1, "at": "2026-01-02T12:00:00+00:00", "reasons": {}}')
        with pytest.raises(CorruptStateError, match=f"/{backend.topology_id}/failing: "):
            store.notes.get(FAILING)

    def test_the_latest_attempts_of_a_failing_batch_are_noted_and_bounded(self, backend: Backend) -> None:
        store = leader_of(backend)
        attempts: tuple[dict[str, Any], ...] = (
            {"attempt": 7, "error": "away", "failed_at": "x", "same": True},
        )
        metas: dict[str, Any] = {
            "partitions": {"lines/0": {"start": 1, "end": 2}},
            "unavailable": {},
            "more": 0,
        }
        batch = FailingBatch(Txid(2), attempt_id(1, 7), NOON, {"away": 1}, metas, attempts)
        store.notes.put(FAILING_ATTEMPTS, batch)
        assert backend.store().notes.get(FAILING_ATTEMPTS) == batch
        long = {f"lines/{n}": {"place": random.Random(n).randbytes(1000).hex()} for n in range(100)}
        store.notes.put(FAILING_ATTEMPTS, replace(batch, metas={**metas, "partitions": long}))
        assert len(backend.get("failing_attempts") or b"") < 2_000
        without = backend.store().notes.get(FAILING_ATTEMPTS)
        assert without == replace(
            batch, metas={}, attempts=({"attempt": 7, "error": "away", "failed_at": "x"},)
        )
        document = {"txid": 1, "attempt": 1, "at": "2026-01-02T12:00:00+00:00", "reasons": {}, "metas": {}}
        backend.put("failing_attempts", json.dumps({**document, "attempts": ["x"]}).encode())
        with pytest.raises(CorruptStateError, match="expected failed attempts"):
            store.notes.get(FAILING_ATTEMPTS)

    def test_since_when_partitions_are_away_is_there_while_they_are(self, backend: Backend) -> None:
        store = leader_of(backend)
        store.notes.put(AWAY, {f"lines/{n}": NOON for n in range(200)})
        noted = backend.store().notes.get(AWAY)
        assert noted is not None
        assert len(noted) == 100
        store.notes.put(AWAY, {"lines/1": NOON})
        assert backend.store().notes.get(AWAY) == {"lines/1": NOON}
        assert leader_of(backend).notes.get(AWAY) is None, "a former leader's"
        backend.put("away", b'{"epoch": 1, "since": {"lines/1": "noon"}}')
        with pytest.raises(CorruptStateError, match="/away: 'lines/1' is not a time"):
            backend.store().notes.get(AWAY)

    def test_a_leader_that_ends_well_is_known_to_the_next(self, backend: Backend) -> None:
        store = leader_of(backend)
        assert store.notes.get(ENDED) is None
        store.notes.put(ENDED, None)
        assert leader_of(backend).notes.get(ENDED) == 1
        backend.put("ended", b'{"epoch": "1"}')
        with pytest.raises(CorruptStateError, match="/ended: 'epoch' must be of type int"):
            store.notes.get(ENDED)

    def test_what_is_waited_for_is_there_while_it_is(self, backend: Backend) -> None:
        store = leader_of(backend)
        assert store.notes.get(WAITING) is None
        store.notes.put(WAITING, ())
        assert backend.get("waiting") is None
        for waits in ([WAIT], [WAIT, replace(WAIT, what="the source", because="")]):
            store.notes.put(WAITING, waits)
            assert backend.store().notes.get(WAITING) == tuple(waits)
        store.notes.put(WAITING, ())
        assert backend.get("waiting") is None
        store.notes.put(WAITING, [WAIT])
        newer = leader_of(backend)
        assert newer.notes.get(WAITING) is None, "a former leader's wait"
        with pytest.raises(FencedError):
            store.notes.put(WAITING, ())
        newer.notes.put(WAITING, [WAIT])
        assert newer.notes.get(WAITING) == (WAIT,)
        for document in (b"?", b'{"epoch": 2, "waits": [{}]}', b'{"epoch": 2, "waits": [7]}'):
            backend.put("waiting", document)
            with pytest.raises(CorruptStateError, match=f"/{backend.topology_id}/waiting: "):
                newer.notes.get(WAITING)

    @LOST_BEFORE_OR_AFTER
    def test_a_wait_whose_end_was_lost_on_the_way_is_ended_all_the_same(
        self, backend: Backend, moment: str
    ) -> None:
        """Otherwise it would be shown for as long as this leader runs."""
        fault = Fault(moment, "write_waiting", LostAnswerError())
        fault.fired = 1  # not yet
        store = leader_of(backend, fault)
        store.notes.put(WAITING, [WAIT])
        fault.fired = 0
        store.notes.put(WAITING, ())
        assert fault.fired == 1
        assert backend.get("waiting") is None
        store.notes.put(WAITING, [WAIT])
        assert store.notes.get(WAITING) == (WAIT,)

    # --- the assignment -----------------------------------------------------------------------------------

    def test_an_assignment_is_read_as_it_was_written(self, backend: Backend) -> None:
        store = leader_of(backend)
        for txid in (1, 2):
            store.notes.put(ASSIGNMENT, assignment(txid=txid))
            assert backend.store().notes.get(ASSIGNMENT) == assignment(txid=txid)
        newer = leader_of(backend)
        newer.notes.put(ASSIGNMENT, assignment(3, txid=7))
        assert newer.notes.get(ASSIGNMENT) == assignment(3, txid=7)
        assert json.loads(backend.get("assignment") or b"")["tasks"][1] == {
            "component": "count",
            "task": 1,
            "slot": 0,
            "worker": "1",
            "host": "here",
            "seconds": 0.125,
            "tuples": 10,
        }

    def test_an_assignment_costs_one_round_trip(self, backend: Backend) -> None:
        store = leader_of(backend)
        store.notes.put(ASSIGNMENT, assignment())
        before = backend.requests()
        for txid in range(2, 12):
            store.notes.put(ASSIGNMENT, assignment(txid=txid))
        assert backend.requests() - before == 10

    def test_an_older_leader_writes_no_assignment(self, backend: Backend) -> None:
        older = leader_of(backend)
        older.notes.put(ASSIGNMENT, assignment())
        leader_of(backend)
        with pytest.raises(FencedError):
            older.notes.put(ASSIGNMENT, assignment(txid=2))
        assert backend.store().notes.get(ASSIGNMENT) == assignment()

    @LOST_BEFORE_OR_AFTER
    def test_an_assignment_whose_answer_was_lost_is_left_at_that(self, backend: Backend, moment: str) -> None:
        fault = Fault(moment, "write_assignment", LostAnswerError())
        store = leader_of(backend, fault)
        store.notes.put(ASSIGNMENT, assignment())
        assert fault.fired == 1
        store.notes.put(ASSIGNMENT, assignment(txid=2))
        assert store.notes.get(ASSIGNMENT) == assignment(txid=2)

    def test_an_assignment_that_somebody_else_wrote_is_overwritten(self, backend: Backend) -> None:
        store = leader_of(backend)
        store.notes.put(ASSIGNMENT, assignment())
        backend.put("assignment", b"nonsense")
        with pytest.raises(CorruptStateError, match=f"/{backend.topology_id}/assignment: "):
            store.notes.get(ASSIGNMENT)
        store.notes.put(ASSIGNMENT, assignment(txid=2))
        assert store.notes.get(ASSIGNMENT) == assignment(txid=2)

    def test_a_large_assignment_is_compressed_and_a_too_large_one_is_cut(self, backend: Backend) -> None:
        """Against a real server, this shows that what is let through does fit."""
        store = leader_of(backend)
        store.notes.put(ASSIGNMENT, assignment(2_000))
        assert len(zlib.decompress(backend.get("assignment") or b"")) > 128 * 1024
        assert store.notes.get(ASSIGNMENT) == assignment(2_000)
        rng = random.Random(3)
        store.notes.put(ASSIGNMENT, assignment(9_000, name=lambda _: rng.randbytes(150).hex()))
        stored = store.notes.get(ASSIGNMENT)
        assert stored is not None
        assert (len(stored.tasks), stored.left_out) == (4_500, 4_500)
        assert min(place.seconds for place in stored.tasks) == 4_500 / 8, "those that took longest are kept"
        commit(store, 1, attempt_id(1, 1))

    @pytest.mark.parametrize(
        "document",
        [
            {},
            STORED | {"more": 1},
            STORED | {"txid": 0},
            STORED | {"attempt": 0},
            STORED | {"attempt": None},
            STORED | {"left_out": -1},
            STORED | {"at": 12},
            STORED | {"tasks": {}},
            STORED | {"tasks": [PLACE | {"more": 1}]},
            STORED | {"tasks": [PLACE | {"task": -1}]},
            STORED | {"tasks": [PLACE | {"task": "0"}]},
            STORED | {"tasks": [PLACE | {"seconds": 1}]},
            STORED | {"tasks": [PLACE | {"seconds": float("nan")}]},
            STORED | {"tasks": [PLACE | {"host": None}]},
        ],
    )
    def test_a_corrupt_assignment_is_named(self, backend: Backend, document: Any) -> None:
        store = leader_of(backend)
        backend.put("assignment", json.dumps(STORED).encode())
        assert store.notes.get(ASSIGNMENT) is not None
        backend.put("assignment", json.dumps(document).encode())
        with pytest.raises(CorruptStateError, match=f"/{backend.topology_id}/assignment: "):
            store.notes.get(ASSIGNMENT)


def test_a_late_assignment_does_not_replace_a_newer_one(backend: InMemory) -> None:
    store = leader_of(backend)
    store.notes.put(ASSIGNMENT, assignment())
    backend.tree.delay_next_write()
    store.notes.put(ASSIGNMENT, assignment(txid=2))
    store.notes.put(ASSIGNMENT, assignment(txid=3))
    assert backend.tree.deliver_late() == 0
    assert store.notes.get(ASSIGNMENT) == assignment(txid=3)
