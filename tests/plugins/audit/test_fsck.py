"""`fsck`: each kind of damage is done and found. If the finding names a command, that command mends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.recovering import Site

from txstream.api.spouts import (
    NonTransactionalSpout,
    OpaqueSpout,
    SourceSpout,
    TransactionalSpout,
    Unavailable,
)
from txstream.core.batch_metas import MetaCodec
from txstream.core.errors import DataLostError, ServiceUnavailableError
from txstream.core.fault_points import Point
from txstream.core.semantics import Semantics
from txstream.core.transaction import Epoch, Txid, attempt_id
from txstream.inspect.plain_metas import PlainCodec
from txstream.inspect.records import Finding, FsckReport, MissingDatabase, Severity
from txstream.plugins.audit.fsck_progress import _is_same
from txstream.plugins.audit.fsck_run import fsck_in
from txstream.plugins.proof.zookeeper_tree import MemoryProgress, MemoryTree
from txstream.settings import Settings
from txstream.state import BatchRecord
from txstream.zookeeper import Identity

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[Any]:
    made: list[Site] = []

    def make(spout: type[SourceSpout[Any]] = OpaqueSpout, databases: int = 2, txid: int = 3) -> Site:
        site = Site(tmp_path, spout, databases)
        made.append(site)
        if txid:
            site.test.commit(txid)
        site.test.crash()
        return site

    yield make
    for site in made:
        site.close()


def found(report: FsckReport) -> dict[str, Finding]:
    return {finding.code: finding for finding in report.findings}


def only(report: FsckReport, code: str, severity: Severity) -> Finding:
    """Return the report's only finding, which must have this code and severity."""
    assert [(one.code, one.severity) for one in report.findings] == [(code, severity)], report.findings
    assert report.is_clean is (severity is NOTE)
    return report.findings[0]


# --- all is well -----------------------------------------------------------------------------------


@pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])
@pytest.mark.parametrize("txid", [0, 1, 5])
def test_nothing_is_found_when_all_is_well(make_site: Any, spout: Any, txid: int) -> None:
    site = make_site(spout, txid=txid)
    before = site.copy_zookeeper()
    report = site.fsck()
    assert report.findings == ()
    assert report.is_clean
    assert len(report.checked) == 4
    assert f"txid {txid} committed last" in report.checked[0]
    assert site.copy_zookeeper() == before, "it only looks"


def test_tracked_tuples_have_neither_states_nor_plans_to_check() -> None:
    tree = MemoryTree()
    spout = "txstream.plugins.tracked.kafka_queue.KafkaQueueSpout"
    source = {"tracked": {"orders": "KafkaQueueSpout"}}
    identity = Identity.new(Semantics.NON_TRANSACTIONAL, spout, source, ())

    def store(codec: MetaCodec[Any]) -> MemoryProgress:
        return MemoryProgress(tree, "orders", codec)

    store(PlainCodec()).create_identity(identity)
    store(PlainCodec()).claim_epoch(Epoch(0))
    report = fsck_in("orders", store, [], Settings())
    assert report.findings == ()
    assert report.checked == ("ZooKeeper: tracked tuples, epoch 1; nothing else is kept of them",)
    assert identity.kind == "tracked"


@pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])
def test_nothing_is_found_after_failed_attempts_either(make_site: Any, spout: Any) -> None:
    """A failed attempt of the last txid leaves restored rows that carry that txid."""
    site = make_site(spout, txid=0)
    site.test.restart()
    site.test.commit(1)
    for txid in (2, 3):
        site.test.fail(txid)
        site.test.commit(txid)
    site.test.crash()
    assert site.fsck().findings == ()


def test_it_may_run_meanwhile(make_site: Any) -> None:
    site = make_site()
    report = site.fsck(leader=lambda: "elsewhere:77")
    assert "elsewhere:77" in only(report, "running", NOTE).what


# --- what `recover` mends --------------------------------------------------------------------------


def lose_zookeeper(site: Site) -> None:
    site.lose_zookeeper()


