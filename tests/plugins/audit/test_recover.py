"""`recover`: however ZooKeeper is lost, it is rebuilt from the ledgers, and the topology goes on exactly."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.bolts import Split
from support.recovering import LINES, TRUTH, Site, topology_over
from support.tables import read_counts

from txstream import DeadLetters
from txstream.api.spouts import NonTransactionalSpout, OpaqueSpout, SourceSpout, TransactionalSpout
from txstream.core.errors import (
    CorruptStateError,
    FencedError,
    ProgressMismatchError,
    ServiceUnavailableError,
    StaleAttemptError,
    UsageError,
)
from txstream.core.fault_points import Point
from txstream.core.transaction import Epoch, TransactionAttempt, Txid, attempt_id, epoch_of
from txstream.inspect.databases import with_states_of
from txstream.inspect.records import Severity
from txstream.inspect.snapshot import DatabasePart, Depth, take
from txstream.plugins.audit.recover_from_ledgers import identity_from, recover_in
from txstream.plugins.proof.zookeeper_tree import MemoryProgress
from txstream.settings import Settings
from txstream.state import Commit, StateDatabase, TableSpec
from txstream.testing import CrashError

SEMANTICS = pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[Any]:
    made: list[Site] = []

    def make(spout: type[SourceSpout[Any]] = OpaqueSpout, databases: int = 2, **options: Any) -> Site:
        made.append(Site(tmp_path, spout, databases, **options))
        return made[-1]

    yield make
    for site in made:
        site.close()


# --- what it needs ---------------------------------------------------------------------------------


@SEMANTICS
def test_a_pruned_ledger_is_enough(make_site: Any, spout: Any) -> None:
    """Txid 3 was committed and the ledger pruned. Then another attempt of it began, and its driver died. The
    rebuild begins at txid 2, which only the ledger knows."""
    site = make_site(spout, 1)
    site.test.commit(2)
    site.test.crash(Point.AFTER_COMMIT, txid=3)
    (database,) = site.databases
    assert database.prune("words", committed_before=None, newest=1, rows=100) == 1
    last = database.last_batch("words")
    (bolt, semantics), *_ = site.topology.states
    again = TransactionAttempt(last.txid, attempt_id(5, 1))
    commit = Commit(again, last.metas, {}, last.tuples, last.planned_at, last.processed_at)
    tables = [TableSpec(bolt.state, semantics, bolt.reducers)]
    database.of("words", last.uuid, site.topology.semantics, tables).begin_commit(commit)
    site.lose_zookeeper()
    recovery = site.recover()
    assert (recovery.current_txid, recovery.again) == (3, True)
    site.finish()


def test_what_a_joining_that_was_given_up_has_left_does_not_take_a_state_away(make_site: Any) -> None:
    """The second database was set up by that joining, and knows the topology as it was before."""
    site = make_site(OpaqueSpout, 2)
    site.test.commit(2)
    site.test.crash()
    left = site.databases[1].read_fence("words")
    before = {**left.identity["identity"], "tables": ["words_0"]}
    site.lose_zookeeper()
    snapshot = take("words", site.store, site.databases, depth=Depth.TABLES)
    whole, joining = snapshot.databases
    given_up = DatabasePart(
        joining.database, replace(left, identity={"identity": before}), (), joining.tables
    )
    identity = identity_from(replace(snapshot, databases=(whole, given_up)), None)
    assert identity.tables == ("words_0", "words_1")


# --- what it mends ---------------------------------------------------------------------------------


@SEMANTICS
def test_zookeeper_wiped(make_site: Any, spout: Any) -> None:
    site = make_site(spout)
    site.test.commit(3)
    site.test.crash()
    uuid = site.store().read_identity().uuid
    site.lose_zookeeper()
    with pytest.raises(ProgressMismatchError, match="`txstream recover words --from-ledger`"):
        site.test.restart()
    recovery = site.recover()
    assert (recovery.current_txid, recovery.again, recovery.uuid) == (4, False, uuid)
    assert "is not in ZooKeeper" in str(recovery.problem)
    assert site.store().read_identity().uuid == uuid
    site.finish()


@SEMANTICS
@pytest.mark.parametrize("behind", [1, 3])
def test_zookeeper_restored_from_an_old_copy(make_site: Any, spout: Any, behind: int) -> None:
    site = make_site(spout)
    site.test.commit(1)
    copy = site.copy_zookeeper()
    site.test.commit(1 + behind + 1)
    site.test.crash()
    site.restore_zookeeper(copy)
    with pytest.raises(ProgressMismatchError, match="`txstream recover words --from-ledger`"):
        site.test.restart()
    recovery = site.recover()
    assert recovery.current_txid == 1 + behind + 2
    site.finish()


@SEMANTICS
@pytest.mark.parametrize("commit", ["driver", "executors"])
def test_a_database_restored_beneath_a_running_driver(
    make_site: Any, tmp_path: Path, spout: Any, commit: str
) -> None:
    """Nothing is written on top of the copy. Once ZooKeeper follows it, the batches after it count once."""
    site = make_site(spout, 1, commit=commit)
    site.test.commit(1)
    with closing(sqlite3.connect(tmp_path / "0.db")) as file, closing(sqlite3.connect(":memory:")) as backup:
        file.backup(backup)
        site.test.commit(3)
        backup.backup(file)
    copy = site.query(0, "SELECT * FROM words_0"), site.query(0, "SELECT * FROM txstream_batch")
    told = r"txid 3 was committed last.*missing.*`txstream recover words --from-ledger`"
    with pytest.raises(ProgressMismatchError, match=told):
        site.test.commit(4)
    assert (site.query(0, "SELECT * FROM words_0"), site.query(0, "SELECT * FROM txstream_batch")) == copy
    assert site.recover().current_txid == 2
    site.finish()


@pytest.mark.parametrize("commit", ["driver", "executors"])
@pytest.mark.parametrize("again", [False, True])
def test_a_copy_of_another_attempt_is_not_built_upon(make_site: Any, commit: str, again: bool) -> None:
    """An older driver wrote into the copy; its fence let it in. With `again`, ours has committed nothing."""
    site = make_site(OpaqueSpout, 1, commit=commit)
    site.test.commit(2)
    if again:
        site.test.crash()
        site.test.restart()
    site.execute(0, "UPDATE txstream_batch SET attempt = attempt - 1 WHERE txid = 2")
    with pytest.raises(
        ProgressMismatchError, match=r"says that it is committed by attempt \d\.\d, not \d\.\d;"
    ):
        site.test.commit(3)


def test_a_txid_committed_in_part_runs_again_though_there_is_nothing_to_read(make_site: Any) -> None:
    """Otherwise one database would hold the batch, and the other one would not, for as long as that lasts."""
    site = make_site()
    site.test.commit(2)
    before = read_counts(site.urls[1], "words_1")
    site.crash_between_databases(3)
    assert read_counts(site.urls[0], "words_0") != before
    site.source.hide("p")
    site.test.restart()
    site.test.commit(3)
    assert read_counts(site.urls[0], "words_0") == read_counts(site.urls[1], "words_1") == before
    site.source.show("p")
    site.finish()


@SEMANTICS
def test_zookeeper_wiped_while_a_txid_is_committed_in_part(make_site: Any, spout: Any) -> None:
    site = make_site(spout)
    site.test.commit(2)
    site.crash_between_databases(3)
    site.lose_zookeeper()
    recovery = site.recover()
    assert (recovery.current_txid, recovery.again) == (3, True)
    progress = site.store().load()
    assert progress.current == 3
    assert sorted(progress.batches) == ([2, 3] if spout is TransactionalSpout else [2])
    site.finish()


def test_a_plan_that_only_a_ledger_has_still_leaves_out_its_records(
    make_site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with code that could process them: a database has committed the batch without them."""
    site = make_site(TransactionalSpout, dead_letters=DeadLetters(max_share=1.0))
    split = Split.execute

    def refuse(bolt: Split, tup: Any, collector: Any) -> None:
        if tup["value"] == "d d":
            raise ValueError("d d")
        split(bolt, tup, collector)

    with monkeypatch.context() as patched:
        patched.setattr(Split, "execute", refuse)
        site.test.commit(2)
        site.crash_between_databases(3)
    site.lose_zookeeper()
    site.recover()
    assert [one.offset for one in site.store().load().batches[3].metas.excluded] == [4]
    site.test.restart(site.topology)
    site.test.run()
    for number, url in enumerate(site.urls):
        assert read_counts(url, f"words_{number}") == {word: n for word, n in TRUTH.items() if word != "d"}
    assert site.query(0, "SELECT place, status FROM txstream_dead_letter") == [("p@4", "dead")]
    assert site.fsck().findings == ()


