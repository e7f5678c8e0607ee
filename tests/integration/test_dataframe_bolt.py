"""DataFrame bolts in processing and in the commit phase: what they compute, and what they refuse."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import dataframe_bolts as dataframe
from support.dataframe_bolts import (
    TYPED_ROWS,
    TYPES,
    CountRows,
    JoinAndSplit,
    Lengths,
    LinesWithWord,
    Unchanged,
    WordsOfLines,
    typed,
)
from support.inmemory import attempt
from support.on_spark import (
    CommitWords,
    CountWords,
    NotedSource,
    Same,
    Tagged,
    Words,
    captured,
    deltas,
    emissions,
    line,
    notes,
    ranges,
    state,
    task_counts,
    tracker,
)

from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count, Sum
from txstream.api.spouts import OpaqueSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.bolts.sql import SqlStateBolt
from txstream.core.errors import BatchFailedError, BoltError, TupleError, TxstreamError
from txstream.engine.batch.runner_contract import BatchResult
from txstream.engine.spark.spark_runner import SparkRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIZES = {"a": 170, "b": 60, "c": 1}
BATCH = ranges(**SIZES)
LINES = [line(partition, i)[0] for partition, size in SIZES.items() for i in range(size)]
WORDS = Counter(word for text in LINES for word in text.split())
OFTEN = Counter(word for text in LINES for word in text.split()[:-1])
SELDOM = Counter(text.split()[-1] for text in LINES)


def new_builder(source: NotedSource | None = None, slots: int = 2) -> TransactionalTopologyBuilder:
    return TransactionalTopologyBuilder("frames", "lines", OpaqueSpout(source or NotedSource()), slots)


def store(builder: TransactionalTopologyBuilder, above: str, **reducers: Any) -> Topology:
    bolt = SqlStateBolt(state(above), **(reducers or {"n": Sum("n")}))
    builder.set_committer_bolt("store", bolt, 2).fields_grouping(above, "word")
    return builder.build()


def process(
    spark: SparkSession, topology: Topology, run_id: str, width: int | None = None, *, own: bool = False
) -> tuple[BatchResult, BatchResult]:
    """Run both phases of a batch. With `own`, the runner makes Spark sessions of its own."""
    plan = captured(topology, run_id)
    runner = SparkRunner(spark.sparkContext, plan, None if own else spark, width=width)
    try:
        result = runner.run(attempt(1), BATCH)
        committed = runner.commit(attempt(1), result)
        runner.release(result)
        return result, committed
    finally:
        runner.close()


def failure(spark: SparkSession, topology: Topology, run_id: str) -> TxstreamError:
    with pytest.raises(TxstreamError) as caught:
        process(spark, topology, run_id)
    assert not spark.sparkContext._jsc.getPersistentRDDs()
    return caught.value


def rows_of(component: str, *results: BatchResult, stream: str = "default") -> list[tuple[Any, ...]]:
    return [
        row
        for (name, found, _), rows in emissions(*results).items()
        if (name, found) == (component, stream)
        for row in rows
    ]


def summed(rows: list[tuple[Any, ...]]) -> dict[Any, int]:
    total: Counter[Any] = Counter()
    for word, n in rows:
        total[word] += n
    return dict(total)


@pytest.mark.soak
@pytest.mark.parametrize(("width", "own"), [(1, True), (2, False)])
def test_behind_the_spout_and_behind_each_other(
    spark: SparkSession, unique: str, width: int, own: bool
) -> None:
    """Lines to words to counts by Spark alone; each word is counted in one place."""
    builder = new_builder()
    builder.set_bolt("words", WordsOfLines()).shuffle_grouping("lines")
    builder.set_bolt("count", CountRows()).shuffle_grouping("words")
    result, _ = process(spark, store(builder, "count"), unique, width, own=own)
    assert Counter(word for (word,) in rows_of("words", result)) == WORDS
    assert sorted(rows_of("count", result)) == sorted(WORDS.items())
    assert deltas(result) == {"store": sorted(WORDS.items(), key=repr)}
    counted = task_counts(result)
    assert sum(n for (name, _, _), n in counted.items() if name == "words") == WORDS.total()
    assert len([name for name, _, _ in counted if name == "count"]) == width


def test_in_the_middle_with_several_inputs_and_outputs(
    spark: SparkSession, tmp_path: Path, unique: str
) -> None:
    """Python is above, beside and below it; what feeds both Python and a DataFrame is computed once."""
    builder = new_builder(NotedSource(file=tmp_path / "read"), 4)
    builder.set_bolt("split", Words(tmp_path / "executed"), 4).shuffle_grouping("lines")
    builder.set_bolt("left", Tagged(), 4).local_or_shuffle_grouping("split")
    joined = builder.set_bolt("join", JoinAndSplit())
    joined.shuffle_grouping("left").shuffle_grouping("split", stream="seldom")
    builder.set_bolt("beside", CountWords(), 2).fields_grouping("left", "word")
    builder.set_bolt("below", CountWords(), 3).fields_grouping("join", "word")
    builder.set_bolt("alone", CountWords(), 2).fields_grouping("join", "word", stream="alone")
    every = builder.set_bolt("every", Same(), 2)
    every.all_grouping("below").all_grouping("alone")
    builder.set_bolt("again", CountRows()).shuffle_grouping("every")
    result, _ = process(spark, store(builder, "again"), unique, 4)
    both = {word for word in OFTEN if word in SELDOM}
    assert sorted(rows_of("join", result)) == sorted((word, OFTEN[word]) for word in both)
    alone = sorted((word,) for word in OFTEN if word not in both)
    assert sorted(rows_of("join", result, stream="alone")) == alone
    assert summed(rows_of("beside", result)) == dict(OFTEN)
    assert sorted(rows_of("below", result) + rows_of("alone", result)) == sorted((word, 1) for word in OFTEN)
    assert deltas(result) == {"store": sorted(((word, 2) for word in OFTEN), key=repr)}
    assert len(notes(tmp_path / "read")) == 3
    assert len(notes(tmp_path / "executed")) == len(LINES)


def test_in_the_commit_phase(spark: SparkSession, tmp_path: Path, unique: str) -> None:
    """It is directly below a committer, and feeds a fields grouping, a second committer and a state."""
    builder = new_builder()
    builder.set_bolt("split", Words(tmp_path / "executed"), 2).shuffle_grouping("lines")
    builder.set_committer_bolt("commit", CommitWords(), 2).fields_grouping("split", "word")
    builder.set_bolt("length", Lengths()).shuffle_grouping("commit")
    builder.set_bolt("check", Same(), 2).fields_grouping("length", "word")
    builder.set_committer_bolt("last", CommitWords()).global_grouping("length")
    topology = store(builder, "check")
    result, committed = process(spark, topology, unique, 2)
    assert deltas(result) == {}
    assert not [name for name, _, _ in task_counts(result) if name in {"length", "check", "last"}]
    expected = sorted((word, len(word)) for word in OFTEN)
    assert sorted(rows_of("length", committed)) == expected
    assert sorted(rows_of("check", committed)) == expected
    assert sorted(rows_of("last", committed)) == sorted((word, 1) for word in OFTEN)
    assert deltas(committed) == {"store": sorted(expected, key=repr)}
    assert len(notes(tmp_path / "executed")) == len(LINES)


@pytest.mark.parametrize("width", [1, 2])
def test_tuples_that_go_past_a_dataframe(spark: SparkSession, unique: str, width: int) -> None:
    """The stages between carry what is made above a DataFrame and read below it, in both phases."""
    builder = new_builder()
    builder.set_bolt("split", Words(), 2).shuffle_grouping("lines")
    builder.set_bolt("count", CountWords(), 2).fields_grouping("split", "word")
    seen = builder.set_bolt("seen", LinesWithWord())
    seen.shuffle_grouping("lines").shuffle_grouping("count")
    both = builder.set_bolt("both", CountWords(), 2)
    both.fields_grouping("seen", "word").fields_grouping("count", "word").fields_grouping("split", "word")
    commit = builder.set_committer_bolt("commit", CommitWords(), 2)
    commit.fields_grouping("both", "word").fields_grouping("split", "word")
    builder.set_bolt("length", Lengths()).shuffle_grouping("commit")
    last = builder.set_committer_bolt("last", CommitWords(), 2)
    last.fields_grouping("length", "word").fields_grouping("commit", "word").fields_grouping("split", "word")
    result, committed = process(spark, store(builder, "last"), unique, width)
    assert sorted(rows_of("seen", result)) == sorted(OFTEN.items())  # no word comes twice in a line
    assert sorted(rows_of("both", result)) == sorted((word, n + 2) for word, n in OFTEN.items())
    assert sorted(rows_of("commit", committed)) == sorted((word, n + 1) for word, n in OFTEN.items())
    assert deltas(committed) == {"store": sorted(((word, n + 2) for word, n in OFTEN.items()), key=repr)}


def test_crossing_into_the_commit_phase(spark: SparkSession, unique: str) -> None:
    builder = new_builder()
    builder.set_bolt("words", WordsOfLines()).shuffle_grouping("lines")
    builder.set_committer_bolt("commit", CommitWords(), 2).fields_grouping("words", "word")
    result, committed = process(spark, store(builder, "commit"), unique, 2)
    assert sum(result.crossing.values()) == WORDS.total()
    assert deltas(committed) == {"store": sorted(WORDS.items(), key=repr)}


def jobs_of(spark: SparkSession, group: str) -> int:
    return len(tracker(spark.sparkContext).getJobIdsForGroup(group))


def test_how_many_jobs_it_takes(spark: SparkSession, unique: str) -> None:
    """One job more than without a DataFrame, to compute its input; none more if the input exists."""
    context = spark.sparkContext
    builder = new_builder()
    builder.set_bolt("split", Words(), 2).shuffle_grouping("lines")
    builder.set_bolt("count", CountRows()).shuffle_grouping("split")
    builder.set_committer_bolt("commit", CommitWords(), 2).fields_grouping("count", "word")
    builder.set_bolt("length", Lengths()).shuffle_grouping("commit")
    context.setJobGroup(unique, "")  # a runner's jobs inherit what this thread has when the runner is made
    runner = SparkRunner(context, captured(store(builder, "length"), unique), width=1)
    context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    try:
        made = jobs_of(spark, unique)
        result = runner.run(attempt(1), BATCH)
        processed = jobs_of(spark, unique)
        runner.commit(attempt(1), result)
        runner.release(result)
    finally:
        runner.close()
    assert (processed - made, jobs_of(spark, unique) - processed) == (2, 2)


ODD_SETTINGS = {
    "spark.sql.session.timeZone": "Asia/Tokyo",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
    "spark.sql.execution.pyspark.binaryAsBytes": "false",
    "spark.sql.caseSensitive": "true",
}


@pytest.mark.parametrize("settings", [{}, ODD_SETTINGS], ids=["as they are", "odd"])
def test_every_type_survives_the_way_to_spark_and_back(
    spark: SparkSession, unique: str, settings: dict[str, str]
) -> None:
    session = spark.newSession()
    for name, value in settings.items():
        session.conf.set(name, value)
    builder = new_builder(NotedSource(typed, TYPES))
    builder.set_bolt("unchanged", Unchanged()).shuffle_grouping("lines")
    builder.set_bolt("again", Unchanged()).shuffle_grouping("unchanged")
    builder.set_bolt("python", Same()).global_grouping("again")
    counted = SqlStateBolt(SqlState("typed", key="id int", value="n bigint"), n=Count())
    builder.set_committer_bolt("store", counted).fields_grouping("python", "id")
    runner = SparkRunner(spark.sparkContext, captured(builder.build(), unique), session)
    try:
        result = runner.run(attempt(1), ranges(a=TYPED_ROWS))
    finally:
        runner.close()
    sent = sorted(rows_of("lines", result))
    assert len(sent) == TYPED_ROWS
    for component in ("unchanged", "again", "python"):
        # As text: in Python the two readings of a repeated hour are equal. A map's nulls and order count.
        assert list(map(repr, sorted(rows_of(component, result)))) == list(map(repr, sent))
    schemas = {emitted.component: emitted.tuples.schema for emitted in result.emitted}
    assert schemas["unchanged"] == schemas["again"] == schemas["python"] == schemas["lines"]


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (
            dataframe.wrong_type,
            TupleError,
            r"'odd' answered with \(word string, n int\) for stream 'default', which is declared as "
            r"\(word string, n bigint\); select and cast",
        ),
        (dataframe.wrong_order, TupleError, r"'odd' answered with \(n bigint, word string\)"),
        (dataframe.wrong_name, TupleError, r"'odd' answered with \(word string, m bigint\)"),
        (dataframe.no_dataframe, TupleError, r"'odd' must answer with a Spark DataFrame .*, not method"),
        (dataframe.raises, BoltError, r"LookupError: no such column in my notes \(in dataframe_bolts\.py"),
        (dataframe.unknown_column, BoltError, r"(?s)AnalysisException: .*`wrod`.*\(in dataframe_bolts\.py"),
        (
            dataframe.calls_a_function_that_raises,
            BoltError,
            r"component 'odd': ValueError: w3 cannot be measured \(in dataframe_bolts\.py, line \d+\)",
        ),
        (dataframe.asks_for_a_replay, BatchFailedError, r"component 'odd': not now"),
        (dataframe.divides_by_zero, BoltError, r"component 'odd': its Spark job failed: .*DIVIDE_BY_ZERO"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_goes_wrong_names_the_component(
    spark: SparkSession, unique: str, answer: Any, kind: type[TxstreamError], said: str
) -> None:
    builder = new_builder()
    builder.set_bolt("split", Words()).shuffle_grouping("lines")
    builder.set_bolt("odd", dataframe.Answers(answer)).shuffle_grouping("split")
    error = failure(spark, store(builder, "odd"), unique)
    assert type(error) is kind
    assert str(error).startswith("txid 1 attempt 1.1, component 'odd'")
    with pytest.raises(kind, match=said):
        raise error
    if kind is BoltError and "Spark job" not in said:
        (trace,) = error.__notes__
        assert "dataframe_bolts.py" in trace
        assert "txstream/engine" not in trace


def test_an_error_in_a_function_of_the_commit_phase(spark: SparkSession, unique: str) -> None:
    builder = new_builder()
    builder.set_bolt("split", Words()).shuffle_grouping("lines")
    builder.set_committer_bolt("commit", CommitWords()).fields_grouping("split", "word")
    odd = dataframe.Answers(dataframe.calls_a_function_that_raises)
    builder.set_bolt("odd", odd).shuffle_grouping("commit")
    error = failure(spark, store(builder, "odd"), unique)
    assert "component 'odd': ValueError: w3 cannot be measured" in str(error)


@pytest.mark.parametrize(
    ("answer", "when_empty"), [(dataframe.nothing, []), (dataframe.one_row, [("rows", 0)])]
)
def test_no_rows(spark: SparkSession, unique: str, answer: Any, when_empty: list[Any]) -> None:
    """No rows come in, but some DataFrames have rows nevertheless."""
    builder = new_builder()
    builder.set_bolt("split", Words()).shuffle_grouping("lines")
    builder.set_bolt("odd", dataframe.Answers(answer)).shuffle_grouping("split")
    builder.set_bolt("below", CountWords(), 2).fields_grouping("odd", "word")
    plan = captured(store(builder, "below"), unique)
    runner = SparkRunner(spark.sparkContext, plan, spark, width=2)
    try:
        for txid, batch in enumerate([ranges(), ranges(a=0)], 1):
            result = runner.run(attempt(txid), batch)
            assert rows_of("odd", result) == when_empty
            assert rows_of("below", result) == [(word, 1) for word, _ in when_empty]
    finally:
        runner.close()


def test_rows_come_in_and_none_go_out(spark: SparkSession, unique: str) -> None:
    builder = new_builder()
    builder.set_bolt("split", Words()).shuffle_grouping("lines")
    builder.set_bolt("odd", dataframe.Answers(dataframe.nothing)).shuffle_grouping("split")
    result, _ = process(spark, store(builder, "odd"), unique, 2)
    assert result.records == len(LINES)
    assert rows_of("odd", result) == []
    assert deltas(result) == {"store": []}


@pytest.mark.soak
def test_adaptive_execution_in_the_users_session_does_no_harm(spark: SparkSession, unique: str) -> None:
    """Spark may merge the partitions of shuffles, and runs a part of the batch while it plans."""
    session = spark.newSession()
    session.conf.set("spark.sql.adaptive.enabled", True)
    session.conf.set("spark.sql.shuffle.partitions", 20)
    builder = new_builder()
    builder.set_bolt("words", WordsOfLines()).shuffle_grouping("lines")
    builder.set_bolt("count", CountRows()).shuffle_grouping("words")
    builder.set_bolt("again", CountRows()).shuffle_grouping("count")
    builder.set_committer_bolt("commit", CommitWords(), 2).fields_grouping("again", "word")
    result, committed = process(session, store(builder, "commit"), unique, 2)
    assert sorted(rows_of("count", result)) == sorted(WORDS.items())
    assert deltas(committed) == {"store": sorted(((word, 1) for word in WORDS), key=repr)}
    assert 1 <= len([name for name, _, _ in task_counts(result) if name == "count"]) < 20

    failing = new_builder()
    failing.set_bolt("split", Words()).shuffle_grouping("lines")
    odd = dataframe.Answers(dataframe.calls_a_function_that_raises)
    failing.set_bolt("odd", odd).shuffle_grouping("split")
    failing.set_bolt("again", CountRows()).shuffle_grouping("odd")
    error = failure(session, store(failing, "again"), unique + "f")
    assert "component 'odd': ValueError: w3 cannot be measured" in str(error)


def test_a_session_whose_shuffles_are_too_wide_is_told(
    spark: SparkSession, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", 200)
    builder = new_builder()
    builder.set_bolt("words", WordsOfLines()).shuffle_grouping("lines")
    plan = captured(store(builder, "words", n=Count()), unique)
    with caplog.at_level(logging.WARNING, "txstream"):
        SparkRunner(spark.sparkContext, plan, spark).close()
        assert not caplog.records
        SparkRunner(spark.sparkContext, plan, session).close()
    assert "200 Spark tasks, however small the batch; set spark.sql.shuffle.partitions to" in caplog.text


def test_sessions_of_the_runners_own_shuffle_as_widely_as_the_batch(spark: SparkSession, unique: str) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    builder = new_builder(slots=4)
    builder.set_bolt("words", WordsOfLines()).shuffle_grouping("lines")
    builder.set_bolt("count", CountRows()).shuffle_grouping("words")
    result, _ = process(spark, store(builder, "count"), unique, 3, own=True)
    assert len([name for name, _, _ in task_counts(result) if name == "count"]) == 3
    assert spark.conf.get("spark.sql.shuffle.partitions") == before
