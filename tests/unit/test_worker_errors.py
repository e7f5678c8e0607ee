"""Errors on an executor: each names component, task, tuple and place."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.bolts import (
    LINES,
    CountByHand,
    Passing,
    Split,
    chain,
    compiled,
    failure,
    merged,
    run,
    word_count,
    words_state,
)
from support.inmemory import MemoryEmitter, MemoryLog, MemorySource, Range, attempt
from support.lists import each

from txstream.api.bolts import BasicBolt, BatchBolt, Bolt, OutputCollector, OutputFieldsDeclarer
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count, custom
from txstream.api.spouts import OpaqueSpout, SpoutContext
from txstream.api.tuples import Tuple
from txstream.bolts.aggregate import CountBolt, ReduceBolt
from txstream.bolts.sql import SqlStateBolt
from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import (
    BatchFailedError,
    BoltError,
    PartitionUnavailableError,
    StateValueError,
    TopologyError,
    TupleError,
)
from txstream.core.transaction import TransactionAttempt
from txstream.engine.run import start
from txstream.engine.start.driver import Driver
from txstream.plugins.testing.attempts import CallList
from txstream.plugins.testing.recorded_calls import recorded
from txstream.testing import InProcessRunner, TopologyTest, run_bolt

# --- errors ----------------------------------------------------------------------------------------


class Explode(BasicBolt):
    """Raises at the word `dog`, two calls deep."""

    output = "word string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        collector.emit((self.check(tup["value"]),))

    def check(self, line: str | None) -> str:
        if line == "the dog":
            raise ValueError("no dogs")
        return line or ""


@pytest.mark.parametrize("width", [1, 2])
def test_an_error_of_the_users_code_names_component_task_tuple_and_place(width: int) -> None:
    log = MemoryLog(LINES)
    error = failure(chain(log, Explode()), log, width)
    assert type(error) is BoltError
    message = str(error)
    assert message.startswith("txid 1 attempt 1.1, component 'b0', task ")
    assert f"ValueError: no dogs (in {Path(__file__).name}, line " in message
    assert message.endswith("), while processing Tuple(value='the dog')")
    (trace,) = error.__notes__
    lines = trace.splitlines()
    assert lines[0] == "Traceback (on the executor, most recent call last):"
    assert Path(__file__).name in lines[1]
    assert lines[1].endswith("in execute")
    assert any(line.endswith("in check") for line in lines)
    assert lines[-1] == "ValueError: no dogs"
    assert "engine" not in trace


class FailInFinish(CountByHand):
    def finish_batch(self) -> None:
        raise KeyError("finish")


class FailInPrepare(CountByHand):
    def prepare(self, context: Any, collector: OutputCollector, batch_id: Any) -> None:
        raise OSError("no such model file")


@each("width", [1, 2])
@each(
    ("bolt", "message"),
    [(FailInFinish(), "KeyError: 'finish' (in test_"), (FailInPrepare(), "OSError: no such model file (in")],
)
def test_errors_in_prepare_and_finish_are_told_alike(bolt: Bolt, message: str, width: int) -> None:
    log = MemoryLog(LINES)
    error = failure(word_count(log, bolt), log, width)
    assert type(error) is BoltError
    assert "component 'count', task " in str(error)
    assert message in str(error)
    assert "while processing" not in str(error)


# These are not Exceptions, but bugs of a bolt all the same: any library may call sys.exit.
ENDING = [SystemExit(3), KeyboardInterrupt("by hand"), GeneratorExit("early"), asyncio.CancelledError("late")]


class Ends(CountByHand):
    """Raises `error` in one of its methods."""

    def __init__(self, method: str, error: BaseException) -> None:
        self.method = method
        self.error = error

    def prepare_worker(self, context: Any) -> None:
        self.end("prepare_worker")

    def prepare(self, *given: Any) -> None:
        super().prepare(*given)
        self.end("prepare")

    def execute(self, tup: Tuple) -> None:
        super().execute(tup)
        self.end("execute")

    def finish_batch(self) -> None:
        super().finish_batch()
        self.end("finish_batch")

    def end(self, method: str) -> None:
        if method == self.method:
            raise self.error


@each("ending", ENDING, ids=lambda ending: type(ending).__name__)
@each("method", ["prepare_worker", "prepare", "execute", "finish_batch"])
def test_what_ends_a_process_elsewhere_is_a_failure_of_the_bolt(method: str, ending: BaseException) -> None:
    log = MemoryLog({"a": ["cat"]})
    error = failure(word_count(log, Ends(method, ending), parallelism=1), log)
    assert type(error) is BoltError
    place = f"component 'count', task 0: {type(ending).__name__}: {ending} (in {Path(__file__).name}, line "
    assert place in str(error)
    assert str(error).endswith(", while processing Tuple(word='cat')") == (method == "execute")


@each("ending", ENDING, ids=lambda ending: type(ending).__name__)
def test_what_ends_a_process_elsewhere_is_a_failure_of_the_emitter(ending: BaseException) -> None:
    def end(*_: object) -> None:
        raise ending

    log = MemoryLog({"a": ["cat"]}, on_emit=end)
    error = failure(word_count(log), log)
    assert type(error) is BoltError
    assert f"component 'lines': {type(ending).__name__}: {ending} (in " in str(error)


@each("ending", ENDING, ids=lambda ending: type(ending).__name__)
def test_what_ends_a_process_elsewhere_is_a_failure_of_the_reducer(ending: BaseException) -> None:
    def end(stored: int, delta: int) -> int:
        raise ending

    log = MemoryLog({"a": ["cat"]})
    counts = ReduceBolt("word", n=custom(end, 0, output="bigint", field="word"))
    error = failure(chain(log, Split(), counts), log)
    assert type(error) is StateValueError
    assert "component 'b1', task 0: key word='cat': value column 'n': custom(end, word) raised " in str(error)
    assert f" raised {type(ending).__name__}: {ending} (in {Path(__file__).name}, line " in str(error)


def test_a_run_goes_on_with_the_next_attempt_and_ends_after_max_attempts() -> None:
    topology = word_count(MemoryLog({"a": ["cat"]}), Ends("execute", SystemExit(3)), max_attempts=2)
    with TopologyTest(topology) as test:
        with pytest.raises(
            BoltError, match=r"txid 1 attempt .*'count', task .: SystemExit: 3 .*Tuple\(word='cat'\)"
        ):
            test.process(1)
        assert [attempt.state for attempt in test.attempts(1)] == ["failed", "failed"]


@pytest.mark.parametrize("ending", ENDING, ids=lambda ending: type(ending).__name__)
def test_what_code_of_the_topology_raises_on_the_driver_is_an_error_of_the_run(
    ending: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such code is a source's coordinator, say. `wait` must not silently end the program that calls it."""

    def run(driver: Driver[Any]) -> None:
        raise ending

    monkeypatch.setattr(Driver, "run", run)
    running = start(word_count(MemoryLog(LINES)), runner_factory=InProcessRunner)
    message = (
        rf"topology 'word-count' was ended by {type(ending).__name__}: .* \(in test_worker_.*, line \d+\)"
    )
    with pytest.raises(BoltError, match=message) as caught:
        running.wait(60)
    assert caught.value.__cause__ is ending


