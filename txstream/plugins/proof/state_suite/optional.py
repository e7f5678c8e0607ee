"""Promises about what a store need not have: migrating, pruning, joining late, showing its state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from txstream.api.reducers import Max, Put, Sum
from txstream.api.state import GONE, SqlState, SqlTable
from txstream.core.errors import StaleAttemptError, StateTableError, UsageError
from txstream.core.semantics import Semantics
from txstream.core.transaction import TransactionAttempt, Txid, attempt_id
from txstream.plugins.proof.promises import NotApplicableError, Promises, described
from txstream.plugins.proof.state_suite.life import Life, table
from txstream.plugins.proof.state_suite.trial import Beside, StateCheck, StateTrial, each
from txstream.state.records import TableSpec

CHECKS = Promises(StateCheck)

# --- the ledger --------------------------------------------------------------------------------------------


@CHECKS.promise(
    "pruning-keeps-the-end",
    "`prune` deletes the oldest ledger rows without leaving a gap, at most `rows` at once, and never the "
    "last two committed rows or anything after them.",
    "start at the oldest row, and stop at the first one that stays",
)
@each(*Semantics)
def pruning_keeps_the_end(life: Life) -> None:
    trial = life.trial
    other = trial.life(life.semantics)
    for txid in (1, 2):
        other.commit(txid, {"a": 1})
    for txid in range(1, 7):
        life.commit(txid, {"a": 1})
    rest = [5, 6] if life.semantics is Semantics.NON_TRANSACTIONAL else [5, 6, 7]
    life.begin(7)  # with a fence, this adds a row to the ledger

    def require(
        what: str, gone: int, left: list[int], rows: int = 100, newest: int | None = None, before: int = 2020
    ) -> None:
        found = trial.ask(
            "the ledger is pruned",
            life.store.prune,
            life.topology,
            committed_before=datetime(before, 1, 1, tzinfo=UTC),
            newest=newest,
            rows=rows,
        )
        if not found and gone and rows == 2:
            gone, left = 0, [1, 2, 3, 4, *rest]
        trial.require(f"the rows pruned {what}", gone, found)
        trial.require(f"the txids {what}", left, [row.txid for row in life.ledger()])
        oldest = trial.ask("the oldest txid is looked up", life.store.oldest_txid, life.topology)
        trial.require(f"the oldest txid {what}", left[0], oldest)
        if left[0] == 1:
            raise NotApplicableError("the store keeps its whole ledger (prune returns 0)")

    require("when two may go at once", 2, [3, 4, *rest], rows=2, newest=3)
    for gone in (1, 0):
        require("when one more than the last two is to be kept", gone, [4, *rest], newest=3)
    require("when none is old", 0, [4, *rest])
    require("when all are old", 1, rest, before=9999)
    require("when none is to be kept", 0, rest, newest=0)
    trial.require("another topology's txids", [1, 2], [row.txid for row in other.ledger()])
    life.commit(6, {"a": 5})
    now = {"a": 10} if life.semantics is Semantics.OPAQUE else {"a": 6} if len(rest) > 2 else {"a": 11}
    life.holds(now, "after a replay of the last batch")


@CHECKS.promise(
    "a-ledger-may-begin-late",
    "`begin_ledger` checks the fence and replaces the ledger with the last batch of a topology that ran "
    "elsewhere; it may be repeated, and batches continue from there.",
    "in one transaction: demand an equal fence, delete the rows, write one row",
)
def a_ledger_may_begin_late(trial: StateTrial) -> None:
    elsewhere, life = trial.life(), trial.life()
    for txid in (1, 2):
        elsewhere.commit(txid)
    elsewhere.commit(3, {"a": 1}, details={"path": "driver"})
    last = replace(elsewhere.batch(3), topology=life.topology)
    life.epoch = 2
    fence = life.raise_fence(2)
    begin = life.states.begin_ledger
    found = trial.outcome("begin_ledger() is called", begin, fence, last)
    if isinstance(found, StateTableError):
        raise NotApplicableError("the store takes no topology that has run elsewhere (begin_ledger refuses)")
    trial.require("the answer of begin_ledger", None, found)
    trial.ask("begin_ledger() is called again", begin, fence, last)
    trial.require("the ledger", [last], life.ledger())
    older = attempt_id(1, 0), replace(last, txid=Txid(2))
    life.refuses("an older leader begins the ledger", StaleAttemptError, begin, *older)
    life.commit(4, {"a": 1})
    trial.require("the txids after the next commit", [3, 4], [row.txid for row in life.ledger()])


# --- a grown table -----------------------------------------------------------------------------------------


@CHECKS.promise(
    "a-grown-table-is-migrated",
    "`migrate` adds newly declared value columns to a table, with their defaults in every row and in the "
    "value before its batch; rows that a batch created stay marked as such.",
    "work under the fence; the new column's prev is null exactly where the row's txid created the row",
)
@each(*Semantics)
def a_grown_table_is_migrated(life: Life) -> None:
    trial, semantics = life.trial, life.semantics
    life.commit(1, {"a": 1, "b": 1})
    life.commit(2, {"b": 1, "c": 1})
    grown = table(life.spec.state.table, semantics, value="n bigint, m bigint", defaults={"m": 7})
    life.tables = (grown,)
    found = trial.outcome("the topology joins with one more column", life.joining, first_run=False)
    if isinstance(found, StateTableError):
        raise NotApplicableError("the store refuses a table that has grown")
    trial.require("the answer of join", None, found)
    life.epoch = 2
    fence = life.raise_fence(2)
    migrate = life.states.migrate
    if semantics is not Semantics.NON_TRANSACTIONAL:
        trial.refused("an older leader migrates", StaleAttemptError, migrate, attempt_id(1, 99))
    if semantics is Semantics.TRANSACTIONAL:
        what = "txid 2 is committed in part and would not be written again"
        trial.refused(what, StateTableError, migrate, fence, unfinished=Txid(2))
    unfinished = Txid(2) if semantics is Semantics.OPAQUE else None
    done = trial.ask("the table is migrated", migrate, fence, unfinished=unfinished)
    if not done or not all(isinstance(sentence, str) for sentence in done):
        trial.fail("a sentence for each change", f"{done!r:.300}")
    trial.require("what a second migration does", [], trial.ask("it is migrated again", migrate, fence))
    life.join(first_run=False)
    life.holds({"a": (1, 7), "b": (2, 7), "c": (1, 7)}, "after the migration")
    if semantics is Semantics.OPAQUE:
        trial.require("the values before txid 2", {"a": (1, 7), "b": (1, 7)}, life.values(2))
        life.commit(2, {"b": (5, 1)})
        life.holds({"a": (1, 7), "b": (6, 8)}, "after a replay")
    life.commit(3, {"a": (1, 3), "d": (1, 3)})
    life.holds({**life.values(), "a": (2, 10), "d": (1, 3)}, "after the next batch")


# --- rows that expire --------------------------------------------------------------------------------------


@CHECKS.promise(
    "expired-rows-are-removed",
    "A commit, or its end, removes the rows whose time lies before the horizon that it is given, and none of "
    "another table, of that very time or later; if it is undone, nothing is removed.",
    "compare the values of one column with the horizon, in the transaction that writes `committed`",
)
@each(Semantics.OPAQUE, Semantics.TRANSACTIONAL)
def expired_rows_are_removed(life: Life) -> None:
    trial = life.trial
    if not life.store.removes_expired:
        raise NotApplicableError("the store removes no rows by their age (removes_expired)")
    moment = datetime(2026, 3, 1, 12, tzinfo=UTC)
    second, day = timedelta(seconds=1), timedelta(days=1)
    for data_type, first, step in (
        ("timestamp", moment, second),
        ("timestamp_ntz", moment.replace(tzinfo=None), second),
        ("date", moment.date(), day),
    ):
        name = f"k_{data_type}_{trial.name()}"
        kept = table(name, life.semantics, key=f"at {data_type}, word string", keep="1h")
        beside = table(f"b{name}", life.semantics, key=f"at {data_type}, word string", keep="1h")
        one = trial.stranger(life.semantics, (kept, beside)).join()
        old, older, now, new = ((first + number * step, "a") for number in (-1, -2, 0, 1))
        rows = {old: 1, older: 2, now: 3, new: 4, (old[0], "b"): 5}
        one.commit(1, rows, {old: 1})
        one.commit(2, {new: 1})
        one.holds({**rows, new: 5}, "while nothing has expired")
        horizons = {name: int(moment.timestamp())}
        undone = one.next(3)
        trial.outcome(
            "a commit is rehearsed", one.states.rehearse, one.whole(undone, {new: 1}, horizons=horizons)
        )
        one.holds({**rows, new: 5}, "after a commit that was undone")
        one.commit(3, {new: 1}, horizons=horizons)
        one.holds({now: 3, new: 6}, f"once rows by a {data_type} have expired")
        under = one.begin(4)
        one.write(under, {now: 1})
        end = one.whole(under, horizons={name: int((moment + step).timestamp())})
        trial.ask("a commit ends", one.states.end_commit, end, keys=1)
        one.holds({new: 6}, "once more have expired, at the end of a commit by executors")
        one.holds({old: 1}, "in a table without a horizon", table=1)


# --- rows that are marked ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Due(SqlState):
    marks: ClassVar[tuple[str, str]] = ("done", "due")

    def marks_until(self, horizon: Any) -> datetime | None:
        return None if horizon is None else _NOON + timedelta(hours=horizon["hour"])


_NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@CHECKS.promise(
    "due-rows-are-marked",
    "A commit, or its end, sets the flag of all rows whose time is not after the one that it is given, those "
    "that it has just written too; its txid and the values of before are those of a write, so an undone "
    "attempt has marked nothing.",
    "mark behind the last write, as an update of values: keep `prev` where the row has the txid already",
)
@each(*Semantics)
def due_rows_are_marked(life: Life) -> None:
    trial, semantics = life.trial, life.semantics
    if not life.store.marks_rows:
        raise NotApplicableError("the store marks no rows (marks_rows)")
    name = f"m_{trial.name()}"
    state = _Due(name, key="word string", value="n bigint, due timestamp, done boolean")
    reducers = {"n": Sum("n"), "due": Max("due"), "done": Max("done")}
    one = trial.stranger(semantics, (TableSpec(state, semantics, reducers),)).join()

    def row(n: int, hour: float, *, done: bool = False) -> tuple[Any, ...]:
        return n, _NOON + timedelta(hours=hour), done

    def given(hour: int) -> dict[str, Any]:
        return {"metas": {"partitions": {}, "horizons": {name: {"hour": hour}}}}

    def end(attempt: TransactionAttempt, hour: int) -> None:
        trial.ask("a commit ends", one.states.end_commit, one.whole(attempt, **given(hour)), keys=1)

    one.commit(1, {"a": row(1, 1), "b": row(1, 2), "c": row(1, 3)})
    one.commit(2, {"b": row(4, 2), "d": row(1, 2.001)}, **given(2))
    there = {
        "a": row(1, 1, done=True),
        "b": row(5, 2, done=True),
        "c": row(1, 3),
        "d": row(1, 2.001),
    }
    one.holds(there, "once two rows were due")
    with life.store.read_state(one.topology) as reading:
        for after, until, wanted in ((None, 2, ["a", "b"]), (1, 2, ["b"]), (1, 1.999, []), (2, 9, [])):
            limits: list[Any] = [
                None if hour is None else _NOON + timedelta(hours=hour) for hour in (after, until)
            ]
            found = [row.key["word"] for row in reading.marked(name, "done", "due", *limits)]
            trial.require(f"the marked rows after {after} until {until}", wanted, sorted(found))
    under = one.begin(3)
    share = {"a": row(2, 1), "c": row(1, 3)}
    one.write(under, share)
    end(under, 3)
    marked = {**there, "a": row(3, 1, done=True), "c": row(2, 3, done=True), "d": row(1, 2.001, done=True)}
    one.holds(marked, "after the end of a commit by executors")
    if semantics is not Semantics.NON_TRANSACTIONAL:
        one.write(under, share)
        one.holds(marked, "once a task has written its share again, behind the end")
    if semantics is Semantics.OPAQUE:
        trial.require("the values of before", there, one.values(before=3))
        one.begin(3)
        one.holds(there, "once another attempt has begun")
        one.commit(3, {"d": row(1, 2.001)}, **given(1))
        one.holds({**there, "d": row(2, 2.001)}, "after an attempt that marks less")
    elif semantics is Semantics.TRANSACTIONAL:
        one.commit(3, share, **given(3))
        one.holds(marked, "after the same batch again")


# --- rows that are removed ---------------------------------------------------------------------------------


@CHECKS.promise(
    "removed-rows-are-hidden",
    "A row that a batch has removed is not shown, comes back as it was if the batch is undone, and is "
    "forgotten, but for key and sequence where there is one, when the next batch is committed.",
    "take the removal for a value of the row; look at `REMOVED` in reading and in `forget_removed`",
)
@each(*Semantics)
def removed_rows_are_hidden(life: Life) -> None:
    trial, semantics = life.trial, life.semantics
    if not life.store.hides_removed:
        raise NotApplicableError("the store hides no removed rows (hides_removed)")
    for sequence in (None, "n"):
        made = SqlTable(
            f"g_{sequence}_{trial.name()}".lower(),
            "n bigint",
            key="word string",
            on_conflict="replace",
            removed_by="gone",
            sequence_by=sequence,
        )
        one = trial.stranger(
            semantics, (TableSpec(made, semantics, {name: Put() for name in made.value_names}),)
        )
        one.join()

        def shows(expected: dict[str, int], when: str, here: Life = one, name: str = made.table) -> None:
            rows = trial.ask("the rows are shown", here.store.top, name, topology=here.topology, n=100)
            trial.require(f"the rows {when}", expected, {row["word"]: row["n"] for row in rows})

        gone = {"a": (3, True), "c": (3, True)}
        one.commit(1, {"a": (1, False), "b": (1, False)})
        one.commit(2, {"a": (2, False)})
        one.commit(3, gone)
        shows({"b": 1}, "once one is removed")
        if semantics is Semantics.OPAQUE:
            one.commit(3, {"b": (4, False)})
            shows({"a": 2, "b": 4}, "once its removal is undone")
            under = one.begin(3)
            one.write(under, gone)
            shows({"b": 1}, "while its removal is committed by executors")
            one.end(under, keys=2)
        one.commit(4, {"c": (2, False)})
        shows({"b": 1} if sequence else {"b": 1, "c": 2}, "after an older record of one that was removed")
        one.commit(5, {"a": (3, False)})
        shows({"a": 3, "b": 1} if sequence else {"a": 3, "b": 1, "c": 2}, "once it is there again")


# --- rows that leave ---------------------------------------------------------------------------------------


@CHECKS.promise(
    "changes-are-kept",
    "What each batch has left of the rows that it changed, removed ones too, is copied when it is committed, "
    "and stays when later ones change them; an undone attempt has copied nothing.",
    "copy with each write, or behind the last one and the marks, in the transaction that writes `committed`",
)
@each(Semantics.TRANSACTIONAL, Semantics.OPAQUE)
def changes_are_kept(life: Life) -> None:
    trial, semantics = life.trial, life.semantics
    if not life.store.keeps_changes:
        raise NotApplicableError("the store keeps no changes (keeps_changes)")
    made = SqlTable(
        f"c_{trial.name()}",
        "n bigint",
        key="word string",
        on_conflict="replace",
        removed_by="gone" if life.store.hides_removed else None,
        changes_to="elsewhere",
    )
    changes = made.changes
    assert changes is not None
    specs = [
        TableSpec(state, kept, {name: Put() for name in state.value_names})
        for state, kept in ((made, semantics), (changes, Semantics.OPAQUE))
    ]
    one = trial.stranger(semantics, tuple(specs)).join()
    flags = {False: (False,), True: (True,)} if made.removed_by else {False: (), True: ()}

    def rows(written: dict[str, tuple[int, bool]]) -> dict[str, Any]:
        return {word: (n, *flags[gone]) if flags[gone] else n for word, (n, gone) in written.items()}

    def holds(*expected: dict[str, tuple[int, bool]]) -> None:
        with one.store.read_state(one.topology) as state:
            found = [[*r.key.values(), *r.value.values()] for r in state.written_since(changes.table, 1)]
        wanted = [
            [txid, word, n, gone and made.removed_by is not None]
            for txid, written in enumerate(expected, 1)
            for word, (n, gone) in written.items()
        ]
        trial.require("the changes that are kept", sorted(wanted), sorted(found))

    first, second = {"a": (1, False), "b": (1, False)}, {"a": (2, False), "b": (1, True)}
    one.commit(1, rows(first))
    one.commit(2, rows(second))
    holds(first, second)
    third = {"a": (3, False), "c": (3, False)}
    under = one.begin(3)
    for _ in range(2):  # a task that is lost after it has written is run again
        one.write(under, rows(third))
    holds(first, second)
    one.end(under, keys=2)
    holds(first, second, third)
    again = third if semantics is Semantics.TRANSACTIONAL else {"c": (4, False)}
    one.begin(3)
    holds(first, second)
    one.commit(3, rows(again))
    holds(first, second, again)


class _Kept:
    """A place for changes that are what rows were before."""

    keeps_versions = True


@CHECKS.promise(
    "versions-are-kept",
    "If a table keeps versions, a row's copy is what it was before the batch, or says that there was none.",
    "copy the prev values, and not those that the batch has left (`SqlState.keeps_versions`)",
)
def versions_are_kept(trial: StateTrial) -> None:
    life = trial.life()
    if not life.store.keeps_changes:
        raise NotApplicableError("the store keeps no changes (keeps_changes)")
    gone = "gone" if life.store.hides_removed else None
    options: dict[str, Any] = {"key": "word string", "value": "n bigint", "changes_to": _Kept()}
    for made in (
        SqlState(f"v_{trial.name()}", **options),
        SqlTable(f"w_{trial.name()}", on_conflict="replace", removed_by=gone, **options),
    ):
        changes, removes = made.changes, made.removed_by is not None
        assert changes is not None
        both = [(one, {name: Put() for name in one.value_names}) for one in (made, changes)]
        specs = tuple(TableSpec(one, Semantics.OPAQUE, put) for one, put in both)
        here = trial.stranger(Semantics.OPAQUE, specs).join()
        undone: dict[str, int | None] = {"b": 1} if isinstance(made, SqlTable) else {"a": 1, "b": 1}
        expected: dict[int, dict[str, int | None]] = {}
        steps: tuple[tuple[int, dict[str, tuple[int, bool]], dict[str, int | None]], ...] = (
            (1, {"a": (1, False), "b": (1, False)}, {"a": None, "b": None}),
            (2, {"a": (2, False), "b": (2, True)}, {"a": 1, "b": 1}),
            (2, {"b": (3, True)}, undone),
            (3, {"b": (4, False), "c": (1, False)}, {"b": None if removes else 3, "c": None}),
        )
        for txid, written, versions in steps:
            here.commit(txid, {word: row if removes else row[0] for word, row in written.items()})
            expected[txid] = versions
            found: dict[int, dict[str, int | None]] = {}
            with here.store.read_state(here.topology) as reading:
                for row in reading.written_since(changes.table, 1):
                    value = None if row.value[GONE] else row.value["n"]
                    found.setdefault(row.txid or 0, {})[row.key["word"]] = value
            trial.require("the versions that are kept, by txid", expected, found)


# --- for display -------------------------------------------------------------------------------------------


@CHECKS.promise(
    "state-can-be-shown",
    "`read_state` shows tables, rows and counts of one moment, as of the last committed batch: what an open "
    "batch has written is shown as it was before.",
    "use one read-only transaction",
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

    found = trial.outcome("the state is shown", shown)
    if isinstance(found, UsageError):
        raise NotApplicableError("the store does not show its state (read_state)")
    if isinstance(found, Exception):
        trial.fail("the state of a topology", described(found))
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
    found = trial.ask("the state is shown during a commit", shown)
    expected |= {"as_of": (2, 3, 3), "b": ({"n": 9}, True), "written": [("c", None)], "written count": 1}
    _require_parts(trial, "of a state while txid 3 is committed", expected, found)

    life.end(under, keys=2)
    later = life.at(trial.open())

    def shown_twice() -> tuple[dict[str, Any], dict[str, Any], Beside]:
        with life.store.read_state(life.topology) as state:
            first = look(state)
            beside = trial.beside(lambda: later.committing(life.next(4), {"b": 1, "e": 1}))
            beside.ended(trial.terms.lock_seconds)  # the writer may have to wait for this reader
            return first, look(state), beside

    before, after, beside = trial.ask("the state is shown twice", shown_twice)
    trial.require("the outcome of a commit beside it", None, beside.outcome("a commit beside it"))
    _require_parts(trial, "of a state that is shown while txid 4 is committed", before, after)

    def count(other: str) -> None:
        with life.store.read_state(life.topology) as state:
            state.count(other)

    for other in (f"no_{name}", trial.life().spec.state.table):
        trial.refused("a table is shown that the topology does not own", StateTableError, count, other)


def _require_parts(trial: StateTrial, what: str, expected: dict[str, Any], found: dict[str, Any]) -> None:
    for part, value in expected.items():
        trial.require(f"{part} {what}", value, found[part])