def lose_identity(site: Site) -> None:
    site.tree.remove(f"{site.base}/identity")


def spoil_current(site: Site) -> None:
    site.tree.write(f"{site.base}/coordinator/current", b"nonsense")


def lose_metas(site: Site) -> None:
    site.tree.remove(f"{site.base}/coordinator/meta/3")


def lose_fence(site: Site) -> None:
    site.execute(1, "DELETE FROM txstream_fence")


@pytest.mark.parametrize(
    ("damage", "code", "where"),
    [
        (lose_zookeeper, "zookeeper-missing", "ZooKeeper"),
        (lose_identity, "zookeeper-unreadable", "/identity"),
        (spoil_current, "zookeeper-unreadable", "/coordinator/current"),
        (lose_metas, "zookeeper-unreadable", "/coordinator/meta"),
        (lose_fence, "fence-missing", "1.db"),
    ],
)
def test_what_recover_mends(make_site: Any, damage: Callable[[Site], None], code: str, where: str) -> None:
    site = make_site()
    damage(site)
    finding = only(site.fsck(), code, ERROR)
    assert where in finding.where
    assert finding.command == "txstream recover words --from-ledger"
    assert f"`{finding.command}`" in finding.remedy
    site.recover()
    assert site.fsck().findings == ()
    site.finish()


def test_an_old_copy_of_zookeeper(make_site: Any) -> None:
    site = make_site(txid=1)
    copy = site.copy_zookeeper()
    site.test.restart()
    site.test.commit(4)
    site.test.crash()
    site.restore_zookeeper(copy)
    report = site.fsck()
    assert [(one.code, one.severity) for one in report.findings] == [
        ("progress-mismatch", ERROR),
        ("epoch-behind", WARNING),
        ("epoch-behind", WARNING),
    ]
    assert "txid 1 was committed last" in report.findings[0].what
    assert report.findings[0].command == "txstream recover words --from-ledger"
    site.recover()
    assert site.fsck().findings == ()
    site.finish()


def test_an_epoch_that_cannot_be_read(make_site: Any) -> None:
    site = make_site()
    site.tree.write(f"{site.base}/epoch", b"?")
    report = site.fsck()
    assert {one.code for one in report.findings} == {"zookeeper-unreadable"}
    finding = report.findings[0]
    assert finding.command == "txstream recover words --from-ledger"
    site.recover()
    assert site.fsck().findings == ()
    site.finish()


@pytest.mark.parametrize(
    "path", ["requests/asked", "requests/answered", "requests/scaled", "assignment", "failing", "waiting"]
)
def test_what_operators_are_shown_cannot_be_read(make_site: Any, path: str) -> None:
    """A run refuses it, or `status --tasks` does. Nothing is lost with it."""
    site = make_site()
    site.tree.write(f"{site.base}/{path}", b"nonsense")
    finding = only(site.fsck(), "zookeeper-unreadable", ERROR)
    assert finding.where == f"{site.base}/{path}"
    assert f"delete {site.base}/{path}" in finding.remedy
    assert "recover" not in finding.remedy
    site.tree.remove(f"{site.base}/{path}")
    assert site.fsck().findings == ()
    site.finish()


# --- what the next run mends -----------------------------------------------------------------------


def test_an_epoch_behind_the_fences(make_site: Any) -> None:
    site = make_site(databases=1)
    site.databases[0].of("words", site.databases[0].read_fence("words").uuid, Semantics.OPAQUE).raise_fence(
        attempt_id(9, 0)
    )
    finding = only(site.fsck(), "epoch-behind", WARNING)
    assert "epoch 9" in finding.what
    site.test.restart()
    site.test.crash()
    assert site.fsck().findings == ()
    site.finish()


@pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])
def test_a_txid_that_is_committed_in_part(make_site: Any, spout: Any) -> None:
    site = make_site(spout, txid=2)
    site.test.restart()
    site.crash_between_databases(3)
    finding = only(site.fsck(), "unfinished-commit", NOTE)
    assert "txid 3 is committed in part" in finding.what
    assert "`txstream run`" in finding.remedy
    site.finish()
    assert site.fsck().findings == ()


