"""The coordinator after a restart, while draining, at its last txid, and under any order of events."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from support.coordinators import (
    BOTH,
    OPAQUE,
    TRANSACTIONAL,
    Commands,
    Metas,
    commit,
    filled,
    kinds,
    make,
    metas,
    only,
    plan_and_emit,
)
from support.inmemory import Range
from support.lists import each

from txstream.core.batch_metas import BatchMetas
from txstream.core.coordinator import (
    Advance,
    Cancel,
    Command,
    EmitBatch,
    EmitCommit,
    Persist,
    Plan,
    RotatingTransactionalState,
)
from txstream.core.errors import CoordinatorError
from txstream.core.semantics import Semantics
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid

# --- ends and beginnings ---------------------------------------------------------------------------


def stored(*batches: Metas) -> dict[Txid, Metas]:
    return {Txid(number): batch for number, batch in enumerate(batches, 1)}


def test_a_restart_goes_on_after_the_last_committed_batch() -> None:
    for semantics in (OPAQUE, TRANSACTIONAL):
        coordinator = make(semantics, current=Txid(2), stored=stored(metas(0, 10)))
        plan = only(coordinator.sync(), Plan)
        assert (plan.txid, plan.last, plan.replay) == (2, {"p": Range(0, 10)}, False)


def test_after_a_restart_with_a_smaller_max_spout_pending_stored_plans_wait_their_turn() -> None:
    plans = stored(metas(0, 10), metas(10, 20), metas(20, 30), metas(30, 40))
    coordinator = make(TRANSACTIONAL, pending=1, current=Txid(2), stored=plans)
    commands: Commands = coordinator.sync()
    for txid in (2, 3, 4):
        assert kinds(commands) == ["EmitBatch"], "stored plans are not planned again"
        emit = only(commands, EmitBatch)
        assert (emit.attempt.txid, emit.metas) == (txid, plans[Txid(txid)])
        commands = commit(coordinator, coordinator.ack(emit.attempt))
    assert only(commands, Plan).last == {"p": Range(30, 40)}


def test_a_half_committed_opaque_txid_is_planned_anew_after_a_restart() -> None:
    coordinator = make(OPAQUE, current=Txid(2), stored=stored(metas(0, 10)), replays=frozenset({Txid(2)}))
    plan = only(coordinator.sync(), Plan)
    assert (plan.txid, plan.last, plan.replay) == (2, {"p": Range(0, 10)}, True)


@each(
    ("semantics", "current", "batches", "message"),
    [
        (OPAQUE, 2, {}, "current is 2, but the metas of txid 1 are missing"),
        (TRANSACTIONAL, 3, {1: metas(0, 1)}, "current is 3, but the metas of txid 2 are missing"),
        (
            OPAQUE,
            1,
            {1: metas(0, 1)},
            "plans are stored from txid 1 on, but the semantics is opaque, not transactional",
        ),
        (
            Semantics.NON_TRANSACTIONAL,
            2,
            {1: metas(0, 1), 2: metas(1, 2)},
            "plans are stored from txid 2 on, but the semantics is non-transactional, not transactional",
        ),
        (
            TRANSACTIONAL,
            2,
            {1: metas(0, 1), 3: metas(1, 2)},
            "stored batches have a gap: 1, 3",
        ),
    ],
)
def test_progress_that_cannot_be_is_refused(
    semantics: Semantics, current: int, batches: dict[int, Metas], message: str
) -> None:
    with pytest.raises(CoordinatorError, match=message):
        make(semantics, current=Txid(current), stored={Txid(t): m for t, m in batches.items()})


def test_max_spout_pending_must_be_positive() -> None:
    with pytest.raises(CoordinatorError, match="max_spout_pending is 0, it must be at least 1"):
        make(pending=0)


@BOTH
def test_draining_opens_nothing_new_and_finishes_what_is_open(semantics: Semantics) -> None:
    coordinator, attempts = filled(semantics, pending=2)
    coordinator.drain()
    assert coordinator.is_draining
    commands: Commands = coordinator.ack(attempts[0])
    commands = commit(coordinator, commands)
    assert commands == []
    commands = commit(coordinator, coordinator.ack(attempts[1]))
    assert commands == []
    assert coordinator.is_idle
    assert coordinator.current == 3
    assert coordinator.wake() == []


def test_draining_does_not_wait_for_the_plan_of_a_new_txid() -> None:
    coordinator = make()
    plan = only(coordinator.sync(), Plan)
    coordinator.drain()
    assert coordinator.is_idle
    assert coordinator.planned(plan.ticket, metas(0, 10)) == []
    assert coordinator.active == {}


def test_draining_waits_for_the_plan_of_a_replay() -> None:
    """An earlier attempt of that txid may have written."""
    coordinator, (first, _) = filled(OPAQUE, pending=2)
    commands = coordinator.fail(first)
    coordinator.drain()
    assert not coordinator.is_idle
    again, _ = plan_and_emit(coordinator, commands, metas(0, 10))
    assert again.txid == 1


@BOTH
def test_draining_still_replays_what_failed(semantics: Semantics) -> None:
    coordinator, (first, _) = filled(semantics, pending=2)
    coordinator.drain()
    commands: Commands = coordinator.fail(first)
    if semantics is not TRANSACTIONAL:
        _, commands = plan_and_emit(coordinator, commands, metas(0, 10))
        plan_and_emit(coordinator, commands, metas(10, 20))
    assert not coordinator.is_idle
    assert [batch.attempt.txid for batch in coordinator.active.values()] == [1, 2]
    for txid in (1, 2):
        commit(coordinator, coordinator.ack(coordinator.active[Txid(txid)].attempt))
    assert coordinator.is_idle
    assert coordinator.current == 3


def test_draining_leaves_stored_plans_that_nobody_began_to_the_next_run() -> None:
    plans = stored(metas(0, 10), metas(10, 20))
    coordinator = make(TRANSACTIONAL, pending=1, current=Txid(1), stored=plans)
    attempt = only(coordinator.sync(), EmitBatch).attempt
    coordinator.drain()
    assert commit(coordinator, coordinator.ack(attempt)) == []
    assert coordinator.is_idle


def test_draining_finishes_what_an_earlier_leader_committed_in_part() -> None:
    plans = stored(metas(0, 10), metas(10, 20))
    coordinator = make(TRANSACTIONAL, current=Txid(2), stored=plans, replays=frozenset({Txid(2)}), pending=2)
    coordinator.drain()
    assert only(coordinator.sync(), EmitBatch).attempt.txid == 2


@BOTH
def test_nothing_is_opened_after_the_last_txid(semantics: Semantics) -> None:
    coordinator = make(semantics, pending=3, last_txid=Txid(2))
    commands: Commands = coordinator.sync()
    attempts = []
    for number in range(2):
        attempt, commands = plan_and_emit(coordinator, commands, metas(10 * number, 10 * number + 10))
        attempts.append(attempt)
    assert kinds(commands) == ["EmitBatch"]
    for attempt in attempts:
        commands = commit(coordinator, coordinator.ack(attempt))
    assert commands == []
    assert coordinator.is_idle
    assert coordinator.current == 3


@BOTH
def test_a_pause_opens_nothing_and_finishes_what_is_open_until_it_is_resumed(semantics: Semantics) -> None:
    coordinator, (first, second) = filled(semantics, pending=2)
    coordinator.pause()
    assert coordinator.last_open == 2
    commands: Commands = coordinator.fail(first)
    if semantics is not TRANSACTIONAL:
        _, commands = plan_and_emit(coordinator, commands, metas(0, 10))
        plan_and_emit(coordinator, commands, metas(10, 20))
    for txid in (1, 2):
        commands = commit(coordinator, coordinator.ack(coordinator.active[Txid(txid)].attempt))
    assert commands == []
    assert coordinator.is_idle
    assert coordinator.wake() == []
    assert (coordinator.last_open, second.txid) == (2, 2)
    coordinator.resume()
    assert only(coordinator.sync(), Plan).txid == 3


def test_a_pause_does_not_wait_for_the_plan_of_a_new_txid() -> None:
    coordinator = make()
    plan = only(coordinator.sync(), Plan)
    coordinator.pause()
    assert coordinator.is_idle
    coordinator.resume()
    again = only(coordinator.sync(), Plan)
    assert coordinator.planned(plan.ticket, metas(0, 10)) == [], "the plan of before the pause is stale"
    assert only(coordinator.planned(again.ticket, metas(0, 10)), EmitBatch).attempt.txid == 1


def test_a_plan_that_was_being_stored_when_it_was_paused_is_emitted_after_it() -> None:
    coordinator = make(TRANSACTIONAL)
    persist = only(coordinator.planned(only(coordinator.sync(), Plan).ticket, metas(0, 10)), Persist)
    coordinator.pause()
    assert coordinator.persisted(persist.txid, persist.metas) == []
    assert (coordinator.is_idle, coordinator.last_open) == (True, 0)
    coordinator.resume()
    assert kinds(coordinator.sync()) == ["EmitBatch", "Plan"]


def test_a_paused_leader_finishes_what_an_earlier_one_committed_in_part() -> None:
    plans = stored(metas(0, 10), metas(10, 20), metas(20, 30))
    coordinator = make(TRANSACTIONAL, current=Txid(2), stored=plans, replays=frozenset({Txid(2)}))
    coordinator.pause()
    assert coordinator.last_open == 2
    attempt = only(coordinator.sync(), EmitBatch).attempt
    assert attempt.txid == 2
    assert commit(coordinator, coordinator.ack(attempt)) == []


@BOTH
def test_an_end_may_be_set_behind_what_is_open_and_not_before(semantics: Semantics) -> None:
    coordinator, attempts = filled(semantics, pending=2)
    with pytest.raises(CoordinatorError, match="txid 2 is open or committed, so 1 cannot be the last"):
        coordinator.drain(Txid(1))
    for end in (3, 9):  # the earlier one counts
        coordinator.drain(Txid(end))
    assert not coordinator.is_draining
    commands = commit(coordinator, coordinator.ack(attempts[0]))
    _, commands = plan_and_emit(coordinator, commands, metas(20, 30))
    assert kinds(commands) == ["EmitBatch"], "txid 4 is not planned"
    assert coordinator.is_draining


def test_an_end_after_what_is_open_does_not_wait_for_the_plan_of_a_new_txid() -> None:
    coordinator = make()
    attempt, commands = plan_and_emit(coordinator, coordinator.sync(), metas(0, 10))
    assert only(commands, Plan).txid == 2
    coordinator.drain(Txid(1))
    assert commit(coordinator, coordinator.ack(attempt)) == []
    assert coordinator.is_idle


# --- the map of metas ------------------------------------------------------------------------------


def test_the_map_refuses_gaps_and_changes_out_of_order() -> None:
    state: RotatingTransactionalState[str] = RotatingTransactionalState({Txid(4): "d", Txid(3): "c"})
    assert state.list() == [3, 4]
    assert state.last() == 4
    assert state.get_or_create(Txid(4), lambda _: "x") == "d"
    with pytest.raises(CoordinatorError, match="txid 6 cannot follow txid 4"):
        state.get_or_create(Txid(6), lambda _: "x")
    with pytest.raises(CoordinatorError, match="txid 2 cannot follow txid 4"):
        state.get_or_create(Txid(2), lambda _: "x")
    assert state.get_or_create(Txid(5), lambda previous: f"after {previous}") == "after d"
    with pytest.raises(CoordinatorError, match="txid 4 cannot be removed, the last one is 5"):
        state.remove(Txid(4))
    with pytest.raises(CoordinatorError, match="txid 9 is not here to be replaced"):
        state.replace(Txid(9), "x")
    state.remove(Txid(5))
    state.cleanup_before(Txid(4))
    assert (list(state), len(state), state[Txid(4)], state.has(Txid(3))) == ([4], 1, "d", False)
    with pytest.raises(CoordinatorError, match="stored batches have a gap: 1, 3"):
        RotatingTransactionalState({Txid(1): "a", Txid(3): "c"})


def test_an_empty_map_begins_anywhere() -> None:
    state: RotatingTransactionalState[int] = RotatingTransactionalState()
    assert state.last() is None
    assert state.get_or_create(Txid(7), lambda previous: 0 if previous is None else 1) == 0


@pytest.mark.parametrize(
    ("empty", "following"),
    [(lambda state: state.remove(Txid(7)), 7), (lambda state: state.cleanup_before(Txid(9)), 8)],
)
def test_an_emptied_map_goes_on_with_the_next_txid(empty: Callable[[Any], None], following: int) -> None:
    state: RotatingTransactionalState[str] = RotatingTransactionalState({Txid(7): "g"})
    empty(state)
    assert state.list() == []
    for wrong in (following - 1, following + 1):
        with pytest.raises(CoordinatorError, match=f"txid {wrong} cannot follow txid {following - 1}"):
            state.get_or_create(Txid(wrong), lambda _: "x")
    assert state.get_or_create(Txid(following), lambda previous: f"after {previous}") == "after None"


# --- any order of events ---------------------------------------------------------------------------


@settings(max_examples=300)
@given(st.sampled_from(list(Semantics)), st.integers(1, 4), st.lists(st.integers(0, 99), max_size=80))
def test_whatever_the_order_of_events_the_rules_hold(
    semantics: Semantics, pending: int, choices: list[int]
) -> None:
    """Answers come in any order, some of them stale, with pauses between them. The invariants are checked
    after every event."""
    counter = itertools.count(1)
    coordinator = make(semantics, pending, next_attempt=lambda: AttemptId(next(counter)))
    open_commands: list[Command[Range]] = []
    old_attempts: list[TransactionAttempt] = []
    committed: list[int] = []
    emitted: dict[int, int] = {}
    paused = False

    def take(commands: Commands) -> None:
        for command in commands:
            if isinstance(command, EmitBatch):
                assert command.attempt.attempt > emitted.get(command.attempt.txid, 0)
                assert not paused or command.attempt.txid in emitted, "opened during a pause"
                emitted[command.attempt.txid] = command.attempt.attempt
                old_attempts.append(command.attempt)
            if isinstance(command, EmitCommit):
                assert command.attempt.txid == coordinator.current
                assert not any(isinstance(other, (EmitCommit, Advance)) for other in live())
            if isinstance(command, Plan):
                assert not any(isinstance(other, Plan) and wanted(other) for other in open_commands)
            if not isinstance(command, Cancel):
                open_commands.append(command)

    def wanted(command: Command[Range]) -> bool:
        if isinstance(command, Plan):
            return coordinator.is_planning(command.ticket)
        if isinstance(command, (EmitBatch, EmitCommit)):
            active = coordinator.active.get(command.attempt.txid)
            return active is not None and active.attempt == command.attempt
        return True

    def live() -> list[Command[Range]]:
        return [command for command in open_commands if wanted(command)]

    take(coordinator.sync())
    for choice in choices:
        if choice % 11 == 5:
            paused = not paused
            if paused:
                coordinator.pause()
            else:
                coordinator.resume()
                take(coordinator.sync())
        elif choice % 7 == 0 and old_attempts:
            stale = old_attempts[choice % len(old_attempts)]
            active = coordinator.active.get(stale.txid)
            if active is None or active.attempt != stale:
                assert coordinator.ack(stale) == []
            take(coordinator.fail(stale))
        elif not open_commands:
            take(coordinator.wake())
        else:
            command = open_commands.pop(choice % len(open_commands))
            match command:
                case Plan(ticket, _, last, replay):
                    start = last["p"].end if "p" in last else 0
                    size = choice % 4
                    if size or replay:
                        take(
                            coordinator.planned(
                                ticket, BatchMetas.from_plan(last, {"p": Range(start, start + size)})
                            )
                        )
                    else:
                        take(coordinator.nothing_to_plan(ticket))
                case Persist(txid, plan):
                    take(coordinator.persisted(txid, plan))
                case EmitBatch(attempt) | EmitCommit(attempt):
                    take(coordinator.fail(attempt) if choice % 5 == 0 else coordinator.ack(attempt))
                case Advance(txid, attempt_id, plan):
                    assert attempt_id == emitted[txid]
                    committed.append(txid)
                    take(coordinator.advanced(txid))
        active_txids = list(coordinator.active)
        assert sorted(active_txids) == list(
            range(coordinator.current, coordinator.current + len(active_txids))
        )
        assert len(active_txids) <= pending
        assert committed == list(range(1, coordinator.current))
        places = [coordinator.metas(txid).positions()["p"] for txid in coordinator.stored_txids()]
        assert all(a.end == b.start or b == a for a, b in itertools.pairwise(places)), "a gap or an overlap"