def test_run_bolt_tells_an_exit_and_lets_ctrl_c_through() -> None:
    with pytest.raises(BoltError, match=r"SystemExit: 3 .*while processing Tuple\(word='cat'\)"):
        run_bolt(Ends("execute", SystemExit(3)), ["cat"], "word string")
    with pytest.raises(KeyboardInterrupt):
        run_bolt(Ends("execute", KeyboardInterrupt()), ["cat"], "word string")


class Retry(Passing):
    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        raise BatchFailedError("the service is busy")


def test_an_error_below_is_not_blamed_on_the_bolt_above() -> None:
    log = MemoryLog(LINES)
    error = failure(chain(log, Split(), Retry()), log)
    assert type(error) is BatchFailedError
    assert str(error).startswith("txid 1 attempt 1.1, component 'b1', task ")
    assert "the service is busy, while processing Tuple(word='" in str(error)


class Wrong(BasicBolt):
    """Emits one wrong thing."""

    output = "word string, n int"

    def __init__(self, values: Any, stream: str = "default") -> None:
        self.values = values
        self.stream = stream

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        collector.emit(("fine", 1))
        collector.emit(self.values, self.stream)


@each(
    ("values", "message"),
    [
        (
            ("x",),
            "component 'b0' emitted ('x',) to stream 'default', which takes a tuple of 2 field(s): word "
            "string, n int",
        ),
        (("x", 1, 2), "component 'b0' emitted ('x', 1, 2) to stream 'default', which takes a tuple of 2"),
        ("xy", "component 'b0' emitted 'xy' to stream 'default', which takes a tuple of 2 field(s)"),
        ({"word": "x", "n": 1}, "component 'b0' emitted {'word': 'x', 'n': 1} to stream 'default'"),
        (7, "component 'b0' emitted 7 to stream 'default', which takes a tuple of 2 field(s)"),
        (
            ("x", "seven"),
            "component 'b0' emitted 'seven' (str) in field 'n' of stream 'default', which is declared as int",
        ),
        (
            (5, 1),
            "component 'b0' emitted 5 (int) in field 'word' of stream 'default', which is declared as string",
        ),
        (
            ("x", 1.5),
            "component 'b0' emitted 1.5 (float) in field 'n' of stream 'default', which is declared as int",
        ),
        (("x", True), "component 'b0' emitted True (bool) in field 'n'"),
        (("x", 1 << 31), "component 'b0' emitted 2147483648 (int) in field 'n' of stream 'default'"),
        (("x", 1 << 64), "component 'b0' emitted 18446744073709551616 (int) in field 'n'"),
        (("\ud800", 1), "component 'b0' emitted '\\ud800' (str) in field 'word'"),
    ],
    ids=repr,
)
def test_a_wrong_tuple_is_told_with_component_stream_field_and_value(values: Any, message: str) -> None:
    log = MemoryLog({"a": ["x"]})
    error = failure(chain(log, Wrong(values)), log)
    assert type(error) is TupleError
    assert message in str(error)