def test_a_txid_that_two_attempts_have_committed_is_settled_by_the_next_run(make_site: Any) -> None:
    """ZooKeeper does not have it yet, so the databases may differ."""
    site = make_site(txid=2)
    site.test.restart()
    site.test.crash(at=Point.BEFORE_ADVANCE, txid=3)
    site.execute(0, "UPDATE txstream_batch SET attempt = attempt - 1 WHERE txid = 3")
    assert "txid 3 is committed in part" in only(site.fsck(), "unfinished-commit", NOTE).what
    site.finish()


def test_a_fence_of_an_older_txstream(make_site: Any) -> None:
    site = make_site(databases=1)
    site.execute(0, "UPDATE txstream_fence SET identity = NULL")
    only(site.fsck(), "fence-without-identity", NOTE)
    site.test.restart()
    site.test.crash()
    assert site.fsck().findings == ()


def test_a_fence_with_another_identity(make_site: Any) -> None:
    site = make_site(databases=1)
    site.execute(0, "UPDATE txstream_fence SET identity = replace(identity, 'opaque', 'transactional')")
    only(site.fsck(), "fence-identity", WARNING)
    site.test.restart()
    site.test.crash()
    assert site.fsck().findings == ()


# --- ledgers and fences ----------------------------------------------------------------------------

OTHER = "00000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    ("statement", "codes", "words"),
    [
        ("DELETE FROM txstream_batch WHERE txid > 1", ["databases-apart"], "1.db is at txid 1"),
        ("DELETE FROM txstream_batch WHERE txid = 2", ["ledger-gap"], "txid 1 to 3"),
        ("UPDATE txstream_fence SET attempt = 1", ["fence-behind"], "attempt 0.1"),
        (
            f"UPDATE txstream_batch SET uuid = '{OTHER}' WHERE txid = 1",
            ["ledger-uuid"],
            OTHER,
        ),
        (
            f"UPDATE txstream_fence SET uuid = '{OTHER}'",
            ["other-uuid", "ledger-uuid", "table-owner"],
            OTHER,
        ),
        (
            "UPDATE txstream_batch SET metas = '?' WHERE txid = 2",
            ["ledger-unreadable"],
            "its metas are not JSON",
        ),
        (
            "UPDATE txstream_batch SET attempt = attempt + 1 WHERE txid = 2",
            ["ledgers-differ"],
            "for txid 2",
        ),
        (
            "UPDATE txstream_batch SET attempt = attempt + 1 WHERE txid = 3",
            ["progress-mismatch", "ledgers-differ"],
            "for it, the ledger",
        ),
    ],
)
def test_a_damaged_ledger_or_fence(make_site: Any, statement: str, codes: list[str], words: str) -> None:
    site = make_site()
    site.execute(1, statement)
    report = site.fsck()
    bad = [one for one in report.findings if one.code in codes]
    assert sorted({one.code for one in bad}) == sorted(codes), report.findings
    assert any(words in one.what for one in bad), report.findings
    expected = WARNING if codes == ["ledger-gap"] else ERROR
    assert all(one.severity is expected for one in bad)
    assert any("1.db" in one.where + one.what for one in bad)


def test_a_fence_that_was_set_back_is_raised_by_the_next_run(make_site: Any) -> None:
    site = make_site(databases=1)
    site.execute(0, "UPDATE txstream_fence SET attempt = 1")
    only(site.fsck(), "fence-behind", ERROR)
    site.test.restart()
    site.test.crash()
    assert site.fsck().findings == ()
    site.finish()


def test_batches_that_do_not_follow_each_other(make_site: Any) -> None:
    site = make_site(databases=1)
    site.execute(
        0, """UPDATE txstream_batch SET metas = replace(metas, '"start":2', '"start":1') WHERE txid = 2"""
    )
    finding = only(site.fsck(), "ledger-ranges", ERROR)
    assert "txid 1 ends p at 2, txid 2 begins it at 1" in finding.what


