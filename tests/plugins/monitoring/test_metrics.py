"""Metrics of runs, scraped over HTTP and compared with what plain SQL finds in the ledger."""

from __future__ import annotations

import json
import socket
import sqlite3
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.lists import each

pytest.importorskip("prometheus_client")

from support.kafka_topics import wait_until
from support.measured import LINES, MeasuredRun, counting, scrape, scraped
from support.tracked import Lines, words

from txstream import (
    BatchFailedError,
    Count,
    OpaqueSpout,
    OutputCollector,
    RichBolt,
    SqlAppendBolt,
    SqlTable,
    TransactionalTopologyBuilder,
    Tumbling,
    Tuple,
    WindowBolt,
    WindowState,
)
from txstream.api.bolts import BasicBolt
from txstream.api.spouts import HeldBack
from txstream.core.dead_letters import DeadLetters
from txstream.core.errors import ServiceUnavailableError, UsageError
from txstream.core.transaction import TransactionAttempt, epoch_of
from txstream.inspect.health import Word
from txstream.plugins.monitoring.catalog import CATALOG
from txstream.plugins.monitoring.server import parse_address, served
from txstream.plugins.proof.zookeeper_tree import MemoryTree
from txstream.spouts.memory import MemoryCoordinator, MemorySpout


class FailsFirst(BasicBolt):
    """Splits lines. The first attempt at a line with "end" fails, and every one at "poison" raises."""

    output = "word string"
    failed: ClassVar[set[int]] = set()

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if "end" in tup["value"] and not self.failed:
            self.failed.add(1)
            raise BatchFailedError("not yet")
        if "poison" in tup["value"]:
            raise ValueError("poison")
        for word in tup["value"].split():
            collector.emit([word])


def rows(database: Path, query: str) -> list[Any]:
    with sqlite3.connect(database) as connection:
        return connection.execute(query).fetchall()


def test_a_run_tells_what_the_ledger_has(tmp_path: Path) -> None:
    database = tmp_path / "state.db"
    source = MemorySpout("value string", LINES)
    run = MeasuredRun(counting(source), database)
    before = time.time()
    with source, scraped(run) as url:
        run.wait_for(3)
        found = scrape(url)
    ledger = rows(database, "SELECT txid, attempt, tuples, keys, committed_at FROM txstream_batch")
    assert len(ledger) == found["txstream_batches_total", "committed"] == 3
    assert found["txstream_last_committed_txid",] == max(row[0] for row in ledger)
    assert found["txstream_records_total",] == sum(row[2] for row in ledger) == 5
    behind = "SELECT json_extract(details, '$.lag_records') FROM txstream_batch ORDER BY txid"
    assert [row[0] for row in rows(database, behind)] == [3, 1, 0], "five records, two in a batch"
    assert found["txstream_state_rows_written_total", "words"] == sum(row[3] for row in ledger)
    assert found["txstream_epoch",] == epoch_of(ledger[0][1])
    assert before <= found["txstream_last_commit_timestamp_seconds",] <= time.time()
    assert found["txstream_leader",] == 1
    assert found["txstream_open_batches",] == found["txstream_fenced_total",] == 0
    assert found["txstream_waiting_seconds",] == found["txstream_source_unavailable_seconds",] == 0
    assert found["txstream_search_seconds",] == 0
    assert states(found) == ["healthy"]
    lags = {name[1:]: value for name, value in found.items() if name[0] == "txstream_source_lag_records"}
    assert lags == {("0", "lines"): 0, ("1", "lines"): 0}
    assert found["txstream_source_lag_seconds",] == 0
    assert not any(name[0] == "txstream_source_held_back_records" for name in found)
    for phase in ("plan", "job", "commit", "advance"):
        assert found["txstream_batch_phase_seconds_count", phase] == 3
        assert found["txstream_batch_phase_seconds_bucket", "+Inf", phase] == 3
        assert found["txstream_batch_phase_seconds_sum", phase] > 0


