"""The order rules of the coordinator, each by name: DESIGN section 4."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.inmemory import Range

from txstream.api.errors import CoordinatorError
from txstream.coordinator import (
    Advance,
    Cancel,
    Command,
    Coordinator,
    EmitBatch,
    EmitCommit,
    Persist,
    Phase,
    Plan,
    RotatingTransactionalState,
)
from txstream.metas import BatchMetas
from txstream.semantics import Semantics
from txstream.transaction import AttemptId, AttemptSequence, Epoch, TransactionAttempt, Txid

OPAQUE, TRANSACTIONAL = Semantics.OPAQUE, Semantics.TRANSACTIONAL
BOTH = pytest.mark.parametrize("semantics", [OPAQUE, TRANSACTIONAL, Semantics.NON_TRANSACTIONAL])

Metas = BatchMetas[Range]
Commands = Sequence[Command[Range]]
C = TypeVar("C")


def metas(start: int, end: int) -> Metas:
    return BatchMetas({"p": Range(start, end)})


def make(semantics: Semantics = OPAQUE, pending: int = 3, **options: Any) -> Coordinator[Range]:
    options.setdefault("current", Txid(1))
    options.setdefault("stored", {})
    options.setdefault("next_attempt", AttemptSequence(Epoch(1)).next)
    return Coordinator(semantics, max_spout_pending=pending, **options)


def only(commands: Commands, kind: type[C]) -> C:
    """The one command of this kind."""
    found = [command for command in commands if isinstance(command, kind)]
    assert len(found) == 1, f"expected one {kind.__name__}, found {commands}"
    return found[0]


def kinds(commands: Commands) -> list[str]:
    return [type(command).__name__ for command in commands]


def plan_and_emit(
    coordinator: Coordinator[Range], commands: Commands, batch: Metas
) -> tuple[TransactionAttempt, Commands]:
    """Answer the plan among `commands`, persist if asked: the attempt that was emitted, and what came."""
    answers = coordinator.planned(only(commands, Plan).ticket, batch)
    if coordinator.semantics is TRANSACTIONAL:
        persist = only(answers, Persist)
        answers = coordinator.persisted(persist.txid, persist.metas)
    return only(answers, EmitBatch).attempt, answers


def filled(semantics: Semantics, pending: int = 3) -> tuple[Coordinator[Range], list[TransactionAttempt]]:
    """A coordinator with `pending` batches of 10 records in processing."""
    coordinator = make(semantics, pending)
    commands: Commands = coordinator.sync()
    attempts = []
    for number in range(pending):
        attempt, commands = plan_and_emit(coordinator, commands, metas(10 * number, 10 * number + 10))
        attempts.append(attempt)
    assert kinds(commands) == ["EmitBatch"]
    return coordinator, attempts


def commit(coordinator: Coordinator[Range], commands: Commands) -> Commands:
    """Carry the commit among `commands` through to its Advance."""
    advance = only(coordinator.ack(only(commands, EmitCommit).attempt), Advance)
    return coordinator.advanced(advance.txid)


# --- planning ----------------------------------------------------------------------------------------


@BOTH
def test_one_plan_at_a_time_and_in_txid_order(semantics: Semantics) -> None:
    coordinator = make(semantics)
    first = only(coordinator.sync(), Plan)
    assert (first.txid, first.last, first.replay) == (1, {}, False)
    assert coordinator.sync() == []
    assert coordinator.wake() == []
    _, commands = plan_and_emit(coordinator, [first], metas(0, 10))
    assert only(commands, Plan).txid == 2


@BOTH
def test_a_plan_starts_from_the_previous_planned_batch_committed_or_not(semantics: Semantics) -> None:
    coordinator = make(semantics)
    commands: Commands = coordinator.sync()
    for number in range(2):
        _, commands = plan_and_emit(coordinator, commands, metas(10 * number, 10 * number + 10))
    assert only(commands, Plan).last == {"p": Range(10, 20)}


@BOTH
def test_no_more_than_max_spout_pending_are_active(semantics: Semantics) -> None:
    coordinator, attempts = filled(semantics, pending=2)
    assert coordinator.sync() == []
    assert [attempt.txid for attempt in attempts] == [1, 2] == list(coordinator.active)
    commands = commit(coordinator, coordinator.ack(attempts[0]))
    assert only(commands, Plan).txid == 3


def test_no_batch_is_emitted_before_its_plan_is_persisted() -> None:
    coordinator = make(TRANSACTIONAL)
    commands = coordinator.planned(only(coordinator.sync(), Plan).ticket, metas(0, 10))
    assert kinds(commands) == ["Persist"]
    assert coordinator.sync() == []
    assert coordinator.active == {}
    assert not coordinator.is_idle
    commands = coordinator.persisted(Txid(1), metas(0, 10))
    assert kinds(commands) == ["EmitBatch", "Plan"]
    assert only(commands, EmitBatch).stored


@pytest.mark.parametrize("semantics", [OPAQUE, Semantics.NON_TRANSACTIONAL])
def test_other_semantics_store_metas_only_when_they_commit(semantics: Semantics) -> None:
    coordinator = make(semantics)
    attempt, commands = plan_and_emit(coordinator, coordinator.sync(), metas(0, 10))
    assert not only(commands, EmitBatch).stored
    advance = only(coordinator.ack(only(coordinator.ack(attempt), EmitCommit).attempt), Advance)
    assert (advance.store, advance.metas, advance.attempt) == (True, metas(0, 10), attempt.attempt)


def test_a_plan_found_stored_takes_the_place_of_ours() -> None:
    coordinator = make(TRANSACTIONAL)
    coordinator.planned(only(coordinator.sync(), Plan).ticket, metas(0, 10))
    commands = coordinator.persisted(Txid(1), metas(0, 7))
    assert only(commands, EmitBatch).metas == metas(0, 7)
    assert only(commands, Plan).last == {"p": Range(0, 7)}


def test_persisting_another_txid_than_asked_is_an_error() -> None:
    coordinator = make(TRANSACTIONAL)
    with pytest.raises(CoordinatorError, match="txid 1 was persisted, but None was asked for"):
        coordinator.persisted(Txid(1), metas(0, 10))
    coordinator.planned(only(coordinator.sync(), Plan).ticket, metas(0, 10))
    with pytest.raises(CoordinatorError, match="txid 2 was persisted, but 1 was asked for"):
        coordinator.persisted(Txid(2), metas(0, 10))


def test_a_plan_that_forgets_a_partition_is_an_error() -> None:
    coordinator = make()
    _, commands = plan_and_emit(coordinator, coordinator.sync(), metas(0, 10))
    with pytest.raises(CoordinatorError, match="the plan of txid 2 lost the place of p"):
        coordinator.planned(only(commands, Plan).ticket, BatchMetas({"q": Range(0, 1)}))


def test_a_new_txid_with_nothing_in_it_is_an_error() -> None:
    coordinator = make()
    with pytest.raises(CoordinatorError, match="txid 1 was planned with nothing in it"):
        coordinator.planned(only(coordinator.sync(), Plan).ticket, BatchMetas())


@BOTH
def test_a_transaction_with_nothing_in_it_is_not_opened_and_asked_for_again_only_after_wake(
    semantics: Semantics,
) -> None:
    coordinator = make(semantics)
    first = only(coordinator.sync(), Plan)
    assert coordinator.is_planning(first.ticket)
    assert coordinator.nothing_to_plan(first.ticket) == []
    assert coordinator.is_idle
    assert coordinator.sync() == []
    second = only(coordinator.wake(), Plan)
    assert second.txid == 1
    assert second.ticket != first.ticket
    assert not coordinator.is_idle


def test_nothing_to_plan_does_not_hold_up_what_is_active() -> None:
    coordinator = make()
    attempt, commands = plan_and_emit(coordinator, coordinator.sync(), metas(0, 10))
    coordinator.nothing_to_plan(only(commands, Plan).ticket)
    commands = commit(coordinator, coordinator.ack(attempt))
    assert commands == []
    assert coordinator.current == 2
    assert only(coordinator.wake(), Plan).last == {"p": Range(0, 10)}


# --- committing --------------------------------------------------------------------------------------


@BOTH
def test_only_the_current_txid_commits_and_only_when_processed(semantics: Semantics) -> None:
    coordinator, (first, second, third) = filled(semantics)
    assert coordinator.ack(third) == []
    assert coordinator.ack(second) == []
    assert coordinator.active[second.txid].phase is Phase.PROCESSED
    commands = coordinator.ack(first)
    assert kinds(commands) == ["EmitCommit"]
    assert only(commands, EmitCommit).attempt == first


@BOTH
def test_the_next_commit_begins_only_after_advance_was_answered(semantics: Semantics) -> None:
    coordinator, (first, second, third) = filled(semantics)
    coordinator.ack(second)
    coordinator.ack(third)
    coordinator.ack(first)
    commands = coordinator.ack(first)
    assert kinds(commands) == ["Advance"]
    assert coordinator.sync() == []
    commands = coordinator.advanced(Txid(1))
    assert kinds(commands) == ["Plan", "EmitCommit"]
    assert only(commands, EmitCommit).attempt == second


@BOTH
def test_advance_keeps_its_txids_metas_and_drops_those_before(semantics: Semantics) -> None:
    coordinator, attempts = filled(semantics)
    for attempt in attempts[:2]:
        commands = coordinator.ack(attempt)
        advance = only(coordinator.ack(attempt), Advance)
        assert (advance.txid, advance.attempt) == (attempt.txid, attempt.attempt)
        assert advance.store == (semantics is not TRANSACTIONAL)
        commands = coordinator.advanced(advance.txid)
    assert coordinator.current == 3
    assert coordinator.stored_txids() == [2, 3]
    assert coordinator.committed_metas() == metas(10, 20) == coordinator.metas(Txid(2))
    assert commands == [], "the plan of txid 4, asked for before, is still out"


@BOTH
def test_advanced_without_an_advance_is_an_error(semantics: Semantics) -> None:
    coordinator, (first, second, _) = filled(semantics)
    for txid in (1, 2):
        with pytest.raises(CoordinatorError, match=f"txid {txid} was advanced, but txid 1 is current"):
            coordinator.advanced(Txid(txid))
    coordinator.ack(first)
    coordinator.ack(second)
    with pytest.raises(CoordinatorError, match="txid 1 was advanced"):
        coordinator.advanced(Txid(1))


def test_a_second_ack_of_a_processed_attempt_is_an_error() -> None:
    coordinator, (_, second, _) = filled(OPAQUE)
    coordinator.ack(second)
    with pytest.raises(CoordinatorError, match=r"txid 2 attempt 1\.2 was acked while processed"):
        coordinator.ack(second)


# --- failing -----------------------------------------------------------------------------------------


def test_a_transactional_failure_drops_all_later_ones_and_emits_the_stored_plans_again() -> None:
    coordinator, (first, second, third) = filled(TRANSACTIONAL)
    coordinator.ack(third)
    commands = coordinator.fail(second)
    assert commands[:2] == [Cancel(second), Cancel(third)]
    emits = [command for command in commands[2:] if isinstance(command, EmitBatch)]
    assert [(emit.attempt.txid, emit.metas, emit.stored) for emit in emits] == [
        (2, metas(10, 20), True),
        (3, metas(20, 30), True),
    ]
    assert min(emit.attempt.attempt for emit in emits) > third.attempt
    assert coordinator.active[first.txid].attempt == first
    assert coordinator.active[third.txid].phase is Phase.PROCESSING


def test_stored_plans_are_emitted_again_whether_or_not_the_spout_is_ready() -> None:
    coordinator, (first, second, _) = filled(TRANSACTIONAL)
    coordinator.wake()
    commands = commit(coordinator, coordinator.ack(first))
    assert coordinator.nothing_to_plan(only(commands, Plan).ticket) == []
    emits = [c for c in coordinator.fail(second) if isinstance(c, EmitBatch)]
    assert [emit.attempt.txid for emit in emits] == [2, 3]


def test_an_opaque_failure_drops_all_later_ones_and_plans_them_anew_one_from_the_other() -> None:
    coordinator, (_, second, third) = filled(OPAQUE)
    commands = coordinator.fail(second)
    assert commands[:2] == [Cancel(second), Cancel(third)]
    plan = only(commands, Plan)
    assert (plan.txid, plan.last, plan.replay) == (2, {"p": Range(0, 10)}, True)
    assert kinds(commands) == ["Cancel", "Cancel", "Plan"]
    # The replay shrinks, so the batch behind it must start where the replay ends.
    replayed, commands = plan_and_emit(coordinator, commands, metas(10, 13))
    assert replayed.attempt > third.attempt
    plan = only(commands, Plan)
    assert (plan.txid, plan.last, plan.replay) == (3, {"p": Range(10, 13)}, True)


def test_an_opaque_replay_may_have_nothing_in_it_and_still_commits() -> None:
    coordinator, (first, _, _) = filled(OPAQUE)
    coordinator.ack(first)
    plan = only(coordinator.fail(first), Plan)
    with pytest.raises(CoordinatorError, match="the replay of txid 1 must be planned"):
        coordinator.nothing_to_plan(plan.ticket)
    coordinator, (first, _, _) = filled(OPAQUE)
    coordinator.ack(first)
    commands = coordinator.fail(first)
    nothing: Metas = BatchMetas(unavailable={"p": "no leader"})
    replay, _ = plan_and_emit(coordinator, commands, nothing)
    commit(coordinator, coordinator.ack(replay))
    assert coordinator.current == 2
    assert coordinator.committed_metas() == nothing


@BOTH
def test_a_failed_commit_is_processed_again_under_a_new_attempt(semantics: Semantics) -> None:
    coordinator, (first, second, third) = filled(semantics)
    coordinator.ack(first)
    assert coordinator.active[first.txid].phase is Phase.COMMITTING
    commands = coordinator.fail(first)
    assert commands[:3] == [Cancel(first), Cancel(second), Cancel(third)]
    if semantics is not TRANSACTIONAL:
        _, commands = plan_and_emit(coordinator, commands, metas(0, 10))
    emitted = [c.attempt for c in commands if isinstance(c, EmitBatch)]
    assert emitted[0].txid == 1
    assert emitted[0].attempt > third.attempt
    assert coordinator.current == 1


@BOTH
def test_a_late_fail_during_the_commit_of_a_newer_attempt_changes_nothing(semantics: Semantics) -> None:
    coordinator, (first, _, third) = filled(semantics)
    commands = coordinator.fail(first)
    if semantics is not TRANSACTIONAL:
        _, commands = plan_and_emit(coordinator, commands, metas(0, 10))
    newer = next(c.attempt for c in commands if isinstance(c, EmitBatch))
    assert kinds(coordinator.ack(newer)) == ["EmitCommit"]
    for stale in (first, third):
        assert coordinator.fail(stale) == []
        assert coordinator.ack(stale) == []
    assert coordinator.active[newer.txid].phase is Phase.COMMITTING
    assert kinds(coordinator.ack(newer)) == ["Advance"]


@BOTH
def test_once_its_commit_is_acked_an_attempt_can_no_longer_fail(semantics: Semantics) -> None:
    coordinator, (first, _, _) = filled(semantics)
    coordinator.ack(first)
    coordinator.ack(first)
    assert coordinator.fail(first) == []
    assert coordinator.active[first.txid].phase is Phase.ADVANCING
    coordinator.advanced(Txid(1))
    assert coordinator.fail(first) == []
    assert coordinator.ack(first) == []
    assert coordinator.current == 2


@BOTH
def test_a_failure_of_a_later_batch_leaves_the_advance_of_an_earlier_one_alone(semantics: Semantics) -> None:
    coordinator, (first, second, _) = filled(semantics)
    coordinator.ack(first)
    coordinator.ack(first)
    coordinator.fail(second)
    assert coordinator.active[first.txid].phase is Phase.ADVANCING
    coordinator.advanced(Txid(1))
    assert coordinator.current == 2


def test_answers_to_a_superseded_plan_change_nothing() -> None:
    coordinator, (first, second, _) = filled(OPAQUE)
    commands = commit(coordinator, coordinator.ack(first))
    stale = only(commands, Plan)
    assert stale.txid == 4
    newer = only(coordinator.fail(second), Plan)
    assert not coordinator.is_planning(stale.ticket)
    assert coordinator.planned(stale.ticket, metas(30, 40)) == []
    assert coordinator.nothing_to_plan(stale.ticket) == []
    assert coordinator.stored_txids() == [1]
    assert coordinator.is_planning(newer.ticket)
    assert coordinator.planned(99, metas(0, 1)) == []


def test_a_plan_that_is_being_stored_survives_the_failure_of_an_earlier_batch() -> None:
    coordinator, (first, second, _) = filled(TRANSACTIONAL)
    commands = commit(coordinator, coordinator.ack(first))
    assert kinds(coordinator.planned(only(commands, Plan).ticket, metas(30, 40))) == ["Persist"]
    emits = [c.attempt.txid for c in coordinator.fail(second) if isinstance(c, EmitBatch)]
    assert emits == [2, 3]
    assert only(coordinator.persisted(Txid(4), metas(30, 40)), EmitBatch).attempt.txid == 4


# --- ends and beginnings -----------------------------------------------------------------------------


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


@pytest.mark.parametrize(
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


# --- the map of metas --------------------------------------------------------------------------------


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


# --- any order of events -----------------------------------------------------------------------------


@settings(max_examples=300)
@given(st.sampled_from(list(Semantics)), st.integers(1, 4), st.lists(st.integers(0, 99), max_size=80))
def test_whatever_the_order_of_events_the_rules_hold(
    semantics: Semantics, pending: int, choices: list[int]
) -> None:
    """Answers come in any order, some of them stale; after every event the invariants are checked."""
    counter = itertools.count(1)
    coordinator = make(semantics, pending, next_attempt=lambda: AttemptId(next(counter)))
    open_commands: list[Command[Range]] = []
    old_attempts: list[TransactionAttempt] = []
    committed: list[int] = []
    emitted: dict[int, int] = {}

    def take(commands: Commands) -> None:
        for command in commands:
            if isinstance(command, EmitBatch):
                assert command.attempt.attempt > emitted.get(command.attempt.txid, 0)
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
        if choice % 7 == 0 and old_attempts:
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
