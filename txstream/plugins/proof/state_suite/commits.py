"""Promises about commits: they are all or nothing, replays undo, and tasks write side by side."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from txstream.api.reducers import Sum, custom
from txstream.core.errors import ProgressMismatchError, StateValueError, TxidRegressionError
from txstream.core.fault_points import Point
from txstream.core.semantics import Semantics
from txstream.core.transaction import TransactionAttempt, attempt_id
from txstream.plugins.proof.promises import Promises
from txstream.plugins.proof.state_suite.life import Life, table
from txstream.plugins.proof.state_suite.trial import FENCED, StateCheck, StateTrial, each

CHECKS = Promises(StateCheck)

_TASKS = 4

# --- all or nothing ----------------------------------------------------------------------------------------


class _CrashError(Exception):
    """The driver dies here."""


def _crash(_point: Point) -> None:
    raise _CrashError


def _crashes(life: Life, what: str, call: Callable[..., None], *arguments: Any) -> None:
    """Make the call fail in `reached`, and check that it leaves nothing."""
    with life.unchanged(what):
        found = life.trial.outcome(what, call, *arguments, reached=_crash)
        if not isinstance(found, _CrashError):
            life.trial.fail(f"the error that reached() raised in {what}", f"{found!r:.300}")


@CHECKS.promise(
    "commit-is-atomic",
    "`commit` calls `reached` once, when everything is written but not yet visible; if `reached` raises, "
    "nothing is kept.",
    "use one transaction for fence, restore, deltas and ledger, and call reached(Point.INSIDE_COMMIT) right "
    "before it ends",
)
@each(*Semantics)
def commit_is_atomic(life: Life) -> None:
    trial = life.trial
    life.commit(1, {"a": 1})
    life.keys["b"] = None
    other = life.at(trial.open())
    before = other.everything()
    seen: list[tuple[str, tuple[Any, ...]]] = []
    life.commit(2, {"a": 2, "b": 2}, reached=lambda point: seen.append((point, other.everything())))
    trial.require("what others see during a commit", [(Point.INSIDE_COMMIT, before)], seen)
    _crashes(life, "a commit that failed at its end", life.committing, life.next(3), {"a": 5, "c": 5})
    life.commit(3, {"a": 1})
    life.holds({"a": 4, "b": 2}, "after the next commit")


@CHECKS.promise(
    "a-refused-value-leaves-nothing",
    "If one value of a batch cannot be stored, the batch changes nothing in any table.",
    "check all tables first, or write all of them in one transaction",
)
def a_refused_value_leaves_nothing(trial: StateTrial) -> None:
    for semantics in FENCED:
        life = trial.life(semantics, more=1)
        life.commit(1, {"a": 1}, {"a": 1})
        bad = {"a": 5, None: 1}
        what = "the second of two tables gets a null in its key"
        life.refuses(what, StateValueError, life.committing, life.next(2), {"a": 5}, bad)
        under = life.begin(2)
        life.refuses("a task gets a null in a key", StateValueError, life.writing, under, bad)


@CHECKS.promise(
    "beginning-is-atomic",
    "`begin_commit` calls `reached` once; if `reached` raises, fence, ledger and state stay as they were.",
    "use one transaction, and call reached(Point.INSIDE_BEGIN) right before it commits",
)
@each(*FENCED)
def beginning_is_atomic(life: Life) -> None:
    life.commit(1, {"a": 1})
    life.commit(2, {"a": 1, "b": 1})
    _crashes(life, "a beginning that failed at its end", life.beginning, life.next(2))
    points: list[str] = []
    life.trial.ask("the attempt begins", life.beginning, life.next(2), reached=points.append)
    life.trial.require("the calls to reached", [Point.INSIDE_BEGIN], points)


@CHECKS.promise(
    "end-is-atomic",
    "`end_commit` calls `reached` once; if `reached` raises, the ledger stays at `committing` and the "
    "deltas of `end_commit` are not written.",
    "use one transaction, and call reached(Point.INSIDE_COMMIT) right before it commits",
)
@each(*FENCED)
def end_is_atomic(life: Life) -> None:
    under = life.begin(1)
    life.write(under, {"a": 1})
    _crashes(life, "an end that failed", life.ending, under, {"b": 1})
    points: list[str] = []
    life.end(under, {"b": 1}, keys=1, reached=points.append)
    life.trial.require("the calls to reached", [Point.INSIDE_COMMIT], points)
    life.holds({"a": 1, "b": 1})


@CHECKS.promise(
    "regression-is-refused",
    "An older batch never writes a row that carries a newer txid; such a batch writes nothing at all.",
    "compare the row's txid with the batch's: raise TxidRegressionError",
)
def regression_is_refused(trial: StateTrial) -> None:
    for semantics in FENCED:
        life = trial.life(semantics, more=1)
        life.commit(1)
        life.commit(2, {"b": 1}, {"b": 1})
        what = "a batch is older than a row of one of its keys"
        for deltas in (({"a": 1, "b": 1, "c": 1},), ({"a": 1}, {"b": 1}), ({"b": 1}, {"a": 1})):
            life.refuses(what, TxidRegressionError, life.committing, life.next(1), *deltas)
        under, deltas = life.begin(1), ({"a": 1, "b": 1, "c": 1},)
        life.refuses(f"a task writes and {what}", TxidRegressionError, life.writing, under, *deltas)


@CHECKS.promise(
    "a-gap-is-refused",
    "No batch can commit or begin if the batch before it is missing, was only begun, or was committed by "
    "another attempt: then the store was restored from an older copy while the driver ran.",
    "`entries` reads the ledger inside the transaction, after the fence was raised",
)
@each(*FENCED)
def a_gap_is_refused(life: Life) -> None:
    def refuses(txid: int, why: str, **options: Any) -> None:
        for call in (life.committing, life.beginning):
            what, new = f"txid {txid} comes, but {why}", life.next(txid)
            life.refuses(what, ProgressMismatchError, call, new, {"a": 1}, **options)

    refuses(2, "the ledger is empty")
    life.commit(1, {"a": 1})
    refuses(3, "txid 2 is missing")
    under = life.begin(2)
    refuses(3, "txid 2 was only begun")
    life.end(under, {"a": 1})
    refuses(3, "txid 2 was committed by another attempt", after=attempt_id(1, 1))
    life.commit(3, {"a": 1}, after=under.attempt)
    life.holds({"a": 3}, "after batches without a gap")


# --- undoing -----------------------------------------------------------------------------------------------


@CHECKS.promise(
    "phantom-keys-are-undone",
    "A replay of an opaque batch undoes everything that an earlier attempt wrote, including keys that the "
    "replay has no deltas for: changed rows get their previous value back, created rows are deleted.",
    "before the first delta, in every table: in rows with the batch's txid, set value = prev, and delete "
    "those whose prev is null",
)
def phantom_keys_are_undone(trial: StateTrial) -> None:
    life = trial.life(more=1)
    life.commit(1, {"y": 10}, {"y": 1})
    life.commit(2, {"x": 1, "y": 1}, {"y": 1})
    life.commit(2, {"x": 1})
    life.holds({"x": 1, "y": 10}, "after a replay without y")
    life.holds({"y": 1}, "of a table that the replay has nothing for", table=1)
    life.commit(3, {"y": 1})
    life.holds({"x": 1, "y": 11}, "when y comes again")
    life.commit(3, None)
    life.commit(3, {})
    life.holds({"x": 1, "y": 10}, "after replays with no delta at all")
    trial.require("the keys in the ledger after replays with no delta", 0, life.batch(3).keys)
    life.commit(4, {"z": 1})
    life.commit(4, {"x": 1})
    life.holds({"x": 2, "y": 10}, "when a created key is not in the replay")
    life.commit(4, {"z": 3})
    life.holds({"x": 1, "y": 10, "z": 3}, "when it is created again")
    # More than one page, for a store that answers in pages.
    life.commit(5, {f"k{n}": n for n in range(3000)})
    life.commit(5, {"z": 1})
    life.holds({"x": 1, "y": 10, "z": 4}, "when 3000 keys are undone")
    life.commit(2, {"w": 1})
    life.holds({"x": 1, "y": 10, "z": 4, "w": 1}, "when a batch before later ones is replayed")


@CHECKS.promise(
    "beginning-undoes",
    "`begin_commit` undoes what an earlier attempt wrote, whether it committed or wrote only a part, before "
    "any task writes; it ignores the deltas.",
    "in one transaction: raise the fence, write the ledger row, restore every opaque table",
)
def beginning_undoes(trial: StateTrial) -> None:
    life = trial.life(more=1)
    life.commit(1, {"a": 1, "b": 1}, {"a": 1})
    earlier: tuple[Callable[[], object], ...] = (
        lambda: life.commit(2, {"a": 5, "c": 5}, {"a": 5, "c": 5}),
        lambda: life.write(life.begin(2), {"a": 5, "c": 5}, {"a": 5, "c": 5}),
        lambda: life.end(life.begin(2), {"a": 5, "c": 5}, {"a": 5, "c": 5}),
    )
    for write in earlier:
        write()
        under = life.begin(2, {"a": 100}, {"a": 100})
        life.holds({"a": 1, "b": 1}, "after a beginning")
        life.holds({"a": 1}, "of another table after a beginning", table=1)
        life.write(under, {"b": 2})
        life.end(under, keys=1)
        life.holds({"a": 1, "b": 3}, "after its end")
        write()
        life.commit(2, {"b": 4})  # by the other path
        life.holds({"a": 1, "b": 5}, "after a commit over it")
        life.holds({"a": 1}, "of another table after a commit over it", table=1)


@CHECKS.promise(
    "transactional-replay-is-skipped",
    "A replay of a transactional batch has the same contents, so what an earlier attempt wrote stays and is "
    "not written again.",
    "do not restore transactional tables; skip rows that carry the batch's txid",
)
def transactional_replay_is_skipped(trial: StateTrial) -> None:
    life = trial.life(Semantics.TRANSACTIONAL)
    life.commit(1, {"a": 1})
    first = life.begin(2)
    life.write(first, {"a": 5})
    second = life.begin(2)
    life.holds({"a": 6}, "after another beginning")
    life.write(second, {"a": 5})
    life.write(second, {"b": 5})
    life.end(second, keys=2)
    life.commit(2, {"a": 5, "b": 5})
    life.holds({"a": 6, "b": 5})
    name = trial.name()
    mixed = trial.stranger(life.semantics, tables=(table(f"t_{name}", life.semantics), table(f"u_{name}")))
    mixed.join()
    mixed.commit(1, {"a": 1}, {"a": 1, "b": 1})
    mixed.commit(1, {"a": 1}, {"b": 2})
    mixed.holds({"a": 1}, "of a transactional table")
    mixed.holds({"b": 2}, "of an opaque table beside it", table=1)


# --- tasks -------------------------------------------------------------------------------------------------


@CHECKS.promise(
    "a-share-counts-once",
    "A share that one attempt writes several times, in turn or at the same time, counts once; each write "
    "returns the number of its rows.",
    "the value rules ensure this if reading and writing a row is one step",
)
def a_share_counts_once(trial: StateTrial) -> None:
    # In a store that reads a row, merges it in Python and writes it back, both tasks read before either
    # writes.
    both = threading.Barrier(2)

    def slow(stored: int, delta: int) -> int:
        with contextlib.suppress(threading.BrokenBarrierError):
            both.wait(trial.terms.lock_seconds)
        return stored + delta

    for semantics in FENCED:
        for reducer in (Sum("n"), custom(slow, 0)):
            _write_again_and_again(trial.life(semantics, reducers={"n": reducer}))


def _write_again_and_again(life: Life) -> None:
    trial = life.trial
    life.commit(1, {f"k{n}": 1 for n in range(10)})
    under = life.begin(2)
    share = {f"k{n}": 2 for n in range(5, 15)}
    life.write(under, {"k0": 2})
    for _ in range(2):
        trial.require("the rows written", len(share), life.write(under, share))
    together = threading.Barrier(_TASKS)

    def write() -> int:
        together.wait(trial.deadline_seconds)
        return life.writing(under, share)

    for task in [trial.beside(write) for _ in range(_TASKS)]:
        trial.require("a task's answer", len(share), task.outcome("a share written side by side"))
    life.end(under, keys=len(share))
    life.write(under, share)  # by a task that nobody stopped
    changed = {"k0": 3, **{f"k{n}": 3 for n in range(5, 10)}, **{f"k{n}": 2 for n in range(10, 15)}}
    life.holds({**{f"k{n}": 1 for n in range(10)}, **changed})


@CHECKS.promise(
    "disjoint-shares-all-count",
    "When tasks of one attempt write disjoint keys at the same time, each through its own opening, all "
    "their writes count.",
    "change only the keys of the share: do not write back what another task has written",
)
@each(*Semantics)
def disjoint_shares_all_count(life: Life) -> None:
    trial = life.trial
    life.commit(1, {f"k{n}": 1 for n in range(40)})
    under = life.begin(2) if life.semantics in FENCED else life.next(2)
    together = threading.Barrier(_TASKS)

    def run(own: Life, first: int) -> int:
        together.wait(trial.deadline_seconds)
        return sum(own.writing(under, {f"k{n}": 1, f"n{n}": 1}) for n in range(first, 40, _TASKS))

    tasks = [trial.beside(partial(run, life.at(trial.open()), number)) for number in range(_TASKS)]
    for task in tasks:
        trial.require("a task's answer", 20, task.outcome("shares of disjoint keys written at once"))
    life.end(under, {"last": 1}, keys=80)
    life.holds({**{f"k{n}": 2 for n in range(40)}, **{f"n{n}": 1 for n in range(40)}, "last": 1})


@CHECKS.promise(
    "non-transactional-has-no-fence",
    "Non-transactional topologies write without a fence: an attempt may come again, a beginning does "
    "nothing, and every write counts.",
    "check `semantics` before the fence",
)
def non_transactional_has_no_fence(trial: StateTrial) -> None:
    life = trial.life(Semantics.NON_TRANSACTIONAL)
    same = life.commit(2, {"a": 1})
    for txid in (2, 1):
        late = TransactionAttempt(life.next(txid).txid, same.attempt)
        trial.ask("the attempt commits again", life.committing, late, {"a": 1})
    life.holds({"a": 3}, "after an attempt came again")
    trial.ask("the attempt begins", life.beginning, same)
    life.write(same, {"a": 1, "b": 1})
    life.end(same, {"c": 1}, keys=2)
    life.holds({"a": 4, "b": 1, "c": 1})
    trial.require("the fence", 0, life.fence().attempt)
    trial.require("the keys of the last row", 3, life.batch(2).keys)
