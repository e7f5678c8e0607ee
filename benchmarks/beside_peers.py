"""txstream beside its peers: one broker, one topic, one PostgreSQL (fsync on), one machine, one sitting.

    make bench         # five minutes
    make bench-full    # also 1,000,000 words, and 10,000 records/s of all; more records, longer live runs

Contenders take turns, each in a process of its own. The first run of a process is cold and reported
separately; the median of the others counts. Records per second are those of a whole run including its start.
Batches per second are counted from the first commit to the last. The totals of every catch-up run are
compared with the truth. Structured Streaming and txstream get the batch sizes that suit each best. Latency is
measured at 1,000 records/s, and txstream's at 10,000 too. Writes `benchmarks/results/DATE.json` and a chart
beside it. The exit status is 1 when a total is wrong; a peer that has not taken all live records when its
time is up is only shown to be behind.

Structured Streaming in real-time mode takes part for its latency alone: it has no foreachBatch, so no
exactly-once SQL, and goes from Kafka to Kafka. Pathway and Flink SQL take part for their latency, from Kafka
to SQL, if `--pathway PYTHON` and `--flink PYTHON` name interpreters that have them, with psycopg, SQLAlchemy,
confluent-kafka, NumPy and psutil: neither can be installed beside the PySpark and the Arrow that txstream
needs. `make peers` makes an environment for each beside ours, where `--full` looks for them.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table

from txstream.plugins.local.embedded import embedded
from txstream.plugins.local.embedded.ports import free_port

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests")]

from peers.flink_table import JARS as FLINK_JARS  # noqa: E402
from peers.jars import fetched  # noqa: E402
from peers.workload import KEYS, appended, counted, latencies, make_topic, produce_live  # noqa: E402
from postgres import PostgresServer  # noqa: E402 - beside the tests

STRUCTURED, REAL_TIME, PLAIN, OURS = "structured_streaming", "real_time", "plain_loop", "ours"
PATHWAY, FLINK = "pathway_table", "flink_table"
NAMES = {
    PATHWAY: "Pathway",
    FLINK: "Flink SQL",
    STRUCTURED: "Structured Streaming",
    REAL_TIME: "real-time mode",
    PLAIN: "confluent-kafka loop",
    OURS: "txstream",
}
# What a kill at any moment does to the counts.
GUARANTEES = {
    STRUCTURED: "exactly once by hand, no fence",
    REAL_TIME: "at least once, no state",
    PLAIN: "exactly once by hand, no fence",
    OURS: "exactly once",
    PATHWAY: "at least once",
    FLINK: "at least once",
}
LARGE, WIDE, MEDIUM, SMALL = 500_000, 200_000, 100_000, 10_000
# Contender, variant, records per batch. A peer's first entry is its best size.
CATCH_UPS = (
    (STRUCTURED, "", LARGE),
    (OURS, "columnar", LARGE),
    (OURS, "columnar", MEDIUM),
    (OURS, "tuples", LARGE),
    (PLAIN, "", MEDIUM),
    (STRUCTURED, "", SMALL),
    (OURS, "columnar", SMALL),
)
# For a topic of a million words.
WIDE_KEYS = 1_000_000
WIDE_CATCH_UPS = ((STRUCTURED, "wide", WIDE), (OURS, "wide", WIDE))
RATES = (1_000, 10_000)

console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)
Result = dict[str, Any]


class Sitting:
    """The services of one sitting, on which it starts contenders."""

    def __init__(self, directory: Path, kafka: str, zookeeper: str, database: str) -> None:
        self.directory = directory
        self.kafka = kafka
        self.database = database
        self._zookeeper = zookeeper
        # Of single contenders: an interpreter other than ours, and more options.
        self.pythons: dict[str, str] = {}
        self.options: dict[str, dict[str, str]] = {}

    @contextlib.contextmanager
    def contender(self, script: str, mode: str, topic: str, **values: Any) -> Iterator[Iterator[Result]]:
        """Start a contender and yield its reports, one by one. It is killed at the end if it still runs."""
        with tempfile.TemporaryDirectory(dir=self.directory) as data:
            given = {
                "kafka": self.kafka,
                "zookeeper": self._zookeeper,
                "database": self.database,
                "topic": topic,
                "data-dir": data,
                "started": time.time(),
                **self.options.get(script, {}),
                **values,
            }
            options = [word for name, value in given.items() for word in (f"--{name}", str(value))]
            log = self.directory / "contenders.log"
            with log.open("ab") as errors:
                process = subprocess.Popen(
                    [self.pythons.get(script, sys.executable), "-m", f"peers.{script}", mode, *options],
                    env={**os.environ, "PYTHONPATH": str(HERE)},
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )

            def reports() -> Iterator[Result]:
                assert process.stdout is not None
                yield from (json.loads(line) for line in process.stdout if line.startswith("{"))
                if process.wait(120):
                    raise SystemExit(f"{script} failed:\n{log.read_text(errors='replace')[-3000:]}")

            try:
                unread = reports()
                yield unread
                list(unread)
            finally:
                process.kill()
                process.wait()


def catch_up(
    sitting: Sitting, case: tuple[str, str, int], records: int, topic: str, runs: int, keys: int = KEYS
) -> Result:
    script, variant, batch = case
    settings = {"records": records, "batch": batch, "runs": runs, "variant": variant, "keys": keys}
    with sitting.contender(script, "catchup", topic, **settings) as reports:
        done = list(reports)
    warm = [run for run in done if not run["cold"]]
    rates = [run["batches_per_second"] for run in warm if run["batches_per_second"]]
    result = {
        "contender": script,
        "variant": variant,
        "batch": batch,
        "records": records,
        "cold_records_per_second": round(done[0]["records"] / done[0]["seconds"]),
        "start_to_first_commit_seconds": done[0]["first_commit_seconds"],
        "records_per_second": round(statistics.median(run["records"] / run["seconds"] for run in warm)),
        "batches_per_second": round(statistics.median(rates), 2) if rates else None,
        "runs": done,
        "exact": all(run["exact"] for run in done),
    }
    console.print(
        f"{NAMES[script]:<22}{variant:<10}{batch:>9,} a batch: {result['records_per_second']:>10,} "
        f"records/s, cold {result['cold_records_per_second']:>9,}, "
        f"exact: {exactness(result)}"
    )
    return result


def live(sitting: Sitting, script: str, rate: int, seconds: float) -> Result:
    topic = f"live-{uuid.uuid4().hex[:8]}"
    make_topic(sitting.kafka, topic, 0)
    warm_up = seconds / 3
    produced: list[int] = []
    with sitting.contender(script, "live", topic, seconds=seconds + 8, batch=MEDIUM) as reports:
        ready = next(reports)
        producer = threading.Thread(
            target=lambda: produced.append(produce_live(sitting.kafka, topic, rate, seconds))
        )
        producer.start()
        list(reports)
        producer.join()
    if "topic" in ready:
        arrived, taken = appended(sitting.kafka, ready["topic"], warm_up)
    else:
        table = {"table": ready["table"]} if "table" in ready else {}
        arrived = counted(sitting.database, count="n" if table else "count", **table)
        taken = latencies(sitting.database, warm_up, **table)
    result = {
        "contender": script,
        "guarantee": GUARANTEES[script],
        "rate": rate,
        "exact": [arrived] == produced,
        "behind": max(0, sum(produced) - arrived),
        **taken,
    }
    if result["markers"]:
        what = f"p50 {result['p50']} ms, p99 {result['p99']} ms"
    else:
        what = "nothing was committed in time to be measured"
    console.print(f"{NAMES[script]:<22}live {rate:>6,}/s: {what}, exact: {exactness(result)}")
    return result


def exactness(result: Result) -> str:
    """Return whether the total of a run was right, as text."""
    if result["exact"]:
        return "yes"
    return f"NO, {result['behind']:,} behind" if result.get("behind") else "NO"


def is_wrong(result: Result) -> bool:
    """Return whether a total is to be looked into. A peer may be too slow for a rate; it then has the rest
    to come."""
    is_late = result["contender"] != OURS and result.get("behind", 0) > 0
    return not (result["exact"] or is_late)


def ratios(catch_ups: Sequence[Result], lives: Sequence[Result]) -> dict[str, float]:
    """Return ours over theirs, or theirs over ours for latencies, so that more is better for us. Each
    contender counts with its best batch size. What a slow machine left unmeasured has no ratio."""

    def best(contender: str, variant: str, figure: str) -> float | None:
        found = [c[figure] for c in catch_ups if (c["contender"], c["variant"]) == (contender, variant)]
        return max(found, default=None)

    def small(contender: str) -> float | None:
        return next(
            (
                c["batches_per_second"]
                for c in catch_ups
                if c["contender"] == contender and c["batch"] == SMALL
            ),
            None,
        )

    def at_first_rate(contender: str, figure: str) -> float | None:
        return next((c[figure] for c in lives if c["contender"] == contender and c["rate"] == RATES[0]), None)

    rate, cold = "records_per_second", "cold_records_per_second"
    peer = best(STRUCTURED, "", rate)
    pairs = {
        "throughput_vs_structured_streaming": (best(OURS, "columnar", rate), peer),
        "cold_throughput_vs_structured_streaming": (
            best(OURS, "columnar", cold),
            best(STRUCTURED, "", cold),
        ),
        "per_tuple_throughput_vs_structured_streaming": (best(OURS, "tuples", rate), peer),
        "batches_per_second_vs_structured_streaming": (small(OURS), small(STRUCTURED)),
        "latency_p50_vs_structured_streaming": (at_first_rate(STRUCTURED, "p50"), at_first_rate(OURS, "p50")),
        "latency_p99_vs_structured_streaming": (at_first_rate(STRUCTURED, "p99"), at_first_rate(OURS, "p99")),
        "throughput_vs_plain_loop": (best(OURS, "columnar", rate), best(PLAIN, "", rate)),
    }
    return {name: round(more / less, 2) for name, (more, less) in pairs.items() if more and less}


def latency_p50_ms(lives: Sequence[Result]) -> dict[str, dict[str, float | None]]:
    """Return the median latency of each contender by records per second; None if nothing was measured."""
    found: dict[str, dict[str, float | None]] = {}
    for one in lives:
        found.setdefault(one["contender"], {})[str(one["rate"])] = one["p50"]
    return found


def own_server(folder: Path) -> tuple[PostgresServer, str]:
    """Start a PostgreSQL that writes its log to disk before it answers and records commit times.

    The URL is that of its Unix socket. It listens on loopback, too, at the same port: JDBC knows no sockets.
    """
    server = PostgresServer(folder / "postgres", free_port())
    where: Any = {"host": str(server.data), "port": server.port}
    with psycopg.connect(user="postgres", autocommit=True, **where) as connection:
        for setting in ("fsync", "full_page_writes", "track_commit_timestamp", "autovacuum"):
            connection.execute(f"ALTER SYSTEM SET {setting} = on")
    server.stop("fast")
    server.start()
    return server, server.create_database("bench")


def python_of(peer: str, environment: str = sys.prefix) -> str | None:
    """Return the interpreter that `make peers` has made for a peer, beside our environment; None without."""
    made = Path(f"{environment}-{peer}")
    return str(made / "bin" / "python") if (made / ".installed").exists() else None


def show(document: Result) -> None:
    table = Table(title="catch-up, records/s: median of warm runs")
    for column in ("contender", "bolt", "records/batch", "records/s", "cold", "batches/s", "exact"):
        table.add_column(column, justify="right")
    for one in document["catch_up"]:
        table.add_row(
            NAMES[one["contender"]], one["variant"], f"{one['batch']:,}", f"{one['records_per_second']:,}",
            f"{one['cold_records_per_second']:,}", f"{one['batches_per_second'] or '-'}",
            exactness(one),
        )  # fmt: skip
    console.print(table)
    table = Table(title="latency, ms from produce to commit")
    for column in ("contender", "guarantee", "records/s", "p50", "p90", "p99", "exact"):
        table.add_column(column, justify="right")
    for one in document["live"]:
        table.add_row(
            NAMES[one["contender"]], one["guarantee"], f"{one['rate']:,}",
            *(str(one[f"p{p}"] or "-") for p in (50, 90, 99)),
            exactness(one),
        )  # fmt: skip
    console.print(table)
    for name, value in document["ratios"].items():
        console.print(f"{name:<48}{value:>6}")


def draw(document: Result, path: Path) -> None:
    """Draw two bar charts as SVG."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    colours = {
        OURS: "#2563eb",
        PATHWAY: "#059669",
        FLINK: "#be185d",
        STRUCTURED: "#b45309",
        REAL_TIME: "#d97706",
        PLAIN: "#6b7280",
    }
    measured = [one for one in document["live"] if one["p50"] is not None]
    height = 0.36 * max(len(document["catch_up"]), len(measured))
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, height), layout="constrained")
    for axes, title, bars in (
        (
            left,
            "catch-up, thousand records/s",
            [
                (
                    f"{NAMES[c['contender']]} {c['variant']}\n{c['batch']:,} a batch",
                    c["records_per_second"] / 1000,
                    c["contender"],
                )
                for c in document["catch_up"]
            ],
        ),
        (
            right,
            "latency p50 (bar) to p99 (line), ms, logarithmic",
            [(f"{NAMES[c['contender']]}\n{c['rate']:,}/s", c["p50"], c["contender"]) for c in measured],
        ),
    ):
        labels = [label for label, _, _ in bars]
        axes.barh(labels, [value for _, value, _ in bars], color=[colours[one] for _, _, one in bars])
        axes.invert_yaxis()
        axes.set_title(title, fontsize=9)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    right.set_xscale("log")  # a contender that falls behind is seconds late
    right.set_xlim(left=1)
    for at, one in enumerate(measured):
        right.plot([one["p50"], one["p99"]], [at, at], color="#111827", linewidth=1.5)
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="2,000,000 records, more runs, longer live runs")
    parser.add_argument("--pathway", metavar="PYTHON", help="an interpreter that has Pathway")
    parser.add_argument("--flink", metavar="PYTHON", help="an interpreter that has Flink")
    parser.add_argument("--records", type=int, help="records of the large topic (default 1,000,000)")
    parser.add_argument("--runs", type=int, help="runs of each case, the cold one among them (default 4)")
    parser.add_argument("--seconds", type=float, help="of each live run (default 18)")
    parser.add_argument(
        "--out", type=Path, default=HERE / "results", help="folder for the JSON and the chart"
    )
    options = parser.parse_args()
    records = options.records or (2_000_000 if options.full else 1_000_000)
    small_records = records // 4
    runs = options.runs or (6 if options.full else 4)
    seconds = options.seconds or (45.0 if options.full else 18.0)
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txstream-bench-")))
        server, database = own_server(directory)
        stack.callback(server.close)
        services = stack.enter_context(embedded(directory, console=console))
        sitting = Sitting(directory, services.kafka, services.zookeeper, database)
        for peer, name, python in ((PATHWAY, "pathway", options.pathway), (FLINK, "flink", options.flink)):
            if python or (options.full and (python := python_of(name))):
                sitting.pythons[peer] = python
        if FLINK in sitting.pythons:
            sitting.options[FLINK] = {"jars": ",".join(fetched(FLINK_JARS))}
        for topic, count in (("large", records), ("small", small_records)):
            make_topic(services.kafka, topic, count)
        catch_ups = []
        for case in CATCH_UPS:
            topic, count = ("small", small_records) if case[2] == SMALL else ("large", records)
            catch_ups.append(catch_up(sitting, case, count, topic, runs))
        lives = [
            live(sitting, script, rate, seconds)
            for rate in RATES
            for script in (STRUCTURED, REAL_TIME, OURS, PLAIN, *sitting.pythons)
            if options.full or rate == RATES[0] or script == OURS
        ]
        if options.full:  # last, because the server then cleans up a million rows for minutes
            make_topic(services.kafka, "wide", records, keys=WIDE_KEYS)
            for case in WIDE_CATCH_UPS:
                catch_ups.append(catch_up(sitting, case, records, "wide", runs, WIDE_KEYS))
    now = datetime.datetime.now(datetime.UTC)
    document = {
        "date": now.isoformat(timespec="seconds"),
        "machine": {
            "cores": os.cpu_count(),
            "system": platform.system(),
            "python": platform.python_version(),
        },
        "records": records,
        "catch_up": catch_ups,
        "live": lives,
        "ratios": ratios(catch_ups, lives),
        "latency_p50_ms": latency_p50_ms(lives),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{now.date()}.json"
    path.write_text(json.dumps(document, indent=2) + "\n")
    draw(document, path.with_suffix(".svg"))
    show(document)
    console.print(f"written to {path}")
    return 1 if any(is_wrong(one) for one in [*catch_ups, *lives]) else 0


if __name__ == "__main__":
    raise SystemExit(main())
