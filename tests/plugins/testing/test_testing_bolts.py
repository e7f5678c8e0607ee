"""`run_bolt` runs one task of one bolt, with the checks and the errors of a real run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.bolts import CountByHand, Passing, Split, words_state
from support.lists import each

from txstream.api.bolts import (
    BasicBolt,
    BatchBolt,
    Committer,
    DataFrameBolt,
    OutputCollector,
    OutputFieldsDeclarer,
    WorkerContext,
)
from txstream.api.reducers import Count, Max, Sum
from txstream.api.state import SqlState
from txstream.api.tuples import Chunk, Tuple
from txstream.bolts.aggregate import CountBolt
from txstream.bolts.functions import bolt
from txstream.bolts.sql import SqlStateBolt
from txstream.core.errors import (
    BatchFailedError,
    BoltError,
    SchemaError,
    StateValueError,
    TopologyError,
    TupleError,
    UsageError,
)
from txstream.core.transaction import TransactionAttempt, Txid, attempt_id
from txstream.testing import run_bolt

# --- every kind of bolt ------------------------------------------------------------------------------------


def test_a_basic_bolt() -> None:
    run = run_bolt(Split(), ["the cat", "a dog"], "value string")
    assert run.emitted == [("the",), ("cat",), ("a",), ("dog",)]
    assert run.streams == {"default": run.emitted}


def test_a_batch_bolt_finishes_its_batch_unless_it_shall_not() -> None:
    rows = ["a", "b", "a"]
    assert sorted(run_bolt(CountByHand(), rows, "word string").emitted) == [("a", 2), ("b", 1)]
    unfinished = run_bolt(CountByHand(), rows, "word string", finish=False)
    assert unfinished.emitted == []
    assert isinstance(unfinished.instance, CountByHand)
    assert unfinished.instance.counts == {"a": 2, "b": 1}


def test_a_function_bolt() -> None:
    @bolt(output="n bigint")
    def length(tup: Tuple) -> int:
        return len(tup["word"])

    assert run_bolt(length, ["one", "three"], "word string").emitted == [(3,), (5,)]


def test_a_bolt_that_takes_whole_chunks_gets_as_many_rows_at_once_as_asked_for() -> None:
    class Sizes(BatchBolt):
        output = "rows bigint"

        def execute(self, tup: Tuple) -> None:
            raise AssertionError("it takes chunks")

        def execute_chunk(self, chunk: Chunk) -> None:
            self.collector.emit((len(chunk),))

    rows = list(range(5))
    assert run_bolt(Sizes(), rows, "n bigint").emitted == [(5,)]
    assert run_bolt(Sizes(), rows, "n bigint", chunk_rows=2).emitted == [(2,), (2,), (1,)]
    assert run_bolt(Sizes(), [], "n bigint").emitted == []
    assert run_bolt(CountBolt("word"), ["a", "b", "a"], "word string", chunk_rows=1).emitted == [
        ("a", 2),
        ("b", 1),
    ]


class Doubles(BasicBolt):
    """Takes and emits columns."""

    output = pa.schema([pa.field("n", pa.int64(), nullable=False)])

    def execute_batch(self, batch: pa.RecordBatch, collector: OutputCollector) -> None:
        doubled = pc.multiply(batch.column("n"), 2)
        collector.emit_batch(pa.RecordBatch.from_arrays([doubled], schema=self.output))


def test_a_bolt_that_takes_columns() -> None:
    assert run_bolt(Doubles(), [1, 2, 3], "n bigint").emitted == [(2,), (4,), (6,)]
    assert run_bolt(Doubles(), [1, 2, 3], "n bigint", chunk_rows=2).emitted == [(2,), (4,), (6,)]


def test_what_is_emitted_in_columns_is_checked_as_a_tuple_is() -> None:
    with pytest.raises(TupleError, match=r"emitted None .* in field 'n' of stream 'default', .* as bigint"):
        run_bolt(Doubles(), [1, None], "n bigint")


def test_a_committer_runs_to_its_end() -> None:
    class Size(BatchBolt, Committer):
        output = "rows bigint"

        def prepare(self, *arguments: Any) -> None:
            super().prepare(*arguments)
            self.rows = 0

        def execute(self, tup: Tuple) -> None:
            self.rows += 1

        def finish_batch(self) -> None:
            self.collector.emit((self.rows,))

    assert run_bolt(Size(), ["a", "b"], "word string").emitted == [(2,)]
    assert run_bolt(Size(), [], "word string").emitted == [(0,)]


def test_a_state_bolt_tells_its_deltas() -> None:
    store = SqlStateBolt(words_state(), n=Sum("n"))
    run = run_bolt(store, [("a", 2), ("b", 1), ("a", 5)], "word string, n bigint")
    assert run.deltas == [("a", 7), ("b", 1)]
    with pytest.raises(UsageError, match="declares no default stream; it declares no output"):
        run.emitted  # noqa: B018
    longest = SqlStateBolt(SqlState("t", key="k string", value="n bigint, m bigint"), n=Count(), m=Max("m"))
    assert run_bolt(longest, [("x", 3), ("x", 9)], "k string, m bigint").deltas == [("x", 2, 9)]


def test_several_streams_and_tuples_for_chosen_tasks() -> None:
    class Sort(BasicBolt):
        def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
            declarer.declare("n bigint", "even", direct=True)
            declarer.declare("n bigint", "odd")

        def execute(self, tup: Tuple, collector: OutputCollector) -> None:
            if tup["n"] % 2:
                collector.emit((tup["n"],), "odd")
            else:
                collector.emit_direct(tup["n"] % self.context.task_counts["below"], (tup["n"],), "even")

    run = run_bolt(Sort(), [1, 2, 4, 5], "n bigint", task_counts={"below": 4})
    assert run.streams == {"odd": [(1,), (5,)], "even": [(2,), (4,)]}
    assert run.direct == {"even": [(2, (2,)), (0, (4,))]}
    with pytest.raises(UsageError, match="declares no default stream; it declares 'even', 'odd'"):
        run.emitted  # noqa: B018


def test_several_inputs_come_one_after_the_other_by_component_and_stream() -> None:
    @bolt(output="place string, value string")
    def where(tup: Tuple) -> tuple[str, str]:
        return f"{tup.source_component}.{tup.source_stream}", str(tup[0])

    run = run_bolt(
        where,
        {"words": ["a", "b"], "numbers.odd": [(1,)]},
        {"numbers.odd": "n bigint", "words": "word string"},
    )
    assert run.emitted == [("words.default", "a"), ("words.default", "b"), ("numbers.odd", "1")]


def test_the_output_may_depend_on_the_input() -> None:
    rows = [("a", 1), ("b", 2)]
    assert run_bolt(Passing(), rows, pa.schema([("k", pa.string()), ("n", pa.int32())])).emitted == rows


def test_a_dataframe_bolt_needs_spark() -> None:
    class Lazy(DataFrameBolt):
        output = "word string"

    with pytest.raises(UsageError, match="Lazy is a DataFrameBolt, which Spark computes; pass spark="):
        run_bolt(Lazy(), ["a"], "word string")


# --- its surroundings --------------------------------------------------------------------------------------


def test_the_context_is_what_was_asked_for() -> None:
    attempt = TransactionAttempt(Txid(7), attempt_id(2, 3))
    run = run_bolt(
        CountByHand(),
        [],
        "word string",
        component="count",
        attempt=attempt,
        task=2,
        task_count=3,
        task_counts={"store": 5, "count": 99},
        settings={"limit": 10},
    )
    assert isinstance(run.instance, CountByHand)
    context = run.instance.context
    assert (context.component, context.task_index, context.task_count) == ("count", 2, 3)
    assert context.task_counts == {"count": 3, "store": 5}
    assert context.settings == {"limit": 10}
    assert context.attempt == run.instance.batch_id == attempt


CALLBACKS: dict[str, Callable[..., Any]] = {}


class Connected(BasicBolt):
    """Opens a resource in each worker process."""

    output = "answer string"

    def prepare_worker(self, context: WorkerContext) -> Any:
        CALLBACKS["tell"](f"open {context.component} {context.settings['name']}")
        return context.settings["name"].upper()

    def close_worker(self, resource: Any) -> None:
        CALLBACKS["tell"](f"close {resource}")

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup["word"] == "bad":
            raise ValueError("a bug")
        collector.emit((self.context.resource,))


def test_what_a_worker_opens_is_there_and_closed_at_the_end_also_after_an_error() -> None:
    told: list[str] = []
    CALLBACKS["tell"] = told.append
    assert run_bolt(Connected(), ["x"], "word string", settings={"name": "db"}).emitted == [("DB",)]
    assert told == ["open bolt db", "close DB"]
    with pytest.raises(BoltError):
        run_bolt(Connected(), ["bad"], "word string", settings={"name": "db"})
    assert told == ["open bolt db", "close DB"] * 2


def test_the_bolt_that_is_passed_stays_as_it_was() -> None:
    given = CountByHand()
    run_bolt(given, ["a"], "word string")
    assert vars(given) == {}


# --- errors ------------------------------------------------------------------------------------------------


def test_an_error_of_the_bolt_is_that_of_a_run_with_the_users_own_as_its_cause() -> None:
    with pytest.raises(BoltError) as caught:
        run_bolt(Connected(), ["bad"], "word string", settings={"name": "x"}, component="ask", task_count=2)
    text = str(caught.value)
    assert text.startswith("txid 1 attempt 1.1, component 'ask', task 0: ValueError: a bug (in ")
    assert text.endswith("while processing Tuple(word='bad')")
    assert isinstance(caught.value.__cause__, ValueError)
    (note,) = caught.value.__notes__
    assert "in execute" in note
    assert "txstream/engine" not in note


def test_a_batch_may_fail() -> None:
    @bolt(output="word string")
    def failing(tup: Tuple) -> None:
        raise BatchFailedError("try again")

    with pytest.raises(BatchFailedError, match="try again, while processing"):
        run_bolt(failing, ["a"], "word string")


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("word string, n bigint", r"emitted \('a',\) to stream 'default', which takes a tuple of 2 field"),
        (
            "word bigint",
            r"emitted 'a' \(str\) in field 'word' of stream 'default', which is declared as bigint",
        ),
    ],
)
def test_what_is_emitted_is_checked_against_the_stream(output: str, message: str) -> None:
    @bolt(output=output)
    def wrong(tup: Tuple) -> tuple[Any, ...]:
        return ("a",)

    with pytest.raises(TupleError, match=message):
        run_bolt(wrong, ["a"], "word string")


def test_a_null_in_a_key_is_refused_as_in_a_run() -> None:
    with pytest.raises(StateValueError, match="key column 'word' of table 'words' got a null"):
        run_bolt(SqlStateBolt(words_state(), n=Count()), [None], "word string")


def test_a_bolt_that_does_not_fit_its_input_is_refused_as_by_build() -> None:
    with pytest.raises(TopologyError, match="needs a field 'word', but its input has only line string"):
        run_bolt(CountBolt("word"), ["a"], "line string")
    with pytest.raises(TopologyError, match=r"pass an instance, not the class"):
        run_bolt(Split, ["a"], "value string")  # type: ignore[arg-type]  # the mistake
    with pytest.raises(SchemaError):
        run_bolt(Split(), ["a"], "value strin")


def test_a_bolt_that_cannot_be_shipped_is_refused() -> None:
    class Locked(Split):
        def __init__(self) -> None:
            self.lock = threading.Lock()

    with pytest.raises(TopologyError, match="component 'bolt' cannot be shipped to executors"):
        run_bolt(Locked(), ["a"], "value string")


@each(
    ("rows", "schema", "error", "message"),
    [
        ([("a",)], "word string, n bigint", TupleError, r"row 0 of 'input' is \('a',\); its schema takes 2"),
        (["a", 3], "word string", TupleError, "row 1 of 'input' has 3 in field 'word', which is string"),
        ([1.5], "n bigint", TupleError, "row 0 of 'input' has 1.5 in field 'n', which is bigint"),
        ("abc", "word string", UsageError, "the rows of 'input' must be a list of rows, not 'abc'"),
        ({"a": []}, "word string", UsageError, "both for one input, or both as mappings"),
        ({"a": []}, {"b": "word string"}, UsageError, "rows are given for a, schemas for b"),
    ],
)
def test_rows_that_are_not_what_the_schema_says(
    rows: Any, schema: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run_bolt(Split(), rows, schema)


def test_a_task_that_does_not_exist() -> None:
    with pytest.raises(UsageError, match="task 3 is none of 3 tasks"):
        run_bolt(Split(), [], "value string", task=3, task_count=3)