@SEMANTICS
@pytest.mark.parametrize("point", [Point.AFTER_BEGIN, Point.AFTER_WRITE, Point.BETWEEN_COMMITS])
def test_zookeeper_wiped_while_executors_commit(make_site: Any, spout: Any, point: Point) -> None:
    site = make_site(spout, commit="executors")
    site.test.commit(2)
    site.test.crash(at=point, txid=3)
    (note,) = site.fsck().findings
    assert (note.code, note.severity) == ("unfinished-commit", Severity.NOTE)
    site.lose_zookeeper()
    recovery = site.recover()
    assert (recovery.current_txid, recovery.again) == (3, True)
    assert [one.code for one in site.fsck().findings] == ["unfinished-commit"]
    site.finish()
    assert site.fsck().findings == ()


@SEMANTICS
def test_the_first_txid_committed_in_part(make_site: Any, spout: Any) -> None:
    site = make_site(spout)
    site.crash_between_databases(1)
    site.lose_zookeeper()
    recovery = site.recover()
    assert (recovery.current_txid, recovery.again) == (1, True)
    site.finish()


@SEMANTICS
def test_zookeeper_wiped_before_the_first_batch(make_site: Any, spout: Any) -> None:
    site = make_site(spout)
    site.test.crash()
    site.lose_zookeeper()
    assert site.recover().current_txid == 1
    site.finish()


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("identity", b"not JSON"),
        ("coordinator/current", b"{}"),
        ("coordinator/meta/3", b"{"),
        ("coordinator/meta/nonsense", b"{}"),
        ("coordinator/meta/9", b"{}"),
        ("epoch", b"not JSON"),
        ("epoch", b'{"driver":null,"epoch":-1,"owner":null}'),
    ],
)
def test_what_cannot_be_read_is_written_again(make_site: Any, path: str, data: bytes) -> None:
    site = make_site()
    site.test.commit(3)
    site.test.crash()
    site.tree.write(f"{site.base}/{path}", data)
    with pytest.raises(CorruptStateError):
        site.test.restart()
    recovery = site.recover()
    assert recovery.current_txid == 4
    assert "cannot be read" in str(recovery.problem)
    site.finish()