def test_late_records_are_counted_by_table(tmp_path: Path) -> None:
    fields = "topic string, partition int, offset bigint, at timestamp"
    now, long_ago = datetime.now(UTC), datetime(2020, 1, 1, tzinfo=UTC)
    times = [now, long_ago, now, long_ago, long_ago]
    with MemorySpout(fields, {"v/0": [("v", 0, at, time) for at, time in enumerate(times)]}) as source:
        builder = TransactionalTopologyBuilder(
            "late", "visits", OpaqueSpout(source), dead_letters=DeadLetters(max_per_batch=1)
        )
        table = SqlTable("visits", "at timestamp", keep="90d")
        builder.set_bolt("store", SqlAppendBolt(table)).shuffle_grouping("visits")
        run = MeasuredRun(builder.build(), tmp_path / "state.db")
        with scraped(run) as url:
            run.wait_for(1)
            found = scrape(url)
    assert found["txstream_late_records_total", "visits"] == 3
    assert found["txstream_dead_letters_total", "store"] == 3


def test_the_watermark_is_told_with_the_partitions_that_hold_it_back(tmp_path: Path) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    times = {"p0": [0, 61, 122, 183, 244], "p1": [1, 2, 3, 4, 5]}
    rows = {name: [(name, start + timedelta(minutes=one)) for one in some] for name, some in times.items()}
    with MemorySpout("partition string, at timestamp", rows, max_records_per_partition=1) as source:
        builder = TransactionalTopologyBuilder("w", "clicks", OpaqueSpout(source), max_spout_pending=1)
        window = Tumbling("1h", time="at")
        state = WindowState("clicks", key="partition string", value="n bigint", window=window, late="amend")
        builder.set_bolt("count", WindowBolt(state, n=Count())).fields_grouping("clicks", "partition")
        run = MeasuredRun(builder.build(), tmp_path / "state.db")
        with scraped(run) as url:
            run.wait_for(5)
            found = scrape(url)
    assert (
        found["txstream_watermark_timestamp_seconds", "clicks"] == (start + timedelta(minutes=4)).timestamp()
    )
    held = {name: value for name, value in found.items() if name[0] == "txstream_watermark_held_back"}
    assert held == {("txstream_watermark_held_back", "p1", "clicks"): 1}


def test_failures_and_dead_letters_are_counted_by_component(tmp_path: Path) -> None:
    database = tmp_path / "state.db"
    source = MemorySpout("value string", {"lines/0": ["a", "the end", "b", "poison", "c", "d"]})
    split = FailsFirst()
    FailsFirst.failed.clear()
    topology = counting(source, split, dead_letters=DeadLetters(), max_spout_pending=1)
    run = MeasuredRun(topology, database)
    with source, scraped(run) as url:
        run.wait_for(3)
        found = scrape(url)
    letters = rows(database, "SELECT component, count(*) FROM txstream_dead_letter GROUP BY component")
    assert letters == [("split", found["txstream_dead_letters_total", "split"])]
    assert found["txstream_attempts_failed_total", "split", "BatchFailedError"] == 1
    # The first attempt has left it out, which is no failure.
    assert ("txstream_attempts_failed_total", "split", "ValueError") not in found
    failed = sum(
        len(json.loads(row[0] or "{}").get("attempts", []))
        for row in rows(database, "SELECT details FROM txstream_batch")
    )
    assert found["txstream_batches_total", "failed"] == failed
    assert found["txstream_records_total",] == 5
    assert states(found) == ["leaving out records"]


def states(found: Mapping[tuple[str, ...], float]) -> list[str]:
    """Return the states that a scrape says a topology is in."""
    told = {name[1]: value for name, value in found.items() if name[0] == "txstream_health"}
    assert set(told) == {*map(str, Word)}
    return [state for state, value in told.items() if value]


def test_the_last_commit_of_an_earlier_run_is_known(tmp_path: Path) -> None:
    database, tree = tmp_path / "state.db", MemoryTree()
    with MemorySpout("value string", LINES) as source:
        first = MeasuredRun(counting(source), database, tree)
        with scraped(first):
            first.wait_for(3)
        second = MeasuredRun(counting(source), database, tree)
        with scraped(second) as url:
            second.wait_for(3)
            found = scrape(url)
    (at,) = rows(database, "SELECT max(committed_at) FROM txstream_batch")[0]
    committed_at = datetime.fromisoformat(str(at)).replace(tzinfo=UTC).timestamp()
    assert found["txstream_last_commit_timestamp_seconds",] == pytest.approx(committed_at, abs=0.01)
    assert found["txstream_records_total",] == 0
    assert found["txstream_last_committed_txid",] == 3


