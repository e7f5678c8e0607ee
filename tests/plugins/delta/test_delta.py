"""Tuples become files with their batch, and rows of a Delta table once that is committed."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from txstream import (
    DeltaTableBolt,
    KafkaSinkBolt,
    MemorySpout,
    NonTransactionalSpout,
    OpaqueSpout,
    TransactionalSpout,
    TransactionalTopologyBuilder,
    version_of,
)
from txstream.api.schema import parse_schema
from txstream.api.spouts import SpoutContext
from txstream.core.errors import (
    DataLostError,
    IdentityMismatchError,
    ProgressMismatchError,
    ServiceUnavailableError,
    StateTableError,
    TopologyError,
    TxstreamError,
    UsageError,
)
from txstream.core.transaction import Txid
from txstream.engine.start.companions import Leading
from txstream.plugins.delta import lake as lake_module
from txstream.plugins.delta.files import WrittenFile, write_files
from txstream.plugins.delta.following import DeltaOutbox, delta_tables
from txstream.plugins.delta.lake import Lake
from txstream.plugins.delta.place import Place
from txstream.plugins.delta.reading import last_not_after
from txstream.plugins.outbox.sending import OutboxFollower
from txstream.state import StateBackend, open_database
from txstream.testing import TopologyTest

COLUMNS = "customer string, amount bigint"
ORDERS = [[("a", 1), ("b", 2)], [("a", 3), ("c", 4)], [("b", 5), ("a", 6)]]


def topology_of(spout: Any, bolt: DeltaTableBolt) -> TransactionalTopologyBuilder:
    builder = TransactionalTopologyBuilder("sales", "orders", spout)
    builder.set_committer_bolt("out", bolt).shuffle_grouping("orders")
    return builder


def orders(batches: Sequence[Sequence[tuple[Any, ...]]] = ORDERS, output: str = COLUMNS) -> MemorySpout:
    return MemorySpout(
        output,
        {"orders/0": [row for rows in batches for row in rows]},
        max_records_per_partition=max(map(len, batches)),
    )


class Notes:
    def __init__(self) -> None:
        self.sent: Mapping[str, Txid] = {}
        self.error: BaseException | None = None

    def put(self, sent: Mapping[str, Txid]) -> None:
        if self.error is not None:
            raise self.error
        self.sent = dict(sent)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'state.db'}"


@pytest.fixture
def database(url: str) -> Iterator[StateBackend]:
    opened = open_database(url)
    yield opened
    opened.close()


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    folder = tmp_path / "lake"
    folder.mkdir()
    return folder


def built(bolt: DeltaTableBolt, spout: Any = None) -> DeltaTableBolt:
    topology = topology_of(spout or OpaqueSpout(orders()), bolt).build()
    (found,) = [one.instance for one in topology.components if isinstance(one.instance, DeltaTableBolt)]
    return found


def follower(
    database: StateBackend, bolt: DeltaTableBolt, notes: Notes, current: int, uuid: str = "u"
) -> OutboxFollower:
    bolt = built(bolt)

    def connect() -> Lake:
        lake = Lake(bolt.place, "sales", uuid, bolt.state.table)
        lake.take_over(bolt.columns, bolt.partition_by, notes.sent.get(bolt.state.table))
        return lake

    outbox = DeltaOutbox("sales", bolt.state.table, str(bolt.place), [database], connect, current + 3)
    return OutboxFollower("sales", [outbox], lambda: Txid(current), lambda: notes.sent, notes.put)


def rows_of(lake: Path, version: int | None = None) -> list[tuple[Any, ...]]:
    """The rows, read without anything of ours."""
    table = DeltaTable(lake, version=version).to_pyarrow_table()
    return sorted(tuple(row[name] for name in ("customer", "amount")) for row in table.to_pylist())


def up_to(txid: int) -> list[tuple[Any, ...]]:
    return sorted(row for rows in ORDERS[:txid] for row in rows)


@pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])
@pytest.mark.parametrize("by", ["", "customer"])
def test_each_txid_is_a_version_with_its_rows(
    database: StateBackend, url: str, lake: Path, spout: Any, by: str
) -> None:
    make = partial(DeltaTableBolt, lake, partition_by=by or ())
    with TopologyTest(topology_of(spout(orders()), make()), database=url) as test:
        test.commit(3)
    notes = Notes()
    follower(database, make(), notes, current=3).send_committed()
    assert (rows_of(lake), notes.sent) == (up_to(2), {"lake_files": 2})
    follower(database, make(), notes, current=4).send_committed()
    assert (rows_of(lake), notes.sent) == (up_to(3), {"lake_files": 3})
    for txid in range(4):
        assert rows_of(lake, version_of(lake, "sales", txid)) == up_to(txid)


# --- once, whatever happens in between ------------------------------------------------------------


@pytest.fixture
def filled(database: StateBackend, url: str, lake: Path) -> None:
    """Three committed batches of two orders each."""
    with TopologyTest(topology_of(OpaqueSpout(orders()), DeltaTableBolt(lake)), database=url) as test:
        test.commit(3)


@pytest.mark.usefixtures("filled")
def test_what_is_appended_and_not_noted_is_not_appended_again(database: StateBackend, lake: Path) -> None:
    notes = Notes()
    notes.error = SystemExit()
    with pytest.raises(SystemExit):
        follower(database, DeltaTableBolt(lake), notes, current=3).send_committed()
    # Otherwise a file that is named again would only replace itself.
    DeltaTable(lake).optimize.compact()
    notes.error = None
    follower(database, DeltaTableBolt(lake), notes, current=4).send_committed()
    assert (rows_of(lake), notes.sent) == (up_to(3), {"lake_files": 3})
    with database.read_state("sales") as reading:
        assert [row.txid for row in reading.written_since("lake_files", 1)] == [3]


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize("does_commit", [True, False])
def test_a_lost_answer_of_the_commit(
    database: StateBackend, lake: Path, monkeypatch: pytest.MonkeyPatch, does_commit: bool
) -> None:
    appending = follower(database, DeltaTableBolt(lake), Notes(), current=4)
    commit, lost = DeltaTable.create_write_transaction, [True]

    def without_answer(table: DeltaTable, actions: Any, *given: Any, **named: Any) -> None:
        is_lost = actions and lost
        if does_commit or not is_lost:
            commit(table, actions, *given, **named)
        if is_lost:
            raise OSError("connection reset by peer")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", without_answer)
    for _ in range(3 if does_commit else 2):
        with pytest.raises(ServiceUnavailableError, match="connection reset by peer"):
            appending.send_committed()
        appending.disconnect()
    lost.clear()
    appending.send_committed()
    assert rows_of(lake) == up_to(3)
    assert len(DeltaTable(lake).file_uris()) == 3


def lake_of(bolt: DeltaTableBolt, uuid: str = "u", topology: str = "sales", sent: Txid | None = None) -> Lake:
    lake = Lake(bolt.place, topology, uuid, bolt.state.table)
    lake.take_over(bolt.columns, bolt.partition_by, sent)
    return lake


def file_of(bolt: DeltaTableBolt, txid: int, rows: Sequence[tuple[Any, ...]]) -> list[WrittenFile]:
    table = pa.Table.from_pylist(
        [dict(zip(bolt.columns.names, row, strict=True)) for row in rows], schema=bolt.columns
    )
    return write_files(bolt.place, "sales", bolt.state.table, Txid(txid), 0, table, bolt.partition_by)


@pytest.mark.parametrize("between", ["append", "take_over"])
def test_who_has_compared_before_another_driver_commits_cannot_commit(
    lake: Path, monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    bolt = built(DeltaTableBolt(lake))
    former, files = lake_of(bolt), file_of(bolt, 1, ORDERS[0])
    require = Lake._require

    def required(self: Lake, given: Sequence[WrittenFile]) -> None:
        require(self, given)
        if self is former:  # it has read and compared
            new = lake_of(bolt)
            if between == "append":
                assert new.append(Txid(1), files)

    monkeypatch.setattr(Lake, "_require", required)
    with pytest.raises(ServiceUnavailableError, match="another driver was faster"):
        former.append(Txid(1), files)
    assert rows_of(lake) == (up_to(1) if between == "append" else [])
    assert lake_of(bolt).append(Txid(1), files) is (between == "take_over")
    assert rows_of(lake) == up_to(1)


def test_the_library_takes_a_repeated_and_a_lower_transaction_but_not_two_by_one_reading(lake: Path) -> None:
    """What `Lake` relies on, and what it must do itself."""
    table = pa.table({"n": [1]})
    write_deltalake(lake, table)

    def commit(opened: DeltaTable, txid: int) -> None:
        properties = CommitProperties(app_transactions=[Transaction("app", txid)])
        opened.create_write_transaction([], "append", table.schema, commit_properties=properties)

    for txid in (7, 7, 3):
        commit(DeltaTable(lake), txid)
        assert DeltaTable(lake).transaction_version("app") == txid
    first, second = DeltaTable(lake), DeltaTable(lake)
    write_deltalake(lake, table, mode="append")
    commit(first, 8)
    for stale in (first, second):
        with pytest.raises(CommitFailedError, match="Concurrent transaction"):
            commit(stale, 9)
    second.update_incremental()
    commit(second, 9)
    assert DeltaTable(lake).transaction_version("app") == 9


def test_files_of_undone_attempts_are_never_appended_and_are_removed(
    database: StateBackend, url: str, lake: Path
) -> None:
    spout = OpaqueSpout(orders([ORDERS[0], ORDERS[1]]))
    with TopologyTest(topology_of(spout, DeltaTableBolt(lake)), database=url) as test:
        test.commit(2)
    bolt = built(DeltaTableBolt(lake))
    (undone,) = file_of(bolt, 2, [("z", 9)])
    (of_none,) = file_of(bolt, 3, [("z", 9)])
    (later,) = file_of(bolt, 4, [("z", 9)])
    assert [undone] == file_of(bolt, 2, [("z", 9)]), "the same tuples have got another file"
    follower(database, bolt, Notes(), current=4).send_committed()
    assert rows_of(lake) == up_to(2)
    file_of(bolt, 2, [("z", 9)])  # a driver that was frozen wakes up
    assert rows_of(lake) == up_to(2)
    (lake / undone.path).unlink()
    there = {str(path.relative_to(lake)) for path in lake.rglob("txstream-*/*/*.parquet")}
    assert there == {later.path, *(str(Path(uri).relative_to(lake)) for uri in DeltaTable(lake).file_uris())}
    assert not {undone.path, of_none.path} & there


# --- what others do to the table ------------------------------------------------------------------


@pytest.mark.usefixtures("filled")
def test_a_foreign_writer_a_compaction_and_a_vacuum_come_between(database: StateBackend, lake: Path) -> None:
    notes, current = Notes(), [Txid(2)]
    appending = follower(database, DeltaTableBolt(lake), notes, current=2)
    appending._current = lambda: current[0]
    appending.send_committed()
    write_deltalake(lake, pa.Table.from_pylist([{"customer": "theirs", "amount": 0}]), mode="append")
    current[0] = Txid(3)
    appending.send_committed()
    DeltaTable(lake).optimize.compact()
    removed = DeltaTable(lake).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert removed, "nothing was vacuumed"
    current[0] = Txid(4)
    with pytest.raises(DataLostError, match=r"lacks 1 file of a committed batch, .* with 2 rows"):
        appending.send_committed()
    assert rows_of(lake) == sorted([*up_to(2), ("theirs", 0)])
    assert DeltaTable(lake).transaction_version("sales/lake_files") == 2
    file_of(built(DeltaTableBolt(lake)), 3, ORDERS[2])  # brought back
    appending.disconnect()
    appending.send_committed()
    assert rows_of(lake) == sorted([*up_to(3), ("theirs", 0)])
    assert rows_of(lake, version_of(lake, "sales", 3)) == rows_of(lake)


def test_a_table_gets_a_column_that_the_bolt_has_got(database: StateBackend, url: str, lake: Path) -> None:
    with TopologyTest(
        topology_of(OpaqueSpout(orders()), DeltaTableBolt(lake, ["amount"])), database=url
    ) as test:
        test.commit(2)
    notes = Notes()
    follower(database, DeltaTableBolt(lake, ["amount"]), notes, current=2).send_committed()
    follower(database, DeltaTableBolt(lake), notes, current=3).send_committed()
    assert rows_of(lake) == [(None, 1), (None, 2), (None, 3), (None, 4)]
    bolt = built(DeltaTableBolt(lake))
    lake_of(bolt).append(Txid(3), file_of(bolt, 3, ORDERS[2]))
    found = DeltaTable(lake).to_pyarrow_table().to_pylist()
    assert [row for row in found if row["customer"]] == [
        {"amount": 5, "customer": "b"},
        {"amount": 6, "customer": "a"},
    ]


@pytest.mark.usefixtures("filled")
def test_a_folder_that_is_away_for_a_while(
    database: StateBackend, url: str, lake: Path, tmp_path: Path
) -> None:
    notes, bolt = Notes(), DeltaTableBolt(lake)
    follower(database, bolt, notes, current=2).send_committed()
    appending = follower(database, bolt, notes, current=4)
    away = lake.rename(tmp_path / "unmounted")
    with pytest.raises(ServiceUnavailableError, match="its folder is not there"):
        file_of(built(bolt), 4, [("z", 9)])
    for _ in range(2):
        with pytest.raises(DataLostError, match="is gone: its log is not there"):
            appending.send_committed()
        appending.disconnect()
        assert not lake.exists(), "a table was made where one was"
    away.rename(lake)
    appending.send_committed()
    assert (rows_of(lake), notes.sent) == (up_to(3), {"lake_files": 3})


def test_a_table_of_others_with_the_same_columns_becomes_the_bolts(
    database: StateBackend, lake: Path
) -> None:
    write_deltalake(lake, pa.Table.from_pylist([{"customer": "theirs", "amount": 0}]))
    bolt = built(DeltaTableBolt(lake))
    lake_of(bolt).append(Txid(5), file_of(bolt, 5, ORDERS[0]))
    assert rows_of(lake, version_of(lake, "sales", 4)) == [("theirs", 0)]
    assert rows_of(lake) == sorted([*ORDERS[0], ("theirs", 0)])


@pytest.mark.usefixtures("filled")
def test_a_rewind_restores_the_table_in_its_turn(database: StateBackend, url: str, lake: Path) -> None:
    notes = Notes()
    follower(database, DeltaTableBolt(lake), notes, current=3).send_committed()
    told = {"path": "rewind", "rewind": {"to": 1, "savepoint": None, "last": 2}}
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        connection.execute("UPDATE txstream_batch SET details = ? WHERE txid = 3", (json.dumps(told),))
        connection.execute("DELETE FROM lake_files WHERE txid = 3")
    for _ in range(2):
        follower(database, DeltaTableBolt(lake), notes, current=4).send_committed()
    assert rows_of(lake) == rows_of(lake, version_of(lake, "sales", 3)) == up_to(1)
    assert rows_of(lake, version_of(lake, "sales", 2)) == up_to(2)
    assert (DeltaTable(lake).transaction_version("sales/lake_files"), notes.sent) == (3, {"lake_files": 3})


@pytest.mark.soak
def test_a_restored_table_goes_on_with_the_columns_that_the_bolt_has_got(lake: Path) -> None:
    narrow, bolt = built(DeltaTableBolt(lake, ["amount"])), built(DeltaTableBolt(lake))
    lake_of(narrow).append(Txid(1), file_of(narrow, 1, [(1,)]))
    opened = lake_of(bolt, sent=Txid(1))
    for txid in (2, 3):
        opened.append(Txid(txid), file_of(bolt, txid, ORDERS[txid - 1]))
    DeltaTable(lake).optimize.compact()
    for _ in range(2):  # the second time it is done
        assert opened.restore(Txid(4), Txid(1))
    assert DeltaTable(lake).to_pyarrow_table().to_pylist() == [{"amount": 1, "customer": None}]
    opened.append(Txid(6), file_of(bolt, 6, [("d", 7)]))
    assert opened.restore(Txid(9), Txid(8))  # of what is undone, nothing has come here
    rows = DeltaTable(lake).to_pyarrow_table().sort_by("amount").to_pylist()
    assert rows == [{"amount": 1, "customer": None}, {"amount": 7, "customer": "d"}]
    assert DeltaTable(lake).transaction_version("sales/lake_files") == 9


def test_a_rewind_takes_out_no_rows_of_others(lake: Path, caplog: pytest.LogCaptureFixture) -> None:
    bolt = built(DeltaTableBolt(lake))
    opened = lake_of(bolt)
    for txid in (1, 2):
        opened.append(Txid(txid), file_of(bolt, txid, ORDERS[txid - 1]))
    write_deltalake(lake, pa.Table.from_pylist([{"customer": "theirs", "amount": 0}]), mode="append")
    assert not opened.restore(Txid(3), Txid(1))
    assert rows_of(lake) == sorted([*up_to(2), ("theirs", 0)])
    assert DeltaTable(lake).transaction_version("sales/lake_files") == 3
    assert "keeps the rows of txid 2 to 2, which were undone by a rewind: others have" in caplog.text


@pytest.mark.soak
def test_who_has_compared_before_another_driver_leads_cannot_restore(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bolt = built(DeltaTableBolt(lake))
    former = lake_of(bolt)
    for txid in (1, 2):
        former.append(Txid(txid), file_of(bolt, txid, ORDERS[txid - 1]))

    def looked_up(*given: Any) -> int | None:
        lake_of(bolt, sent=Txid(2))
        return last_not_after(*given)

    monkeypatch.setattr(lake_module, "last_not_after", looked_up)
    with pytest.raises(ServiceUnavailableError, match="another driver was faster"):
        former.restore(Txid(3), Txid(1))
    assert rows_of(lake) == up_to(2)


# --- what is refused ------------------------------------------------------------------------------


def made(lake: Path, sql: str, **options: Any) -> None:
    DeltaTable.create(str(lake), parse_schema(sql), **options)


def constrained(lake: Path) -> None:
    made(lake, COLUMNS)
    DeltaTable(lake).alter.add_constraint({"positive": "amount > 0"})


REFUSED: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "another topology": (
        lambda lake: lake_of(built(DeltaTableBolt(lake)), topology="other"),
        IdentityMismatchError,
        "belongs to another topology",
    ),
    "another life": (
        lambda lake: lake_of(built(DeltaTableBolt(lake)), uuid="former"),
        IdentityMismatchError,
        "an earlier life of this one",
    ),
    "another bolt": (
        lambda lake: lake_of(built(DeltaTableBolt(lake, table="other"))),
        IdentityMismatchError,
        "belongs to another",
    ),
    "another type": (
        lambda lake: made(lake, "customer string, amount int"),
        StateTableError,
        "column 'amount' is .*integer.* there and .*long.* here",
    ),
    "another case": (
        lambda lake: made(lake, "Customer string, amount bigint"),
        StateTableError,
        "differs in case",
    ),
    "not null": (
        lambda lake: made(lake, pa.schema([pa.field("more", pa.int64(), nullable=False)])),
        StateTableError,
        "column 'more' may not be null there",
    ),
    "another partitioning": (
        lambda lake: made(lake, COLUMNS, partition_by=["customer"]),
        StateTableError,
        r"is partitioned by \['customer'\], and the bolt has partition_by=\[\]",
    ),
    "a constraint": (
        constrained,
        StateTableError,
        "has .*delta.constraints.positive, with which files cannot be appended",
    ),
}


def test_tables_that_are_refused(tmp_path: Path) -> None:
    wrong = []
    for name, (make, kind, words) in REFUSED.items():
        lake = tmp_path / name
        make(lake)
        before = DeltaTable(lake).version()
        try:
            lake_of(built(DeltaTableBolt(lake)))
        except TxstreamError as error:
            if not isinstance(error, kind) or not re.search(words, str(error)):
                wrong.append(f"{name}: {error!r}")
        else:
            wrong.append(f"{name}: taken")
        if "another" in words and DeltaTable(lake).version() != before:
            wrong.append(f"{name}: changed")
    assert not wrong, "\n".join(wrong)


def test_a_table_that_was_restored_from_an_older_copy_is_refused(lake: Path, tmp_path: Path) -> None:
    bolt = built(DeltaTableBolt(lake))
    opened = lake_of(bolt)
    shutil.copytree(lake, tmp_path / "copy")
    opened.append(Txid(1), file_of(bolt, 1, ORDERS[0]))
    shutil.rmtree(lake)
    shutil.copytree(tmp_path / "copy", lake)
    with pytest.raises(ProgressMismatchError, match="is as of txid 0, but all up to txid 1 was appended"):
        lake_of(bolt, sent=Txid(1))


def test_declarations_that_are_refused(tmp_path: Path) -> None:
    declared: dict[str, tuple[Callable[[], Any], str]] = {
        "no address": (lambda: DeltaTableBolt(""), "has a path or a URL"),
        "an option": (lambda: DeltaTableBolt("s3://a/b", storage_options=cast(Any, {"n": 1})), "'n' is int"),
        "a partition": (lambda: built(DeltaTableBolt("/a", partition_by="city")), "none of its columns"),
        "only partitions": (
            lambda: built(DeltaTableBolt("/a", partition_by=["customer", "amount"])),
            "needs a column beside",
        ),
        "a field": (lambda: built(DeltaTableBolt("/a", ["city"])), "needs a field 'city'"),
        "a type of partition": (
            lambda: built(
                DeltaTableBolt("/a", partition_by="x"), OpaqueSpout(orders([[(1.5, 1)]], "x double, y int"))
            ),
            "cannot be partitioned by 'x'",
        ),
        "semantics": (lambda: built(DeltaTableBolt("/a"), NonTransactionalSpout(orders())), "opaque"),
    }
    wrong = []
    for name, (declare, words) in declared.items():
        try:
            declare()
        except TopologyError as error:
            if words not in str(error):
                wrong.append(f"{name}: {error}")
        else:
            wrong.append(f"{name}: taken")
    assert not wrong, "\n".join(wrong)


def test_a_version_that_is_not_there_is_refused(lake: Path) -> None:
    bolt = built(DeltaTableBolt(lake))
    lake_of(bolt).append(Txid(2), file_of(bolt, 2, ORDERS[0]))
    assert rows_of(lake, version_of(lake, "sales", 1)) == []
    with pytest.raises(UsageError, match="is as of txid 2; txid 3 is not in it"):
        version_of(lake, "sales", 3)
    with pytest.raises(UsageError, match="does not belong to topology 'other'"):
        version_of(lake, "other", 1)


def test_secrets_are_in_no_message() -> None:
    place = Place.of("s3://user:pa55word@lake/a?sig=t0ken", {"aws_secret_access_key": "s3cr3t", "v": "on"})
    told = [repr(DeltaTableBolt(place.uri, storage_options=place.options).state), str(place)]
    told.append(str(place.away("GET s3://user:pa55word@lake/a?sig=t0ken: s3cr3t is on a list")))
    assert not [one for one in told if re.search("pa55word|t0ken|s3cr3t", one)]
    assert "is on a list" in told[2]
    with pytest.raises(ServiceUnavailableError) as raised:
        Place.of("s3://lake/a", {"aws_access_key_id": "k3y", "aws_secret_access_key": "s3cr3t",
                 "aws_endpoint": "http://127.0.0.1:9", "allow_http": "true", "aws_region": "x",
                 "max_retries": "0", "retry_timeout": "1s"}).read()  # fmt: skip
    assert "s3cr3t" not in "".join(traceback.format_exception(raised.value))


def test_rows_keep_what_they_are(lake: Path) -> None:
    """Every type that a column may have, and every type that a partition may have."""
    given = {
        "text": "ü/=%", "day": date(2026, 1, 2), "at": datetime(2026, 1, 2, 3, 4, 5, 678, UTC),
        "plain": datetime(2026, 1, 2, 3, 4, 5), "exact": Decimal("-1.50"), "yes": True, "small": 7,
        "bytes": b"\0\xff", "ratio": 0.1, "many": [1, None], "both": {"a": 1, "b": None},
    }  # fmt: skip
    columns = parse_schema(
        "text string, day date, at timestamp, plain timestamp_ntz, exact decimal(10,2), yes boolean, "
        "small tinyint, bytes binary, ratio double, many array<int>, both struct<a: int, b: string>"
    )
    spout = OpaqueSpout(MemorySpout(columns, {"p/0": []}))
    for number, by in enumerate(([], ["text", "day"], ["at", "plain"], ["yes", "small"])):
        bolt = built(DeltaTableBolt(lake / str(number), partition_by=by), spout)
        opened = lake_of(bolt)
        rows = pa.Table.from_pylist([given, dict.fromkeys(given)], schema=columns)
        files = write_files(bolt.place, "sales", bolt.state.table, Txid(1), 0, rows, by)
        opened.append(Txid(1), files)
        found = DeltaTable(lake / str(number)).to_pyarrow_table().to_pylist()
        assert sorted(found, key=lambda row: row["text"] is None) == [given, dict.fromkeys(given)]


# --- the leader's part ----------------------------------------------------------------------------


class Store:
    """What a companion asks of a topology's store."""

    def __init__(self) -> None:
        self.noted: Mapping[str, Txid] = {"elsewhere_outbox": Txid(5), "orders": Txid(1), "dropped": Txid(2)}
        self.notes = self
        self.uuid = "u"

    def get(self, _: Any) -> Mapping[str, Txid]:
        return self.noted

    def put(self, _: Any, noted: Mapping[str, Txid]) -> None:
        self.noted = noted

    def read_identity(self) -> Any:
        return SimpleNamespace(uuid=self.uuid)


