"""The world of a topology that counts by windows, on machines whose clocks differ and jump.

The oracle (`support.window_oracle`) knows the rows of the log, and reads from the ledger which of them each
batch took and what its metas say. From that it computes what must be late, counted and closed after each
commit, in each database.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from support.window_oracle import expected

from simulation.histories import REAL, Rules, tell_of
from simulation.keeping import KEEP_FAULTS, ROWS, STEPS, KeepWorld
from txstream import (
    Count,
    DeadLetters,
    MemorySpout,
    OpaqueSpout,
    SqlState,
    SqlStateBolt,
    TransactionalSpout,
    TransactionalTopologyBuilder,
    Tumbling,
    WindowBolt,
    WindowState,
)
from txstream.core.semantics import Semantics
from txstream.plugins.proof.simulation.chances import Chances
from txstream.plugins.proof.simulation.program import Program
from txstream.state.records import COMMITTED

MINUTE = 60_000_000
GRACE = 10_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RECORDS = {
    name: [((row[3] - _EPOCH) // timedelta(microseconds=1), row[4]) for row in rows]
    for name, rows in ROWS.items()
}
_FIELDS = "topic string, partition int, offset bigint, at timestamp, word string"


@functools.cache
def program_of(semantics: Semantics, late: Any, databases: int) -> Program:
    spout: Any = OpaqueSpout if semantics is Semantics.OPAQUE else TransactionalSpout
    with MemorySpout(_FIELDS, {"none": []}) as source:
        builder = TransactionalTopologyBuilder(
            "t", "rows", spout(source), max_attempts=100, dead_letters=DeadLetters(max_per_batch=1)
        )
        window = Tumbling("1m", time="at", grace="10s")
        url = "memory://two" if databases == 2 else None
        minutes = WindowState(
            "clicks", key="word string", value="n bigint", window=window, late=late, url=url
        )
        builder.set_bolt("windows", WindowBolt(minutes, n=Count()), 2).fields_grouping("rows", "word")
        words = SqlState("words", key="word string", value="n bigint")
        builder.set_bolt("count", SqlStateBolt(words, n=Count()), 2).fields_grouping("rows", "word")
        return Program(builder.build(), ROWS)


def _minute(time: int) -> list[tuple[int, int]]:
    return [(time // MINUTE * MINUTE, time // MINUTE * MINUTE + MINUTE)]


@dataclass
class WindowWorld(KeepWorld):
    """A world in which windows close."""

    amend: bool = False

    def _wrong_rows(self, driver: Any) -> str | None:
        for target in driver.targets:
            ledger = target.database.batches(self.topology_id)
            if not ledger or ledger[-1].status != COMMITTED:
                continue  # another driver may have begun the next commit
            metas = {row.txid: row.metas for row in ledger}
            wanted = expected(_RECORDS, metas, _minute, GRACE, amend=self.amend)
            out = {(name, at) for one in metas.values() for name, at, *_ in one.get("excluded", ())}
            if out != wanted.late:
                return f"batches leave out {sorted(out)}, and late are {sorted(wanted.late)}"
            for spec in target.tables:
                found = target.database.top(spec.state.table, topology=self.topology_id, n=1_000)
                wrong = self._wrong_counts(spec.state.table, found, wanted.rows)
                if wrong is not None:
                    return wrong
            self.told["late"] += bool(wanted.late)
            self.told["closed"] += bool(wanted.closed_in)
        return None

    def _wrong_counts(self, table: str, found: Any, rows: Mapping[Any, tuple[int, bool]]) -> str | None:
        whole: dict[Any, Any] = {}
        if table == "clicks":
            there = {
                (row["word"], (row["window_start"] - _EPOCH) // timedelta(microseconds=1)): (
                    row["n"],
                    row["closed"],
                )
                for row in found
            }
            whole = dict(rows)
        else:
            there = {row["word"]: row["n"] for row in found}
            for (word, _), (n, _) in rows.items():
                whole[word] = whole.get(word, 0) + n
        return None if there == whole else f"table {table!r} is {there}, not {whole}"


def simulate_windows(
    seed: int,
    semantics: Semantics,
    late: str,
    databases: int = 1,
    rules: Rules = REAL,
    look: Callable[[WindowWorld], None] = lambda _: None,
) -> WindowWorld:
    """Run one history. Raises AssertionError, with the history and the seed, when anything is not right."""
    world = WindowWorld(
        program_of(semantics, late, databases),
        Chances(seed),
        None,
        {**KEEP_FAULTS},
        STEPS,
        rules=rules,
        amend=late == "amend",
    )
    look(world)
    return tell_of(world, f"seed {seed}, {semantics} spout, late={late}")
