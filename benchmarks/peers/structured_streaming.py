"""The peer: Spark Structured Streaming with foreachBatch, tuned, with bookkeeping by hand, as its users do
it.

It is exactly-once while the checkpoint and its batch numbers live. Nothing fences a second driver.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from peers.jars import fetched
from peers.workload import batch_rate, cpu_seconds, fresh_tables, is_exact, options, report, runs_of, upsert
from txstream.plugins.local.embedded.jars import kafka_classpath

# Spark's Kafka connector. Kafka's client is among the embedded broker's jars.
JARS = {
    "org/apache/spark/spark-sql-kafka-0-10_2.13/4.2.0/spark-sql-kafka-0-10_2.13-4.2.0.jar": (
        "64539c45e5d39f7ddb747312c239f38f5208d08c1a0ddf7d70beb2fbd9373705"
    ),
    "org/apache/spark/spark-token-provider-kafka-0-10_2.13/4.2.0/"
    "spark-token-provider-kafka-0-10_2.13-4.2.0.jar": (
        "641c7947afc8aa1189e433b7c2d305293993c8691bc1c2062d6d4f513b12518c"
    ),
    "org/apache/commons/commons-pool2/2.12.1/commons-pool2-2.12.1.jar": (
        "5273c8bc8c0dca2211175c0d27efbd7228efae99689aac001a8e1ef8e872e9ef"
    ),
}
TUNED = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.pollingDelay": "1ms",
}


def connector_jars() -> str:
    """Return the class path for Kafka. Fetches the jars once."""
    return ",".join([*fetched(JARS), *(jar for jar in kafka_classpath() if "kafka-clients" in jar)])


class Counting:
    """foreachBatch: Spark counts the batch, then the driver writes the counts in one transaction."""

    def __init__(self, database: str) -> None:
        self.connection = fresh_tables(database)
        self.batches = self.records = 0
        self.commits: list[float] = []

    def __call__(self, frame: Any, batch: int) -> None:
        table = frame.groupBy("key").count().toArrow()
        counts = table.column("count").to_pylist()
        applied = self.connection.execute(
            "INSERT INTO applied VALUES (%s) ON CONFLICT DO NOTHING", (batch,)
        ).rowcount
        if applied and counts:
            upsert(self.connection, table.column("key").to_pylist(), counts)
        self.connection.commit()
        self.batches, self.records = self.batches + 1, self.records + sum(counts)
        self.commits.append(time.time())


def main() -> None:
    arguments = options(__doc__).parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession, functions

    builder = SparkSession.builder.master("local[2]").config("spark.jars", connector_jars())
    for name, value in TUNED.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    checkpoint = Path(arguments.data_dir) / "checkpoint"

    def started(*, is_live: bool) -> tuple[Any, Counting]:
        shutil.rmtree(checkpoint, ignore_errors=True)
        counting = Counting(arguments.database)
        source = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", arguments.kafka)
            .option("subscribe", arguments.topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", arguments.batch)
            .load()
            .select(functions.substring_index(functions.col("value").cast("string"), " ", 1).alias("key"))
        )
        writer = source.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(counting)
        trigger = {"processingTime": "0 seconds"} if is_live else {"availableNow": True}
        return writer.trigger(**trigger).start(), counting

    if arguments.mode == "live":
        query, counting = started(is_live=True)
        report(ready=True)
        time.sleep(arguments.seconds)
        query.stop()
        report(run=0, cold=False, records=counting.records, batches=counting.batches)
    else:
        for run, cold in runs_of(arguments.runs):
            begin = time.perf_counter()
            query, counting = started(is_live=False)
            query.awaitTermination()
            seconds = time.perf_counter() - begin
            counting.connection.close()
            report(
                run=run,
                cold=cold,
                records=counting.records,
                batches=counting.batches,
                seconds=round(seconds, 3),
                first_commit_seconds=round(counting.commits[0] - arguments.started, 2),
                batches_per_second=batch_rate(counting.commits),
                cpu_seconds=cpu_seconds(),
                exact=is_exact(arguments.database, arguments.records, arguments.keys),
            )
    spark.stop()


if __name__ == "__main__":
    main()
