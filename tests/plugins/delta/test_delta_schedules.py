"""Drivers that write, commit, append, die and sleep in any order, on a real Delta table; what SQL has decided
is a dict. After each step the table is what the first committed txids say, and in the end it has all."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from guards import GUARDS
from guards.patch import Patch, in_force
from txstream.core.errors import ServiceUnavailableError
from txstream.core.transaction import Txid
from txstream.plugins.delta.files import WrittenFile, write_files
from txstream.plugins.delta.lake import Lake
from txstream.plugins.delta.place import Place

COLUMNS = pa.schema([("txid", pa.int64()), ("attempt", pa.int64())])
TXIDS = 5
SEEDS = int(os.environ.get("TXSTREAM_DELTA_SEEDS", "60"))


class DiedError(Exception):
    """The driver has died here."""


class WrongTableError(Exception):
    """The Delta table is not what SQL has decided."""


class World:
    """Two drivers over one SQL database and one Delta table. `committed` has attempt and files by txid."""

    def __init__(self, folder: Path, seed: int, *, before_sql: bool = False) -> None:
        self.chance = random.Random(seed)
        self.place = Place.of(folder)
        self.before_sql = before_sql
        self.attempt = 0
        self.committed: dict[int, tuple[int, list[WrittenFile]]] = {}
        self.lakes: list[Lake | None] = [None, None]
        self.depth = 0
        self.story: list[str] = []

    def step(self) -> None:
        """Let one of the drivers do something, and perhaps the other one in the middle of it."""
        driver = self.chance.randrange(2)
        do = self.chance.choice(
            [self.process, self.process, self.append, self.append, self.die, self.compact]
        )
        self.story.append(f"{'  ' * self.depth}driver {driver}: {do.__name__}")
        try:
            do(driver)
        except (DiedError, ServiceUnavailableError) as error:
            self.story.append(f"{'  ' * self.depth}driver {driver}: {type(error).__name__}")
            self.lakes[driver] = None

    def process(self, driver: int) -> None:
        """Write an attempt of the next txid; SQL commits it, or another attempt will be."""
        txid = len(self.committed) + 1
        if txid > TXIDS:
            return
        self.attempt += 1
        attempt = self.attempt
        rows = pa.table({"txid": [txid], "attempt": [attempt]}, schema=COLUMNS)
        files = write_files(self.place, "t", "f", Txid(txid), 0, rows, ())
        if self.before_sql:
            self.opened(driver).append(Txid(txid), files)
        if self.chance.random() < 0.6 and txid == len(self.committed) + 1:
            self.committed[txid] = attempt, files

    def append(self, driver: int) -> None:
        """Append what SQL has committed, as a follower does: in order, from the last txid that it knows."""
        lake = self.opened(driver)
        for txid in range(1, len(self.committed) + 1):
            files = self.committed[txid][1]
            lake.append(Txid(txid), files)
            lake.remove_undone(Txid(txid), files)

    def die(self, driver: int) -> None:
        self.lakes[driver] = None

    def compact(self, driver: int) -> None:
        if DeltaTable.is_deltatable(self.place.uri):
            DeltaTable(self.place.uri).optimize.compact()

    def opened(self, driver: int) -> Lake:
        lake = self.lakes[driver]
        if lake is None:
            lake = Lake(self.place, "t", "u", "f")
            lake.take_over(COLUMNS, (), None)
            self.lakes[driver] = lake
        return lake

    def between(self, _: str) -> None:
        """Called before and after each commit to the Delta table, and once it was compared."""
        if self.depth < 2 and self.chance.random() < 0.3:
            self.depth += 1
            try:
                self.step()
            finally:
                self.depth -= 1
        if self.chance.random() < 0.2:
            raise DiedError

    def check(self, *, is_last: bool = False) -> None:
        if not DeltaTable.is_deltatable(self.place.uri):
            return
        found = DeltaTable(self.place.uri)
        rows = sorted((row["txid"], row["attempt"]) for row in found.to_pyarrow_table().to_pylist())
        last = found.transaction_version("t/f")
        expected = [(txid, self.committed[txid][0]) for txid in sorted(self.committed) if txid <= last]
        if rows != expected or (is_last and last != TXIDS):
            told = "\n".join(self.story)
            raise WrongTableError(
                f"as of txid {last} it has {rows} instead of {expected}; it went so:\n{told}"
            )


@contextmanager
def watched(world: World) -> Iterator[None]:
    """Let `world.between` be called at each write to the Delta table."""
    commit: Callable[..., Any] = DeltaTable.create_write_transaction
    require = Lake._require

    def committing(table: DeltaTable, *given: Any, **named: Any) -> None:
        world.between("before the commit")
        commit(table, *given, **named)
        world.between("after the commit")

    def required(lake: Lake, files: Any) -> None:
        require(lake, files)
        world.between("after the comparison")

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(DeltaTable, "create_write_transaction", committing)
        patches.setattr(Lake, "_require", required)
        yield


def play(folder: Path, seed: int, *, before_sql: bool = False) -> None:
    """Play a schedule to its end. Raises WrongTableError."""
    folder.mkdir()
    world = World(folder, seed, before_sql=before_sql)
    with watched(world):
        for _ in range(25):
            world.step()
            world.check()
    while len(world.committed) < TXIDS:
        world.before_sql = False
        world.process(0)
    world.lakes = [None, None]
    world.append(0)
    world.check(is_last=True)


@pytest.mark.soak
def test_schedules_end_with_each_txid_once(tmp_path: Path) -> None:
    for seed in range(SEEDS):
        play(tmp_path / str(seed), seed)


def found(folder: Path, **options: bool) -> bool:
    """Whether some schedule shows that something is wrong."""
    for seed in range(SEEDS):
        try:
            play(folder / str(seed), seed, **options)
        except WrongTableError:
            return True
    return False


@pytest.mark.soak
def test_they_find_what_is_appended_before_sql_has_decided(tmp_path: Path) -> None:
    assert found(tmp_path, before_sql=True)


@pytest.mark.soak
def test_they_find_the_guards_of_a_commit_that_are_missing(tmp_path: Path) -> None:
    names = {
        "what the table has is not appended again",
        "files are appended by the reading that was compared",
        "no attempt changes a file of another one",
    }
    patches: list[tuple[str, Patch]] = [(one.what, one.patch) for one in GUARDS if one.what in names]
    assert len(patches) == len(names)
    missed = []
    for number, (what, patch) in enumerate(patches):
        (tmp_path / str(number)).mkdir()
        with in_force([patch]):
            if not found(tmp_path / str(number)):
                missed.append(what)
    assert not missed
