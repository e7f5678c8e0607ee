"""Checks of the fence: who may write, and who must wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from txstream.api.errors import CorruptStateError, StaleAttemptError
from txstream.semantics import Semantics
from txstream.state import FenceLockedError
from txstream.state.protocol import INSIDE_BEGIN, INSIDE_COMMIT
from txstream.testing.state_life import Life
from txstream.testing.state_trial import FENCED, StateTrial, promise
from txstream.transaction import AttemptId, TransactionAttempt, attempt_id

LARGEST = AttemptId(2**63 - 1)
_ROUNDS = 5
_WRITES = 400


@promise(
    "fence-only-grows",
    "The fence is raised to what is greater; raising it to where it is changes nothing; raising it to less "
    "is refused.",
    "compare and set in one step: raise StaleAttemptError for less",
)
def fence_only_grows(trial: StateTrial) -> None:
    life = trial.life()
    for epoch in (1, 3, 3):
        raised = life.raise_fence(epoch)
        trial.require("the fence", raised, life.fence().attempt)
    with life.unchanged("a raise that is refused"):
        trial.refused(
            "the fence would sink", StaleAttemptError, lambda: life.raising(attempt_id(2, 2**32 - 1))
        )
    trial.ask("the fence is raised to the greatest attempt", life.raising, LARGEST)
    trial.require("the fence, of 63 bits", LARGEST, life.fence().attempt)


@promise(
    "commit-raises-the-fence",
    "`commit` and `begin_commit` raise the fence to their attempt.",
    "first of all, in their own transaction",
)
def commit_raises_the_fence(trial: StateTrial) -> None:
    for semantics in FENCED:
        life = trial.life(semantics)
        trial.require("the fence after a commit", life.commit(1, {"a": 1}).attempt, life.fence().attempt)
        trial.require("the fence after a beginning", life.begin(2).attempt, life.fence().attempt)


@promise(
    "stale-commit-is-refused",
    "An attempt that the fence has passed neither commits nor begins, and leaves nothing.",
    "demand that the fence is below the attempt: raise StaleAttemptError otherwise",
)
def stale_commit_is_refused(trial: StateTrial) -> None:
    for semantics in FENCED:
        life = trial.life(semantics)
        life.commit(1, {"a": 1})
        late = life.next(2)
        life.commit(1 if semantics is Semantics.OPAQUE else 2, {"a": 1})
        _refused_everywhere(trial, life, late, "a newer attempt of this driver has committed")
        zombie = life.next(3)
        life.raise_fence(2)
        _refused_everywhere(trial, life, zombie, "another driver has raised the fence")


def _refused_everywhere(trial: StateTrial, life: Life, attempt: TransactionAttempt, why: str) -> None:
    with life.unchanged("a stale attempt"):
        trial.refused(
            f"{why}, and {attempt} commits",
            StaleAttemptError,
            lambda: life.committing(attempt, {"a": 10, "stale": 1}),
        )
        trial.refused(
            f"{why}, and {attempt} begins",
            StaleAttemptError,
            lambda: life.beginning(attempt),
        )


@promise(
    "an-attempt-commits-once",
    "An attempt that has committed or begun does not commit or begin again.",
    "here equal is not enough: the fence must be below the attempt",
)
def an_attempt_commits_once(trial: StateTrial) -> None:
    for semantics in FENCED:
        life = trial.life(semantics)
        for used in (life.commit(1, {"a": 1}), life.begin(2)):
            with life.unchanged("a second use of an attempt"):
                trial.refused(
                    "an attempt commits again",
                    StaleAttemptError,
                    partial(life.committing, used, {"a": 1}),
                )
                trial.refused(
                    "an attempt begins again",
                    StaleAttemptError,
                    partial(life.beginning, used),
                )


@promise(
    "stale-write-is-refused",
    "A task of an attempt that the fence has passed writes nothing.",
    "demand that the fence is equal to the attempt, in the transaction that writes: raise StaleAttemptError",
)
def stale_write_is_refused(trial: StateTrial) -> None:
    for semantics in FENCED:
        life = trial.life(semantics)
        first = life.begin(1)
        life.write(first, {"a": 1})
        second = life.begin(1)
        with life.unchanged("a stale task"):
            trial.refused(
                "its driver has begun again and a task of the old attempt writes",
                StaleAttemptError,
                partial(life.writing, first, {"a": 5, "b": 5}),
            )
        life.raise_fence(2)
        with life.unchanged("a stale task"):
            trial.refused(
                "another driver has taken over and a task of the old one writes",
                StaleAttemptError,
                partial(life.writing, second, {"a": 5}),
            )


@promise(
    "stale-end-is-refused",
    "A commit that the fence has passed does not end.",
    "`end_commit` demands an equal fence as `write` does",
)
def stale_end_is_refused(trial: StateTrial) -> None:
    for semantics in FENCED:
        life = trial.life(semantics)
        first = life.begin(1)
        second = life.begin(1)
        with life.unchanged("an end that is refused"):
            trial.refused(
                "a newer attempt has begun and the old one ends",
                StaleAttemptError,
                partial(life.ending, first, {"a": 5}),
            )
        life.raise_fence(2)
        with life.unchanged("an end that is refused"):
            trial.refused(
                "another driver has taken over and the old one ends",
                StaleAttemptError,
                partial(life.ending, second, {"a": 5}),
            )


@promise(
    "a-write-needs-a-beginning",
    "What was not begun is not written: a fence below the attempt means that the store lost the beginning.",
    "equal means equal: raise CorruptStateError when the fence is lower",
)
def a_write_needs_a_beginning(trial: StateTrial) -> None:
    for semantics in FENCED:
        life = trial.life(semantics)
        life.commit(1, {"a": 1})
        never = life.next(2)
        with life.unchanged("a write without a beginning"):
            trial.refused(
                "a task writes for an attempt that has not begun",
                CorruptStateError,
                partial(life.writing, never, {"a": 5}),
            )
            trial.refused(
                "an attempt ends that has not begun",
                CorruptStateError,
                partial(life.ending, never, {"a": 5}),
            )


# --- waiting -----------------------------------------------------------------------------------------------


def _raise_beside(
    trial: StateTrial, life: Life, point: str, run: Callable[..., None], *arguments: Any
) -> None:
    """Hold a transaction open at its point, raise the fence meanwhile, and let both end."""
    inside, go_on = threading.Event(), threading.Event()
    seen: list[str] = []

    def hold(found: str) -> None:
        seen.append(found)
        inside.set()
        go_on.wait(trial.terms.deadline_seconds)

    before = life.everything()
    open_one = trial.beside(partial(run, *arguments, reached=hold))
    try:
        if not inside.wait(trial.terms.deadline_seconds):
            trial.fail(
                f"a call of reached({point!r})", f"none; the call gave {open_one.outcome('it')!r:.200}"
            )
        during = life.everything()
        raiser = life.at(trial.open())
        impatient = trial.beside(
            lambda: raiser.raising(attempt_id(2, 0), lock_timeout_seconds=trial.terms.lock_seconds)
        )
        found = impatient.outcome("a raise that waits for an open transaction, up to its lock timeout")
        raised = None if found is not None else life.everything()
    finally:
        go_on.set()
    ended = open_one.outcome("the transaction that was held open")
    trial.require("the calls of reached", [point], seen)
    trial.require("what others see of a transaction that is open", before, during)
    if found is None:
        # Raised in spite of it: then the open one must not have written anything since.
        trial.require(
            f"what was stored when the raise had returned, after the older transaction gave {ended!r:.200}",
            raised,
            life.everything(),
        )
        return
    if not isinstance(found, FenceLockedError):
        trial.fail("FenceLockedError for a raise that waits in vain", f"{type(found).__name__}: {found}")
    if ended is not None:
        trial.fail("a transaction that nobody disturbed ends well", f"{type(ended).__name__}: {ended}")
    trial.ask("the fence is raised when nothing is open", raiser.raising, attempt_id(2, 0))


@promise(
    "raise-waits-for-commit",
    "When a raise of the fence has returned, no commit of an older attempt can still take effect.",
    "let the raise wait for the commit's lock, up to lock_timeout_seconds: raise FenceLockedError",
)
def raise_waits_for_commit(trial: StateTrial) -> None:
    for semantics in FENCED:
        life = trial.life(semantics)
        _raise_beside(trial, life, INSIDE_COMMIT, life.committing, life.next(1), {"a": 1})


@promise(
    "raise-waits-for-beginning",
    "When a raise of the fence has returned, no older attempt can still begin.",
    "as for a commit",
)
def raise_waits_for_beginning(trial: StateTrial) -> None:
    life = trial.life()
    _raise_beside(trial, life, INSIDE_BEGIN, life.beginning, life.next(1))


@promise(
    "raise-waits-for-end",
    "When a raise of the fence has returned, no commit of an older attempt can still end.",
    "`end_commit` holds the fence, shared or alone, until it is over; a plain read of it is not enough",
)
def raise_waits_for_end(trial: StateTrial) -> None:
    for semantics in FENCED:
        life = trial.life(semantics)
        _raise_beside(trial, life, INSIDE_COMMIT, life.ending, life.begin(1), {"a": 1})


@promise(
    "raise-waits-for-writes",
    "When a raise of the fence has returned, no task of an older attempt can still write.",
    "`write` holds the fence, shared with other tasks, until it is over; looking at it first and writing "
    "then leaves a gap",
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
        writing.wait(trial.terms.deadline_seconds)
        life.raise_fence(life.epoch + 1)
        then = life.values()
        found = running.outcome("a task that writes until the fence stops it")
        if found != len(keys) and not isinstance(found, StaleAttemptError):
            trial.fail("StaleAttemptError for a task that the fence stops", f"{found!r:.300}")
        trial.require("the values when the raise had returned, unchanged since", then, life.values())


def _write_each(
    task: Life, under: TransactionAttempt, keys: list[str], writing: threading.Event, noted: int
) -> int:
    """One write for each key; `writing` is set before the one that is to be noted."""
    for number, key in enumerate(keys):
        if number == noted:
            writing.set()
        task.writing(under, {key: 1})
    return len(keys)


@promise(
    "topologies-do-not-disturb",
    "Two topologies in one store commit side by side; neither changes the other's fence, ledger or state.",
    "key everything by topology; a lock of the whole store is allowed, a deadlock is not",
)
def topologies_do_not_disturb(trial: StateTrial) -> None:
    lives = [trial.life() for _ in range(2)]

    def run(life: Life) -> None:
        mine = life.at(trial.terms.open())
        try:
            for txid in range(1, 11):
                mine.committing(mine.next(txid), {"a": 1, f"k{txid}": 1})
        finally:
            mine.store.close()

    for one in [trial.beside(partial(run, life)) for life in lives]:
        found = one.outcome("ten commits beside another topology's")
        if found is not None:
            trial.fail("ten commits beside another topology's", f"{type(found).__name__}: {found}")
    for life in lives:
        trial.require("the values", {"a": 10, **{f"k{n}": 1 for n in range(1, 11)}}, life.values())
        trial.require("the fence", life.batch(10).attempt, life.fence().attempt)


CHECKS = (
    fence_only_grows,
    commit_raises_the_fence,
    stale_commit_is_refused,
    an_attempt_commits_once,
    stale_write_is_refused,
    stale_end_is_refused,
    a_write_needs_a_beginning,
    raise_waits_for_commit,
    raise_waits_for_beginning,
    raise_waits_for_end,
    raise_waits_for_writes,
    topologies_do_not_disturb,
)
