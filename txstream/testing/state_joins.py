"""Checks of how a topology comes into a store, and leaves it."""

from __future__ import annotations

from functools import partial
from typing import Any

from txstream.api.errors import (
    CorruptStateError,
    IdentityMismatchError,
    ProgressMismatchError,
    StaleAttemptError,
    StateTableError,
)
from txstream.semantics import Semantics
from txstream.testing.state_life import table
from txstream.testing.state_trial import FENCED, StateTrial, promise
from txstream.transaction import attempt_id

# --- an opened store ---------------------------------------------------------------------------------------


@promise(
    "nothing-known-is-no-error",
    "A store that a topology has not been run on answers that there is nothing, and has nothing to delete.",
    "answer None and empty lists; do not create anything by looking",
)
def nothing_known_is_no_error(trial: StateTrial) -> None:
    topology, store = trial.name(), trial.store
    trial.ask("the store is checked", store.check)
    trial.ask("framework tables are ensured", store.ensure_framework_tables)
    trial.require("the fence", None, trial.ask("a fence is read", store.read_fence, topology))
    trial.require("the ledger", [], trial.ask("a ledger is read", store.batches, topology))
    trial.require("txid 1", None, trial.ask("a batch is looked up", store.batch, topology, 1))
    trial.require("the last batch", None, trial.ask("the last batch is asked", store.last_batch, topology))
    deleted = trial.ask("it is deleted", lambda: store.delete(topology, drop_state=True))
    trial.require("the tables dropped", [], deleted)


@promise(
    "openings-are-one-store",
    "What was committed through one opening is there for every other, also after `close`; a closed object "
    "can be used again.",
    "keep nothing in the object but connections and what can be read again",
)
def openings_are_one_store(trial: StateTrial) -> None:
    life = trial.life()
    other = life.at(trial.open())
    life.commit(1, {"a": 1})
    trial.require("the values through another opening", {"a": 1}, other.values())
    other.commit(2, {"a": 1, "b": 1})
    trial.require("the values through the first one", {"a": 2, "b": 1}, life.values())
    trial.ask("it is closed", life.store.close)
    trial.require("the values after close", {"a": 2, "b": 1}, life.values())
    life.commit(3, {"a": 1})
    trial.ask("framework tables are ensured again", life.store.ensure_framework_tables)
    trial.require("the values in the end", {"a": 3, "b": 1}, other.values())


@promise(
    "url-is-shown-without-password",
    "`url_for_people` is a text, without the password that the URL may have.",
    "it is printed and logged",
)
def url_is_shown_without_password(trial: StateTrial) -> None:
    shown = getattr(trial.store, "url_for_people", None)
    if not isinstance(shown, str) or not shown:
        trial.fail("a text", f"{shown!r}")
    address = (trial.terms.url or "").partition("://")[2].partition("/")[0]
    password = address.rpartition("@")[0].partition(":")[2]
    if password and password in shown:
        trial.fail("the URL without its password", "the password is in it")


# --- joining -----------------------------------------------------------------------------------------------


@promise(
    "join-creates",
    "The first run finds a fence at 0 and an empty table; the topology is listed, by id.",
    "`join` makes fence and tables, for every semantics",
)
def join_creates(trial: StateTrial) -> None:
    lives = [trial.life(semantics) for semantics in Semantics]
    for life in lives:
        trial.require("the fence after a first join", 0, life.fence().attempt)
        trial.require("its uuid", life.uuid, life.fence().uuid)
        trial.require("the values after a first join", {}, life.read(["a", "b"]))
    listed = [row.topology for row in trial.ask("topologies are listed", trial.store.topologies)]
    mine = [name for name in listed if name in {life.topology for life in lives}]
    trial.require("the topologies, by id", sorted(life.topology for life in lives), mine)
    trial.require("all topologies, in order", sorted(listed), listed)


@promise(
    "join-again-keeps",
    "Joining again, on a first run that is repeated or on a later one, keeps state, ledger and fence.",
    "create only what is missing",
)
def join_again_keeps(trial: StateTrial) -> None:
    for semantics in Semantics:
        life = trial.life(semantics)
        life.commit(1, {"a": 1})
        life.raise_fence(2)
        with life.unchanged("joining again"):
            life.join()
            life.join(first_run=False)
            life.at(trial.open()).join(first_run=False)


