"""Asking for some of the batches: the newest, those before a txid, since a time, or that had trouble."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from support.memory_zookeeper import MemoryZooKeeper
from support.recovering import empty_database
from support.states import Rig, word_table
from support.zookeeper_backends import metas

from txstream import inspect
from txstream.api.spouts import HeldBack
from txstream.cli import failures_shown as failing, status
from txstream.cli.main import main
from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import UsageError
from txstream.core.failing_batch import FailingBatch, Wait
from txstream.core.transaction import Txid, attempt_id
from txstream.inspect import ledgers, source
from txstream.inspect.json_documents import batch_document
from txstream.inspect.snapshot import Snapshot
from txstream.inspect.source import SourceNow
from txstream.settings import Settings
from txstream.state import StateDatabase
from txstream.zookeeper import ENDED, FAILING, ROOT, WAITING, Paths

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
TXIDS = 9


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ZOOKEEPER", "KAFKA", "DATABASE", "MASTER", "STATE_DATABASES"):
        monkeypatch.delenv(f"TXSTREAM_{name}", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Nine batches, one a minute after noon. Txids 3 and 7 had an attempt that failed."""
    file = tmp_path / "state.db"
    file.write_bytes(empty_database())
    database = StateDatabase(f"sqlite:///{file}")
    made = Rig(database, f"sqlite:///{file}", word_table()).join()
    for txid in range(1, TXIDS + 1):
        made.commit(txid, {"a": 1}, error="a bolt failed" if txid in (3, 7) else None)
    engine = sa.create_engine(made.url)
    with engine.begin() as connection:
        for txid in range(1, TXIDS + 1):
            moment = f"{NOON + timedelta(minutes=txid):%Y-%m-%d %H:%M:%S}.000000Z"
            update = "UPDATE txstream_batch SET committed_at = ? WHERE txid = ?"
            connection.exec_driver_sql(update, (moment, txid))
    engine.dispose()
    yield made
    database.close()


def txids(rig: Rig, **asked: Any) -> list[int]:
    return [one.txid for one in inspect.batches("words", Settings(database=rig.url), **asked)]


def test_a_commit_s_seconds_are_in_the_row_of_the_batch_after_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    (tmp_path / "state.db").write_bytes(empty_database())
    database = StateDatabase(url)
    rig = Rig(database, url, word_table()).join()
    for txid in (1, 2, 3, 4):
        before = {"commit": txid / 8, "advance": txid / 16}
        details = {"timings": {"job": 0.5}} | ({} if txid == 3 else {"timings_before": before})
        rig.states.commit(replace(rig.whole(rig.next(txid), {"a": 1}), details=details))
    database.close()
    settings = Settings(database=url)

    def told(**asked: Any) -> list[tuple[int, Any]]:
        return [(one.txid, one.in_commit) for one in inspect.batches("words", settings, **asked)]

    first, third = {"commit": 0.25, "advance": 0.125}, {"commit": 0.5, "advance": 0.25}
    assert told() == [(1, first), (2, {}), (3, third), (4, {})]
    assert told(last=1, before=4) == [(3, third)], "which is not on that page"
    documents = [batch_document(one) for one in inspect.batches("words", settings)]
    assert [one["timings"] for one in documents][:2] == [{"job": 0.5, **first}, {"job": 0.5}]
    assert inspect.batch("words", 1, settings).timings == {"job": 0.5, **first}
    assert inspect.batch("words", 4, settings).timings == {"job": 0.5}


