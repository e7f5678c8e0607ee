"""The ledger example as a user runs it: over Kafka, with tasks that write its table."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest
from support.accounts import MOVEMENTS, books
from support.kafka_topics import Topics
from support.runs import Launcher
from support.tables import read_rows

from txstream.plugins.local.embedded import Services


@pytest.mark.soak
def test_the_books_are_right(services: Services, launcher: Launcher, unique: str, sqlite_url: str) -> None:
    """All movements of an account are in one partition, so that they keep their order."""
    partitions: defaultdict[int, list[bytes]] = defaultdict(list)
    for account, amount in MOVEMENTS:
        value = json.dumps({"account": account, "amount": amount})
        partitions[sum(account.encode()) % 2].append(value.encode())
    topics = Topics(services.kafka)
    topics.create(unique, 2)
    for number, values in partitions.items():
        topics.send(unique, values, number)
    outcome = launcher.without_spark.run(
        *("run", "txstream.examples.accounts:topology", "--id", unique, "-p", f"topic={unique}"),
        *("-p", f"prefix={unique}_", "-p", "max_records_per_partition=5", "--until", "caught-up"),
    )
    assert outcome.status == 0, outcome.stderr

    def table(name: str, *columns: str) -> dict[str, Any]:
        rows = read_rows(sqlite_url, f"{unique}_{name}")
        return {row["account"]: tuple(row[column] for column in columns) for row in rows}

    accounts, refused = books(MOVEMENTS)
    assert table("accounts", "balance", "movements") == accounts
    assert table("refused", "amount", "times") == refused
