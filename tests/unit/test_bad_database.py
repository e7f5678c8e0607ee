"""A database becomes full, read-only or damaged while a topology runs: nothing is lost, and it goes on."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.pool import Pool
from support.bolts import Passing
from support.mending import Mending
from support.tables import execute, read_counts
from support.upgrading import COUNTS, ROWS, SPOUTS, counts, storing

from txstream.api.bolts import OutputCollector
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Sum
from txstream.api.spouts import OpaqueSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.api.tuples import Tuple
from txstream.bolts.sql import SqlStateBolt
from txstream.core.errors import ServiceUnavailableError, StateTableError, StateValueError
from txstream.spouts.memory import MemorySpout
from txstream.state import open_database
from txstream.testing import TopologyTest

BALLAST = "word-that-needs-room-" + "x" * 200
PATHS = pytest.mark.parametrize("path", ["driver", "executors"])


def mounted(folder: Path, *options: str) -> bool:
    """Mount something on `folder`; return whether it worked. Only root may, and not in every container."""
    command = shutil.which("mount")
    return (
        command is not None
        and subprocess.run([command, *options, str(folder)], capture_output=True, check=False).returncode == 0
    )


@contextlib.contextmanager
def pragma(name: str) -> Iterator[Callable[[int | None], None]]:
    """Give a function that sets a pragma on connections taken from a pool from then on; None sets nothing."""
    value: list[int | None] = [None]

    def checkout(connection: Any, _record: object, _proxy: object) -> None:
        if value[0] is not None:
            connection.execute(f"PRAGMA {name} = {value[0]}").close()

    sa.event.listen(Pool, "checkout", checkout)
    try:
        yield lambda new: value.__setitem__(0, new)
    finally:
        sa.event.remove(Pool, "checkout", checkout)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], None], Callable[[], None]]]:
    """A folder, a function that fills its disk, and one that makes room again. Where nothing can be mounted,
    SQLite itself limits the file's pages and fails with the same code."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if mounted(folder, "-t", "tmpfs", "-o", "size=4m", "tmpfs"):
        ballast = folder / "ballast"

        def fill() -> None:
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 4096)

        try:
            yield folder, fill, lambda: ballast.unlink()
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
    else:
        with pragma("max_page_count") as limit:
            yield folder, lambda: limit(1), lambda: limit(2**30)


