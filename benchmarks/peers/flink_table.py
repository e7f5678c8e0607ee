"""The peer Flink SQL: an upsert of counts into PostgreSQL by a local cluster of two slots, at least once.

The sink commits what came every millisecond. With one row a commit, a job that has just started fell seconds
behind 1,000 records/s, and did not keep up with 10,000. A checkpoint is made every 10 s. After a restart from
it, a count is lower than it was until the records since have been counted again. A job that fails is not
restarted here, so that it is seen.

JDBC knows no Unix sockets, so it reaches PostgreSQL over loopback.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil
from sqlalchemy import make_url

from peers.workload import fresh_tables, options, report

# The connectors. There are none for Flink 2.3 itself yet.
JARS = {
    "org/apache/flink/flink-sql-connector-kafka/5.0.0-2.2/flink-sql-connector-kafka-5.0.0-2.2.jar": (
        "5605c691d11a501382c383fecba37a7a552467da5ab7ba904ef5d6f3d62c5616"
    ),
    "org/apache/flink/flink-connector-jdbc-core/4.0.0-2.0/flink-connector-jdbc-core-4.0.0-2.0.jar": (
        "ccb9691bf1d0f97574ae768e1bef05a39c06d7f7b13996e9d485fbdd69dcbfec"
    ),
    "org/apache/flink/flink-connector-jdbc-postgres/4.0.0-2.0/flink-connector-jdbc-postgres-4.0.0-2.0.jar": (
        "b59c29dc65cafe8ae398e69072b9f6022f4a978a09002fd06a05a1a8dd3348d6"
    ),
    "org/postgresql/postgresql/42.7.13/postgresql-42.7.13.jar": (
        "6e0e4cc2d8cae902084f8a2b18728b073a6fd9d1f87c9d8bff8f298c18185b93"
    ),
}
TUNED = {
    "parallelism.default": "2",
    "taskmanager.numberOfTaskSlots": "2",
    "rest.port": "0",
    "execution.buffer-timeout.interval": "5 ms",
    "execution.checkpointing.interval": "10 s",
    "pipeline.object-reuse": "true",
    "restart-strategy.type": "none",
    "state.backend.type": "hashmap",
    "table.optimizer.agg-phase-strategy": "ONE_PHASE",
}
_START_SECONDS = 60


def _sql(table: str, columns: str, **given: str) -> str:
    settings = ", ".join(f"'{name}' = '{value}'" for name, value in given.items())
    return f"CREATE TABLE {table} ({columns}) WITH ({settings})"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--jars", required=True, help="the connectors, separated by commas")
    arguments = parser.parse_args()
    os.environ["FLINK_LOG_DIR"] = arguments.data_dir
    os.environ["JVM_ARGS"] = f"-Djava.io.tmpdir={arguments.data_dir}"
    # It cannot be installed beside txstream.
    from pyflink.common import Configuration, JobStatus  # type: ignore[import-not-found]
    from pyflink.table import EnvironmentSettings, TableEnvironment  # type: ignore[import-not-found]

    fresh_tables(arguments.database).close()
    url = make_url(arguments.database)
    configuration = Configuration()
    for name, value in {
        **TUNED,
        "execution.checkpointing.dir": (Path(arguments.data_dir) / "checkpoints").as_uri(),
        "pipeline.jars": ";".join(Path(jar).as_uri() for jar in arguments.jars.split(",")),
        "python.client.executable": sys.executable,
    }.items():
        configuration.set_string(name, value)
    flink = TableEnvironment.create(
        EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    )
    flink.execute_sql(
        _sql(
            "lines",
            "line STRING",
            **{
                "connector": "kafka",
                "topic": arguments.topic,
                "properties.bootstrap.servers": arguments.kafka,
                "scan.startup.mode": "earliest-offset",
                "format": "raw",
            },
        )
    )
    flink.execute_sql(
        _sql(
            "counts",
            "`key` STRING, `count` BIGINT, PRIMARY KEY (`key`) NOT ENFORCED",
            **{
                "connector": "jdbc",
                "url": f"jdbc:postgresql://{url.host or '127.0.0.1'}:{url.port or 5432}/{url.database}"
                "?reWriteBatchedInserts=true",
                "username": url.username or "",
                "password": url.password or "",
                "table-name": "counts",
                "sink.buffer-flush.max-rows": "1000",
                "sink.buffer-flush.interval": "1 ms",
            },
        )
    )
    job = flink.execute_sql(
        "INSERT INTO counts SELECT word, count(*) FROM (SELECT split_index(line, ' ', 0) AS word FROM lines) "
        "GROUP BY word"
    ).get_job_client()

    def status() -> JobStatus:
        return job.get_job_status().result()

    def require_running() -> None:
        if status() is not JobStatus.RUNNING:
            job.get_job_execution_result().result()  # raises what it failed of
            raise SystemExit(f"Flink's job is {status().name}")

    deadline = time.monotonic() + _START_SECONDS
    while status() is JobStatus.CREATED and time.monotonic() < deadline:
        time.sleep(0.1)
    require_running()
    report(ready=True)
    time.sleep(arguments.seconds)
    require_running()
    report(run=0, cold=False)
    job.cancel().result()
    # Its Java would end a moment after us, while it still writes into the folder of this run.
    java = psutil.Process().children()
    for process in java:
        process.terminate()
    psutil.wait_procs(java, timeout=10)


if __name__ == "__main__":
    main()