@pytest.mark.parametrize("path", ["identity", "coordinator/current", "coordinator/meta/3"])
def test_what_was_deleted_is_written_again(make_site: Any, path: str) -> None:
    site = make_site()
    site.test.commit(3)
    site.test.crash()
    site.tree.remove(f"{site.base}/{path}")
    assert site.recover().current_txid == 4
    site.finish()


def test_a_fence_that_was_deleted_is_made_again(make_site: Any) -> None:
    site = make_site()
    site.test.commit(3)
    site.test.crash()
    site.execute(1, "DELETE FROM txstream_fence")
    recovery = site.recover()
    assert "has lost the fence" in str(recovery.problem)
    fences = [database.read_fence("words") for database in site.databases]
    assert {epoch_of(fence.attempt) for fence in fences if fence} == {recovery.epoch}
    assert fences[0].identity["databases"] == fences[1].identity["databases"]
    site.finish()


def test_a_plan_that_zookeeper_still_has_is_kept(make_site: Any) -> None:
    """A transactional txid that has run holds the same tuples again, whatever was lost since."""
    site = make_site(TransactionalSpout)
    site.test.commit(3)
    site.test.open(4)
    plan = site.store().load().batches[Txid(4)]
    site.test.crash()
    site.execute(1, "DELETE FROM txstream_fence")
    site.recover()
    assert site.store().load().batches[Txid(4)] == plan
    site.finish()


def test_plans_of_an_old_copy_are_dropped(make_site: Any) -> None:
    site = make_site(TransactionalSpout)
    site.test.open(2)
    copy = site.copy_zookeeper()
    site.test.commit(4)
    site.test.crash()
    site.restore_zookeeper(copy)
    site.recover()
    progress = site.store().load()
    assert (progress.current, sorted(progress.batches)) == (5, [4])
    site.finish()


def test_a_non_transactional_topology_goes_on_at_least_once(make_site: Any) -> None:
    site = make_site(NonTransactionalSpout)
    site.test.commit(3)
    site.test.crash()
    site.lose_zookeeper()
    assert site.recover().current_txid == 4
    site.finish()


def test_databases_of_an_older_txstream_need_the_code(make_site: Any) -> None:
    site = make_site()
    site.test.commit(3)
    site.test.crash()
    uuid = site.store().read_identity().uuid
    site.lose_zookeeper()
    for number in range(2):
        site.execute(number, "UPDATE txstream_fence SET identity = NULL")
    with pytest.raises(UsageError, match="--topology MODULE:FACTORY"):
        site.recover()
    assert site.recover(topology=site.topology).uuid == uuid
    site.finish()


