"""The testing kit on Spark: the same steps, with batches in worker processes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.bolts import words_state
from support.guide import DOCS, examples, fixtures_of, load
from support.row_files import RowFiles
from support.word_topologies import Total, word_topology

from txstream.api.bolts import DataFrameBolt
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Sum
from txstream.api.spouts import OpaqueSpout, TransactionalSpout
from txstream.bolts.sql import SqlStateBolt
from txstream.core.errors import TupleError
from txstream.engine.batch.runner_contract import edges_of
from txstream.testing import AttemptState, TopologyTest, run_bolt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class CountWords(DataFrameBolt):
    """Counts words with Spark SQL; words in capitals go to a stream of their own, `shouting`."""

    def declare_output_fields(self, declarer: Any) -> None:
        declarer.declare("word string, n bigint")
        declarer.declare("word string", "shouting")

    def transform_streams(self, inputs: Any) -> Any:
        from pyspark.sql import functions as f

        (words,) = inputs.values()
        return {
            "default": words.groupBy("word").agg(f.count("*").alias("n")),
            "shouting": words.where(f.upper("word") == f.col("word")).select("word"),
        }


def test_a_topology_steps_fails_and_restarts_as_it_does_without_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines = ["a b", "b", "c", "a", "d d", "a"]
    source = RowFiles(tmp_path / "rows", partitions={"p": [(line,) for line in lines]})
    source.trip("fails", "p")
    topology = word_topology(source, spout=TransactionalSpout, max_batch_records=2, parallelism=2)
    with TopologyTest(topology, spark=spark) as test:
        first = test.process(1)
        assert [attempt.state for attempt in test.attempts(1)] == ["failed", "committing"]
        assert first.emitted("split") == [("a",), ("b",), ("b",)]
        assert test.phases == {1: "committing"}
        assert test.table("words") == {}
        assert test.commit(1).emitted("total") == [(3,)]
        test.process(2)
        test.fail(2)
        test.process(2)
        calls = [str(call) for call in test.calls(2) if call.attempt == test.attempts(2)[-1].id]
        assert calls.count("process split[0] prepare") == 1
        assert not any(call.startswith("commit") for call in calls)
        test.crash()
        test.restart()
        test.run()
        assert test.table("words") == {"a": 3, "b": 2, "c": 1, "d": 2}
        assert sum(rows[0][0] for rows in test.emitted_by_txid("total").values()) == 8
        assert [str(call) for call in test.calls(1, component="total")] == [
            "commit total[0] prepare",
            "commit total[0] execute x3",
            "commit total[0] finish_batch",
        ]


def test_a_batch_whose_worker_dies_is_replayed(spark: SparkSession, tmp_path: Path, unique: str) -> None:
    """The state is in the driver's memory, so the deltas come to the driver."""
    source = RowFiles(tmp_path / "rows", partitions={"p": [("a",), ("b",)]})
    source.trip("dies", "p")
    topology, database = word_topology(source, max_batch_records=5), f"memory://{unique}"
    with TopologyTest(topology, spark=spark, database=database) as test:
        test.commit(1)
        assert [attempt.state for attempt in test.attempts(1)] == [
            AttemptState.FAILED,
            AttemptState.COMMITTED,
        ]
        assert test.table("words") == {"a": 1, "b": 1}


def test_a_topology_with_a_dataframe_bolt(spark: SparkSession, tmp_path: Path) -> None:
    source = RowFiles(tmp_path / "rows", "word string", {"p": [("a",), ("B",), ("a",)]})
    builder = TransactionalTopologyBuilder("frames", "words", OpaqueSpout(source))
    builder.set_bolt("count", CountWords()).shuffle_grouping("words")
    builder.set_committer_bolt("shouts", Total()).global_grouping("count", stream="shouting")
    store = SqlStateBolt(words_state(), n=Sum("n"))
    builder.set_committer_bolt("store", store).fields_grouping("count", "word")
    with TopologyTest(builder.build(), spark=spark) as test:
        batch = test.commit(1)
        assert sorted(batch.emitted("count")) == [("B", 1), ("a", 2)]
        assert batch.emitted("count", "shouting") == [("B",)]
        assert batch.emitted("shouts") == [(1,)]
        assert batch.processed is not None
        assert batch.finished is not None
        edges = {(one.source, one.target): one for one in edges_of(batch.processed, batch.finished)}
        assert {pair: one.tuples for pair, one in edges.items()} == {
            ("words", "count"): 3,
            ("count", "shouts"): 1,
            ("count", "store"): 2,
        }
        assert edges["words", "count"].take_seconds is None, "Spark takes it in"
        assert all(one.send_seconds for one in edges.values())
        assert edges["count", "shouts"].take_seconds
        assert edges["count", "store"].take_seconds
        assert test.table("words") == {"a": 2, "B": 1}


def test_run_bolt_with_a_dataframe_bolt(spark: SparkSession) -> None:
    run = run_bolt(CountWords(), ["a", "B", "a"], "word string", spark=spark)
    assert sorted(run.emitted) == [("B", 1), ("a", 2)]
    assert run.streams["shouting"] == [("B",)]

    class Union(DataFrameBolt):
        output = "word string"

        def transform_streams(self, inputs: Any) -> Any:
            return {"default": inputs["words"].union(inputs["dictionary.stopwords"])}

    rows = {"words": ["a", "b"], "dictionary.stopwords": ["the"]}
    schemas = {"words": "word string", "dictionary.stopwords": "word string"}
    assert run_bolt(Union(), rows, schemas, spark=spark).emitted == [("a",), ("b",), ("the",)]

    class Wrong(DataFrameBolt):
        output = "word string, n bigint"

        def transform(self, df: Any) -> Any:
            return df

    with pytest.raises(TupleError, match=r"component 'count' answered with .* for stream 'default'"):
        run_bolt(Wrong(), ["a"], "word string", component="count", spark=spark)


@pytest.mark.soak
def test_the_examples_of_the_guide_that_need_services(spark: SparkSession, tmp_path: Path) -> None:
    fixtures = {"spark": spark, "tmp_path": tmp_path}
    ran: list[str] = []
    guide = load(DOCS / "testing.md", tmp_path)
    spark.sparkContext.addPyFile(str(guide.__file__))
    for function, calls in examples(guide):
        for call in calls:
            needed = fixtures_of(function, call)
            if needed:
                function(**{name: fixtures[name] for name in needed}, **call)
                ran += sorted(needed)
    assert ran == ["spark", "tmp_path", "tmp_path"]
