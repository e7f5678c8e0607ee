"""Shares of a commit: written twice, late, lost, refused or frozen; executors that cannot write at all."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.commit_paths import (
    KEYS,
    PATHS,
    Shares,
    check,
    counted,
    counting,
    ledger,
    paths,
    watch_shares,
    word_source,
)
from support.storm import states

from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Sum
from txstream.api.spouts import OpaqueSpout, TransactionalSpout
from txstream.api.state import SqlState
from txstream.bolts.sql import SqlStateBolt
from txstream.core.errors import (
    BatchFailedError,
    BatchTimeoutError,
    BoltError,
    ServiceUnavailableError,
    StaleAttemptError,
    StateValueError,
    TopologyError,
)
from txstream.core.fault_points import Point
from txstream.core.semantics import Semantics
from txstream.core.transaction import AttemptId
from txstream.engine.batch.shares import Message, rows_written
from txstream.engine.commit import state_targets as targets
from txstream.engine.states.worker_databases import StorePlace
from txstream.spouts.memory import MemorySpout
from txstream.state import StateBackend, StateDatabase, TopologyStates, open_database, register_backend
from txstream.testing import AttemptState, TopologyTest

BOTH = pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])
COMMITTED, FAILED = AttemptState.COMMITTED, AttemptState.FAILED


@pytest.fixture
def source() -> Iterator[MemorySpout]:
    with word_source() as spout:
        yield spout


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> Shares:
    return watch_shares(monkeypatch)


# --- shares ------------------------------------------------------------------------------------------------


@BOTH
def test_a_share_that_is_written_twice_under_one_attempt_counts_once(
    source: MemorySpout, spout: Any, shares: Shares
) -> None:
    """This happens with a speculative task, or when an executor dies after its COMMIT."""

    def twice(write: Callable[[Message], bytes], message: Message) -> bytes:
        assert write(message) != b""
        return write(message)

    shares.write = twice
    with TopologyTest(counting(source, spout, commit="executors")) as test:
        test.run()
        check(test, counted())
        assert [row.keys for row in ledger(test.database_url)] == [2 * keys for keys in KEYS]


@BOTH
def test_a_share_that_is_lost_between_two_others_is_undone_with_them(
    source: MemorySpout, spout: Any, shares: Shares
) -> None:
    """Its task dies, but those beside it have written. The opaque replay has other words."""
    died: list[Message] = []

    def dying(write: Callable[[Message], bytes], message: Message) -> bytes:
        if len(shares.seen) == 2 and not died:
            died.append(message)
            raise BoltError("Spark gave the task up")
        return write(message)

    shares.write = dying
    with TopologyTest(counting(source, spout, commit="executors")) as test:
        test.process(1)
        if spout is OpaqueSpout:
            source.append("p2", "new")
            source.hide("p0")
        test.commit(1)
        assert states(test, 1) == [FAILED, COMMITTED]
        source.show("p0")
        test.run()
        check(test, counted() + (counted({"p2": ["new"]}) if spout is OpaqueSpout else counted({})))


@BOTH
def test_a_share_of_a_superseded_attempt_that_runs_late_writes_nothing(
    source: MemorySpout, spout: Any, shares: Shares
) -> None:
    """A frozen executor wakes up after its attempt was replayed, and again after the next txid."""
    with TopologyTest(counting(source, spout, commit="executors")) as test:
        failed = test.fail(1, at=Point.AFTER_WRITE)
        late = list(shares.seen)
        (runner,) = shares.runners
        for txid in (1, 2):
            test.commit(txid)
            before = test.rows("counts"), test.rows("again")
            for message in late:
                answer = runner.write_share(message)
                with pytest.raises(StaleAttemptError, match="superseded by this driver's own"):
                    rows_written(failed.id, [answer])
            assert (test.rows("counts"), test.rows("again")) == before
        test.run()
        check(test, counted())


def test_a_share_that_is_fenced_by_a_newer_leader_ends_the_run(source: MemorySpout, shares: Shares) -> None:
    def fenced(write: Callable[[Message], bytes], message: Message) -> bytes:
        with closing(open_database(test.database_url)) as database:
            fence = database.read_fence("paths")
            assert fence is not None
            database.of("paths", fence.uuid, Semantics.OPAQUE).raise_fence(
                AttemptId(fence.attempt + (1 << 40))
            )
        return write(message)

    with TopologyTest(counting(source, commit="executors")) as test:
        shares.write = fenced
        with pytest.raises(StaleAttemptError):
            test.commit(1)
        assert test.table("counts") == {}


def test_a_value_that_does_not_fit_ends_the_run_and_is_named(shares: Shares) -> None:
    rows = [("ash", 1), ("oak", 2**62), ("oak", 2**62 - 1), ("ash", 1), ("oak", 1)]
    for choice in ("driver", "executors"):
        with MemorySpout("word string, n bigint", {"p": rows}, max_records_per_partition=4) as source:
            builder = TransactionalTopologyBuilder("paths", "words", OpaqueSpout(source), commit=choice)
            state = SqlState("sums", key="word string", value="n bigint")
            builder.set_committer_bolt("store", SqlStateBolt(state, n=Sum("n")), 2).fields_grouping(
                "words", "word"
            )
            with TopologyTest(builder.build()) as test:
                test.commit(1)
                with pytest.raises(StateValueError, match=r"word='oak'") as raised:
                    test.commit(2)
                assert raised.value.row == ("sums", "word='oak'")
                assert test.table("sums") == {"ash": 2, "oak": 2**63 - 1}
                assert states(test, 2)[-1] is not COMMITTED
    assert shares.seen


# --- what executors lack -----------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("path", ["executors", "mixed"])
def test_a_database_that_a_task_cannot_reach_fails_the_attempt_and_is_waited_for(
    source: MemorySpout,
    spout: Any,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With 'auto' the driver commits the next attempt itself, or attempts might fail for ever."""
    failures = 2 if path == "executors" else 1
    write, fails = TopologyStates.write, failures * [True]

    def away(self: TopologyStates, *given: Any, **options: Any) -> int:
        if fails:
            fails.pop()
            raise ServiceUnavailableError("connection refused")
        return write(self, *given, **options)

    monkeypatch.setattr(TopologyStates, "write", away)
    with (
        caplog.at_level(logging.WARNING, "txstream"),
        TopologyTest(counting(source, spout, slots=1, **PATHS[path])) as test,
    ):
        test.run()
        check(test, counted())
        assert states(test, 1)[:-1] == failures * [FAILED]
        first, *others = paths(test.database_url)
        assert first == ("executors" if path == "executors" else "driver")
        assert others[1] == "executors"
        attempts = ledger(test.database_url)[0].details["attempts"]
    assert [attempt["attempt"] for attempt in attempts] == [
        attempt.id.attempt for attempt in test.attempts(1)[:-1]
    ]
    assert "host" in attempts[0]["error"]
    assert "connection refused" in attempts[0]["error"]
    assert "build with commit='driver'" in caplog.text


