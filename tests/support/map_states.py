"""A committer with states of its own, sources for it, and what must come out of it.

Account movements go to a ledger: a table of balances, and a table of how many batches each account was in.
The ledger emits each new balance. An account whose balance is a multiple of 5 is noted in a third table, so
that what one state answers decides what another one gets.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from txstream.api.bolts import BatchBolt, Committer, OutputCollector, TopologyContext
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.spouts import OpaqueSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.api.tuples import Tuple
from txstream.core.transaction import TransactionAttempt
from txstream.spouts.memory import MemorySpout
from txstream.testing import TopologyTest

FIELDS = "account string, amount bigint"
BALANCES = SqlState("balances", key="account string", value="balance bigint")
SEEN = SqlState("seen", key="account string", value="batches bigint")
ROUND = SqlState("round", key="account string, balance bigint", value="times bigint")

Movement = tuple[str, int]


def movements(count: int, accounts: int = 5, start: int = 0) -> list[Movement]:
    """Return movements of different amounts: a batch that is lost or counted twice shows in the sums."""
    return [(f"a{n * n % accounts}", 1 + n % 7) for n in range(start, start + count)]


def plus(amount: int) -> Callable[[int | None], int]:
    """Return an updater that adds to a value, or begins with the amount."""
    return lambda old: (old or 0) + amount


class Ledger(BatchBolt, Committer):
    """The committer that the module describes."""

    output = "account string, balance bigint"

    def __init__(self, **options: Any) -> None:
        self.states = {
            "balances": replace(BALANCES, **options),
            "seen": replace(SEEN, **options),
            "round": replace(ROUND, **options),
        }

    def prepare(
        self, context: TopologyContext, collector: OutputCollector, batch_id: TransactionAttempt
    ) -> None:
        super().prepare(context, collector, batch_id)
        self.balances = context.state("balances")
        self.amounts: defaultdict[str, int] = defaultdict(int)

    def execute(self, tup: Tuple) -> None:
        # Some are written at once and some at the end: together they are one write for each key.
        if tup["amount"] % 2:
            self.balances.update(tup["account"], plus(tup["amount"]))
        else:
            self.amounts[tup["account"]] += tup["amount"]

    def finish_batch(self) -> None:
        accounts = sorted(self.amounts)
        balances = self.balances.multi_update(accounts, [plus(self.amounts[account]) for account in accounts])
        self.context.state("seen").multi_update(accounts, plus(1))
        for account, balance in zip(accounts, balances, strict=True):
            self.collector.emit((account, balance))
            if balance % 5 == 0:
                self.context.state("round").update((account, balance), plus(1))


def bank(
    source: MemorySpout, bolt: BatchBolt | None = None, spout: Any = OpaqueSpout, **options: Any
) -> Topology:
    """Return a topology with three records of each partition to a batch, and two tasks for the ledger."""
    builder = TransactionalTopologyBuilder(
        "bank", "lines", spout(source, max_batch_records=6), max_spout_pending=3, **options
    )
    builder.set_bolt("ledger", bolt or Ledger(), 2).fields_grouping("lines", "account")
    return builder.build()


def expected(batches: Iterable[Iterable[Movement]]) -> dict[str, dict[Any, int]]:
    """Return the tables after these batches, worked out one record after the other."""
    balances: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    rounds: Counter[tuple[str, int]] = Counter()
    for batch in batches:
        late: Counter[str] = Counter()
        for account, amount in batch:
            if amount % 2:
                balances[account] += amount
            else:
                late[account] += amount
        for account, amount in late.items():
            balances[account] += amount
            seen[account] += 1
            if balances[account] % 5 == 0:
                rounds[account, balances[account]] += 1
    return {"balances": dict(balances), "seen": dict(seen), "round": dict(rounds)}


def committed(test: TopologyTest, records: Mapping[str, list[Movement]]) -> list[list[Movement]]:
    """Return the records of each committed batch, by the ranges of its last attempt."""
    batches = []
    for txid in range(1, test.current):
        attempt = test.attempts(txid)[-1]
        batches.append(
            [row for name, meta in attempt.partitions.items() for row in records[name][meta.start : meta.end]]
        )
    return batches


def check(test: TopologyTest, records: Mapping[str, list[Movement]]) -> None:
    """Assert that the tables hold each committed batch once."""
    wanted = expected(committed(test, records))
    assert {name: test.table(name) for name in wanted} == wanted