@pytest.mark.parametrize("skipped_from", [2, 1])
def test_a_recorded_gap_is_no_break(make_site: Any, skipped_from: int) -> None:
    site = make_site(databases=1)
    gap = f'"skipped_from":{skipped_from},"start":3'
    site.execute(
        0, f"""UPDATE txstream_batch SET metas = replace(metas, '"start":2', '{gap}') WHERE txid = 2"""
    )
    if skipped_from == 2:  # where txid 1 ends
        assert site.fsck().findings == ()
    else:
        assert "txid 1 ends p at 2, txid 2 begins it at 1" in only(site.fsck(), "ledger-ranges", ERROR).what


# --- tables ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "code", "words"),
    [
        ("DROP TABLE words_1", "table-missing", "it is gone"),
        ("ALTER TABLE words_1 ADD COLUMN more integer", "table-columns", "'more'"),
        (f"UPDATE txstream_table SET uuid = '{OTHER}'", "table-owner", OTHER),
        ("DELETE FROM txstream_table", "table-unknown", "none of its databases knows it"),
        ("UPDATE words_1 SET txid = 9 WHERE word = 'b'", "row-too-new", "(word='b') carries txid 9"),
        ("UPDATE words_1 SET txid = 0 WHERE txid = 1", "row-txid", "1 row with a txid below 1"),
        ("DELETE FROM words_1 WHERE txid = 3", "rows-missing", "txid 3 wrote 2 rows, and is now in 0:"),
        ("DELETE FROM words_1 WHERE word = 'd'", "rows-missing", "txid 3 wrote 2 rows, and is now in 1:"),
    ],
)
def test_a_damaged_table(make_site: Any, statement: str, code: str, words: str) -> None:
    site = make_site()
    site.execute(1, statement)
    finding = only(site.fsck(), code, ERROR)
    assert words in finding.what
    assert "words_1" in finding.where or "1.db" in finding.where


def test_rows_whose_prevs_contradict_each_other(tmp_path: Path) -> None:
    from support.states import Rig, word_table

    from txstream.inspect.snapshot import Depth, take
    from txstream.plugins.proof.zookeeper_tree import MemoryProgress, MemoryTree
    from txstream.state import StateDatabase

    database = StateDatabase(f"sqlite:///{tmp_path / 'state.db'}")
    rig = Rig(database, f"sqlite:///{tmp_path / 'state.db'}", word_table(value="n bigint, m bigint")).join()
    rig.commit(1, {"a": (1, 2)})
    rig.commit(2, {"a": (1, 2), "b": (1, 1)})
    engine = database.sessions.engine
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE word_count SET prev_m = NULL WHERE word = 'a'")
    tree = MemoryTree()
    snapshot = take("words", lambda codec: MemoryProgress(tree, "words", codec), [database], depth=Depth.ALL)
    (table,) = snapshot.databases[0].tables or ()
    database.close()
    assert table.half_created == 1


# --- databases that cannot be opened ---------------------------------------------------------------


def test_a_database_that_cannot_be_opened_is_a_finding(make_site: Any) -> None:
    site = make_site()
    gone = MissingDatabase("postgresql://me:***@db/x", "only its URL is known", "give it by --state-database")
    site.databases.pop().close()
    report = site.fsck(missing=[gone])
    codes = found(report)
    assert codes["database-missing"].severity is ERROR
    assert codes["database-missing"].remedy == "give it by --state-database"
    assert set(codes) == {"database-missing"}, "its tables may be there"


def test_no_database_at_all(make_site: Any) -> None:
    site = make_site(databases=1)
    site.databases.pop().close()
    assert "database-missing" in found(site.fsck())


# --- the source ------------------------------------------------------------------------------------


