"""txstream in the same workload. With `--variant columnar` (default) Arrow takes the word; with `tuples`, a
one-line Python bolt called for each tuple does. With `--runs 1` the run starts a Spark of its own, as
`txstream run` does, and its steps are reported."""

from __future__ import annotations

import re
import time
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import txstream
from peers.workload import PARTITIONS, batch_rate, connect, cpu_seconds, is_exact, options, report, runs_of
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
    """Takes the first word of a line, by Arrow."""

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


def commits(url: str, name: str) -> list[float]:
    """Return when each batch was committed, in seconds since the epoch."""
    with connect(url) as connection:
        rows = connection.execute(
            "SELECT extract(epoch FROM committed_at) FROM txstream_batch WHERE topology = %s ORDER BY 1",
            (name,),
        ).fetchall()
    return [float(at) for (at,) in rows]


def states(running: txstream.RunningTopology, imported: float) -> dict[str, float]:
    """Return when each step of a start began, in seconds since the epoch. Waits for the first commit."""
    began = {"import of what runs": imported}
    while running.is_running and not running.progress.committed_txid:
        began.setdefault(re.split(r" at | \(|://", running.state)[0], time.time())
        time.sleep(0.002)
    return began


def main() -> None:
    arguments = options(__doc__).parse_args()
    settings = txstream.Settings(
        zookeeper=arguments.zookeeper,
        kafka=arguments.kafka,
        database=arguments.database,
        data_dir=Path(arguments.data_dir),
        master="local[2]",
    )
    is_start = arguments.mode == "catchup" and arguments.runs == 1
    imported = time.time()
    session = None
    if not is_start:
        session = create_session(master="local[2]", log_file=Path(arguments.data_dir) / "spark.log")
    is_live = arguments.mode == "live"
    for run, cold in runs_of(1 if is_live else arguments.runs):
        name = f"ours_{uuid.uuid4().hex[:10]}"
        made = topology(name, arguments.topic, arguments.batch, arguments.variant)
        begin = time.perf_counter()
        with txstream.start(
            made, session, settings, until=None if is_live or is_start else "caught-up"
        ) as running:
            if is_live:
                report(ready=True, table=name)
                time.sleep(arguments.seconds)
                running.stop()
            began = {"import": arguments.started, **(states(running, imported) if is_start else {})}
            used = cpu_seconds()
            if is_start:
                running.stop()
            done = running.wait()
        seconds = time.perf_counter() - begin
        exact = None
        if not is_live:
            exact = is_exact(arguments.database, arguments.records, arguments.keys, table=name, count="n")
        committed = commits(arguments.database, name)
        report(
            run=run,
            cold=cold,
            records=done.records,
            batches=done.batches,
            seconds=round(seconds, 3),
            first_commit_seconds=round(committed[0] - arguments.started, 2),
            batches_per_second=batch_rate(committed),
            cpu_seconds=used,
            exact=exact,
            table=name,
            began={step: round(at - arguments.started, 3) for step, at in began.items()},
            first_batch=running.timings[0].before_commit() if running.timings else {},
        )
    if session is not None:
        session.stop()


if __name__ == "__main__":
    main()
