"""Checks of commits: all or nothing, what is undone, and tasks that write side by side."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

from txstream.api.errors import StateValueError, TxidRegressionError
from txstream.semantics import Semantics
from txstream.state.protocol import INSIDE_BEGIN, INSIDE_COMMIT
from txstream.state.records import COMMITTED
from txstream.testing.state_life import table, to_table
from txstream.testing.state_trial import FENCED, StateTrial, promise
from txstream.transaction import TransactionAttempt

_TASKS = 4


class _CrashError(Exception):
    """The driver dies here."""


def _crash(_point: str) -> None:
    raise _CrashError


def _must_crash(trial: StateTrial, what: str, call: object) -> None:
    found = trial.outcome(what, call)  # type: ignore[arg-type]
    if not isinstance(found, _CrashError):
        trial.fail(f"the error that reached() raised, when {what}", f"{found!r:.300}")


# --- all or nothing ----------------------------------------------------------------------------------------


@promise(
    "commit-is-atomic",
    "`commit` calls `reached` once, with everything written and nothing to be seen, and what fails there "
    "leaves nothing.",
    "one transaction for fence, restore, deltas and ledger; call reached(INSIDE_COMMIT) right before its end",
)
def commit_is_atomic(trial: StateTrial) -> None:
    for semantics in Semantics:
        life = trial.life(semantics)
        life.commit(1, {"a": 1})
        other = life.at(trial.open())
        seen: list[tuple[str, tuple[Any, ...]]] = []
        before = other.everything()
        life.keys["b"] = None
        life.commit(
            2, {"a": 2, "b": 2}, reached=lambda point, o=other, s=seen: s.append((point, o.everything()))
        )
        points = [point for point, _ in seen]
        trial.require("the calls of reached", [INSIDE_COMMIT], points)
        values, ledger, fence = seen[0][1]
        trial.require("the values that others see inside of a commit", {"a": 1}, values)
        trial.require("the ledger that others see inside of a commit", before[1], ledger)
        trial.require("the fence that others see inside of a commit", before[2], fence)
        with life.unchanged("a commit that failed at its end"):
            _must_crash(
                trial,
                "a commit fails at its end",
                partial(life.committing, life.next(3), {"a": 5, "c": 5}, reached=_crash),
            )
        life.commit(3, {"a": 1})
        trial.require("the values after the next commit", {"a": 4, "b": 2}, life.values())


@promise(
    "a-refused-value-leaves-nothing",
    "A batch of which one value cannot be kept leaves nothing, in no table.",
    "check or write all tables in the one transaction",
)
def a_refused_value_leaves_nothing(trial: StateTrial) -> None:
    for semantics in FENCED:
        life = trial.life(semantics)
        second = table(f"u_{life.topology}", semantics)
        tables = [life.spec, second]
        trial.ask("it joins with two tables", partial(life.joining, tables=tables))
        life.commit(1, {"a": 1}, tables=tables, more={second.state.table: to_table(second, {"a": 1})})
        bad = {second.state.table: to_table(second, {"a": 5, None: 1})}
        with life.unchanged("a batch that was refused"):
            trial.refused(
                "the second of two tables gets a null in its key",
                StateValueError,
                partial(life.committing, life.next(2), {"a": 5}, tables=tables, more=bad),
            )
            trial.require("the second table", {"a": 1}, life.read(["a"], spec=second))
        under = life.begin(2)
        with life.unchanged("a task that was refused"):
            trial.refused(
                "a task gets a null in a key",
                StateValueError,
                partial(life.writing, under, {"a": 5, None: 1}),
            )
        life.keys.pop(None, None)


@promise(
    "beginning-is-atomic",
    "`begin_commit` calls `reached` once, and what fails there leaves fence, ledger and state as they were.",
    "one transaction; call reached(INSIDE_BEGIN) right before its commit",
)
def beginning_is_atomic(trial: StateTrial) -> None:
    life = trial.life()
    life.commit(1, {"a": 1})
    life.commit(2, {"a": 1, "b": 1})
    with life.unchanged("a beginning that failed at its end"):
        _must_crash(
            trial, "a beginning fails at its end", lambda: life.beginning(life.next(2), reached=_crash)
        )
    points: list[str] = []
    trial.ask("it begins", life.beginning, life.next(2), reached=points.append)
    trial.require("the calls of reached", [INSIDE_BEGIN], points)


@promise(
    "end-is-atomic",
    "`end_commit` calls `reached` once, and what fails there leaves the ledger at `committing` and its own "
    "deltas unwritten.",
    "one transaction; call reached(INSIDE_COMMIT) right before its commit",
)
def end_is_atomic(trial: StateTrial) -> None:
    for semantics in FENCED:
        life = trial.life(semantics)
        under = life.begin(1)
        life.write(under, {"a": 1})
        with life.unchanged("an end that failed"):
            _must_crash(
                trial,
                "an end fails",
                partial(life.ending, under, {"b": 1}, reached=_crash),
            )
        points: list[str] = []
        trial.ask("it ends", life.ending, under, {"b": 1}, keys=1, reached=points.append)
        trial.require("the calls of reached", [INSIDE_COMMIT], points)
        trial.require("the values", {"a": 1, "b": 1}, life.values())
        trial.require("its status", COMMITTED, life.batch(1).status)


@promise(
    "regression-is-refused",
    "A row that carries a newer txid is never written by an older batch, and nothing of that batch is.",
    "compare the row's txid with the batch's: raise TxidRegressionError",
)
def regression_is_refused(trial: StateTrial) -> None:
    for semantics in FENCED:
        life = trial.life(semantics)
        life.commit(7, {"b": 1})
        with life.unchanged("a batch older than a row"):
            trial.refused(
                "a batch is older than a row of one of its keys",
                TxidRegressionError,
                partial(life.committing, life.next(6), {"a": 1, "b": 1, "c": 1}),
            )
        under = life.begin(6)
        with life.unchanged("a task older than a row"):
            trial.refused(
                "a task's batch is older than a row of one of its keys",
                TxidRegressionError,
                partial(life.writing, under, {"a": 1, "b": 1, "c": 1}),
            )


# --- undoing -----------------------------------------------------------------------------------------------


@promise(
    "phantom-keys-are-undone",
    "A replay of an opaque batch undoes all that an earlier attempt has written, also keys that it has no "
    "deltas for: rows that were changed get back the value before, rows that were created go.",
    "before the first delta, in every table: value = prev where the txid is the batch's, and delete where "
    "prev is null",
)
def phantom_keys_are_undone(trial: StateTrial) -> None:
    life = trial.life()
    life.commit(4, {"y": 10})
    life.commit(5, {"x": 1, "y": 1})
    life.commit(5, {"x": 1})
    trial.require("the values after a replay without y", {"x": 1, "y": 10}, life.values())
    life.commit(6, {"y": 1})
    trial.require("the values when y comes again", {"x": 1, "y": 11}, life.values())
    life.commit(6, None)
    life.commit(6, {})
    trial.require("the values after replays with no delta at all", {"x": 1, "y": 10}, life.values())
    life.commit(7, {"z": 1})
    life.commit(7, {"x": 1})
    trial.require("the values when a created key is not in the replay", {"x": 2, "y": 10}, life.values())
    life.commit(7, {"z": 3})
    trial.require("the values when it is created again", {"x": 1, "y": 10, "z": 3}, life.values())
    # More than a page of a store that answers in pages.
    life.commit(8, {f"k{n}": n for n in range(3000)})
    life.commit(8, {"z": 1})
    trial.require("the values when 3000 keys are undone", {"x": 1, "y": 10, "z": 4}, life.values())


@promise(
    "beginning-undoes",
    "`begin_commit` undoes what an earlier attempt has written, whether committed or in part, before any "
    "task writes; it looks at no deltas.",
    "fence, ledger, restore: in the beginning's transaction, for every opaque table",
)
def beginning_undoes(trial: StateTrial) -> None:
    life = trial.life()
    second = table(f"u_{life.topology}")
    tables = [life.spec, second]
    trial.ask("it joins with two tables", lambda: life.joining(tables=tables))
    life.commit(1, {"a": 1, "b": 1}, tables=tables, more={second.state.table: to_table(second, {"q": 1})})
    first = life.begin(2)
    life.write(first, {"a": 5, "c": 5})
    life.begin(2, {"a": 100})
    trial.require("the values after a beginning over a part", {"a": 1, "b": 1}, life.values())
    again = life.begin(2)
    life.write(again, {"b": 2})
    life.end(again, keys=1)
    trial.require("the values", {"a": 1, "b": 3}, life.values())
    life.begin(2)
    trial.require("the values after a beginning over a commit", {"a": 1, "b": 1}, life.values())
    trial.require("a table that had no deltas", {"q": 1}, life.read(["q"], spec=second))
    # The driver path undoes the executors' part too.
    under = life.begin(2)
    life.write(under, {"a": 7, "d": 7})
    life.commit(2, {"b": 4}, tables=tables)
    trial.require("the values after a commit over a part", {"a": 1, "b": 5}, life.values())


@promise(
    "transactional-replay-is-skipped",
    "A replay of a transactional batch holds the same, so what an earlier attempt has written stays, and is "
    "not written again.",
    "no restore for transactional tables; skip rows that carry the batch's txid",
)
def transactional_replay_is_skipped(trial: StateTrial) -> None:
    life = trial.life(Semantics.TRANSACTIONAL)
    life.commit(1, {"a": 1})
    first = life.begin(2)
    life.write(first, {"a": 5})
    second = life.begin(2)
    trial.require("the values after another beginning", {"a": 6}, life.values())
    life.write(second, {"a": 5})
    life.write(second, {"b": 5})
    life.end(second, keys=2)
    life.commit(2, {"a": 5, "b": 5})
    trial.require("the values", {"a": 6, "b": 5}, life.values())


# --- tasks -------------------------------------------------------------------------------------------------


@promise(
    "a-share-counts-once",
    "The same share may be written several times under one attempt, one after the other or side by side: it "
    "counts once, and the answer is the number of rows each time.",
    "the value rules do it, when reading and writing a row is one step",
)
def a_share_counts_once(trial: StateTrial) -> None:
    for semantics in FENCED:
        life = trial.life(semantics)
        life.commit(1, {f"k{n}": 1 for n in range(10)})
        under = life.begin(2)
        share = {f"k{n}": 2 for n in range(5, 15)}
        for _ in range(2):
            trial.require("the rows written", len(share), life.write(under, share))
        together = threading.Barrier(_TASKS)

        def write(life=life, under=under, share=share, together=together) -> int:  # type: ignore[no-untyped-def]
            together.wait(trial.terms.deadline_seconds)
            return life.writing(under, share)  # type: ignore[no-any-return]

        for task in [trial.beside(write) for _ in range(_TASKS)]:
            trial.require("a task's answer", len(share), task.outcome("a share written side by side"))
        life.end(under, keys=len(share))
        expected = {f"k{n}": 1 + 2 * (n >= 5) for n in range(10)} | {f"k{n}": 2 for n in range(10, 15)}
        trial.require("the values", expected, life.values())


@promise(
    "disjoint-shares-all-count",
    "Tasks of one attempt write disjoint keys at once, each through its own opening: all of it counts.",
    "do not write back what another task has written: change the keys of the share alone",
)
def disjoint_shares_all_count(trial: StateTrial) -> None:
    for semantics in Semantics:
        life = trial.life(semantics)
        life.commit(1, {f"k{n}": 1 for n in range(40)})
        under = life.begin(2) if semantics in FENCED else life.next(2)
        together = threading.Barrier(_TASKS)
        tasks = []
        for number in range(_TASKS):
            own = life.at(trial.open())
            shares = [{f"k{n}": 1, f"n{n}": 1} for n in range(number, 40, _TASKS)]

            def run(own=own, shares=shares, under=under, together=together) -> int:  # type: ignore[no-untyped-def]
                together.wait(trial.terms.deadline_seconds)
                return sum(own.writing(under, share) for share in shares)

            tasks.append(trial.beside(run))
        for task in tasks:
            trial.require("a task's answer", 20, task.outcome("shares of disjoint keys written at once"))
        life.end(under, {"last": 1}, keys=80)
        expected = {**{f"k{n}": 2 for n in range(40)}, **{f"n{n}": 1 for n in range(40)}, "last": 1}
        trial.require("the values", expected, life.values())


@promise(
    "non-transactional-has-no-fence",
    "Non-transactional topologies write without a fence: attempts may come again, beginnings do nothing, and "
    "every write counts.",
    "look at `semantics` before the fence",
)
def non_transactional_has_no_fence(trial: StateTrial) -> None:
    life = trial.life(Semantics.NON_TRANSACTIONAL)
    same = life.commit(2, {"a": 1})
    for txid in (2, 1):
        late = TransactionAttempt(life.next(txid).txid, same.attempt)
        trial.ask("it commits again", life.committing, late, {"a": 1})
    trial.require("the values", {"a": 3}, life.values())
    trial.ask("it begins", life.beginning, same)
    life.write(same, {"a": 1, "b": 1})
    life.end(same, {"c": 1}, keys=2)
    trial.require("the values", {"a": 4, "b": 1, "c": 1}, life.values())
    trial.require("the fence", 0, life.fence().attempt)
    trial.require("the keys of the last row", 3, life.batch(2).keys)


CHECKS = (
    commit_is_atomic,
    a_refused_value_leaves_nothing,
    beginning_is_atomic,
    end_is_atomic,
    regression_is_refused,
    phantom_keys_are_undone,
    beginning_undoes,
    transactional_replay_is_skipped,
    a_share_counts_once,
    disjoint_shares_all_count,
    non_transactional_has_no_fence,
)
