"""A topology over a real ZooKeeper that is upgraded between its runs and whose ledger is pruned."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.kafka_topics import wait_until
from support.old_revisions import at_revision
from support.upgrading import Store, counts, storing, totals

import txstream
from txstream.api.reducers import Count, Sum
from txstream.api.spouts import OpaqueSpout
from txstream.api.state import SqlState
from txstream.cli.main import main
from txstream.core.errors import IdentityMismatchError, SchemaRevisionError
from txstream.engine.loop import ledger_pruning as pruning
from txstream.plugins.local.embedded import Services
from txstream.spouts.memory import MemorySpout
from txstream.state import open_database, open_sql_database
from txstream.testing import InProcessRunner

ROWS = [(word, number) for number, word in enumerate(["a", "b", "a", "c"] * 10)]


def expected(rows: list[tuple[str, int]]) -> tuple[dict[str, int], dict[str, int]]:
    sums: Counter[str] = Counter()
    for word, x in rows:
        sums[word] += x
    return dict(Counter(word for word, _ in rows)), dict(sums)


def test_an_upgrade_with_a_grown_table_and_a_new_database(
    services: Services,
    sqlite_url: str,
    tmp_path: Path,
    unique: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.INFO, "txstream")
    monkeypatch.setattr(pruning, "FIRST_ROUND_SECONDS", 0.0)
    monkeypatch.setattr(pruning, "ROUND_SECONDS", 0.01)
    settings = txstream.Settings(
        zookeeper=services.zookeeper, database=sqlite_url, data_dir=tmp_path, ledger_keep="3"
    )
    other = f"sqlite:///{tmp_path / 'other.db'}"

    def start(source: MemorySpout, *stores: Store, **options: Any) -> txstream.RunningTopology:
        topology = storing(source, OpaqueSpout, *stores).with_id(unique)
        return txstream.start(topology, settings=settings, runner_factory=InProcessRunner, **options)

    database = open_sql_database(sqlite_url)
    with MemorySpout("word string, x bigint", {"p": ROWS[:20]}) as source:
        with start(source, counts()) as running:
            wait_until(
                lambda: database.oldest_txid(unique) == 8, "the ledger to be pruned to 3 of 10 batches"
            )
            assert running.is_running
        assert [thread.name for thread in threading.enumerate() if "prune" in thread.name] == []
        assert "old rows of the ledger" in caplog.text

        at_revision(database, sqlite_url, "0002")
        with pytest.raises(SchemaRevisionError, match="txstream db upgrade"):
            start(source, counts(), until="caught-up").wait(60)
        assert main(["topologies", "--zookeeper", services.zookeeper, "--database", sqlite_url]) == 0
        assert "`txstream db upgrade`" in capsys.readouterr().err
        assert main(["db", "upgrade", "--database", sqlite_url]) == 0

        source.append("p", *ROWS[20:30])
        wider = SqlState("counts", "word string", "n bigint, total bigint", defaults={"total": 0})
        grown = wider, {"n": Count(), "total": Sum("x")}
        start(source, grown, totals(url=other), until="caught-up").wait(60)
        with pytest.raises(
            IdentityMismatchError, match="state tables were counts, totals and are counts now"
        ):
            start(source, grown, until="caught-up").wait(60)
        source.append("p", *ROWS[30:])
        start(source, grown, totals(url=other), until="caught-up").wait(60)

    numbers, later = expected(ROWS)[0], expected(ROWS[20:])[1]
    rows = {row["word"]: row for row in database.top("counts", topology=unique)}
    assert {word: row["n"] for word, row in rows.items()} == numbers
    assert {word: row["total"] for word, row in rows.items()} == later
    joined = open_sql_database(other)
    assert {row["word"]: row["total"] for row in joined.top("totals", topology=unique)} == later
    oldest = joined.batches(unique)[0]
    assert oldest.txid >= 10
    for opened in (database, joined):
        assert opened.batches(unique)[-1].txid == 20
        opened.close()
    again = open_database(sqlite_url)
    fence = again.read_fence(unique)
    assert fence is not None and fence.identity is not None  # noqa: PT018 - for the type checker
    assert fence.identity["identity"]["tables"] == ["counts", "totals"]
    again.close()
