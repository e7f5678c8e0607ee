"""A ledger of accounts: books deposits and withdrawals in order, and refuses what an account does not cover.

txstream run txstream.examples.accounts:topology -p topic=movements --until caught-up

The topic's values are JSON: {"account": "anna", "amount": -20}. Whether a withdrawal is accepted depends on
the balance, which a reducer cannot see. So the committer `ledger` reads and writes its table itself, as a
`MapState`. What it refuses goes into a second table. A batch that fails half-way counts in neither, and its
replay decides by the same balances.
"""

from __future__ import annotations

from typing import Any, Literal

from txstream import (
    BatchBolt,
    Committer,
    Count,
    Decode,
    KafkaSource,
    MapState,
    OutputCollector,
    SqlState,
    SqlStateBolt,
    Sum,
    Topology,
    TopologyContext,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    Tuple,
)
from txstream.api.spouts import SourceSpout
from txstream.examples.word_count import SPOUTS

FIELDS = "account string, amount bigint"

Balance = tuple[int, int]
"""The balance, and the number of movements behind it."""


class Ledger(BatchBolt, Committer):
    """Books the movements that an account covers, and emits the rest."""

    output = FIELDS

    def __init__(self, table: str = "accounts", cache_rows: int = 10_000) -> None:
        accounts = SqlState(
            table, key="account string", value="balance bigint, movements bigint", cache_rows=cache_rows
        )
        self.states = {"accounts": accounts}

    def prepare(
        self, context: TopologyContext, collector: OutputCollector, batch_id: TransactionAttempt
    ) -> None:
        super().prepare(context, collector, batch_id)
        self.movements: list[tuple[str, int]] = []

    def execute(self, tup: Tuple) -> None:
        self.movements.append((tup["account"], tup["amount"]))

    def finish_batch(self) -> None:
        accounts: MapState[str, Balance] = self.context.state("accounts")
        # One query for all accounts of the batch. What is put below is written after this returns.
        accounts.multi_get([account for account, _ in self.movements])
        for account, amount in self.movements:
            balance, movements = accounts.get(account) or (0, 0)
            if balance + amount < 0:
                self.collector.emit((account, amount))
            else:
                accounts.put(account, (balance + amount, movements + 1))


def graph(spout: SourceSpout[Any], *, prefix: str = "", max_spout_pending: int = 2) -> Topology:
    """Return the topology over any source of movements. The names of its tables begin with `prefix`."""
    builder = TransactionalTopologyBuilder(
        "accounts", "movements", spout, max_spout_pending=max_spout_pending
    )
    ledger = builder.set_bolt("ledger", Ledger(f"{prefix}accounts"), parallelism=2)
    ledger.fields_grouping("movements", "account")
    refused = SqlState(f"{prefix}refused", key="account string", value="amount bigint, times bigint")
    store = builder.set_bolt("refused", SqlStateBolt(refused, amount=Sum("amount"), times=Count()))
    store.fields_grouping("ledger", "account")
    return builder.build()


def topology(
    topic: str = "movements",
    semantics: Literal["opaque", "transactional"] = "opaque",
    prefix: str = "",
    max_records_per_partition: int = 1000,
    max_spout_pending: int = 2,
) -> Topology:
    source = KafkaSource(
        topic,
        decode=Decode("json", FIELDS),
        max_records_per_partition=max_records_per_partition,
    )
    return graph(SPOUTS[semantics](source), prefix=prefix, max_spout_pending=max_spout_pending)