# --- what it leaves alone --------------------------------------------------------------------------


@SEMANTICS
def test_nothing_is_changed_when_nothing_is_wrong(make_site: Any, spout: Any) -> None:
    site = make_site(spout)
    site.test.commit(2)
    site.crash_between_databases(3)  # the next run settles that by itself
    before, fences = site.copy_zookeeper(), [db.read_fence("words") for db in site.databases]
    recovery = site.recover(confirm=lambda _: pytest.fail("there is nothing to ask"))
    assert (recovery.problem, recovery.fences, recovery.changes) == (None, (), ())
    assert site.copy_zookeeper() == before
    assert [db.read_fence("words") for db in site.databases] == fences
    site.finish()


def test_nothing_is_changed_when_it_is_not_confirmed(make_site: Any) -> None:
    site = make_site()
    site.test.commit(3)
    site.test.crash()
    site.lose_zookeeper()
    before, fences = site.copy_zookeeper(), [db.read_fence("words") for db in site.databases]
    asked: list[str] = []

    def refuse(question: str) -> bool:
        asked.append(question)
        return False

    with pytest.raises(UsageError, match="left as it is"):
        site.recover(confirm=refuse)
    assert "txid 3 was committed last: txid 4 will be next" in asked[0]
    assert site.copy_zookeeper() == before
    assert [db.read_fence("words") for db in site.databases] == fences


def test_databases_more_than_one_batch_apart_are_refused_with_figures(make_site: Any) -> None:
    site = make_site()
    site.test.commit(3)
    site.test.crash()
    site.lose_zookeeper()
    site.execute(1, "DELETE FROM txstream_batch WHERE txid > 1")
    with pytest.raises(ProgressMismatchError, match="more than one batch apart") as caught:
        site.recover()
    message = str(caught.value)
    assert "0.db is at txid 3" in message
    assert "1.db is at txid 1" in message


def test_databases_of_two_lives_are_refused(make_site: Any) -> None:
    site = make_site()
    site.test.commit(1)
    site.test.crash()
    site.execute(1, "UPDATE txstream_fence SET uuid = '00000000-0000-0000-0000-000000000000'")
    with pytest.raises(ProgressMismatchError, match="databases of different topologies"):
        site.recover()


def test_another_life_in_zookeeper_is_not_overwritten(make_site: Any, tmp_path: Path) -> None:
    site = make_site(databases=1)
    site.test.commit(1)
    site.test.crash()
    site.lose_zookeeper()
    (tmp_path / "other").mkdir()
    other = topology_over(site.source, [f"sqlite:///{tmp_path}/other/0.db"], OpaqueSpout)
    site.test.restart(other)
    site.test.crash()
    with pytest.raises(ProgressMismatchError, match="holds another topology of this id"):
        site.recover()


def test_ledgers_that_contradict_each_other_are_refused(make_site: Any) -> None:
    site = make_site()
    site.test.commit(2)
    site.crash_between_databases(3)
    site.lose_zookeeper()
    site.execute(1, "UPDATE txstream_batch SET attempt = attempt + 1 WHERE txid = 2")
    with pytest.raises(ProgressMismatchError, match="do not agree who committed txid 2"):
        site.recover()


# --- zombies ---------------------------------------------------------------------------------------


def test_the_epoch_is_above_every_fence_and_zookeepers(make_site: Any) -> None:
    site = make_site()
    site.test.commit(3)
    site.test.crash()
    site.lose_zookeeper()
    site.raise_fence(1, attempt_id(77, 0))
    recovery = site.recover()
    assert recovery.epoch == 78
    assert {epoch_of(db.read_fence("words").attempt) for db in site.databases} == {78}
    assert site.store().read_epoch() == 78
    site.finish()


def test_an_epoch_that_cannot_be_read_is_claimed_above_every_fence(make_site: Any) -> None:
    site = make_site()
    site.test.commit(3)
    site.test.crash()
    site.tree.write(f"{site.base}/epoch", b"not JSON")
    site.raise_fence(1, attempt_id(77, 0))
    with pytest.raises(CrashError):
        recover_in("words", lambda codec: crashing_after_mend(site, codec), site.databases)
    assert site.store().read_epoch() < 77, "that alone lets nobody lead"
    site.tree.write(f"{site.base}/epoch", b"")
    recovery = site.recover()
    assert recovery.epoch == site.store().read_epoch() == 78
    assert {epoch_of(db.read_fence("words").attempt) for db in site.databases} == {78}
    assert site.tree.get(f"{site.base}/epoch").version > 78
    site.finish()


