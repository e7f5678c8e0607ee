"""txstream in the same workload. `--variant columnar` (default) takes the word by Arrow, `tuples` by a Python
bolt of one line that is called for each tuple."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import txstream
from peers.workload import PARTITIONS, connect, is_exact, options, report, runs_of
from txstream import (
    BatchBolt,
    CountBolt,
    KafkaSource,
    OpaqueSpout,
    SqlState,
    SqlStateBolt,
    Sum,
    TransactionalTopologyBuilder,
    Tuple,
    bolt,
)
from txstream.api.tuples import Chunk
from txstream.engine.spark.session import create_session


class FirstWord(BatchBolt):
    """The first word of a line, by Arrow."""

    output = "key string"

    def execute(self, tup: Tuple) -> None:
        self.collector.emit((tup["value"].split(" ", 1)[0],))

    def execute_chunk(self, chunk: Chunk) -> None:
        words = pc.list_element(pc.split_pattern(chunk.batch.column(0), " ", max_splits=1), 0)
        self.collector.emit_batch(pa.record_batch({"key": words}))


@bolt(output="key string")
def first_word(tup: Tuple) -> str:
    return tup["value"].split(" ", 1)[0]  # type: ignore[no-any-return]


def topology(name: str, topic: str, batch: int, variant: str) -> txstream.Topology:
    source = KafkaSource(
        topic, max_records_per_partition=max(1, batch // PARTITIONS), kafka_columns=["value"]
    )
    builder = TransactionalTopologyBuilder(name, "lines", OpaqueSpout(source), 2, max_spout_pending=3)
    splitter = first_word if variant == "tuples" else FirstWord()
    builder.set_bolt("word", splitter, 2).local_or_shuffle_grouping("lines")
    builder.set_bolt("count", CountBolt("key"), 2).fields_grouping("word", "key")
    state = SqlState(name, key="key string", value="n bigint")
    builder.set_committer_bolt("store", SqlStateBolt(state, n=Sum("n")), 2).fields_grouping("count", "key")
    return builder.build()


def first_commit(url: str, name: str) -> float:
    """When the first batch was committed, seconds since the epoch."""
    with connect(url) as connection:
        row = connection.execute(
            "SELECT extract(epoch FROM min(committed_at)) FROM txstream_batch WHERE topology = %s", (name,)
        ).fetchone()
    assert row is not None
    return float(row[0])


def main() -> None:
    arguments = options(__doc__).parse_args()
    settings = txstream.Settings(
        zookeeper=arguments.zookeeper,
        kafka=arguments.kafka,
        database=arguments.database,
        data_dir=Path(arguments.data_dir),
    )
    session = create_session(master="local[2]", log_file=Path(arguments.data_dir) / "spark.log")
    is_live = arguments.mode == "live"
    for run, cold in runs_of(1 if is_live else arguments.runs):
        name = f"ours_{uuid.uuid4().hex[:10]}"
        made = topology(name, arguments.topic, arguments.batch, arguments.variant)
        begin = time.perf_counter()
        with txstream.start(made, session, settings, until=None if is_live else "caught-up") as running:
            if is_live:
                report(ready=True, table=name)
                time.sleep(arguments.seconds)
                running.stop()
            done = running.wait()
        seconds = time.perf_counter() - begin
        exact = None
        if not is_live:
            exact = is_exact(arguments.database, arguments.records, table=name, count="n")
        report(
            run=run,
            cold=cold,
            records=done.records,
            batches=done.batches,
            seconds=round(seconds, 3),
            first_commit_seconds=round(first_commit(arguments.database, name) - arguments.started, 2),
            exact=exact,
            table=name,
        )
    session.stop()


if __name__ == "__main__":
    main()