@pytest.mark.parametrize("chunk", [1, 2, 1000])
@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ({"last": 2}, [8, 9]),
        ({"before": 5}, [1, 2, 3, 4]),
        ({"before": 5, "last": 2}, [3, 4]),
        ({"before": 1}, []),
        ({"before": 99, "last": 1}, [9]),
        ({"since": NOON + timedelta(minutes=7)}, [7, 8, 9]),
        ({"since": NOON + timedelta(minutes=7), "before": 9}, [7, 8]),
        ({"since": NOON + timedelta(days=1)}, []),
        ({"failed": True}, [3, 7]),
        ({"failed": True, "last": 1}, [7]),
        ({"failed": True, "since": NOON + timedelta(minutes=4)}, [7]),
    ],
)
def test_a_part_of_the_batches(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, chunk: int, asked: dict[str, Any], expected: list[int]
) -> None:
    monkeypatch.setattr(ledgers, "_CHUNK", chunk)
    assert txids(rig, **asked) == expected


def test_an_unfinished_batch_had_trouble(rig: Rig) -> None:
    engine = sa.create_engine(rig.url)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE txstream_batch SET status = 'committing' WHERE txid = 9")
    engine.dispose()
    assert txids(rig, failed=True) == [3, 7, 9]


def test_the_newest_are_read_without_the_others(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []
    usual = StateDatabase.batches

    def batches(
        self: StateDatabase, topology: str, *, limit: int | None = None, before: int | None = None
    ) -> Any:
        asked.append(limit)
        return usual(self, topology, limit=limit, before=before)

    monkeypatch.setattr(StateDatabase, "batches", batches)
    monkeypatch.setattr(ledgers, "_CHUNK", 4)
    assert txids(rig, last=2) == [8, 9]
    assert asked == [2]
    assert txids(rig, last=2, before=5) == [3, 4]
    assert asked == [2, 2]
    asked.clear()
    assert txids(rig, since=NOON + timedelta(minutes=8)) == [8, 9]
    assert asked == [4]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"last": 0}, "last is 0"),
        ({"before": 0}, "before is 0"),
        ({"since": NOON.replace(tzinfo=None)}, "without a time zone"),
    ],
)
def test_what_cannot_be_meant_is_refused(rig: Rig, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        txids(rig, **asked)


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(40, {"keys", "at", "attempt", "ranges"}), (80, {"ranges"}), (160, set())],
)
def test_a_batch_is_one_line_of_the_terminal(
    rig: Rig,
    width: int,
    left_out: set[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    metas = {f"a-topic-with-a-name/{n}": {"start": 0, "end": 250} for n in range(4)}
    engine = sa.create_engine(rig.url)
    with engine.begin() as connection:
        update = "UPDATE txstream_batch SET metas = ?, tuples = 123456, keys = 98765"
        connection.exec_driver_sql(update, (json.dumps({"partitions": metas}),))
    engine.dispose()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["batches", "words", "--database", rig.url]) == 0
    _, names, _, *lines = capsys.readouterr().out.rstrip("\n").split("\n")
    assert len(lines) == TXIDS
    assert all(len(line) <= width for line in lines)
    assert [line.split()[0] for line in lines] == [str(txid) for txid in range(1, TXIDS + 1)]
    shown = {"txid", "status", "tuples", "keys", "committed", "at", "attempt", "ranges"} - left_out
    assert set(names.split()) == shown - ({"committed"} if "at" in left_out else set())


def test_a_batch_says_what_it_left_out(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    """The column is shown if a batch left something out, or if it is asked for."""
    assert main(["batches", "words", "--database", rig.url]) == 0
    assert "left out" not in capsys.readouterr().out
    metas = {
        "partitions": {"t/0": {"start": 0, "end": 250}},
        "carried": {"t/9": {"start": 2, "end": 4}},
        "unavailable": {"t/10": "no broker", "t/9": "no broker"},
    }
    engine = sa.create_engine(rig.url)
    with engine.begin() as connection:
        update = "UPDATE txstream_batch SET metas = ? WHERE txid = 2"
        connection.exec_driver_sql(update, (json.dumps(metas),))
    engine.dispose()

    def told(*more: str) -> list[str]:
        assert main(["batches", "words", "--database", rig.url, *more]) == 0
        names, _, *lines = capsys.readouterr().out.strip("\n").splitlines()
        begin = names.index("left out")
        return [line[begin:].partition("  ")[0].strip() for line in lines]

    assert told("--before", "4") == ["", "2 of 3", ""]
    assert told("--before", "4", "--left-out") == ["t/9, t/10"]
    assert told("-n", "1", "--left-out") == ["t/9, t/10"]
    assert main(["batches", "words", "--database", rig.url, "--before", "2", "--left-out"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "words has no such batch\n")


def test_the_command(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    def listed(*more: str) -> list[int]:
        assert main(["batches", "words", "--database", rig.url, "--json", *more]) == 0
        return [one["txid"] for one in json.loads(capsys.readouterr().out)]

    assert listed("--failed") == [3, 7]
    assert listed("--before", "5", "-n", "2") == [3, 4]
    assert listed("--since", "2026-11-20T12:08:00Z") == [8, 9]
    assert listed("--since", "2026-11-20T13:08:00+01:00") == [8, 9]
    assert listed("--since", "1s") == []
    assert listed("--since", "90000d") == list(range(1, TXIDS + 1))
    assert main(["batches", "words", "--database", rig.url, "--failed"]) == 0
    shown = capsys.readouterr().out
    assert "committed, 1 failed" in shown
    assert shown.splitlines()[-1] == "2 x a bolt failed"
    assert main(["batches", "words", "--database", rig.url, "--since", "1s"]) == 0
    assert "no such batch" in capsys.readouterr().err
    assert main(["batches", "words", "--database", rig.url, "--since", "dawn"]) == 2
    assert "36h" in capsys.readouterr().err


def test_an_unknown_txid_is_told_without_reading_the_ledger(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = StateDatabase.batches

    def batches(
        self: StateDatabase, topology: str, *, limit: int | None = None, before: int | None = None
    ) -> Any:
        assert limit is not None, "all of it"
        return usual(self, topology, limit=limit, before=before)

    monkeypatch.setattr(StateDatabase, "batches", batches)
    with pytest.raises(inspect.UnknownTxidError, match="no txid 77; it has txid 1 to 9"):
        inspect.batch("words", 77, Settings(database=rig.url))


def test_a_batch_that_fails_is_shown_before_any_ledger_has_it(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    zookeeper = MemoryZooKeeper()
    for module in (failing, status):
        monkeypatch.setattr(module, "open_zookeeper", zookeeper.opened)
    store = zookeeper.run_topology("words")

    def told(*command: str, status: int = 0) -> str:
        asked = ["--database", rig.url, "--zookeeper", "127.0.0.1:1"]
        assert main([*command, *asked]) == status
        return capsys.readouterr().out

    assert "retrying" not in told("status", "words")
    assert json.loads(told("status", "words", "--json"))["failing"] is None
    reasons = {"the service is away": 1, "database or disk is full": 7}
    store.notes.put(FAILING, FailingBatch(Txid(10), attempt_id(2, 9), NOON, reasons))
    when = f"{NOON.astimezone():%Y-%m-%d %H:%M:%S}"
    text = f"txid 10: 8 attempts failed, the last one (2.9) at {when}: 7 x database or disk is full; 1 x the "
    for command in (["status", "words"], ["batches", "words", "--failed"], ["show", "words", "10"]):
        assert text in told(*command).splitlines()[-1]
    for command in (["status", "words", "--json"], ["show", "words", "10", "--json"]):
        document = json.loads(told(*command))
        assert document.get("failing", document) | {"topology": ""} == {
            "topology": "",
            "txid": 10,
            "status": "retrying",
            "failed_attempts": 8,
            "last_attempt": attempt_id(2, 9),
            "last_failed_at": NOON.isoformat(),
            "reasons": reasons,
            "ranges": [],
            "more_ranges": 0,
            "latest_attempts": [],
        }
    told("show", "words", "11", status=1)
    for txid in (1, 2):
        metas: BatchMetas[Any] = BatchMetas()
        store.advance(Txid(txid), attempt_id(1, txid), metas)
    store.notes.put(FAILING, FailingBatch(Txid(2), attempt_id(2, 9), NOON, reasons))
    assert "retrying" not in told("status", "words"), "it is committed"


def test_status_shows_the_places_of_what_is_committed_not_of_what_is_planned(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    zookeeper = MemoryZooKeeper()
    monkeypatch.setattr(status, "open_zookeeper", zookeeper.opened)
    store = zookeeper.run_topology("words")

    def told() -> Any:
        command = ["status", "words", "--database", rig.url, "--zookeeper", "127.0.0.1:1", "--json"]
        assert main(command) == 0
        return json.loads(capsys.readouterr().out)

    for txid in (1, 2, 3):
        store.persist(Txid(txid), metas(10 * txid, partitions=1))
    found = told()
    assert (found["current_txid"], found["positions"], found["stored_plans"]) == (1, {}, [1, 2, 3])
    store.advance(Txid(1), attempt_id(1, 1), None)
    found = told()
    assert (found["current_txid"], found["stored_plans"]) == (2, [2, 3])
    assert found["positions"] == {"lines/0": 20}


def test_status_lists_who_stands_by(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    zookeeper = MemoryZooKeeper()
    monkeypatch.setattr(status, "open_zookeeper", zookeeper.opened)
    zookeeper.run_topology("words")

    def told(*more: str) -> str:
        assert main(["status", "words", "--database", rig.url, "--zookeeper", "127.0.0.1:1", *more]) == 0
        return capsys.readouterr().out

    assert json.loads(told("--json"))["standbys"] == []
    assert "standbys" not in told()
    leader = Paths(ROOT, "words").leader
    since = NOON.isoformat()
    for number, data in enumerate(
        (
            {"driver": "one:7", "since": since, "standby": "warm"},
            {"driver": "two:8", "since": since},  # from a txstream that did not say
            {"driver": "three:9", "since": since, "standby": "cold"},
        ),
        2,
    ):
        zookeeper.memory.write(f"{leader}/{number:032x}-{number:010d}", json.dumps(data).encode())
    zookeeper.memory.write(f"{leader}/{9:032x}-{9:010d}", b"?")
    *known, unknown = json.loads(told("--json"))["standbys"]
    assert known == [
        {"driver": "one:7", "since": since, "standby": "warm"},
        {"driver": "two:8", "since": since, "standby": None},
        {"driver": "three:9", "since": since, "standby": "cold"},
    ]
    assert unknown["driver"].startswith("a driver that left no address")
    (line,) = (line for line in told().splitlines() if line.startswith("standbys"))
    shown = f"{NOON.astimezone():%Y-%m-%d %H:%M:%S}"
    assert f"4: warm, one:7 since {shown}; standing by, two:8 since {shown}; cold, three:9" in line


def test_a_source_that_does_not_answer_in_time_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    given_up = threading.Event()
    monkeypatch.setattr(source, "source_now", lambda *_: given_up.wait() and SourceNow(1))
    monkeypatch.setattr(source, "_ASK_SECONDS", 0.01)
    identity: Any = SimpleNamespace(spout="other", source={})
    answer = source.begin_to_ask(Settings(kafka="kafka:9092"), Snapshot("words", identity, None))
    assert answer() == SourceNow(unknown="Kafka at kafka:9092 has not answered within 0.01 s")
    given_up.set()
    monkeypatch.setattr(source, "source_now", lambda *_: SourceNow(1))
    monkeypatch.setattr(source, "_ASK_SECONDS", 60)
    assert source.begin_to_ask(Settings(), Snapshot("words", identity, None))() == SourceNow(1)


def test_status_says_what_the_source_answers_now(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    zookeeper = MemoryZooKeeper()
    monkeypatch.setattr(status, "open_zookeeper", zookeeper.opened)
    zookeeper.run_topology("words")
    answers: list[SourceNow] = []
    monkeypatch.setattr(source, "source_now", lambda settings, snapshot: answers[-1])

    def told(answer: SourceNow, *more: str) -> str:
        answers.append(answer)
        assert main(["status", "words", "--database", rig.url, "--zookeeper", "127.0.0.1:1", *more]) == 0
        return capsys.readouterr().out

    assert "lag        1 record\n" in told(SourceNow(1))
    assert "lag        not known: nobody answered\n" in told(SourceNow(unknown="nobody answered"))
    behind = {name: HeldBack(5, "a transaction", NOON) for name in ("t/10", "t/9")}
    held_back = SourceNow(12, held_back=behind)
    assert (
        "lag        12 records\n"
        "held back  5 records of t/9 behind a transaction; 5 records of t/10 behind a transaction\n"
    ) in told(held_back)
    assert json.loads(told(held_back, "--json"))["held_back"] == {
        name: {"records": 5, "behind": "a transaction"} for name in behind
    }
    away = SourceNow(unavailable={"t/10": "it has no leader", "t/9": "broker 2 does not answer"})
    assert (
        "lag        not known: 2 partitions cannot be read\n"
        "away       t/9 cannot be read: broker 2 does not answer; t/10 cannot be read: it has no leader\n"
    ) in told(away)
    document = json.loads(told(away, "--json"))
    assert (document["lag_records"], document["unavailable"]) == (None, dict(away.unavailable))


def test_status_says_what_the_leader_waits_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    zookeeper = MemoryZooKeeper()
    monkeypatch.setattr(status, "open_zookeeper", zookeeper.opened)
    store = zookeeper.run_topology("words", driver=False)

    def told(*more: str) -> str:
        assert main(["status", "words", "--database", rig.url, "--zookeeper", "127.0.0.1:1", *more]) == 0
        return capsys.readouterr().out

    store.notes.put(
        WAITING, [Wait("partition lines/3", NOON, "txid 2 must hold the same tuples", "no broker")]
    )
    assert json.loads(told("--json"))["waiting"] == [], "nobody runs it"
    monkeypatch.setattr(MemoryZooKeeper, "leader", lambda *_: "host:1")
    since = f"{NOON.astimezone():%H:%M:%S}"
    text = f"waiting for partition lines/3 since {since} (txid 2 must hold the same tuples)"
    assert ["health", text] in [line.split(maxsplit=1) for line in told().splitlines()]
    assert json.loads(told("--json"))["waiting"] == [
        {
            "what": "partition lines/3",
            "since": NOON.isoformat(),
            "because": "txid 2 must hold the same tuples",
            "reason": "no broker",
        }
    ]
    store.notes.put(WAITING, [])
    assert "waiting" not in told()


def test_the_last_error_has_its_time_and_goes_with_a_run_that_ended_well(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    zookeeper = MemoryZooKeeper()
    monkeypatch.setattr(status, "open_zookeeper", zookeeper.opened)
    store = zookeeper.run_topology("words", driver=False)
    tried = {"attempt": attempt_id(1, 1), "error": "the service is away", "failed_at": NOON.isoformat()}
    newest = next(iter(rig.database.batches("words", limit=1))).txid + 1
    commit = rig.whole(rig.next(newest), {"a": 1})
    rig.states.commit(replace(commit, details={"attempts": [{**tried, "same": True}]}))

    def told() -> list[str]:
        assert main(["status", "words", "--database", rig.url, "--zookeeper", "127.0.0.1:1"]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("last error")]

    at = f"{NOON.astimezone():%Y-%m-%d %H:%M:%S}"
    (line,) = told()
    assert line.endswith(f"before txid {newest} was committed at {at}: the service is away")
    store.notes.put(ENDED, None)
    assert told() == []
    monkeypatch.setattr(MemoryZooKeeper, "leader", lambda *_: "host:1")
    assert len(told()) == 1, "the next run leads already, and has committed nothing yet"