@promise(
    "later-run-finds-what-was-lost",
    "A later run is refused where the topology, or one of its tables, is not there, and nothing is created.",
    "with first_run=False, missing means lost: raise ProgressMismatchError",
)
def later_run_finds_what_was_lost(trial: StateTrial) -> None:
    trial.life()  # so that the store is ready
    stranger = trial.stranger()
    trial.refused(
        "a later run finds no fence", ProgressMismatchError, lambda: stranger.joining(first_run=False)
    )
    found = trial.ask("the fence is read", trial.store.read_fence, stranger.topology)
    trial.require("the fence after a refused join", None, found)
    life = trial.life()
    life.commit(1, {"a": 1})
    more = [life.spec, table(f"t_{trial.name()}", life.semantics)]
    for _ in range(2):
        trial.refused(
            "a later run finds a table missing",
            ProgressMismatchError,
            lambda: life.joining(first_run=False, tables=more),
        )
    trial.require("the values", {"a": 1}, life.values())


@promise(
    "one-id-is-one-life",
    "The same topology id with another uuid is refused, by `join` and by everything that writes.",
    "compare the uuid of the fence: raise ProgressMismatchError",
)
def one_id_is_one_life(trial: StateTrial) -> None:
    for semantics in FENCED:
        life = trial.life(semantics)
        life.commit(1, {"a": 1})
        other = life.at(trial.store)
        other.uuid = "uuid-2"
        with life.unchanged("another life of its id"):
            for what, call in (
                ("it joins", other.joining),
                ("it raises the fence", partial(other.raising, attempt_id(9, 0))),
                ("it commits", partial(other.committing, other.next(2), {"a": 5})),
                ("it begins a commit", partial(other.beginning, other.next(2))),
            ):
                trial.refused(f"another life of the id is there and {what}", ProgressMismatchError, call)
        under = life.begin(2)
        before = life.everything()
        for what, late in (
            ("its task writes", other.writing),
            ("it ends a commit", other.ending),
        ):
            trial.refused(
                f"another life of the id is there and {what}",
                ProgressMismatchError,
                partial(late, under, {"a": 5}),
            )
        trial.require("what is stored", before, life.everything())


@promise(
    "tables-have-one-owner",
    "A table that another topology, or an earlier life of this one, has filled is refused.",
    "remember topology and uuid beside each table, also after a delete that keeps the state: raise "
    "IdentityMismatchError",
)
def tables_have_one_owner(trial: StateTrial) -> None:
    life = trial.life()
    life.commit(1, {"a": 1})
    thief = trial.stranger()
    thief.spec = life.spec
    trial.refused("another topology has the table", IdentityMismatchError, thief.joining)
    trial.require(
        "the thief's fence", None, trial.ask("a fence is read", trial.store.read_fence, thief.topology)
    )
    trial.ask("it is deleted without its state", lambda: life.store.delete(life.topology, drop_state=False))
    life.uuid = "uuid-2"
    trial.refused("an earlier life has the table", IdentityMismatchError, life.joining)
    trial.require("the values", {"a": 1}, life.values())


@promise(
    "join-is-all-or-nothing",
    "A join that is refused for one table leaves neither fence nor any other table.",
    "one transaction for all of it",
)
def join_is_all_or_nothing(trial: StateTrial) -> None:
    life = trial.life()
    stranger = trial.stranger()
    tables = [stranger.spec, life.spec]
    trial.refused(
        "one of two tables is another's", IdentityMismatchError, lambda: stranger.joining(tables=tables)
    )
    found = trial.ask("a fence is read", trial.store.read_fence, stranger.topology)
    trial.require("the fence after a refused join", None, found)
    third = trial.stranger()
    third.spec = stranger.spec
    third.join()  # the table that was not refused is free


@promise(
    "other-declaration-is-refused",
    "A table that was declared with another key, another type or another semantics is refused.",
    "keep the declaration (`SqlState.declaration`) beside the table: raise StateTableError",
)
def other_declaration_is_refused(trial: StateTrial) -> None:
    life = trial.life()
    life.commit(1, {"a": 1})
    name = life.spec.state.table
    for what, spec in (
        ("another type", table(name, value="n double")),
        ("a value column less", table(name, value="m bigint")),
        ("another key", table(name, key="word string, page string")),
        ("another semantics", table(name, Semantics.TRANSACTIONAL)),
    ):
        trial.refused(
            f"the table is declared with {what}",
            StateTableError,
            partial(life.joining, first_run=False, tables=[spec]),
        )
    trial.require("the values", {"a": 1}, life.values())


