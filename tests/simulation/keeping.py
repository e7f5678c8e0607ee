"""The world of a topology whose tables keep rows for a time, on machines whose clocks differ and jump.

The oracle knows when each row of the log was made, and reads from the ledger which records each batch counted
and behind which time it called them late. From that it computes what each table must hold: no row that
was to be removed, and of every other row all that was ever counted for it. So a key that begins anew after it
was removed shows, and so does a record that nobody counted though it was not late.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from simulation.histories import REAL, MutableWorld, Rules, tell_of
from txstream import (
    Count,
    DeadLetters,
    MemorySpout,
    OpaqueSpout,
    SqlAppendBolt,
    SqlState,
    SqlStateBolt,
    SqlTable,
    TransactionalSpout,
    TransactionalTopologyBuilder,
)
from txstream.core.semantics import Semantics
from txstream.plugins.proof.simulation.chances import Chances
from txstream.plugins.proof.simulation.driver import SimulatedDriver
from txstream.plugins.proof.simulation.program import Program
from txstream.plugins.proof.simulation.world import FAULTS, WrongResultError
from txstream.state.records import COMMITTED
from txstream.state.stored_letters import DEAD
from txstream.zookeeper import Kind, OperatorRequests
from txstream.zookeeper.paths import ROOT, Paths

KEEP_FAULTS: Mapping[str, float] = {**FAULTS, "clock jumps": 0.05, "retry asked": 0.01}
STEPS = 80
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
KEPT_SECONDS = 100
_FIELDS = "topic string, partition int, offset bigint, at timestamp, word string"
# When the rows of each partition were made, in seconds after the beginning, and what they count.
_MADE = {
    "rows/0": [
        (0, "a"),
        (-120, "a"),
        (60, "a"),
        (0, "b"),
        (0, "a"),
        (120, "a"),
        (-60, "b"),
        (60, "a"),
        (0, "a"),
    ],
    "rows/1": [(0, "a"), (-300, "b"), (60, "b"), (-60, "a"), (180, "a"), (0, "a"), (60, "a"), (300, "b")],
}
ROWS: dict[str, list[tuple[Any, ...]]] = {
    name: [
        ("rows", number, offset, BEGIN + timedelta(seconds=seconds), word)
        for offset, (seconds, word) in enumerate(made)
    ]
    for number, (name, made) in enumerate(_MADE.items())
}


@functools.cache
def program_of(semantics: Semantics, databases: int) -> Program:
    spout: Any = OpaqueSpout if semantics is Semantics.OPAQUE else TransactionalSpout
    keep = f"{KEPT_SECONDS}s"
    with MemorySpout(_FIELDS, {"none": []}) as source:
        builder = TransactionalTopologyBuilder(
            "t", "rows", spout(source), max_attempts=100, dead_letters=DeadLetters(max_per_batch=1)
        )
        rows = SqlTable("rows", "at timestamp, word string", keep=keep)
        builder.set_bolt("append", SqlAppendBolt(rows), 2).shuffle_grouping("rows")
        url = "memory://two" if databases == 2 else None
        counts = SqlState("counts", key="at timestamp, word string", value="n bigint", keep=keep, url=url)
        builder.set_bolt("count", SqlStateBolt(counts, n=Count()), 2).fields_grouping("rows", "word")
        return Program(builder.build(), ROWS)


class KeepDriver(SimulatedDriver):
    """A driver that operators steer."""

    def _start(self) -> None:
        super()._start()
        if self.loop is not None:
            self.store.tell_of_requests()


@dataclass
class KeepWorld(MutableWorld):
    """A world in which time passes, differently on each machine."""

    elapsed: float = 0.0
    skews: dict[int, int] = field(default_factory=dict)
    told: Counter[str] = field(default_factory=Counter)

    def wall_clock(self, driver: int) -> float:
        if driver not in self.skews or self.happens("clock jumps"):
            self.skews[driver] = self.chances.between(0, 160) - 80
        return BEGIN.timestamp() + self.elapsed + self.skews[driver]

    def driver_of(self, program: Program, number: int) -> SimulatedDriver:
        return KeepDriver(self, number, program)

    def _step(self) -> None:
        self.elapsed += self.chances.below(8)
        if self.happens("retry asked"):
            self.ask()
        super()._step()

    def ask(self) -> None:
        """Ask for a retry. Drivers that have begun are told of it."""
        self.note("an operator asks for a retry")
        with self._without_faults():
            OperatorRequests(self.tree, Paths(ROOT, self.topology_id)).ask(Kind.RETRY, {})
        for driver in self.drivers:
            if driver.is_alive and driver.loop is not None:
                driver.store.tell_of_requests()

    # --- the oracle -----------------------------------------------------------------------------------

    def committed(self, driver: SimulatedDriver, attempt: Any) -> None:
        super().committed(driver, attempt)
        with self._without_faults():
            wrong = self._wrong_rows(driver)
        if wrong is not None:
            self.wrong = self.wrong or WrongResultError(f"after the commit of {attempt}, {wrong}")

    def _check(self, when: str) -> None:
        super()._check(when)
        wrong = self._wrong_rows(self.drivers[-1]) or self._wrong_letters()
        if wrong is not None:
            raise WrongResultError(f"{when}, {wrong}")

    def _wrong_rows(self, driver: SimulatedDriver) -> str | None:
        """Say how the tables differ from what the ledger says of them; None if they do not."""
        for target in driver.targets:
            ledger = target.database.batches(self.topology_id)
            if not ledger or ledger[-1].status != COMMITTED:
                continue  # another driver may have begun the next commit
            batches = self._decoded(row for row in ledger if row.status == COMMITTED)
            for spec in target.tables:
                table = spec.state.table
                found = {
                    tuple(row[name] for name in spec.state.key_names): tuple(
                        row[name] for name in spec.state.value_names
                    )
                    for row in target.database.top(table, topology=self.topology_id, n=1_000)
                }
                wrong = self._wrong_table(table, found, batches)
                if wrong is not None:
                    return wrong
        return None

    def _wrong_table(self, table: str, found: Mapping[Any, Any], batches: list[Any]) -> str | None:
        whole: dict[tuple[Any, ...], Any] = {}
        removed = float("-inf")  # what commits have removed so far is older
        horizon = float("-inf")
        for txid, metas in enumerate(batches, 1):
            removed, horizon = max(removed, horizon), metas.horizons.get(table, float("-inf"))
            for row in _counted(metas):
                made = row[3].timestamp()
                if made < removed:
                    return f"txid {txid} counts {row}, though rows of {table} of that time are removed"
                if table == "rows":
                    whole[row[:3]] = row[3:]
                else:
                    whole[row[3:]] = (whole.get(row[3:], (0,))[0] + 1,)
            for one in metas.excluded:
                made = ROWS[one.partition][one.offset][3].timestamp()
                if made >= max(metas.horizons.values(), default=float("-inf")):
                    return f"txid {txid} leaves out {one}, which is not late"
                self.told["late"] += 1
            newest = BEGIN.timestamp() + self.elapsed + 80 - KEPT_SECONDS
            if horizon > newest:
                return f"txid {txid} calls late what is before {horizon}, which no clock says"
        kept = {key: values for key, values in whole.items() if _time_of(table, key, values) >= removed}
        self.told["removed"] += len(whole) - len(kept)
        if dict(found) != kept:
            return f"table {table!r} is {dict(found)}, not {kept}"
        return None

    def _wrong_letters(self) -> str | None:
        """Say how the dead letters differ from what batches have left out; None if they do not."""
        first = self.drivers[-1].targets[0].database
        batches = self._decoded(first.batches(self.topology_id))
        left_out = Counter(f"{one.partition}@{one.offset}" for metas in batches for one in metas.excluded)
        letters = Counter(one.place for one in first.dead_letters(self.topology_id))
        retried = [key.place for metas in batches for key in metas.retried]
        status = [one.place for one in first.dead_letters(self.topology_id) if one.status != DEAD]
        if left_out != letters or any(times > 1 for times in letters.values()):
            return f"batches leave out {left_out}, and dead letters are {letters}"
        # No clock goes back by as much as a horizon goes on: what was late stays so.
        if retried or status:
            return f"late records {retried} or {status} were retried"
        return None


def _counted(metas: Any) -> list[tuple[Any, ...]]:
    """Return the rows that a batch counts."""
    out = {(one.partition, one.offset) for one in metas.excluded}
    return [
        ROWS[name][at]
        for name, taken in metas.partitions.items()
        for at in range(taken.start, taken.end)
        if (name, at) not in out
    ]


def _time_of(table: str, key: tuple[Any, ...], values: tuple[Any, ...]) -> float:
    made: datetime = values[0] if table == "rows" else key[0]
    return made.timestamp()


def simulate_keeping(
    seed: int,
    semantics: Semantics,
    databases: int = 1,
    rules: Rules = REAL,
    more: Mapping[str, float] | None = None,
    look: Callable[[KeepWorld], None] = lambda _: None,
) -> KeepWorld:
    """Run one history. Raises AssertionError, with the history and the seed, when anything is not right."""
    world = KeepWorld(
        program_of(semantics, databases),
        Chances(seed),
        None,
        {**KEEP_FAULTS, **(more or {})},
        STEPS,
        rules=rules,
    )
    look(world)
    return tell_of(world, f"seed {seed}, {semantics} spout")
