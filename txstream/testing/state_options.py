"""Checks of what a store may leave out: migrating, pruning, joining late, showing its state."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from txstream.api.errors import StaleAttemptError, StateTableError, UsageError
from txstream.semantics import Semantics
from txstream.testing.spout_harness import NotApplicableError
from txstream.testing.state_life import Life, table
from txstream.testing.state_trial import Beside, StateTrial, promise
from txstream.transaction import Txid, attempt_id

# --- the ledger --------------------------------------------------------------------------------------------


@promise(
    "pruning-keeps-the-end",
    "`prune` deletes the oldest rows of the ledger, without a gap and at most `rows` at once, and never "
    "the last two committed ones or anything after them.",
    "go from the oldest row on, and stop at the first that stays",
)
def pruning_keeps_the_end(trial: StateTrial) -> None:
    life, other = trial.life(), trial.life()
    other.commit(1, {"a": 1})
    other.commit(2, {"a": 1})
    for txid in range(1, 7):
        life.commit(txid, {"a": 1})
    life.begin(7)

    def prune(rows: int, newest: int | None = None, before: datetime | None = None) -> int:
        call = partial(life.store.prune, life.topology, committed_before=before, newest=newest, rows=rows)
        return trial.ask("the ledger is pruned", call)

    def require(what: str, expected: list[int]) -> None:
        rows = trial.ask("the ledger is read", life.store.batches, life.topology)
        trial.require(f"the txids {what}", expected, [row.txid for row in rows])
        oldest = trial.ask("the oldest txid is asked", life.store.oldest_txid, life.topology)
        trial.require(f"the oldest txid {what}", expected[0], oldest)

    if prune(2, newest=3) == 0:
        require("of a ledger that keeps everything", [1, 2, 3, 4, 5, 6, 7])
        raise NotApplicableError("the store keeps its whole ledger (prune gives 0)")
    require("when two may go", [3, 4, 5, 6, 7])
    trial.require("the rows pruned", 1, prune(100, newest=3))
    trial.require("the rows pruned when none may go", 0, prune(100, newest=3))
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    trial.require("the rows pruned that are too young", 0, prune(100, before=long_ago))
    require("when three are to be kept", [4, 5, 6, 7])
    trial.require("the rows pruned", 1, prune(100, before=datetime(9999, 1, 1, tzinfo=UTC)))
    require("when all are old", [5, 6, 7])
    trial.require("the rows pruned", 0, prune(100, newest=0))
    require("in the end", [5, 6, 7])
    rows = trial.ask("the ledger is read", life.store.batches, other.topology)
    trial.require("another topology's txids", [1, 2], [row.txid for row in rows])


@promise(
    "a-ledger-may-begin-late",
    "`begin_ledger` puts the last batch of a topology that has run elsewhere in the place of the ledger, "
    "under the fence, and may come again; batches go on from there.",
    "demand an equal fence, delete, write one row: in one transaction",
)
def a_ledger_may_begin_late(trial: StateTrial) -> None:
    elsewhere, life = trial.life(), trial.life()
    elsewhere.commit(3, {"a": 1}, details={"path": "driver"})
    last = replace(elsewhere.batch(3), topology=life.topology)
    life.epoch = 2
    fence = life.raise_fence(2)
    begin = life.states().begin_ledger
    found = trial.outcome("a ledger begins late", partial(begin, fence, last))
    if isinstance(found, StateTableError):
        raise NotApplicableError("the store takes no topology that has run elsewhere (begin_ledger refuses)")
    trial.require("the answer of begin_ledger", None, found)
    trial.ask("it begins again", begin, fence, last)
    rows = trial.ask("the ledger is read", life.store.batches, life.topology)
    trial.require("the ledger", [last], rows)
    with life.unchanged("a leader that has been succeeded"):
        life.raise_fence(2)
        trial.refused(
            "an older leader begins the ledger",
            StaleAttemptError,
            partial(begin, attempt_id(1, 0), replace(last, txid=Txid(2))),
        )
    life.commit(4, {"a": 1})
    rows = trial.ask("the ledger is read", life.store.batches, life.topology)
    trial.require("the txids after the next commit", [3, 4], [row.txid for row in rows])


# --- a grown table -----------------------------------------------------------------------------------------


def _grown(trial: StateTrial, semantics: Semantics) -> Life:
    """A life with rows that have a prev and rows that have none, joined with a column more."""
    life = trial.life(semantics)
    life.commit(1, {"a": 1, "b": 1})
    life.commit(2, {"b": 1, "c": 1})
    life.spec = table(life.spec.state.table, semantics, value="n bigint, m bigint", defaults={"m": 7})
    found = trial.outcome("it joins with a column more", partial(life.joining, first_run=False))
    if isinstance(found, StateTableError):
        raise NotApplicableError("the store refuses a table that has grown")
    trial.require("the answer of join", None, found)
    life.epoch = 2
    life.raise_fence(2)
    return life


@promise(
    "a-grown-table-is-migrated",
    "A table that was declared with value columns more gets them by `migrate`, with their defaults: every "
    "row, and the value before its batch; rows that a batch created stay marked as such.",
    "under the fence; the new column's prev is null exactly where the row's txid created it",
)
def a_grown_table_is_migrated(trial: StateTrial) -> None:
    for semantics in Semantics:
        life = _grown(trial, semantics)
        migrate = life.states().migrate
        if semantics is not Semantics.NON_TRANSACTIONAL:
            trial.refused("an older leader migrates", StaleAttemptError, partial(migrate, attempt_id(1, 99)))
        fence = life.fence().attempt
        if semantics is Semantics.TRANSACTIONAL:
            trial.refused(
                "txid 2 is committed in part and would not be written again",
                StateTableError,
                partial(migrate, fence, unfinished=Txid(2)),
            )
        done = trial.ask("it is migrated", migrate, fence)
        if not done or not all(isinstance(sentence, str) for sentence in done):
            trial.fail("a sentence for what was done", f"{done!r:.300}")
        trial.require("what a second migration does", [], trial.ask("it is migrated again", migrate, fence))
        life.join(first_run=False)
        expected = {"a": (1, 7), "b": (2, 7), "c": (1, 7)}
        trial.require("the values", expected, life.values())
        if semantics is Semantics.OPAQUE:
            trial.require("the values before txid 2", {"a": (1, 7), "b": (1, 7)}, life.values(2))
            life.commit(2, {"b": (5, 1)})
            trial.require("the values after a replay", {"a": (1, 7), "b": (6, 8)}, life.values())
        life.commit(3, {"a": (1, 3), "d": (1, 3)})
        expected = {**life.values(), "a": (2, 10), "d": (1, 3)}
        trial.require("the values after the next batch", expected, life.values())


# --- for people --------------------------------------------------------------------------------------------


@promise(
    "state-can-be-shown",
    "`read_state` shows tables, rows and counts as of the last committed batch, all of one moment: what an "
    "open batch has written is shown as it was before.",
    "one transaction that only reads",
)
def state_can_be_shown(trial: StateTrial) -> None:
    life = trial.life()
    life.commit(1, {"a": 5, "b": 2})
    life.commit(2, {"b": 7, "c": 1})
    name = life.spec.state.table

    def look(state: Any) -> dict[str, Any]:
        found = state.find(name, ["b"])
        return {
            "tables": [(t.name, t.semantics, t.owner) for t in state.tables()],
            "as_of": (state.as_of, state.unfinished, state.last.txid),
            "count": state.count(name),
            "top": [(row.key, row.value) for row in state.top(name, 2)],
            "b": None if found is None else (found.value, found.unfinished),
            "missing": state.find(name, ["nobody"]),
            "written": [(row.key["word"], row.prev) for row in state.written_by(name, 2)],
            "written count": state.count_written_by(name, 2),
        }

    def shown() -> dict[str, Any]:
        with life.store.read_state(life.topology) as state:
            return look(state)

    found = trial.outcome("its state is shown", shown)
    if isinstance(found, UsageError):
        raise NotApplicableError("the store does not show its state (read_state)")
    if isinstance(found, Exception):
        trial.fail("the state of a topology", f"{type(found).__name__}: {found}")
    expected = {
        "tables": [(name, Semantics.OPAQUE, life.uuid)],
        "as_of": (2, None, 2),
        "count": 3,
        "top": [({"word": "b"}, {"n": 9}), ({"word": "a"}, {"n": 5})],
        "b": ({"n": 9}, False),
        "missing": None,
        "written": [("b", {"n": 2}), ("c", None)],
        "written count": 2,
    }
    _require_parts(trial, "of a state", expected, found)
    under = life.begin(3)
    life.write(under, {"b": 100, "d": 100})
    found = trial.ask("its state is shown during a commit", shown)
    expected |= {"as_of": (2, 3, 3), "b": ({"n": 9}, True), "written": [("c", None)], "written count": 1}
    _require_parts(trial, "of a state while txid 3 is committed", expected, found)

    life.end(under, keys=2)
    later = life.at(trial.open())

    def shown_twice() -> tuple[dict[str, Any], dict[str, Any], Beside]:
        with life.store.read_state(life.topology) as state:
            first = look(state)
            beside = trial.beside(lambda: later.committing(life.next(4), {"b": 1, "e": 1}))
            beside.ended(trial.terms.lock_seconds)  # it may have to wait until this has been read
            return first, look(state), beside

    before, after, beside = trial.ask("its state is shown twice", shown_twice)
    trial.require("the answer to a commit beside it", None, beside.outcome("a commit beside it"))
    _require_parts(trial, "of a state that is shown while txid 4 is committed", before, after)

    def of_another() -> None:
        with life.store.read_state(life.topology) as state:
            state.count(f"no_{name}")

    trial.refused("a table is shown that is not the topology's", StateTableError, of_another)


def _require_parts(trial: StateTrial, what: str, expected: dict[str, Any], found: dict[str, Any]) -> None:
    for part, value in expected.items():
        trial.require(f"{part} {what}", value, found[part])


CHECKS = (
    pruning_keeps_the_end,
    a_ledger_may_begin_late,
    a_grown_table_is_migrated,
    state_can_be_shown,
)