def test_an_unknown_stream_is_told() -> None:
    log = MemoryLog({"a": ["x"]})
    error = failure(chain(log, Wrong(("x", 1), "errors")), log)
    assert type(error) is TupleError
    assert "component 'b0' emitted to stream 'errors', but declares 'default'" in str(error)


@each("values", [["x", 1], ("x", None), iter(("x", 1)), (None, 0)], ids=["list", "tuple", "iterator", "null"])
def test_lists_iterators_and_nulls_may_be_emitted(values: Any) -> None:
    class Once(Wrong):
        def execute(self, tup: Tuple, collector: OutputCollector) -> None:
            given = ["x", 1] if self.values is None else self.values
            collector.emit(given)
            if isinstance(given, list):
                given[0] = "changed"  # a bolt may reuse its list

    log = MemoryLog({"a": ["x"]})
    builder = TransactionalTopologyBuilder("t", "lines", OpaqueSpout(MemorySource(log)))
    builder.set_bolt("b0", Once(None if not isinstance(values, tuple) else values)).shuffle_grouping("lines")
    builder.set_bolt("count", CountBolt("word")).fields_grouping("b0", "word")
    builder.set_bolt("pass", Passing()).shuffle_grouping("count")
    builder.set_bolt("seen", Keep()).shuffle_grouping("pass")
    builder.set_bolt("store", SqlStateBolt(words_state())).fields_grouping("seen", "word")
    topology = builder.build()
    expected = values[0] if isinstance(values, tuple) else "x"
    assert merged(topology, run(topology, log)) == {str(expected): 1}


class Keep(Passing):
    """Turns a null word into a word."""

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        collector.emit((str(tup["word"]), tup["n"]))


class WholeBatches(BatchBolt):
    output = "word string"

    def __init__(self, column: str) -> None:
        self.column = column

    def execute(self, tup: Tuple) -> None:
        self.collector.emit(("single",))
        self.collector.emit_batch(pa.record_batch({self.column: ["whole", "whole"]}))
        self.collector.emit_batch(pa.record_batch({self.column: pa.array([], pa.string())}))


def test_whole_batches_are_emitted_beside_tuples_and_checked() -> None:
    log = MemoryLog({"a": ["x", "y"]})
    topology = chain(log, WholeBatches("word"))
    assert merged(topology, run(topology, log)) == {"single": 2, "whole": 4}
    error = failure(chain(log, WholeBatches("wrod")), log)
    assert type(error) is TupleError
    assert (
        "component 'b0' emitted a batch of wrod string to stream 'default', which is declared as word string"
        in str(error)
    )


def test_a_null_key_is_told_as_an_error_in_the_data() -> None:
    class Nulls(Passing):
        def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
            declarer.declare("word string")

        def execute(self, tup: Tuple, collector: OutputCollector) -> None:
            collector.emit((tup["value"],))

    log = MemoryLog({"a": ["x", None]})
    error = failure(chain(log, Nulls()), log)
    assert type(error) is StateValueError
    assert "component 'store'" in str(error)
    assert "key column 'word' of table 'words' got a null, in Tuple(word=None, n=1)" in str(error)