@pytest.mark.usefixtures("filled")
def test_the_companion_makes_the_table_and_notes_beside_others(database: StateBackend, lake: Path) -> None:
    shutil.rmtree(lake / "_delta_log", ignore_errors=True)
    builder = topology_of(OpaqueSpout(orders()), DeltaTableBolt(lake))
    builder.set_committer_bolt("sent", KafkaSinkBolt("elsewhere")).shuffle_grouping("orders")
    topology, store = builder.build(), Store()
    given: Any = (topology, SpoutContext("sales", "w", {}), [database], store, lambda: Txid(4))
    companion = delta_tables(Leading(*given))
    assert companion is not None
    table = DeltaTable(lake)
    assert (table.version(), table.transaction_version("sales/lake_files")) == (1, 0)
    companion.send_committed(is_last=True)
    assert rows_of(lake) == up_to(3)
    assert store.noted == {"elsewhere_outbox": 5, "lake_files": 3}
    assert DeltaTable(lake).version() == 4, "only a start leaves a version without a txid"
    store.uuid = "another"
    with pytest.raises(IdentityMismatchError):
        delta_tables(Leading(*given))
    without: Any = (SimpleNamespace(components=()), *given[1:])
    assert delta_tables(Leading(*without)) is None


def test_a_table_that_cannot_be_reached_delays_no_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    topology = topology_of(OpaqueSpout(orders()), DeltaTableBolt(tmp_path / "file" / "lake")).build()
    given: Any = (topology, SpoutContext("sales", "w", {}), [], Store(), lambda: Txid(1))
    companion = delta_tables(Leading(*given))
    assert companion is not None
    with pytest.raises(ServiceUnavailableError):
        companion._sender(companion._outboxes[0])