def test_many_partitions_are_one_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held_back = {f"lines/{n}": HeldBack(n, "a lock", datetime.now(UTC)) for n in (1, 3)}
    monkeypatch.setattr(MemoryCoordinator, "held_back", held_back)
    with MemorySpout("value string", {f"lines/{n}": ["a"] for n in range(4)}) as source:
        run = MeasuredRun(counting(source), tmp_path / "state.db", most_partitions=3)
        with scraped(run) as url:
            run.wait_for(2)
            found = scrape(url)
    assert [name[1:] for name in found if name[0] == "txstream_source_lag_records"] == [("all", "lines")]
    assert found["txstream_source_held_back_records", "all", "lines"] == 4


class Holds(RichBolt):
    """Neither acks nor fails."""

    output = "word string"

    def execute(self, tup: Tuple) -> None: ...


def test_tracked_tuples_tell_their_trees(tmp_path: Path) -> None:
    topology = words(Lines(["a b", "c"]), Holds(), message_timeout_seconds=600.0).build()
    run = MeasuredRun(topology, tmp_path / "state.db")
    with served(run.metrics, "0") as url:
        run.start()
        wait_until(lambda: scrape(url).get(("txstream_acker_pending", "lines")) == 2, "two trees are open")
        found = scrape(url)
        run.driver.abort()
    assert found["txstream_acker_acked_total", "lines"] == 0
    assert (
        found["txstream_acker_failed_total", "lines"] == found["txstream_acker_timed_out_total", "lines"] == 0
    )
    assert found["txstream_acker_oldest_seconds",] > 0
    assert found["txstream_records_total",] == 2
    assert found["txstream_leader",] == 1


def test_a_standby_says_only_that_it_does_not_lead(tmp_path: Path) -> None:
    with MemorySpout("value string", LINES) as source:
        run = MeasuredRun(counting(source), tmp_path / "state.db")
        with served(run.metrics, "127.0.0.1:0") as url:
            assert scrape(url) == {("txstream_leader",): 0}


def test_a_fence_and_dropped_attempts_are_counted() -> None:
    with MemorySpout("value string", LINES) as source:
        from txstream.plugins.monitoring.of_run import RunMetrics

        metrics = RunMetrics(counting(source))
    attempts = [TransactionAttempt(txid, txid) for txid in (1, 2)]  # type: ignore[arg-type]
    metrics.failed(attempts[0], ValueError("x"))
    for attempt in attempts:
        metrics.dropped(attempt)
    metrics.fenced(attempts[0])
    assert metrics._outcomes == {"committed": 0, "failed": 1, "dropped": 1}
    assert metrics._fenced == 1


def test_reasons_are_bounded() -> None:
    from txstream.plugins.monitoring import of_run

    with MemorySpout("value string", LINES) as source:
        metrics = of_run.RunMetrics(counting(source))
    for n in range(3 * of_run._MOST_REASONS):
        metrics.failed(TransactionAttempt(n, n), type(f"E{n}", (Exception,), {})())  # type: ignore[arg-type]
    assert len(metrics._failures) == of_run._MOST_REASONS + 1
    assert metrics._failures["other", "other"] == 2 * of_run._MOST_REASONS


def test_every_metric_has_help_and_a_prefix() -> None:
    for name, described in CATALOG.items():
        assert name.startswith("txstream_")
        assert described.help.endswith(".")
        assert name.endswith("_total") == (described.kind == "counter")


# --- where -------------------------------------------------------------------------------------------------


@each(
    ("given", "address"),
    [("9464", ("127.0.0.1", 9464)), ("0.0.0.0:80", ("0.0.0.0", 80)), ("[::1]:9464", ("::1", 9464))],
)
def test_addresses(given: str, address: tuple[str, int]) -> None:
    assert parse_address(given) == address


@each("given", ["", "here", "localhost:", "70000", "-1"])
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match=r"it takes PORT or HOST:PORT"):
        parse_address(given)


def test_a_port_that_is_taken_is_refused() -> None:
    with MemorySpout("value string", LINES) as source, socket.socket() as taken:
        run = MeasuredRun(counting(source), Path("unused"))
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(ServiceUnavailableError, match=f"port {port} cannot be listened on"),
            served(run.metrics, str(port)),
        ):
            pass


def test_without_the_client_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from txstream.plugins.monitoring import require_client

    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UsageError, match=r"pip install 'txstream\[metrics\]'"):
        require_client()