def crashing_after_mend(site: Site, codec: Any) -> MemoryProgress:
    def crash(when: str, what: str) -> None:
        if (when, what) == ("after", "mend"):
            raise CrashError("the test ended it")

    return MemoryProgress(site.tree, "words", codec, hook=crash)


@pytest.mark.parametrize("lost", ["all of it", "its epoch"])
def test_a_driver_that_slept_through_it_writes_nothing(make_site: Any, lost: str) -> None:
    """The fence keeps it out of SQL; ZooKeeper refuses it too, though versions there began anew."""
    site = make_site(databases=1)
    site.test.commit(2)
    zombie = site.test._control.driver
    store = zombie.store
    committed_by = zombie.coordinator.current
    if lost == "its epoch":
        site.tree.write(f"{site.base}/epoch", b"not JSON")
    else:
        site.lose_zookeeper()
    site.recover()
    before = site.copy_zookeeper()
    with pytest.raises((FencedError, CorruptStateError)):
        store.advance(committed_by, attempt_id(1, 99), site.store().load().batches[Txid(2)].metas)
    assert site.copy_zookeeper() == before
    with pytest.raises(StaleAttemptError):
        site.raise_fence(0, attempt_id(1, 99))
    site.finish()


def test_the_epochs_version_is_one_that_nobody_before_could_expect(make_site: Any) -> None:
    """A driver of epoch 5 expects at most version 5, so the new version must be higher."""
    site = make_site(databases=1)
    for _ in range(4):
        site.test.restart()
    site.test.commit(1)
    site.test.crash()
    site.lose_zookeeper()
    recovery = site.recover()
    assert site.tree.get(f"{site.base}/epoch").version > recovery.epoch > 5


def test_what_an_older_driver_writes_before_the_fences_are_raised_counts(make_site: Any) -> None:
    """The ledgers are read after the fences are raised, so a commit in between is not lost."""
    site = make_site(databases=1)
    site.test.commit(2)
    site.lose_zookeeper()

    def confirm(question: str) -> bool:
        assert "txid 2 was committed last" in question
        with pytest.raises(CorruptStateError):  # it commits txid 3, then finds ZooKeeper empty
            site.test.commit(3)
        return True

    recovery = site.recover(confirm=confirm)
    assert recovery.current_txid == 4
    site.finish()


