"""The peer Pathway: a snapshot of counts in PostgreSQL, from one thread, at least once.

It commits what came every 10 ms. Its free version promises "at least once"; what it keeps of its progress is
off here, so that a kill would count again. With two threads its latency varied a hundredfold between runs.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from peers.workload import fresh_tables, options, report

_COMMIT_MILLISECONDS = 10


def main() -> None:
    arguments = options(__doc__).parse_args()
    os.environ["PATHWAY_THREADS"] = "1"
    import pathway as pw  # type: ignore[import-not-found]  # it cannot be installed beside txstream
    from sqlalchemy import make_url

    fresh_tables(arguments.database).close()
    url = make_url(arguments.database)
    lines: Any = pw.io.kafka.read(
        {
            "bootstrap.servers": arguments.kafka,
            "group.id": f"pathway-{arguments.topic}",
            "session.timeout.ms": "6000",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": "10",
        },
        topic=arguments.topic,
        format="plaintext",
        mode="streaming",
        autocommit_duration_ms=_COMMIT_MILLISECONDS,
        autogenerate_key=True,
    )

    @pw.udf(deterministic=True)  # type: ignore[untyped-decorator]
    def first_word(line: str) -> str:
        return line.split(" ", 1)[0]

    words = lines.select(key=first_word(pw.this.data))
    counts = words.groupby(pw.this.key).reduce(pw.this.key, count=pw.reducers.count())
    pw.io.postgres.write(
        counts,
        {
            "host": url.query.get("host") or url.host,
            "port": str(url.port or 5432),
            "dbname": url.database,
            "user": url.username,
            **({"password": url.password} if url.password else {}),
        },
        "counts",
        output_table_type="snapshot",
        primary_key=[counts.key],
    )
    run = threading.Thread(
        target=lambda: pw.run(monitoring_level=pw.MonitoringLevel.NONE), name="pathway", daemon=True
    )
    run.start()
    report(ready=True)
    time.sleep(arguments.seconds)
    if not run.is_alive():
        raise SystemExit("Pathway has ended")
    report(run=0, cold=False)
    os._exit(0)  # it has no stop


if __name__ == "__main__":
    main()
