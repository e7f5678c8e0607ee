"""What earlier releases stored is read, and topologies go on from it; what is public is what is written down.

tests/releases/ holds a database, znodes and ranges of each release, made by tools/release_fixture.py.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.release_topologies import METAS, ORDERS, POISON, SCHEMA, SEMANTICS, orders, spent

import public_api
from release_fixture import RELEASES
from tracked_wheel import ROOT
from txstream.core.batch_metas import BatchMetas, MetaCodec
from txstream.inspect.plain_metas import PlainCodec
from txstream.spouts.memory import MemorySpout
from txstream.state import open_sql_database
from txstream.testing import TopologyTest

FOLDERS = sorted(RELEASES.iterdir())
of_each_release = pytest.mark.parametrize("release", FOLDERS, ids=lambda folder: folder.name)


def load(release: Path, file: Path) -> None:
    with closing(sqlite3.connect(file)) as database:
        database.executescript((release / "state.sql").read_text(encoding="utf-8"))


@contextmanager
def stored(release: Path, semantics: str, file: Path) -> Iterator[TopologyTest]:
    """Yield a driver of this version that has started on what the release stored."""
    load(release, file)
    with closing(open_sql_database(f"sqlite:///{file}")) as database:
        database.upgrade()
    znodes = json.loads((release / "znodes.json").read_text(encoding="utf-8"))
    with MemorySpout(SCHEMA, ORDERS) as source:
        test = TopologyTest(orders(semantics, source), database=f"sqlite:///{file}")
        for path, text in znodes[test.topology.id].items():
            test.zookeeper[path] = text
        with test:
            yield test


@of_each_release
@pytest.mark.parametrize("semantics", SEMANTICS)
def test_a_topology_goes_on_from_what_a_release_stored(release: Path, semantics: str, tmp_path: Path) -> None:
    """The release's driver was killed when the database had batch 3 and ZooKeeper did not."""
    with stored(release, semantics, tmp_path / "state.db") as test:
        assert test.current == 4
        assert [attempt.id.txid for attempt in test.run()] == [4]
        table = test.table(f"{semantics}_spent")
        assert {key: figures for key, (*figures, _) in table.items()} == spent()
    with closing(sqlite3.connect(tmp_path / "state.db")) as database:
        letters = database.execute(
            "SELECT txid, place, component, status FROM txstream_dead_letter WHERE topology = ?",
            [f"{semantics}-orders"],
        ).fetchall()
        batches = database.execute(
            "SELECT txid, tuples, status FROM txstream_batch WHERE topology = ? ORDER BY txid",
            [f"{semantics}-orders"],
        ).fetchall()
    assert letters == [(2, "p0@3", "check", "dead")]
    assert batches == [(1, 4, "committed"), (2, 3, "committed"), (3, 4, "committed"), (4, 4, "committed")]
    assert POISON in {note for *_, note in ORDERS["p0"]}


@of_each_release
def test_slots_that_a_release_granted_are_still_in_force(release: Path, tmp_path: Path) -> None:
    with stored(release, "opaque", tmp_path / "state.db") as test:
        attempt = test.process(4)
        assert {place.slot for place in attempt.places("check")} == {0}


@of_each_release
def test_every_ledger_row_of_a_release_is_read(release: Path, tmp_path: Path) -> None:
    load(release, tmp_path / "state.db")
    with closing(open_sql_database(f"sqlite:///{tmp_path / 'state.db'}")) as database:
        database.upgrade()
        for semantics in SEMANTICS:
            rows = database.batches(f"{semantics}-orders")
            assert [row.txid for row in rows] == [1, 2, 3]
            metas = [PlainCodec().decode(row.metas, "the ledger") for row in rows]
            assert [batch.partitions["p0"]["end"] for batch in metas] == [2, 4, 6]
            assert [len(batch.excluded) for batch in metas] == [0, 1, 0]


@of_each_release
@pytest.mark.parametrize("source", METAS)
def test_every_range_of_a_release_is_read(release: Path, source: str) -> None:
    """A field that the release did not have has its default, which is the value that stands here too."""
    document = json.loads((release / "metas.json").read_text(encoding="utf-8"))[source]
    meta = METAS[source]
    decoded: BatchMetas[Any] = MetaCodec(type(meta)).decode(document, "the release's file")
    assert dict(decoded.partitions) == {"lines/0": meta}
    assert dict(decoded.carried) == {"lines/1": meta}
    assert dict(decoded.unavailable) == {"lines/2": "away"}


def test_this_version_or_the_one_before_has_stored_something() -> None:
    names = {folder.name for folder in FOLDERS}
    assert "0.1" in names
    for folder in FOLDERS:
        assert {path.name for path in folder.iterdir()} == {"state.sql", "znodes.json", "metas.json"}


def test_what_is_public_is_what_was_written_down() -> None:
    """If this fails, what users call has changed: see docs/releases.md, then tools/public_api.py --write."""
    written = public_api.WRITTEN.read_text(encoding="utf-8").splitlines()
    found = public_api.lines()
    assert (sorted(set(written) - set(found)), sorted(set(found) - set(written))) == ([], [])


def test_the_changelog_has_this_version_and_deprecations_name_what_to_use() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = [part.splitlines()[0] for part in changelog.split("\n## ")[1:]]
    assert sections[0].startswith("[Unreleased]")
    for part in changelog.split("\n### Deprecated\n")[1:]:
        entries = [line for line in part.partition("\n##")[0].split("\n- ") if line.strip()]
        assert all("use `" in entry for entry in entries)
