"""The peer for latency alone: Structured Streaming in real-time mode, from Kafka to Kafka.

It has neither foreachBatch nor a SQL sink, so it counts and stores nothing: the first word of each line goes
to a second topic, at least once. Its tasks never end, so each partition has a slot of its own, even if the
machine has fewer cores.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from peers.structured_streaming import TUNED, connector_jars
from peers.workload import PARTITIONS, make_topic, options, report

# The time between two checkpoints.
_BATCH = "5 minutes"


def main() -> None:
    arguments = options(__doc__).parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession, functions

    builder = SparkSession.builder.master(f"local[{PARTITIONS}]").config("spark.jars", connector_jars())
    for name, value in TUNED.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    out = f"{arguments.topic}-out"
    make_topic(arguments.kafka, out, 0, config={"message.timestamp.type": "LogAppendTime"})
    query = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", arguments.kafka)
        .option("subscribe", arguments.topic)
        .option("startingOffsets", "earliest")
        .load()
        .select(functions.substring_index(functions.col("value").cast("string"), " ", 1).alias("value"))
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", arguments.kafka)
        .option("topic", out)
        .option("checkpointLocation", str(Path(arguments.data_dir) / "checkpoint"))
        .outputMode("update")
        .trigger(realTime=_BATCH)  # type: ignore[call-overload]  # PySpark's overloads do not have it
        .start()
    )
    report(ready=True, topic=out)
    time.sleep(arguments.seconds)
    query.stop()
    report(run=0, cold=False)
    spark.stop()


if __name__ == "__main__":
    main()