@dataclass
class Asked:
    """A coordinator that answers as the test says. `places` are those from which it was asked to plan."""

    plans: dict[str, Any]
    unreadables: dict[str, Any]
    closed: bool = False
    asked: ClassVar[int] = 0
    places: list[Any] = field(default_factory=list)

    def plan(self, last: Any, limit: int) -> dict[str, Any]:
        self.places.append(dict(last))
        return self._answer(self.plans, last)

    def unreadable(self, metas: Any) -> dict[str, Any]:
        return self._answer(self.unreadables, metas)

    def _answer(self, answers: dict[str, Any], names: Any) -> dict[str, Any]:
        for name in names:
            if isinstance(answers.get(name), Exception):
                raise answers[name]
        return {name: answer for name, answer in answers.items() if name in names}

    def close(self) -> None:
        self.closed = True


def with_coordinator(site: Site, monkeypatch: pytest.MonkeyPatch, **answers: dict[str, Any]) -> Asked:
    asked = Asked(answers.get("plan", {}), answers.get("unreadable", {}))
    monkeypatch.setattr(type(site.source), "coordinator", lambda *_: asked)
    return asked


def test_a_place_that_is_lost(make_site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make_site()
    asked = with_coordinator(site, monkeypatch, plan={"p": DataLostError("the log begins at 77")})
    finding = only(site.fsck(), "position-lost", ERROR)
    assert (finding.where, finding.what) == ("partition p", "the log begins at 77")
    assert "on_data_loss='skip'" in finding.remedy
    assert asked.closed


def test_a_stored_plan_that_is_lost(make_site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make_site(TransactionalSpout, txid=2)
    site.test.restart()
    site.test.open(3)
    site.test.crash()
    with_coordinator(site, monkeypatch, unreadable={"p": DataLostError("the log begins at 77")})
    finding = only(site.fsck(), "plan-lost", ERROR)
    assert finding.what == "stored plan of txid 3: the log begins at 77"


@pytest.mark.parametrize(("spout", "planned"), [(OpaqueSpout, 2), (TransactionalSpout, 4)])
def test_places_are_checked_where_the_last_planned_batch_ends(
    make_site: Any, monkeypatch: pytest.MonkeyPatch, spout: Any, planned: int
) -> None:
    """Of an opaque topology this is the last committed one, because its plans are not stored."""
    site = make_site(spout, txid=2)
    site.test.restart()
    site.test.open(4)
    site.test.crash()
    asked = with_coordinator(site, monkeypatch)
    site.fsck()
    assert [place["p"].end for place in asked.places] == [2 * planned]


def test_a_partition_that_cannot_be_read_now(make_site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make_site()
    with_coordinator(site, monkeypatch, plan={"p": Unavailable("it has no leader"), "new": Unavailable("x")})
    assert only(site.fsck(), "partition-unavailable", WARNING).what == "it has no leader"


def test_a_gap_that_the_source_skips(make_site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Behind:
        start: int = 9
        skipped_from: int = 6

    site = make_site()
    with_coordinator(site, monkeypatch, plan={"p": Behind()})
    assert "6 to 9" in only(site.fsck(), "position-skips", WARNING).what


def test_a_source_that_does_not_answer(make_site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make_site()

    def refuse(*_: Any) -> None:
        raise ServiceUnavailableError("no broker answers")

    monkeypatch.setattr(type(site.source), "coordinator", refuse)
    assert only(site.fsck(), "source-unreachable", WARNING).what == "no broker answers"


def test_a_source_of_the_users_needs_the_code(make_site: Any) -> None:
    site = make_site()
    assert "--topology" in only(site.fsck(topology=None), "source-not-checked", NOTE).remedy


def test_settings_without_kafka_leave_it_unchecked() -> None:
    from txstream.inspect.source import source_of
    from txstream.zookeeper import Identity

    kafka = Identity.new(Semantics.OPAQUE, "txstream.spouts.kafka.KafkaSource", {"topics": ["lines"]}, ())
    assert source_of(kafka, None, Settings()) is None
    found = source_of(kafka, None, Settings(kafka="127.0.0.1:1"))
    assert found is not None
    assert found.identity()["topics"] == ["lines"]


def test_a_non_transactional_topology_is_well(make_site: Any) -> None:
    assert make_site(NonTransactionalSpout).fsck().findings == ()


@dataclass(frozen=True)
class Place:
    """What a newer version stores: one more field, with a default."""

    start: int
    end: int
    leader_epoch: int | None = None


def test_a_row_of_an_older_version_is_the_same_batch() -> None:
    def row(**place: Any) -> BatchRecord:
        metas = {"partitions": {"p": place}}
        now = datetime.now(UTC)
        return BatchRecord(
            "t", "u", Txid(1), attempt_id(1, 1), Semantics.OPAQUE, "committed", metas, 0, 0,
            now, now, now, None,
        )  # fmt: skip

    old, codec = row(start=1, end=2), MetaCodec(Place)
    assert _is_same(old, row(start=1, end=2, leader_epoch=None), codec)
    assert not _is_same(old, row(start=1, end=3), codec)
    assert not _is_same(old, row(start=1, end=2, leader_epoch=4), codec)
    assert not _is_same(old, row(nonsense=1), codec)


# --- dead letters ----------------------------------------------------------------------------------

EXCLUDED = """UPDATE txstream_batch
    SET metas = replace(metas, '{"partitions"', '{"excluded":[["p",2,"b","E"]],"partitions"')"""
DEAD_LETTER = """INSERT INTO txstream_dead_letter
    (topology, uuid, txid, place, attempt, status, "when", component, exception, message, traceback)
    SELECT topology, uuid, {txid}, 'p@2', attempt, 'dead', committed_at, 'b', 'E', '', ''
    FROM txstream_batch WHERE txid = 2"""


@pytest.mark.parametrize(
    ("statements", "code", "severity"),
    [
        ([DEAD_LETTER.format(txid=2)], "dead-letter-extra", ERROR),
        ([DEAD_LETTER.format(txid=9)], "dead-letter-too-new", ERROR),
        ([f"{EXCLUDED} WHERE txid = 2"], "dead-letter-gone", NOTE),
        ([f"{EXCLUDED} WHERE txid = 2", DEAD_LETTER.format(txid=2)], None, NOTE),
    ],
)
def test_records_are_counted_or_dead(
    make_site: Any, statements: list[str], code: str | None, severity: Severity
) -> None:
    site = make_site(databases=1)
    for statement in statements:
        site.execute(0, statement)
    if code is None:
        assert site.fsck().findings == ()
    else:
        assert only(site.fsck(), code, severity).where == f"txid {9 if 'new' in code else 2}"


RETRIED = """UPDATE txstream_batch
    SET metas = replace(metas, '{"partitions"', '{"retried":[[2,"p@2"]],"partitions"') WHERE txid = 3"""
MARKED = "UPDATE txstream_dead_letter SET status = 'retried in txid 3'"


@pytest.mark.parametrize(
    ("first", "second", "code", "where"),
    [
        ([MARKED], [], None, ""),
        ([], [], "retried-and-dead", "txid 2"),
        ([MARKED], ["UPDATE txstream_batch SET tuples = 0 WHERE txid = 3"], "retried-missing", "txid 3 in "),
        ([MARKED, "DELETE FROM txstream_dead_letter"], [], "dead-letter-gone", "txid 2"),
    ],
)
def test_retried_letters_are_compared_with_each_ledger(
    make_site: Any, first: list[str], second: list[str], code: str | None, where: str
) -> None:
    site = make_site(TransactionalSpout)
    for number in (0, 1):
        site.execute(number, f"{EXCLUDED} WHERE txid = 2")
        site.execute(number, RETRIED)
    for number, statements in enumerate(([DEAD_LETTER.format(txid=2), *first], second)):
        for statement in statements:
            site.execute(number, statement)
    site.lose_zookeeper()  # its copy of the metas is not what this is about
    found = [one for one in site.fsck().findings if one.code != "zookeeper-missing"]
    assert [one.code for one in found] == ([] if code is None else [code]), found
    assert all(one.where.startswith(where) for one in found)
