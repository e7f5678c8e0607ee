"""`MemorySpout`: rows in memory, read in the process that made it, and in no other."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from support.inmemory import CONTEXT, attempt
from support.lists import each

from txstream.api.spouts import Unavailable
from txstream.core.batch_metas import MetaCodec
from txstream.core.errors import (
    BatchFailedError,
    CorruptStateError,
    DataLostError,
    PartitionUnavailableError,
    SchemaError,
    TopologyError,
    TupleError,
    UsageError,
)
from txstream.spouts import memory
from txstream.spouts.memory import MemoryEmitter, MemoryRange, MemorySpout
from txstream.spouts.memory.failure_markers import Crash, CrashError, Fail

LINES = ["one", "two", None, "four", "five"]


def rows(spout: MemorySpout, partition: str, start: int, end: int) -> list[Any]:
    """Return what an emitter in this process reads."""
    return read(spout.emitter(CONTEXT), partition, start, end)


def read(emitter: MemoryEmitter, partition: str, start: int, end: int) -> list[Any]:
    batches = emitter.emit(attempt(1), partition, MemoryRange(start, end))
    return [row["value"] for batch in batches for row in batch.to_pylist()]


@pytest.fixture
def spout() -> Iterator[MemorySpout]:
    with MemorySpout(partitions={"a": LINES, "b": ["x"]}) as made:
        yield made


@pytest.fixture
def emitter(spout: MemorySpout) -> MemoryEmitter:
    return spout.emitter(CONTEXT)


# --- rows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "end"), [(0, 5), (1, 4), (2, 3), (4, 5), (3, 3)])
def test_a_range_is_read_as_it_is(emitter: MemoryEmitter, start: int, end: int) -> None:
    assert read(emitter, "a", start, end) == LINES[start:end]


def test_rows_appended_later_are_read(spout: MemorySpout, emitter: MemoryEmitter) -> None:
    assert read(emitter, "a", 0, 5) == LINES
    spout.append("a", "six", "seven")
    spout.append("c", "new")
    assert read(emitter, "a", 3, 7) == ["four", "five", "six", "seven"]
    assert read(emitter, "c", 0, 1) == ["new"]


def test_many_small_appends_are_read_as_few_batches(spout: MemorySpout, emitter: MemoryEmitter) -> None:
    for n in range(50):
        spout.append("b", str(n))
    batches = list(emitter.emit(attempt(1), "b", MemoryRange(1, 51)))
    assert [batch.num_rows for batch in batches] == [50]


def test_long_ranges_come_in_chunks(monkeypatch: pytest.MonkeyPatch, emitter: MemoryEmitter) -> None:
    monkeypatch.setattr(memory, "_CHUNK_ROWS", 2)
    batches = list(emitter.emit(attempt(1), "a", MemoryRange(0, 5)))
    assert [batch.num_rows for batch in batches] == [2, 2, 1]
    assert read(emitter, "a", 0, 5) == LINES


def test_typed_rows() -> None:
    given = [("a", 1), ["b", None]]
    with MemorySpout("word string, n bigint", {"p": given}) as spout:
        (batch,) = spout.emitter(CONTEXT).emit(attempt(1), "p", MemoryRange(0, 2))
        assert batch.schema.equals(spout.output)
        assert batch.to_pylist() == [{"word": "a", "n": 1}, {"word": "b", "n": None}]


def test_a_tuple_is_always_a_row_and_a_list_may_be_a_value() -> None:
    with MemorySpout("words array<string>", {"p": [["a", "b"], (["c"],)]}) as spout:
        (batch,) = spout.emitter(CONTEXT).emit(attempt(1), "p", MemoryRange(0, 2))
        assert batch.to_pydict() == {"words": [["a", "b"], ["c"]]}


@each(
    ("row", "message"),
    [
        (("a", "x"), "'p', row 2: 'x' (str) cannot be held by field 'n', which is declared as bigint"),
        (("a", 1.5), "row 2: 1.5 (float) cannot be held by field 'n'"),
        (("a", 2**70), "(int) cannot be held by field 'n'"),
        (("a",), "row 2: ('a',) is no tuple of 2 value(s): word string, n bigint"),
        ("ab", "row 2: 'ab' is no tuple of 2 value(s)"),
        (None, "row 2: None is no tuple"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_and_nothing_is_added(row: Any, message: str) -> None:
    with MemorySpout("word string, n bigint", {"p": [("a", 1)]}) as spout:
        with pytest.raises(TupleError) as caught:
            spout.append("p", ("b", 2), row)
        assert message in str(caught.value)
        assert spout.coordinator(CONTEXT).targets() == {"p": 1}


# --- plans --------------------------------------------------------------------------------------------------


def test_plans_go_on_where_the_last_one_ended(spout: MemorySpout) -> None:
    coordinator = spout.coordinator(CONTEXT)
    assert coordinator.plan({}, 100) == {"a": MemoryRange(0, 5), "b": MemoryRange(0, 1)}
    last = {"a": MemoryRange(0, 3), "b": MemoryRange(0, 1)}
    assert coordinator.plan(last, 100) == {"a": MemoryRange(3, 5)}
    spout.append("new", "n")
    assert coordinator.plan(last, 100) == {"a": MemoryRange(3, 5), "new": MemoryRange(0, 1)}
    coordinator.close()


def test_a_plan_keeps_to_its_limits() -> None:
    partitions = {name: ["x"] * 50 for name in "abc"}
    with MemorySpout(partitions=partitions, max_records_per_partition=7) as spout:
        coordinator = spout.coordinator(CONTEXT)
        assert all(meta == MemoryRange(0, 7) for meta in coordinator.plan({}, 1000).values())
        planned = coordinator.plan({}, 4)
        assert sum(meta.records for meta in planned.values() if isinstance(meta, MemoryRange)) == 4


def test_a_hidden_partition_is_left_out_and_comes_back(spout: MemorySpout, emitter: MemoryEmitter) -> None:
    coordinator = spout.coordinator(CONTEXT)
    spout.hide("a", "disk unplugged")
    assert coordinator.plan({}, 100) == {"a": Unavailable("disk unplugged"), "b": MemoryRange(0, 1)}
    assert coordinator.unreadable({"a": MemoryRange(0, 1), "b": MemoryRange(0, 1)}) == {
        "a": Unavailable("disk unplugged")
    }
    with pytest.raises(PartitionUnavailableError, match="'a' ends: disk unplugged"):
        coordinator.targets()
    with pytest.raises(PartitionUnavailableError, match="partition 'a' cannot be read: disk unplugged"):
        read(emitter, "a", 0, 1)
    spout.show("a")
    assert coordinator.plan({}, 100).keys() == {"a", "b"}
    assert read(emitter, "a", 0, 1) == ["one"]


def test_targets(spout: MemorySpout) -> None:
    coordinator = spout.coordinator(CONTEXT)
    spout.append("empty")
    targets = coordinator.targets()
    assert targets == {"a": 5, "b": 1, "empty": 0}
    assert coordinator.lag_records({}, targets) == 6
    assert not coordinator.reached({"a": MemoryRange(0, 4), "b": MemoryRange(0, 1)}, targets)
    spout.append("a", "later")
    assert coordinator.reached({"a": MemoryRange(2, 6), "b": MemoryRange(0, 1)}, targets)


def test_rows_that_are_not_there_are_lost(spout: MemorySpout, emitter: MemoryEmitter) -> None:
    """As when a new program has fewer rows than the one before it."""
    coordinator = spout.coordinator(CONTEXT)
    for last in ({"a": MemoryRange(0, 6)}, {"gone": MemoryRange(0, 1)}):
        with pytest.raises(DataLostError, match="give it at least the rows"):
            coordinator.plan(last, 100)
        with pytest.raises(DataLostError, match="give it at least the rows"):
            coordinator.unreadable(last)
    with pytest.raises(DataLostError, match=r"5 positions.* but 3 to 6 are planned"):
        read(emitter, "a", 3, 6)
    with pytest.raises(DataLostError, match="0 positions"):
        read(emitter, "gone", 0, 1)


def test_metas_are_stored_as_json() -> None:
    codec = MetaCodec(MemorySpout.meta_type)
    meta = MemoryRange(3, 8)
    assert codec.decode_meta(json.loads(json.dumps(codec.encode_meta(meta))), "here") == meta
    with pytest.raises(CorruptStateError, match="not a range"):
        codec.decode_meta({"start": 4, "end": 3}, "here")


def test_identity_is_the_schema() -> None:
    assert MemorySpout("n bigint").identity() == {"output": "n bigint"}


@each(
    ("arguments", "error", "message"),
    [
        ({"output": "value strin"}, SchemaError, "unknown type 'strin'"),
        ({"partitions": ["a", "b"]}, TopologyError, "partitions must map a partition's name to its rows"),
        ({"partitions": {"a": "abc"}}, TopologyError, "partition 'a' must be a list of rows, not 'abc'"),
        ({"partitions": {"": ["abc"]}}, UsageError, "named by a string that is not empty"),
        ({"partitions": {"\ud800": []}}, UsageError, "is not valid text"),
        ({"partitions": {"a": [3]}}, TupleError, "partition 'a', row 0: 3 (int) cannot be held"),
        ({"max_records_per_partition": 0}, TopologyError, "must be at least 1"),
    ],
)
def test_wrong_arguments(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        MemorySpout(**arguments)
    assert message in str(caught.value)


def test_hiding_a_partition_that_does_not_exist(spout: MemorySpout) -> None:
    for call in (spout.hide, spout.show):
        with pytest.raises(UsageError, match="no partition 'z'; it has 'a', 'b'"):
            call("z")


# --- markers ------------------------------------------------------------------------------------------------


def test_a_fail_marker_fails_the_batch_so_many_times(spout: MemorySpout, emitter: MemoryEmitter) -> None:
    spout.append("m", "before", Fail("flaky", times=2), "after")
    for _ in range(2):
        batches = emitter.emit(attempt(4), "m", MemoryRange(0, 3))
        assert next(batches).to_pydict() == {"value": ["before"]}
        with pytest.raises(BatchFailedError, match=r"txid 4 .*partition 'm', position 1: flaky"):
            next(batches)
    assert read(emitter, "m", 0, 3) == ["before", "after"]
    assert read(emitter, "m", 1, 2) == []


def test_a_marker_that_never_strikes(spout: MemorySpout, emitter: MemoryEmitter) -> None:
    spout.append("m", Fail(times=0), "x", Crash(times=0))
    assert read(emitter, "m", 0, 3) == ["x"]


def test_a_marker_counts_in_plans_and_targets(spout: MemorySpout) -> None:
    spout.append("m", Fail(), "x", Crash())
    coordinator = spout.coordinator(CONTEXT)
    assert coordinator.plan({}, 100)["m"] == MemoryRange(0, 3)
    assert coordinator.targets()["m"] == 3


def test_a_crash_in_this_process_is_no_exception(spout: MemorySpout) -> None:
    spout.append("m", Crash(), "after")
    emitter = spout.emitter(CONTEXT)
    with pytest.raises(CrashError, match="position 0"):
        read(emitter, "m", 0, 2)
    assert not issubclass(CrashError, Exception)
    assert read(emitter, "m", 0, 2) == ["after"]


@each("marker", [Fail, Crash])
@each("times", [-1, True, 1.5, None])
def test_markers_strike_a_number_of_times(marker: Any, times: Any) -> None:
    with pytest.raises(UsageError, match="must be a whole number from 0 on"):
        marker(times=times)


# --- other processes ----------------------------------------------------------------------------------------


def test_a_copy_in_this_process_is_the_same_spout(spout: MemorySpout) -> None:
    assert pickle.loads(pickle.dumps(spout)) is spout


def test_another_process_is_told_what_to_read_instead(spout: MemorySpout) -> None:
    program = "import pickle, sys; pickle.load(sys.stdin.buffer)"
    child = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(spout), capture_output=True, check=False
    )
    assert b"UsageError: the rows of a MemorySpout are in the process that made it" in child.stderr
    assert b"there, read a FileSpout" in child.stderr


def test_once_it_is_closed_everything_says_so(spout: MemorySpout) -> None:
    spout.close()
    spout.close()
    for call in (
        lambda: spout.append("a", "x"),
        lambda: spout.coordinator(CONTEXT),
        lambda: spout.emitter(CONTEXT),
    ):
        with pytest.raises(UsageError, match="was closed"):
            call()


def test_a_fork_cannot_add_rows_that_nobody_would_read(spout: MemorySpout) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            spout.append("a", "from the fork")
        except UsageError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert rows(spout, "a", 0, 5) == LINES