@pytest.mark.parametrize("write", ["claim_epoch", "outdate", "rebuild"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_in_it_is_followed_by_another_one(make_site: Any, write: str, when: str) -> None:
    site = make_site()
    site.test.commit(3)
    site.test.crash()
    site.lose_zookeeper()

    def crash(at: str, what: str) -> None:
        if (at, what) == (when, write):
            raise CrashError(f"{at} {what}")

    def crashing(codec: Any) -> MemoryProgress:
        return MemoryProgress(site.tree, "words", codec, hook=crash)

    with pytest.raises(CrashError):
        recover_in("words", crashing, site.databases)
    recovery = site.recover()
    assert recovery.current_txid == 4
    site.finish()


def test_an_answer_that_is_lost_is_asked_for_again(make_site: Any) -> None:
    site = make_site()
    site.test.commit(3)
    site.test.crash()
    site.lose_zookeeper()
    late = iter(("outdate", "rebuild"))
    wanted = next(late)

    def delaying(at: str, what: str) -> None:
        nonlocal wanted
        if (at, what) == ("before", wanted):
            wanted = next(late, "")
            site.tree.delay_next_write()

    recover_in(
        "words", lambda codec: MemoryProgress(site.tree, "words", codec, hook=delaying), site.databases
    )
    assert wanted == ""
    site.tree.deliver_late()
    assert site.store().load().current == 4
    site.finish()


def test_points_of_a_commit(make_site: Any) -> None:
    """ZooKeeper is wiped at each point of a commit, with one database."""
    site = make_site(databases=1)
    for txid, point in enumerate((Point.BEFORE_COMMIT, Point.INSIDE_COMMIT, Point.AFTER_COMMIT), 2):
        site.test.commit(txid - 1)
        site.test.crash(at=point, txid=txid)
        site.lose_zookeeper()
        assert site.recover().current_txid == (txid + 1 if point is Point.AFTER_COMMIT else txid)
        site.test.restart()
    assert site.store().read_epoch() > Epoch(3)
    site.finish()


def test_a_database_that_nobody_names_is_missed(make_site: Any) -> None:
    """Rows of an older txstream do not name the other databases. A table that is nowhere shows that one
    is missing."""
    site = make_site()
    site.test.commit(2)
    site.test.crash()
    site.lose_zookeeper()
    for number in range(2):
        site.execute(number, "UPDATE txstream_fence SET identity = NULL")
    with pytest.raises(ServiceUnavailableError, match=r"words_1.*--state-database"):
        recover_in("words", site.store, site.databases[:1], topology=site.topology)
    assert site.recover(topology=site.topology).current_txid == 3
    site.finish()


def test_the_code_names_the_databases_of_its_states(make_site: Any) -> None:
    site = make_site()
    assert with_states_of(Settings(), site.topology).state_databases == tuple(site.urls)
    assert with_states_of(Settings(), None).state_databases == ()


def test_a_plan_that_follows_another_history_is_dropped(make_site: Any) -> None:
    """In ZooKeeper, the batch before the plan is not the one that was committed."""
    site = make_site(TransactionalSpout)
    site.test.commit(3)
    site.test.open(4)
    site.test.crash()
    path = f"{site.base}/coordinator/meta/3"
    site.tree.write(path, site.tree.get(path).data.replace(b'"end":6', b'"end":5'))
    assert "different ranges" in str(site.recover().problem)
    assert sorted(site.store().load().batches) == [3]
    site.finish()


def test_an_old_copy_of_the_identity_is_not_kept(make_site: Any) -> None:
    """The copy lacks a state that has joined since."""
    site = make_site()
    site.test.commit(1)
    copy = site.copy_zookeeper()
    site.test.commit(3)
    site.test.crash()
    identity = site.store().read_identity()
    site.restore_zookeeper(copy)
    site.tree.write(f"{site.base}/identity", replace(identity, tables=("words_0",)).encode())
    site.recover()
    assert site.store().read_identity() == identity
    site.finish()


def begun_with_one_state(site: Site) -> Any:
    """Commit two batches with code that lacks the second state; return the code that has it."""
    grown, first = site.topology, topology_over(site.source, site.urls[:1], OpaqueSpout)
    site.test.crash()
    site.lose_zookeeper()
    for database in site.databases:
        database.delete("words", drop_state=True)
    site.test.restart(first)
    site.test.commit(2)
    site.test.crash()
    return grown


@pytest.mark.parametrize("step", ["begin_ledger", "replace_identity"])
def test_a_state_that_was_joining_when_its_driver_died(
    make_site: Any, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Its database has no ledger yet, or one that ZooKeeper's identity does not name. Both are in order."""
    site = make_site()
    grown = begun_with_one_state(site)

    def crash(*_: Any) -> None:
        raise CrashError("the test killed the driver")

    with monkeypatch.context() as patch:
        patch.setattr(StateDatabase if step == "begin_ledger" else MemoryProgress, step, crash)
        with pytest.raises(CrashError):
            site.test.restart(grown)
    assert [one for one in site.fsck().findings if one.severity is not Severity.NOTE] == []
    assert site.recover().problem is None
    site.lose_zookeeper()
    assert site.recover().current_txid == 3
    site.test.restart(grown)
    site.test.run()
    assert read_counts(site.urls[0], "words_0") == TRUTH
    later = Counter(" ".join(LINES[4:]).split())
    assert read_counts(site.urls[1], "words_1") == later, "it counts from the txid that was current"
    assert site.fsck().findings == ()


def test_a_state_that_joined_while_somebody_was_asked(make_site: Any) -> None:
    """While it asks, another `recover` and then newer code run. It sees both: it reads after the raise."""
    site = make_site()
    grown = begun_with_one_state(site)
    site.lose_zookeeper()

    def confirm(_question: str) -> bool:
        assert recover_in("words", site.store, site.databases[:1]).current_txid == 3
        site.test.restart(grown)
        site.test.commit(3)
        site.test.crash()
        return True

    with pytest.raises(ServiceUnavailableError, match=r"words_1.*--state-database"):
        recover_in("words", site.store, site.databases[:1], confirm=confirm)
    assert site.store().read_identity().tables == ("words_0", "words_1")
    site.test.restart(grown)
    site.test.run()
    assert read_counts(site.urls[0], "words_0") == TRUTH
    assert read_counts(site.urls[1], "words_1") == Counter(" ".join(LINES[4:]).split())
