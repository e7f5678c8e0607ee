"""Promises about an opened store, and about how a topology joins and leaves it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from txstream.core.errors import (
    CorruptStateError,
    IdentityMismatchError,
    ProgressMismatchError,
    StaleAttemptError,
    StateTableError,
)
from txstream.core.semantics import Semantics
from txstream.core.transaction import attempt_id
from txstream.plugins.proof.promises import Promises
from txstream.plugins.proof.state_suite.life import Life, table
from txstream.plugins.proof.state_suite.trial import FENCED, StateCheck, StateTrial, each

CHECKS = Promises(StateCheck)

# --- an opened store ---------------------------------------------------------------------------------------


@CHECKS.promise(
    "nothing-known-is-no-error",
    "For a topology that has never run on it, a store finds nothing and deletes nothing, without an error.",
    "return None and empty lists; do not create anything by looking",
)
def nothing_known_is_no_error(trial: StateTrial) -> None:
    life, store = trial.stranger(), trial.store
    trial.ask("the store is checked", store.check)
    trial.ask("framework tables are ensured", store.ensure_framework_tables)
    life.is_unknown("of a topology that has never run")
    name = life.topology
    trial.require("txid 1", None, trial.ask("a batch is looked up", store.batch, name, 1))
    trial.require("the last batch", None, trial.ask("the last batch is looked up", store.last_batch, name))
    trial.require("the oldest txid", None, trial.ask("the oldest txid is looked up", store.oldest_txid, name))
    pruned = trial.ask("the ledger is pruned", store.prune, name, committed_before=None, newest=1, rows=9)
    deleted = trial.ask("the topology is deleted", store.delete, name, drop_state=True)
    trial.require("the rows pruned and the tables dropped", (0, []), (pruned, deleted))


@CHECKS.promise(
    "openings-are-one-store",
    "Every opening sees what another has committed, even after `close`, and says the same `place`, if any; a "
    "closed backend can be used again.",
    "keep only connections, and what can be read again, in the object",
)
def openings_are_one_store(trial: StateTrial) -> None:
    life = trial.life()
    other = life.at(trial.open())
    life.commit(1, {"a": 1})
    other.holds({"a": 1}, "through another opening")
    places = [trial.ask("the store is asked which place it is", one.store.place) for one in (life, other)]
    trial.require("the place, through another opening", *places)
    other.commit(2, {"a": 1, "b": 1})
    life.holds({"a": 2, "b": 1}, "through the first one")
    trial.ask("the store is closed", life.store.close)
    life.holds({"a": 2, "b": 1}, "after close")
    life.commit(3, {"a": 1})
    trial.ask("framework tables are ensured again", life.store.ensure_framework_tables)
    other.holds({"a": 3, "b": 1})


@CHECKS.promise(
    "url-is-shown-without-password",
    "`display_url` is a non-empty string without the URL's password.",
    "it is printed and logged",
)
def url_is_shown_without_password(trial: StateTrial) -> None:
    shown = getattr(trial.store, "display_url", None)
    if not isinstance(shown, str) or not shown:
        trial.fail("a non-empty string", f"{shown!r}")
    address = (trial.terms.url or "").partition("://")[2].partition("/")[0]
    password = address.rpartition("@")[0].partition(":")[2]
    if password and password in shown:
        trial.fail("the URL without its password", "the password is in it")


# --- joining -----------------------------------------------------------------------------------------------


@CHECKS.promise(
    "join-creates",
    "A first join creates a fence at 0 and an empty table; the topology is then listed, in order of ids.",
    "`join` creates the fence and the tables, for every semantics",
)
def join_creates(trial: StateTrial) -> None:
    lives = [trial.life(semantics) for semantics in Semantics]
    for life in lives:
        fence = life.fence()
        trial.require("fence and uuid after a first join", (0, life.uuid), (fence.attempt, fence.uuid))
        trial.require("the values after a first join", {}, life.read(["a", "b"]))
    listed = [row.topology for row in trial.ask("topologies are listed", trial.store.topologies)]
    names = {life.topology for life in lives}
    trial.require("the topologies", names, names & set(listed))
    trial.require("all topologies, in order", sorted(listed), listed)


@CHECKS.promise(
    "join-again-keeps",
    "Joining again, in a repeated first run or a later one, keeps state, ledger and fence.",
    "create only what is missing",
)
@each(*Semantics)
def join_again_keeps(life: Life) -> None:
    life.commit(1, {"a": 1})
    life.raise_fence(2)
    with life.unchanged("joining again"):
        life.join()
        life.join(first_run=False)
        life.at(life.trial.open()).join(first_run=False)


@CHECKS.promise(
    "later-run-finds-what-was-lost",
    "A later run is refused if its topology or one of its tables is missing, and creates nothing.",
    "with first_run=False, missing means lost: raise ProgressMismatchError",
)
def later_run_finds_what_was_lost(trial: StateTrial) -> None:
    life = trial.life()
    life.commit(1, {"a": 1})
    stranger = trial.stranger()
    lost = ProgressMismatchError
    trial.refused("a later run finds no fence", lost, stranger.joining, first_run=False)
    stranger.is_unknown("after a refused join")
    more = replace(life, tables=(life.spec, *stranger.tables))
    for _ in range(2):
        life.refuses("a later run finds a table missing", lost, more.joining, first_run=False)


@CHECKS.promise(
    "one-id-is-one-life",
    "`join` and everything that writes refuse a known topology id with another uuid.",
    "compare the uuid in the fence: raise ProgressMismatchError",
)
@each(*FENCED)
def one_id_is_one_life(life: Life) -> None:
    life.commit(1, {"a": 1})
    other = replace(life, uuid="uuid-2")
    under = life.begin(2)
    _refused_everywhere(life, other, under, "another life of the id", ProgressMismatchError)


def _refused_everywhere(life: Life, other: Life, under: Any, who: str, kind: Any) -> None:
    for what, call in (
        ("raises the fence", partial(other.raising, attempt_id(9, 0))),
        ("commits", partial(other.committing, other.next(2), {"a": 5})),
        ("begins a commit", partial(other.beginning, other.next(2))),
        ("has a task that writes", partial(other.writing, under, {"a": 5})),
        ("ends a commit", partial(other.ending, under, {"a": 5})),
    ):
        life.refuses(f"{who} {what}", kind, call)
    if kind is ProgressMismatchError:
        life.refuses(f"{who} joins", kind, other.joining)


@CHECKS.promise(
    "tables-have-one-owner",
    "`join` refuses a table that belongs to another topology or to an earlier life of this one.",
    "store topology and uuid beside each table, and keep them when a delete keeps the state: raise "
    "IdentityMismatchError",
)
def tables_have_one_owner(trial: StateTrial) -> None:
    life = trial.life()
    life.commit(1, {"a": 1})
    thief = trial.stranger(tables=life.tables)
    life.refuses("another topology owns the table", IdentityMismatchError, thief.joining)
    thief.is_unknown("of the thief")
    trial.ask("the topology is deleted without its state", life.store.delete, life.topology, drop_state=False)
    life.uuid = "uuid-2"
    trial.refused("an earlier life owns the table", IdentityMismatchError, life.joining)
    life.holds({"a": 1}, "after a refused join")


@CHECKS.promise(
    "join-is-all-or-nothing",
    "A join that is refused because of one table creates neither a fence nor any other table.",
    "do all of it in one transaction",
)
def join_is_all_or_nothing(trial: StateTrial) -> None:
    life, stranger = trial.life(), trial.stranger()
    free = stranger.tables
    stranger.tables = (*free, *life.tables)
    trial.refused("one of two tables belongs to another topology", IdentityMismatchError, stranger.joining)
    stranger.is_unknown("after a refused join")
    trial.stranger(tables=free).join()  # the table that was not refused still belongs to nobody


@CHECKS.promise(
    "other-declaration-is-refused",
    "`join` refuses a table that was declared with another key, another type or another semantics.",
    "store the declaration (`SqlState.declaration`) beside the table: raise StateTableError",
)
def other_declaration_is_refused(trial: StateTrial) -> None:
    life = trial.life()
    life.commit(1, {"a": 1})
    name = life.spec.state.table
    for what, spec in (
        ("another type", table(name, value="n double")),
        ("a value column missing", table(name, value="m bigint")),
        ("another key", table(name, key="word string, page string")),
        ("another semantics", table(name, Semantics.TRANSACTIONAL)),
    ):
        joining = replace(life, tables=(spec,)).joining
        life.refuses(f"the table is declared with {what}", StateTableError, joining, first_run=False)


@CHECKS.promise(
    "identity-is-kept",
    "The fence keeps the `identity` that `join` was given until `keep_identity` replaces it; joining "
    "without one, raising the fence and committing leave it as it is.",
    "it is a JSON object of any depth; store it beside the fence",
)
def identity_is_kept(trial: StateTrial) -> None:
    life = trial.life()
    trial.require("the identity before one was given", None, life.fence().identity)
    first = {"identity": {"uuid": "ü", "tables": ["t"], "n": 1}, "databases": ["a", "b"]}
    second: dict[str, Any] = {"identity": {}, "databases": []}
    life.join(identity=first)
    for identity in (first, second):
        trial.require("the identity that was given", identity, life.fence().identity)
        life.join(first_run=False)
        life.commit(life.epoch, {"a": 1})
        leader = life.raise_fence(life.epoch + 1)
        life.epoch += 1
        trial.require("the identity afterwards", identity, life.fence().identity)
        trial.ask("keep_identity() is called", life.states.keep_identity, leader, second)


# --- leaving -----------------------------------------------------------------------------------------------


@CHECKS.promise(
    "delete-forgets-one-topology",
    "`delete` removes one topology's fence and ledger, and on request its state tables, whose names it "
    "returns; other topologies keep theirs. The topology can then start from nothing.",
    "delete by topology; drop the tables that it owns",
)
def delete_forgets_one_topology(trial: StateTrial) -> None:
    life, other = trial.life(), trial.life()
    life.commit(1, {"a": 1})
    other.commit(1, {"a": 5})
    delete, name = life.store.delete, life.topology
    with other.unchanged("deleting another topology"):
        kept = trial.ask("the topology is deleted", delete, name, drop_state=False)
        trial.require("the tables dropped when asked to keep them", [], kept)
        life.is_unknown("of a topology that was deleted")
        life.holds({"a": 1}, "that were to be kept")
        dropped = trial.ask("the topology is deleted with its state", delete, name, drop_state=True)
        trial.require("the tables dropped", [life.spec.state.table], dropped)
        life.uuid = "uuid-2"
        life.join()
        life.holds({}, "of the next life")
        life.commit(1, {"a": 2})
        life.holds({"a": 2}, "of the next life")


@CHECKS.promise(
    "delete-of-one-life",
    "`delete` with a uuid removes only what belongs to that life; with an attempt that the fence has "
    "passed, it is refused and removes nothing.",
    "compare the uuids of fence, ledger and tables separately; check the fence first, under its lock",
)
def delete_of_one_life(trial: StateTrial) -> None:
    life = trial.life()
    life.commit(1, {"a": 1})
    delete = partial(life.store.delete, life.topology, drop_state=True)
    with life.unchanged("deleting another life"):
        dropped = trial.ask("another life is deleted", delete, uuid="uuid-2")
        trial.require("the tables dropped of another life", [], dropped)
    older, now = attempt_id(0, 1), life.next(2).attempt
    trial.ask("the fence is raised", life.raising, now)
    life.refuses("an older driver deletes", StaleAttemptError, delete, uuid=life.uuid, attempt=older)
    dropped = trial.ask("the life is deleted", delete, uuid=life.uuid, attempt=now)
    trial.require("the tables dropped of its own life", [life.spec.state.table], dropped)
    life.is_unknown("of a topology that was deleted")


@CHECKS.promise(
    "lost-fence-stops-writing",
    "A topology whose fence is gone writes nothing.",
    "raise CorruptStateError when a fence is missing, and never create one in its place",
)
@each(*FENCED)
def lost_fence_stops_writing(life: Life) -> None:
    under = life.begin(1)
    life.trial.ask(
        "the topology is deleted without its state", life.store.delete, life.topology, drop_state=False
    )
    _refused_everywhere(life, life, under, "a topology without a fence", CorruptStateError)
    life.is_unknown("of a topology that was deleted")
