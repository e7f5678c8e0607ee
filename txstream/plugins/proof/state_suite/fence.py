"""Promises about the fence: which attempts may write, and which must wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from txstream.core.errors import CorruptStateError, StaleAttemptError
from txstream.core.fault_points import Point
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid, attempt_id
from txstream.plugins.proof.promises import Promises, described
from txstream.plugins.proof.state_suite.life import Life
from txstream.plugins.proof.state_suite.trial import FENCED, StateCheck, StateTrial, each
from txstream.state import FenceLockedError

CHECKS = Promises(StateCheck)

LARGEST = AttemptId(2**63 - 1)
_ROUNDS = 5
_WRITES = 400


@CHECKS.promise(
    "fence-only-grows",
    "The fence can be raised to a greater attempt; raising it to the same one changes nothing; raising it "
    "to a lower one is refused.",
    "compare and set in one step: raise StaleAttemptError for a lower attempt",
)
def fence_only_grows(trial: StateTrial) -> None:
    life = trial.life()
    for epoch in (1, 3, 3):
        trial.require("the fence", life.raise_fence(epoch), life.fence().attempt)
    life.refuses("the fence would sink", StaleAttemptError, life.raising, attempt_id(2, 2**32 - 1))
    trial.ask("the greatest attempt commits", life.committing, TransactionAttempt(Txid(1), LARGEST), {"a": 1})
    stored = life.fence().attempt, life.batch(1).attempt
    trial.require("the 63-bit attempt in fence and ledger", (LARGEST, LARGEST), stored)


@CHECKS.promise(
    "commit-raises-the-fence",
    "`commit` and `begin_commit` raise the fence to their attempt.",
    "raise it in the same transaction, before anything else",
)
@each(*FENCED)
def commit_raises_the_fence(life: Life) -> None:
    require = life.trial.require
    require("the fence after a commit", life.commit(1, {"a": 1}).attempt, life.fence().attempt)
    require("the fence after a beginning", life.begin(2).attempt, life.fence().attempt)


@CHECKS.promise(
    "stale-commit-is-refused",
    "An attempt that the fence has passed can neither commit nor begin, and changes nothing.",
    "raise StaleAttemptError unless the fence is below the attempt",
)
@each(*FENCED)
def stale_commit_is_refused(life: Life) -> None:
    late = life.next(1)
    life.commit(1, {"a": 1})
    _refuses_to_commit(life, late, "a newer attempt of this driver committed")
    zombie = life.next(2)
    life.raise_fence(2)
    _refuses_to_commit(life, zombie, "another driver raised the fence")


def _refuses_to_commit(life: Life, attempt: TransactionAttempt, why: str) -> None:
    for call in (life.committing, life.beginning):
        life.refuses(f"{attempt} comes after {why}", StaleAttemptError, call, attempt, {"a": 10, "stale": 1})


@CHECKS.promise(
    "an-attempt-commits-once",
    "An attempt that has committed or begun cannot commit or begin again.",
    "an equal fence is not enough: it must be below the attempt",
)
@each(*FENCED)
def an_attempt_commits_once(life: Life) -> None:
    _refuses_to_commit(life, life.commit(1, {"a": 1}), "it committed")
    _refuses_to_commit(life, life.begin(2), "it began")


def _passed_twice(life: Life, what: str, call: Callable[..., Any]) -> None:
    """Check that a call is refused once a later attempt of its driver, then another driver, raised the
    fence."""
    first = life.begin(1)
    life.write(first, {"a": 1})
    second = life.begin(1)
    life.write(second, {"a": 2})
    life.refuses(f"{what} after its driver began again", StaleAttemptError, call, first, {"a": 5, "b": 5})
    life.raise_fence(2)
    life.refuses(f"{what} after another driver took over", StaleAttemptError, call, second, {"b": 5})


@CHECKS.promise(
    "stale-write-is-refused",
    "A task of an attempt that the fence has passed writes nothing.",
    "in the transaction that writes, demand that the fence equals the attempt: raise StaleAttemptError",
)
@each(*FENCED)
def stale_write_is_refused(life: Life) -> None:
    _passed_twice(life, "a task of the old attempt writes", life.writing)


@CHECKS.promise(
    "stale-end-is-refused",
    "A commit whose attempt the fence has passed cannot end.",
    "`end_commit` demands an equal fence, as `write` does",
)
@each(*FENCED)
def stale_end_is_refused(life: Life) -> None:
    _passed_twice(life, "the old attempt ends", life.ending)


@CHECKS.promise(
    "a-write-needs-a-beginning",
    "Nothing is written for an attempt that has not begun: a fence below the attempt means that the store "
    "lost the beginning.",
    "demand an equal fence: raise CorruptStateError when it is lower",
)
@each(*FENCED)
def a_write_needs_a_beginning(life: Life) -> None:
    life.commit(1, {"a": 1})
    for what, call in (("a task writes", life.writing), ("a commit ends", life.ending)):
        life.refuses(f"{what} without a beginning", CorruptStateError, call, life.next(2), {"a": 5})


# --- waiting -----------------------------------------------------------------------------------------------


def _raise_beside(life: Life, point: str, run: Callable[..., None], *arguments: Any) -> None:
    """Hold a transaction open at a point, raise the fence meanwhile, and let both end."""
    trial = life.trial
    inside, go_on = threading.Event(), threading.Event()
    seen: list[str] = []

    def hold(found: str) -> None:
        seen.append(found)
        inside.set()
        go_on.wait(trial.deadline_seconds)

    before = life.everything()
    open_one = trial.beside(partial(run, *arguments, reached=hold))
    raiser = life.at(trial.open())
    try:
        if not inside.wait(trial.deadline_seconds):
            found = f"none; the call gave {open_one.outcome('the transaction that is held open')!r:.200}"
            trial.fail(f"a call to reached({point!r})", found)
        during = life.everything()
        raising = partial(raiser.raising, attempt_id(2, 0), lock_timeout_seconds=trial.terms.lock_seconds)
        found = trial.beside(raising).outcome("a raise that waits for an open transaction")
        raised = None if found is not None else life.everything()
    finally:
        go_on.set()
    ended = open_one.outcome("the transaction that was held open")
    trial.require("the calls to reached", [point], seen)
    trial.require("what others see while a transaction is open", before, during)
    if found is None:
        # The fence was raised all the same, so the open transaction must not have written anything since.
        when = f"when the raise returned, unchanged since; the older transaction gave {ended!r:.200}"
        trial.require(f"what was stored {when}", raised, life.everything())
        return
    if not isinstance(found, FenceLockedError):
        trial.fail("FenceLockedError for a raise that waits in vain", described(found))
    if ended is not None:
        trial.fail("no error from a transaction that nobody disturbed", described(ended))
    trial.ask("the fence is raised when no transaction is open", raiser.raising, attempt_id(2, 0))


@CHECKS.promise(
    "raise-waits-for-commit",
    "Once a raise of the fence has returned, no commit of an older attempt can take effect.",
    "let the raise wait up to lock_timeout_seconds for the commit's lock, then raise FenceLockedError",
)
@each(*FENCED)
def raise_waits_for_commit(life: Life) -> None:
    _raise_beside(life, Point.INSIDE_COMMIT, life.committing, life.next(1), {"a": 1})


@CHECKS.promise(
    "raise-waits-for-beginning",
    "Once a raise of the fence has returned, no older attempt can begin.",
    "as for a commit",
)
def raise_waits_for_beginning(trial: StateTrial) -> None:
    life = trial.life()
    _raise_beside(life, Point.INSIDE_BEGIN, life.beginning, life.next(1))


@CHECKS.promise(
    "raise-waits-for-end",
    "Once a raise of the fence has returned, no commit of an older attempt can end.",
    "`end_commit` holds the fence, shared or alone, until its transaction ends; a plain read of the fence "
    "is not enough",
)
@each(*FENCED)
def raise_waits_for_end(life: Life) -> None:
    _raise_beside(life, Point.INSIDE_COMMIT, life.ending, life.begin(1), {"a": 1})


@CHECKS.promise(
    "raise-waits-for-writes",
    "Once a raise of the fence has returned, no task of an older attempt can write.",
    "`write` holds the fence, shared with other tasks, until its transaction ends; checking it first and "
    "writing afterwards leaves a gap",
)
def raise_waits_for_writes(trial: StateTrial) -> None:
    for epoch in range(_ROUNDS):
        life = trial.life()
        life.epoch = epoch + 1
        under = life.begin(1)
        writing = threading.Event()
        keys = [f"k{number}" for number in range(_WRITES)]
        life.keys.update(dict.fromkeys(keys))
        task = life.at(trial.open())

        running = trial.beside(partial(_write_each, task, under, keys, writing, epoch * 3 + 1))
        writing.wait(trial.deadline_seconds)
        life.raise_fence(life.epoch + 1)
        then = life.values()
        found = running.outcome("a task that writes until the fence stops it")
        if found != len(keys) and not isinstance(found, StaleAttemptError):
            trial.fail("StaleAttemptError for a task that the fence stops", f"{found!r:.300}")
        life.holds(then, "when the raise returned, unchanged since")


def _write_each(
    task: Life, under: TransactionAttempt, keys: list[str], writing: threading.Event, noted: int
) -> int:
    """Write each key in turn, setting `writing` before the key with number `noted`."""
    for number, key in enumerate(keys):
        if number == noted:
            writing.set()
        task.writing(under, {key: 1})
    return len(keys)


@CHECKS.promise(
    "topologies-do-not-disturb",
    "Two topologies in one store commit side by side; neither changes the other's fence, ledger or state.",
    "key everything by topology; a lock on the whole store is allowed, a deadlock is not",
)
def topologies_do_not_disturb(trial: StateTrial) -> None:
    lives = [trial.life() for _ in range(2)]

    def run(life: Life) -> None:
        for txid in range(1, 11):
            life.committing(life.next(txid), {"a": 1, f"k{txid}": 1})

    for one in [trial.beside(partial(run, life.at(trial.open()))) for life in lives]:
        found = one.outcome("ten commits beside another topology's")
        if found is not None:
            trial.fail("ten commits beside another topology's", described(found))
    for life in lives:
        life.holds({"a": 10, **{f"k{n}": 1 for n in range(1, 11)}})
        trial.require("the fence", life.batch(10).attempt, life.fence().attempt)
