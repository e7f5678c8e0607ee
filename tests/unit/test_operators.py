"""What operators ask of a running topology and what they see of it: changed slots, and where tasks ran."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.bolts import CountByHand
from support.inmemory import MemoryLog
from support.lists import each
from support.loops import DEADLINE_SECONDS, TOPOLOGY, Run, World, wait, words

import txstream.engine.loop.operator_requests
from txstream.api.spouts import OpaqueSpout, TransactionalSpout
from txstream.core.batch_metas import MetaCodec
from txstream.core.errors import CorruptStateError, FencedError, ServiceUnavailableError
from txstream.core.placement import Assignment
from txstream.core.transaction import Epoch, TransactionAttempt
from txstream.core.waiting import RunAbortedError, WaitStoppedError
from txstream.core.waits import wait_until
from txstream.engine.batch.runner_contract import BatchResult
from txstream.engine.loop.operator_requests import ASSIGNMENT_SECONDS
from txstream.engine.loop.report import Statistics
from txstream.plugins.proof.zookeeper_tree import MemoryProgress
from txstream.zookeeper import ASSIGNMENT, EDGES, ROOT, Answer, Kind, OperatorRequests, Paths, Requests

BOTH = pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])
PATHS = Paths(ROOT, TOPOLOGY)
LINES = [f"w{n} w{n * n % 17} end" for n in range(24)]


def driver(
    world: World,
    until: str | int | None = None,
    *,
    tasks: int = 4,
    asked_before: Requests | None = None,
    **options: Any,
) -> Run:
    """Return a run of lines (2 slots), split (2), count (2 slots, `tasks` tasks: it is not merged), store
    (2). Each batch has four Spark tasks, as far as slots allow. What every component emits is kept."""
    return Run(
        world,
        until,
        max_batch_records=8,
        width=4,
        capture=True,
        options={"count": CountByHand(), "tasks": tasks, **options},
        asked_before=asked_before,
    )


def empty_world(spout: Any = OpaqueSpout) -> World:
    return World(MemoryLog({"a": [], "b": []}), spout)


def feed(run: Run, lines: list[str] = LINES) -> None:
    """Append the lines, and wait until they are committed."""
    log = run.world.log
    for number, line in enumerate(lines):
        log.partitions["ab"[number % 2]].append(line)
    until_committed(run)


def until_committed(run: Run) -> None:
    expected = sum(len(rows) for rows in run.world.log.partitions.values())
    committed = wait_until(lambda: run.loop.statistics.records >= expected, DEADLINE_SECONDS)
    assert committed, f"{run.error}, {run.loop.statistics}"


def stop(run: Run) -> None:
    run.loop.stop()
    run.finish()
    assert run.world.table.totals() == words(run.world.log), "something was lost or doubled"


def operator(world: World) -> OperatorRequests:
    return OperatorRequests(world.tree, PATHS)


def ask(world: World, **slots: int) -> Answer:
    return order(world, Kind.SCALE, **slots)


def order(world: World, kind: Kind, **body: Any) -> Answer:
    """Ask the leader, and return its answer."""
    requests = operator(world)
    answer = requests.wait_answer(requests.ask(kind, body), DEADLINE_SECONDS)
    assert answer is not None, "no answer"
    return answer


def answer_to(world: World, request_id: str) -> Answer | None:
    return operator(world).wait_answer(request_id, 0)


def slots_used(result: BatchResult, component: str = "count") -> set[int]:
    return {place.slot for place in result.places if place.component == component}


def tasks_of_words(result: BatchResult) -> dict[str, int]:
    """Return the task of `count` that got each word."""
    return {
        word: emitted.task
        for emitted in result.emitted
        if emitted.component == "count"
        for word in emitted.tuples["word"].to_pylist()
    }


def written(world: World) -> Assignment | None:
    notes = MemoryProgress(world.tree, PATHS.topology_id, MetaCodec(Paths)).notes
    found, passed = notes.get(ASSIGNMENT), notes.get(EDGES)
    if found is None or passed is None:
        return found
    assert (found.txid, found.attempt) == (passed.txid, passed.attempt)
    return replace(found, edges=passed.edges)


# --- slots change between two batches --------------------------------------------------------------------


@BOTH
def test_a_running_topology_is_scaled_up_and_down_and_every_word_keeps_its_task(spout: Any) -> None:
    world = empty_world(spout)
    run = driver(world).start()
    feed(run)
    slots = 2
    homes: dict[str, int] = {}
    for count in (4, 1, 3):
        assert ask(world, count=count).told["before"] == {"count": slots}
        slots = count
        earlier = set(run.runner.results)
        feed(run)
        later = [result for attempt, result in run.runner.results.items() if attempt not in earlier]
        assert later
        assert all(slots_used(result) == set(range(count)) for result in later)
    for result in run.runner.results.values():
        for word, task in tasks_of_words(result).items():
            assert homes.setdefault(word, task) == task, f"{word} has moved"
    assert set(homes.values()) == {0, 1, 2, 3}, "words enough for every task"
    assert homes.keys() == words(world.log).keys()
    stop(run)
    assert sorted(world.table.batches) == list(range(1, run.loop.statistics.batches + 1))


def test_an_attempt_in_flight_ends_with_the_slots_that_it_began_with() -> None:
    world = empty_world()
    reading, go_on = threading.Event(), threading.Event()

    def on_emit(attempt: TransactionAttempt, partition: str) -> None:
        if attempt.txid == 1:
            reading.set()
            wait(go_on, "the topology being scaled")

    world.log.on_emit = on_emit
    world.log.partitions["a"] += LINES
    run = driver(world, max_spout_pending=1).start()
    wait(reading, "the first batch being read")
    assert ask(world, count=4).refused is None
    go_on.set()
    until_committed(run)
    stop(run)
    used = {attempt.txid: slots_used(result) for attempt, result in run.runner.results.items()}
    assert used == {1: {0, 1}, 2: {0, 1, 2, 3}, 3: {0, 1, 2, 3}}


def test_a_spout_may_have_fewer_slots_and_then_as_many_as_its_parallelism() -> None:
    world = empty_world()
    run = driver(world).start()
    for slots in (1, 2):
        assert ask(world, lines=slots).refused is None
        feed(run)
        newest = list(run.runner.results.values())[-1]
        assert slots_used(newest, "lines") == set(range(slots))
    stop(run)


@each(
    ("slots", "words_of_refusal"),
    [
        ({"cuont": 2}, ["no component 'cuont'", "count, lines, split, store"]),
        ({"count": 5}, ["5 slots", "4 tasks", ".set_num_tasks(5)"]),
        ({"lines": 3}, ["'lines'", "at most its parallelism of 2", "parallelism=3"]),
        ({"count": 4, "split": 9}, ["'split'", "9 slots"]),
    ],
)
def test_what_cannot_be_had_is_refused_and_changes_nothing(
    slots: dict[str, int], words_of_refusal: list[str]
) -> None:
    world = empty_world()
    run = driver(world).start()
    refused = ask(world, **slots).refused
    assert refused is not None
    assert all(word in refused for word in words_of_refusal), refused
    feed(run)
    assert all(slots_used(result) == {0, 1} for result in run.runner.results.values())
    assert operator(world).read().in_force.slots == {}
    assert ask(world, count=4).told["before"] == {"count": 2}, "the next request is served"
    stop(run)


def test_the_leader_tells_what_it_saw_of_a_txid() -> None:
    world = empty_world()
    run = driver(world).start()
    feed(run, LINES[:2])
    lines = order(world, Kind.STORY, txid=1).told["story"]
    assert [line.split("  ")[-1].strip() for line in lines][-2:] == [
        "Advance txid 1 attempt 1.1, after ack txid 1 attempt 1.1",
        "advanced txid 1",
    ]
    assert all(" s ago" in line for line in lines[1:])
    refused = order(world, Kind.STORY, txid=99).refused
    assert refused == "this run's last 200 events have nothing of txid 99"
    stop(run)


# --- over restarts ---------------------------------------------------------------------------------------


def test_a_restart_has_the_slots_that_were_in_force_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    world = empty_world()
    first = driver(world).start()
    ask(world, count=4, split=1, lines=2)
    feed(first)
    stop(first)
    world.log.partitions["a"] += LINES
    caplog.clear()
    second = driver(world, "caught-up").complete()
    assert all(slots_used(result) == {0, 1, 2, 3} for result in second.runner.results.values())
    assert all(slots_used(result, "split") == {0} for result in second.runner.results.values())
    assert world.table.totals() == words(world.log)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 2, "lines has what it was declared with"
    assert said[0].startswith("component 'count' has 4 slots")
    assert "parallelism of 2" in said[0]
    assert said[1].startswith("component 'split' has 1 slots")


def test_slots_that_the_code_no_longer_has_are_told_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    world = empty_world()
    first = driver(world).start()
    ask(world, count=4)
    stop(first)
    world.log.partitions["a"] += LINES
    second = driver(world, "caught-up", tasks=3).complete()
    assert all(slots_used(result) == {0, 1} for result in second.runner.results.values())
    assert "count=4 is ignored" in caplog.text


def hear_nothing(path: str, changed: Callable[[], None]) -> Callable[[], None]:
    """A watch so slow that the run ends before it reports anything."""
    return lambda: None


@pytest.mark.parametrize("watch", [None, hear_nothing], ids=["heard-at-once", "heard-late"])
def test_what_was_asked_while_nothing_ran_is_in_force_from_the_first_batch_on(
    watch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = empty_world()
    if watch is not None:
        monkeypatch.setattr(world.tree, "watch", watch)
    driver(world, "caught-up").complete()
    asked = [operator(world).ask(Kind.SCALE, slots) for slots in ({"count": 3}, {"count": 9}, {"count": 4})]
    world.log.partitions["a"] += LINES
    run = driver(world, "caught-up").complete()
    assert all(slots_used(result) == {0, 1, 2, 3} for result in run.runner.results.values())
    answers = [answer_to(world, request_id) for request_id in asked]
    assert [a is not None and a.refused is None for a in answers] == [True, False, True]
    assert [a.told.get("before") for a in answers if a is not None] == [{"count": 2}, None, {"count": 3}]
    assert operator(world).read().waiting == ()


def test_a_run_with_nothing_to_do_answers_too() -> None:
    world = empty_world()
    driver(world, "caught-up").complete()
    request_id = operator(world).ask(Kind.SCALE, {"count": 3})
    run = driver(world, "caught-up").complete()
    assert run.loop.statistics.batches == 0
    answer = answer_to(world, request_id)
    assert answer is not None
    assert answer.told["before"] == {"count": 2}


def test_unreadable_slots_end_a_start() -> None:
    world = empty_world()
    driver(world, "caught-up").complete()
    world.tree.write(PATHS.answered, b"three")
    with pytest.raises(CorruptStateError, match="requests/answered"):
        driver(world, "caught-up")


# --- faults ----------------------------------------------------------------------------------------------


def test_an_unreadable_request_is_told_and_batches_go_on(caplog: pytest.LogCaptureFixture) -> None:
    world = empty_world()
    run = driver(world).start()
    request_id = operator(world).ask(Kind.SCALE, {"split": 1})
    assert operator(world).wait_answer(request_id, DEADLINE_SECONDS) is not None
    world.tree.write(PATHS.asked, b"three")
    assert wait_until(lambda: "requests/asked" in caplog.text, DEADLINE_SECONDS)
    assert [record.levelno for record in caplog.records if PATHS.asked in record.getMessage()][-1] == (
        logging.ERROR
    )
    feed(run)
    world.tree.remove(PATHS.asked)
    assert ask(world, count=4).refused is None, "mended, it is served"
    stop(run)


def test_an_answer_that_could_not_be_stored_is_given_again() -> None:
    world = empty_world()
    run = driver(world)
    away = iter(range(2))

    def hook(when: str, write: str) -> None:
        if (when, write) == ("before", "answer_request") and next(away, None) is not None:
            raise ServiceUnavailableError("ZooKeeper is away")

    run.hook = hook
    run.start()
    assert ask(world, count=4).told["before"] == {"count": 2}, "judged once, however often it is answered"
    assert next(away, None) is None
    feed(run)
    stop(run)


def test_a_leader_that_was_succeeded_ends_when_it_is_asked() -> None:
    world = empty_world()
    run = driver(world).start()
    feed(run)
    Run(world).store.claim_epoch(Epoch(0))
    request_id = operator(world).ask(Kind.SCALE, {"count": 4})
    with pytest.raises(FencedError):
        run.finish()
    assert answer_to(world, request_id) is None, "the new leader answers"


# --- pause and resume ------------------------------------------------------------------------------------


@BOTH
def test_a_paused_topology_commits_what_is_open_opens_nothing_and_goes_on(spout: Any) -> None:
    world = empty_world(spout)
    reading, go_on = threading.Event(), threading.Event()

    def on_emit(attempt: TransactionAttempt, partition: str) -> None:
        if attempt.txid == 1:
            reading.set()
            wait(go_on, "the pause")

    world.log.on_emit = on_emit
    world.log.partitions["a"] += LINES
    run = driver(world, max_spout_pending=1).start()
    wait(reading, "the first batch being read")
    assert order(world, Kind.PAUSE).told["after"] == 1
    assert f"`txstream resume {TOPOLOGY}` since" in (run.loop.waiting_for or "")
    go_on.set()
    assert wait_until(lambda: run.loop.statistics.batches == 1, DEADLINE_SECONDS)
    assert order(world, Kind.PAUSE).told["already"] is True
    assert run.loop.statistics.batches == 1, "the loop was asked twice since, and has opened nothing"
    was = order(world, Kind.RESUME).told
    assert "@" in was["by"]
    assert run.loop.waiting_for is None
    until_committed(run)
    stop(run)


def test_a_pause_survives_the_driver_and_the_new_one_says_so(caplog: pytest.LogCaptureFixture) -> None:
    world = empty_world()
    first = driver(world).start()
    order(world, Kind.PAUSE)
    stop(first)
    world.log.partitions["a"] += LINES
    second = driver(world).start()
    assert order(world, Kind.SCALE, count=1).refused is None, "it runs, and answers"
    assert second.loop.statistics.batches == 0
    assert f"`txstream resume {TOPOLOGY}`" in caplog.text
    assert "paused by" in caplog.text
    order(world, Kind.RESUME)
    until_committed(second)
    stop(second)


def test_what_was_paused_while_nothing_ran_begins_paused() -> None:
    world = empty_world()
    driver(world, "caught-up").complete()
    asked = operator(world).ask(Kind.PAUSE, {})
    world.log.partitions["a"] += LINES
    run = driver(world).start()
    answer = operator(world).wait_answer(asked, DEADLINE_SECONDS)
    assert answer is not None
    assert answer.told["after"] == 0
    assert run.runner.attempts == []
    order(world, Kind.RESUME)
    until_committed(run)
    stop(run)


# --- how far a batch is ----------------------------------------------------------------------------------


def test_a_txid_that_is_not_open_yet_is_not_told_as_committed() -> None:
    world = empty_world()
    run = driver(world).start()
    assert order(world, Kind.TREE, txid=1).refused == "txid 1 is not open"
    feed(run)
    current = run.coordinator.current
    assert order(world, Kind.TREE, txid=current).refused == f"txid {current} is not open"
    assert "is committed" in (order(world, Kind.TREE, txid=current - 1).refused or "")
    stop(run)


# --- stop ------------------------------------------------------------------------------------------------


@BOTH
def test_a_stop_ends_the_run_when_what_is_open_is_committed(spout: Any) -> None:
    world = empty_world(spout)
    run = driver(world).start()
    feed(run)
    last = run.coordinator.last_open
    assert order(world, Kind.STOP).told == {"after": last}
    run.finish()
    assert run.coordinator.current == last + 1
    assert run.steering.stopped_by is not None
    world.log.partitions["a"] += LINES
    later = driver(world, "caught-up").complete()
    assert world.table.totals() == words(world.log)
    assert later.steering.stopped_by is None, "a run that was started after the stop is not concerned"


def test_a_stop_at_a_txid_commits_that_one_and_none_after_it() -> None:
    world = empty_world()
    run = driver(world, max_spout_pending=3).start()
    assert order(world, Kind.STOP, at=2).told == {"after": 2}
    world.log.partitions["a"] += LINES
    run.finish()
    assert sorted(world.table.batches) == [1, 2]


@each(
    ("at", "words_of_refusal"),
    [
        (1, "txid 1 is committed already: the first that the run can end after is txid 3"),
        (0, "a run cannot end after txid 0"),
        ("2", "a run cannot end after txid '2'"),
    ],
)
def test_a_stop_where_it_cannot_end_is_refused(at: Any, words_of_refusal: str) -> None:
    world = empty_world()
    run = driver(world).start()
    feed(run)
    assert run.coordinator.last_open == 3
    assert words_of_refusal in (order(world, Kind.STOP, at=at).refused or "")
    stop(run)


@pytest.mark.parametrize("at", [1, 2], ids=["current", "later"])
def test_a_stop_at_a_txid_holds_for_the_next_leader_until_that_is_committed(at: int) -> None:
    world = empty_world()
    first = driver(world).start()
    order(world, Kind.STOP, at=at)
    first.loop.abort()
    with pytest.raises(RunAbortedError):
        first.finish()
    world.log.partitions["a"] += LINES
    driver(world, "caught-up").complete()
    assert sorted(world.table.batches) == list(range(1, at + 1))
    driver(world, "caught-up").complete()
    assert world.table.totals() == words(world.log), "carried out, it concerns nobody any more"


def test_a_standby_ends_with_the_leader_that_was_stopped() -> None:
    world = empty_world()
    first = driver(world).start()
    before = operator(world).read()
    order(world, Kind.STOP)
    first.finish()
    world.log.partitions["a"] += LINES
    standby = driver(world, asked_before=before).complete()
    assert standby.loop.statistics.batches == 0
    assert standby.steering.stopped_by is not None


def test_a_stop_that_nobody_answered_is_for_a_standby_and_not_for_a_later_run() -> None:
    world = empty_world()
    driver(world, "caught-up").complete()
    before = operator(world).read()
    asked = operator(world).ask(Kind.STOP, {})
    later = driver(world).start()
    answer = operator(world).wait_answer(asked, DEADLINE_SECONDS)
    assert answer is not None
    assert "has ended" in (answer.refused or "")
    stop(later)
    asked = operator(world).ask(Kind.STOP, {})
    standby = driver(world, asked_before=before).complete()
    assert standby.steering.stopped_by is not None
    answer = answer_to(world, asked)
    assert answer is not None
    assert answer.refused is None


def test_a_request_of_a_newer_txstream_is_refused() -> None:
    world = empty_world()
    run = driver(world).start()
    newer: Any = "replay"
    assert "knows no request 'replay'" in (order(world, newer).refused or "")
    stop(run)


# --- where tasks ran -------------------------------------------------------------------------------------


def count_writes(run: Run) -> list[str]:
    """Return a list that grows with each assignment written from now on."""
    writes: list[str] = []

    def hook(when: str, write: str) -> None:
        if (when, write) == ("after", "write_assignment"):
            writes.append(write)

    run.hook = hook
    return writes


@pytest.mark.parametrize(("pause_seconds", "writes"), [(1_000, 2), (0, 3)])
def test_places_are_stored_now_and_then_and_those_of_the_last_batch_at_the_end(
    log: MemoryLog, pause_seconds: float, writes: int
) -> None:
    run = Run(World(log))
    run.workers.pauses = {ASSIGNMENT_SECONDS: pause_seconds}
    stored = count_writes(run)
    run.complete()
    assert run.loop.statistics.batches == 3
    assert len(stored) == writes, "the first and the last; or all, when there is time between them"
    assignment = written(run.world)
    assert assignment is not None
    assert assignment == run.loop.statistics.assignment
    assert assignment.txid == 3
    assert {place.component for place in assignment.tasks} == {"lines", "split", "count", "store"}


def test_a_batch_in_which_nothing_passed_leaves_no_edges_of_the_one_before(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    saw = Statistics.saw

    def without(
        found: Statistics, attempt: TransactionAttempt, places: Any, edges: Any, **options: Any
    ) -> None:
        saw(found, attempt, places, () if attempt.txid == 3 else edges, **options)

    monkeypatch.setattr(Statistics, "saw", without)
    run = Run(World(log))
    run.workers.pauses = {ASSIGNMENT_SECONDS: 1_000}
    run.complete()
    assignment = written(run.world)
    assert assignment is not None
    assert (assignment.txid, assignment.edges) == (3, ())


def test_the_last_batch_before_a_pause_is_shown_too(monkeypatch: pytest.MonkeyPatch) -> None:
    world = empty_world()
    run = driver(world)
    after, pauses = run.workers.after, []

    def keep_pauses(seconds: float, event: Callable[[], None], **options: Any) -> None:
        if seconds == ASSIGNMENT_SECONDS:
            pauses.append(event)
        else:
            after(seconds, event, **options)

    monkeypatch.setattr(run.workers, "after", keep_pauses)
    stored = count_writes(run)
    run.start()
    feed(run, ["one"])
    feed(run, ["two"])
    assert wait_until(lambda: len(stored) == 1, DEADLINE_SECONDS), "the second came too soon"
    newest = run.loop.statistics.assignment
    assert newest is not None
    assert len(pauses) == 1
    run.workers.post(pauses.pop())
    assert wait_until(lambda: len(stored) == 2, DEADLINE_SECONDS)
    assert written(world) == newest
    stop(run)
    assert len(stored) == 2, "it was stored already"


def test_places_that_cannot_be_stored_do_not_disturb_batches(
    log: MemoryLog, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(World(log))
    run.workers.pauses = {ASSIGNMENT_SECONDS: 1_000}

    def hook(when: str, write: str) -> None:
        if write == "write_assignment":
            raise ServiceUnavailableError("no room")

    run.hook = hook
    with caplog.at_level(logging.INFO):
        run.complete()
    assert run.world.table.totals() == words(log)
    assert ": no room" in caplog.text  # logged during the run or, for the last batch, at its end
    assert "will not show how the run ended: no room" in caplog.text
    assert written(run.world) is None


def test_a_store_that_hangs_at_the_end_does_not_keep_a_run(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(txstream.engine.loop.operator_requests, "_END_SECONDS", 0.05)
    run = Run(World(log))
    run.workers.pauses = {ASSIGNMENT_SECONDS: 1_000}
    stored: list[str] = []

    def hook(when: str, write: str) -> None:
        if (when, write) == ("before", "write_assignment"):
            stored.append(write)
            if len(stored) == 2:
                assert wait_until(lambda: run.workers.is_interrupted, DEADLINE_SECONDS)
                raise WaitStoppedError("stopped while waiting for ZooKeeper")

    run.hook = hook
    run.complete()
    assert run.loop.caught_up
    assert "will not show how the run ended" in caplog.text


@pytest.mark.parametrize("write", ["write_assignment", "end"])
def test_a_leader_that_was_succeeded_ends_at_its_next_write(log: MemoryLog, write: str) -> None:
    """The next write is the one after an advance, or the last places when all is done."""
    world = World(log)
    run = Run(world)
    run.workers.pauses = {ASSIGNMENT_SECONDS: 1_000}
    at = {"write_assignment": 1, "end": 3}[write]
    advanced: list[str] = []

    def hook(when: str, name: str) -> None:
        if (when, name) == ("after", "advance"):
            advanced.append(name)
            if len(advanced) == at:
                Run(world).store.claim_epoch(Epoch(0))

    run.hook = hook
    with pytest.raises(FencedError):
        run.complete()