@promise(
    "identity-is-kept",
    "What `join` was given as `identity` stands in the fence until `keep_identity` gives another one; "
    "joining without one, raising and committing keep it.",
    "it is a JSON object of any depth; store it beside the fence",
)
def identity_is_kept(trial: StateTrial) -> None:
    life = trial.life()
    trial.require("the identity that nobody gave", None, life.fence().identity)
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
        trial.ask("an identity is kept", life.states().keep_identity, leader, second)


# --- leaving -----------------------------------------------------------------------------------------------


@promise(
    "delete-forgets-one-topology",
    "`delete` takes away fence and ledger of one topology, its state tables only when told, and names those; "
    "others keep theirs. Afterwards it can begin anew.",
    "delete by topology; drop the tables whose owner it is",
)
def delete_forgets_one_topology(trial: StateTrial) -> None:
    life, other = trial.life(), trial.life()
    life.commit(1, {"a": 1})
    other.commit(1, {"a": 5})
    name, table_name = life.topology, life.spec.state.table
    with other.unchanged("deleting another topology"):
        kept = trial.ask("it is deleted", lambda: life.store.delete(name, drop_state=False))
        trial.require("the tables dropped when told to keep them", [], kept)
        trial.require("the fence", None, trial.ask("a fence is read", life.store.read_fence, name))
        trial.require("the ledger", [], trial.ask("a ledger is read", life.store.batches, name))
        trial.require("the values that were to be kept", {"a": 1}, life.values())
        dropped = trial.ask("it is deleted with its state", lambda: life.store.delete(name, drop_state=True))
        trial.require("the tables dropped", [table_name], dropped)
        life.uuid = "uuid-2"
        life.join()
        trial.require("the values of the next life", {}, life.values())
        life.commit(1, {"a": 2})
        trial.require("the values of the next life", {"a": 2}, life.values())


@promise(
    "delete-of-one-life",
    "`delete` with a uuid takes away what belongs to that life, and nothing of another; with an attempt that "
    "the fence has passed it takes away nothing.",
    "compare the uuid of fence, ledger and tables, each by itself; look at the fence first, under its lock",
)
def delete_of_one_life(trial: StateTrial) -> None:
    life = trial.life()
    life.commit(1, {"a": 1})
    name = life.topology
    with life.unchanged("deleting another life"):
        dropped = trial.ask("it is deleted", lambda: life.store.delete(name, drop_state=True, uuid="uuid-2"))
        trial.require("the tables dropped of another life", [], dropped)
    older, now = attempt_id(0, 1), life.next(2).attempt
    trial.ask("the fence is raised", partial(life.raising, now))
    own = partial(life.store.delete, name, drop_state=True, uuid=life.uuid)
    with life.unchanged("deleting what another driver leads"):
        trial.refused("an older driver deletes", StaleAttemptError, partial(own, attempt=older))
    dropped = trial.ask("it is deleted", partial(own, attempt=now))
    trial.require("the tables dropped of its own life", [life.spec.state.table], dropped)
    trial.require("the fence", None, trial.ask("a fence is read", life.store.read_fence, name))


@promise(
    "lost-fence-stops-writing",
    "A topology whose fence is gone writes nothing.",
    "no fence where one must be is CorruptStateError, never a reason to make one",
)
def lost_fence_stops_writing(trial: StateTrial) -> None:
    for semantics in FENCED:
        life = trial.life(semantics)
        under = life.begin(1)
        trial.ask(
            "it is deleted without its state",
            partial(life.store.delete, life.topology, drop_state=False),
        )
        for what, call in (
            ("the fence is raised", partial(life.raising, attempt_id(9, 0))),
            ("it commits", partial(life.committing, life.next(1), {"a": 1})),
            ("it begins a commit", partial(life.beginning, life.next(1))),
            ("a task writes", partial(life.writing, under, {"a": 1})),
            ("it ends a commit", partial(life.ending, under, {"a": 1})),
        ):
            trial.refused(f"there is no fence and {what}", CorruptStateError, call)
        trial.require("the values", {}, life.values())
        ledger = trial.ask("a ledger is read", life.store.batches, life.topology)
        trial.require("the ledger", [], ledger)


CHECKS = (
    nothing_known_is_no_error,
    openings_are_one_store,
    url_is_shown_without_password,
    join_creates,
    join_again_keeps,
    later_run_finds_what_was_lost,
    one_id_is_one_life,
    tables_have_one_owner,
    join_is_all_or_nothing,
    other_declaration_is_refused,
    identity_is_kept,
    delete_forgets_one_topology,
    delete_of_one_life,
    lost_fence_stops_writing,
)