@pytest.mark.parametrize("path", ["executors", "mixed"])
def test_an_executor_without_the_library_says_so_and_auto_leaves_it_to_the_driver(
    source: MemorySpout, path: str, shares: Shares, caplog: pytest.LogCaptureFixture
) -> None:
    def without_library(write: Callable[[Message], bytes], message: Message) -> bytes:
        with pytest.MonkeyPatch.context() as patch:
            for name in list(sys.modules):
                if f"{name}.".startswith(("sqlalchemy.", "txstream.state.")):
                    patch.setitem(sys.modules, name, None)
            return write(message)

    shares.write = without_library
    message = r"host .* cannot import what it needs to write states .*; install SQLAlchemy .*commit='driver'"
    with TopologyTest(counting(source, **PATHS[path])) as test:
        if path == "executors":
            with pytest.raises(TopologyError, match=message):
                test.run()
            return
        test.run()
        check(test, counted())
        assert paths(test.database_url) == 4 * ["driver"]
        assert states(test, 1) == [FAILED, COMMITTED]
        assert states(test, 3) == [COMMITTED]
    told = [record for record in caplog.records if "from now on the driver commits" in record.getMessage()]
    assert len(told) == 1


def test_a_database_that_is_another_one_on_the_executors_host_is_told(
    source: MemorySpout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, the file's path means another file, which must not be created."""
    elsewhere = tmp_path / "elsewhere.db"
    monkeypatch.setattr(targets, "_absolute", lambda url: f"sqlite:///{elsewhere}")
    with (
        TopologyTest(counting(source, commit="executors")) as test,
        pytest.raises(TopologyError, match=r"finds nothing of topology 'paths' in database .*elsewhere.db"),
    ):
        test.run()
    assert not elsewhere.exists()


def test_the_password_of_a_database_is_in_no_error_and_no_log(
    source: MemorySpout, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing listens at the address that executors are given."""
    monkeypatch.setattr(targets, "_absolute", lambda _: "postgresql://me:topsecret@127.0.0.1:1/state")
    with caplog.at_level(logging.DEBUG), TopologyTest(counting(source, **PATHS["mixed"])) as test:
        test.run()
        check(test, counted())
        error = test.attempts(1)[0].error
        assert isinstance(error, ServiceUnavailableError)
        told = [str(error), *getattr(error, "__notes__", ())]
        assert "127.0.0.1:1" in told[0]
        told += [record.getMessage() for record in caplog.records]
        told += [str(row.details) for row in ledger(test.database_url)]
        told.append(repr(StorePlace("postgresql://me:topsecret@host/state", 1.0, 1.0)))
        assert not any("topsecret" in text for text in told)


def test_a_backend_that_is_not_installed_on_executors_is_told(
    source: MemorySpout, tmp_path: Path, shares: Shares
) -> None:
    """The driver has registered the backend in its own process only."""

    def opened(url: str, **options: Any) -> StateBackend:
        return StateDatabase(f"sqlite:///{tmp_path / 'own.db'}", **options)

    take_back = register_backend("own", opened)

    def elsewhere(write: Callable[[Message], bytes], message: Message) -> bytes:
        take_back()
        return write(message)

    shares.write = elsewhere
    with (
        TopologyTest(counting(source, commit="executors"), database="own://here") as test,
        pytest.raises(TopologyError, match=r"host .* cannot open the database: .*'own' is not supported"),
    ):
        test.run()


def test_a_task_that_never_answers_is_given_up_after_the_message_timeout(
    source: MemorySpout, shares: Shares
) -> None:
    """The deadline begins with the write. Without a deadline a frozen executor would block everything."""
    cancelled = threading.Event()

    def frozen(write: Callable[[Message], bytes], message: Message) -> bytes:
        if len(shares.seen) > 1:
            return write(message)
        runner = shares.runners[0]
        test.clock.advance(29.9)
        assert not runner.cancelled
        for _ in range(1000):
            test.clock.advance(0.1)
            if runner.cancelled or cancelled.wait(0.01):
                break
        raise BatchFailedError("its Spark job was cancelled")

    shares.write = frozen
    with TopologyTest(counting(source, commit="executors", message_timeout_seconds=30.0)) as test:
        test.commit(1)
        assert states(test, 1) == [FAILED, COMMITTED]
        assert isinstance(test.attempts(1)[0].error, BatchTimeoutError)
        assert "was not written by executors within 30 s" in str(test.attempts(1)[0].error)
        test.run()
        check(test, counted())