@contextlib.contextmanager
def read_only_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make `folder` read-only, even for root. Where nothing can be mounted, `os.access` says that it is."""
    if mounted(folder, "-o", "bind,ro", str(folder)):
        try:
            yield
        finally:
            subprocess.run(["umount", str(folder)], check=True)
    else:
        with monkeypatch.context() as patch:
            patch.setattr(os, "access", lambda _name, mode: not mode & os.W_OK)
            yield


def ledger(url: str) -> list[tuple[int, str]]:
    database = open_database(url)
    found: list[tuple[int, str]] = [(row.txid, row.status) for row in database.batches("words")]
    database.close()
    return found


@SPOUTS
@PATHS
def test_a_full_disk(
    small_disk: tuple[Path, Callable[[], None], Callable[[], None]],
    monkeypatch: pytest.MonkeyPatch,
    spout: Any,
    path: str,
) -> None:
    folder, fill, make_room = small_disk
    url = f"sqlite:///{folder / 'state.db'}"
    # Every batch has enough new keys to make the file grow.
    many = [(f"{BALLAST}{number}", 1) for number in range(136)]
    rows = [*ROWS, *many]
    expected = {**COUNTS, **{word: 1 for word, _ in many}}
    with (
        MemorySpout("word string, x bigint", {"p": rows}) as source,
        TopologyTest(storing(source, spout, counts(), batch=48, commit=path), database=url) as test,
    ):
        test.commit(1)
        before = read_counts(url, "counts")
        trouble = Mending(2, fill, make_room, lambda: (read_counts(url, "counts"), ledger(url)[0]))
        trouble.watch(monkeypatch)
        test.run()
        assert test.table("counts") == expected
    assert all(isinstance(error, ServiceUnavailableError) for error in trouble.errors)
    assert "full" in str(trouble.errors[0])
    assert trouble.seen[0] == (before, (1, "committed"))
    assert [status for _, status in ledger(url)] == ["committed"] * len(ledger(url))


@SPOUTS
@PATHS
def test_a_database_that_becomes_read_only(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, spout: Any, path: str
) -> None:
    with (
        MemorySpout("word string, x bigint", {"p": ROWS}) as source,
        pragma("query_only") as read_only,
        TopologyTest(storing(source, spout, counts(), commit=path), database=sqlite_url) as test,
    ):
        test.commit(1)
        trouble = Mending(
            2, lambda: read_only(1), lambda: read_only(0), lambda: (test.table("counts"), ledger(sqlite_url))
        )
        trouble.watch(monkeypatch)
        test.run()
        assert test.table("counts") == COUNTS
    assert trouble.seen == [({"a": 1, "b": 1}, [(1, "committed")])] * 2
    for error in trouble.errors:
        assert isinstance(error, ServiceUnavailableError)
        assert "readonly database" in str(error)
    assert ledger(sqlite_url) == [(txid, "committed") for txid in (1, 2, 3, 4)]


def test_a_file_system_that_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start refuses it. Once it can be written again, the topology resumes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    url = f"sqlite:///{folder / 'state.db'}"
    with MemorySpout("word string, x bigint", {"p": ROWS}) as source:
        topology = storing(source, OpaqueSpout, counts())
        with TopologyTest(topology, database=url) as test:
            test.commit(2)
            test.crash()
            with (
                read_only_folder(folder, monkeypatch),
                pytest.raises(ServiceUnavailableError, match=r"cannot be written.*--database"),
            ):
                test.restart()
            test.restart()
            test.run()
            assert test.table("counts") == COUNTS


class Modest(Passing):
    """Lets small numbers through."""

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup["x"] < 100:
            collector.emit(tup.values)


def small_sums(source: MemorySpout, spout: Any, bolt: Passing) -> Topology:
    builder = TransactionalTopologyBuilder("words", "rows", spout(source, max_batch_records=2))
    builder.set_bolt("passing", bolt).fields_grouping("rows", "word")
    small = SqlStateBolt(SqlState("small", "word string", "n tinyint"), n=Sum("x"))
    builder.set_committer_bolt("store", small).fields_grouping("passing", "word")
    return builder.build()


@SPOUTS
def test_a_sum_that_does_not_fit(sqlite_url: str, spout: Any) -> None:
    """It ends the run. A run with code that adds less goes on from there."""
    rows = [("a", 27), ("b", 1), ("a", 101), ("b", 1), ("a", 1), ("c", 1)]
    with (
        MemorySpout("word string, x bigint", {"p": rows}) as source,
        TopologyTest(small_sums(source, spout, Passing()), database=sqlite_url) as test,
    ):
        told = r"'small', key word='a': column 'n' \(tinyint\) cannot hold 27 \+ 101 = 128, found in txid 2"
        with pytest.raises(StateValueError, match=told):
            test.run()
        assert test.table("small") == {"a": 27, "b": 1}
        assert ledger(sqlite_url) == [(1, "committed")]
        test.restart()
        with pytest.raises(StateValueError, match="txid 2"):
            test.run()
        test.restart(small_sums(source, spout, Modest()))
        test.run()
        assert test.table("small") == {"a": 28, "b": 2, "c": 1}


def test_a_table_that_somebody_altered(sqlite_url: str) -> None:
    with (
        MemorySpout("word string, x bigint", {"p": ROWS}) as source,
        TopologyTest(storing(source, OpaqueSpout, counts()), database=sqlite_url) as test,
    ):
        test.commit(2)
        test.crash()
        execute(sqlite_url, "ALTER TABLE counts ADD COLUMN note TEXT")
        with pytest.raises(StateTableError, match="column 'note' is not ours"):
            test.restart()
        execute(sqlite_url, "ALTER TABLE counts DROP COLUMN note")
        test.restart()
        test.run()
        assert test.table("counts") == COUNTS
