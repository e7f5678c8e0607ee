"""How fast do rows get into a Delta table? Rows/s of a task of `DeltaTableBolt`, on one core.

    python benchmarks/results_delta.py
    python benchmarks/results_delta.py --rows 200000 --batches 20 --partitions 4 --lake FOLDER --json

A row has a record's place (topic, partition, offset), a text, a decimal, a double and a timestamp. Timed are
what a task does (chunks taken, rows sorted by their place, files written), and what the leader does after
the commit (the log read and compared, files checked, a version appended). Beside it, `write_deltalake` of
deltalake appends the same rows. Figures are medians over the batches; a task's are by its processor time, and
by the clock. At the end the table must hold all rows, each txid once. The exit status is 1 when a task writes
fewer than 200,000 rows in a second of its processor.

The load of the machine is shown beside: the clock's figures are for a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from txstream import DeltaTableBolt, MemorySpout, OpaqueSpout, TransactionalTopologyBuilder
from txstream.api.bolts import TopologyContext
from txstream.api.schema import parse_schema
from txstream.api.tuples import Chunk
from txstream.core.transaction import TransactionAttempt, Txid, attempt_id
from txstream.plugins.delta.bolt import PARTITION, PATH, ROWS, SIZE
from txstream.plugins.delta.files import WrittenFile
from txstream.plugins.delta.lake import Lake

TARGET = 200_000
CHUNK_ROWS = 20_000
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
COLUMNS = parse_schema(
    "topic string, partition int, offset bigint, customer string, day int, amount decimal(12,2), "
    "weight double, at timestamp"
)


def batch_of(number: int, rows: int, partitions: int) -> pa.Table:
    """Return the rows of a batch, in the order in which four partitions are read in turns."""
    places = range(number * rows, (number + 1) * rows)
    columns = [
        ["orders"] * rows,
        [at % 4 for at in places],
        places,
        [f"customer {at % 10_007}" for at in places],
        [at % partitions for at in places],
        pa.array(places, pa.int64()).cast(pa.decimal128(19, 0)).cast(pa.decimal128(12, 2)),
        [at / 7 for at in places],
        [NOW] * rows,
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, COLUMNS, strict=True)]
    return pa.Table.from_arrays(arrays, schema=COLUMNS)


def declared(lake: Path, partitions: int) -> DeltaTableBolt:
    builder = TransactionalTopologyBuilder("bench", "rows", OpaqueSpout(MemorySpout(COLUMNS, {"p": []})))
    bolt = DeltaTableBolt(lake, partition_by="day" if partitions > 1 else ())
    builder.set_committer_bolt("lake", bolt).shuffle_grouping("rows")
    (found,) = [
        one.instance for one in builder.build().components if isinstance(one.instance, DeltaTableBolt)
    ]
    return found


def measure(folder: Path, rows: int, batches: int, partitions: int) -> dict[str, float]:
    bolt = declared(folder / "lake", partitions)
    lake = Lake(bolt.place, "bench", "uuid", bolt.state.table)
    lake.take_over(bolt.columns, bolt.partition_by, None)
    timed: dict[str, list[float]] = {"cpu": [], "clock": [], "append": [], "library": []}
    for number in range(batches):
        table = batch_of(number, rows, partitions)
        attempt = TransactionAttempt(Txid(number + 1), attempt_id(1, number + 1))
        chunks = [Chunk(batch, "rows") for batch in table.to_batches(CHUNK_ROWS)]
        started, cpu = time.perf_counter(), time.process_time()
        bolt.prepare(TopologyContext("bench", "lake", 0, 1, attempt), None, attempt)  # type: ignore[arg-type]
        for chunk in chunks:
            bolt.execute_chunk(chunk)
        named = bolt.deltas().to_pylist()
        timed["cpu"].append(rows / (time.process_time() - cpu))
        timed["clock"].append(rows / (time.perf_counter() - started))
        files = [WrittenFile(one[PATH], one[SIZE], one[ROWS], json.loads(one[PARTITION])) for one in named]
        started = time.perf_counter()
        lake.append(attempt.txid, files)
        timed["append"].append((time.perf_counter() - started) * 1000)
        cpu = time.process_time()
        write_deltalake(
            folder / "library", table, mode="append", partition_by=list(bolt.partition_by) or None
        )
        timed["library"].append(rows / (time.process_time() - cpu))
    found = DeltaTable(folder / "lake")
    count = sum(found.get_add_actions(flatten=True).column("num_records").to_pylist())
    if count != rows * batches or found.transaction_version("bench/lake_files") != batches:
        raise SystemExit(f"{count} of {rows * batches} rows are there")
    return {name: round(statistics.median(values), 1) for name, values in timed.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of a batch")
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--partitions", type=int, default=1, help="values of the partition column")
    parser.add_argument("--lake", type=Path, help="a folder; by default one beside, which is removed")
    parser.add_argument("--json", action="store_true")
    here = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(dir=here.lake or Path.cwd()) as folder:
        figures = measure(Path(folder), here.rows, here.batches, here.partitions)
    if here.json:
        given = {"rows": here.rows, "batches": here.batches, "partitions": here.partitions}
        print(json.dumps({**given, "load_before": round(before, 1), "figures": figures}))
    else:
        print(f"a task: {figures['cpu']:,.0f} rows/s of a core, {figures['clock']:,.0f} by the clock")
        print(f"a version is appended in {figures['append']:.1f} ms")
        print(f"write_deltalake: {figures['library']:,.0f} rows/s of a core; load before {before:.1f}")
    return int(figures["cpu"] < TARGET)


if __name__ == "__main__":
    sys.exit(main())
