"""What operators ask, over an in-memory tree whose writes can be late.

The tests of a real ZooKeeper run the same class.
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.requests import LOST_BEFORE_OR_AFTER, Told, answer_all, assignment, once, slots, waiting
from support.zookeeper_backends import Backend, Fault, InMemory, leader_of

from txstream.core.errors import CorruptStateError, FencedError, ServiceUnavailableError, UsageError
from txstream.zookeeper import ASSIGNMENT, InForce, Kind, LostAnswerError, ProgressStore, Requests
from txstream.zookeeper.tree import Node

REQUEST = {
    "request": "1",
    "kind": "scale",
    "body": {"count": 3},
    "asked_at": "2026-01-02T12:00:00+00:00",
    "asked_by": "me@here",
}
IN_FORCE: dict[str, Any] = {"slots": {"count": 3}, "paused": None, "stopped": None}
STOP_AT_NOON = REQUEST | {"kind": "stop", "body": {"at": "noon"}}
ANSWER: dict[str, Any] = {
    "request": "1",
    "refused": None,
    "told": {},
    "answered_at": "2026-01-02T12:00:00+00:00",
}


@pytest.fixture
def backend(unique: str) -> InMemory:
    return InMemory(unique)


class TestRequests:
    # --- asked and answered -------------------------------------------------------------------------------

    def test_nothing_was_asked_at_first(self, backend: Backend) -> None:
        store = leader_of(backend)
        assert store.read_requests() == backend.operator().read() == Requests()
        assert store.notes.get(ASSIGNMENT) is None

    def test_a_request_waits_until_it_is_answered_and_is_then_in_force(self, backend: Backend) -> None:
        store, operator = leader_of(backend), backend.operator()
        request_id = operator.ask(Kind.SCALE, {"count": 3})
        requests = store.read_requests()
        assert (requests.in_force, waiting(requests)) == (InForce(), [{"count": 3}])
        assert requests.waiting[0].request_id == request_id
        assert "@" in requests.waiting[0].asked_by
        assert operator.wait_answer(request_id, 0) is None
        store.answer_request(requests.waiting[0], None, {"before": {"count": 2}})
        assert store.read_requests() == slots(count=3)
        answer = operator.wait_answer(request_id, 0)
        assert answer is not None
        assert (answer.refused, answer.told) == (None, {"before": {"count": 2}})

    def test_granted_slots_accumulate_and_the_latest_counts(self, backend: Backend) -> None:
        store, operator = leader_of(backend), backend.operator()
        for asked in ({"count": 3}, {"split": 2}, {"count": 1, "lines": 4}):
            operator.ask(Kind.SCALE, asked)
        assert waiting(store.read_requests()) == [{"count": 3}, {"split": 2}, {"count": 1, "lines": 4}]
        answer_all(store)
        assert store.read_requests() == slots(count=1, split=2, lines=4)

    def test_the_next_leader_begins_with_the_pauses_that_wait(self, backend: Backend) -> None:
        store, operator = leader_of(backend), backend.operator()
        operator.ask(Kind.SCALE, {"count": 3})
        first = operator.ask(Kind.PAUSE, {})
        operator.ask(Kind.PAUSE, {})
        paused = store.read_requests().paused_next
        assert paused is not None
        assert paused.request_id == first
        answer_all(store)
        assert store.read_requests().paused_next == paused
        operator.ask(Kind.RESUME, {})
        requests = store.read_requests()
        assert (requests.in_force.paused, requests.paused_next) == (paused, None)

    def test_a_pause_is_in_force_until_it_is_resumed_and_the_first_one_counts(self, backend: Backend) -> None:
        store, operator = leader_of(backend), backend.operator()
        first, _ = (operator.ask(Kind.PAUSE, {}) for _ in range(2))
        answer_all(store)
        paused = leader_of(backend).read_requests().in_force.paused
        assert paused is not None
        assert (paused.request_id, paused.kind) == (first, Kind.PAUSE)
        operator.ask(Kind.SCALE, {"count": 3})
        operator.ask(Kind.RESUME, {})
        newer = leader_of(backend)
        answer_all(newer)
        assert newer.read_requests() == slots(count=3)

    def test_of_several_stops_the_newest_is_kept(self, backend: Backend) -> None:
        store, operator = leader_of(backend), backend.operator()
        for body in ({"at": 7}, {"at": 9}):
            operator.ask(Kind.STOP, body)
        answer_all(store)
        stopped = store.read_requests().in_force.stopped
        assert stopped is not None
        assert stopped.at == 9

    def test_a_kind_that_is_not_known_yet_waits_for_the_leaders_judgement(self, backend: Backend) -> None:
        store = leader_of(backend)
        newer: Any = "replay"
        backend.operator().ask(newer, {"txid": 3})
        backend.operator().ask(Kind.SCALE, {"count": 3})
        assert waiting(store.read_requests()) == [{"txid": 3}, {"count": 3}]
        answer_all(store, "not known here")
        assert store.read_requests() == Requests()

    def test_a_refused_request_leaves_nothing_behind(self, backend: Backend) -> None:
        store, operator = leader_of(backend), backend.operator()
        refused = operator.ask(Kind.SCALE, {"count": 99})
        answer_all(store, "there are 4 tasks " * 100)
        granted = operator.ask(Kind.SCALE, {"split": 2})
        answer_all(store)
        assert store.read_requests() == slots(split=2)
        answers = [operator.wait_answer(request_id, 0) for request_id in (refused, granted)]
        assert [answer and answer.refused and answer.refused[:17] for answer in answers] == [
            "there are 4 tasks",
            None,
        ]

    def test_of_two_operators_neither_loses_its_request(self, backend: Backend) -> None:
        store = leader_of(backend)
        faster = backend.operator()
        slower = backend.operator(once(lambda: faster.ask(Kind.SCALE, {"count": 3}), "ask_request"))
        slower.ask(Kind.SCALE, {"split": 2})
        assert waiting(store.read_requests()) == [{"count": 3}, {"split": 2}]

    def test_many_operators_at_once(self, backend: Backend) -> None:
        store = leader_of(backend)
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(backend.operator().ask, Kind.SCALE, {f"bolt{n}": n + 1}) for n in range(12)]
        assert {r.request_id for r in store.read_requests().waiting} == {a.result() for a in asked}
        answer_all(store)
        assert store.read_requests() == slots(**{f"bolt{n}": n + 1 for n in range(12)})

    def test_a_request_that_comes_while_another_is_answered_is_kept(self, backend: Backend) -> None:
        operator = backend.operator()
        asking = once(lambda: operator.ask(Kind.SCALE, {"split": 2}), "answer_request")
        store = leader_of(backend, asking)
        operator.ask(Kind.SCALE, {"count": 3})
        answer_all(store)
        requests = store.read_requests()
        assert (requests.in_force.slots, waiting(requests)) == ({"count": 3}, [{"split": 2}])

    def test_an_answer_is_waited_for(self, backend: Backend) -> None:
        store, operator = leader_of(backend), backend.operator()
        request_id = operator.ask(Kind.SCALE, {"count": 3})
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(operator.wait_answer, request_id, 30)
            operator_asks_more = backend.operator().ask(Kind.SCALE, {"split": 2})
            answer_all(store)
            found = answer.result(60)
            assert found is not None
            assert found.request_id == request_id != operator_asks_more

    # --- answers lost, leaders lost -----------------------------------------------------------------------

    @LOST_BEFORE_OR_AFTER
    def test_a_request_whose_answer_was_lost_is_stored_once(self, backend: Backend, moment: str) -> None:
        store = leader_of(backend)
        fault = Fault(moment, "ask_request", LostAnswerError())
        request_id = backend.operator(fault).ask(Kind.SCALE, {"count": 3})
        assert fault.fired == 1
        assert [request.request_id for request in store.read_requests().waiting] == [request_id]

    def test_a_request_that_was_answered_before_it_was_known_to_be_stored(self, backend: Backend) -> None:
        store = leader_of(backend)

        def answered_and_lost(moment: str, write: str) -> None:
            if moment == "after":
                answer_all(store)
                raise LostAnswerError

        request_id = backend.operator(answered_and_lost).ask(Kind.SCALE, {"count": 3})
        assert store.read_requests() == slots(count=3)
        assert backend.operator().wait_answer(request_id, 0) is not None

    @LOST_BEFORE_OR_AFTER
    def test_an_answer_that_was_lost_on_the_way_is_given_once(self, backend: Backend, moment: str) -> None:
        fault = Fault(moment, "answer_request", LostAnswerError())
        store = leader_of(backend, fault)
        backend.operator().ask(Kind.SCALE, {"count": 3})
        answer_all(store)
        assert fault.fired == 1
        assert store.read_requests() == slots(count=3)
        assert len(json.loads(backend.get("requests/answered") or b"")["answers"]) == 1

    def test_an_older_leader_answers_nothing_and_the_newer_one_goes_on(self, backend: Backend) -> None:
        operator = backend.operator()
        older = leader_of(backend)
        operator.ask(Kind.SCALE, {"count": 3})
        answer_all(older)
        operator.ask(Kind.SCALE, {"split": 2})
        newer = leader_of(backend)
        with pytest.raises(FencedError):
            answer_all(older)
        requests = newer.read_requests()
        assert (requests.in_force.slots, waiting(requests)) == ({"count": 3}, [{"split": 2}])
        answer_all(newer)
        assert newer.read_requests() == slots(count=3, split=2)

    @LOST_BEFORE_OR_AFTER
    def test_after_a_crash_at_the_answer_the_next_leader_goes_on(self, backend: Backend, moment: str) -> None:
        store = leader_of(backend, Fault(moment, "answer_request", KeyboardInterrupt()))
        backend.operator().ask(Kind.SCALE, {"count": 3})
        with pytest.raises(KeyboardInterrupt):
            answer_all(store)
        following = leader_of(backend)
        expected = [{"count": 3}] if moment == "before" else []
        assert waiting(following.read_requests()) == expected
        answer_all(following)
        assert following.read_requests() == slots(count=3)

    # --- refused and unreadable ---------------------------------------------------------------------------

    def test_nobody_asks_what_was_never_run_or_was_deleted(self, backend: Backend) -> None:
        with pytest.raises(UsageError, match="was not run yet"):
            backend.operator().ask(Kind.SCALE, {"count": 3})
        assert backend.get("") is None
        leader_of(backend)
        deleting = once(backend.store().delete_everything, "ask_request")
        with pytest.raises(UsageError, match="was deleted"):
            backend.operator(deleting).ask(Kind.SCALE, {"count": 3})
        assert backend.get("") is None

    def test_a_lost_folder_of_requests_is_named(self, backend: Backend) -> None:
        leader_of(backend)
        backend.remove("requests")
        with pytest.raises(CorruptStateError, match=f"/{backend.topology_id}/requests is missing"):
            backend.operator().ask(Kind.SCALE, {"count": 3})

    def test_requests_that_nobody_answers_have_an_end(self, backend: Backend) -> None:
        leader_of(backend)
        for _ in range(3):
            backend.operator().ask(Kind.SCALE, {"c" * 5_000: 1})
        with pytest.raises(ServiceUnavailableError, match=r"requests/asked has no room .* 3 wait"):
            backend.operator().ask(Kind.SCALE, {"c" * 5_000: 1})

    @pytest.mark.parametrize(
        ("path", "document"),
        [
            ("requests/asked", b""),
            ("requests/asked", b"3"),
            ("requests/asked", {}),
            ("requests/asked", {"requests": [], "more": 1}),
            ("requests/asked", {"requests": {}}),
            ("requests/asked", {"requests": ["count=3"]}),
            ("requests/asked", {"requests": [REQUEST | {"more": 1}]}),
            ("requests/asked", {"requests": [REQUEST | {"body": 3}]}),
            ("requests/asked", {"requests": [REQUEST | {"kind": None}]}),
            ("requests/asked", {"requests": [REQUEST | {"asked_by": 3}]}),
            ("requests/asked", {"requests": [REQUEST | {"request": 1}]}),
            ("requests/asked", {"requests": [REQUEST | {"asked_at": "noon"}]}),
            ("requests/asked", {"requests": [REQUEST | {"asked_at": "2026-01-02T12:00:00"}]}),
            ("requests/answered", b"{"),
            ("requests/answered", {"in_force": IN_FORCE}),
            ("requests/answered", {"in_force": {}, "answers": []}),
            ("requests/answered", {"in_force": IN_FORCE | {"slots": {"count": -1}}, "answers": []}),
            ("requests/answered", {"in_force": IN_FORCE | {"slots": {"count": True}}, "answers": []}),
            ("requests/answered", {"in_force": IN_FORCE | {"paused": True}, "answers": []}),
            ("requests/answered", {"in_force": IN_FORCE | {"stopped": STOP_AT_NOON}, "answers": []}),
            ("requests/answered", {"in_force": IN_FORCE, "answers": [ANSWER | {"more": 1}]}),
            ("requests/answered", {"in_force": IN_FORCE, "answers": [ANSWER | {"refused": 1}]}),
            ("requests/answered", {"in_force": IN_FORCE, "answers": [ANSWER | {"told": None}]}),
            ("requests/scaled", {"slots": {"count": 3}, "answers": []}),
        ],
    )
    def test_corrupt_requests_are_named_and_left_alone(
        self, backend: Backend, path: str, document: Any
    ) -> None:
        store = leader_of(backend)
        answered = {"in_force": IN_FORCE, "answers": [ANSWER]}
        for name, good in {"asked": {"requests": [REQUEST]}, "answered": answered}.items():
            backend.put(f"requests/{name}", json.dumps(good).encode())
        assert store.read_requests() == slots(count=3)  # the good documents: already answered
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        backend.put(path, data)
        for read in (store.read_requests, backend.operator().read):
            with pytest.raises(CorruptStateError, match=f"/{backend.topology_id}/{path}: "):
                read()
        assert backend.get(path) == data

    # --- watching -----------------------------------------------------------------------------------------

    def test_a_watch_tells_at_once_and_after_every_request(self, backend: Backend) -> None:
        store, told = leader_of(backend), Told()
        stop = store.watch_requests(told)
        assert told.wait(1)
        for number in range(1, 4):
            backend.operator().ask(Kind.SCALE, {"count": number})
            assert told.wait(1 + number)
        answer_all(store)
        assert told.wait(4)
        stop()

    def test_a_watch_that_was_ended_tells_nothing(self, backend: Backend) -> None:
        store, ended, other = leader_of(backend), Told(), Told()
        stop = store.watch_requests(ended)
        assert ended.wait(1)
        store.watch_requests(other)
        assert other.wait(1)
        stop()
        stop()
        backend.operator().ask(Kind.SCALE, {"count": 3})
        assert other.wait(2)
        assert ended.times == 1

    def test_what_is_raised_when_told_ends_no_watch(
        self, backend: Backend, caplog: pytest.LogCaptureFixture
    ) -> None:
        store, told = leader_of(backend), Told()

        def failing() -> None:
            told()
            raise RuntimeError("the engine is gone")

        store.watch_requests(failing)
        assert told.wait(1)
        backend.operator().ask(Kind.SCALE, {"count": 3})
        assert told.wait(2)
        assert "the engine is gone" in caplog.text

    # --- deleting -----------------------------------------------------------------------------------------

    def test_a_deleted_topology_keeps_nothing_of_it(self, backend: Backend) -> None:
        store = leader_of(backend)
        backend.operator().ask(Kind.SCALE, {"count": 3})
        answer_all(store)
        backend.operator().ask(Kind.SCALE, {"split": 2})
        store.notes.put(ASSIGNMENT, assignment())
        backend.store().delete_everything()
        assert backend.get("") is None
        with pytest.raises(CorruptStateError, match="deleted while this driver ran it"):
            store.notes.put(ASSIGNMENT, assignment(txid=2))
        again = leader_of(backend)
        assert (again.read_requests(), again.notes.get(ASSIGNMENT)) == (Requests(), None)


def test_writes_that_arrive_late_change_nothing(backend: InMemory) -> None:
    store = leader_of(backend)
    backend.tree.delay_next_write()
    backend.operator().ask(Kind.SCALE, {"count": 3})
    assert backend.tree.deliver_late() == 0
    assert waiting(store.read_requests()) == [{"count": 3}]
    backend.tree.delay_next_write()
    answer_all(store)
    assert backend.tree.deliver_late() == 0
    assert store.read_requests() == slots(count=3)
    assert len(json.loads(backend.get("requests/answered") or b"")["answers"]) == 1


def test_only_the_newest_answers_are_kept(backend: InMemory) -> None:
    store, operator = leader_of(backend), backend.operator()
    asked = []
    for number in range(1, 50):
        asked.append(operator.ask(Kind.SCALE, {"count": number}))
        answer_all(store)
    stored = json.loads(backend.get("requests/answered") or b"")
    assert [answer["request"] for answer in stored["answers"]] == asked[-40:]
    assert stored["in_force"]["slots"] == {"count": 49}


def answered_during_the_next_read(backend: InMemory, store: ProgressStore, path: str) -> None:
    """Have the leader answer right after the next time that somebody has read this znode."""
    read, wanted = backend.tree.get, f"{backend.base}/{path}"

    def get(path: str) -> Node | None:
        node = read(path)
        if path == wanted:
            del backend.tree.get
            answer_all(store)
        return node

    backend.tree.get = get  # type: ignore[method-assign]


@pytest.mark.parametrize("path", ["requests/asked", "requests/answered"])
def test_a_request_that_is_answered_during_a_read_waits_or_is_in_force(backend: InMemory, path: str) -> None:
    """What was asked is read first. The other way round, a driver would start without what was granted."""
    store = leader_of(backend)
    backend.operator().ask(Kind.SCALE, {"count": 3})
    answered_during_the_next_read(backend, store, path)
    found = backend.operator().read()
    assert store.read_requests() == slots(count=3)
    if path == "requests/asked":
        assert found == slots(count=3)
    else:
        assert (found.in_force.slots, waiting(found)) == ({}, [{"count": 3}])


def test_an_answer_that_comes_while_it_is_looked_for_is_seen_at_once(
    backend: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Impatient(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert self.is_set(), "it waits though the answer is there"
            return True

    monkeypatch.setattr(threading, "Event", Impatient)
    store, operator = leader_of(backend), backend.operator()
    request_id = operator.ask(Kind.SCALE, {"count": 3})
    answered_during_the_next_read(backend, store, "requests/answered")
    assert operator.wait_answer(request_id, 60) is not None