def test_an_unreadable_partition_is_told_as_the_spouts() -> None:
    log = MemoryLog(LINES, hidden={"b"})
    for width in (1, 3):
        error = failure(word_count(log, CountByHand()), log, width)
        assert type(error) is PartitionUnavailableError
        assert str(error) == "txid 1 attempt 1.1, component 'lines': partition 'b' is hidden"


@dataclasses.dataclass(frozen=True)
class Counted(Range):
    count: int

    @property
    def records(self) -> int:
        return self.count


class CountedSource(MemorySource):
    meta_type = Counted


@each("records", [0, 2, 4])
def test_more_rows_than_a_meta_has_records_are_told_before_a_bolt_gets_them(records: int) -> None:
    """A chunk of 3 rows waits for more, so no bolt has seen it. Fewer rows than records are legitimate: an
    offset of a compacted topic may hold none."""
    log = MemoryLog({"a": list("vwxyz")})
    builder = TransactionalTopologyBuilder("t", "lines", OpaqueSpout(CountedSource(log)))
    builder.set_bolt("words", Split()).shuffle_grouping("lines")
    builder.set_bolt("store", SqlStateBolt(words_state(), n=Count())).fields_grouping("words", "word")
    calls = CallList()
    plan = compiled(builder.build())
    plan = dataclasses.replace(plan, bolts=tuple(recorded(spec, calls) for spec in plan.bolts))
    runner = InProcessRunner(plan)
    message = (
        rf"component 'lines': partition 'a' gave .* rows?, but its meta says records={records}: Counted\(.*"
    )
    with pytest.raises(BoltError, match=message):
        runner.run(attempt(1), BatchMetas({"a": Counted(0, 5, records)}))
    assert not [call for call in calls.calls() if call.component == "words" and call.tuples]
    assert runner.run(attempt(2), BatchMetas({"a": Counted(0, 5, 7)})).records == 5


class MiscountingEmitter(MemoryEmitter):
    def emit_joined(
        self, attempt: TransactionAttempt, metas: Mapping[str, Range]
    ) -> Iterator[tuple[Mapping[str, int], pa.RecordBatch]]:
        for partition, batch in self.emit_many(attempt, metas):
            yield {partition: batch.num_rows - 1}, batch


class MiscountingSource(MemorySource):
    def emitter(self, context: SpoutContext) -> MemoryEmitter:
        return MiscountingEmitter(super().emitter(context).log, self)


def test_rows_that_are_no_partitions_are_refused() -> None:
    log = MemoryLog({"a": ["x", "y"]})
    builder = TransactionalTopologyBuilder("t", "lines", OpaqueSpout(MiscountingSource(log)))
    builder.set_bolt("words", Split()).shuffle_grouping("lines")
    builder.set_bolt("store", SqlStateBolt(words_state(), n=Count())).fields_grouping("words", "word")
    with pytest.raises(BoltError, match="a batch of 2 rows came with counts of 1 row over 1 partition;"):
        InProcessRunner(compiled(builder.build())).run(attempt(1), BatchMetas(log.everything()))


def test_an_unknown_field_is_told_with_the_fields_that_there_are() -> None:
    class Typo(Passing):
        def execute(self, tup: Tuple, collector: OutputCollector) -> None:
            collector.emit((tup["valeu"],))

    log = MemoryLog({"a": ["x"]})

    class Named(Typo):
        def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
            declarer.declare("word string")

    error = failure(chain(log, Named()), log)
    assert type(error) is TupleError
    assert "no field 'valeu' in stream 'default' of 'lines'; it has value" in str(error)


def test_a_bolt_that_comes_back_from_pickle_as_something_else_is_told() -> None:
    log = MemoryLog({"a": ["x"]})
    plan = compiled(word_count(log))
    changed = dataclasses.replace(plan.bolts[0], pickled=pickle.dumps("not a bolt"))
    runner = InProcessRunner(dataclasses.replace(plan, bolts=(changed, *plan.bolts[1:])))
    with pytest.raises(TopologyError, match="component 'split' came back from pickle as str"):
        runner.run(attempt(1), BatchMetas(log.everything()))
    with pytest.raises(TopologyError, match="the source came back from pickle as str"):
        dataclasses.replace(plan, source=pickle.dumps("not a source")).create_source()
